"""WO²: the measured γ, and the repair of answers that do not contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffgb.errors import FFGBError
from ffgb.features import Flatten
from ffgb.functions import Family, Fit, Parameters
from ffgb.learners.linear import Linear
from ffgb.learners.nets import Net
from ffgb.learners.trees import Tree
from ffgb.oracles import WO2, WOInf, contraction


@final
@dataclass(frozen=True, eq=False)
class Stubborn(Family):
    """A family whose fit answers every query with the same member: a bad oracle."""

    closed: ClassVar[bool] = True
    outputs: int
    answer: np.ndarray
    features = Flatten(1)

    @property
    def spec(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        return {"values": (self.answer.shape, "float64")}

    def members(self, stack: Parameters, z: np.ndarray) -> np.ndarray:
        return stack["values"]

    def least_squares(self, z: np.ndarray) -> Fit:
        return lambda phi, rng: {"values": self.answer}

    def minimax(self, z: np.ndarray) -> Fit:
        return self.least_squares(z)


def ask(answer: np.ndarray, phi: np.ndarray) -> tuple[np.ndarray, float, np.ndarray]:
    z = np.zeros((len(phi), 1))
    h, _, gamma, _ = WO2(Stubborn(phi.shape[1], answer), z)(phi, np.random.default_rng(0))
    return h.values, gamma, h.increment.evaluate(z)


def test_gamma_by_hand() -> None:
    phi = np.array([[3.0], [4.0]])
    h, gamma, _ = ask(np.array([[3.0], [1.0]]), phi)
    np.testing.assert_array_equal(h, [[3.0], [1.0]])  # it contracts: it is left as it is
    assert gamma == pytest.approx(1 - 3 / 5)


def test_an_answer_that_does_not_contract_is_scaled_by_the_best_factor() -> None:
    phi = np.array([[3.0], [4.0]])
    h, gamma, increment = ask(np.array([[30.0], [0.0]]), phi)
    np.testing.assert_allclose(h, [[3.0], [0.0]])  # ⟨h,φ⟩/‖h‖² = 90/900
    np.testing.assert_allclose(increment, h)  # the function that is sent is scaled too
    assert gamma == pytest.approx(1 - 4 / 5)
    h, gamma, _ = ask(np.array([[-1.0], [0.0]]), phi)  # even one that points the wrong way
    np.testing.assert_allclose(h, [[3.0], [0.0]])
    assert gamma == pytest.approx(1 - 4 / 5)


def test_nothing_helps_an_orthogonal_answer_and_gamma_says_so() -> None:
    h, gamma, _ = ask(np.array([[4.0], [-3.0]]), np.array([[3.0], [4.0]]))
    assert gamma == 0.0
    np.testing.assert_array_equal(h, np.zeros((2, 1)))


def test_the_query_zero_is_answered_exactly() -> None:
    h, gamma, _ = ask(np.array([[4.0], [-3.0]]), np.zeros((2, 1)))
    np.testing.assert_array_equal(h, np.zeros((2, 1)))
    assert gamma == 1.0


def test_infinite_answers_are_refused() -> None:
    with pytest.raises(FFGBError, match="diverged"):
        ask(np.array([[np.nan], [0.0]]), np.ones((2, 1)))


@given(st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_the_exact_oracle_has_its_gamma(seed: int, gamma: float) -> None:
    phi = np.random.default_rng(seed).standard_normal((9, 3))
    assert contraction(gamma * phi, phi) == pytest.approx(gamma, abs=1e-12)


@given(st.integers(0, 2**32 - 1), st.integers(2, 60), st.sampled_from([0.0, 1e-3, 1.0]))
def test_least_squares_families_always_contract(seed: int, n: int, ridge: float) -> None:
    rng = np.random.default_rng(seed)
    x, phi = rng.standard_normal((n, 4)).astype(np.float32), rng.standard_normal((n, 2))
    for family in (Linear(Flatten(4), 2, ridge), Tree(Flatten(4), 2, depth=2)):
        h, _, gamma, _ = WO2(family, family.features(x))(phi, rng)
        assert 0.0 <= gamma <= 1.0
        assert np.linalg.norm(h.values - phi) <= (1 - gamma) * np.linalg.norm(phi) + 1e-12


def ask_minimax(answer: np.ndarray, phi: np.ndarray) -> tuple[np.ndarray, float]:
    h, _, gamma, _ = WOInf(Stubborn(phi.shape[1], answer), np.zeros((len(phi), 1)))(phi, np.random.default_rng(0))
    assert gamma is not None
    return h.values, gamma


def test_gamma_in_the_sup_norm_by_hand() -> None:
    phi = np.array([[3.0, 1.0], [-4.0, 0.0]])
    h, gamma = ask_minimax(np.array([[2.0, 1.0], [-3.0, 0.5]]), phi)
    assert gamma == pytest.approx(1 - 1 / 4)
    np.testing.assert_array_equal(h, [[2.0, 1.0], [-3.0, 0.5]])
    # the best multiple of (30, 0)' for (3, 4)' leaves max(|3 − 30 s|, 4) = 4: nothing contracts in this norm.
    # Then it is the best multiple in L², and γ = 0 tells
    h, gamma = ask_minimax(np.array([[30.0], [0.0]]), np.array([[3.0], [4.0]]))
    assert gamma == 0.0
    np.testing.assert_allclose(h, [[3.0], [0.0]])
    # that of (30, 10)' makes 3 − 30 s = −(4 − 10 s): s = 7/40
    h, gamma = ask_minimax(np.array([[30.0], [10.0]]), np.array([[3.0], [4.0]]))
    np.testing.assert_allclose(h, np.array([[30.0], [10.0]]) * 7 / 40, rtol=1e-4)
    assert gamma == pytest.approx(1 - 2.25 / 4, rel=1e-4)
    h, gamma = ask_minimax(np.array([[1.0]]), np.zeros((1, 1)))
    assert (h[0, 0], gamma) == (0.0, 1.0)


@given(st.integers(0, 2**32 - 1), st.integers(2, 40))
def test_minimax_oracles_never_expand(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    x, phi = rng.standard_normal((n, 4)).astype(np.float32), rng.standard_normal((n, 2))
    for family in (Linear(Flatten(4), 2, 1e-3), Tree(Flatten(4), 2, depth=2)):
        h, _, gamma, _ = WOInf(family, family.features(x))(phi, rng)
        assert gamma is not None
        assert -1e-12 <= gamma <= 1.0
        assert np.abs(h.values - phi).max() <= (1 - gamma) * np.abs(phi).max() + 1e-12


def test_families_without_a_fit_say_so() -> None:
    family = Net((1, 20, 20), 1)
    with pytest.raises(FFGBError, match="has no Lipschitz fit"):
        family.sobolev(np.zeros((1, 400)), np.zeros((1, 400)))
