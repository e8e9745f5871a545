"""Attacks on private trainings that should fail: which ε they prove, beside the ε that is claimed.

The attacker knows all rows but one, the *canary*, sees every total, and knows the noise's distribution: nobody can know
more.  `membership`: many trainings, half of them with the canary; the likelihood ratio of all totals says whether it
was there.  From its errors (Clopper and Pearson, 95 %) follows a least μ, and so a least ε.  `one run`: one training
with many canaries, each there by a coin; the most and the least likely ones are guessed (Steinke, Nasr and Jagielski,
2023).

The canary of a training for numbers has a target that is far beyond the bounds.  `without clips` is the same training
by clients that count it as it is, and nothing else is changed: the audit must notice that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
from scipy.stats import beta, binom, norm

from ffgb.algorithms.additive_private import Fitting, Kind, Plan, Public, private_family
from ffgb.core.points import Points
from ffgb.core.private_question import PrivateQuestion
from ffgb.core.private_sums import ColumnCounts, ResidualSums
from ffgb.core.questions import Here
from ffgb.core.seeds import stream
from ffgb.core.types import Array
from ffgb.privacy.accountant import epsilon_of, mu_of
from ffgb.privacy.identity import Simulated
from ffgb.privacy.integers import to_integers
from ffgb.privacy.release import with_noise
from ffgb.studies import plots
from ffgb.studies.reproduce.experiment import Experiment, Recall, Results

RUNS = {"full": 400, "small": 20}
CANARIES = {"full": 200, "small": 40}
DELTA = 1e-5
CLIENTS = 3
SURE = 0.95
FAR = 30.0
"""The target of a canary, in units of the bounds."""
CASES: Mapping[str, tuple[Kind, int, float, bool]] = {
    "two classes, few rows, ε = 1": ("binary", 300, 1.0, True),
    "two classes, few rows, ε = 4": ("binary", 300, 4.0, True),
    "two classes, all questions, ε = 4": ("binary", 1500, 4.0, True),
    "numbers, few rows, ε = 4": ("numbers", 60, 4.0, True),
    "numbers, few rows, ε = 4, without clips": ("numbers", 60, 4.0, False),
}
"""What is trained, how many rows, the ε that is claimed, and whether contributions are clipped."""
PUBLIC = Public(("a", "b"), ((0,), (1,)), (-1, -1), (-3.0, -3.0), (3.0, 3.0))


@final
@dataclass(frozen=True, eq=False)
class Table:
    """Rows, and canaries, whose targets are as unlikely as they can be."""

    x: Array
    y: Array

    @staticmethod
    def of(kind: Kind, rows: int, seed: int) -> Table:
        rng = stream(seed, "attack")
        x = np.clip(rng.standard_normal((rows, 2)), -3.0, 3.0).astype(np.float32)
        f = 2.0 * x[:, 0] + x[:, 1]
        if kind == "binary":
            return Table(x, (rng.random(rows) < 1.0 / (1.0 + np.exp(-f))).astype(np.int64))
        return Table(x, np.clip(0.1 * f + 0.05 * rng.standard_normal(rows), -1.0, 1.0))

    def surprising(self, kind: Kind) -> Array:
        """The targets that a model expects least."""
        unlikely = self.x @ np.array([2.0, 1.0]) < 0.0
        return unlikely.astype(np.int64) if kind == "binary" else np.where(unlikely, FAR, -FAR)


def trained(kind: Kind, base: Table, canaries: Table, there: Array, epsilon: float, run: int, clips: bool) -> Array:
    """One private training by real clients; of each canary the log-likelihood ratio that it was there."""
    plan = Plan(PUBLIC, kind, 1, 0.0, 1.0, len(base.y) + int(there.sum()), CLIENTS, CLIENTS, mu_of(epsilon, DELTA), run)
    whole = Table(np.concatenate([base.x, canaries.x[there]]), np.concatenate([base.y, canaries.y[there]]))
    clients = [Points(i, whole.x[i::CLIENTS], whole.y[i::CLIENTS]) for i in range(CLIENTS)]
    ratios, known = np.zeros(len(there)), dict[str, Any]()

    def ask(question: Any) -> Any:
        if isinstance(question, ColumnCounts) and "counts" in known:
            return known["counts"]
        total: dict[str, Array] = {}
        for i, points in enumerate(clients):
            own = to_integers(part_of(question, points, clips), question.sums)
            noisy = with_noise(question, own, points, Simulated(f"audit {run} {i}"))
            total = {name: total.get(name, 0) + array for name, array in noisy.items()}
        ratios[:] += _ratios(question, total, base, canaries, clips)
        found = question.total({name: array.astype(np.float64) for name, array in total.items()})
        if isinstance(question, ColumnCounts):
            known["counts"] = found
        return found

    Fitting(plan, ask, private_family(plan, ask).features).run()
    return ratios


def part_of(question: PrivateQuestion, points: Points, clips: bool) -> Mapping[str, Array]:
    """What a client adds; without clips, targets beyond their bounds and their residuals count as they are."""
    if clips or not isinstance(question, ResidualSums):
        return question.part(Here(points, 1.0))
    z = points.features(question.features)
    residual = question.model_at(z) - (points.y[:, None] - question.centre) / question.scale
    whole = np.concatenate([residual, np.full(residual.shape, question.factor * question.reach)], axis=1)
    found = question.by_cell(z, np.rint(whole / question.unit))
    if question.squares:
        found["squares"][0] = np.rint(question.squares * np.square(residual) / question.unit).sum()
    return found


def _ratios(question: PrivateQuestion, total: Mapping[str, Array], base: Table, canaries: Table, clips: bool) -> Array:
    """Of each canary: how much more likely the totals are with it than with the known rows alone."""
    variance = CLIENTS * float(question.deviation) ** 2
    rest = part_of(question, Points(0, base.x, base.y), clips)
    left = {name: array - rest[name] for name, array in total.items()}
    found = np.zeros(len(canaries.y))
    for k in range(len(found)):
        own = part_of(question, Points(0, canaries.x[k : k + 1], canaries.y[k : k + 1]), clips)
        found[k] = sum(float(np.sum(u * (left[name] - 0.5 * u))) for name, u in own.items()) / variance
    return found


# What follows from guesses


def least_epsilon(inside: Array, outside: Array) -> float:
    """The ε that errors of a membership attack prove, given its ratios with the canary and without."""

    def most(errors: int, n: int) -> float:
        return 1.0 if errors >= n else float(beta.ppf(1.0 - (1.0 - SURE) / 2.0, errors + 1, n - errors))

    missed, false = int((inside <= 0.0).sum()), int((outside > 0.0).sum())
    mu = float(norm.ppf(1.0 - most(false, len(outside))) - norm.ppf(most(missed, len(inside))))
    return epsilon_of(mu, DELTA) if mu > 0.0 else 0.0


def least_of_guesses(canaries: int, guesses: int, right: int) -> float:
    """The ε that right guesses about many canaries of one run prove (Steinke et al., 2023, theorem 5.2)."""

    def possible(epsilon: float) -> float:
        q = 1.0 / (1.0 + math.exp(-epsilon))
        more = np.arange(1, right + 1)
        worst = np.max(np.cumsum(binom.pmf(right - more, guesses, q)) / more, initial=0.0)
        return float(binom.sf(right - 1, guesses, q) + worst * DELTA * 2 * canaries)

    low, high = 0.0, 30.0
    if possible(low) > 1.0 - SURE:
        return 0.0
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if possible(middle) <= 1.0 - SURE else (low, middle)
    return low


# The experiment


def membership(*, kind: Kind, rows: int, epsilon: float, clips: bool, runs: int) -> dict[str, Any]:
    """The ε that a membership attack proves."""
    base, canary = Table.of(kind, rows, 0), Table(np.array([[2.5, 2.5]], np.float32), np.zeros(1))
    canary = replace(canary, y=canary.surprising(kind))
    ratios = np.array(
        [
            [trained(kind, base, canary, np.array([there]), epsilon, 2 * run + there, clips)[0] for run in range(runs)]
            for there in (False, True)
        ]
    )
    return {"proven": least_epsilon(ratios[1], ratios[0]), "right": float(((ratios > 0) == [[False], [True]]).mean())}


def one_run(*, kind: Kind, rows: int, epsilon: float, clips: bool, canaries: int) -> dict[str, Any]:
    """The ε that guesses about many canaries of one training prove."""
    base, other = Table.of(kind, rows, 0), Table.of(kind, canaries, 1)
    other = replace(other, y=other.surprising(kind))
    there = stream(2, "attack").random(canaries) < 0.5
    order = np.argsort(trained(kind, base, other, there, epsilon, 0, clips))
    third = canaries // 3
    right = int((~there[order[:third]]).sum() + there[order[-third:]].sum())
    return {"proven": least_of_guesses(canaries, 2 * third, right), "right": right / (2 * third)}


def results(scale: str, recall: Recall) -> dict[str, Any]:
    rows = []
    for k, (case, (kind, n, epsilon, clips)) in enumerate(CASES.items()):
        known = {"kind": kind, "rows": n, "epsilon": epsilon, "clips": clips}
        runs = RUNS[scale] if n < 1000 else RUNS[scale] // 5
        many = recall(f"privacy-membership-{k}", membership, **known, runs=runs)
        one = recall(f"privacy-one-run-{k}", one_run, **known, canaries=CANARIES[scale])
        rows.append({"case": case, "claimed": epsilon, "clips": clips, "membership": many, "one_run": one})
    return {"delta": DELTA, "runs": RUNS[scale], "canaries": CANARIES[scale], "rows": rows}


def table(results: Results) -> str:
    """A row a case: claimed and proven."""
    lines = [
        "| case | ε claimed | membership: right | ε proven | one run: right | ε proven |",
        "|---|---|---|---|---|---|",
    ]
    for row in results["rows"]:
        cells = [f"{row[a]['right']:.1%} | {row[a]['proven']:.2f}" for a in ("membership", "one_run")]
        lines.append(f"| {row['case']} | {row['claimed']:g} | {' | '.join(cells)} |")
    said = (
        f"δ = {results['delta']:g}; {results['runs']} trainings with the canary and as many without (a fifth of these "
        f"with all questions); {results['canaries']} canaries in one run; bounds hold with 95 % confidence."
    )
    return "\n".join([*lines, "", said]) + "\n"


def draw(results: Results, path: Path) -> None:
    groups = {
        row["case"]: {"claimed": row["claimed"], "proven": row["membership"]["proven"]} for row in results["rows"]
    }
    plots.bars(path, {"membership": groups}, "ε")


def needs(scale: str) -> None:
    """No data are needed."""


EXPERIMENT = Experiment(tuple(RUNS), needs, results, table, draw)
