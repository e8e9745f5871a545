"""A result in two lines: in a user's terms."""

from __future__ import annotations

import numpy as np
import pytest

from ffgb.data import Dataset
from ffgb.runs.certainty import interval
from ffgb.runs.config import Config, load_data
from ffgb.runs.headline import headline, rounds_used
from ffgb.runs.training import Result, train

COSTS = {"rounds": 2, "rounds_used": 1, "clients": 4, "bytes_up": 3e6, "bytes_down": 12_345.0, "seconds_total": 0.71}


@pytest.fixture(scope="module")
def trained() -> Result:
    return train(Config(data=("diabetes",), clients=3, rounds=4), workers=0)


def test_a_score_comes_with_its_interval_and_what_a_guess_scores() -> None:
    summary = {
        "test_accuracy": 0.854, "test_accuracy_low": 0.796, "test_accuracy_high": 0.8977, "test_base_rate": 0.3,
        "test_auc": 0.9, "test_loss": 0.4, **COSTS,
    }  # fmt: skip
    score, costs = headline(summary)
    assert score == (
        "test accuracy 0.8540 (95 % interval 0.7960 to 0.8977; guessing the most frequent class: 0.7000), AUC 0.9000, "
        "log loss 0.4000"
    )
    assert costs == (
        "after 1 round with 4 clients (another round changed nothing); each sent 3.0 MB and received 12.3 kB; 0.7 s"
    )
    of_many = {**summary, "test_base_rate": 0.25, "rounds": 5, "rounds_used": 2}
    del of_many["test_auc"]
    score, costs = headline(of_many)
    assert "guessing the most frequent class: 0.2500" in score
    assert costs.startswith("after 2 rounds with 4 clients (3 more rounds changed nothing); ")
    (only,) = headline({"train_rmse": 12.3456})
    assert only == "train RMSE 12.35"
    assert headline({"test_loss": 0.3}) == []


def test_rounds_that_changed_nothing_are_not_counted() -> None:
    lines = [{"train_loss": loss, "test_loss": 1.0} for loss in (0.5, 0.3, 0.3, 0.2, 0.2, 0.2)]
    assert [rounds_used(lines[:n]) for n in range(7)] == [0, 1, 2, 2, 4, 4, 4]
    assert rounds_used([{"train_loss": None}, {"train_loss": 0.1}]) == 2


def test_the_interval_of_a_regression_is_that_of_its_rows(trained: Result) -> None:
    summary = trained.summary
    data = _data()
    error = np.square(trained.model.predict(data.x_test).ravel() - data.y_test.ravel())
    middle, half = error.mean(), 1.959964 * error.std(ddof=1) / np.sqrt(len(error))
    assert summary["test_rmse"] == pytest.approx(np.sqrt(middle), rel=1e-6)
    assert summary["test_rmse_low"] == pytest.approx(np.sqrt(middle - half), rel=1e-5)
    assert summary["test_rmse_high"] == pytest.approx(np.sqrt(middle + half), rel=1e-5)
    assert summary["test_rmse_of_mean"] == pytest.approx(data.y_test.std(), rel=1e-6)
    assert summary["test_rows"] == len(data.y_test)


def test_where_rows_are_elsewhere_an_accuracy_has_an_interval(trained: Result) -> None:
    found = interval({"test_accuracy": 0.9, "test_rows": 100}, trained.model, _data(), here=False)
    # Wilson's, from a table: 90 of 100
    assert found["test_accuracy_low"] == pytest.approx(0.8256, abs=1e-4)
    assert found["test_accuracy_high"] == pytest.approx(0.9448, abs=1e-4)
    assert interval({"test_accuracy": 0.9}, trained.model, _data(), here=False) == {}
    assert interval({"test_rmse": 0.9}, trained.model, _data(), here=False) == {}


def _data() -> Dataset:
    return load_data(Config(data=("diabetes",), clients=3))
