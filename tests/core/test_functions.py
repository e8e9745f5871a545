"""Function space: exact algebra, and closed sums equal to open sums of the same terms."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TypeAlias, final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffgb.core.capabilities import Fit
from ffgb.core.functions import (
    Block,
    ClosedFamily,
    ClosedSum,
    Function,
    OnPoints,
    OpenSum,
    average,
    from_tensors,
)
from ffgb.core.maps import FeatureMap
from ffgb.core.types import Array, Parameters
from ffgb.errors import FFGBError
from ffgb.features.basic import Flatten
from ffgb.learners.trees import Tree

D, C = 3, 2
Terms: TypeAlias = list[tuple[float, Array]]  # coefficients and weights


@final
@dataclasses.dataclass(frozen=True)
class Dot(ClosedFamily):
    """x ↦ x W: the plainest closed family, whose values at the unit vectors are its parameters."""

    features: FeatureMap
    outputs: int

    @property
    def spec(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        return {"weight": ((self.features.dimension, self.outputs), "float32")}

    def members(self, stack: Parameters, z: np.ndarray) -> np.ndarray:
        return z @ stack["weight"]

    def least_squares(self, z: np.ndarray) -> Fit:
        return lambda phi, rng: {"weight": np.linalg.lstsq(z, phi)[0]}


family = Dot(Flatten(D), C)
small = st.floats(-4, 4, width=32)


def open_member(w: np.ndarray) -> OpenSum:
    """A member of the closed family, kept as an open sum: the representation under comparison."""
    return OpenSum(family, (Block.of({"weight": w}),))


weights = st.lists(small, min_size=D * C, max_size=D * C).map(lambda v: np.array(v).reshape(D, C))
terms = st.lists(st.tuples(small, weights), min_size=1, max_size=40)


@given(terms, st.integers(0, 2**32 - 1))
def test_a_closed_sum_equals_the_open_sum_of_the_same_terms(some: Terms, seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal((7, D)).astype(np.float32)
    closed: Function = family.zero()
    opened: Function = OpenSum(family, ())
    for a, w in some:
        closed = closed + family.member({"weight": w}) * a
        opened = opened + a * open_member(w)
    assert closed.terms == 1
    assert opened.terms == len(some)
    scale = 1 + sum(abs(a) * np.abs(w).sum() for a, w in some)
    np.testing.assert_allclose(closed(x), opened(x), atol=1e-5 * scale, rtol=0)


@given(terms, st.lists(st.floats(0.1, 3), min_size=40, max_size=40))
def test_averages_agree_in_both_representations(some: Terms, p: list[float]) -> None:
    x = np.eye(D, dtype=np.float32)
    expected = sum(q * a * w for q, (a, w) in zip(p, some, strict=False)) / sum(p[: len(some)])
    for functions in (
        [family.member({"weight": w}) * a for a, w in some],
        [open_member(w) * a for a, w in some],
    ):
        mean = average(functions, p[: len(some)])
        np.testing.assert_allclose(mean(x), expected, atol=1e-4)


def test_subtraction_and_scaling_are_exact_on_small_integers() -> None:
    w1, w2 = np.arange(6.0).reshape(D, C), np.ones((D, C))
    f = family.member({"weight": w1}) * 2.0 - 3.0 * family.member({"weight": w2})
    assert isinstance(f, ClosedSum)
    np.testing.assert_array_equal(f.parameters["weight"], 2 * w1 - 3 * w2)
    np.testing.assert_array_equal(f(np.eye(D)), 2 * w1 - 3 * w2)


def test_closed_sums_are_added_in_float64() -> None:
    """A small term survives between two large terms that cancel, and would be lost in float32."""
    one, large = (family.member({"weight": np.full((D, C), v, np.float32)}) for v in (1.0, 2.0**27))
    np.testing.assert_array_equal((large + one - large)(np.eye(D)), np.ones((D, C)))
    # and so is one that changes only what float32 rounds away, a thousand times
    total = large
    for _ in range(1000):
        total = total + one * 2.0**-10
    np.testing.assert_array_equal((total - large)(np.eye(D)), np.full((D, C), 1000 / 1024))


def test_evaluation_in_blocks_equals_evaluation_at_once() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2500, D)).astype(np.float32)
    f = average([open_member(rng.standard_normal((D, C))) for _ in range(37)], [1.0] * 37)
    one_by_one = np.concatenate([f(row[None]) for row in x[::100]])
    np.testing.assert_allclose(f(x)[::100], one_by_one, atol=1e-6)


def test_clip_of_a_single_term_stays_a_term_and_can_be_added() -> None:
    w = np.array([[3.0, -3.0], [0.5, 0.1], [0.0, 2.0]])
    f = (family.member({"weight": w}) * 2.0).clip(1.0)
    assert isinstance(f, OpenSum)
    np.testing.assert_allclose(f(np.eye(D)), np.clip(2 * w, -1, 1))
    np.testing.assert_allclose((f + f)(np.eye(D)), 2 * np.clip(2 * w, -1, 1))
    np.testing.assert_allclose((-2.0 * f).clip(0.5)(np.eye(D)), np.clip(-2 * np.clip(2 * w, -1, 1), -0.5, 0.5))


def test_clip_of_a_sum_is_pointwise_and_ends_the_algebra() -> None:
    w = np.array([[3.0, -3.0], [0.5, 0.1], [0.0, 2.0]])
    f = (open_member(w) + open_member(-0.5 * w)).clip(1.0)
    np.testing.assert_allclose(f(np.eye(D)), np.clip(0.5 * w, -1, 1))
    np.testing.assert_allclose((f * -2.0)(np.eye(D)), -2 * np.clip(0.5 * w, -1, 1))
    np.testing.assert_allclose(f.clip(0.1)(np.eye(D)), np.clip(0.5 * w, -0.1, 0.1))
    with pytest.raises(FFGBError, match="clip its terms"):
        _ = f + f


@pytest.mark.parametrize("clip", [None, 0.7])
@pytest.mark.parametrize("kind", ["closed", "open", "tree"])
def test_tensors_describe_a_function_completely(kind: str, clip: float | None) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((30, D)).astype(np.float32)
    if kind == "tree":
        tree = Tree(Flatten(D), C, depth=2)
        fit = tree.least_squares(x)
        f = average([tree.member(fit(rng.standard_normal((30, C)), rng)) for _ in range(3)], [1, 2, 3])
    else:
        make = open_member if kind == "open" else lambda w: family.member({"weight": w})
        f = make(rng.standard_normal((D, C))) + make(rng.standard_normal((D, C))) * 0.3
    if clip:
        f = f.clip(clip)
    again = from_tensors(f.family, f.tensors())
    np.testing.assert_array_equal(again(x), f(x))
    assert again.terms == f.terms


def test_functions_of_different_families_are_not_added() -> None:
    other = Dot(Flatten(D + 1), C)
    with pytest.raises(FFGBError, match="different families"):
        _ = family.zero() + other.zero()


def test_on_points_keeps_the_formal_sum_and_the_values_in_step() -> None:
    rng = np.random.default_rng(2)
    z = rng.standard_normal((5, D)).astype(np.float32)
    f_t = family.member({"weight": rng.standard_normal((D, C))})
    g = OnPoints(1.0, family.zero(), f_t.evaluate(z))
    for _ in range(3):
        h = family.member({"weight": rng.standard_normal((D, C))})
        g = 0.9 * g - 0.3 * OnPoints(0.0, h, h.evaluate(z))
    assert g.decay == pytest.approx(0.9**3)
    np.testing.assert_allclose((f_t * g.decay + g.increment).evaluate(z), g.values, atol=1e-5)
    total = g + OnPoints(0.0, h, h.evaluate(z))
    assert total.decay == g.decay
    np.testing.assert_allclose(total.values, g.values + h.evaluate(z))
    np.testing.assert_allclose((f_t * total.decay + total.increment).evaluate(z), total.values, atol=1e-5)


def test_sums_share_their_blocks() -> None:
    a, b = open_member(np.ones((D, C))), open_member(np.ones((D, C)))
    total = (a + b) * 0.5
    assert isinstance(total, OpenSum)
    assert total.blocks[0].stack["weight"] is a.blocks[0].stack["weight"]
    assert dataclasses.is_dataclass(total)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"parameters/weight": np.zeros((2, D, C + 1))}, "should be float32 of shape"),
        ({"parameters/weight": np.zeros((3, D, C))}, "should be float32 of shape"),
        ({"parameters/weight": np.zeros((2, D, C), np.int64)}, "and is int64"),
        ({"parameters/weight": np.full((2, D, C), np.nan)}, "not finite"),
        ({"weights": np.array([1.0, np.inf])}, "weights are not"),
        ({"weights": np.ones((2, 1))}, "weights are not"),
    ],
)
def test_arrays_that_describe_no_function_are_refused(change: dict[str, Array], words: str) -> None:
    tensors = (open_member(np.ones((D, C))) + open_member(np.ones((D, C)))).tensors()
    assert from_tensors(family, tensors).terms == 2
    with pytest.raises(FFGBError, match=words):
        from_tensors(family, tensors | change)
    del tensors["parameters/weight"]
    with pytest.raises(FFGBError, match="is nothing"):
        from_tensors(family, tensors)


ONE_WRONG = np.where(np.arange(2 * D * C).reshape(2, D, C) == 1, np.nan, 1.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"parameters/weight": ONE_WRONG.astype(np.float32)}, "not finite"),
        ({"weights": np.array([1.0, np.nan])}, "weights are not one finite number a term"),
        ({"radii": np.array([0.5, 0.0])}, "clipping radii are not one positive number a term"),
        ({"radii": np.array([-0.5, 1.0])}, "clipping radii are not one positive number a term"),
        ({"radii": np.array([0.5])}, "clipping radii are not one positive number a term"),
    ],
)
def test_one_wrong_number_is_enough_to_refuse_a_function(change: dict[str, Array], words: str) -> None:
    tensors = (open_member(np.ones((D, C))) + open_member(np.ones((D, C)))).tensors()
    assert from_tensors(family, {**tensors, "radii": np.array([0.5, np.inf])}).terms == 2
    with pytest.raises(FFGBError, match=words):
        from_tensors(family, tensors | change)
