"""Lies that one client may tell, and trainings in which it does."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from ffgb.core.geometry import pack, unpack
from ffgb.core.gradients import LARGEST
from ffgb.core.moments import MAGNITUDES
from ffgb.core.questions import Sum
from ffgb.data import Dataset
from ffgb.federation.host import Holding
from ffgb.federation.server import Server
from ffgb.federation.state import State
from ffgb.protocol.codec import Message, decode, encode
from ffgb.protocol.messages import Asked
from ffgb.runs.config import Config, load_data
from ffgb.runs.holdings import make_holdings, make_parts
from ffgb.runs.learners import make_algorithm, make_learner
from ffgb.runs.resolve import make_loss
from tests.engines import faults
from tests.engines.faults import Fault, Faulty, changed, is_about, with_tensors, with_values
from tests.engines.test_faults import same

Array = np.ndarray
Lines = list[dict[str, Any]]
LIAR = 0
HUGE = 2**60
"""In units of a sum in 64 bits: a quarter of its bound, or half."""
UNIT = float(Sum((1,), LARGEST).unit)
"""Of slopes."""


def honest(question: Message, i: int, answer: bytes) -> bytes:
    return answer


def asked_about(kind: str, change: Callable[[Message], Message]) -> Fault:
    """The liar changes its answers to questions of one kind."""
    if change is no_gram:

        def fault(question: Message, i: int, answer: bytes) -> bytes:
            return indefinite_part(question, answer) if i == LIAR and is_about(question, kind) else answer

        return fault
    return faults.asked_about(LIAR, kind, change)


def silent(question: Message, i: int, answer: bytes) -> bytes | None:
    """The liar has never been there."""
    return None if i == LIAR else answer


def one_interval(rows: int) -> Callable[[Array], Array]:
    def counts(honest: Array) -> Array:
        lie = np.zeros_like(honest)
        lie[:, 3] = rows
        return lie

    return counts


def indefinite(half: Array) -> Array:
    """Correlations of ±0.999 that no points have: every 2 × 2 determinant is positive, and not every eigenvalue is."""
    size = int((np.sqrt(8 * len(half) + 1) - 1) / 2)
    lower = unpack(half.astype(np.float64), size)
    deviation, k = np.sqrt(np.diag(lower)), np.arange(size)
    signs = np.where((k[:, None] + k) % 3 == 0, 1, -1)
    lie = np.outer(deviation, deviation) * signs * 0.999
    np.fill_diagonal(lie, np.diag(lower))
    return pack(lie).astype(half.dtype)


def no_gram(message: Message) -> Message:
    """What `asked_about` makes by the units of the question."""
    raise NotImplementedError


def indefinite_part(question: Message, answer: bytes) -> bytes:
    asked, message = Asked.read(question, None), decode(answer)
    unit = asked.question.sums["gram"].unit
    gram = np.rint(indefinite(message.tensors["gram"] * unit) / unit).astype(np.int32)
    return encode(with_tensors(message, gram=gram))


def times(factor: float) -> Callable[[Array], Array]:
    def changed(a: Array) -> Array:
        most = 0.99 * float(np.iinfo(a.dtype).max)  # as large as such integers are
        return np.clip(np.rint(a.astype(np.float64) * factor), -most, most).astype(a.dtype)

    return changed


def noise(a: Array) -> Array:
    return np.random.default_rng(0).integers(-(2**28), 2**28, a.shape).astype(a.dtype)


def magnitude(order: int) -> Callable[[Array], Array]:
    """The largest value of every column is of this order of magnitude."""

    def named(honest: Array) -> Array:
        lie = np.zeros_like(honest)
        lie[:, order] = 1
        return lie

    return named


def tensors(**changes: object) -> Callable[[Message], Message]:
    return lambda message: with_tensors(message, **changes)


def values(**changes: object) -> Callable[[Message], Message]:
    return lambda message: with_values(message, **changes)


SETUP_LIES: dict[str, tuple[str, Callable[[Message], Message], str]] = {
    "count": ("MomentsOf", values(points=10**15), "it is of 1000000000000000 points, and the client has 46"),
    "magnitude": (
        "MagnitudeOf",
        tensors(clients=magnitude(len(MAGNITUDES) - 1)),
        "times as large as the other clients'",
    ),
    "no magnitude": ("MagnitudeOf", tensors(clients=np.zeros_like), "one order of magnitude a column"),
    "several magnitudes": ("MagnitudeOf", tensors(clients=np.ones_like), "one order of magnitude a column"),
    "less than no magnitude": (
        "MagnitudeOf",
        tensors(clients=lambda a: 2 * a - magnitude(len(MAGNITUDES) - 1)(a)),
        "one order of magnitude a column",
    ),
    "square": ("MomentsOf", tensors(square=lambda a: np.full_like(a, HUGE)), "spreads from the other clients'"),
    "mean": ("MomentsOf", tensors(mean=lambda a: a + HUGE), "its moments have a negative variance"),
    "mean and square": (
        "MomentsOf",
        tensors(mean=lambda a: a + HUGE // 16, square=lambda a: np.full_like(a, HUGE)),
        "spreads from the other clients'",
    ),
    "the largest integer": ("MomentsOf", tensors(square=lambda a: np.full_like(a, 2**63 - 1)), "beyond its bound"),
    "the least integer": ("MomentsOf", tensors(mean=lambda a: np.full_like(a, -(2**63))), "beyond its bound"),
    "a million rows": ("Histogram", tensors(counts=one_interval(10**6)), r"has 1e\+06 values, and the client 46 rows"),
    "all rows that fit": (
        "Histogram",
        tensors(counts=one_interval(2**31 - 1)),
        r"has 2.14748e\+09 values, and the client 46 rows",
    ),
    "counts less than 0": ("Histogram", tensors(counts=times(-1.0)), "its counts are negative"),
    "Gram × 1000": ("GramOf", tensors(gram=lambda g: 1000 * g.astype(np.int64)), "as int64 .*, expected int32"),
    "Gram × 8": (
        "GramOf",
        tensors(gram=lambda g: np.clip(8 * g.astype(np.int64), -(2**29), 2**29).astype(np.int32)),
        "covariance larger than its variances allow|is never beyond",
    ),
    "the largest Gram": ("GramOf", tensors(gram=lambda g: np.full_like(g, 2**31 - 1)), "beyond its bound"),
    "a negative Gram": ("GramOf", tensors(gram=times(-1.0)), "negative variance"),
    "Gram mean": ("GramOf", tensors(mean=lambda a: a + HUGE), "negative variance|is never beyond"),
    "indefinite Gram": ("GramOf", no_gram, "not positive semi-definite"),
}
ROUND_LIES: dict[str, tuple[str, Callable[[Message], Message], str]] = {
    "square": (
        "GradientOf",
        tensors(square=np.array([HUGE])),
        "sent a square of .*, and that of the gradient is from|beyond its bound",
    ),
    "square × 1000": (
        "GradientOf",
        tensors(square=times(1000.0)),
        "sent a square of .*, and that of the gradient is from|beyond its bound",
    ),
    "a negative square": ("GradientOf", tensors(square=times(-1.0)), "sent a square of -"),
    "square NaN": ("GradientOf", tensors(square=np.array([np.nan])), "expected int64 of shape"),
    "the least integer": (
        "GradientOf",
        tensors(covector=lambda a: np.full_like(a, np.iinfo(a.dtype).min)),
        "beyond its bound",
    ),
    "covector × 1e5": ("GradientOf", tensors(covector=times(1e5)), "inner products|beyond its bound"),
    "slopes": ("SlopesOf", tensors(slopes=lambda a: np.full_like(a, -HUGE)), "sent slopes from -"),
    "slopes that fall": ("SlopesOf", tensors(slopes=lambda a: -a), "slopes that do not increase"),
    "loss": ("report", values(loss=-1e100), r"reports what cannot be: 46 points, a loss of -1e\+100"),
    "score": ("report", values(score=47.0), "reports what cannot be: 46 points, .* a score of 47"),
    "weight": ("report", values(weight=1e9), r"reports of points that weigh 1e\+09, and has 46"),
}


def lying(kind: str, change: Callable[[Message], Message]) -> Fault:
    return changed(LIAR, kind, change) if kind == "report" else asked_about(kind, change)


@cache
def made(name: str, clients: int, **settings: Any) -> tuple[Config, Dataset, list[Holding], dict[str, Any]]:
    config = Config(data=name, clients=clients, **{"features": 256, **settings})
    dataset = load_data(config)
    config = config.resolved(dataset)
    return (config, dataset, *make_holdings(config, dataset, make_parts(config, dataset)))


def trained(fault: Fault, name: str, clients: int, minimum: int | None = -1, **settings: Any) -> tuple[State, Lines]:
    """The default job, with a fault on the way; all but one must answer."""
    config, dataset, parts, options = made(name, clients, **settings)
    loss, lines = make_loss(config, dataset), []
    with Faulty(parts, fault) as engine:
        server = Server(engine, **options, minimum=clients - 1 if minimum == -1 else minimum)
        learner = make_learner(config, dataset)
        state = server.start(make_algorithm(config), learner, loss, scale_target=not loss.classification)
        assert config.rounds is not None
        for after, line in server.rounds(state, config.rounds, stop=bool(config.stop)):
            state = after
            lines.append(line)
    return state, lines


def garbage(message: Message) -> Message:
    """Nothing of what was asked for."""
    return replace(message, tensors={}, values={})


@cache
def without_the_liar(name: str, clients: int, kind: str) -> tuple[State, Lines]:
    """What becomes of a training when the liar's answers of this kind are no answers at all."""
    return trained(lying(kind, garbage), name, clients)


def nothing_is_left(state: State, lines: Lines, name: str, clients: int, kind: str) -> None:
    """A lie of this kind leaves nothing behind, to the bit; and the others' model is a good one."""
    others, without = without_the_liar(name, clients, kind)
    same(state, others)
    assert [line["test_loss"] for line in lines] == [line["test_loss"] for line in without]
    assert lines[-1]["test_accuracy"] > accuracy(name, clients) - 0.01


@cache
def accuracy(name: str, clients: int) -> float:
    """Of a training in which the liar has never been there."""
    return float(trained(silent, name, clients)[1][-1]["test_accuracy"])


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
