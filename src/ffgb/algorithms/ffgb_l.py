"""FFGB.L: federated functional least squares among Lipschitz functions, for clients whose features differ.

Shen, Hassani, Kale, Karbasi, "Federated Functional Gradient Boosting", Algorithm 4, read with its proof: the query is
u_i − Δ^{k−1} (the algorithm prints its negative), the result is g^{K+1} (it prints g^K), and μ = 1, the strong
convexity of the square loss.  Client i extends its labels to a Lipschitz function u_i on the whole space and
approximates that, so that its functions mean something at other clients' points too; the error that these add is
bounded by the Wasserstein-1 distance between the clients' distributions (Theorem 3).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, final

import numpy as np

from ffgb.algorithms import Algorithm, Functional, Length, Notes, Task, Whole
from ffgb.core.capabilities import Lipschitz, lacks
from ffgb.core.functions import Family, OnPoints
from ffgb.core.geometry import Geometry
from ffgb.core.losses import Loss, Square
from ffgb.core.oracles import Oracle, WOLip
from ffgb.core.points import Points
from ffgb.core.questions import Ask
from ffgb.core.schedules import Schedule, Theorem, capped, make_schedule
from ffgb.core.steepness import STEEPNESSES, steepness_of
from ffgb.core.types import Array
from ffgb.errors import FFGBError, SettingError, option
from ffgb.settings import METHOD, Setting, Values

EXPLODED = 10.0
"""A largest slope so many times above the one that predicts labels best is put down to noise in the labels."""

STEPS = Theorem(1.0, 4.0)
"""Theorem 3's: 4/(tK+k+1)."""

log = logging.getLogger(__name__)


@final
@dataclass(frozen=True)
class FFGBL(Functional):
    """K local steps with the oracle WO^lip, towards a Lipschitz extension of the client's labels."""

    totals: ClassVar[Mapping[str, Callable[[Iterable[float]], float]]] = {
        "gamma_sup": min,
        "gamma_lip": min,
        "lipschitz": max,
        "uncovered": sum,
    }
    mu: ClassVar[float] = 1.0  # type: ignore[misc]
    length: ClassVar[Length] = Whole()  # type: ignore[misc]

    name: ClassVar[str] = "ffgb-l"
    needs: ClassVar[str] = "sobolev"
    defaults: ClassVar[Mapping[str, Any]] = {
        "mu": 1.0,  # the strong convexity of the square loss
        "rounds": 50,
        "local_steps": 8,
        "schedule": "theorem2",
        "hidden": (64, 64),
        "oracle_steps": 400,
        "learning_rate": 0.015,
        "batch": 128,
    }

    L: float | Literal["auto", "max"] = "auto"
    """The extension's Lipschitz constant: a number, the largest slope of the labels, or the one that predicts a label
    best from the others (then labels need not be L-Lipschitz)."""
    K: int = 1
    rounds: int = 1
    """How many of the paper's rounds one exchange stands for.  With all T of them this is its one-round form."""
    schedule: Schedule = STEPS
    extension: str | None = None
    """"mcshane", as in the paper, or "middle", which any labels have; None: middle for L = "auto", else mcshane."""
    B: float | None = None
    """A bound that all labels, in their own units, are to keep."""
    residual: bool = True

    def __post_init__(self) -> None:
        if self.K < 1 or self.rounds < 1:
            raise FFGBError(f"FFGB.L takes at least one local step and one round, not {self.K} and {self.rounds}")
        if isinstance(self.L, str) and self.L not in ("auto", "max"):
            raise SettingError("lipschitz", f"is auto, max or a number, not {self.L!r}")
        if not isinstance(self.L, str) and not 0 < self.L < np.inf:
            raise FFGBError(f"the Lipschitz constant L must be a positive number, not {self.L}")
        if self.extension not in (None, "mcshane", "middle"):
            raise FFGBError(f"the extension is mcshane or middle, not {self.extension!r}")

    @classmethod
    def configured(cls, config: Values) -> Algorithm:
        rounds = config.rounds if config.one_round else 1
        schedule = make_schedule(config)
        return cls(
            config.lipschitz, config.local_steps, rounds, schedule, config.extension, config.bound, config.residual
        )

    @classmethod
    def suits(cls, config: Values, task: Task) -> Mapping[str, Any]:
        return {"one_round": not task.sampled} if config.one_round is None else {}

    @classmethod
    def check(cls, config: Values, task: Task) -> None:
        super().check(config, task)
        if task.classes:
            raise FFGBError(f"ffgb-l is for regression, and {task.data} has classes; use ffgb-c")
        if config.mu not in (None, 1.0):
            raise FFGBError(f"ffgb-l has μ = 1, the strong convexity of the square loss; leave {option('mu')} out")
        if config.one_round and task.sampled:
            raise FFGBError(
                f"{option('one_round')} has no rounds to sample clients in; leave {option('participation')} out"
            )
        if config.validation:
            raise FFGBError(
                f"{option('validation')} chooses λ and rounds; ffgb-l chooses its own λ, and has one exchange: leave "
                "it out"
            )

    def prepared(self, ask: Ask, family: Family, loss: Loss, mean: Array, scale: Array) -> Algorithm:
        """Find L, by what all clients say of their labels' slopes."""
        if not isinstance(loss, Square):
            raise FFGBError(
                f"FFGB.L is for regression with the square loss, not {type(loss).__name__}; leave {option('loss')} "
                "out, or use ffgb-c"
            )
        if not isinstance(family, Lipschitz):
            raise lacks(family, "Lipschitz fit, which FFGB.L needs")
        constants = STEEPNESSES if isinstance(self.L, str) else (self.L,)
        found = steepness_of(ask, family.metric, mean, scale, constants)
        if self.B is not None and found.largest > self.B:
            raise FFGBError(
                f"a label is {found.largest:g} in size, beyond {option('bound', f'{self.B:g}')}; correct it, or raise "
                "the bound"
            )
        extension = self.extension or ("middle" if self.L == "auto" else "mcshane")
        L = {"auto": found.best, "max": found.steepest}[self.L] if isinstance(self.L, str) else self.L
        if extension == "mcshane":
            if found.conflicts:
                raise FFGBError(
                    f"{found.conflicts} pairs of equal points have different labels, and no function fits both; "
                    f"use {option('lipschitz', 'auto')}, which goes between them"
                )
            if self.L != "max" and (steeper := found.steeper_than(L)):
                raise FFGBError(
                    f"L = {L:g} is too small: {steeper:,} pairs of points have labels that are steeper, up to "
                    f"{found.steepest:g}; raise {option('lipschitz')}, or use {option('extension', 'middle')}, "
                    "which goes between them"
                )
            if self.L == "max" and EXPLODED * found.best < L:
                log.warning(
                    "the labels look noisy: their largest slope is %.3g, and they are predicted best with L = %.3g, "
                    "which %s pairs of points exceed; --lipschitz auto uses that",
                    *(L, found.best, f"{found.steeper_than(found.best):,}"),
                )
        elif found.conflicts:
            log.warning("%s pairs of equal points have different labels; u_i goes between them", found.conflicts)
        return replace(self, L=max(L, 1e-30), extension=extension)  # labels that are all the same have slope 0

    def oracle(self, family: Family, points: Points, geometry: Geometry | None, rng: np.random.Generator) -> Oracle:
        if geometry is not None:
            raise FFGBError(
                f"FFGB.L fits values and slopes at each client's own points; use {option('geometry', 'local')}"
            )
        assert not isinstance(self.L, str)  # prepared
        assert self.extension is not None
        return WOLip(family, points, self.L, self.extension, rng)

    def eta(self, k: int, t: int) -> float:
        """η^{k,t}, never above 1/μ = 1."""
        return capped(self.schedule(k, t, self.K), self.mu)

    def coefficients(self, t: int) -> tuple[float, Array]:
        """What f^t and each of h^1 … h^K is multiplied by in g: line 5, over all rounds that this exchange stands for.

        No h depends on g or t (the paper's remark), so that line 5 is known before any h is.
        """
        decay, weights = 1.0, np.zeros(self.K)
        for round in range(t * self.rounds, (t + 1) * self.rounds):
            for k in range(1, self.K + 1):
                eta = self.eta(k, round)
                decay, weights = (1.0 - eta) * decay, (1.0 - eta) * weights  # line 5: g − η(g − h)
                weights[k - 1] += eta
        return decay, weights

    def decay(self, t: int) -> float:
        return self.coefficients(t)[0]

    def client(
        self, t: int, f: OnPoints, y: Array, loss: Loss, oracle: Oracle, rng: np.random.Generator
    ) -> tuple[OnPoints, Notes]:
        """Algorithm 4, as corrected: g^{K+1,t} of one client.  An oracle gives the same h^k in every round."""
        decay, weights = self.coefficients(t)
        u = oracle.sees(y)
        Δ, g = np.zeros(()), decay * f  # line 2
        notes: Notes = {name: [] for name in ("gamma", *self.totals)}
        for k in range(1, self.K + 1):  # line 3
            h, seen, gamma, measured = oracle(u - Δ, rng)  # line 4
            g = g + float(weights[k - 1]) * h  # line 5
            if self.residual:
                Δ = Δ - u + seen  # line 6
            notes["gamma"].append(gamma if gamma is not None else np.nan)
            notes["uncovered"].append(float(gamma is not None and gamma <= 0.0))
            for name in ("gamma_sup", "gamma_lip", "lipschitz"):
                notes[name].append(measured[name])
        return g, notes  # line 8


SETTINGS = (
    Setting(
        "lipschitz",
        "number or word",
        "L of the labels (ffgb-l): a number; max: their largest slope; auto: what predicts them best.",
        METHOD,
        "auto",
        users=("ffgb-l",),
    ),
    Setting(
        "extension",
        "text",
        "mcshane: through the labels; middle: or between them (ffgb-l).",
        METHOD,
        unset="middle if L is auto",
        users=("ffgb-l",),
    ),
    Setting(
        "one_round",
        "switch",
        "All rounds in one exchange (ffgb-l): the same function.",
        METHOD,
        unset="one-round",
        off="--many-rounds",
        users=("ffgb-l",),
    ),
)
