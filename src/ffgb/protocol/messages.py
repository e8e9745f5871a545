"""The messages of the protocol: one frozen class a kind, each with the answer that it expects.

    server → client                                          client → server
    Asked: a question, before training or about f^t          part: the client's part of the total
    Setup: the job (algorithm, loss, family, …)              ready
    Turn: one of several jobs, each gone on with in turn     ready
    Train: round t                                           increment, and the γ of its oracle calls
    Take: what brings f^{t−1} (or nothing) to f^t            report: loss and score of f^t at its points
    Along: the same, along the function of the last question report
    Report: nothing but that                                 report
    Remember: what a client kept before it was restored      ready
    Introduce, Roll, Tie, Ties, Prepare, Unmask: secure totals (masking.py)

A client that is not where a message says (it restarted, or missed rounds) answers `resync` with the version it has; one
that cannot answer says `error`.  A message is read once in a process, for all of its clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

from ffgb.core.functions import LARGEST, ClosedSum, Function, from_tensors
from ffgb.core.proofs import Proven
from ffgb.core.questions import Question, RoundQuestion
from ffgb.core.types import Parameters
from ffgb.core.weighting import Weighting
from ffgb.errors import FFGBError
from ffgb.protocol.codec import Expected, Form, Message
from ffgb.protocol.describe import build, describe
from ffgb.protocol.job import Job, Update, light
from ffgb.protocol.masking import Introduce, Prepare, Reopen, Roll, Tie, Ties, Unmask
from ffgb.protocol.sending import ALWAYS, SETUP_ROUND, Sending


def _question_in(message: Message) -> tuple[Question, Weighting]:
    """The question that a message asks, and how answers are weighed."""
    built = build(message.values.get("recipe"), {n: a for n, a in message.tensors.items() if n.startswith("recipe")})
    match built:
        case (Question() as question, Weighting() as weighting):
            return question, weighting
    raise FFGBError("a message asks no question")


@final
@dataclass(frozen=True, eq=False)
class Asked(Sending):
    """A question, put to all clients; a function may come with it."""

    kind: ClassVar[str] = "question"
    with_f: ClassVar[bool] = False  # a question about f^t says so itself
    question: Question
    weighting: Weighting
    round: int = SETUP_ROUND
    shown: Function | None = None
    looking: tuple[int, ...] = ()
    """Clients that only look at the function: they go along with the others, and answer nothing."""
    precision: str = "float32"

    @property
    def answer(self) -> str:
        question = self.question.question if isinstance(self.question, Proven) else self.question
        return f"question {type(question).__name__}"

    @property
    def before_training(self) -> bool:  # type: ignore[override]
        return self.round == SETUP_ROUND

    @property
    def after_training(self) -> bool:  # type: ignore[override]
        return isinstance(self.question, RoundQuestion) and self.question.of_result

    def message(self) -> Message:
        recipe, arrays = describe((self.question, self.weighting))
        tensors = arrays if self.shown is None else {**arrays, **light(self.shown)}
        values = {"recipe": recipe, "shown": self.shown is not None, "looking": list(self.looking)}
        return Message(self.kind, self.round, values=values, tensors=tensors, precision=self.precision)

    @staticmethod
    def read(message: Message, job: Job | None) -> Asked:
        question, weighting = _question_in(message)
        about_f = isinstance(question, RoundQuestion)
        if about_f != (message.round >= 0):
            raise FFGBError("a question about f is asked before training, or another in a round")
        looking = message.values.get("looking", [])
        if not isinstance(looking, list) or not all(type(i) is int for i in looking):
            raise FFGBError("a message does not say who only looks")
        if not message.values.get("shown"):
            if looking:
                raise FFGBError("there is nothing to look at in a message")
            return Asked(question, weighting, message.round)
        if job is None or not about_f:
            raise FFGBError("a function is shown before training")
        arrays = {n: a for n, a in message.tensors.items() if not n.startswith("recipe")}
        return Asked(question, weighting, message.round, from_tensors(job.family, arrays), tuple(looking))

    def expected(self, job: Job | None) -> Expected:
        forms = {name: Form(each.shape, each.dtype) for name, each in self.question.sums.items()}
        return Expected(("part", "ready", *ALWAYS), self.round, forms=forms)


@final
@dataclass(frozen=True, eq=False)
class Setup(Sending):
    """The job that clients take part in."""

    kind: ClassVar[str] = "setup"
    answer: ClassVar[str] = "ready"
    before_training: ClassVar[bool] = True
    with_f: ClassVar[bool] = False
    job: Job
    round: int = 0

    def message(self) -> Message:
        recipe, arrays = describe(self.job)
        return Message(self.kind, self.round, values={"recipe": recipe}, tensors=arrays)

    @staticmethod
    def read(message: Message, job: Job | None) -> Setup:
        built = build(message.values["recipe"], message.tensors)
        if not isinstance(built, Job):
            raise FFGBError("a set-up message does not describe a job")
        return Setup(built, message.round)

    def expected(self, job: Job | None) -> Expected:
        return Expected(("ready", *ALWAYS))


@final
@dataclass(frozen=True, eq=False)
class Turn(Sending):
    """One of several jobs that clients take part in by turns."""

    kind: ClassVar[str] = "turn"
    answer: ClassVar[str] = "ready"
    before_training: ClassVar[bool] = True
    with_f: ClassVar[bool] = False
    job: Job
    name: str

    def message(self) -> Message:
        recipe, arrays = describe(self.job)
        return Message(self.kind, values={"recipe": recipe, "name": self.name}, tensors=arrays)

    @staticmethod
    def read(message: Message, job: Job | None) -> Turn:
        return Turn(Setup.read(message, job).job, str(message.values["name"]))

    def expected(self, job: Job | None) -> Expected:
        return Expected(("ready", *ALWAYS))


@final
@dataclass(frozen=True, eq=False)
class Train(Sending):
    """Run the client procedure of round t."""

    kind: ClassVar[str] = "train"
    answer: ClassVar[str] = "increment"
    round: int
    memory: Mapping[str, int]
    """Since which round clients keep what they keep, by their numbers."""

    def message(self) -> Message:
        return Message(self.kind, self.round, values={"memory": dict(self.memory)} if self.memory else {})

    @staticmethod
    def read(message: Message, job: Job | None) -> Train:
        memory = message.values.get("memory", {})
        if not isinstance(memory, dict) or not all(type(since) is int for since in memory.values()):
            raise FFGBError("a message describes in an unknown way what clients keep")
        return Train(message.round, memory)

    def expected(self, job: Job | None) -> Expected:
        assert job is not None
        algorithm = job.procedure
        family = algorithm.answers(job.family, self.round)
        terms = 0 if isinstance(algorithm.zero(family), ClosedSum) else max(algorithm.K, 1)
        forms = {
            f"parameters/{name}": Form(shape, dtype, terms, family.largest(name))
            for name, (shape, dtype) in family.spec.items()
        }
        if terms:
            forms |= {name: Form((), "float64", terms, LARGEST) for name in ("weights", "radii")}
        return Expected(("answer", *ALWAYS), self.round, forms=forms, optional=algorithm.optional() & forms.keys())


class _Reported(Sending):
    """A message that is answered with loss and score of f^t."""

    answer: ClassVar[str] = "report"
    round: int

    def expected(self, job: Job | None) -> Expected:
        return Expected(("report", *ALWAYS), self.round)


@final
@dataclass(frozen=True, eq=False)
class Take(_Reported):
    """Go on to f^{t+1}."""

    kind: ClassVar[str] = "update"
    update: Update
    precision: str = "float32"
    exact: bool = False
    """Every bit is sent, for a client that is restored and must go on as it was."""
    quiet: bool = False
    """The client only says that it is ready: in a secure training no report of a single client leaves it."""

    @property
    def round(self) -> int:  # type: ignore[override]
        return self.update.version

    def message(self) -> Message:
        message = self.update.message(self.kind, exact=self.exact, precision=self.precision)
        return replace(message, values={**message.values, "quiet": True}) if self.quiet else message

    @staticmethod
    def read(message: Message, job: Job | None) -> Take:
        if job is None:
            raise FFGBError("an update came before a job")
        return Take(Update.read(message, job), quiet=message.values.get("quiet") is True)

    def expected(self, job: Job | None) -> Expected:
        return Expected(("ready", *ALWAYS)) if self.quiet else super().expected(job)


@final
@dataclass(frozen=True, eq=False)
class Along(_Reported):
    """Go on to f^{t+1} = decay · f^t + step · h, h the function that came with the last question."""

    kind: ClassVar[str] = "step"
    round: int
    decay: float
    step: float

    def message(self) -> Message:
        return Message(self.kind, self.round, values={"decay": self.decay, "step": self.step})

    @staticmethod
    def read(message: Message, job: Job | None) -> Along:
        decay, step = message.values.get("decay"), message.values.get("step")
        if not isinstance(decay, float) or not isinstance(step, float):
            raise FFGBError("a step has no length")
        return Along(message.round, decay, step)


@final
@dataclass(frozen=True, eq=False)
class Report(_Reported):
    """Say how good f^t is."""

    kind: ClassVar[str] = "report"
    round: int

    def message(self) -> Message:
        return Message(self.kind, self.round)

    @staticmethod
    def read(message: Message, job: Job | None) -> Report:
        return Report(message.round)


@final
@dataclass(frozen=True, eq=False)
class Remember(Sending):
    """Keep this, as before."""

    kind: ClassVar[str] = "memory"
    answer: ClassVar[str] = "ready"
    before_training: ClassVar[bool] = True
    since: int
    memory: Parameters

    def message(self) -> Message:
        return Message(self.kind, self.since, tensors=dict(self.memory))

    @staticmethod
    def read(message: Message, job: Job | None) -> Remember:
        return Remember(message.round, message.tensors)

    def expected(self, job: Job | None) -> Expected:
        return Expected(("ready", *ALWAYS))


KINDS: Mapping[str, type[Sending]] = {
    kind.kind: kind
    for kind in (
        Asked,
        Setup,
        Turn,
        Train,
        Take,
        Along,
        Report,
        Remember,
        Introduce,
        Roll,
        Tie,
        Ties,
        Prepare,
        Unmask,
        Reopen,
    )
}
"""Every kind of message that a server may send."""

QUESTIONS = Expected(tuple(KINDS), forms=None)
"""What a client is ready to take."""


def read(message: Message, job: Job | None) -> Sending:
    """What a message says; an FFGBError if it is none of these."""
    if message.kind not in KINDS:
        raise FFGBError(f"there is no message {message.kind!r}")
    try:
        return KINDS[message.kind].read(message, job)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise FFGBError(f"a message {message.kind!r} cannot be understood ({type(error).__name__}: {error})") from error


def what_leaves(message: Message) -> str:
    """What is answered to a message, in a word or two, by the message alone."""
    if message.kind == Asked.kind:
        recipe: Any = message.values.get("recipe")
        question = recipe[0] if isinstance(recipe, list) and recipe else {}
        if isinstance(question, dict) and question.get("kind") == Proven.__name__:
            question = question.get("question")
        return f"question {question.get('kind') if isinstance(question, dict) else None}"
    return str(KINDS[message.kind].answer) if message.kind in KINDS else message.kind
