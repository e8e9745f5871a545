"""Thresholds: their coverage is what the theory says, at each site."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from ffgb.core.conformal import FEWEST, OTHERS, Conformal
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
