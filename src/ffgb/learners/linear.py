"""The closed family: functions that are linear over a feature map all clients share, h(x) = Φ(x) W + β.

A weighted sum of members is the member of the weighted sum of their arrays: the whole ensemble, whatever T, N and K, is
one (D+1) × c array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from scipy.linalg import cho_factor, cho_solve, eigh

from ffgb.core.capabilities import Chance, Fit, JetFit, Slope, Walk
from ffgb.core.functions import ClosedFamily
from ffgb.core.lipschitz import Pairs
from ffgb.core.maps import FeatureMap
from ffgb.core.types import Array, Parameters
from ffgb.errors import FFGBError
from ffgb.learners.linear_minimax import sup_solutions
from ffgb.settings import LEARNER, Setting

INTERCEPT = 0.1
"""Small against the ridge.  A client that holds mostly one class explains
its labels by a constant if that is cheap, and the average of such constants is of no use to anyone; at this size the
oracle moves the intercept only a little at each step, in a direction that adds up over clients and rounds.  Adult,
linear, 20 clients, s = 0.1: 0.823 with 0.1, 0.794 with 1, 0.826 with none; but without one, 90 % of one class cannot
be fitted.  A shared geometry needs no such care: there the intercept is free."""

LAWSON_STEPS, COMMON_STEPS = 60, 8
"""Of the worst output of a minimax fit, and of all outputs together where one by one would take too long.  On digits
they come within 1-3 % and 15-40 % of the linear program's optimum; least squares is at twice that optimum."""
AFFORDABLE = 1e10
"""Multiplications in one fit."""

SOBOLEV = 0.1
"""Weight of the derivatives in a Lipschitz fit, against that of the values."""
RIDGES = tuple(10.0**-j for j in range(1, 7))
"""Ridges that a Lipschitz fit tries, relative to the size of the features; it takes the one that contracts best."""


@final
@dataclass(frozen=True)
class Linear(ClosedFamily):
    """x ↦ Φ(x) W + β, in one array: W in its first D rows, β in its last.

    Its own oracle is ridge regression at the client's points, ridge relative to the mean size of the features.
    """

    features: FeatureMap
    outputs: int
    ridge: float = 1e-3
    intercept: float = INTERCEPT
    """The constant feature of a client's own fit, 0 for none."""
    sobolev_norm: Literal["l2", "sup"] = "l2"
    """Of the values' errors a Lipschitz fit makes small: "l2" their mean square, "sup" the largest, as the paper
    prints."""

    def __post_init__(self) -> None:
        if self.sobolev_norm not in ("l2", "sup"):
            raise FFGBError(f"the norm of a Lipschitz fit is l2 or sup, not {self.sobolev_norm!r}")

    @property
    def spec(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        return {"weight": ((self.features.dimension + 1, self.outputs), "float32")}

    def members(self, stack: Parameters, z: Array) -> Array:
        weight = stack["weight"]
        m, d, c = weight.shape
        # All members side by side are one matrix, and one product.
        wide = weight[:, :-1].transpose(1, 0, 2).reshape(d - 1, m * c)
        values: Array = (z @ wide).reshape(len(z), m, c).transpose(1, 0, 2)
        return values + weight[:, -1:]

    def initial(self, rng: np.random.Generator) -> Parameters:
        """At 0."""
        return {name: np.zeros(shape, dtype) for name, (shape, dtype) in self.spec.items()}

    def walk(self, z: Array, batch: int) -> Walk:
        return _Walk(self, z)

    def covector(self, z: Array, phi: Array) -> Array:
        """Inner products in L²(α_i) of φ with the D features and the constant: ([Φ, 1]'φ)/n, (D+1, c)."""
        b = np.empty((z.shape[1] + 1, phi.shape[1]))
        b[:-1] = z.T @ phi.astype(np.float32)
        b[-1] = phi.sum(axis=0)
        b /= len(z)
        return b

    def least_squares(self, z: Array) -> Fit:
        """min_W ‖ZW − φ‖²/n + λ‖W‖², λ = ridge · ‖Z‖²_F/n, Z the features and a constant.

        One factorisation a client: of Z'Z + nλI, or, with fewer points than features, of the smaller ZZ' + nλI.
        Each query is then two thin products and two triangular solves.
        """
        z = self._with_constant(z)
        n, d = z.shape
        dual = n < d
        gram = (z @ z.T if dual else z.T @ z).astype(np.float64)
        gram[np.diag_indices_from(gram)] += max(self.ridge * np.trace(gram), 1e-12)
        factor = cho_factor(gram, lower=True, overwrite_a=True, check_finite=False)

        def fit(phi: Array, rng: np.random.Generator) -> Parameters:
            if dual:
                weight = z.T @ cho_solve(factor, phi, check_finite=False).astype(np.float32)
            else:
                weight = cho_solve(factor, (z.T @ phi.astype(np.float32)).astype(np.float64), check_finite=False)
            weight[-1] *= self.intercept
            return {"weight": weight.astype(np.float32)}

        return fit

    def minimax(self, z: Array) -> Fit:
        """min_W max_j (Z_j W − φ_j)² + λ‖W‖² in each output, by Lawson's weights: least squares in which a point weighs
        more, step by step, the worse it is fitted.  The best step is kept.

        The largest error of all outputs is what counts, so a step is always taken for the output that is worst so far.
        On many points all outputs have weights in common: then a step is one factorisation for all of them.
        Lawson, "Contributions to the theory of linear least maximum approximation", 1961; Rice & Usow, 1968.
        """
        z = self._with_constant(z).astype(np.float64)
        n, d = z.shape
        gram = z @ z.T if n < d else None
        ridge = max(self.ridge * float(np.square(z).sum()) / n, 1e-12)
        cost = n**3 / 3 if n < d else n * d**2 + d**3 / 3

        def weighted(p: Array, phi: Array) -> Array:
            """The minimum of Σ_j p_j ‖Z_j W − φ_j‖² + λ‖W‖², with Σ p_j = 1."""
            root = np.sqrt(p)[:, None]
            heavy = z * root
            matrix = heavy.T @ heavy if gram is None else gram * root * root.T
            matrix[np.diag_indices_from(matrix)] += ridge
            factor = cho_factor(matrix, lower=True, overwrite_a=True, check_finite=False)
            if gram is None:
                w: Array = cho_solve(factor, heavy.T @ (root * phi), check_finite=False)
            else:
                w = heavy.T @ cho_solve(factor, root * phi, check_finite=False)
            return w

        def fit(phi: Array, rng: np.random.Generator) -> Parameters:
            c = phi.shape[1]
            alone = cost * c * LAWSON_STEPS <= AFFORDABLE
            groups = [[j] for j in range(c)] if alone else [list(range(c))]
            best, errors, taken = np.zeros((d, c)), np.full(len(groups), np.inf), np.zeros(len(groups), int)
            weights = np.full((len(groups), n), 1.0 / n)
            while taken[worst := int(np.argmax(errors))] < (LAWSON_STEPS if alone else COMMON_STEPS):
                outputs = groups[worst]
                w = weighted(weights[worst], phi[:, outputs])
                error = np.abs(z @ w - phi[:, outputs]).max(axis=1)
                if error.max() < errors[worst]:
                    best[:, outputs], errors[worst] = w, error.max()
                taken[worst] += 1
                if not error.max() > 0.0:  # nothing is left to do here, or, being the worst, anywhere
                    if errors.max() == 0.0:
                        break
                    continue
                # what fits badly weighs more; nothing is left out for good, or it could not come back
                p = np.maximum(weights[worst] * error, 1e-12 / n * error.max())
                weights[worst] = p / p.sum()
            best[-1] *= self.intercept
            return {"weight": best.astype(np.float32)}

        return fit

    @property
    def metric(self) -> FeatureMap:
        return self.features.metric

    def sobolev(self, points: Array, samples: Array) -> JetFit:
        """The fit of values and derivatives, both of which are linear in W, in the norm `sobolev_norm`.

        "l2": min_W mean ‖h(s_j) − φ(s_j)‖² + ρ · mean ‖∇h − ∇φ‖² + λ‖W‖²; "sup": the same with the largest ‖h − φ‖² in
        place of the mean (linear_minimax.py).  Of some λ, that one is taken whose h has the least sup error, among
        those that contract slopes if there are any.  An h that is steeper than allowed is flattened, and its constant
        chosen anew.
        """
        design = self._design(points, samples).astype(np.float64)
        n, weight = len(points), SOBOLEV / max(len(samples), 1)
        middle: Callable[[Array], Array]
        if self.sobolev_norm == "sup":
            solutions, middle = sup_solutions(design, n, weight, RIDGES), _midrange
        else:
            solutions, middle = _least_squares_solutions(design, n, weight), _mean
        pairs = Pairs(points, np.random.default_rng(0))

        def fit(jet: Array, bound: float, rng: np.random.Generator) -> Parameters:
            phi, best, least = jet[:n], np.zeros((design.shape[1], jet.shape[1])), (True, np.inf)
            slope = pairs.slope(phi)
            for w in solutions(jet):
                steepness = self.features.lipschitz(w[:-1])
                if steepness > bound:
                    w[:-1] *= bound / steepness
                    w[-1] += middle(phi - design[:n] @ w)
                error = design[:n] @ w - phi
                left = pairs.slope(error) >= slope, float(np.abs(error).max())
                if left < least:
                    best, least = w, left
            return {"weight": best.astype(np.float32)}

        return JetFit(fit, lambda parameters: design @ parameters["weight"].astype(np.float64))

    def lipschitz(self, parameters: Parameters) -> float:
        return self.features.lipschitz(parameters["weight"][:-1])

    def _design(self, points: Array, samples: Array) -> Array:
        """What W is multiplied by to give a jet: features and a constant at points, their derivatives at samples."""
        (z, _), (_, dz) = self.features.jacobian(points), self.features.jacobian(samples)
        n, rows = len(z), dz.shape[0] * dz.shape[1]
        design = np.zeros((n + rows, self.features.dimension + 1))
        design[:n, :-1], design[:n, -1], design[n:, :-1] = z, 1.0, dz.reshape(rows, -1)
        return design

    def _with_constant(self, z: Array) -> Array:
        return np.concatenate([z, np.full((len(z), 1), self.intercept, np.float32)], axis=1)


def _mean(values: Array) -> Array:
    mean: Array = values.mean(axis=0)
    return mean


def _midrange(values: Array) -> Array:
    middle: Array = 0.5 * (values.min(axis=0) + values.max(axis=0))
    return middle


def _least_squares_solutions(design: Array, n: int, weight: float) -> Callable[[Array], Iterator[Array]]:
    """From a jet, n rows of it values, to the W of each λ that solves least squares of values and derivatives.

    One eigendecomposition serves every λ.
    """
    weights = np.concatenate([np.full(n, 1.0 / n), np.full(len(design) - n, weight)])[:, None]
    eigenvalues, vectors = eigh(design.T @ (weights * design), overwrite_a=True, check_finite=False)
    total = max(float(eigenvalues.sum()), 1e-12)

    def solutions(jet: Array) -> Iterator[Array]:
        moment = vectors.T @ (design.T @ (weights * jet))
        for ridge in RIDGES:
            w: Array = vectors @ (moment / (np.maximum(eigenvalues, 0.0) + ridge * total)[:, None])
            yield w

    return solutions


@final
class _Walk(Walk):
    """Φ W + β to be moved; the vector is the array itself."""

    def __init__(self, family: Linear, z: Array) -> None:
        self._z = z
        shape, dtype = family.spec["weight"]
        self._weight, self._slope = np.zeros(shape, dtype), np.zeros(shape, dtype)
        self.vector, self.gradient = self._weight.reshape(-1), self._slope.reshape(-1)

    def differentiate(self, rows: Array, slope: Slope, chance: Chance = None) -> None:
        z = self._z[rows]
        d = (slope(z @ self._weight[:-1] + self._weight[-1], rows) / len(rows)).astype(np.float32)
        np.matmul(z.T, d, out=self._slope[:-1])
        self._slope[-1] = d.sum(axis=0)

    def pack(self, parameters: Parameters) -> Array:
        return np.asarray(parameters["weight"], np.float32).reshape(-1)

    def unpack(self, vector: Array) -> dict[str, Array]:
        return {"weight": vector.reshape(self._weight.shape).copy()}


SETTINGS = (
    Setting(
        "ridge",
        "number",
        "Ridge of the oracle, relative to the Gram's trace (features, linear).",
        LEARNER,
        unset="by evidence for tables in a shared geometry, else by the points or 1e-3",
        least=0.0,
        users=("ffgb", "ffgb-c"),
    ),
    Setting(
        "sobolev_norm",
        "text",
        "Norm of a Lipschitz fit (ffgb-l): l2, least squares; sup, the largest error, as the paper prints it.",
        LEARNER,
        "l2",
        choices=("l2", "sup"),
        users=("ffgb-l",),
    ),
)
