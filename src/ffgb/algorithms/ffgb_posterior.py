"""FFGB in the geometry of all clients' points, with a prior that fits itself: boosting that ends where evidence does.

As in ffgb_shared.py the server asks for the gradient φ of all rows, solves in the shared geometry, and searches the
step's length.  But the objective is penalised by a Gaussian prior on the weights, R(f) + λ‖W‖²/2, and each round takes
the λ with the largest evidence (core/prior.py).  So rounds do not go on to fit noise: they converge to the posterior's
mode, and end when a step is small beside the posterior's own width.  There is no exchange and no number beyond those of
ffgb_shared.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from ffgb.algorithms import Algorithm, AskInRound, Step, Totals
from ffgb.algorithms.ffgb_shared import SLACK, as_sent, check_products, fit, next_gradient
from ffgb.core.functions import ClosedSum, Family, Function
from ffgb.core.geometry import Geometry, Spectrum, centred
from ffgb.core.gradients import LENGTHS, Gradient, GradientOf, SlopesOf, best_length
from ffgb.core.losses import Loss
from ffgb.core.prior import posterior
from ffgb.core.questions import Ask
from ffgb.core.types import Array
from ffgb.errors import FFGBError


@final
@dataclass(frozen=True)
class FFGBPosterior(Totals):
    """One step a round towards the mode of the posterior, whose prior has the scale of the largest evidence."""

    mu: float = 0.0
    needs_everyone: ClassVar[bool] = True
    """The length of a step is searched."""

    def eta(self, k: int, t: int) -> float:
        return 1.0

    def prepared(self, ask: Ask, family: Family, loss: Loss, mean: Array, scale: Array) -> Algorithm:
        check_products(family)
        return self

    def round(
        self, t: int, f: Function, geometry: Geometry | None, loss: Loss, ask: AskInRound, *, stop: bool = False
    ) -> Step:
        """Gradient, evidence, step."""
        if not (isinstance(geometry, Spectrum) and isinstance(f, ClosedSum)):
            raise FFGBError("a prior that fits itself needs the Gram's eigenvectors, and a family that is one array")
        phi: Gradient = ask(GradientOf(f.family, loss, SLACK * geometry.scale, ask.gradient_bound(loss.bound)))
        weight = f.parameters["weight"][:-1]
        share = ask.noise(1.0)
        assert share is not None
        b, mean = centred(geometry.mean, phi.covector), phi.covector[-1]
        rows = round(1.0 / share, 6)  # the same bits whether sizes of clients are known, or their sum alone
        found = posterior(geometry, weight, b, mean, phi.square, rows, loss)
        intercept = found.intercept - geometry.mean @ found.change
        h = as_sent(f.family.member({"weight": np.vstack([found.change, intercept])}))
        slopes, measured = ask(SlopesOf(loss, 1.0, 0.0, phi.square / found.curvature**2), h)
        first, second = found.pull(weight)
        length = best_length(slopes + first + second * np.array(LENGTHS))
        kappa = found.curvature
        inner = -kappa * (float(np.vdot(b, found.change)) + float(mean @ found.intercept))
        gamma, explained = fit(inner, kappa**2 * measured, phi.square)
        told = {"gamma": gamma, "explained": explained, "noise": None}
        told |= {
            "ridge": found.level / max(kappa * float(geometry.values.sum()), 1e-300),
            "freedom": found.freedom,
            "remaining": found.remaining,
        }
        change = next_gradient(loss, phi.square, abs(length) * max(measured, 0.0) ** 0.5, 0.0)
        return Step(h, 1.0, length, True, told, change)
