"""Questions about f: totals are what one computes with all rows at hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffgb.core.gradients import LARGEST, LENGTHS, Gradient, GradientOf, Slopes, SlopesOf, best_length
from ffgb.core.losses import CrossEntropy, Huber, Logistic, Loss, Square
from ffgb.core.points import Points
from ffgb.core.questions import Here, RoundQuestion
from ffgb.core.weighting import Weighting
from ffgb.errors import FFGBError
from ffgb.features.basic import Flatten
from ffgb.federation.parts import own_part
from ffgb.federation.totals import total_of
from ffgb.learners.linear import Linear
from ffgb.privacy.integers import add, to_integers
from ffgb.protocol.codec import Message

Array = np.ndarray
LOSSES: list[Loss] = [CrossEntropy(3), Logistic(), Square(), Huber()]
N, D = 40, 4


def problem(seed: int, loss: Loss) -> tuple[Array, Array, Array, Array]:
    """Points, targets, and the values of f and h."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, max(loss.outputs, 2), N) if loss.classification else rng.standard_normal((N, 1))
    f, h = rng.standard_normal((2, N, loss.outputs))
    return rng.standard_normal((N, D)).astype(np.float32), y, f, h


def asked(
    question: RoundQuestion, loss: Loss, rows: Sequence[Array], x: Array, y: Array, f: Array, h: Array | None = None
) -> Gradient | Slopes:
    """The total over clients with these rows, by size."""
    weighting, parts = Weighting.of([float(len(r)) for r in rows]), []
    for i, r in enumerate(rows):
        here = Here(Points(i, x[r], y[r]), weighting.share(len(r)), loss, y[r], f[r], None if h is None else h[r])
        part = to_integers(question.part(here), question.sums)
        own_part(question, Message("part", values={"points": len(r)}, tensors=part), len(r), weighting, len(r))
        parts.append(part)
    total: Gradient | Slopes = total_of(question, add(parts, question.sums), 1.0)
    return total


def split(seed: int, clients: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    return np.split(rng.permutation(N), np.sort(rng.choice(np.arange(1, N), clients - 1, replace=False)))


@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.sampled_from(range(len(LOSSES))))
@settings(max_examples=40, deadline=None)
def test_the_gradient_is_the_covector_of_all_rows_together(seed: int, clients: int, which: int) -> None:
    loss = LOSSES[which]
    x, y, f, _ = problem(seed, loss)
    family = Linear(Flatten(D), loss.outputs)
    found = asked(GradientOf(family, loss, np.ones(D + 1)), loss, split(seed, clients), x, y, f)
    phi = loss.gradient(f, y)
    assert isinstance(found, Gradient)
    np.testing.assert_allclose(found.covector, family.covector(x, phi), atol=1e-6)
    pooled = np.hstack([x, np.ones((N, 1))]).astype(np.float64).T @ phi / N
    np.testing.assert_allclose(found.covector, pooled, atol=1e-6)
    assert found.square == pytest.approx(float(np.square(phi).sum(axis=1).mean()), abs=1e-7)


@given(st.integers(0, 2**32 - 1), st.sampled_from(range(len(LOSSES))))
@settings(max_examples=20, deadline=None)
def test_the_same_clients_in_any_order_give_the_same_bits(seed: int, which: int) -> None:
    loss = LOSSES[which]
    x, y, f, h = problem(seed, loss)
    rows = split(seed, 7)
    for question in (GradientOf(Linear(Flatten(D), loss.outputs), loss, np.ones(D + 1)), SlopesOf(loss, 1.0, 0.0)):
        one, other = (asked(question, loss, order, x, y, f, h) for order in (rows, rows[::-1]))
        assert one[0].tobytes() == other[0].tobytes()
        assert one[1] == other[1]


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 9),
    st.sampled_from(range(len(LOSSES))),
    st.sampled_from([(1.0, 0.0), (0.8, 0.1), (0.0, 1.0)]),
)
@settings(max_examples=40, deadline=None)
def test_slopes_are_derivatives_of_the_objective(
    seed: int, clients: int, which: int, regularised: tuple[float, float]
) -> None:
    loss, (decay, mu) = LOSSES[which], regularised
    x, y, f, h = problem(seed, loss)
    lengths = (0.0, 0.125, 1.0, 3.0)
    found = asked(SlopesOf(loss, decay, mu, lengths=lengths), loss, split(seed, clients), x, y, f, h)
    assert isinstance(found, Slopes)

    def objective(s: float) -> float:
        g = f + s * (decay * f + h - f)
        return float(loss.value(g, y).mean() + mu / 2 * np.square(g).sum(axis=1).mean())

    for s, slope in zip(lengths, found.slopes, strict=True):
        e = 1e-5
        assert slope == pytest.approx((objective(s + e) - objective(s - e)) / (2 * e), rel=1e-4, abs=1e-4)
    assert found.square == pytest.approx(float(np.square(h).sum(axis=1).mean()))


@pytest.mark.parametrize("size", [1e10, 1e150, 1e200, np.inf])
def test_slopes_beyond_all_measure_are_the_largest_with_their_sign(size: float) -> None:
    loss = Square()
    x, y, f, _ = problem(0, loss)
    h = np.where(np.arange(N)[:, None] % 2, 1.0, -1.0) * size
    question = SlopesOf(loss, 1.0, 0.0)
    with np.errstate(all="ignore"):
        slopes = question.part(Here(Points(0, x, y), 0.3 / N, loss, y, f, h))["slopes"]
    assert np.isfinite(slopes).all()
    most = 0.3 * LARGEST  # this client's part of the largest
    assert (np.abs(slopes) <= most * (1 + 1e-12)).all()
    assert slopes[-1] == pytest.approx(most)
    assert (np.diff(slopes) >= 0).all()
    to_integers({"slopes": slopes, "square": np.zeros(1)}, question.sums)


def test_questions_about_f_need_f() -> None:
    here = Here(Points(0, np.zeros((3, D), np.float32), np.zeros(3)), 1 / 3)
    for question in (GradientOf(Linear(Flatten(D), 1), Square(), np.ones(D + 1)), SlopesOf(Square(), 1.0, 0.0)):
        with pytest.raises(FFGBError, match="before training has begun"):
            question.part(here)


@pytest.mark.parametrize("square", [-0.1, 2.1, 1e6])
def test_squares_that_no_gradient_has_are_refused(square: float) -> None:
    loss = CrossEntropy(3)
    question = GradientOf(Linear(Flatten(D), 3), loss, np.ones(D + 1))
    part = {"covector": np.zeros((D + 1, 3)), "square": np.array([1.9])}
    question.check(part, 5)
    with pytest.raises(FFGBError, match=r"sent a square of .*, and that of the gradient is from 0 to 2"):
        question.check({**part, "square": np.array([square])}, 5)


@given(st.integers(0, 2**32 - 1), st.sampled_from(range(len(LOSSES))), st.integers(-30, 0), st.integers(0, 12))
@settings(max_examples=60, deadline=None)
def test_honest_slopes_are_believed_however_small(seed: int, which: int, exponent: int, clients: int) -> None:
    """A part of 2^−clients of the whole, along an increment of the size 2^exponent: little is left after rounding."""
    loss, part = LOSSES[which], 2.0**-clients
    x, y, f, h = problem(seed, loss)
    question = SlopesOf(loss, 1.0, 0.0)
    here = Here(Points(0, x, y), part / N, loss, y, f, h * 2.0**exponent)
    sent = Message("part", values={"points": N}, tensors=to_integers(question.part(here), question.sums))
    own_part(question, sent, N, Weighting(N / part), N)


@pytest.mark.parametrize(
    ("slopes", "square", "words"),
    [
        (-np.array(LENGTHS), 1.0, "do not increase"),
        (np.array(LENGTHS) * 1.1, 1.0, "sent slopes from 0 to"),
        (np.full(len(LENGTHS), -2.0), 1.0, "sent slopes from -2 to"),
        (np.zeros(len(LENGTHS)), -1.0, "a mean square of -1"),
    ],
    ids=["concave", "too curved", "too steep", "negative"],
)
def test_slopes_that_no_convex_loss_has_are_refused(slopes: Array, square: float, words: str) -> None:
    question = SlopesOf(CrossEntropy(3), 1.0, 0.0)
    assert (CrossEntropy(3).bound, CrossEntropy(3).smoothness) <= (math.sqrt(2), 1.0)
    question.check({"slopes": 0.4 * np.array(LENGTHS) - 1.0, "square": np.ones(1)}, 5)
    with pytest.raises(FFGBError, match=words):
        question.check({"slopes": slopes, "square": np.array([square])}, 5)


def test_influence_is_the_largest_inner_product_in_units_of_its_feature() -> None:
    """Flat inputs have no bound; the constant has one, and is not compared."""
    family, scale = Linear(Flatten(3), 1), np.array([2.0, 4.0, 1e-9, 1.0])
    own = {"covector": np.array([[3.0], [-10.0], [0.25], [99.0]]), "square": np.array([5.0])}
    bounded = GradientOf(family, Logistic(), scale).influence(own)
    assert bounded == {"inner product": (4.0, Logistic().bound)}  # a scale of 4/64 at least
    assert GradientOf(family, Square(), scale).influence(own) == {"square": (5.0, 1.0), "inner product": (4.0, 1.0)}


def test_the_best_length_is_where_a_line_between_slopes_crosses_0() -> None:
    lengths = (0.0, 1.0, 3.0)
    for slopes, best in (
        ([-1.0, -0.5, 0.5], 2.0),
        ([-1.0, -0.5, 1.5], 1.5),
        ([-1.0, 0.0, 1.0], 1.0),
        ([-1.0, 3.0, 4.0], 0.25),
        ([-2.0, -1.0, -1e-9], 3.0),  # it descends as far as was asked
        ([-2.0, 0.0, 0.0], 1.0),  # flat from there on
        ([0.0, 1.0, 2.0], 0.0),
        ([1.0, -1.0, 2.0], 0.0),
    ):
        assert best_length(np.array(slopes), lengths) == pytest.approx(best)
