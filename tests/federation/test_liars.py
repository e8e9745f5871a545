"""One client that lies is named and left out; the model is what the others would have made, and nothing crashes."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffgb.algorithms.ffgb_shared import FFGBShared
from ffgb.core.geometry import pack, unpack
from ffgb.core.gradients import LARGEST, LENGTHS
from ffgb.core.grams import GramOf, SketchOf, random_basis, share_geometry
from ffgb.core.losses import CrossEntropy
from ffgb.core.means import capped
from ffgb.core.moments import MAGNITUDES
from ffgb.core.questions import Sum
from ffgb.core.schedules import Constant
from ffgb.data import Dataset
from ffgb.errors import FFGBError
from ffgb.features.basic import Flatten
from ffgb.federation.host import Holding
from ffgb.federation.server import Server
from ffgb.federation.state import State
from ffgb.learners.linear import Linear
from ffgb.protocol.codec import Message, decode, encode
from ffgb.protocol.messages import Asked
from ffgb.runs.config import Config, load_data
from ffgb.runs.holdings import make_holdings, make_parts
from ffgb.runs.learners import make_algorithm, make_learner
from ffgb.runs.resolve import make_loss
from ffgb.runs.training import train
from tests.engines import faults
from tests.engines.faults import Fault, Faulty, changed, is_about, with_tensors, with_values
from tests.engines.test_faults import JOBS, N, holdings, run, same

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
    config = Config(data=name, clients=clients, **settings)
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
    assert lines[-1]["test_accuracy"] > accuracy(name, clients) - 0.02


@cache
def accuracy(name: str, clients: int) -> float:
    """Of a training in which the liar has never been there."""
    return float(trained(silent, name, clients)[1][-1]["test_accuracy"])


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("lie", SETUP_LIES)
def test_a_lie_in_set_up_is_named_once_and_its_client_left_out(lie: str, caplog: pytest.LogCaptureFixture) -> None:
    kind, change, words = SETUP_LIES[lie]
    asked = []

    def fault(question: Message, i: int, answer: bytes) -> bytes | None:
        if i == LIAR:
            asked.append((question.kind, question.round))
        return asked_about(kind, change)(question, i, answer)

    state, lines = trained(fault, "breast_cancer", 10)
    assert {*asked} == {("question", -1)}  # and nothing since
    (said,) = warnings(caplog)
    assert re.match("client 0 is left out of the run: it sent (a part that|what) is refused: ", said)
    assert re.search(words, said)
    nothing_is_left(state, lines, "breast_cancer", 10, kind)
    assert all(line["absent"] == ["0"] and line["participants"] == 9 for line in lines)
    assert all(names == ["0"] for names in lines[0]["setup_absent"].values())
    assert any(question.endswith(kind) for question in lines[0]["setup_absent"])
    assert "setup_absent" not in lines[1]


@pytest.mark.parametrize("lie", ROUND_LIES)
def test_a_lie_in_a_round_is_named_and_left_out_of_it(lie: str, caplog: pytest.LogCaptureFixture) -> None:
    kind, change, words = ROUND_LIES[lie]
    state, lines = trained(lying(kind, change), "breast_cancer", 10)
    said = warnings(caplog)
    assert said
    for text in said:
        assert text.startswith("client 0 is left out of this round: it ")
        assert re.search(words, text)
    nothing_is_left(state, lines, "breast_cancer", 10, kind)
    absences = [{name: line[name] for name in line if name.startswith(("absent", "setup"))} for line in lines]
    if kind == "report":  # a client that does not say that it has f^t is not asked to go on from there
        assert absences == [{}, *[{"absent": ["0"]}] * (len(lines) - 1)]
    else:
        assert absences == [{"absent": ["0"]}] * len(lines)


@pytest.mark.parametrize(
    ("kind", "names", "change", "words"),
    [
        ("PatchMoments", ("mean", "products"), times(8.0), "larger variance than patches of any image"),
        ("PatchMoments", ("products",), times(8.0), "larger variance than patches of any image"),
        ("PatchMoments", ("products",), times(-1.0), "the moments of any patches"),
        ("NearestSums", ("sums",), noise, "longer than those of"),
        ("NearestSums", ("sums",), times(-1.0), "point away from their centres"),
    ],
    ids=["patch moments", "products alone", "negative", "nearest sums", "of other signs"],
)
def test_a_lie_about_patches(
    kind: str,
    names: Sequence[str],
    change: Callable[[Array], Array],
    words: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    state, lines = trained(asked_about(kind, tensors(**dict.fromkeys(names, change))), "digits", 20)
    (said,) = warnings(caplog)
    assert said.startswith("client 0 is left out of the run: ")
    assert words in said
    nothing_is_left(state, lines, "digits", 20, kind)


@pytest.mark.parametrize("lie", ["count", "mean", "magnitude", "a million rows", "Gram × 1000"])
def test_where_everyone_must_answer_the_run_ends_with_the_clients_name(lie: str) -> None:
    kind, change, words = SETUP_LIES[lie]
    with pytest.raises(FFGBError, match=f"client 0 sent (a part that|what) is refused: .*{words}"):
        trained(asked_about(kind, change), "breast_cancer", 10, None)


def test_a_square_that_no_loss_bounds_is_compared_with_the_others(caplog: pytest.LogCaptureFixture) -> None:
    _, plain = trained(honest, "diabetes", 10)
    assert warnings(caplog) == []
    _, lines = trained(asked_about("GradientOf", tensors(square=np.array([HUGE]))), "diabetes", 10)
    words = r"client 0 is left out of this round: it sent a square of [\d.]+e\+10, absurdly"
    assert all(re.match(words, said) for said in warnings(caplog))
    assert lines[0]["absent"] == ["0"]
    assert lines[-1]["test_rmse"] < 1.05 * plain[-1]["test_rmse"]


def test_a_large_mean_square_of_the_increment_is_compared_with_the_others(caplog: pytest.LogCaptureFixture) -> None:
    lie = asked_about("SlopesOf", tensors(square=np.array([HUGE])))
    _, lines = trained(lie, "breast_cancer", 10)
    assert "absurdly larger than the other clients'" in warnings(caplog)[0]
    assert lines[0]["absent"] == ["0"]


# What a refusal and a silence lead to, where everything is small.


FIRST_LIES = {
    "compared": tensors(clients=magnitude(len(MAGNITUDES) - 1)),
    "checked": tensors(clients=np.ones_like),
    "lacking": tensors(clients=None),
    "other rows": values(points=7),
}


@pytest.mark.parametrize("lie", FIRST_LIES)
def test_a_model_after_a_refusal_is_the_others_to_the_bit(lie: str) -> None:
    """Whether the lie is found in the answer, or only when answers are compared and asked for again."""
    fault = asked_about("MagnitudeOf", FIRST_LIES[lie])
    state, lines = run(Faulty(holdings(), fault), "search", 3, minimum=N - 1)
    parts = holdings()[1:]
    with Faulty(parts, honest) as engine:
        server = Server(engine, [len(h) for h in parts[:-1]], 1)
        others = server.start(*JOBS["search"], CrossEntropy(3))
        for after, _ in server.rounds(others, 3):
            others = after
    same(state, others)
    assert [line["absent"] for line in lines] == [["0"]] * 3
    assert lines[0]["setup_absent"] == {
        f"{k} {q}": ["0"] for k, q in enumerate(("MagnitudeOf", "MomentsOf", "GramOf"), 1)
    }


LATER_LIES = {
    "compared": tensors(mean=lambda a: a + HUGE // 2, gram=lambda g: np.full_like(g, 0)),
    "checked": tensors(gram=times(-1.0)),
    "lacking": tensors(mean=None),
    "other rows": values(points=7),
}


def test_a_lie_leaves_nothing_in_the_total_it_was_told_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """However it is found, the model is the same to the bit; and everyone else is asked the same when asked again."""
    models, questions = [], set[bytes]()

    def fault(lie: str) -> Fault:
        change = asked_about("GramOf", LATER_LIES[lie])

        def answered(question: Message, i: int, answer: bytes) -> bytes | None:
            if is_about(question, "GramOf"):
                questions.add(encode(question))
            return change(question, i, answer)

        return answered

    def strange(question: GramOf, mean: Array, variance: Array) -> dict[int, str]:
        return {0: "it is strange"} if len(mean) == N else {}

    for lie in LATER_LIES:
        with monkeypatch.context() as patch:
            if lie == "compared":
                patch.setattr(GramOf, "check", lambda *_: None)
                patch.setattr(GramOf, "certify", lambda *_: None)
                patch.setattr(GramOf, "strange", strange)
            state, lines = run(Faulty(holdings(), fault(lie)), "search", 3, minimum=N - 1)
        assert lines[0]["setup_absent"] == {"3 GramOf": ["0"]}
        assert [line["absent"] for line in lines] == [["0"]] * 3
        models.append(state)
    for state in models[1:]:
        same(models[0], state)
    assert len(questions) == 1


def test_who_is_silent_in_set_up_takes_part_in_rounds(caplog: pytest.LogCaptureFixture) -> None:
    def quiet(question: Message, i: int, answer: bytes) -> bytes | None:
        return None if is_about(question, "GramOf") and i == 2 else answer

    _, lines = run(Faulty(holdings(), quiet), "shared", 2, minimum=N - 1)
    assert warnings(caplog) == ["client 2 is left out of the total of the Gram: it did not answer in time"]
    assert lines[0]["setup_absent"] == {"3 GramOf": ["2"]}
    assert [line["participants"] for line in lines] == [N, N]
    assert not any("absent" in line for line in lines)


def test_who_says_that_it_cannot_answer_is_not_refused(caplog: pytest.LogCaptureFixture) -> None:
    def sorry(message: Message) -> Message:
        return Message("error", client=message.client, values={"text": "no memory"})

    _, lines = run(Faulty(holdings(), faults.asked_about(1, "GramOf", sorry)), "shared", 2, minimum=N - 1)
    assert warnings(caplog) == ["client 1 is left out of the total of the Gram: it says: no memory"]
    assert [line["participants"] for line in lines] == [N, N]


def test_too_few_that_are_left_end_the_run_and_say_who_and_why() -> None:
    def two(question: Message, i: int, answer: bytes) -> bytes:
        if not is_about(question, "GramOf") or i not in (1, 4):
            return answer
        return encode(with_tensors(decode(answer), gram=lambda g: -g))

    with pytest.raises(
        FFGBError,
        match=r"only 4 of 6 clients are left, and 5 must answer; refused: client 1 sent .* negative variance.*; "
        r"client 4 sent .* negative variance",
    ):
        run(Faulty(holdings(), two), "shared", 2, minimum=5)


def test_too_few_that_answer_a_question_end_the_run_and_say_who_and_why() -> None:
    def fault(question: Message, i: int, answer: bytes) -> bytes | None:
        if not is_about(question, "GramOf") or i not in (1, 4):
            return answer
        return None if i == 4 else encode(with_tensors(decode(answer), gram=lambda g: -g))

    with pytest.raises(
        FFGBError,
        match=r"only 4 of 6 clients answered a question about the Gram, and 5 must: client 4 did not answer in time; "
        r"refused: client 1 sent .* negative variance",
    ):
        run(Faulty(holdings(), fault), "shared", 2, minimum=5)


def test_rounds_are_sampled_among_those_that_were_not_refused() -> None:
    lie = asked_about("GramOf", tensors(gram=lambda g: -g))
    asked: list[int] = []

    def fault(question: Message, i: int, answer: bytes) -> bytes | None:
        asked.extend([i] if is_about(question, "GradientOf") else [])
        return lie(question, i, answer)

    _, lines = run(Faulty(holdings(), fault), "shared", 8, minimum=2, participation=3)
    assert LIAR not in asked
    assert [line["participants"] for line in lines] == [3] * 8
    assert all(line["absent"] == ["0"] for line in lines)


def test_the_held_out_rows_of_a_refused_site_are_not_asked_about() -> None:
    asked: set[tuple[str, int]] = set()
    lie = asked_about("GramOf", tensors(gram=lambda g: -g))

    def fault(question: Message, i: int, answer: bytes) -> bytes | None:
        asked.add((question.kind, i))
        return lie(question, i, answer)

    algorithm, learner = JOBS["shared"]
    parts = [*holdings(), holdings()[0]]
    with Faulty(parts, fault) as engine:
        server = Server(engine, [len(h) for h in parts[:N]], 2, minimum=N - 1, owners=[3, LIAR])
        state = server.start(algorithm, learner, CrossEntropy(3))
        _, line = next(server.rounds(state, 1))
    assert {i for _, i in asked if i >= N} == {N}
    assert line["test_accuracy"] > 0.5


def overflow(*some: Any) -> Any:
    raise OverflowError("math range error")


def test_an_arithmetic_error_names_the_client_whose_part_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = holdings()
    rows = {len(parts[2]), len(parts[4])}

    def check(question: GramOf, own: Any, points: int, share: float) -> None:
        """The third part cannot be used, and the fifth."""
        if points in rows:
            overflow()

    monkeypatch.setattr(GramOf, "check", check)
    with pytest.raises(FFGBError, match="client 2 sent a part that is refused: math range error"):
        run(Faulty(parts, honest), "shared", 1)
    with pytest.raises(FFGBError, match="only 4 of 6 clients are left"):
        run(Faulty(parts, honest), "shared", 1, minimum=5)


def test_an_arithmetic_error_in_a_total_is_an_error_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GramOf, "total", overflow)
    with pytest.raises(FFGBError, match="no total can be made of the Gram: math range error"):
        run(Faulty(holdings(), honest), "shared", 1)


def test_a_total_that_is_not_finite_is_an_error_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def infinite(question: Any, sums: Any) -> Any:
        return np.full(4, 6.0), (np.full((4, 4), np.inf),)

    monkeypatch.setattr(GramOf, "total", infinite)
    with pytest.raises(FFGBError, match="the total of the Gram is not finite; look for columns with very large values"):
        run(Faulty(holdings(), honest), "shared", 1, minimum=5)


def test_totals_that_no_learner_can_be_made_of_are_an_error_in_a_sentence() -> None:
    def hopeless(ask: Any) -> Any:
        share_geometry(ask, Flatten(4), "exact", 1e-3)
        raise np.linalg.LinAlgError("Eigenvalues did not converge")

    with Faulty(holdings(), honest) as engine:
        server = Server(engine, [len(h) for h in holdings()[:N]], 1)
        with pytest.raises(FFGBError, match=r"no learner can be made .* \(Eigenvalues did not converge\); look for"):
            server.start(JOBS["shared"][0], hopeless, CrossEntropy(3))


# Grams and sketches


def gram_of(x: Array) -> Array:
    centred = x - x.mean(axis=0)
    gram: Array = (centred.T @ centred / len(x)).astype(np.float32)
    return gram


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rows", [1, 2, 20, 300])
def test_grams_of_points_are_certified_and_others_are_not(seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((rows, 60)) @ rng.standard_normal((60, 60)) * np.geomspace(1e-6, 1e3, 60)).astype(
        np.float32
    )
    question, gram = GramOf(Flatten(60), (60,), 1, np.zeros(60), np.ones(60)), gram_of(x.astype(np.float32))
    question.certify({"gram": pack(gram)})
    values, vectors = np.linalg.eigh(gram.astype(np.float64))
    for share in (0.3, 1e-3):  # of the trace, in a direction that has no variance
        lie = gram - share * max(values.sum(), 1.0) * np.outer(vectors[:, 0], vectors[:, 0])
        with pytest.raises(FFGBError, match="not positive semi-definite"):
            question.certify({"gram": pack(lie.astype(np.float32))})


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_a_certificate_does_not_depend_on_the_scale(scale: float) -> None:
    gram = gram_of(np.random.default_rng(0).standard_normal((40, 8)).astype(np.float32))
    question = GramOf(Flatten(8), (8,), 1, np.zeros(8), np.full(8, np.sqrt(scale)))
    question.certify({"gram": pack(gram * np.float32(scale))})
    with pytest.raises(FFGBError):
        question.certify({"gram": indefinite(pack(gram * np.float32(scale)))})


def turned(sketch: Array) -> Array:
    """Of no symmetric matrix: half of it is a rotation, which no quadratic form sees."""
    omega = random_basis(4, 3, 0)
    rotation = omega @ np.array([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    changed: Array = np.rint(0.3 * sketch + 0.3 * np.abs(sketch).max() * rotation).astype(np.int32)
    return changed


@pytest.mark.parametrize(
    "lie",
    [
        tensors(sketch=times(-1.0)),
        tensors(sketch=times(3.0)),
        tensors(sketch=lambda s: s[::-1].copy()),
        tensors(variance=times(0.2)),
        tensors(sketch=lambda s: s + np.int32(2**27)),
        tensors(sketch=turned),
    ],
    ids=["negative", "larger than its variances", "of other features", "smaller variances", "shifted", "turned"],
)
def test_a_sketch_of_no_gram_is_refused(lie: Callable[[Message], Message]) -> None:
    def sketched(ask: Any) -> Any:
        return Linear(Flatten(4), 3), share_geometry(ask, Flatten(4), "nystrom", 1e-3, rank=3)

    def started(fault: Fault) -> None:
        with Faulty(holdings(), fault) as engine:
            Server(engine, [len(h) for h in holdings()[:N]], 1).start(JOBS["shared"][0], sketched, CrossEntropy(3))

    started(honest)
    with pytest.raises(FFGBError, match=r"client 0 sent .* no sketch of any Gram"):
        started(asked_about("SketchOf", lie))


def test_a_sketch_with_a_negative_variance_is_refused() -> None:
    question = SketchOf(Flatten(4), 3, 0, np.zeros(4), np.ones(4))
    sketch, variance = np.zeros((4, 3), np.float32), np.array([1, 1, -1, 1], np.float32)
    with pytest.raises(FFGBError, match="negative variance"):
        question.check({"mean": np.zeros(4), "variance": variance, "sketch": sketch}, 5)


# Honest clients pass


def one_row_each(parts: list[Array]) -> list[Array]:
    return [np.array([row]) for rows in parts for row in rows[:3]]


def some_of_one_row(parts: list[Array]) -> list[Array]:
    return [rows[:1] if k % 3 == 0 else rows for k, rows in enumerate(parts)]


SPLITS: dict[str, tuple[dict[str, Any], Callable[[list[Array]], list[Array]]]] = {
    "digits, a class each": ({"data": "digits", "similarity": 0.0}, list),
    "digits, dirichlet": ({"data": "digits", "split": "dirichlet", "alpha": 0.1}, list),
    "digits, nystrom": ({"data": "digits", "similarity": 0.0, "map": "fourier", "gram": "nystrom"}, list),
    "breast_cancer": ({"data": "breast_cancer", "clients": 10, "similarity": 0.0}, list),
    "breast_cancer, one row each": ({"data": "breast_cancer", "clients": 10, "features": 100}, one_row_each),
    "digits, some of one row": ({"data": "digits", "similarity": 0.0}, some_of_one_row),
    "diabetes, some of one row": ({"data": "diabetes", "clients": 12, "similarity": 0.0}, some_of_one_row),
    "wine, a class each": ({"data": "wine", "clients": 9, "split": "labels", "labels": 1}, list),
    "diabetes, steepness": ({"data": "diabetes", "clients": 5, "algorithm": "ffgb-l", "similarity": 0.0}, list),
}
REAL_SPLITS: dict[str, tuple[dict[str, Any], Callable[[list[Array]], list[Array]]]] = {
    "heart": ({"data": "heart"}, list),
    "heart, some of one row": ({"data": "heart"}, some_of_one_row),
    "cal_housing": ({"data": "cal_housing", "by": "longitude", "similarity": 0.0}, list),
    "cal_housing, some of one row": ({"data": "cal_housing", "by": "longitude", "learner": "linear"}, some_of_one_row),
    "adult": ({"data": "adult", "similarity": 0.0}, list),
    "adult, dirichlet": ({"data": "adult", "split": "dirichlet", "alpha": 0.1, "learner": "linear"}, list),
}


def all_pass(
    settings: dict[str, Any], change: Callable[[list[Array]], list[Array]], caplog: pytest.LogCaptureFixture
) -> None:
    """No one is left out of anything, though everyone is looked at closely."""
    config = Config(**settings)
    dataset = load_data(config)
    config = config.resolved(dataset)
    parts, options = make_holdings(config, dataset, change(make_parts(config, dataset)))
    loss, clients = make_loss(config, dataset), len(options["points"])
    with Faulty(parts, honest) as engine:
        server = Server(engine, **{**options, "participation": None}, minimum=clients)
        learner = make_learner(config, dataset)
        state = server.start(make_algorithm(config), learner, loss, scale_target=not loss.classification)
        for _, line in server.rounds(state, min(config.exchanges, 3)):
            assert line["participants"] == clients
            assert not {"absent", "absent_from_step", "setup_absent"} & line.keys()
    assert warnings(caplog) == []


@pytest.mark.parametrize("split", SPLITS)
def test_honest_clients_pass_however_they_differ(split: str, caplog: pytest.LogCaptureFixture) -> None:
    all_pass(*SPLITS[split], caplog)


@pytest.mark.parametrize("split", REAL_SPLITS)
def test_honest_clients_pass_on_real_data(split: str, real_data: Path, caplog: pytest.LogCaptureFixture) -> None:
    all_pass(*REAL_SPLITS[split], caplog)


# Weights


def test_capped_weights_by_hand() -> None:
    assert capped([1.0, 2.0, 3.0], 0.5) == [1.0, 2.0, 3.0]
    assert capped([1.0, 1.0, 8.0], 0.5) == [1.0, 1.0, 2.0]
    assert capped([1.0, 1.0, 50.0, 100.0], 0.4) == pytest.approx([1.0, 1.0, 4.0, 4.0])
    assert capped([5.0, 1.0], 0.4) == [1.0, 1.0]  # less than an equal share


@pytest.mark.parametrize("seed", range(20))
def test_no_capped_weight_is_more_than_its_share(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = np.exp(3 * rng.standard_normal(rng.integers(3, 12)))
    share = float(rng.uniform(1.0 / len(weights), 1.0))
    lowered = np.array(capped(weights.tolist(), share))
    assert lowered.max() <= share * lowered.sum() * (1 + 1e-12)
    kept = lowered == weights
    assert kept.any()
    assert lowered[~kept] == pytest.approx(np.full((~kept).sum(), share * lowered.sum()))


def test_a_large_client_weighs_no_more_than_it_may() -> None:
    server = Server(Faulty(holdings(), honest), [10, 10, 10, 10, 960], by_size=True, largest_weight=0.5)
    assert server.clients.weights(range(5)) == [10.0, 10.0, 10.0, 10.0, 40.0]
    assert server.clients.weights([0, 1, 4]) == [10.0, 10.0, 20.0]  # of those in a round
    assert server.clients.weights([4]) == [960.0]  # it is the only one


def test_the_largest_weight_is_a_setting_of_a_training() -> None:
    common: dict[str, Any] = {"data": "wine", "clients": 4, "split": "dirichlet", "alpha": 0.3, "rounds": 2}
    dataset = load_data(Config(**common))
    sizes = [len(rows) for rows in make_parts(Config(**common).resolved(dataset), dataset)]
    assert max(sizes) > 0.3 * sum(sizes)
    runs = [train(Config(**common, largest_weight=share), workers=0) for share in (None, 1.0, 0.3)]
    weights = [result.model.f.tensors()["parameters/weight"] for result in runs]
    np.testing.assert_array_equal(weights[0], weights[1])
    assert np.abs(weights[0] - weights[2]).max() > 1e-3


def test_slopes_of_convex_losses_are_accepted_and_others_are_not() -> None:
    """A client may say nothing of its own slopes but what their loss allows, whatever the other clients say."""
    seen: list[Message] = []

    def look(question: Message, i: int, answer: bytes) -> bytes:
        seen.extend([decode(answer)] if is_about(question, "SlopesOf") and i < N else [])
        return answer

    run(Faulty(holdings(), look), "search", 3, minimum=N)
    assert len(seen) >= 3 * N
    for change, words in (
        (lambda s: s[::-1].copy(), "do not increase"),
        (lambda s: s + round(100.0 / UNIT), "sent slopes from"),
        (lambda s: s + np.rint(100.0 * np.array(LENGTHS) / UNIT).astype(np.int64), "sent slopes from"),
    ):
        with pytest.raises(FFGBError, match=f"client 3 sent .*{words}|client 3 {words}"):
            run(Faulty(holdings(), faults.asked_about(3, "SlopesOf", tensors(slopes=change))), "search", 1)
    negative = tensors(square=np.array([-round(1.0 / UNIT)]))
    with pytest.raises(FFGBError, match=f"client 3 sent slopes along an increment with a mean square of -{N}"):
        run(Faulty(holdings(), faults.asked_about(3, "SlopesOf", negative)), "search", 1)


def test_slopes_along_a_shrinking_line_are_compared_with_the_others() -> None:
    """With μ the line is not along the increment alone, and the loss bounds nothing."""

    def started(fault: Fault) -> None:
        with Faulty(holdings(), fault) as engine:
            server = Server(engine, [len(h) for h in holdings()[:N]], 1)
            state = server.start(FFGBShared(Constant(1.0), mu=0.1, search=True), JOBS["search"][1], CrossEntropy(3))
            assert len([*server.rounds(state, 3)]) == 3

    started(honest)
    with pytest.raises(FFGBError, match=r"client 3 sent a slope of .*e\+07, absurdly larger than the other clients'"):
        started(faults.asked_about(3, "SlopesOf", tensors(slopes=lambda s: np.full_like(s, -HUGE))))


def test_a_report_of_a_client_is_replaced_by_no_lie() -> None:
    """What is refused does not become what the server last heard of a client."""
    with Faulty(holdings(), changed(1, "report", lambda m: replace(m, values={**m.values, "loss": -1.0}))) as engine:
        server = Server(engine, [len(h) for h in holdings()[:N]], 1, minimum=N - 1)
        state = server.start(*JOBS["shared"], CrossEntropy(3))
        next(server.rounds(state, 1))
    assert set(server.conversation.seen) == {0, 2, 3, 4, 5, 6}
