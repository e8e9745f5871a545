"""A prior that fits itself: how far a closed family's weights may reach, by the evidence in totals.

Near f^t the mean loss of f = ΦW + β is a quadratic of W: its gradient b = E[Φφ] is a total, and its second derivative
is κG, G the Gram of the centred features and κ the loss's mean curvature.  With n rows this is a Gaussian likelihood.
Under the prior W ~ N(0, I/(nλ)) its evidence is known in closed form from the eigenvalues of G, and λ is where it is
largest.  The answer is the change of W towards the posterior's mode,

    −(κG + λI)⁻¹(b + λW),

which is the oracle's answer to the gradient of the penalised objective.  Nothing is asked for beyond G, b and E‖φ‖².

κ: of a log likelihood, the variance of φ is the curvature (Fisher's identity), so E‖φ‖² about its mean tells κ, and
there is no scale of noise to estimate.  Other losses have the curvature that they declare, and a scale that is
profiled out: of the square loss, the variance of the noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
import scipy  # its parts are imported where they are first used: worker processes begin sooner

from ffgb.core.geometry import Spectrum
from ffgb.core.losses import Loss
from ffgb.core.types import Array

LEAST_SHARE, LARGEST_SHARE = 0.01, 100.0
"""λ is at least this share of κ·trace(G)/n, and at most this share of κ·trace(G)."""
LEVELS = 40
"""λ is tried at so many levels, then at so many about the best of them, and once more."""
FLATTEST = 1e-3
"""κ is at least this share of the loss's smoothness: where classes are told apart, gradients say that it is nothing."""
RESOLVED = 1e-9
"""The least share of the variance that can be left: of an exact fit, what is left is rounding."""
CLOSE = 1e-3
"""λ is found to this share of it."""
FLAT = 1e-9
"""A trace of κG below this is rounding: the features are the same at all rows, and there is nothing to fit."""


@final
@dataclass(frozen=True, eq=False)
class Posterior:
    """Where the weights go from here, and what the evidence says of them."""

    change: Array
    """Of W, (D, c)."""
    intercept: Array
    """The change of f's mean, (c,)."""
    level: float
    """λ."""
    freedom: float
    """Effective parameters of an output, tr κG(κG + λI)⁻¹."""
    curvature: float
    """κ."""
    remaining: float
    """The size of the change in standard deviations of the posterior: its mean square over effective parameters."""

    def pull(self, weight: Array) -> tuple[float, float]:
        """Of the prior's slope along the change from W, first + s · second at length s: the first and the second."""
        inner, square = float(np.vdot(weight, self.change)), float(np.vdot(self.change, self.change))
        return self.level * inner, self.level * square


def posterior(
    spectrum: Spectrum, weight: Array, b: Array, mean: Array, square: float, rows: float, loss: Loss
) -> Posterior:
    """From W (D, c), the inner products of φ with the centred features, (D, c), and with 1, (c,), and E‖φ‖²."""
    variance = max(square - float(np.square(mean).sum()), 0.0)
    outputs = loss.outputs - 1 if loss.classification and loss.outputs > 1 else loss.outputs  # probabilities sum to 1
    kappa = loss.smoothness
    if loss.classification:
        kappa = max(variance / outputs, FLATTEST * kappa)
    g, w, b = kappa * spectrum.values, spectrum.into(weight), spectrum.into(b)
    aim = g[:, None] * w - b if float(g.sum()) > FLAT else np.zeros_like(b)
    total = None
    if not loss.classification:  # Σ of the squares that are to be fitted, of the working response
        total = variance / kappa + float((w * (g[:, None] * w - 2.0 * b)).sum())
    squares, size = np.square(aim).sum(axis=1), float(np.square(w).sum())
    if loss.classification and size > 0.0:
        level = level_of(g, rows, outputs, size)
    else:
        level = best_level(g, squares, rows, outputs, total)
    step = aim / (g + level)[:, None] - w
    freedom = float((g / (g + level)).sum())
    moved = float(((g + level)[:, None] * np.square(step)).sum()) + float(np.square(mean).sum()) / kappa
    noise = 1.0
    if total is not None:
        noise = max(total - float((squares / (g + level)).sum()), RESOLVED * total, 1e-300) / outputs
    remaining = rows * moved / noise / (outputs * (1.0 + freedom))
    return Posterior(spectrum.back(step), -mean / kappa, level, freedom, kappa, remaining)


def best_level(values: Array, squares: Array, rows: float, outputs: int, total: float | None) -> float:
    """λ of the largest evidence: from the eigenvalues of κG, and the squares of what they are to fit, Σ over outputs.

    `total`: the squares of the whole working response, if the scale of noise is unknown.
    """

    def surprise(level: float) -> float:
        """−2 log evidence, up to a constant."""
        complexity = outputs * float(np.log1p(values / level).sum())
        fitted = float((squares / (values + level)).sum())
        if total is None:
            return complexity - rows * fitted
        # a row is spent on the mean
        return complexity + (rows - 1.0) * outputs * math.log(max(total - fitted, RESOLVED * total, 1e-300))

    low, high = _range(values, rows)
    for _ in range(3):
        grid = np.geomspace(low, high, LEVELS)
        best = int(np.argmin([surprise(level) for level in grid]))
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, LEVELS - 1)]
    return float(grid[best])


def level_of(values: Array, rows: float, outputs: int, square: float) -> float:
    """MacKay's λ for weights of this square, Σ‖W‖² over outputs: nλ‖W‖² are the effective parameters.

    There is one such λ: the left side increases in λ, and the right side decreases.  Evidence that is maximised again
    at a new f^t could lose its way: where classes are told apart, κ tends to 0, and the quadratic says less and less of
    weights that the loss itself has long decided on (Hauck and Donner, 1977).
    """
    low, high = _range(values, rows)

    def excess(x: float) -> float:
        level = math.exp(x)
        return rows * level * square - outputs * float((values / (values + level)).sum())

    if excess(math.log(low)) >= 0.0:
        return low
    if excess(math.log(high)) <= 0.0:
        return high
    return math.exp(float(scipy.optimize.brentq(excess, math.log(low), math.log(high), xtol=CLOSE)))


def _range(values: Array, rows: float) -> tuple[float, float]:
    """The least λ, at which a prior says next to nothing, and the largest, at which hardly anything is left of W."""
    trace = max(float(values.sum()), FLAT)
    return LEAST_SHARE * trace / rows, LARGEST_SHARE * trace
