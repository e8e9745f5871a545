"""How well a model fits: the scores are the model's, and no table, nor two together, tell of few rows."""

from __future__ import annotations

import json
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ffgb.core.types import Array
from ffgb.errors import FFGBError
from ffgb.runs.config import Config, load_data
from ffgb.runs.directory import Run
from ffgb.runs.fit import fit
from ffgb.runs.held_out import HeldOut, subgroups
from ffgb.runs.model import Model
from ffgb.runs.training import train
from tests.cli.commands import ffgb

LEAST = 10
SITES = {"east": 600, "north": 700, "south": 90, "west": 500}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Sites of which one is small, with wards that lie in departments, one of them tiny."""
    path, rng = tmp_path_factory.mktemp("fit"), np.random.default_rng(0)
    for name, n in SITES.items():
        ward = rng.choice(["a1", "a2", "a3", "b1"], n, p=[0.4, 0.28, 0.02, 0.3])
        age = rng.normal(60, 10, n).round()
        marker = rng.normal(size=n)
        sick = rng.random(n) < 1 / (1 + np.exp(-(age - 60) / 9 - 2 * marker - (ward == "b1")))
        frame = pd.DataFrame(
            {
                "age": age,
                "marker": marker,
                "ward": ward,
                "dept": [w[0] for w in ward],
                "sick": np.where(sick, "yes", "no"),
            }
        )
        frame.loc[rng.random(n) < 0.1, "age"] = np.nan
        frame.to_csv(path / f"{name}.csv", index=False)
    files = tuple(str(path / f"{name}.csv") for name in SITES)
    train(Config(data=files, target="sick", learner="linear", rounds=3, rare=2), path / "run", workers=0)
    return Run.open(path / "run")


@pytest.fixture(scope="module")
def rows(run: Run) -> HeldOut:
    data = load_data(Config.from_json(run.config))
    return HeldOut(data.x_test, data.y_test, data.sites, data.site_test)


def test_scores_are_those_of_the_model_within_their_intervals(run: Run, rows: HeldOut) -> None:
    model = Model.load(run.path)
    found = fit(model, rows)
    expected, part = model.score(rows.x, rows.y), found["parts"]["all"]
    assert part["rows"] == len(rows.y)
    for name, value in expected.items():
        score = part["scores"][name]
        assert score["value"] == pytest.approx(value)
        assert score["low"] < value < score["high"]
    p = model.predict_proba(rows.x)[:, 1]
    assert part["scores"]["brier"]["value"] == pytest.approx(np.square(p - rows.y).mean())
    assert rows.site is not None
    own = rows.site == 1
    score = found["parts"]["north"]["scores"]["auc"]["value"]
    assert score == pytest.approx(model.score(rows.x[own], rows.y[own])["auc"])
    assert run.fit == json.loads(json.dumps(found))
    calls = found["confusion"]["parts"]["all"]
    assert calls["true_positives"] == ((p >= 0.5) & (rows.y == 1)).sum()
    assert calls["sensitivity"]["value"] == pytest.approx(((p >= 0.5) & (rows.y == 1)).sum() / (rows.y == 1).sum())


def test_a_small_site_is_scored_with_another(run: Run, rows: HeldOut) -> None:
    found = fit(Model.load(run.path), rows)
    assert set(found["parts"]) == {"all", "east", "north", "south, west"}
    assert any("south" in sentence for sentence in found["left_out"])


def published(found: dict[str, Any], model: Model, rows: HeldOut) -> list[list[Array]]:
    """The rows behind each published count, table by table, as someone who knows the tables' headings sees them."""
    assert rows.site is not None
    of_site = {name: rows.site == k for k, name in enumerate(rows.names)}
    sites = [np.any([of_site[site] for site in name.split(", ")], axis=0) for name in found["parts"] if name != "all"]
    tables = [sites]
    called = model.predict_proba(rows.x)[:, 1] >= found["confusion"]["threshold"]
    parts = [name for name in found["confusion"]["parts"] if name != "all"] or [", ".join(rows.names)]
    tables.append(
        [
            np.any([of_site[site] for site in name.split(", ")], axis=0) & (called == call)
            for name in parts
            for call in (False, True)
        ]
    )
    for table in found["subgroups"]:
        words, group = subgroups(model, rows.x, table["column"])
        tables.append([np.isin(group, [words.index(w) for w in g["group"].split(" or ") if w in words] if
            g["group"] not in words else [words.index(g["group"])]) for g in table["groups"]])  # fmt: skip
    return tables


@pytest.mark.parametrize("by", [("dept", "ward"), ("ward", "dept", "age"), ("age",)])
def test_differences_of_published_counts_tell_of_no_few_rows(by: tuple[str, ...], run: Run, rows: HeldOut) -> None:
    """All unions of the groups of one table, without all unions of another that lie within: by brute force."""
    model = Model.load(run.path)
    found = fit(model, rows, by=by, least=LEAST)
    tables = published(found, model, rows)
    assert len(tables) >= 3
    for table in tables:
        assert (np.sum(table, axis=0) == 1).all()  # each is a partition
        for own in table:
            assert (np.bincount(rows.y[own], minlength=2) >= LEAST).all()
    for one, other in combinations(tables, 2):
        small, large = sorted((one, other), key=len)
        for size in range(1, len(small)):
            for some in combinations(small, size):
                union = np.any(some, axis=0)
                within = [group for group in large if not (group & ~union).any()]
                left = union & ~np.any([np.zeros(len(union), bool), *within], axis=0)
                assert not left.any() or (np.bincount(rows.y[left], minlength=2) >= LEAST).all()


def test_differences_with_curves_tell_of_no_few_rows_of_a_class(run: Run, rows: HeldOut) -> None:
    """Curves have cells of their own for each class: the same attack, class by class."""
    model = Model.load(run.path)
    found = fit(model, rows, by=("age", "dept"), least=LEAST)
    p = model.predict_proba(rows.x)[:, 1]
    for kind, name in enumerate(("negatives", "positives")):
        counts, of_kind = found["curves"][name], rows.y == kind
        ends = [0.0, *counts["edges"], 1.1]
        cells = [((p >= a) & (p < b))[of_kind] for a, b in pairwise(ends)]
        assert [int(cell.sum()) for cell in cells] == counts["rows"]
        assert min(counts["rows"]) >= LEAST
        for table in published(found, model, rows):
            small = [group[of_kind] for group in table]
            for size in range(1, len(small)):
                for some in combinations(small, size):
                    union = np.any(some, axis=0)
                    within = [cell for cell in cells if not (cell & ~union).any()]
                    left = union & ~np.any([np.zeros(len(union), bool), *within], axis=0)
                    assert left.sum() == 0 or left.sum() >= LEAST


def test_a_table_that_would_tell_is_left_out_and_said(run: Run, rows: HeldOut) -> None:
    """The tiny ward a3 is not in b1's department, so wards without it and departments would give it away."""
    found = fit(Model.load(run.path), rows, by=("ward", "dept"))
    wards = [group["group"] for group in found["subgroups"][0]["groups"]]
    assert any("a3 or" in w or "or a3" in w for w in wards)
    both = [table["column"] for table in found["subgroups"]]
    if both == ["ward"]:
        assert any(sentence.startswith("subgroups of dept: beside another table") for sentence in found["left_out"])
    else:  # then the tiny ward was joined with one of its own department
        assert not any("a3" in w and "b1" in w for w in wards)


def test_the_command_prints_the_same(run: Run) -> None:
    found = json.loads(ffgb("evaluate", run.path, "--by", "age", "--threshold", "0.4", "--json").stdout)
    assert found["all"]["intervals"]["auc"]["value"] == found["all"]["auc"]
    assert found["all"]["fit"]["confusion"]["threshold"] == 0.4
    assert [table["column"] for table in found["all"]["fit"]["subgroups"]] == ["age"]
    text = ffgb("evaluate", run.path, "--by", "age").stdout
    auc = found["all"]["intervals"]["auc"]
    assert f"{auc['value']:.3f}" in text
    assert "calls of yes from a probability of 0.5" in text
    ffgb("report", run.path, "--by", "dept")
    assert [table["column"] for table in (run.fit or {})["subgroups"]] == ["dept"]
    assert "By dept" in (run.path / "report.html").read_text()
    with pytest.raises(
        FFGBError, match="names 'height', which the model has no column of; there are age, marker, ward, dept"
    ):
        fit(Model.load(run.path), fit_rows(run), by=("height",))


def fit_rows(run: Run) -> HeldOut:
    data = load_data(Config.from_json(run.config))
    return HeldOut(data.x_test, data.y_test, data.sites, data.site_test)


def test_numbers_and_several_classes_are_judged(tmp_path: Path) -> None:
    result = train(Config(data=("diabetes",), clients=3, rounds=2, learner="linear"), tmp_path / "numbers", workers=0)
    rows = fit_rows(Run.open(tmp_path / "numbers"))
    found = Run.open(tmp_path / "numbers").fit or {}
    scores = found["parts"]["all"]["scores"]
    values = np.asarray(result.model.predict(rows.x))
    assert scores["rmse"]["value"] == pytest.approx(result.summary["test_rmse"])
    spread = np.square(rows.y - rows.y.mean()).mean()
    assert scores["r2"]["value"] == pytest.approx(1 - np.square(values - rows.y).mean() / spread)
    assert scores["r2"]["low"] < scores["r2"]["value"] < scores["r2"]["high"]
    assert sum(group["rows"] for group in found["curves"]["calibration"]) == len(values)
    result = train(Config(data=("digits",), clients=3, rounds=1, learner="linear"), tmp_path / "classes", workers=0)
    scores = (Run.open(tmp_path / "classes").fit or {})["parts"]["all"]["scores"]
    assert scores["accuracy"]["value"] == pytest.approx(result.summary["test_accuracy"])
    assert set(scores) == {"accuracy", "loss", "brier"}
