"""The model that a site gets when a training ends: checked, tried on its own rows, and kept."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cryptography")

from ffgb.data.sites import Schema, Site
from ffgb.deployment.keepsake import Keepsake
from ffgb.errors import FFGBError
from ffgb.runs.config import Config
from ffgb.runs.directory import Run
from ffgb.runs.evaluate import evaluate
from ffgb.runs.training import train


def test_a_model_is_tried_on_the_sites_own_rows_and_kept(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    file = tmp_path / "north.csv"
    rows = [(f"{a:.3f}", "yes" if a + rng.normal() / 2 > 0 else "no") for a in rng.standard_normal(80)]
    file.write_text("a,sick\n" + "".join(f"{a},{y}\n" for a, y in rows))
    model = train(Config(data=(str(file),), target="sick", rounds=2), workers=0).model
    site = Site("north", file, "sick")
    schema = Schema.of({"north": site.describe()}, "sick", None, 10, 10)
    keepsake = Keepsake(tmp_path / "home", {"rounds": 2, "data": ["sites"]})
    parts = {"model": model.to_bytes(), "summary": json.dumps({"round": 2}).encode()}
    said = keepsake.keep(site, schema, 0, {}, parts)
    assert said[0] == f"training has ended after 2 rounds; the model is in {tmp_path / 'home' / 'model-1'}"
    scores = json.loads((tmp_path / "home" / "model-1" / "scores.json").read_text())
    assert f"on its own rows held out: accuracy {scores['held out']['accuracy']:.3f}" in said[2]
    run = Run.open(tmp_path / "home" / "model-1")
    assert evaluate(run, [str(file)])["all"] == scores["held out"]
    # the loss that was computed in training
    own = {"held out": {"round": 2, "loss": scores["held out"]["loss"]}}
    assert len(keepsake.keep(site, schema, 0, own, parts)) == len(said)
    assert (tmp_path / "home" / "model-2" / "model.safetensors").exists()
    own["held out"]["loss"] += 0.01
    assert (
        "the server sent another model than the one that was trained" in keepsake.keep(site, schema, 0, own, parts)[0]
    )
    for wrong in (
        {},
        {**parts, "model": b"no model"},
        {**parts, "summary": b"{}"},
        {**parts, "model": parts["summary"]},
    ):
        with pytest.raises(FFGBError, match="training has ended, but what the server sent is not a model"):
            keepsake.keep(site, schema, 0, {}, wrong)
    other = train(Config(data=("wine",), clients=2, rounds=1), workers=0).model.to_bytes()
    with pytest.raises(FFGBError, match="the server sent a model of other columns or classes"):
        keepsake.keep(site, schema, 0, {}, {**parts, "model": other})
    assert not (tmp_path / "home" / "model-4").exists()
