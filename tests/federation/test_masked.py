"""Trainings with secure totals: the same bits as in the open, whoever is lost, and all that leaves looks random."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from ffgb import Config, train
from ffgb.algorithms.ffgb_shared import FFGBShared
from ffgb.core.grams import share_geometry
from ffgb.core.losses import CrossEntropy
from ffgb.core.schedules import Constant
from ffgb.engines.local import InProcess, LocalEngine
from ffgb.errors import DivergedError, FFGBError
from ffgb.features.basic import Flatten

pytest.importorskip("cryptography", reason="the extra `secure` is not installed")

from ffgb.federation import masked
from ffgb.federation.client import Client
from ffgb.federation.host import Holding, Host, Resident
from ffgb.federation.masked import ImpossibleError
from ffgb.federation.server import Server
from ffgb.federation.state import State
from ffgb.learners.linear import Linear
from ffgb.privacy import tolerance
from ffgb.privacy.reports import LARGEST, Scores, as_integers
from ffgb.protocol.codec import Message, decode, encode
from ffgb.protocol.engine import Engine
from ffgb.protocol.messages import Asked, Report, Train, what_leaves
from tests.engines.faults import Faulty, with_tensors
from tests.federation.masking import IN_TOTALS, Losing, Loss, Repeating, content
from tests.federation.test_totals import CLASSES, holdings, same, trained

SILENT = {"ready", "resync", "key", "prepared", "shares", "stranger", "masked"}
"""Kinds of answers in a secure training."""


# The same bits


@pytest.mark.parametrize("job", ["exact", "shrinking", "nystrom"])
@pytest.mark.parametrize("weighted", [False, True], ids=["rows", "weighted rows"])
def test_masks_change_no_bit(job: str, weighted: bool) -> None:
    parts = holdings(weighted)
    expected = trained(InProcess(parts), parts, job)
    same(expected, trained(InProcess(parts), parts, job, secure=True))
    same(expected, trained(InProcess(parts), parts, job, secure=True, minimum=4))


@pytest.mark.parametrize("minimum", [None, 7, 5], ids=["strict", "all", "tolerant"])
def test_masks_change_no_bit_in_two_workers(minimum: int | None) -> None:
    parts = holdings()
    same(trained(InProcess(parts), parts), trained(LocalEngine(parts, 2), parts, secure=True, minimum=minimum))


@pytest.mark.parametrize("by_size", [True, False])
def test_clients_weigh_the_same_under_masks(by_size: bool) -> None:
    parts = holdings()
    expected = trained(InProcess(parts), parts, by_size=by_size)
    for minimum in (None, 4):
        same(expected, trained(InProcess(parts), parts, by_size=by_size, secure=True, minimum=minimum))


@pytest.mark.parametrize(
    "settings", [{"data": ("wine",), "clients": 4}, {"data": ("diabetes",), "clients": 3, "gram": "nystrom"}], ids=str
)
@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_model_file(settings: dict[str, Any], workers: int, tmp_path: Path) -> None:
    for secure in ("off", "on"):
        config = Config(**settings, rounds=3, secure=secure)
        train(config, tmp_path / secure, workers=0 if secure == "off" else workers)
    files = [(tmp_path / secure / "model.safetensors").read_bytes() for secure in ("off", "on")]
    assert files[0] == files[1]


@pytest.mark.parametrize("minimum", [None, 3], ids=["strict", "tolerant"])
@pytest.mark.parametrize("forgetful", [False, True])
def test_a_flower_grid_adds_up_the_same(minimum: int | None, forgetful: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In processes that know nothing but what was kept, too: questions answered before are unmasked afterwards."""
    pytest.importorskip("flwr")
    import json

    from ffgb.engines.flower import Counted, FlowerEngine
    from ffgb.runs import simulation, training
    from ffgb.runs.config import load_data
    from tests.engines.grid import InProcessGrid

    config = Config(data=("wine",), learner="features", clients=4, rounds=3, secure="on")
    here = train(config, workers=0)
    options = training.make_holdings  # type: ignore[attr-defined]
    monkeypatch.setattr(training, "make_holdings", lambda *a: (options(*a)[0], {**options(*a)[1], "minimum": minimum}))
    resolved, places = json.dumps(config.resolved(load_data(config)).to_json()), range(5)
    grid = InProcessGrid(simulation.client_app(resolved), {7 + i: {"partition-id": i} for i in places})
    grid.before = simulation._residents.clear if forgetful else grid.before
    engine = FlowerEngine(Counted(grid), {str(i): 7 + i for i in places}, {i: str(i) for i in places}, 60.0)
    monkeypatch.setattr("ffgb.runs.training.simulation", lambda *_: nullcontext(engine))
    there = train(config, engine="flower")
    assert there.model.to_bytes() == here.model.to_bytes()


def test_more_than_a_hundred_sites() -> None:
    """Each has masks with some of the others only."""
    parts = [*small(150, 2, 0), small(1, 40, 1)[0]]
    states = [run(InProcess(parts), parts, rounds=2, secure=secure) for secure in (False, True)]
    np.testing.assert_array_equal(weights(states[0]), weights(states[1]))
    with pytest.raises(FFGBError, match="are for up to 100 sites"):
        run(InProcess(parts), parts, secure=True, minimum=90)


# Sites are lost


def compared(losses: Sequence[Loss], minimum: int, job: str = "exact") -> Losing:
    """A tolerant training with losses has the bits of one in the open with the same participation."""
    parts = holdings()
    engine = Losing(parts, losses)
    there = trained(engine, parts, job, secure=True, minimum=minimum)
    repeated = Repeating(parts, engine)
    same(trained(repeated, parts, job, minimum=minimum), there)
    assert engine.came.keys() >= {key for key in repeated.asked if is_question(key)}
    return engine


def is_question(data: bytes) -> bool:
    return decode(data).kind == "question"


PHASES: dict[str, dict[str, Any]] = {
    "secrets of the first questions": {"phase": "prepare", "times": 3},
    "a question before training": {"phase": "question MomentsOf"},
    "the Gram": {"phase": "question GramOf"},
    "unmasking before training": {"phase": "unmask"},
    "the gradient": {"phase": "question GradientOf", "round": 1},
    "slopes": {"phase": "question SlopesOf", "round": 1},
    "unmasking": {"phase": "unmask", "skip": 3},
    "the report": {"phase": "step", "round": 2},
}


@pytest.mark.parametrize("late", [False, True], ids=["not asked", "not heard"])
@pytest.mark.parametrize("forever", [False, True], ids=["once", "forever"])
@pytest.mark.parametrize("phase", PHASES)
def test_whoever_is_lost_the_rest_adds_up(phase: str, forever: bool, late: bool) -> None:
    """Two of seven are lost at once, at every phase, and come back or not."""
    losses = [Loss((2, 5), **PHASES[phase], forever=forever, late=late)]
    engine = compared(losses, minimum=5)
    assert losses[0]._count.keys() == {2, 5}
    masked_parts = [answers for key, answers in engine.came.items() if is_question(key)]
    missing = [answers for answers in masked_parts if not {2, 5} <= answers]
    assert bool(missing) == (forever or ("unmask" not in phase and phase != "the report"))


@pytest.mark.parametrize("forever", [False, True], ids=["once", "forever"])
def test_who_is_lost_when_secrets_are_shared_again(forever: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites share the secrets of some questions at a time: who misses that has no part until it has shared them."""
    monkeypatch.setattr(tolerance, "BATCH", 4)
    monkeypatch.setattr(masked, "BATCH", 4)
    loss = Loss((1, 3), "prepare", skip=2, times=3, forever=forever)
    engine = compared([loss], minimum=4)
    assert loss._count.keys() == {1, 3}
    batches = {m.values["batch"] for m, _, _ in engine.left if m.kind == "prepare"}
    assert len(batches) > 3


@pytest.mark.parametrize("job", ["shrinking", "nystrom"])
def test_several_are_lost_one_after_another(job: str) -> None:
    losses = [
        Loss((0,), "question GramOf" if job == "shrinking" else "question SketchOf"),
        Loss((4,), "question GradientOf", 0, late=True),
        Loss((1,), "unmask", skip=4),
        Loss((6,), "question GradientOf", 2, forever=True),
    ]
    compared(losses, 4, job)


@settings(max_examples=12)
@given(data=st.data())
def test_any_participation_adds_up(data: st.DataObject) -> None:
    """Any number of sites of any sizes; at each question and each unmasking, any of them are lost."""
    N = data.draw(st.integers(3, 7), "sites")
    t = data.draw(st.integers(max(3, N // 2 + 1), N), "threshold")
    sizes = data.draw(st.lists(st.integers(1, 12), min_size=N, max_size=N), "sizes")
    parts = [*(small(1, n, i)[0] for i, n in enumerate(sizes)), small(1, 9, 99)[0]]
    phases = ["prepare", "question MomentsOf", "question GramOf", "question GradientOf", "question SlopesOf", "unmask"]
    losses = [
        Loss(
            data.draw(st.lists(st.integers(0, N - 1), max_size=N - t, unique=True), "lost"),
            phase,
            times=3 if phase == "prepare" else 10**9,
            skip=data.draw(st.integers(0, 2), "skip") if phase == "unmask" else 0,
        )
        for phase in data.draw(st.lists(st.sampled_from(phases), max_size=2, unique=True), "phases")
    ]
    engine = Losing(parts, losses)
    there = run(engine, parts, rounds=2, secure=True, minimum=t)
    here = run(Repeating(parts, engine), parts, rounds=2, minimum=t)
    np.testing.assert_array_equal(weights(here), weights(there))


@pytest.mark.parametrize("kind", ["introduction", "roster"])
@pytest.mark.parametrize("minimum", [None, 5])
def test_all_must_be_there_when_keys_are_exchanged(kind: str, minimum: int | None) -> None:
    parts = holdings()
    with pytest.raises(FFGBError, match=r"client 3 (did not answer|sent no key|does not take the keys)"):
        trained(Losing(parts, [Loss((3,), kind)]), parts, secure=True, minimum=minimum)


@pytest.mark.parametrize("phase", ["question GramOf", "question GradientOf"])
def test_a_strict_total_needs_everyone(phase: str) -> None:
    parts = holdings()
    for minimum, words in ((None, "client 3 did not answer in time"), (7, "client 3 did not answer .* needs all of 7")):
        with pytest.raises(FFGBError, match=words):
            trained(Losing(parts, [Loss((3,), phase)]), parts, secure=True, minimum=minimum)


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        ("question GramOf", r"client 1, client 3 did not answer a question about .* needs 6 of 7 clients"),
        ("question GradientOf", r"client 1, client 3 did not answer question GradientOf.* needs 6 of 7 clients"),
        ("unmask", "only 5 of 7 clients gave their shares, and 6 must"),
    ],
)
def test_too_few_are_left(phase: str, words: str) -> None:
    parts = holdings()
    with pytest.raises(FFGBError, match=words):
        trained(Losing(parts, [Loss((1, 3), phase)]), parts, secure=True, minimum=6)


def test_so_few_cannot_have_secure_totals() -> None:
    parts = holdings()
    with pytest.raises(FFGBError, match="secure totals need 3"):
        trained(InProcess([*parts[:2], parts[-1]]), [*parts[:2], parts[-1]], secure=True)
    with pytest.raises(FFGBError, match="needs more than half of them"):
        trained(InProcess(parts), parts, secure=True, minimum=3)


# What leaves


@pytest.mark.parametrize("minimum", [None, 5], ids=["strict", "tolerant"])
def test_all_that_leaves_is_uniform(minimum: int | None) -> None:
    """Through a whole training: every array of every answer; besides, only keys and shares leave."""
    parts = holdings()
    engine = Losing(parts, [Loss((3,), "question SlopesOf", 1)] if minimum else [])
    trained(engine, parts, secure=True, minimum=minimum)
    masks = np.zeros(256)
    for question, i, data in engine.left:
        if i == len(parts) - 1:
            continue  # test rows belong to no site in a simulation
        answer = decode(data)
        assert answer.kind in SILENT
        assert set(answer.values) <= {"signature"}
        assert (answer.kind == "masked") == (question.kind in IN_TOTALS and not question.values.get("quiet"))
        arrays = answer.tensors if answer.kind == "masked" else {}
        for array in arrays.values():
            masks += np.bincount(np.frombuffer(array.tobytes(), np.uint8), minlength=256)
    expected = masks.sum() / 256
    assert masks.sum() > 25_000
    assert float(((masks - expected) ** 2 / expected).sum()) < chi2.ppf(1 - 1e-9, 255)


def test_in_the_open_bytes_are_anything_but_uniform() -> None:
    parts = holdings()
    engine, counts = Losing(parts), np.zeros(256)
    trained(engine, parts)
    for _, _, data in engine.left:
        for array in decode(data).tensors.values():
            counts += np.bincount(np.frombuffer(array.tobytes(), np.uint8), minlength=256)
    expected = counts.sum() / 256
    assert float(((counts - expected) ** 2 / expected).sum()) > 100 * chi2.ppf(1 - 1e-9, 255)


def introduced(minimum: int | None = None) -> tuple[Host, list[bytes]]:
    """Clients in the middle of a secure training, and the messages that brought them there."""
    parts, sent = small(4, 6, 0), list[bytes]()

    class Noted(Engine):
        def __init__(self) -> None:
            self.inner = InProcess(parts)

        def exchange(self, data: bytes, clients: Sequence[int]) -> dict[int, bytes]:
            sent.append(data)
            return self.inner.exchange(data, clients)

        def close(self, *, at_once: bool = False) -> None:
            pass

    engine = Noted()
    run(engine, [*parts, parts[0]], rounds=1, secure=True, tests=0, minimum=minimum)
    return engine.inner._host, sent


def said(host: Host, message: Message, i: int = 0) -> Message:
    ((_, answer),) = host.answers(encode(message), [i])
    return decode(answer)


def test_in_a_secure_training_nothing_leaves_in_the_open() -> None:
    """A server that leaves out the masks, or says that a client needs none, hears nothing but a refusal."""
    host, sent = introduced()
    asked = 0
    for data in sent:
        message = decode(data)
        if message.kind not in IN_TOTALS:
            continue
        run_, number, _, without = message.values["masks"]
        bare = {**message.values, "masks": [run_, number, [0, 1], without]}
        for values in (bare, {n: v for n, v in message.values.items() if n != "masks"}):
            answer = said(host, replace(message, values=values))
            asked += answer.kind == "error"
            assert answer.kind == "resync" or "only under masks" in answer.values["text"]
            assert not answer.tensors
    assert asked >= 6
    for message in (Report(1).message(), Train(1, {}).message()):
        assert said(host, message).kind == "error"
        masks = decode(sent[-1]).values["masks"]
        hidden = said(host, replace(message, values={**message.values, "masks": masks}))
        assert hidden.kind in ("error", "masked")


def test_a_question_comes_again_when_f_is_another() -> None:
    """The server brings a client elsewhere, and repeats a question to the byte: its mask is not used twice."""
    host, sent = introduced()
    gradient = next(d for d in sent if what_leaves(decode(d)) == "question GradientOf")
    setup = next(d for d in sent if decode(d).kind == "setup")
    before = decode(dict(host.answers(setup, [0]))[0])
    assert before.kind == "ready"
    assert decode(dict(host.answers(gradient, [0]))[0]).kind == "masked"  # the same f: the same bytes
    client = host.clients[0]
    assert isinstance(client, Client)
    client.f[:, 0] += 1.0
    answer = decode(dict(host.answers(gradient, [0]))[0])
    assert "not used twice" in answer.values["text"]


def test_refusals_have_no_numbers_of_a_client_in_them(caplog: pytest.LogCaptureFixture) -> None:
    """A part that cannot be one stays where it is, and the words about it too."""
    host, sent = introduced()
    message = next(decode(d) for d in sent if what_leaves(decode(d)) == "question GramOf")
    asked = Asked.read(message, None)

    class Odd(type(asked.question)):  # type: ignore[misc]
        def check(self, own: Any, rows: int, part: float = 1.0) -> None:
            raise FFGBError("a value of 3.14159 is in it")

    object.__setattr__(asked, "question", Odd(**asked.question.__dict__))
    with pytest.raises(FFGBError) as refused, caplog.at_level(logging.WARNING, "ffgb"):
        host._part(0, asked, host.clients[0].answer(asked))
    assert "3.14" not in str(refused.value)
    assert "3.14" in caplog.text


def test_a_process_that_is_restored_remembers_its_masks() -> None:
    parts = small(4, 6, 0)
    _, sent = introduced()
    first = Resident({0: parts[0]})
    for data in sent:
        first.answer(data, [0])
    second = Resident({0: parts[0]})
    second.restore(first.snapshot())
    assert encode(second.host.secured[0].memory()) == encode(first.host.secured[0].memory())
    assert second.snapshot() == first.snapshot()


# Lies


def liar(kind: str, **changes: Any) -> Any:
    def fault(question: Message, i: int, answer: bytes) -> bytes:
        if i != 0 or what_leaves(question) != kind or decode(answer).kind != "masked":
            return answer
        return encode(with_tensors(decode(answer), **changes))

    return fault


def plus(value: int) -> Any:
    return lambda a: (a.view(f"u{a.itemsize}") + np.array(value).astype(f"u{a.itemsize}")).view(a.dtype)


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("question MomentsOf", {"mean": plus(2**62)}, "impossible .*its mean has a value of .* beyond its bound"),
        ("question MomentsOf", {"square": plus(-(2**61))}, "impossible"),
        ("question GramOf", {"gram": plus(2**30)}, "impossible .*its gram"),
        ("question GramOf", {"#rows": plus(-(10**6))}, "impossible .it is of -"),
        ("question GradientOf", {"square": plus(-(2**61))}, "impossible"),
        ("question SlopesOf", {"slopes": plus(-(2**62))}, "impossible"),
        ("report", {"clients": plus(1)}, "the reports of 4 clients is impossible: 5 clients"),
        ("report", {"numbers": plus(-(2**50))}, "the reports of 4 clients is impossible"),
    ],
)
def test_totals_that_no_sites_can_have_are_refused(kind: str, changes: dict[str, Any], words: str) -> None:
    """Masks hide a wrong part, and not that a total is impossible."""
    parts = small(5, 8, 0)
    for minimum in (None, 3):
        engine = Faulty(parts, liar(kind, **changes))
        with pytest.raises(ImpossibleError, match=words):
            run(engine, parts, rounds=2, secure=True, minimum=minimum)


def test_a_share_that_does_not_fit_is_refused_when_someone_is_missing() -> None:
    parts = small(6, 8, 0)

    def fault(question: Message, i: int, answer: bytes) -> bytes | None:
        if i == 1 and what_leaves(question) == "question GramOf":
            return None
        return liar("question GramOf", **{"#share": plus(-(2**62))})(question, i, answer)  # type: ignore[no-any-return]

    with pytest.raises(ImpossibleError, match="of the whole"):
        run(Faulty(parts, fault), parts, secure=True, minimum=3)


def test_a_part_of_the_test_set_has_no_masks() -> None:
    """It belongs to no site: if it sends what looks like masked numbers, they are not added to anyone's."""
    parts = small(5, 8, 0)

    def fault(question: Message, i: int, answer: bytes) -> bytes:
        if i == 4 and decode(answer).kind == "report":
            empty = {"clients": np.ones(2, np.int64), "numbers": np.ones((4, 4), np.int64)}
            return encode(Message("masked", question.round, i, tensors=empty))
        return answer

    plain = run(InProcess(parts), parts, rounds=1, secure=True)
    np.testing.assert_array_equal(weights(plain), weights(run(Faulty(parts, fault), parts, rounds=1, secure=True)))


def test_a_client_that_says_ready_in_place_of_its_part_is_named() -> None:
    parts = small(5, 8, 0)

    def fault(question: Message, i: int, answer: bytes) -> bytes:
        empty = encode(Message("ready", client=i))
        return empty if i == 2 and what_leaves(question) == "question GramOf" else answer

    for minimum, words in ((None, "client 2 did not answer a question about"), (4, "client 2 did not answer")):
        with pytest.raises(FFGBError, match=words):
            run(Faulty(parts, fault), parts, secure=True, minimum=minimum)


def test_a_loss_that_is_no_number_is_one_in_a_total() -> None:
    report = {"points": 3, "loss": float("nan"), "score": 1.0, "weight": 3.0}
    total = as_integers(report)
    assert Scores.total(total).loss == float("inf")
    assert Scores.of([{**report, "loss": 2.0}, {**report, "loss": float("inf")}]).loss == float("inf")  # type: ignore[union-attr]
    assert Scores.of([{**report, "loss": LARGEST / 4}]).loss == LARGEST / 4  # type: ignore[union-attr]


def test_a_training_that_diverges_says_so() -> None:
    parts = small(5, 8, 0)

    def fault(question: Message, i: int, answer: bytes) -> bytes:
        return answer

    with pytest.raises((DivergedError, FFGBError), match=r"became infinite|beyond its bound|diverged|impossible"):
        run(Faulty(parts, fault), parts, rounds=3, secure=True, step=1e30)


# A small job


def small(count: int, rows: int, seed: int) -> list[Holding]:
    rng, found = np.random.default_rng(seed), []
    for _ in range(count):
        y = rng.integers(0, CLASSES, rows)
        found.append(Holding((rng.standard_normal((rows, 3)) + y[:, None]).astype(np.float32), y))
    return found


def run(
    engine: Engine, parts: Sequence[Holding], rounds: int = 1, tests: int = 1, step: float = 1.0, **options: Any
) -> State:
    """A linear model of the last of these parts' fellows; the last is the test set."""

    def learner(ask: Any) -> Any:
        moments = Flatten(3)
        return Linear(moments, CLASSES), share_geometry(ask, moments, "exact", 1e-3)

    with engine:
        clients = parts[: len(parts) - 1]
        server = Server(engine, [len(h) for h in clients], tests, **{"by_size": True, **options})
        algorithm = FFGBShared(Constant(step), search=step == 1.0)
        state = server.start(algorithm, learner, CrossEntropy(CLASSES), scale_target=False)
        for after, _ in server.rounds(state, rounds):
            state = after
    return state


def weights(state: State) -> np.ndarray:
    array: np.ndarray = state.f.tensors()["parameters/weight"]
    return array


def test_contents_are_told_apart() -> None:
    message = Report(3).message()
    assert content(replace(message, values={"masks": 1})) == content(message) != content(Report(4).message())
