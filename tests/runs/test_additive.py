"""Runs of additive models: resumed, under masks, started from, and with trees on top."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffgb.errors import FFGBError
from ffgb.runs.config import Config
from ffgb.runs.model import Model
from ffgb.runs.training import train

OPTIONS: dict[str, Any] = {"data": ("wine",), "learner": "additive", "clients": 5, "leaf_rows": 5, "bins": 8}


def model(out: Path) -> bytes:
    return (out / "model.safetensors").read_bytes()


def test_a_run_that_was_cut_goes_on_to_the_same_bits_also_under_masks(tmp_path: Path) -> None:
    config, cut = Config(**OPTIONS), tmp_path / "cut"
    train(config, tmp_path / "whole", workers=0)
    lines = cut / "metrics.jsonl"
    train(config, cut, workers=0, should_stop=lambda: lines.exists() and lines.read_text().count("\n") == 2)
    train(config, cut, resume=True, workers=0)
    train(Config(**OPTIONS, secure="on"), tmp_path / "masked", workers=0)
    assert model(cut) == model(tmp_path / "whole") == model(tmp_path / "masked")


def test_trees_are_boosted_on_top_and_the_additive_model_stays_what_it_was(tmp_path: Path) -> None:
    first = train(Config(**OPTIONS, rounds=3), tmp_path / "first", workers=0)
    more = {**OPTIONS, "learner": "trees", "start": str(tmp_path / "first"), "rounds": 2}
    result = train(Config(**{name: value for name, value in more.items() if name != "bins"}), workers=0)
    before = Model.load(tmp_path / "first").f.tensors()
    after = result.model.f.tensors()
    assert all(np.array_equal(after[name][: len(array)], array) for name, array in before.items())
    assert result.metrics[-1]["train_loss"] < first.metrics[-1]["train_loss"]
    again = train(Config(**{**OPTIONS, "start": str(tmp_path / "first"), "rounds": 2}), workers=0)
    whole = train(Config(**OPTIONS, rounds=5), workers=0)
    x = np.random.default_rng(0).standard_normal((50, 13)).astype(np.float32) * 100.0
    assert np.allclose(again.model.decision(x), whole.model.decision(x), atol=1e-9)


@pytest.mark.parametrize(
    ("more", "words"), [({"monotone": ("a+",)}, "monotone"), ({"algorithm": "fedavg"}, "grown from totals")]
)
def test_settings_that_do_not_go_with_additive_models_are_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(FFGBError, match=words):
        train(Config(**OPTIONS, **more), workers=0)
