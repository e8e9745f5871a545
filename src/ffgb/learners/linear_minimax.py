"""WO^lip for linear maps as the paper's appendix prints it: the largest error of the values is made small, together
with the mean error of the derivatives,

    min_W  max_j |h(s_j) − φ(s_j)|²  +  ρ · mean_r ‖∇h(r) − ∇φ(r)‖²  +  λ‖W‖²,        h = Φ W + β.

The paper has an integral over the space in place of the mean over samples r, and no λ; ρ stands for the volume of the
space, which it does not state.  Of several outputs the largest error of any counts, as for WO^∞.

The problem is convex.  In coordinates y in which the last two terms are ‖y‖² plus a constant, it is

    min_{y, t}  t² + ‖y‖²    with    −t ≤ A y − b ≤ t,

a quadratic program, which an interior-point method solves in ten to twenty steps: Mehrotra, "On the implementation of a
primal-dual interior point method", SIAM J. Optim. 2, 1992.  The result is proved: any ν has

    −⟨ν, b⟩ = ⟨ν, A y − b⟩ − ⟨A'ν, y⟩ ≤ ‖ν‖₁ t + ‖A'ν‖ ‖y‖,    so that    t² + ‖y‖² ≥ ⟨ν, b⟩² / (‖ν‖₁² + ‖A'ν‖²),

and the multipliers of the constraints are a ν for which the two sides meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve, eigh, qr

from ffgb.core.types import Array

GAP = 1e-4
"""What the objective may be above its minimum, as a share of itself."""
STEPS = 60
"""At most; rounding may end the search earlier than the gap."""
BACK_OFF = 0.995
"""How much of the way to the next constraint a step takes."""


class Minimum(NamedTuple):
    """Where the least value was found, and the bounds that the minimum lies between."""

    y: Array
    upper: float
    lower: float


class _Move(NamedTuple):
    """A change of y, of t, and of the slacks t − e and t + e, with their multipliers; e = A y − b."""

    y: Array
    t: float
    above: Array
    below: Array
    for_above: Array
    for_below: Array


def proximal_minimax(a: Array, b: Array, gap: float = GAP) -> Minimum:
    """min_y max |A y − b|² + ‖y‖², over all entries of A y − b, for A (n, r) and b (n, c), to a gap that is proved.

    >>> found = proximal_minimax(np.array([[1.0], [1.0]]), np.array([[1.0], [3.0]]))  # of (1 + |y − 2|)² + y²
    >>> round(float(found.y[0, 0]), 3), round(found.upper, 3), round(found.lower, 3)
    (1.5, 4.5, 4.5)
    """
    best, size = np.zeros((a.shape[1], b.shape[1])), float(np.abs(b).max(initial=0.0))
    if size == 0.0:
        return Minimum(best, 0.0, 0.0)
    b = b / size  # y goes with b, and the minimum with its square
    y, t, upper, lower = best, 1.1, 1.0, 0.0
    for_above = for_below = np.full(b.shape, 1.0 / b.size)
    for _ in range(STEPS):
        error = a @ y - b
        if (value := float(np.square(error).max() + np.square(y).sum())) < upper:
            best, upper = y, value
        lower = max(lower, _bound(a, b, for_above - for_below))
        if upper - lower <= gap * upper:
            break
        try:
            length, move = _step(a, y, t, t - error, t + error, for_above, for_below)
        except np.linalg.LinAlgError:
            break
        y, t = y + length * move.y, t + length * move.t
        for_above, for_below = for_above + length * move.for_above, for_below + length * move.for_below
    return Minimum(size * best, size * size * upper, size * size * lower)


def _bound(a: Array, b: Array, nu: Array) -> float:
    """⟨ν, b⟩² / (‖ν‖₁² + ‖A'ν‖²): no value is less."""
    below = float(np.abs(nu).sum() ** 2 + np.square(a.T @ nu).sum())
    return float(np.vdot(nu, b)) ** 2 / below if below > 0.0 else 0.0


def _step(
    a: Array, y: Array, t: float, above: Array, below: Array, for_above: Array, for_below: Array
) -> tuple[float, _Move]:
    """Mehrotra's step: Newton's for the conditions of a minimum, with a second-order correction; and how much of it
    keeps slacks and multipliers positive."""
    stiff_above, stiff_below = for_above / above, for_below / below
    stiffness, lean = stiff_above + stiff_below, stiff_above - stiff_below
    factors = []
    for column in stiffness.T:  # the outputs have nothing in common but t
        heavy = np.sqrt(column)[:, None] * a
        matrix = heavy.T @ heavy  # a product with itself takes half the time
        matrix[np.diag_indices_from(matrix)] += 2.0
        factors.append(cho_factor(matrix, lower=True, overwrite_a=True, check_finite=False))

    def solve(right: Array) -> Array:
        columns = [cho_solve(f, column, check_finite=False) for f, column in zip(factors, right.T, strict=True)]
        return np.stack(columns, axis=1)

    coupling = a.T @ lean
    along = solve(coupling)
    pivot = 2.0 + float(stiffness.sum()) - float(np.vdot(coupling, along))

    def towards(product_above: Array, product_below: Array) -> _Move:
        """Newton's step towards these products of slacks and multipliers."""
        push_above, push_below = product_above / above, product_below / below
        free = solve(-2.0 * y - a.T @ (push_above - push_below))
        dt = (float((push_above + push_below).sum()) - 2.0 * t + float(np.vdot(coupling, free))) / pivot
        dy = free + along * dt
        change = a @ dy
        return _Move(
            y=dy,
            t=dt,
            above=dt - change,
            below=dt + change,
            for_above=push_above - for_above - stiff_above * (dt - change),
            for_below=push_below - for_below - stiff_below * (dt + change),
        )

    gap = float(np.vdot(above, for_above) + np.vdot(below, for_below))
    nothing = np.zeros_like(above)
    straight = towards(nothing, nothing)
    now = above, below, for_above, for_below
    length = _longest(now, straight)
    left = float(
        np.vdot(above + length * straight.above, for_above + length * straight.for_above)
        + np.vdot(below + length * straight.below, for_below + length * straight.for_below)
    )
    centre = (left / gap) ** 3 * gap / (2 * above.size)
    move = towards(centre - straight.above * straight.for_above, centre - straight.below * straight.for_below)
    return BACK_OFF * _longest(now, move), move


def _longest(now: Iterable[Array], move: _Move) -> float:
    """How much of a move keeps these slacks and multipliers positive, at most 1."""
    changes = (move.above, move.below, move.for_above, move.for_below)
    parts = (float((a / np.maximum(-change, 1e-300)).min()) for a, change in zip(now, changes, strict=True))
    return min(1.0, *parts)


def sup_solutions(design: Array, n: int, weight: float, ridges: Sequence[float]) -> Callable[[Array], Iterator[Array]]:
    """From a jet, n rows of it values, to the W of each λ that solves the problem of this module.

    The design, multiplied by W, gives the jet of h; each row of derivatives counts as much as `weight` says; λ is
    relative to the size of the features.  What depends on the design alone is computed once.
    """
    z, dz = design[:n], design[n:]
    curvatures, vectors = eigh(weight * (dz.T @ dz), overwrite_a=True, check_finite=False)
    total = max(float(curvatures.sum() + np.square(z).mean(axis=0).sum()), 1e-12)

    @cache
    def coordinates(ridge: float) -> tuple[Array, Array, Array, Array]:
        """W = V diag(scales) u makes the last two terms ‖u − u₀‖² and a constant.  Values are `full` u; where there
        are fewer points than features they depend on few coordinates y of u, in a `basis`, by the matrix A."""
        scales = 1.0 / np.sqrt(np.maximum(curvatures, 0.0) + ridge * total)
        full = z @ (vectors * scales)
        if len(full) >= full.shape[1]:
            return scales, full, np.eye(full.shape[1]), full
        basis, triangle = qr(full.T, mode="economic", check_finite=False)
        return scales, full, basis, np.ascontiguousarray(triangle.T)

    def solutions(jet: Array) -> Iterator[Array]:
        moment = vectors.T @ (weight * (dz.T @ jet[n:]))
        for ridge in ridges:
            scales, full, basis, a = coordinates(ridge)
            centre = scales[:, None] * moment  # u₀
            y = proximal_minimax(a, jet[:n] - full @ centre).y
            w: Array = vectors @ (scales[:, None] * (centre + basis @ y))
            yield w

    return solutions
