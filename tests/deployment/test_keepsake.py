"""The model that a site gets when a training ends: checked, tried on its own rows, and kept."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cryptography")

from ffgb.data.sites import Schema, Site
from ffgb.deployment.attendant import rehearse
from ffgb.deployment.board import SiteBoard
from ffgb.deployment.keepsake import Keepsake
from ffgb.deployment.site_report import site_report
from ffgb.errors import FFGBError
from ffgb.runs.config import Config
from ffgb.runs.conformal import load
from ffgb.runs.directory import Run
from ffgb.runs.evaluate import evaluate
from ffgb.runs.explain import explain
from ffgb.runs.training import train


def watched() -> SiteBoard:
    """The board of a site at the end of a training of two rounds."""
    board = SiteBoard("north", "ffgb.example.org:9443")
    for t in (1, 2):
        for part, loss in (("to train with", 0.4 - t / 10), ("held out", 0.5 - t / 10)):
            board.own({part: {"round": t, "rows": 16, "loss": loss, "accuracy": 0.8}})
    board.left("question GramOf", "set up", [("gram", "float64", (6,))], 1234)
    board.refused("question SketchOf", "its owner has <not> agreed")
    return board


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
    seen = watched().snapshot()
    said = keepsake.keep(site, schema, 0, {}, parts, seen)
    assert said[0] == f"training has ended after 2 rounds; the model is in {tmp_path / 'home' / 'model-1'}"
    scores = json.loads((tmp_path / "home" / "model-1" / "scores.json").read_text())
    assert f"on its own rows held out: accuracy {scores['held out']['accuracy']:.4f} (95 % interval" in said[2]
    run = Run.open(tmp_path / "home" / "model-1")
    assert evaluate(run, [str(file)])["all"] == scores["held out"]
    assert [row["column"] for row in explain(run)["importance"]] == ["a"]  # by the rows of its own file
    assert load(run.path).of["others"].rows == scores["held out"]["rows"]  # thresholds of its own rows stay here
    # the loss that was computed in training
    own = {"held out": {"round": 2, "loss": scores["held out"]["loss"]}}
    assert len(keepsake.keep(site, schema, 0, own, parts, seen)) == len(said)
    assert (tmp_path / "home" / "model-2" / "model.safetensors").exists()
    own["held out"]["loss"] += 0.01
    strange = keepsake.keep(site, schema, 0, own, parts, seen)[0]
    assert "the server sent another model than the one that was trained" in strange
    for wrong in (
        {},
        {**parts, "model": b"no model"},
        {**parts, "summary": b"{}"},
        {**parts, "model": parts["summary"]},
    ):
        with pytest.raises(FFGBError, match="training has ended, but what the server sent is not a model"):
            keepsake.keep(site, schema, 0, {}, wrong, seen)
    other = train(Config(data=("wine",), learner="features", clients=2, rounds=1), workers=0).model.to_bytes()
    with pytest.raises(FFGBError, match="the server sent a model of other columns or classes"):
        keepsake.keep(site, schema, 0, {}, {**parts, "model": other}, seen)
    assert not (tmp_path / "home" / "model-4").exists()


def test_the_report_has_own_scores_the_result_of_all_and_what_left() -> None:
    scores = {
        "to train with": {"rows": 64, "loss": 0.21, "accuracy": 0.9, "base_rate": 0.5},
        "held out": {"rows": 16, "loss": 0.31, "accuracy": 0.8125, "base_rate": 0.4375, "auc": 0.77},
    }
    summary = {
        "rounds": 2, "clients": 3, "test_accuracy": 0.83, "test_loss": 0.4, "bytes_up": 5_100.0, "strange": "<script>",
        "train_loss": math.nan, "bytes_down": "many",
    }  # fmt: skip
    page = site_report(scores, summary, {"rounds": 2, "data": ["sites"]}, watched().snapshot())
    words = " ".join(re.sub(r"<style>.*?</style>|<script>.*?</script>|<[^>]*>", " ", page, flags=re.DOTALL).split())
    for text in (
        "Accuracy 81.25 % (95 % interval 56.99 % to 93.41 %) on this site's own rows",
        "Measured on 16 rows that this site held out. The model was trained by 3 sites in 2 rounds",
        "How it learned at these rows",
        "rows held out 16 0.31 81.25 % 43.75 % 0.77",
        "held-out rows 83.00 % 0.4",
        "sent by a site 5.1 kB",
        "sums of products of two features question GramOf 1 1.2 kB set up",
        "question SketchOf 1 its owner has &lt;not&gt; agreed",
    ):
        assert text in words, text
    assert "<script>strange" not in page
    assert "received by a site" not in words  # no number


def test_rounds_that_are_done_again_replace_those_before() -> None:
    board = watched()
    assert [line["round"] for line in board.snapshot()["lines"]] == [1.0, 2.0]
    assert board.snapshot()["lines"][1] | {} == {
        **dict.fromkeys(board.snapshot()["lines"][1]),
        "round": 2.0, "train_loss": 0.2, "train_accuracy": 0.8, "test_loss": 0.3, "test_accuracy": 0.8,
    }  # fmt: skip
    board.own({"held out": {"round": 1, "rows": 16, "loss": 0.7}})
    (line,) = board.snapshot()["lines"]
    assert (line["test_loss"], line["train_loss"]) == (0.7, pytest.approx(0.3))


def test_a_model_with_another_file_than_the_owner_agreed_to_is_not_tried(tmp_path: Path) -> None:
    """Its ONNX map would be run on the site's rows."""
    pytest.importorskip("onnxruntime")
    from tests.deployment.test_attendant import onnx_encoder

    onnx_encoder(tmp_path)
    rng, file = np.random.default_rng(0), tmp_path / "north.csv"
    rows = [",".join(f"{v:.3f}" for v in rng.standard_normal(30)) for _ in range(60)]
    file.write_text(",".join(f"p{i}" for i in range(30)) + ",sick\n")
    with file.open("a") as more:
        more.writelines(f"{row},{'no' if i % 2 else 'yes'}\n" for i, row in enumerate(rows))
    job = {"map": str(tmp_path / "encoder.onnx"), "learner": "features", "rounds": 1}
    model = train(Config(data=(str(file),), target="sick", **job), workers=0).model
    site = Site("north", file, "sick")
    schema = Schema.of({"north": site.describe()}, "sick", None, 10, 10)
    parts = {"model": model.to_bytes(), "summary": json.dumps({"round": 1}).encode()}
    agreed = rehearse(site, {"data": ["sites"], **job})[1]
    assert len(agreed.files) == 1
    options = {"data": ["sites"], **job}
    with pytest.raises(FFGBError, match=f"has not agreed to, with the SHA-256 {min(agreed.files)}"):
        Keepsake(tmp_path / "home", options).keep(site, schema, 0, {}, parts, watched().snapshot())
    assert not (tmp_path / "home").exists()
    kept = Keepsake(tmp_path / "home", options, agreed.files)
    assert "the model is in" in kept.keep(site, schema, 0, {}, parts, watched().snapshot())[0]
