"""Numbers of methods, written down by `python -m tests.core.written_numbers`: constants that few properties show."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ffgb.core import additive
from ffgb.core.contributions import _shapley
from ffgb.core.geometry import Blocks, Nystrom, Spectrum
from ffgb.core.gradients import best_length
from ffgb.core.grams import random_basis
from ffgb.core.lipschitz import Extension, Pairs, left_out_errors, steepness
from ffgb.core.losses import ALL_LOSSES, CrossEntropy, Logistic, Loss, Square
from ffgb.core.oracles import WO2, WOInf, WOLip
from ffgb.core.points import Points
from ffgb.core.prior import posterior
from ffgb.core.quantiles import quantile_of_targets, robust_scaling
from ffgb.core.questions import ask_locally
from ffgb.core.statistics import Moments
from ffgb.core.steepness import steepness_of
from ffgb.core.types import Array
from ffgb.errors import FFGBError
from ffgb.features.basic import Concatenate, Flatten
from ffgb.features.fourier import RandomFourier
from ffgb.learners.linear import Linear
from ffgb.learners.lipschitz import LipschitzMLP
from ffgb.learners.mlp import MLP
from ffgb.learners.trees import Tree

FILE = Path(__file__).with_name("written_numbers.json")
N = 60
SMOOTH = Concatenate((Flatten(3), RandomFourier(Flatten(3), 12, 1.0, 0)), (1.0, 1.0))


def points(seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((N, 3)) * [1.0, 0.3, 2.0] + [0.5, 0.0, -1.0]).astype(np.float32)
    return x, np.stack([np.sin(x[:, 0]) + x[:, 1], 0.5 * x[:, 2] ** 2 - 1.0], axis=1)


def additive_terms(*, dispersed: bool, steeper: float, size: float = 1.0) -> dict[str, Any]:
    """The posterior of three columns, of 40 bins and missing values, 12 categories, and two bins."""
    rng, n = np.random.default_rng(1), 500
    cells = [np.minimum(rng.integers(0, 50, n), 40), rng.integers(0, 12, n), rng.integers(0, 2, n)]
    hot = [np.eye(k)[z] for k, z in zip((41, 12, 2), cells, strict=True)]
    rows = [h.sum(axis=0) for h in hot]
    values = np.concatenate([np.arange(39.0) ** 2, [1e5]])
    columns = [
        additive.Column(rows[0], values),
        additive.Column(rows[1], None),
        additive.Column(rows[2], np.arange(2.0)),
    ]
    prior = additive.Prior.of(columns)
    x = np.concatenate([np.ones((n, 1)), *hot], axis=1)
    y = size * (np.sin(cells[0] / 5.0) + 0.3 * cells[1] + rng.standard_normal(n))
    sums = additive.Sums(-(x.T @ y)[None], [x.T @ x], np.array([float(y @ y)]), float(n))
    found = additive.posterior(prior, sums, np.zeros((1, x.shape[1])), dispersed=dispersed, steeper=steeper)
    told = {"terms": found.terms, "scale": found.scale, "dispersion": found.dispersion, "freedom": found.freedom}
    return {**told, "basis": np.abs(prior.basis).sum(axis=0), "group": prior.group, "shared": prior.shared}


def fitted_prior(loss: Loss, *, start: float, size: float = 1.0) -> dict[str, Any]:
    """One step of a prior that fits itself."""
    x, y = points()
    z = size * (x - x.mean(axis=0)).astype(np.float64)
    target = (y[:, 0] > 0.3).astype(int) + (y[:, 1] > 0.0) * (loss.outputs > 1) if loss.classification else y[:, :1]
    weight = start * np.arange(3.0 * loss.outputs).reshape(3, loss.outputs) / size
    phi = loss.gradient(z @ weight, target)
    spectrum = Spectrum.of(np.zeros(3), z.T @ z / N)
    b, mean, square = z.T @ phi / N, phi.mean(axis=0), float(np.square(phi).sum(axis=1).mean())
    found = posterior(spectrum, weight, b, mean, square, float(N), loss)
    told = {
        name: getattr(found, name) for name in ("change", "intercept", "level", "freedom", "curvature", "remaining")
    }
    return {**told, "pull": found.pull(weight)}


def geometries(size: float) -> dict[str, Any]:
    """Solutions in each geometry, of features of any size."""
    x, _ = points()
    z = size * x.astype(np.float64)
    mean, gram = z.mean(axis=0), np.cov(z.T, bias=True)
    b = size * np.arange(8.0).reshape(4, 2) + 1.0
    omega = random_basis(3, 2, 0)
    made = {
        "blocks": Blocks.of(mean, [gram], 0.01),
        "apart": Blocks.of(mean, [gram[:2, :2], gram[2:, 2:]], 0.01),
        "spectrum": Spectrum.of(mean, gram),
        "nystrom": Nystrom.of(mean, gram @ omega, omega, np.diag(gram).copy(), 0.01),
    }
    told: dict[str, Any] = {}
    for name, geometry in made.items():
        told |= {
            f"{name} solve": geometry.solve(b),
            f"{name} apply": geometry.apply(b),
            f"{name} scale": geometry.scale,
        }
        told[f"{name} freedom"] = -1.0 if geometry.freedom is None else geometry.freedom
    return told


def extensions() -> dict[str, Any]:
    x, y = points()
    s = np.linspace(-2.0, 2.0, 21).reshape(7, 3)
    middle, pairs = Extension(x, y, 0.7, "middle"), Pairs(x, np.random.default_rng(0), 40)
    steep = Extension(x, y, 1e3, "mcshane")
    counts, largest, conflicts = steepness(
        np.concatenate([x, x[:5]]), np.concatenate([y, y[:5] + 1.0]), (0.1, 1.0, 3.0)
    )
    found = steepness_of(ask_locally(Points(0, x, y)), Flatten(3), y.mean(axis=0), y.std(axis=0))
    return {
        "middle": middle(s),
        "its slopes": middle.gradient(s),
        "mcshane": steep(s),
        "at a point": steep.gradient(x[:2]),
        "pairs": [pairs.slope(y), len(pairs.a), pairs.slope(y[:, :1])],
        "steepness": [*counts, largest, conflicts],
        "left out": left_out_errors(x, y, (0.3, 1.0)),
        "asked": [*found.steeper, found.steepest, found.conflicts, found.best, found.largest],
    }


def quantiles() -> dict[str, Any]:
    rng = np.random.default_rng(2)
    y = np.concatenate([rng.gamma(2.0, 3.0, 200), [4e4, -1e3]])[:, None] * [1.0, 1e-4] + [0.0, 2.0]
    ask, mean, scale = ask_locally(Points(0, np.zeros((202, 1), np.float32), y)), y.mean(axis=0), y.std(axis=0)
    centre, spread = robust_scaling(ask, mean, scale)
    return {
        **{f"{level}": quantile_of_targets(ask, level, mean, scale) for level in (0.01, 0.5, 0.9)},
        "centre": centre,
        "spread": spread,
    }


def oracles() -> dict[str, Any]:
    """What linear functions and trees answer, and their γ."""
    x, y = points()
    told: dict[str, Any] = {}
    for name, family in {
        "linear": Linear(SMOOTH, 2, 1e-2),
        "few rows": Linear(RandomFourier(Flatten(3), 80, 1.0, 1), 2, 1e-3),
        "sup": Linear(SMOOTH, 2, sobolev_norm="sup"),
        "tree": Tree(Flatten(3), 2, depth=3),
    }.items():
        z = family.features(x)
        for oracle in [WO2(family, z), WOInf(family, z)]:
            answer = oracle(oracle.sees(y), np.random.default_rng(0))
            told[f"{name} {type(oracle).__name__}"] = [*answer.h.increment.evaluate(z)[:4].ravel(), answer.gamma]
        if isinstance(family, Linear) and name != "few rows":
            lip = WOLip(family, Points(0, x, y), 0.7, "middle", np.random.default_rng(0))
            answer = lip(lip.sees(y), np.random.default_rng(0))
            told[f"{name} WOLip"] = [*answer.h.values[:4].ravel(), answer.gamma, *answer.measured.values()]
    return told


def nets() -> dict[str, Any]:
    """Values of nets after some steps: of a batch that is a part of the rows, and of all of them."""
    x, y = points()
    told: dict[str, Any] = {}
    for batch in (16, 60):
        learners: dict[str, MLP | LipschitzMLP] = {
            "mlp": MLP(Flatten(3), 2, (8, 6), steps=25, batch=batch),
            "lipschitz": LipschitzMLP(Flatten(3), 2, (8, 6), steps=25, batch=batch),
        }
        for name, family in learners.items():
            for way, make in {"squares": family.least_squares, "minimax": family.minimax}.items():
                fitted = make(x)(y, np.random.default_rng(1))
                told[f"{name} {way} {batch}"] = family.member(fitted).evaluate(x)[:5]
        plain = LipschitzMLP(Flatten(3), 2, (8, 6), steps=25, batch=batch, slopes=0.0)
        jet, samples = np.concatenate([y, np.zeros((6, 2))]), x[:2].astype(np.float64)
        values = plain.sobolev(x.astype(np.float64), samples).fit(jet, 2.0, np.random.default_rng(1))
        told[f"lipschitz values alone {batch}"] = plain.member(values).evaluate(x)[:5]
        net = LipschitzMLP(Flatten(3), 2, (8, 6), steps=25, batch=batch)
        lip = WOLip(net, Points(0, x, y), 0.7, "middle", np.random.default_rng(0))
        answer = lip(lip.sees(y), np.random.default_rng(1))
        told[f"lipschitz sobolev {batch}"] = [*answer.h.values[:4].ravel(), *answer.measured.values()]
    return told


def losses() -> dict[str, Any]:
    """Each loss at some values, with its bounds, in its own units and in those of training."""
    rng = np.random.default_rng(3)
    told: dict[str, Any] = {}
    for kind in ALL_LOSSES:
        make: Any = kind
        loss: Loss = make(3) if kind.__name__ in ("CrossEntropy", "Soft") else make()
        f = rng.standard_normal((6, loss.outputs))
        y: Array = np.array([0, 1, 1, 0, 1, 1]) if loss.classification else np.array([0.5, 2.0, -1.0, 3.0, 0.7, 4.0])
        if kind.__name__ == "Soft":
            y = rng.dirichlet(np.ones(3), 6)
        elif kind.__name__ in ("Poisson", "Gamma"):
            y = np.abs(y)
        told[kind.__name__] = [*loss.value(f, y), *loss.gradient(f, y).ravel(), *loss.curvature(f, y).ravel()]
        bounds = [min(each, 1e300) for each in (loss.bound, loss.entry_bound, loss.smoothness)]
        flags = [loss.classification, loss.dispersed, loss.alone, loss.smooth, loss.robust, loss.temperature]
        told[f"{kind.__name__} says"] = [*bounds, *flags, max(loss.least, -1e300), loss.start_level or -1.0]
        scaled = loss.scaling(Moments(np.array([2.5]), np.array([0.25])))
        told[f"{kind.__name__} scales"] = [] if scaled is None else [*scaled[0], *scaled[1]]
        try:
            told[f"{kind.__name__} scores"] = sorted(loss.scores(f, y, weights=np.linspace(0.5, 2.0, 6)).values())
            told[f"{kind.__name__} predicts"] = loss.unscaled(f, *(scaled or (None, None)))
        except FFGBError:  # lessons are not scored
            pass
    return told


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "additive terms": lambda: additive_terms(dispersed=True, steeper=1.0),
    "additive terms of large numbers": lambda: additive_terms(dispersed=True, steeper=1.0, size=100.0),
    "additive terms of classes": lambda: additive_terms(dispersed=False, steeper=1.5, size=0.2),
    "prior of numbers": lambda: fitted_prior(Square(), start=0.0),
    "prior of small numbers": lambda: fitted_prior(Square(), start=0.3, size=1e-3),
    "prior of two classes": lambda: fitted_prior(Logistic(), start=0.0),
    "prior of two classes, later": lambda: fitted_prior(Logistic(), start=0.3),
    "prior of three classes": lambda: fitted_prior(CrossEntropy(3), start=0.0),
    "prior of three classes, later": lambda: fitted_prior(CrossEntropy(3), start=0.3),
    "geometries": lambda: geometries(1.0),
    "geometries of small features": lambda: geometries(1e-3),
    "extensions": extensions,
    "quantiles": quantiles,
    "oracles": oracles,
    "nets": nets,
    "losses": losses,
    "shapley": lambda: {
        "five": _shapley(np.array([[1.0, 0.0, 1.0, 1.0, 0.0]]), np.array([0.2, 0.5, 0.9, 0.3, 0.6])),
        "one": _shapley(np.array([[1.0], [0.0]]), np.array([0.25])),
    },
    "lengths": lambda: {"best": [best_length(np.linspace(-1.0, 3.0, 13)), best_length(np.linspace(-9.0, 0.1, 13))]},
}


def written(name: str) -> dict[str, list[float]]:
    """All numbers of a case, with seven digits."""
    flat = {key: np.asarray(value, np.float64).ravel().tolist() for key, value in CASES[name]().items()}
    return {key: [float(f"{number:.7g}") for number in numbers] for key, numbers in flat.items()}


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: written(name) for name in CASES}, separators=(",", ":")) + "\n")
