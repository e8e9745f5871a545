"""The theorems, to be put to the test: their right-hand sides, exact minimisers, and oracles whose γ is known exactly.

On a finite set of points a function is an array, the minimiser f* is found to machine precision, and h = γφ is an
oracle that contracts by exactly 1 − γ in every norm.  With them ‖f^T − f*‖²_α can be set beside what Theorems 1 to 3
promise. The theorems are stated up to constants; so are these sums: each O(·) is taken with the constant 1.
"""

from __future__ import annotations

import math
from typing import final

import numpy as np

from ffgb.algorithms import Functional
from ffgb.core.functions import ClosedSum, OnPoints
from ffgb.core.lipschitz import Extension
from ffgb.core.losses import Loss
from ffgb.core.oracles import Answer, Oracle
from ffgb.core.types import Array
from ffgb.errors import FFGBError
from ffgb.learners.finite import Finite


@final
class ExactGamma(Oracle):
    """h = γφ: it contracts by exactly 1 − γ, in every norm.

    Given places, the first of which are the client's own, labels are seen as their Lipschitz extension to all of them.
    """

    nothing = ClosedSum(Finite(0, 1, 1.0), {"value": np.zeros((0, 1))})

    def __init__(self, gamma: float, places: Array | None = None, L: float = 1.0, extension: str = "mcshane") -> None:
        self.gamma, self.places, self.L, self.extension = gamma, places, L, extension

    def sees(self, phi: Array) -> Array:
        if self.places is None:
            return phi
        return Extension(self.places[: len(phi)], phi, self.L, self.extension)(self.places)

    def __call__(self, query: Array, rng: np.random.Generator) -> Answer:
        h = self.gamma * query
        measured = {"gamma_sup": self.gamma, "gamma_lip": self.gamma, "lipschitz": math.nan}
        return Answer(OnPoints(0.0, self.nothing, h), h, self.gamma, measured)


def simulate(
    algorithm: Functional, oracle: Oracle, y: Array, loss: Loss, t: int, f: Array, members: Array | None = None
) -> Array:
    """f^{t+1} from f^t, both as values (n, c), where clients hold the same n points with labels y (N, n).

    With h = γφ no step looks at more than one point, so that all clients are one client with N·n points.
    """
    N, n = y.shape[:2]
    at = OnPoints(1.0, ExactGamma.nothing, np.tile(f, (N, 1)))
    g, _ = algorithm.client(t, at, y.reshape(N * n, *y.shape[2:]), loss, oracle, np.random.default_rng(0))
    values = g.values.reshape(N, n, -1)
    mean: Array = (values if members is None else values[members]).mean(axis=0)
    return mean


def minimiser(loss: Loss, mu: float, n: int, rows: Array, y: Array, weights: Array) -> Array:
    """f* (n, c): at each of n points the minimum over v of Σ_r w_r (ℓ(v, y_r) + μ/2 ‖v‖²), r the rows at that point.

    Accelerated gradient descent with restarts, to machine precision: every point is a small problem that is convex, and
    strongly so for μ > 0.  A point without rows gets 0.  O'Donoghue & Candès, "Adaptive restart", 2015.
    """
    total = np.bincount(rows, weights, n)
    share = (weights / total[rows])[:, None]

    def gradient(f: Array) -> Array:
        by_row, by_point = share * loss.gradient(f[rows], y), np.zeros_like(f)
        np.add.at(by_point, rows, by_row)
        out: Array = by_point + mu * f
        return out

    step = 1.0 / (loss.smoothness + mu)
    f = np.zeros((n, loss.outputs))
    ahead, momentum, least, since = f, 1.0, np.inf, 0
    for _ in range(100_000):
        slope = gradient(ahead)
        after = ahead - step * slope
        if float(np.vdot(slope, after - f)) > 0:
            momentum, ahead = 1.0, f  # it overshot: start the momentum anew
            slope = gradient(f)
            after = f - step * slope
        following = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * momentum**2))
        ahead = after + (momentum - 1.0) / following * (after - f)
        f, momentum = after, following
        size = float(np.abs(slope).max(initial=0.0))
        least, since = (size, 0) if size < least else (least, since + 1)
        if size == 0.0 or (size < 1e-12 and since > 100):
            return f
    raise FFGBError(f"the minimum was not found to precision (gradient {size:.1e}); is it finite? choose μ > 0")


def square_error(f: Array, f_star: Array, alpha: Array | None = None) -> float:
    """‖f − f*‖²_α; α uniform if none is given."""
    squares = np.square(f - f_star).sum(axis=1)
    return float(squares.mean() if alpha is None else alpha @ squares)


def sampling(N: int, m: int) -> float:
    """(N−m)/(N−1) · 1/m: the variance of a mean over m of N clients, against that of one; 0 if all take part."""
    return 0.0 if m == N else (N - m) / (N - 1) / m


def theorem1(
    T: int, K: int, *, gamma: float, mu: float, G: float, start: float, N: int = 1, m: int | None = None
) -> dict[str, float]:
    """The terms of Theorem 1's bound on ‖f^T − f*‖², with its addition for m of N clients; start = ‖f^0 − f*‖².

    >>> terms = theorem1(100, 10, gamma=1.0, mu=1.0, G=1.0, start=1.0)
    >>> terms["start"], terms["oracle"]
    (0.001, 0.0)
    """
    steps = math.log(K * T) if K * T > 1 else 0.0
    return {
        "start": start / (K * T),
        "drift": K * G**2 * steps / (T * gamma**2 * mu**2),
        "oracle": (1.0 - gamma) * G**2 / (K * mu**2 * gamma**2),
        "oracle over time": (1.0 - gamma) * G**2 * steps / (K * T * mu * gamma**2),
        "sampling": _sampled(T, G, mu, gamma, N, m),
    }


def theorem2(
    T: int,
    K: int,
    *,
    gamma: float,
    mu: float,
    G: float,
    start: float,
    B: float,
    omega: float,
    N: int = 1,
    m: int | None = None,
) -> dict[str, float]:
    """The same of Theorem 2 (FFGB.C); ω = (1/N) Σ_i TV(α, α_i).  "floor" does not shrink with T.

    It is the form of the main text.  The appendix has no "floor over time", and neither has its proof; that term is
    ω/K of the drift, so that the two forms differ by a factor of 2 at most.
    """
    steps = math.log(K * T) if K * T > 1 else 0.0
    return {
        "start": start / (K * T),
        "drift": K * G**2 * steps / (T * mu**2 * gamma**2),
        "oracle": (1.0 - gamma) ** 2 * G**2 / (K * mu**2 * gamma**2),
        "floor": G * B * omega / (mu * gamma),
        "floor over time": G**2 * steps * omega / (gamma**2 * mu**2 * T),
        "sampling": _sampled(T, G, mu, gamma, N, m),
    }


def theorem3(
    T: int,
    K: int,
    *,
    gamma: float,
    L: float,
    B: float,
    D: float,
    W2: float,
    omega: float,
    start: float,
    N: int = 1,
    m: int | None = None,
) -> dict[str, float]:
    """The same of Theorem 3 (FFGB.L), where μ = 1; ω = (1/N) Σ_i W1(α, α_i), W2 = (1/N²) Σ_is W2²(α_s, α_i).

    It is the form of the appendix, whose drift has ω in it too; the main text leaves that out.
    """
    steps = math.log(K * T) if K * T > 1 else 0.0
    G2 = 2.0 * L**2 * W2 + 2.0 * B**2
    reach = L * (L * D + B) * omega
    return {
        "start": start / (K * T),
        "drift": K * (reach + G2 + B**2) * steps / (T * gamma**2),
        "oracle": (1.0 - gamma) ** 2 * B**2 / (gamma**2 * K),
        "floor": reach / gamma**2,
        "sampling": _sampled(T, math.sqrt(G2), 1.0, gamma, N, m),
    }


def _sampled(T: int, G: float, mu: float, gamma: float, N: int, m: int | None) -> float:
    return sampling(N, m or N) * G**2 * math.log(max(T, 1)) / (T * mu**2 * gamma**2)
