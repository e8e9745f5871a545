"""From totals over all clients no row is read, as every interval, category, flag and leaf has enough rows.

The same programs read rows if `least` is 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ffgb.core.cell_sums import CurvatureAlong
from ffgb.core.histograms import HistogramsOf
from ffgb.core.maps import FeatureMap
from ffgb.core.merged_cells import MergedHistograms
from ffgb.core.points import Points
from ffgb.core.questions import ask_locally
from ffgb.features.catalogue import Maps, Space
from ffgb.features.tables import LEAST, ObliviousTrees
from tests.privacy.attacks import Row, Seen, judged, trained
from tests.privacy.cells import (
    alone_between_versions,
    few_in_cells,
    labels_that_follow,
    pairs_that_follow,
    rows_by_counts,
)
from tests.privacy.totals import Totals, in_total, single_values

SETS = ("heart", "wine", "breast_cancer", "adult", "cal_housing")
READ = {"heart": 40, "wine": 130, "breast_cancer": 5, "adult": 10, "cal_housing": 0}
"""Rows that are read from totals if every value is kept apart, at least."""


def differences(totals: Totals) -> list[Row]:
    """Neighbouring thresholds, rows in none of the categories, and inputs far from what is usual."""
    sets = np.column_stack([totals.intervals(), totals.complements()])
    return [*totals.alone(sets), *totals.extremes()]


def nested(totals: Totals) -> list[Row]:
    """Sets of rows of any two columns, of which one is within the other."""
    above, _ = totals.above()
    halves = np.column_stack([above, totals.everyone()[:, None] - above])
    intervals = np.column_stack([totals.intervals(), totals.complements()])
    return [*totals.alone(totals.nested(halves)), *totals.alone(totals.nested(intervals))]


def rows_in(sets: np.ndarray, totals: Totals) -> np.ndarray:
    """Of each set, rounded."""
    found: np.ndarray = np.rint([totals.sums(w)[-1] for w in sets.T])
    return found


@pytest.mark.parametrize("name", SETS)
def test_no_row_is_read_from_totals(name: str, real_data: Any) -> None:
    seen = in_total(data=(name,))
    totals = Totals.of(seen)
    assert seen.config.least == LEAST
    for sets in (totals.intervals(), totals.complements()):
        counts = rows_in(sets, totals)
        assert counts[counts > 0].min() >= LEAST
    assert judged(seen, 0, differences(totals)).read == 0
    if name != "breast_cancer":
        assert judged(seen, 0, nested(totals)).read == 0


@pytest.mark.parametrize("name", ["heart", "wine", "breast_cancer", "adult"])
def test_rows_and_labels_are_read_if_every_value_is_kept_apart(name: str, real_data: Any) -> None:
    seen = in_total(data=(name,), least=1)
    verdict = judged(seen, 0, differences(Totals.of(seen)))
    assert verdict.read >= READ[name]
    assert verdict.labels == verdict.read


def test_columns_that_nearly_determine_one_another_still_tell_a_few_rows() -> None:
    """Radius and perimeter: all rows but one that are above a threshold of the one are above one of the other.

    Least counts do not help against that.  Noise does, and so do fewer thresholds.
    """
    read = [
        judged(seen, 0, nested(Totals.of(seen))).read
        for seen in (in_total(data=("breast_cancer",), least=least) for least in (1, LEAST))
    ]
    assert read[0] > 2 * read[1]
    assert read[1] <= 6


@pytest.mark.parametrize(("least", "read"), [(1, 40), (LEAST, 0)])
def test_a_sketch_tells_no_more_than_the_gram(least: int, read: int, real_data: Any) -> None:
    seen = in_total(data=("heart",), gram="nystrom", rank=1000, least=least)
    verdict = judged(seen, 0, differences(Totals.of(seen)))
    assert read <= verdict.read <= 10 * read


# A table with a row that differs from all others in one way: what makes it so, and the setting for it to be there


ROWS, ODD = 400, 123


def table(kind: str) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.integers(0, 4, ROWS), "b": rng.integers(0, 5, ROWS), "c": rng.integers(0, 3, ROWS)})
    frame = frame.astype(float)
    odd = np.arange(ROWS) == ODD
    match kind:
        case "extreme":
            frame["d"] = np.where(odd, 1e6, 0.0)
        case "tail":
            frame["d"] = np.where(odd, 1e6, rng.standard_normal(ROWS))
        case "missing":
            frame["d"] = np.where(odd, np.nan, rng.integers(0, 3, ROWS))
        case "there":
            frame["d"] = np.where(odd, 1.0, np.nan)
        case "category":
            frame["d"] = np.where(odd, "x", rng.choice(["y", "z"], ROWS))
        case "no category":
            frame["d"] = [None if i == ODD else value for i, value in enumerate(rng.choice(["y", "z"], ROWS))]
        case "beside the missing":
            values = np.where(np.arange(ROWS) < 200, -5.0, 5.0) + rng.uniform(-1, 1, ROWS)
            values[rng.permutation(np.flatnonzero(~odd))[:60]] = np.nan
            values[odd] = np.nanmean(np.where(odd, np.nan, values))
            frame["d"] = values
    frame["y"] = rng.integers(0, 2, ROWS)
    return frame


def of(tmp_path: Path, kind: str, least: int) -> Seen:
    file = tmp_path / "site.csv"
    table(kind).to_csv(file, index=False)
    return in_total(data=(str(file),), target="y", rare=1, least=least)


KINDS = ("extreme", "tail", "missing", "there", "category", "no category", "beside the missing")


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_is_odd_in_one_column_is_read_only_if_it_is_kept_apart(kind: str, tmp_path: Path) -> None:
    found = {}
    for least in (1, LEAST):
        seen = of(tmp_path, kind, least)
        totals = Totals.of(seen)
        found[least] = judged(seen, 0, [*differences(totals), *nested(totals)])
    assert found[1].read >= 1
    assert found[1].labels >= 0.8 * found[1].read  # some rows are alike in all columns but a far one
    assert found[LEAST].read == 0


# Leaves, and histograms


def leaves_of(features: FeatureMap, x: np.ndarray) -> np.ndarray:
    counts: np.ndarray = (features(x) > 0).sum(axis=0)
    return counts


@pytest.mark.parametrize("name", ["heart", "wine", "breast_cancer"])
def test_no_leaf_has_a_single_row(name: str, real_data: Any) -> None:
    seen = in_total(data=(name,))
    x, y, columns = seen.dataset.x, seen.dataset.y, seen.dataset.columns
    for least in (1, LEAST):
        maps = Maps(ask_locally(Points(0, x, y)), Space(x.shape[1:], False, columns, len(x)), 0, least)
        trees, _ = maps.make("trees", None)
        assert isinstance(trees, ObliviousTrees)
        counts = leaves_of(trees, x)
        assert (counts == 1).any() == (least == 1)
        assert counts[counts > 0].min() >= least


@pytest.mark.parametrize(("name", "most"), [("heart", 0.6), ("wine", 0.3), ("breast_cancer", 0.2)])
def test_histograms_tell_fewer_single_values(name: str, most: float, real_data: Any) -> None:
    """A value of one column, in an interval, without its row: some of the first round, and few of later ones."""
    alone, merged = (single_values(in_total(data=(name,), least=least)) for least in (1, LEAST))
    assert 0 < merged <= most * alone


# Trees


@pytest.mark.parametrize("name", ["heart", "wine", "breast_cancer"])
def test_no_gradient_of_a_single_row_is_in_the_histograms_of_trees(name: str, real_data: Any) -> None:
    """With every cell kept apart, the gradient of a row alone in a cell is in the total: in round 1 it is the label."""
    alone = {}
    for least, kind in ((1, HistogramsOf), (LEAST, MergedHistograms)):
        seen = trained(data=(name,), learner="trees", clients=1, split="iid", rounds=3, least=least)
        counts = np.concatenate([answers[0].tensors["rows"] for _, answers in seen.answers(kind)])
        alone[least] = int(((counts > 0) & (counts < max(least, 2))).sum())
        if least > 1:
            assert not list(seen.answers(HistogramsOf))
    assert alone[1] > 50
    assert alone[LEAST] == 0


@pytest.mark.parametrize("learner", ["trees", "blend"])
@pytest.mark.parametrize("name", ["heart", "wine"])
def test_counts_of_nodes_tell_of_no_row_what_is_in_all_of_its_columns(name: str, learner: str, real_data: Any) -> None:
    """Most rows are alone in a bin of some node.  All counts together tell a few of their columns."""
    seen = trained(data=(name,), learner=learner, clients=1, split="iid", rounds=6)
    known = rows_by_counts(seen)
    columns = len(seen.state.job.family.layout.usable)  # type: ignore[attr-defined]
    assert len(known) > 0.3 * len(seen.dataset.y)
    assert 1 < max(known.values()) < columns
    assert sum(k >= columns / 2 for k in known.values()) < 0.03 * len(seen.dataset.y)


# Blends


def test_no_row_is_alone_in_the_difference_of_two_versions_of_a_blend() -> None:
    """In round 1 such a difference is the gradient of the row, and so its label; later it is close to it."""
    found = {
        least: alone_between_versions(
            trained(data=("wine",), learner="blend", clients=1, split="iid", rounds=2, least=least)
        )
        for least in (1, LEAST)
    }
    assert len(found[1]) > 40
    assert not found[LEAST]


# Additive models


@pytest.mark.parametrize("name", ["heart", "wine", "breast_cancer", "diabetes"])
def test_no_sum_of_an_additive_model_is_of_few_rows_or_of_a_pair_of_bins(name: str, real_data: Any) -> None:
    """Many rows are alone in a pair of bins: the curvature of all pairs is not asked for, and does not follow."""
    seen = trained(data=(name,), learner="additive", clients=1, split="iid", rounds=8)
    assert not few_in_cells(seen, LEAST)
    assert len(list(seen.answers(CurvatureAlong))) > 8
    assert pairs_that_follow(seen) == 0


def test_pairs_of_bins_would_follow_from_many_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffgb.algorithms.additive_shared.LOOKS", 40)
    monkeypatch.setattr("ffgb.algorithms.additive_shared.CELLS_A_LOOK", 1)
    monkeypatch.setattr("ffgb.algorithms.additive_shared.SURE", 0.0)
    settings: dict[str, Any] = {"data": ("diabetes",), "learner": "additive", "clients": 1, "split": "iid"}
    assert pairs_that_follow(trained(**settings, rounds=8)) > 20


def test_no_label_follows_as_there_are_fewer_bins_than_rows() -> None:
    """For who knows the bins of all rows, sums of gradients by bin are equations for the labels."""
    settings: dict[str, Any] = {"data": ("breast_cancer",), "learner": "additive", "clients": 1, "split": "iid"}
    for least, labels in ((1, (455, 455)), (LEAST, (0, 5))):
        seen = trained(**settings, least=least)
        assert labels[0] <= labels_that_follow(seen) <= labels[1]
