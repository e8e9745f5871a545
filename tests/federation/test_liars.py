"""One client that lies is named and left out; the model is what the others would have made, and nothing crashes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ffgb.algorithms.ffgb_shared import FFGBShared
from ffgb.core.geometry import pack
from ffgb.core.gradients import LENGTHS
from ffgb.core.grams import GramOf, SketchOf, random_basis, share_geometry
from ffgb.core.losses import CrossEntropy
from ffgb.core.means import capped
from ffgb.core.moments import MAGNITUDES
from ffgb.core.schedules import Constant
from ffgb.errors import FFGBError
from ffgb.features.basic import Flatten
from ffgb.federation.server import Server
from ffgb.learners.linear import Linear
from ffgb.protocol.codec import Message, decode, encode
from ffgb.runs.config import Config, load_data
from ffgb.runs.holdings import make_parts
from ffgb.runs.training import train
from tests.engines import faults
from tests.engines.faults import Fault, Faulty, changed, is_about, with_tensors
from tests.engines.test_faults import JOBS, N, holdings, run, same
from tests.federation.lies import (
    HUGE,
    LIAR,
    UNIT,
    Array,
    asked_about,
    honest,
    indefinite,
    magnitude,
    tensors,
    times,
    values,
    warnings,
)

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
    common |= {"learner": "features"}
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
