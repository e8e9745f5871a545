"""Trees: the perfect-tree form predicts what scikit-learn's own tree predicts, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_diabetes
from sklearn.tree import DecisionTreeRegressor

from ffgb.core.capabilities import Lipschitz
from ffgb.core.functions import Family, average
from ffgb.core.oracles import WOLip
from ffgb.core.points import Points
from ffgb.errors import FFGBError
from ffgb.features.basic import Flatten
from ffgb.learners.trees import Tree


@pytest.mark.parametrize("depth", [1, 3, 8])
@pytest.mark.parametrize("outputs", [1, 4])
def test_equals_scikit_learns_tree(depth: int, outputs: int) -> None:
    rng = np.random.default_rng(depth)
    x, _ = load_diabetes(return_X_y=True, scaled=False)
    x = np.round(x.astype(np.float32), 1)  # many equal values: splits at float32 neighbours
    phi = rng.standard_normal((len(x), outputs))
    family = Tree(Flatten(10), outputs, depth=depth)
    parameters = family.least_squares(x)(phi, np.random.default_rng(3))
    cart = DecisionTreeRegressor(max_depth=depth, random_state=int(np.random.default_rng(3).integers(2**31)))
    expected = cart.fit(x, phi).predict(x).reshape(len(x), outputs)
    np.testing.assert_array_equal(family.member(parameters)(x), expected)
    for name, (shape, dtype) in family.spec.items():
        assert (parameters[name].shape, parameters[name].dtype.name) == (shape, dtype)


def test_thresholds_between_close_floats_separate_them() -> None:
    a = np.float32(1.0)
    x = np.array([[a], [a + np.float32(2**-22)]], np.float32)  # two float32 apart; scikit-learn splits nothing closer
    family = Tree(Flatten(1), 1, depth=1)
    f = family.member(family.least_squares(x)(np.array([[0.0], [1.0]]), np.random.default_rng(0)))
    np.testing.assert_array_equal(f(x), [[0.0], [1.0]])


def test_a_stack_is_evaluated_like_its_members() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 5)).astype(np.float32)
    family = Tree(Flatten(5), 2, depth=3)
    fit = family.least_squares(x)
    trees = [family.member(fit(rng.standard_normal((200, 2)), rng)) for _ in range(40)]
    mean = average(trees, range(1, 41))
    one_by_one = sum(w * t(x) for w, t in zip(range(1, 41), trees, strict=True)) / sum(range(1, 41))
    np.testing.assert_allclose(mean(x), one_by_one, atol=1e-6)


def test_values_that_are_missing_go_right() -> None:
    """NaN is not ≤ any threshold, so it goes right, as in an ONNX file."""
    x = np.arange(8, dtype=np.float32)[:, None]
    family = Tree(Flatten(1), 1, depth=3)
    f = family.member(family.least_squares(x)(x.astype(np.float64), np.random.default_rng(0)))
    np.testing.assert_array_equal(f(np.array([[np.nan], [np.inf], [-np.inf], [3.0]])), [[7.0], [7.0], [0.0], [3.0]])


def test_a_constant_query_and_a_single_point() -> None:
    family = Tree(Flatten(2), 1, depth=3)
    one = np.ones((1, 2), np.float32)
    f = family.member(family.least_squares(one)(np.array([[5.0]]), np.random.default_rng(0)))
    np.testing.assert_array_equal(f(np.zeros((3, 2))), 5.0)


def test_depth_is_bounded() -> None:
    with pytest.raises(FFGBError, match="depth 1 … 12"):
        Tree(Flatten(2), 1, depth=13)


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 60))
def test_minimax_leaves_have_the_least_largest_error_of_all_values_for_their_points(
    seed: int, depth: int, n: int
) -> None:
    rng = np.random.default_rng(seed)
    x, phi = rng.standard_normal((n, 3)).astype(np.float32), rng.standard_normal((n, 2))
    family = Tree(Flatten(3), 2, depth=depth)
    plain, fit = (
        family.least_squares(x)(phi, np.random.default_rng(0)),
        family.minimax(x)(phi, np.random.default_rng(0)),
    )
    np.testing.assert_array_equal(fit["threshold"], plain["threshold"])  # the same tree
    values = family.member(fit)(x)
    leaf = np.unique(np.c_[family.member(plain)(x), values], axis=0, return_inverse=True)[1]
    for j in range(leaf.max() + 1):
        some = phi[leaf == j]
        half_range = (some.max(axis=0) - some.min(axis=0)) / 2
        assert (np.abs(some - values[leaf == j]).max(axis=0) <= half_range + 1e-12).all()
    assert np.abs(values - phi).max() <= np.abs(family.member(plain)(x) - phi).max() + 1e-12


def test_a_tree_has_no_lipschitz_constant() -> None:
    family: Family = Tree(Flatten(2), 1)
    assert not isinstance(family, Lipschitz)
    with pytest.raises(FFGBError, match=r"Tree has no Lipschitz fit, which FFGB\.L needs"):
        WOLip(family, Points(0, np.zeros((1, 2)), np.zeros(1)), 1.0, "middle", np.random.default_rng(0))


def test_leaves_that_no_point_reaches_are_0_in_a_minimax_fit() -> None:
    x = np.array([[0.0], [0.0], [1.0], [1.0]], np.float32)
    parameters = Tree(Flatten(1), 1, depth=2).minimax(x)(
        np.array([[1.0], [3.0], [5.0], [9.0]]), np.random.default_rng(0)
    )
    assert sorted(parameters["value"].ravel().tolist()) == [0.0, 0.0, 2.0, 7.0]
