"""The suite of tables in experiments/: its scores, its rows and its summary."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm

from ffgb.data.files import load_sites

EXPERIMENTS = str(Path(__file__).parents[1] / "experiments")


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(EXPERIMENTS)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("table"):
            del sys.modules[name]


def module(name: str) -> Any:
    return importlib.import_module(name)


def entry(name: str) -> Any:
    return next(entry for entry in module("table_list").TABLES if entry.name == name)


def test_calibration_is_a_logistic_regression_on_the_log_odds() -> None:
    rng = np.random.default_rng(0)
    odds = 2 * rng.standard_normal(2000)
    y = (rng.random(2000) < 1 / (1 + np.exp(-(0.5 * odds + 0.3)))).astype(int)
    p = 1 / (1 + np.exp(-odds))
    intercept, slope = sm.Logit(y, sm.add_constant(odds)).fit(disp=False).params
    found = module("table_scores").scores("binary", np.stack([1 - p, p], axis=1), y)
    assert found["slope"] == pytest.approx(slope, abs=1e-3)
    assert found["intercept"] == pytest.approx(intercept, abs=1e-3)


def test_separated_classes_have_no_calibration() -> None:
    p = np.array([0.1, 0.2, 0.8, 0.9])
    assert module("table_scores").calibration(p, np.array([0, 0, 1, 1])) == (None, None)


@pytest.mark.parametrize("name", ["wine", "diabetes"])
def test_test_rows_are_those_that_the_library_holds_out(name: str, tmp_path: Path) -> None:
    rows = module("table_rows").rows_of(entry(name), 3, 20_000)
    files, test = rows.write(tmp_path)
    task = "classification" if rows.classes else "regression"
    read = load_sites(files, "target", seed=3, task=task)
    assert np.array_equal(read.y_test, rows.truth())
    assert len(files) == rows.sites == len(read.sites)
    assert len(read.x) + len(read.x_test) == len(rows.y)
    assert rows.test.mean() == pytest.approx(0.2, abs=0.03)
    assert test.exists()


def test_one_client_with_all_rows_trains_the_model_of_the_sites() -> None:
    rows = module("table_rows").rows_of(entry("wine"), 0, 20_000)
    together, found = module("table_pooled").pooled(rows, rounds=3)
    apart, cost = module("table_ours").ours(rows, rounds=3)
    assert np.array_equal(together, apart)
    assert (found["learner"], cost["learner"], found["rounds"]) == ("blend", "blend", 3)


def test_a_large_table_is_represented_by_some_rows() -> None:
    rows = module("table_rows").rows_of(entry("digits"), 0, 300)
    assert len(rows.y) <= 300
    assert rows.rows_published == 1797
    assert rows.sites == 6


def test_a_table_without_its_package_is_said_to_be_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    found = module("table_list")
    monkeypatch.setattr(found.importlib.util, "find_spec", lambda name: None)
    for name in ("sonar", "credit", "concrete", "bike_sharing"):
        with pytest.raises(found.UnavailableError, match="not installed"):
            entry(name).frame()


def test_half_of_the_tables_are_held_back_and_none_that_was_known() -> None:
    found = module("table_list")
    held = {entry.name for entry in found.TABLES if entry.held_back}
    assert len(found.TABLES) >= 60
    assert len({entry.name for entry in found.TABLES}) == len(found.TABLES)
    assert 25 <= len(held) <= 35
    assert not held & found.SEEN


def test_one_site_that_bags_alone_boosts_as_usual() -> None:
    xgboost = pytest.importorskip("xgboost", reason="xgboost is not installed")
    rows = module("table_rows").rows_of(entry("breast_cancer"), 0, 400)
    rows.site[:] = 0
    predicted, cost = module("table_central").bagged(rows, 4, 0.1)
    settings = {"eta": 0.1, "max_depth": 8, "tree_method": "hist", "base_score": 0.5, "objective": "binary:logistic"}
    x, y = rows.train()
    usual = xgboost.train(settings, xgboost.DMatrix(x, y), num_boost_round=4)
    expected = usual.predict(xgboost.DMatrix(rows.x.iloc[rows.order()]))
    np.testing.assert_allclose(predicted[:, 1], expected, atol=1e-6)
    assert cost["exchanges"] == 4


def lines() -> list[dict[str, Any]]:
    base = {"seed": 0, "test_rows": 2000, "rows": 9000}
    two = {"task": "binary", "table": "a", "held_back": False, **base}
    number = {"task": "regression", "table": "b", "held_back": True, **base}
    return [
        {"method": "ffgb-trees", "auc": 0.90, "log_loss": 0.40, "slope": 0.5, **two},
        {"method": "sklearn", "auc": 0.91, "log_loss": 0.30, "slope": 1.0, **two},
        {"method": "lightgbm-es", "auc": 0.93, "log_loss": 0.20, "slope": 1.0, **two},
        {"method": "linear", "auc": 0.904, "log_loss": 0.50, "slope": 1.0, **two},
        {"method": "ffgb-trees", "rmse": 2.1, **number},
        {"method": "sklearn", "rmse": 2.0, **number},
        {"method": "linear", "rmse": 2.05, **number},
    ]


def test_the_summary_has_the_gaps_of_both_halves() -> None:
    text = module("table_summary").summarise(lines(), "ffgb-trees", each=True)
    tuned, held = text.split("Tables held back")
    assert "mean AUC gap to the best central library: +0.0100 (defaults), +0.0300" in tuned
    assert "behind plain linear: 0 of 1" in tuned
    assert "outside [0.85, 1.15] with 1,000 test rows: 1 of 1 (a 0.50)" in tuned
    assert "median RMSE / best central library - 1: +0.0500" in held
    assert "behind plain linear: 1 of 1 (b)" in held


def test_a_method_stands_in_for_another_where_that_has_no_result() -> None:
    other = [{**lines()[0], "method": "ffgb-other", "auc": 0.7}, {**lines()[-1], "method": "ffgb-other", "rmse": 3.0}]
    kept = [line for line in lines() if (line["method"], line["table"]) != ("ffgb-trees", "b")]
    found = module("table_summary").standing_in([*kept, *other], ["ffgb-trees", "ffgb-other"])
    ours = {line["table"]: line for line in found if line["method"] == "ffgb-trees"}
    assert ours["a"] == lines()[0]
    assert ours["b"]["rmse"] == 3.0
    assert {line["method"] for line in found} == {line["method"] for line in lines()}


def test_a_failure_is_named() -> None:
    failed = {**lines()[0], "failed": "ValueError: no"}
    text = module("table_summary").summarise([failed, *lines()[1:]], "ffgb-trees")
    assert "FAILED a: ValueError: no" in text


def test_a_run_goes_on_with_small_tables_first_and_computes_results_of_other_code_anew(tmp_path: Path) -> None:
    tables = module("tables")

    def line(table: str, rows: int, code: str | None) -> str:
        known = {
            "method": "linear",
            "table": table,
            "seed": 0,
            "most": 20_000,
            "rows": rows,
            "columns": 2,
            "classes": 2,
        }
        return json.dumps(known | ({} if code is None else {"code": code})) + "\n"

    (tmp_path / "linear.jsonl").write_text(
        line("adult", 20_000, "new") + line("wine", 178, "old") + line("a9a", 9, None)
    )
    entries = [entry(name) for name in ("digits", "adult", "wine", "a9a")]
    assert [e.name for e in tables.small_first(entries, tmp_path)] == ["a9a", "wine", "adult", "digits"]
    found = tables.results(tmp_path)

    def missing(chosen: Any) -> list[str]:
        return [e.name for e in entries if tables.missing_results(found, ["linear"], e.name, chosen)]

    assert missing(tables.Chosen()) == ["digits"]
    assert missing(tables.Chosen(code="new")) == ["digits", "wine", "a9a"]
    assert missing(tables.Chosen(seed=1)) == [e.name for e in entries]
    assert missing(tables.Chosen(again=True)) == [e.name for e in entries]
