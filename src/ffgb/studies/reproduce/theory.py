"""The paper's theorems, put to the test on finite sets, where f* and γ are exact (theory.py).

(a) error against T; (b) the best K against T; (c) the residual on and off; (d) the floors of FFGB.C and FFGB.L against
heterogeneity; (e) sampling of clients; (f) what a shared geometry does to (d).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ffgb.algorithms import Functional
from ffgb.algorithms.ffgb import FFGB
from ffgb.algorithms.ffgb_c import FFGBC, least_ball
from ffgb.algorithms.ffgb_l import FFGBL
from ffgb.core.functions import OnPoints
from ffgb.core.grams import share_geometry
from ffgb.core.losses import CrossEntropy, Square
from ffgb.core.schedules import Constant, Theorem
from ffgb.core.types import Array
from ffgb.data.heterogeneity import total_variation, wasserstein
from ffgb.federation.participants import sample
from ffgb.learners.finite import Finite, Indicators
from ffgb.learners.linear import Linear
from ffgb.runs.training import federate
from ffgb.studies import plots
from ffgb.studies.reproduce.experiment import Experiment, Recall
from ffgb.studies.theory import (
    ExactGamma,
    minimiser,
    sampling,
    simulate,
    square_error,
    theorem1,
    theorem2,
    theorem3,
)

CLASSES = 3


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The exponent of y ∝ x^p, by least squares on logarithms.

    >>> round(slope([1, 10, 100], [5, 0.5, 0.05]), 6)
    -1.0
    """
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


class Semi:
    """The semi-heterogeneous setting: N clients hold the same n points, each with random labels of its own."""

    def __init__(self, seed: int, N: int = 10, n: int = 20, mu: float = 0.1, gamma: float = 0.3) -> None:
        self.y = np.random.default_rng(seed).integers(0, CLASSES, (N, n))
        self.N, self.n, self.mu, self.gamma, self.loss = N, n, mu, gamma, CrossEntropy(CLASSES)
        rows = np.tile(np.arange(n), N)
        self.f_star = minimiser(self.loss, mu, n, rows, self.y.ravel(), np.ones(N * n))

    def errors(self, K: int, T: int, *, residual: bool = True, m: int | None = None, seed: int = 0) -> list[float]:
        """‖f^t − f*‖² for t = 1 … T."""
        algorithm = FFGB(Theorem(self.mu), K, self.mu, residual=residual)
        oracle, f, errors = ExactGamma(self.gamma), np.zeros((self.n, CLASSES)), []
        for t in range(T):
            members = None if m is None else np.array(sample(seed, t, self.N, m))
            f = simulate(algorithm, oracle, self.y, self.loss, t, f, members)
            errors.append(square_error(f, self.f_star))
        return errors

    def promised(self, T: int, K: int, m: int | None = None) -> float:
        start = square_error(np.zeros_like(self.f_star), self.f_star)
        terms = theorem1(*(T, K), gamma=self.gamma, mu=self.mu, G=self.loss.bound, start=start, N=self.N, m=m or self.N)
        return math.fsum(terms.values())


def rates(T: int, Ks: Sequence[int], Ts: Sequence[int], seeds: int) -> dict[str, Any]:
    """(a) ‖f^T − f*‖² against T, for fixed K and for K = √T."""
    problems = [Semi(seed) for seed in range(seeds)]
    fixed = {str(K): np.mean([p.errors(K, T) for p in problems], axis=0).tolist() for K in Ks}
    rooted = [float(np.mean([p.errors(root(t), t)[-1] for p in problems])) for t in Ts]
    kept = sorted({round(10 ** (j / 10)) for j in range(int(10 * math.log10(T)) + 1)})
    last = [t for t in kept if t >= T / 10]
    return {
        "T": kept,
        "fixed": {K: [errors[t - 1] for t in kept] for K, errors in fixed.items()},
        "slopes": {K: slope(last, [errors[t - 1] for t in last]) for K, errors in fixed.items()},
        "by K": slope(Ks, [errors[-1] for errors in fixed.values()]),
        "rooted": {"T": list(Ts), "error": rooted, "slope": slope(Ts, rooted)},
        "promised": [problems[0].promised(t, root(t)) for t in Ts],
    }


def best_k(T: int, Ks: Sequence[int], Ts: Sequence[int], seeds: int) -> dict[str, Any]:
    """(b) which K has the least error after T rounds, found and promised."""
    problems = [Semi(seed) for seed in range(seeds)]
    errors = {K: np.mean([p.errors(K, T) for p in problems], axis=0) for K in Ks}
    best = [min(Ks, key=lambda K: float(errors[K][t - 1])) for t in Ts]
    promised = [min(Ks, key=lambda K: problems[0].promised(t, K)) for t in Ts]
    loss = [
        float(errors[min(Ks, key=lambda K: abs(K - root(t)))][t - 1] / errors[b][t - 1])
        for t, b in zip(Ts, best, strict=True)
    ]
    return {
        "T": list(Ts),
        "best": best,
        "promised": promised,
        "exponent": slope(Ts, best),
        "root over best": loss,
        "largest K tried": max(Ks),
    }


def residual(T: int, gammas: Sequence[float], seeds: int) -> dict[str, Any]:
    """(c) the error after T rounds with and without the residual, K = √T."""
    found: dict[str, list[float]] = {"with": [], "without": []}
    for gamma in gammas:
        problems = [Semi(seed, gamma=gamma) for seed in range(seeds)]
        for name, on in (("with", True), ("without", False)):
            found[name].append(float(np.mean([p.errors(root(T), T, residual=on)[-1] for p in problems])))
    return {"gamma": list(gammas), **found, "T": T}


def sampled(T: int, K: int, ms: Sequence[int], repeats: int) -> dict[str, Any]:
    """(e) what sampling m of N clients adds to the error, mean over samples of one problem."""
    p = Semi(0)
    everyone = p.errors(K, T)[-1]
    means, spreads = [], []
    start = square_error(np.zeros_like(p.f_star), p.f_star)
    known: dict[str, Any] = {"gamma": p.gamma, "mu": p.mu, "G": p.loss.bound, "start": start, "N": p.N}
    for m in ms:
        errors = [p.errors(K, T, m=m, seed=seed)[-1] for seed in range(repeats)]
        means.append(float(np.mean(errors)))
        spreads.append(float(np.std(errors) / math.sqrt(len(errors))))
    return {
        "m": list(ms),
        "N": p.N,
        "error": means,
        "standard error": spreads,
        "everyone": everyone,
        "factor": [sampling(p.N, m) for m in ms],
        "promised": [theorem1(T, K, **known, m=m)["sampling"] for m in ms],
        "exponent": slope([sampling(p.N, m) for m in ms], [e - everyone for e in means]),
    }


class Apart:
    """N clients with `common` places that all hold and others that each holds alone, of `each` places; labels at
    random."""

    def __init__(self, seed: int, common: int, N: int = 4, each: int = 20, mu: float = 0.1, gamma: float = 0.5) -> None:
        rng = np.random.default_rng(seed)
        self.N, self.mu, self.gamma, self.loss, self.common = N, mu, gamma, CrossEntropy(CLASSES), common
        own = each - common
        self.n = common + N * own
        self.places = rng.uniform(0.0, 1.0, (self.n, 2))
        self.rows = [np.r_[np.arange(common), common + i * own + np.arange(own)] for i in range(N)]
        self.y = [rng.integers(0, CLASSES, each) for _ in range(N)]
        self.alpha = np.bincount(np.concatenate(self.rows), minlength=self.n) / (each * N)
        everything = np.concatenate(self.rows), np.concatenate(self.y)
        self.f_star = minimiser(self.loss, mu, self.n, *everything, np.ones(N * each))
        support = np.arange(self.n)[:, None]
        self.omega = float(np.mean([total_variation(support, rows[:, None], p=self.alpha) for rows in self.rows]))

    @property
    def clients(self) -> list[tuple[Array, Array]]:
        return [(rows[:, None].astype(np.float32), y) for rows, y in zip(self.rows, self.y, strict=True)]

    def floor(self, T: int, *, near: bool) -> float:
        """FFGB.C's error after T rounds, K = √T, with h = 0 elsewhere or as at the nearest of the client's places."""
        family = Finite(self.n, CLASSES, self.gamma, self.places if near else None)
        algorithm = FFGBC(Theorem(self.mu, 4.0), root(T), self.mu, self.gamma)
        state, _ = federate(self.clients, family, self.loss, algorithm, T)
        return self.error(state.f)

    def shared(self, T: int) -> float:
        """FFGB's error in a shared geometry, one local step."""
        features = Indicators(self.n)
        learner = lambda ask: (Linear(features, CLASSES), share_geometry(ask, features, "exact", 1e-6))  # noqa: E731
        state, _ = federate(self.clients, learner, self.loss, FFGB(Theorem(self.mu), 1, self.mu), T)
        return self.error(state.f)

    def error(self, f: Any) -> float:
        return square_error(f(np.arange(self.n, dtype=np.float32)[:, None]), self.f_star, self.alpha)

    @property
    def promised(self) -> float:
        B = least_ball(self.mu, self.loss.entry_bound, self.gamma)
        terms = theorem2(
            10**9, 10**4, gamma=self.gamma, mu=self.mu, G=self.loss.entry_bound, start=1.0, B=B, omega=self.omega
        )
        return terms["floor"]


def floor_c(T: int, commons: Sequence[int], seeds: int) -> dict[str, Any]:
    """(d) and (f): FFGB.C's floor against ω_TV, and the same problems in a shared geometry."""
    out: dict[str, list[float]] = {"omega": [], "zero": [], "nearest": [], "shared": [], "promised": []}
    for common in commons:
        problems = [Apart(seed, common) for seed in range(seeds)]
        out["omega"].append(problems[0].omega)
        out["zero"].append(float(np.mean([p.floor(T, near=False) for p in problems])))
        out["nearest"].append(float(np.mean([p.floor(T, near=True) for p in problems])))
        out["shared"].append(float(np.mean([p.shared(T) for p in problems])))
        out["promised"].append(problems[0].promised)
    return {**out, "T": T, "exponent": _floor_exponent(out["omega"], out["zero"])}


class Shifted:
    """N clients whose places are one cloud in the plane, each moved on by δ; labels of one 1-Lipschitz function."""

    def __init__(self, seed: int, delta: float, N: int = 4, each: int = 20, gamma: float = 0.5) -> None:
        rng = np.random.default_rng(seed)
        self.N, self.gamma, self.L = N, gamma, 1.0
        cloud, centres = rng.uniform(-1.0, 1.0, (each, 2)), rng.uniform(-2.0, 2.0, (6, 2))
        self.places = [cloud + np.array([i * delta, 0.0]) for i in range(N)]

        # a minimum and maximum of cones of slope ±1 is 1-Lipschitz
        def label(s: Array) -> Array:
            cones = np.linalg.norm(s[:, None] - centres, axis=2)
            values: Array = (cones[:, :3].min(axis=1) - cones[:, 3:].min(axis=1))[:, None] / 2.0
            return values

        self.y = [label(s) for s in self.places]
        everything = np.concatenate(self.places)
        self.omega = float(np.mean([wasserstein(everything, s) for s in self.places]))
        squares = [wasserstein(a, b, order=2) ** 2 for a in self.places for b in self.places]
        D = max(
            float(np.linalg.norm(a[:, None] - b, axis=2).min(axis=1).max()) for a in self.places for b in self.places
        )
        B = float(max(np.abs(y).max() for y in self.y))
        terms = theorem3(
            *(10**9, 10**4), gamma=gamma, L=1.0, B=B, D=D, W2=float(np.mean(squares)), omega=self.omega, start=1.0
        )
        self.promised = terms["floor"]

    def floor(self, T: int, extension: str) -> float:
        """FFGB.L's error after T rounds, K = √T, at all clients' places; f* there is the labels."""
        algorithm = FFGBL(self.L, root(T), T, extension=extension)
        return square_error(self._mean(algorithm, extension), np.concatenate(self.y))

    def _mean(self, algorithm: Functional, extension: str) -> Array:
        total, n = np.zeros((sum(map(len, self.y)), 1)), len(self.y[0])
        for i in range(self.N):
            order = np.r_[i, [j for j in range(self.N) if j != i]]  # the client's own places first
            places = np.concatenate([self.places[j] for j in order])
            oracle = ExactGamma(self.gamma, places, self.L, extension)
            at = OnPoints(1.0, ExactGamma.nothing, np.zeros((len(places), 1)))
            g, _ = algorithm.client(0, at, self.y[i], Square(), oracle, np.random.default_rng(0))
            for block, j in enumerate(order):
                total[j * n : (j + 1) * n] += g.values[block * n : (block + 1) * n] / self.N
        return total

    def shared(self, T: int) -> float:
        """FFGB's error in a shared geometry: all functions on the finite set, fitted in L² of all places."""
        places = np.concatenate(self.places)
        _, index = np.unique(places, axis=0, return_inverse=True)
        n, each = int(index.max()) + 1, len(self.y[0])
        rows = index.reshape(self.N, each)
        features, loss = Indicators(n), Square()
        clients = [(r[:, None].astype(np.float32), y) for r, y in zip(rows, self.y, strict=True)]
        learner = lambda ask: (Linear(features, 1), share_geometry(ask, features, "exact", 1e-6))  # noqa: E731
        state, _ = federate(clients, learner, loss, FFGB(Constant(1.0), 1), T)
        return square_error(state.f(index[:, None].astype(np.float32)), np.concatenate(self.y))


def floor_l(T: int, deltas: Sequence[float], seeds: int) -> dict[str, Any]:
    """(d) and (f): FFGB.L's floor against ω_W1, and the same problems in a shared geometry."""
    out: dict[str, list[float]] = {"omega": [], "mcshane": [], "middle": [], "shared": [], "promised": []}
    for delta in deltas:
        problems = [Shifted(seed, delta) for seed in range(seeds)]
        out["omega"].append(float(np.mean([p.omega for p in problems])))
        for name in ("mcshane", "middle"):
            out[name].append(float(np.mean([p.floor(T, name) for p in problems])))
        out["shared"].append(float(np.mean([p.shared(3) for p in problems])))
        out["promised"].append(float(np.mean([p.promised for p in problems])))
    return {**out, "T": T, "delta": list(deltas), "exponent": _floor_exponent(out["omega"], out["mcshane"])}


def _floor_exponent(omega: Sequence[float], floor: Sequence[float]) -> float:
    """How the floor above that of ω = 0 grows with ω."""
    pairs = [(o, f - floor[0]) for o, f in zip(omega, floor, strict=True) if o > 1e-9 and f > floor[0]]
    return slope([o for o, _ in pairs], [f for _, f in pairs])


def root(T: int) -> int:
    """K = √T."""
    return max(1, round(math.sqrt(T)))


PARTS: Mapping[str, Mapping[str, tuple[Any, dict[str, Any]]]] = {
    "full": {
        "rates": (rates, {"T": 1000, "Ks": [1, 2, 4, 8, 16, 32], "Ts": [10, 20, 50, 100, 200, 500, 1000], "seeds": 3}),
        "best_k": (best_k, {"T": 300, "Ks": [2**j for j in range(11)], "Ts": [3, 10, 30, 100, 300], "seeds": 1}),
        "residual": (residual, {"T": 1000, "gammas": [j / 10 for j in range(1, 11)], "seeds": 3}),
        "floor_c": (floor_c, {"T": 200, "commons": [20, 19, 18, 16, 12, 8, 4, 0], "seeds": 2}),
        "floor_l": (floor_l, {"T": 400, "deltas": [0.0, 0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.0], "seeds": 3}),
        "sampled": (sampled, {"T": 300, "K": 8, "ms": [1, 2, 3, 5, 7, 9], "repeats": 20}),
    },
    "small": {
        "rates": (rates, {"T": 100, "Ks": [1, 4, 16], "Ts": [10, 30, 100], "seeds": 1}),
        "best_k": (best_k, {"T": 30, "Ks": [1, 4, 16, 64], "Ts": [3, 10, 30], "seeds": 1}),
        "residual": (residual, {"T": 100, "gammas": [0.1, 0.3, 1.0], "seeds": 1}),
        "floor_c": (floor_c, {"T": 30, "commons": [20, 16, 8, 0], "seeds": 1}),
        "floor_l": (floor_l, {"T": 100, "deltas": [0.0, 0.1, 1.0], "seeds": 1}),
        "sampled": (sampled, {"T": 50, "K": 8, "ms": [1, 3, 7], "repeats": 5}),
    },
}


Verdict: TypeAlias = tuple[str, str, str]
"""What was looked at, what the theorem promises, and what was found: whether it held is for the numbers to say."""


def verdicts(results: Mapping[str, Any]) -> Iterator[Verdict]:
    """All of them, in the order of the pictures."""
    yield _on_rates(results["rates"])
    yield _on_best_k(results["best_k"])
    yield _on_residual(results["residual"])
    yield _on_floor_c(results["floor_c"])
    yield _on_floor_l(results["floor_l"])
    yield _on_sampled(results["sampled"])
    yield _on_shared(results["floor_c"], results["floor_l"])


def _on_rates(a: Mapping[str, Any]) -> Verdict:
    rooted, Ts = a["rooted"], a["rooted"]["T"]
    least, most = min(a["slopes"].values()), max(a["slopes"].values())
    below = all(error <= bound for error, bound in zip(rooted["error"], a["promised"], strict=True))
    return (
        "(a) error against T, Theorem 1",
        "slope −0.5 with K = √T; with K fixed a term (1−γ)G²/(Kμ²γ²) that T does not shrink",
        f"{_held(below and rooted['slope'] <= -0.5)}: slope {rooted['slope']:.2f} with K = √T for T = {Ts[0]} … "
        f"{Ts[-1]}, "
        f"error {rooted['error'][0]:.2g} → {rooted['error'][-1]:.2g} (the bound's sum: {a['promised'][0]:.2g} → "
        f"{a['promised'][-1]:.2g}). With K fixed the slopes of the last decade are {least:.2f} … {most:.2f}, and the "
        "last "
        f"error goes as K^{a['by K']:.2f}, where the bound has K^-1.",
    )


def _on_best_k(b: Mapping[str, Any]) -> Verdict:
    grows = all(x <= y for x, y in zip(b["best"], b["best"][1:], strict=False))
    worst = max(b["root over best"])
    at_edge = [T for T, K in zip(b["T"], b["best"], strict=True) if b["largest K tried"] == K]
    return (
        "(b) the best K against T",
        "K = Ω(√T); the bound's sum is least at K = " + _list(b["promised"]) + " for T = " + _list(b["T"]),
        f"{'Held only as a lower bound' if grows and worst > 2 else _held(grows)}: the best K of those tried (up to "
        f"{b['largest K tried']}) is {_list(b['best'])}, and K = √T has up to {worst:,.3g} times its error."
        + (f" The drift term, which grows with K, is not seen for T = {_list(at_edge)}." if at_edge else ""),
    )


def _on_residual(c: Mapping[str, Any]) -> Verdict:
    ratios = [without / with_ for without, with_ in zip(c["without"], c["with"], strict=True)]
    at = min(range(len(ratios)), key=lambda j: abs(c["gamma"][j] - 0.3))
    return (
        "(c) the residual",
        "without it no convergence for γ < 1",
        f"{_held(ratios[at] > 10)}: at γ = {c['gamma'][at]:g}, T = {c['T']} the error is {c['without'][at]:.3g} "
        "without and "
        f"{c['with'][at]:.3g} with it ({ratios[at]:,.0f} times); {ratios[0]:,.0f} times at γ = {c['gamma'][0]:g}, "
        f"{ratios[-1]:,.3g} times at γ = {c['gamma'][-1]:g}.",
    )


def _on_floor_c(d: Mapping[str, Any]) -> Verdict:
    return (
        "(d) FFGB.C's floor against ω_TV, Theorem 2",
        "at most GBω/(μγ), linear in ω",
        f"{_held(_below(d, 'zero') and _below(d, 'nearest'))}: the floor grows as ω^{d['exponent']:.2f} where weak "
        "learners "
        f"are 0 off a client's points, and is {d['promised'][-1] / d['zero'][-1]:,.0f} times below the bound at ω = "
        f"{d['omega'][-1]:.2g}; {d['promised'][-1] / d['nearest'][-1]:,.0f} times below if they are those of its "
        "nearest "
        "point.",
    )


def _on_floor_l(e: Mapping[str, Any]) -> Verdict:
    return (
        "(d) FFGB.L's floor against ω_W1, Theorem 3",
        "at most (DL²+BL)ω/γ², linear in ω",
        f"{_held(_below(e, 'mcshane') and _below(e, 'middle'))}: the floor grows as ω^{e['exponent']:.2f}, and is "
        f"{e['promised'][-1] / e['mcshane'][-1]:,.0f} times below the bound at ω = {e['omega'][-1]:.2g}. The middle "
        f"extension has {e['mcshane'][-1] / e['middle'][-1]:,.1f} times less error than McShane's there.",
    )


def _on_sampled(s: Mapping[str, Any]) -> Verdict:
    added = [error - s["everyone"] for error in s["error"]]
    within = all(found <= bound for found, bound in zip(added, s["promised"], strict=True))
    return (
        "(e) m of N clients",
        "adds at most (N−m)/(N−1) · 1/m · G² log T/(Tμ²γ²)",
        f"{_held(within)}: for m = {_list(s['m'])} of {s['N']} sampling adds {added[0]:.2g} … {added[-1]:.2g} "
        "(promised: "
        f"{s['promised'][0]:.2g} … {s['promised'][-1]:.2g}), which goes as (that factor)^{s['exponent']:.2f}.",
    )


def _on_shared(d: Mapping[str, Any], e: Mapping[str, Any]) -> Verdict:
    return (
        "(f) the same problems in a shared geometry",
        "not in the paper",
        f"at the largest ω the error is {d['shared'][-1]:.1g} against FFGB.C's {d['zero'][-1]:.2g}, and "
        f"{e['shared'][-1]:.1g} "
        f"against FFGB.L's {e['mcshane'][-1]:.2g}: what is left is the ridge's and the float's (γ is near 1 here, "
        "0.5 there).",
    )


def table(results: Mapping[str, Any]) -> str:
    """The verdicts as a table in Markdown."""
    lines = ["| what | promised | found |", "|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in verdicts(results)]
    return "\n".join(lines) + "\n"


def needs(scale: str) -> None:
    """Raise an FFGBError now, rather than after minutes, if something is missing."""
    plots.check(Path("theory.png"))
    wasserstein(np.zeros((1, 2)), np.ones((1, 2)))


def draw(results: Mapping[str, Any], path: Path) -> None:
    plots.theory(path, results)


def results(scale: str, recall: Recall) -> dict[str, Any]:
    return {part: recall(part, compute, **settings) for part, (compute, settings) in PARTS[scale].items()}


EXPERIMENT = Experiment(tuple(PARTS), needs, results, table, draw)


def _below(part: Mapping[str, Any], name: str) -> bool:
    """Is what ω adds to the error within the bound's floor, for every ω?"""
    return all(f - part[name][0] <= bound for f, bound in zip(part[name], part["promised"], strict=True))


def _held(yes: bool) -> str:
    return "Held" if yes else "Did not hold"


def _list(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
