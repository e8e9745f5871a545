"""Runs of boosted trees: interrupted and resumed, by some clients at a time, under masks, with rows set aside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffgb.errors import FFGBError
from ffgb.runs.config import Config
from ffgb.runs.model import Model
from ffgb.runs.training import train

OPTIONS: dict[str, Any] = {
    "data": ("wine",), "learner": "trees", "clients": 5, "rounds": 4, "leaf_rows": 5, "leaves": 6, "bins": 16,
    "trees_a_round": 2, "levels": 3,
}  # fmt: skip


def model(out: Path) -> bytes:
    return (out / "model.safetensors").read_bytes()


@pytest.mark.parametrize("more", [{}, {"participation": 3}, {"growth": "best", "column_share": 0.3}])
def test_a_run_that_was_cut_goes_on_to_the_same_bits(more: dict[str, Any], tmp_path: Path) -> None:
    config, cut = Config(**OPTIONS, **more), tmp_path / "cut"
    train(config, tmp_path / "whole", workers=0)
    lines = cut / "metrics.jsonl"
    ended = train(config, cut, workers=0, should_stop=lambda: lines.exists() and lines.read_text().count("\n") == 2)
    assert not ended.finished
    train(config, cut, resume=True, workers=0)
    assert model(cut) == model(tmp_path / "whole")
    ours, theirs = ((tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("whole", "cut"))
    for one, other in zip(ours, theirs, strict=True):
        a, b = (json.loads(line) for line in (one, other))
        assert {n: v for n, v in a.items() if "seconds" not in n} == {n: v for n, v in b.items() if "seconds" not in n}


def test_under_masks_the_model_has_the_same_bits(tmp_path: Path) -> None:
    for secure in ("off", "on"):
        train(Config(**OPTIONS, secure=secure), tmp_path / secure, workers=0)
    assert model(tmp_path / "on") == model(tmp_path / "off")


def test_any_split_and_any_number_of_clients_give_the_same_function(tmp_path: Path) -> None:
    options = {**OPTIONS, "data": ("diabetes",)}
    found = []
    for clients, split in ((1, "iid"), (3, "similarity"), (20, "iid")):
        made = train(Config(**{**options, "clients": clients}, split=split), workers=0).model
        found.append(made.f.tensors())
    for other in found[1:]:
        assert all(np.array_equal(found[0][name], other[name]) for name in found[0])


def test_rows_set_aside_choose_the_rounds() -> None:
    result = train(Config(**{**OPTIONS, "data": ("diabetes",), "rounds": 30}, validation=0.3), workers=0)
    assert result.finished
    assert 1 <= result.summary["rounds"] < 30


def test_training_goes_on_from_a_model(tmp_path: Path) -> None:
    train(Config(**OPTIONS), tmp_path / "first", workers=0)
    more = {name: value for name, value in OPTIONS.items() if name not in ("bins", "leaves")}
    result = train(Config(**more, start=str(tmp_path / "first")), workers=0)
    before = Model.load(tmp_path / "first")
    assert result.model.f.terms == 2 * before.f.terms - 3  # the constant is there once
    assert (
        result.metrics[-1]["train_loss"] < json.loads((tmp_path / "first" / "summary.json").read_text())["train_loss"]
    )


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"algorithm": "fedavg"}, "grown from totals by ffgb"),
        ({"geometry": "local"}, "leave --geometry out"),
        ({"schedule": "search"}, "--schedule has no effect"),
        ({"aggregate": "trimmed"}, "one array"),
        ({"distill": "clients"}, "--distill clients"),
        ({"leaf_rows": 10**6}, "enough rows"),
    ],
)
def test_settings_that_do_not_go_with_trees_are_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(FFGBError, match=words):
        train(Config(**{**OPTIONS, **more}), workers=0)
