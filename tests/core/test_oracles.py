"""Oracles: the measured γ, in every norm, and the repair of answers that do not contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffgb.core.capabilities import Fit, JetFit
from ffgb.core.functions import ClosedFamily
from ffgb.core.geometry import Blocks
from ffgb.core.lipschitz import Extension
from ffgb.core.maps import FeatureMap
from ffgb.core.oracles import WO2, Answer, SharedWO2, WOInf, WOLip, between, contraction, sup
from ffgb.core.points import Points
from ffgb.core.types import Parameters
from ffgb.errors import FFGBError
from ffgb.features.basic import Flatten
from ffgb.learners.linear import Linear
from ffgb.learners.nets import Net
from ffgb.learners.trees import Tree


@final
@dataclass(frozen=True, eq=False)
class Stubborn(ClosedFamily):
    """A family whose fit answers every query with the same member: a bad oracle."""

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
    assert gamma is not None
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


def test_a_weak_learner_has_no_part_of_f_in_it() -> None:
    x = np.linspace(-1, 1, 9, dtype=np.float32)[:, None]
    family, phi = Linear(Flatten(1), 1), x.astype(float) + 1.0
    points = Points(0, x, phi)
    smooth = WOLip(family, points, 1.0, "middle", np.random.default_rng(0))
    for oracle in (WO2(family, x), WOInf(family, x), smooth):
        assert oracle(oracle.sees(phi), np.random.default_rng(0)).h.decay == 0.0


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
        assert gamma is not None
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


@final
@dataclass(frozen=True)
class Line(ClosedFamily):
    """x ↦ a x, of which every Lipschitz fit answers with the same a, whatever bound it is given: a bad oracle."""

    a: float
    outputs: int = 1
    features = Flatten(1)

    @property
    def spec(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        return {"a": ((), "float64")}

    def members(self, stack: Parameters, z: np.ndarray) -> np.ndarray:
        values: np.ndarray = stack["a"][:, None, None] * z
        return values

    def least_squares(self, z: np.ndarray) -> Fit:
        return lambda phi, rng: {"a": np.array(self.a)}

    @property
    def metric(self) -> FeatureMap:
        return self.features

    def sobolev(self, points: np.ndarray, samples: np.ndarray) -> JetFit:
        own = np.concatenate([points, np.ones((samples.size, 1))])
        return JetFit(lambda jet, bound, rng: {"a": np.array(self.a)}, lambda parameters: own * parameters["a"])

    def lipschitz(self, parameters: Parameters) -> float:
        return abs(float(parameters["a"]))


def ask_lipschitz(a: float, x: list[float], phi: list[float]) -> tuple[float, Answer]:
    """The slope of the function that is answered, and the answer."""
    points = Points(0, np.array(x, np.float32)[:, None], np.array(phi))
    oracle = WOLip(Line(a), points, 10.0, "mcshane", np.random.default_rng(0))
    answer = oracle(oracle.sees(np.array(phi)[:, None]), np.random.default_rng(0))
    n, at = len(x), answer.h.increment
    np.testing.assert_allclose(answer.h.values, at(points.x), atol=1e-12)
    np.testing.assert_allclose(answer.seen[:n], answer.h.values)
    slope = float(at(np.ones((1, 1), np.float32))[0, 0])
    np.testing.assert_allclose(answer.seen[n:], slope)  # derivatives too
    return slope, answer


def test_a_fit_that_is_too_steep_is_flattened() -> None:
    """The oracle keeps ‖h‖_lip ≤ ‖φ‖_lip even if the family's fit ignores the bound."""
    slope, answer = ask_lipschitz(1.5, [0.0, 1.0, 2.0], [0.0, 1.0, 2.0])
    assert slope == pytest.approx(1.0)
    assert answer.measured["lipschitz"] == pytest.approx(1.0)
    assert answer.gamma == pytest.approx(1.0)
    # flattened to −x it is −1 at 1, where φ is −1/4; of its multiples −s x the best has s − 1/4 = 1/4 − s/4
    slope, answer = ask_lipschitz(-3.0, [0.0, 0.25, 1.0], [0.0, -0.25, -0.25])
    assert slope == pytest.approx(-0.4, rel=1e-4)
    assert answer.measured["gamma_sup"] == pytest.approx(1 - 0.15 / 0.25, rel=1e-3)


def test_gamma_of_values_and_of_slopes_by_hand() -> None:
    """The oracle measures γ in both norms, and returns the smaller one."""
    # φ = (0, 1, 1) has slope 1; h = 3x/4 leaves (0, −1/4, 1/2), whose largest entry is 1/2 and whose slope is 3/4
    slope, answer = ask_lipschitz(0.75, [0.0, 1.0, 2.0], [0.0, 1.0, 1.0])
    assert slope == 0.75
    assert answer.measured["gamma_sup"] == pytest.approx(1 / 2)
    assert answer.measured["gamma_lip"] == pytest.approx(1 / 4)
    assert answer.gamma == pytest.approx(1 / 4)


def test_where_no_slope_contracts_the_best_in_l2_is_taken_of_either_sign() -> None:
    """If no multiple of h contracts, the oracle takes the best multiple in L², which may be negative."""
    # at 0 no multiple of x helps, and 2 is left there; ⟨x, φ⟩/‖x‖² = −2/2
    slope, answer = ask_lipschitz(1.0, [0.0, 1.0, -1.0], [2.0, -1.5, 0.5])
    assert slope == pytest.approx(-1.0)
    assert answer.gamma is not None
    assert answer.gamma <= 0.0


def test_samples_lie_between_two_points() -> None:
    """Each sample lies on the segment between two points, and samples cover the segments evenly."""
    rng = np.random.default_rng(0)
    s = rng.standard_normal((40, 1)) * [[1.0, 2.0, -3.0]] + 5.0  # all on one line
    places = between(s, rng)
    assert places.shape == s.shape
    along, ends = (places[:, 0] - 5.0), np.sort(s[:, 0] - 5.0)
    np.testing.assert_allclose(places - 5.0, along[:, None] * [1.0, 2.0, -3.0], atol=1e-12)
    assert ends[0] <= along.min() < along.max() <= ends[-1]
    two = between(np.array([[0.0], [1.0]] * 500), rng)[:, 0]
    inside = two[(two > 0) & (two < 1)]
    assert len(inside) == pytest.approx(500, abs=80)  # two random ends differ every other time
    assert np.abs(np.quantile(inside, [0.25, 0.5, 0.75]) - [0.25, 0.5, 0.75]).max() < 0.07


def test_the_lipschitz_oracle_sees_labels_as_their_extension_with_its_slopes() -> None:
    """The query holds the extension's values at the points and its derivatives at the samples."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (60, 2)).astype(np.float32)
    y = x.astype(np.float64) @ np.array([[2.0], [-3.0]])
    oracle = WOLip(Linear(Flatten(2), 1), Points(0, x, y), np.sqrt(13.0), "middle", rng)
    query = oracle.sees(y)
    np.testing.assert_allclose(query[:60], y, atol=1e-9)
    derivatives = query[60:].reshape(60, 2)
    u, step = Extension(x, y, np.sqrt(13.0), "middle"), 1e-6
    numeric = [(u(oracle.samples + step * e) - u(oracle.samples - step * e)) / (2 * step) for e in np.eye(2)]
    np.testing.assert_allclose(derivatives, np.concatenate(numeric, axis=1), atol=1e-3)
    np.testing.assert_allclose(derivatives.mean(axis=0), [2.0, -3.0], atol=0.8)


def test_gamma_in_a_shared_geometry_is_that_of_the_norm_of_inner_products() -> None:
    """γ is measured in the norm ‖b‖² = b'(G + λI)⁻¹b, here with the matrices written out."""
    rng = np.random.default_rng(0)
    x, phi, ridge = rng.standard_normal((30, 3)).astype(np.float32), rng.standard_normal((30, 2)), 0.7
    x -= x.mean(axis=0)
    gram = np.cov(x.T.astype(np.float64), bias=True)
    geometry = Blocks.of(np.zeros(3), [gram], ridge)
    oracle = SharedWO2(Linear(Flatten(3), 2), x, geometry)
    answer = oracle(oracle.sees(phi), rng)
    b = np.vstack([x.T @ phi, phi.sum(axis=0)]) / 30
    whole, level = np.zeros((4, 4)), ridge * np.trace(gram)
    whole[:3, :3], whole[3, 3] = gram, 1.0
    inverse = np.linalg.inv(whole + np.diag([level] * 3 + [0.0]))
    left = b - whole @ inverse @ b
    expected = 1.0 - np.sqrt(np.vdot(left, inverse @ left) / np.vdot(b, inverse @ b))
    assert answer.gamma == pytest.approx(expected, rel=1e-4)
    np.testing.assert_allclose(answer.seen, whole @ inverse @ b, atol=1e-6)


def test_the_exact_answer_to_nothing_has_gamma_1() -> None:
    x = np.random.default_rng(0).standard_normal((30, 3)).astype(np.float32)
    family, nothing = Linear(Flatten(3), 2), np.zeros((30, 2))
    for oracle in (WO2(family, x), SharedWO2(family, x, Blocks.of(np.zeros(3), [np.eye(3)], 1e-3))):
        answer = oracle(oracle.sees(nothing), np.random.default_rng(0))
        assert answer.gamma == 1.0
        np.testing.assert_array_equal(answer.h.values, nothing)
    assert contraction(np.zeros((2, 1)), np.zeros((2, 1))) == 1.0
    assert contraction(np.ones((2, 1)), np.zeros((2, 1))) == -np.inf
    assert contraction(np.ones((2, 1)), np.full((2, 1), 4.0), sup) == 0.25


def test_families_without_a_fit_say_so() -> None:
    family = Net((1, 20, 20), 1)
    with pytest.raises(FFGBError, match="Net has no Lipschitz fit"):
        WOLip(family, Points(0, np.zeros((1, 400)), np.zeros(1)), 1.0, "middle", np.random.default_rng(0))
