"""Sums over rows are exact: the same bits over any split, and as close as float64 to the sums of a central program."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffgb.core.exact_sums import EXACT, ORDERS, orders
from ffgb.core.points import Points
from ffgb.core.questions import Ask, Here, Question
from ffgb.core.regression import glm
from ffgb.core.regression.design import Design, DesignColumn, Records, Variable
from ffgb.core.regression.families import FAMILIES
from ffgb.core.regression.sums import RowModel, largest_of, sums_at, unit_of
from ffgb.core.types import Array
from ffgb.errors import FFGBError
from ffgb.privacy.integers import add, from_integers, to_integers


def adding(sites: list[Records]) -> Ask:
    """An `ask` that sees nothing but sums, as integers."""

    def ask(question: Question) -> Any:
        here = [Here(Points(i, np.zeros((1, 1)), np.zeros(1)), 1.0, said=said) for i, said in enumerate(sites)]
        whole = add((to_integers(question.part(each), question.sums) for each in here), question.sums)
        return question.total(from_integers(whole, question.sums))

    return ask


def model_of(p: int, family: str) -> RowModel:
    columns = (DesignColumn("Intercept", ()), *(DesignColumn(f"x{k}", (Variable(f"x{k}"),)) for k in range(1, p)))
    design = Design(columns, np.zeros(p), np.full(p, 8.0))
    return RowModel(design, Variable("y"), FAMILIES[family], weights=Variable("w"))


def records(x: Array, y: Array, w: Array) -> Records:
    return Records({"y": y, "w": w, **{f"x{k}": x[:, k] for k in range(1, x.shape[1])}}, {}, len(y))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(FAMILIES)), st.integers(2, 6), st.integers(1, 9000))
def test_sums_have_the_same_bits_over_any_split(seed: int, family: str, p: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    x = np.clip(rng.normal(size=(n, p)), -7.9, 7.9)
    x[:, 0] = 1.0
    y = rng.random(n) + 0.01 if family != "binomial" else (rng.random(n) < 0.4) * 1.0
    w = rng.lognormal(0, 2, n)
    model, beta = model_of(p, family), rng.normal(size=p)
    asked = ("deviance", "pearson"), ("score",), ("information", "squared score", "observed")
    cuts = np.sort(rng.integers(0, n + 1, 3))
    mixed = rng.permutation(n)
    splits = [[np.arange(n)], np.split(np.arange(n), cuts), np.split(mixed, cuts)]
    totals = [sums_at(adding([records(x[r], y[r], w[r]) for r in rows]), model, beta, *asked) for rows in splits]
    for other in totals[1:]:
        assert all(np.array_equal(one, same) for one, same in zip(totals[0], other, strict=True))
    design = x / 8.0
    mu = model.family.mean(design @ beta)
    information, score = w * model.family.weight(mu), w * model.family.score(y, mu)
    for gram, v in zip(totals[0].grams, (information, score**2, w * model.family.observed(y, mu)), strict=True):
        size = np.sqrt(np.abs(v).max())
        np.testing.assert_allclose(gram, (design.T * v) @ design, rtol=1e-9, atol=1e-11 * size**2 * n)
    np.testing.assert_allclose(totals[0].vectors[0], design.T @ score, rtol=1e-9, atol=1e-12 * np.abs(score).sum())
    np.testing.assert_allclose(totals[0].numbers[0], (w * model.family.deviance(y, mu)).sum(), rtol=1e-9)


def test_no_number_is_beyond_what_counts_by_order_of_magnitude_say() -> None:
    assert largest_of(np.zeros(ORDERS + 1)) == 0.0
    for value in (0.75, 1.0, 3.0, 1e-9):
        counts = orders(np.array([[value], [value / 5.0]]))[0]
        assert value <= largest_of(counts) <= 2.0 * value


@given(total=st.floats(1e-6, 1e9))
def test_units_leave_room_for_the_rounding_of_very_many_rows(total: float) -> None:
    unit = unit_of(total)
    assert total / unit + 0.5 * 2.0**48 < EXACT <= 2.0 * (total / unit + 0.5 * 2.0**48 + 1.0)


def test_no_step_of_a_fit_makes_the_deviance_larger() -> None:
    """Newton's first step goes too far where a mean rises as fast as this; it is halved."""
    rng = np.random.default_rng(0)
    x = np.stack([np.ones(300), rng.lognormal(0.0, 1.2, 300)], axis=1)
    y = rng.poisson(np.exp(np.minimum(0.5 * x[:, 1] - 1.0, 7.0))).astype(float)
    rows = records(x, y, np.ones(300))
    columns = (DesignColumn("Intercept", ()), DesignColumn("x1", (Variable("x1"),)))
    seen = list[float]()
    glm.fit(
        adding([rows]), columns, glm.Roles(Variable("y")), FAMILIES["poisson"], 300, 1,
        on_step=lambda step, deviance: seen.append(deviance),
    )  # fmt: skip
    assert len(seen) > 5
    assert all(after <= before * (1.0 + 1e-9) for before, after in pairwise(seen))


def test_clusters_are_at_least_two() -> None:
    assert glm._for_clusters(2, 101, 1) == 2.0
    assert glm._for_clusters(5, 41, 1) == 1.25
    assert glm._for_clusters(5, 41, 11) == 1.25 * 40 / 30
    with pytest.raises(FFGBError, match="needs at least two sites"):
        glm._for_clusters(1, 101, 1)
