"""Thresholds: their coverage is what the theory says, at each site."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from ffgb.core.conformal import COVERAGES, FEWEST, OF_CLASSES, OF_NUMBERS, OTHERS, Conformal, _thresholds
from ffgb.errors import FFGBError


@pytest.mark.parametrize("scale", [None, 2.0])
def test_new_rows_of_each_site_are_covered(scale: float | None) -> None:
    """Over many draws of 199 rows, the mean coverage of new ones is 0.9 and no more than 1/200 above."""
    rng, covered = np.random.default_rng(0), []
    for _ in range(400):
        size = [1.0, 0.5] if scale is None else [1.0, 8.0]
        scores = np.concatenate([s * rng.random(199) for s in size])
        found = Conformal.of_scores(scores, np.repeat([0, 1], 199), ["a", "b"], scale)
        covered.append([found.threshold(0.9, name) / s for name, s in zip("ab", size, strict=True)])
    mean = np.mean(np.minimum(covered, 1.0), axis=0)  # of uniform scores, the threshold is the coverage
    assert ((mean >= 0.9 - 0.003) & (mean <= 0.905 + 0.006)).all()  # 0.001 is the error of the mean; edges add a little


def test_the_threshold_is_the_rank_that_theory_names() -> None:
    scores = np.random.default_rng(0).random(150)
    found = Conformal.of_scores(scores, np.zeros(150, int), ["a"], None).threshold(0.9)
    exact = np.sort(scores)[math.ceil(151 * 0.9) - 1]
    assert exact <= found < exact + 0.004  # the edges of cells


def test_small_sites_share_and_no_site_means_all() -> None:
    rng = np.random.default_rng(0)
    sizes = [300, FEWEST - 1, FEWEST - 1]
    site = np.repeat([0, 1, 2], sizes)
    found = Conformal.of_scores(rng.random(len(site)) * np.array([0.3, 0.6, 0.9])[site], site, ["a", "b", "c"], None)
    assert set(found.of) == {"a", OTHERS}
    assert found.of[OTHERS].rows == 2 * FEWEST - 2
    assert found.threshold(0.9, "b") == found.threshold(0.9, "c") == found.threshold(0.9)
    assert found.threshold(0.9, "a") < 0.3
    again = Conformal.from_json(json.loads(json.dumps(found.to_json(), allow_nan=False)))
    assert again == found


def test_what_cannot_hold_is_refused() -> None:
    few = Conformal.of_scores(np.linspace(0, 1, 30), np.zeros(30, int), ["a"], None)
    assert few.threshold(0.9) < 1.0
    with pytest.raises(FFGBError, match="takes more held-out rows than the 30"):
        few.threshold(0.99)
    large = Conformal.of_scores(np.linspace(0, 1, 200), np.zeros(200, int), ["a"], None)
    with pytest.raises(FFGBError, match="there are thresholds of a"):
        large.threshold(0.9, "z")
    for wrong in (0.0, 1.0, 0.9995):
        with pytest.raises(FFGBError, match="coverage"):
            large.threshold(wrong)
    with pytest.raises(FFGBError, match="no thresholds that ffgb wrote"):
        Conformal.from_json({"coverages": few.to_json()["coverages"], "sites": {"a": {"rows": 3}}})


def test_where_scores_are_counted() -> None:
    assert (len(OF_CLASSES), OF_CLASSES[1024]) == (2049, 0.5)
    assert np.log(OF_CLASSES[1025] / (1 - OF_CLASSES[1025])) == pytest.approx(1 / 64)
    assert (len(OF_NUMBERS), OF_NUMBERS[0], OF_NUMBERS[-1]) == (5601, 1e-6, 1e6)
    assert (len(COVERAGES), COVERAGES[0], COVERAGES[1], COVERAGES[97], COVERAGES[98]) == (108, 0.5, 0.505, 0.985, 0.99)
    assert (COVERAGES[-1], FEWEST) == (0.999, 100)


@pytest.mark.parametrize(("rows", "coverage", "rank"), [(199, 0.9, 180), (199, 0.905, 181), (99, 0.5, 50), (9, 0.9, 9)])
def test_a_threshold_is_the_end_of_the_cell_of_its_rank(rows: int, coverage: float, rank: int) -> None:
    """⌈(n + 1) · coverage⌉, though 200 · 0.9 is a bit more than 180 in floating point."""
    found = _thresholds(np.ones(rows, int), np.arange(rows) + 1.0)
    assert found.rows == rows
    assert found.values[COVERAGES.index(coverage)] == rank
    assert found.values[COVERAGES.index(0.999)] == math.inf


def test_a_score_on_an_edge_is_in_the_cell_that_ends_there_and_a_chance_in_between_takes_the_next() -> None:
    scores = np.repeat([OF_CLASSES[900], 1.0], [100, 20])
    found = Conformal.of_scores(scores, np.zeros(120, int), ["a"], None)
    assert found.threshold(0.8) == OF_CLASSES[900]
    assert found.threshold(0.823) == OF_CLASSES[900]  # that of 0.825: the rank is 100 of 121
    assert found.threshold(0.8251) == 1.0
    numbers = Conformal.of_scores(2.0 * scores, np.zeros(120, int), ["a"], 4.0)
    edges = 4.0 * OF_NUMBERS
    assert numbers.threshold(0.8) == edges[np.searchsorted(edges, 2.0 * OF_CLASSES[900])]
    beyond = Conformal.of_scores(np.full(120, 1e9), np.zeros(120, int), ["a"], 1.0)
    with pytest.raises(FFGBError, match="takes more held-out rows than the 120"):
        beyond.threshold(0.5)
    assert set(Conformal.of_scores(scores[:0], np.zeros(0, int), ["a"], None).of) == set()
