"""Shared geometry as its users meet it: bars on real data, the same bits whatever happens, options and refusals."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffgb import Config, train
from ffgb.core.judgement import auc
from ffgb.engines import local
from ffgb.errors import FFGBError
from ffgb.features.patches import Patches
from ffgb.protocol.codec import decode
from ffgb.protocol.messages import what_leaves
from ffgb.runs.config import load_data
from ffgb.runs.model import Model
from ffgb.runs.training import Result

SMALL: dict[str, Any] = {"data": ("digits",), "clients": 6, "rounds": 4, "features": 256}


@cache
def without_workers(**more: Any) -> Result:
    """What others are to come to."""
    return train(Config(**SMALL, **more), workers=0)


def same(a: Any, b: Any) -> None:
    assert a.model.to_bytes() == b.model.to_bytes()
    for one, other in zip(a.metrics, b.metrics, strict=True):
        one, other = ({k: v for k, v in line.items() if "seconds" not in k} for line in (one, other))
        assert one == other


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"gram": "exact", "map": "fourier"},
        {"gram": "nystrom", "rank": 20},
        {"participation": 3},
        {"local_steps": 2},
    ],
    ids=lambda more: " ".join(f"{k}={v}" for k, v in more.items()) or "default",
)
def test_any_number_of_workers_gives_the_same_bits(more: dict[str, Any]) -> None:
    config, whole = Config(**SMALL, **more), without_workers(**more)
    for workers in (1, 2):
        same(whole, train(config, workers=workers))


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # the training may be over
        os.kill(pid, signal.SIGKILL)


def test_workers_that_die_at_any_moment_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    config, whole = Config(**SMALL), without_workers()
    kinds: list[str] = []  # questions by their names
    ask = local.LocalEngine.exchange

    def exchange(self: local.LocalEngine, data: bytes, clients: Any) -> dict[int, bytes]:
        kind = what_leaves(decode(data))
        kinds.append(kind)
        # in the middle of each kind of message, once: between slopes and their step, too
        if kinds.count(kind) == 2:
            pid = self.pids[len(kinds) % 2]
            os.kill(pid, signal.SIGSTOP)
            threading.Timer(0.05, kill, (pid,)).start()
        return ask(self, data, clients)

    monkeypatch.setattr(local.LocalEngine, "exchange", exchange)
    same(whole, train(config, workers=2))
    rounds = {"question GradientOf", "question SlopesOf", "report"}  # which is the answer to a step
    assert {"question MomentsOf", "question GramOf", *rounds} <= set(kinds)


@pytest.mark.parametrize("more", [{}, {"gram": "exact"}, {"local_steps": 2}, {"learner": "tree", "schedule": "search"}])
def test_a_run_stopped_after_any_round_goes_on_to_the_same_bits(more: dict[str, Any], tmp_path: Path) -> None:
    config, whole = Config(**SMALL, **more), without_workers(**more)

    def stopped(path: Path, after: int) -> Path:
        seen: list[Any] = []
        train(config, path, workers=0, on_round=seen.append, should_stop=lambda: len(seen) >= after)
        return path

    for stop in (1, 3):
        path = stopped(tmp_path / str(stop), stop)
        same(whole, train(config, path, resume=True, workers=0))


def test_the_model_file_holds_the_features_and_needs_no_data(tmp_path: Path) -> None:
    result = train(Config(**SMALL), tmp_path / "run", workers=0)
    model, data = Model.load(tmp_path / "run"), load_data(Config(**SMALL))
    assert isinstance(model.family.features.inner, Patches)  # type: ignore[attr-defined]
    assert model.f.terms == 1
    assert model.score(data.x_test, data.y_test)["accuracy"] == result.summary["test_accuracy"]
    # of what was made for training, nothing is in it
    assert (tmp_path / "run" / "model.safetensors").stat().st_size < 200_000
    assert (tmp_path / "run" / "checkpoint" / "geometry.safetensors").exists()


def test_the_split_does_not_matter() -> None:
    results = [
        train(
            Config(data=("breast_cancer",), learner="features", clients=clients, split=split, similarity=0.0, rounds=4),
            workers=0,
        )
        for clients, split in ((1, "iid"), (7, "similarity"), (12, "dirichlet"))
    ]
    x = load_data(Config(data=("breast_cancer",))).x_test
    for other in results[1:]:
        np.testing.assert_allclose(other.model.decision(x), results[0].model.decision(x), rtol=1e-3, atol=1e-3)
        assert other.summary["test_accuracy"] == results[0].summary["test_accuracy"]


def test_local_geometry_is_still_there_and_worse() -> None:
    kinds = {
        geometry: train(
            Config(data=("wine",), learner="features", similarity=0.0, geometry=geometry, clients=6), workers=0
        )
        for geometry in ("shared", "local")
    }
    assert kinds["shared"].summary["test_loss"] < kinds["local"].summary["test_loss"]
    assert kinds["local"].summary["rounds"] == 30


def test_adult_with_sorted_labels_reaches_its_bar(real_data: Path) -> None:
    config = Config(data=("adult",), learner="features", features=400, clients=20, similarity=0.1, rounds=10)
    result, data = train(config), load_data(config)
    score = result.model.score(data.x_test, data.y_test)
    assert score["accuracy"] >= 0.865
    assert score["auc"] >= 0.917
    assert result.summary["bytes_up"] + result.summary["bytes_down"] < 4e6


def test_housing_by_longitude_is_as_good_as_in_one_place(real_data: Path) -> None:
    settings: dict[str, Any] = {"data": ("cal_housing",), "learner": "features", "features": 600}
    sites = train(Config(clients=20, by="longitude", similarity=0.0, **settings))
    whole = train(Config(clients=1, split="iid", **settings))
    assert sites.summary["test_rmse"] == pytest.approx(whole.summary["test_rmse"], rel=1e-5)
    assert sites.summary["test_rmse"] < 0.497


def test_heart_stops_before_it_fits_noise(real_data: Path) -> None:
    result = train(Config(data=("heart",), learner="features"), workers=0)
    assert result.finished
    assert result.summary["rounds"] < 5
    longer = train(Config(data=("heart",), learner="features", rounds=10), workers=0)  # as many as asked for
    assert longer.summary["rounds"] == 10
    # more rounds come to the same weights: the prior keeps them from noise
    assert result.summary["test_loss"] == pytest.approx(longer.summary["test_loss"], rel=0.02)
    by_hand = train(Config(data=("heart",), rounds=10, ridge=1 / 735), workers=0)
    assert longer.summary["test_loss"] < 0.9 * by_hand.summary["test_loss"]


def test_a_run_that_stopped_of_itself_is_over(tmp_path: Path) -> None:
    config = Config(data=("diabetes",), learner="features", clients=5)
    first = train(config, tmp_path / "run", workers=0)
    assert first.finished
    assert len(first.metrics) < 10
    again = train(config, tmp_path / "run", resume=True, workers=0)
    same(first, again)


def test_validation_chooses_and_counts(tmp_path: Path) -> None:
    plain = train(Config(data=("diabetes",), learner="features", clients=5), workers=0)
    chosen = train(
        Config(data=("diabetes",), learner="features", clients=5, validation=0.2), tmp_path / "run", workers=0
    )
    assert chosen.summary["parameters_up"] > 1.5 * plain.summary["parameters_up"]
    assert chosen.summary["ridge"] is not None
    assert chosen.summary["test_rmse"] < 1.05 * plain.summary["test_rmse"]
    repeated = train(Config(data=("diabetes",), learner="features", clients=5, validation=0.2), workers=2)
    same(chosen, repeated)
    with pytest.raises(FFGBError, match="sets no row aside"):
        train(Config(data=("wine",), clients=5, validation=1e-9), workers=0)


def test_the_area_under_the_curve() -> None:
    y = np.array([0, 1, 0, 1, 1])
    assert auc(np.array([0.1, 0.9, 0.2, 0.8, 0.7]), y) == 1.0
    assert auc(np.array([0.9, 0.1, 0.8, 0.2, 0.3]), y) == 0.0
    assert auc(np.ones(5), y) == 0.5
    assert auc(np.array([1.0, 2.0, 3.0, 4.0, 0.0]), y) == pytest.approx(3 / 6)
    assert auc(np.ones(3), np.ones(3)) == 0.5


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"geometry": "flat"}, "--geometry is local or shared"),
        ({"gram": "magic"}, "--gram is exact or blocks"),
        ({"learner": "tree", "geometry": "shared"}, "--geometry shared is for features and linear"),
        ({"map": "magic"}, "there is no map 'magic'"),
        ({"map": "inputs+magic"}, "there is no map 'magic'"),
        ({"map": "nowhere.onnx"}, "nowhere.onnx cannot be read"),
        ({"map": "no.such:thing"}, "no.such:thing cannot be imported"),
        ({"map": "math:factorial"}, "the encoder math:factorial fails"),
        ({"map": "patches"}, "patches are for images"),
        ({"features": 3_000_000}, r"3,\d+,\d+ features need [\d,.]+ GB of memory .* are free; choose a smaller"),
        ({"schedule": "search", "participation": 2}, "needs every client in every round"),
        ({"validation": 1.5}, "--validation is a number from 0 below 1"),
        ({"by": "size"}, "--by size is for the similarity split and a column of wine"),
        (
            {"map": "trees", "gram": "tied", "features": 64, "learner": "linear", "rank": 0},
            "--rank is a whole number from 1 on",
        ),
    ],
    ids=lambda v: " ".join(f"{k}={x}" for k, x in v.items()) if isinstance(v, dict) else "",
)
def test_settings_that_cannot_be_are_refused_before_any_work(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(FFGBError, match=words):
        train(Config(**{"data": ("wine",), "clients": 4, **settings}), workers=0)


def test_a_column_to_sort_by_makes_clients_differ() -> None:
    config = Config(data=("wine",), learner="features", clients=4, by="alcohol", similarity=0.0)
    data = load_data(config)
    from ffgb.data import partition

    parts = partition(data, "similarity", 4, similarity=0.0, by="alcohol")
    column = data.x[:, data.columns.index("alcohol")]
    for a, b in pairwise(parts):
        assert column[a].max() <= column[b].min()
    assert re.match("wine", train(config, workers=0).summary["data"])


@pytest.mark.parametrize(
    "name", ["inputs", "steps", "waves", "trees", "inputs+trees", "fourier", "laplace", "arc-cosine"]
)
def test_every_map_of_tables_learns_wine(name: str) -> None:
    assert train(Config(data=("wine",), clients=4, map=name, features=200), workers=0).summary["test_accuracy"] > 0.9


@pytest.mark.parametrize("name", ["patches", "mirrored-patches", "random-patches", "fourier", "patches+fourier"])
def test_every_map_of_images_learns_digits(name: str) -> None:
    result = train(Config(data=("digits",), clients=4, map=name, features=400), workers=0)
    assert result.summary["test_accuracy"] > (0.9 if name == "mirrored-patches" else 0.97)
