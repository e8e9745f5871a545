"""The server: the paper's Algorithm 1, the same for every algorithm and every engine."""

from __future__ import annotations

import hashlib
import logging
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any, TypeAlias, final

import numpy as np

from ffgb.aggregates import Ask, MomentsOf, Statistic, Tensors
from ffgb.algorithms import Algorithm
from ffgb.engines import Engine
from ffgb.errors import DivergedError, FFGBError
from ffgb.federation import Job, Target, Update, sample
from ffgb.functions import LARGEST, Array, Family, Function, Parameters, from_tensors
from ffgb.geometry import AtServer, Geometry
from ffgb.losses import Loss
from ffgb.recipes import describe
from ffgb.robust import Aggregate, Mean
from ffgb.wire import PRECISIONS, Expected, Form, Message, Sent, decode, encode, shown, what

log = logging.getLogger("ffgb")

Learner: TypeAlias = Callable[[Ask], tuple[Family, Geometry | None]]
"""How a family comes about, and the geometry that its clients share: from a seed, settings, and what all clients are
asked for."""

MARGIN = 0.05
"""What a step may fit of noise, beyond what it explains.  With many points to a feature no step can fit much."""

AT_ONCE = 512 * 2**20
"""Bytes of answers to a set-up question that are held at a time: Gram matrices are large, and clients many."""

LENGTHS = (0.0, *(2.0**j for j in range(-3, 9)))
"""Where clients are asked for slopes.  The slope along a line is increasing, so the best length lies where it changes
its sign; between two lengths it is taken to be linear, as for the square loss it is."""

MOST = 1e200
"""Of a loss or a score that a client reports: sums of more would not be finite."""

GO_ON = "go on from the last round: ffgb train --resume, or the same ffgb server again"

TRIES = 3
"""How often a client that lost its state is restored for one question before the run ends."""


@final
@dataclass(frozen=True)
class Costs:
    """What all clients together have sent and received so far, set-up included."""

    parameters_up: int = 0
    parameters_down: int = 0
    bytes_up: int = 0
    bytes_down: int = 0

    def up(self, messages: Iterable[Message]) -> Costs:
        some = list(messages)
        return replace(
            self,
            parameters_up=self.parameters_up + sum(m.parameters for m in some),
            bytes_up=self.bytes_up + sum(m.size for m in some),
        )

    def down(self, message: Message, clients: int, *, known: Iterable[Message] = ()) -> Costs:
        """One message to several clients.

        Of what a client sent itself the parameters are not counted, as in the paper; the bytes are, for they do travel.
        """
        return replace(
            self,
            parameters_down=self.parameters_down + message.parameters * clients - sum(m.parameters for m in known),
            bytes_down=self.bytes_down + len(encode(message)) * clients,
        )

    def since(self, before: Costs) -> Costs:
        """What came after."""
        return Costs(*(now - then for now, then in zip(astuple(self), astuple(before), strict=True)))

    def mean(self, clients: int, model: int) -> dict[str, float]:
        """One client's mean, in the three units; a *model* is the number of parameters of one weak learner."""
        return {
            "parameters_up": self.parameters_up / clients,
            "parameters_down": self.parameters_down / clients,
            "models_up": self.parameters_up / clients / model,
            "models_down": self.parameters_down / clients / model,
            "bytes_up": self.bytes_up / clients,
            "bytes_down": self.bytes_down / clients,
        }


@final
@dataclass(frozen=True, eq=False)
class State:
    """Everything that a round changes, and all that a checkpoint must hold: t rounds are over."""

    job: Job
    t: int
    f: Function
    updates: tuple[Update, ...]
    """What clients that missed rounds are sent: every round's increment (they make up f anyway), and nothing for a
    closed family, whose f is one array."""
    delivered: tuple[int, ...]
    """The version each client has, as far as the server knows."""
    costs: Costs
    geometry: Geometry | None = None
    """The one that clients share, if the server alone has it."""
    memory: Mapping[int, tuple[int, Parameters]] = field(default_factory=dict)
    """What clients keep, if the algorithm lets them, and since which round: of those that ever took part."""
    teacher: State | None = None
    """The last state of the job before, if this one's lessons come from it: who lost them is led through both."""

    @property
    def result(self) -> Function:
        """Proj_C(f^t), Algorithm 1, line 6."""
        return self.job.algorithm.project(self.f)

    def missing(self, version: int) -> tuple[Update, ...]:
        """What brings a client from f^version to f^t."""
        if version >= self.t:
            return ()
        if self.job.closed:
            return (Update(self.t, 0.0, self.f),)
        return self.updates[version - self.job.at :]


@final
class Server:
    """Clients 0 … N−1 train; `tests` are the further holdings of the engine that only report."""

    def __init__(
        self,
        engine: Engine,
        points: Sequence[int],
        tests: int = 0,
        *,
        seed: int = 0,
        participation: int | None = None,
        by_size: bool = False,
        precision: str = "float32",
        aggregate: Aggregate | None = None,
        minimum: int | None = None,
        names: Sequence[str] = (),
        on_setup: Callable[[str, int, int], None] = lambda what, done, clients: None,
    ) -> None:
        """With a minimum, a round goes on without those who do not answer, or answer what is refused, if that many do;
        without one everyone must answer."""
        self.engine = engine
        self.on_setup = on_setup
        self.N = len(points)
        self.m = self.N if participation is None else participation
        if not 1 <= self.m <= self.N:
            raise FFGBError(f"{self.m} of {self.N} clients cannot take part in a round; choose 1 … {self.N}")
        if precision not in PRECISIONS:
            raise FFGBError(f"--precision is {' or '.join(PRECISIONS)}, not {precision!r}")
        self.precision, self.minimum, self.aggregate = precision, minimum, aggregate or Mean()
        if minimum is not None and not 1 <= minimum <= self.m:
            raise FFGBError(f"of {self.m} clients in a round {minimum} cannot be the fewest that answer")
        self.names = [f"client {name}" for name in names or range(self.N)]
        self.tests = tuple(range(self.N, self.N + tests))
        self.points = list(points)
        self.weights = [float(n) for n in points] if by_size else [1.0] * self.N
        self.seed = seed
        self.sent: dict[str, Sent] = {}
        """What clients have sent so far: the largest message of each kind."""
        self.seen: dict[int, Message] = {}
        """The last report of each client, and of each part of the test set."""

    def start(
        self,
        algorithm: Algorithm,
        learner: Learner,
        loss: Loss,
        *,
        scale_target: bool = False,
        known: dict[str, Any] | None = None,
        before: Costs | None = None,
    ) -> State:
        """The set-up exchanges: what the learner asks for goes up, the job comes down.

        `known` remembers totals for the next start with the same clients, `before` is what was spent already.
        """
        if algorithm.search and self.m < self.N:
            raise FFGBError("the search for a step needs every client in every round; choose another --schedule")
        costs, totals = before or Costs(), {} if known is None else known

        def ask(statistic: Statistic) -> Any:
            nonlocal costs
            recipe, arrays = describe(statistic)
            request = Message("statistic", values={"recipe": recipe}, tensors=arrays)
            key = hashlib.sha256(encode(request)).hexdigest()
            if key not in totals:
                totals[key], costs = self._total(statistic, request, costs)
            return totals[key]

        target = Target.by(ask(MomentsOf.targets(loss.outputs))) if scale_target else None
        family, geometry = learner(ask)
        known_target = target or Target.unchanged(loss.outputs)
        algorithm = algorithm.prepared(ask, family, loss, known_target.mean, known_target.scale)
        family = algorithm.space(family)
        # One local step leaves the solve to the server; more need the geometry at the clients.
        given = AtServer() if geometry is not None and algorithm.K == 1 else geometry
        job = Job(algorithm, family, loss, target, self.seed, given, precision=self.precision)
        setup, everyone = setup_message(job), range(self.N)
        ready = self._exchange(setup, [*everyone, *self.tests], _expected(job, setup))
        costs = costs.down(setup, self.N).up(ready[i] for i in everyone if i in ready)
        return State(job, 0, job.start(), (), (0,) * self.N, costs, geometry if algorithm.K == 1 else None)

    def take_up(self, state: State) -> None:
        """Go on with one of several jobs that have the same clients in turn.

        Who was in this job before goes on where it was; others start, and are restored when they are asked.
        """
        setup = setup_message(state.job)
        name = hashlib.sha256(encode(setup)).hexdigest()
        turn = replace(setup, kind="turn", values={**setup.values, "name": name})
        self._exchange(turn, [*range(self.N), *self.tests], _expected(state.job, turn))

    def go_on(self, state: State, job: Job) -> State:
        """The clients leave their job for another, which may take its lessons from the last."""
        if job.taught:
            state, _ = self._catch_up(state, range(self.N))
        setup = replace(setup_message(job), round=state.t)
        ready = self._ask(state, setup, [*range(self.N), *self.tests])
        costs = state.costs.down(setup, self.N).up(ready[i] for i in range(self.N) if i in ready)
        teacher = state if job.taught else None
        return State(job, job.at, job.start(), (), (job.at,) * self.N, costs, teacher=teacher)

    def report(self, state: State) -> tuple[State, dict[str, Any]]:
        """Loss and score of f^t, as everyone sees it."""
        question, everyone = Message("report", state.t), range(self.N)
        reports = self._ask(state, question, [*everyone, *self.tests])
        came = [i for i in everyone if i in reports]
        state = replace(state, costs=state.costs.down(question, self.N).up(reports[i] for i in came))
        return state, self._metrics(state, came, (), reports)

    def _total(self, statistic: Statistic, request: Message, costs: Costs) -> tuple[Any, Costs]:
        """Put a question to all clients: the total of their answers, and what it cost.

        Answers are checked, added up in the order of the clients and let go, some clients at a time.
        """
        costs, reading = costs.down(request, self.N), -1
        forms = {name: Form(shape, dtype) for name, (shape, dtype) in statistic.spec.items()}
        expected = Expected(("statistic", "error"), forms=forms)

        def parts() -> Iterator[tuple[float, Tensors]]:
            nonlocal costs, reading
            some = max(4, min(16, AT_ONCE // max(statistic.size, 1)))
            for first in range(0, self.N, some):
                reading, clients = -1, range(first, min(first + some, self.N))
                self.on_setup(statistic.what, first, self.N)
                answers = self._exchange(request, clients, expected, TRIES, wait=True)
                if lost := [self.names[i] for i in clients if i not in answers]:
                    raise FFGBError(f"{lost[0]} did not answer a question that everyone must; try again later")
                for i in clients:
                    reading, answer = i, answers.pop(i)
                    costs = costs.up([answer])
                    if (points := answer.values.get("points")) != self.points[i]:
                        raise FFGBError(f"it is of {points} points, and the client has {self.points[i]}")
                    statistic.check(answer.tensors)
                    yield self.weights[i], answer.tensors
            reading = -1

        try:
            return statistic.total(parts()), costs
        except FFGBError as error:
            if reading < 0:
                raise
            raise FFGBError(f"{self.names[reading]} sent a statistic that is refused: {error}") from error

    def rounds(self, state: State, T: int, *, stop: bool = False) -> Iterator[tuple[State, dict[str, Any]]]:
        """Algorithm 1: the state and the metrics after each round.

        With `stop` they end early, when a step would fit more noise than it finds to learn (`spent`).
        """
        for t in range(state.t, T):
            began = time.perf_counter()
            S = sample(self.seed, t // state.job.algorithm.phases, self.N, self.m)  # line 3
            state, S = self._catch_up(state, S)
            train, asked = Message("train", t, values=_since(state, S)), S
            answers, increments, notes = self._increments(state, train, S)
            S = list(increments)
            state = replace(state, costs=state.costs.down(train, len(asked)).up(answers.values()))
            mean = self.aggregate(list(increments.values()), [self.weights[i] for i in S], state.f)
            share = 1.0 if len(S) == self.N else sum(self.weights[i] for i in S) / sum(self.weights)
            mean = state.job.algorithm.pooled(state.f, mean, share)
            state = replace(state, memory=_remembered(state, t, increments))
            # f^{t+1} = the mean of the clients' g^{K+1,t} = decay · f^t + the mean of their increments
            update = Update(t + 1, state.job.algorithm.decay(t), _solved(state.geometry, mean))  # line 4
            square = None
            if state.job.algorithm.search:
                slopes, square, state, S = self._slopes(state, update, S)
            algorithm = state.job.algorithm
            gammas, fit = notes["gamma"], dict[str, Any]()
            if state.geometry is not None:
                gamma, explained = self._fit(state, update, mean, square, S, answers)
                gammas, fit = [gamma], {"explained": explained, "noise": self._noise(state.geometry, S)}
            fit |= {name: float(total(notes[name])) for name, total in algorithm.totals.items() if notes[name]}
            if state.job.algorithm.search:
                state, reports = self._step(state, update, 0.0 if stop and spent(fit) else best_length(slopes), S)
            else:
                state, reports = self._deliver(state, update, S, answers)
            reports = self._heard(state, S, reports)
            metrics = self._metrics(state, [i for i in S if i in reports], gammas, reports) | fit
            metrics |= {"participants": len(increments), "seconds": time.perf_counter() - began}
            if metrics["train_loss"] is not None and not math.isfinite(metrics["train_loss"]):
                raise DivergedError(f"the loss became infinite in round {state.t}; choose a smaller --step-size")
            yield state, metrics
            if stop and spent(metrics):
                return

    def _deliver(
        self, state: State, update: Update, S: Sequence[int], answers: Mapping[int, Message]
    ) -> tuple[State, dict[int, Message]]:
        """Send the clients of this round f^{t+1}, and hear what they think of it."""
        closed, precision = state.job.closed, "float32" if state.job.closed else state.job.precision
        if state.job.algorithm.parametric or not closed:
            update = update.as_travelled(precision)  # everyone goes on with that
        state = _after(state, update)
        sent = update if state.job.algorithm.parametric else state.missing(state.t - 1)[-1]
        message = sent.message(precision=precision)
        reports = self._ask(state, message, [*S, *self.tests])
        going_on = state.t % state.job.algorithm.phases != 0  # the same clients come next
        if self.m == self.N or not closed or going_on:
            came = [i for i in S if i in reports]
            known = () if closed else [answers[i] for i in S]
            costs = state.costs.down(message, len(S), known=known).up(reports[i] for i in came)
            state = replace(state, costs=costs, delivered=_set(state.delivered, came, state.t))
        # else: a client that is sampled now and then needs f only when it is sampled again, and will then be sent
        # the newest.  That we look at f^{t+1} at its points already is a measurement, as on the test set.
        return state, reports

    def _heard(self, state: State, S: Sequence[int], reports: dict[int, Message]) -> dict[int, Message]:
        """The reports, if there is one at all: an f that no one can evaluate must not be kept, or there is no way
        back."""
        for _ in range(TRIES):
            if any(i in reports for i in S):
                return reports
            self.engine.wait(S)
            reports = reports | self._ask(state, Message("report", state.t), S)
        raise FFGBError(f"no client could say how good round {state.t} is, so it is not kept; {GO_ON}")

    def _slopes(self, state: State, update: Update, S: Sequence[int]) -> tuple[Array, float, State, list[int]]:
        """Send the increment, whose length is not fixed yet: slopes of the objective along it, and its mean square."""
        direction = update.message("direction", precision=state.job.precision)
        direction = replace(direction, values={**direction.values, "lengths": list(LENGTHS)})
        answers = self._ask(state, direction, [*S, *self.tests])
        came = [i for i in S if i in answers]
        self._enough(came, "said how good the step is")
        # what a client says of the step is no truer than what it said before
        said = np.stack([np.append(answers[i].tensors["slopes"], answers[i].tensors["square"]) for i in came])
        found = self.aggregate.rows(said, [self.weights[i] for i in came])
        costs = state.costs.down(direction, len(S)).up(answers[i] for i in came)
        return found[:-1], float(found[-1]), replace(state, costs=costs), came

    def _step(self, state: State, update: Update, s: float, S: Sequence[int]) -> tuple[State, dict[int, Message]]:
        """f^{t+1} = f^t + s(g − f^t), g the mean of the clients' functions: they have the increment, and are told s."""
        increment = update.as_travelled(state.job.precision).increment  # everyone goes on with that
        update = Update(update.version, 1.0 + s * (update.decay - 1.0), increment, s)
        step = Message("step", update.version, tensors={"step": np.array([update.decay, s])})
        state = _after(state, update)
        reports = self._ask(state, step, [*S, *self.tests])
        came = [i for i in S if i in reports]
        costs = state.costs.down(step, len(S)).up(reports[i] for i in came)
        return replace(state, costs=costs, delivered=_set(state.delivered, came, state.t)), reports

    def _fit(
        self,
        state: State,
        update: Update,
        mean: Function,
        square: float | None,
        S: Sequence[int],
        answers: Mapping[int, Message],
    ) -> tuple[float, float]:
        """γ = 1 − ‖h − φ‖/‖φ‖ in L²(α), for the mean answer h to the global gradient φ, and the share of ‖φ‖² along h.

        ‖φ‖² is the mean of what clients say; ⟨h, φ⟩ is the inner product of weights and covector; ‖h‖² is what clients
        measured at their points, or, where they were not asked, what the geometry says.  As for every oracle, an h that
        does not contract is measured by its best multiple: which length is taken is for the search to say.
        """
        assert state.geometry is not None
        squares = np.array([[answers[i].values["square"]] for i in S], np.float64)
        size = float(self.aggregate.rows(squares, [self.weights[i] for i in S])[0])
        b, w = mean.tensors()["parameters/weight"], update.increment.tensors()["parameters/weight"]
        # b and w are −η times the covector of φ and the weights of h
        eta2 = state.job.algorithm.eta(1, update.version - 1) ** 2
        own = (float(np.vdot(w, state.geometry.apply(w))) if square is None else square) / eta2
        inner = float(np.vdot(b, w)) / eta2
        if size <= 0.0 or own <= 0.0:
            return 1.0, 0.0
        explained = min(inner**2 / (own * size), 1.0)
        gamma = 1.0 - math.sqrt(max(own - 2.0 * inner + size, 0.0) / size)
        return (gamma if gamma > 0.0 else 1.0 - math.sqrt(1.0 - explained)), explained

    def _noise(self, geometry: Geometry, S: Sequence[int]) -> float | None:
        """The share of φ that h would explain if φ were nothing but noise; None if that is unknown.

        For independent noise at n points and h = Hφ, H = Φ(G + λI)⁻¹Φ'/n, one expects
        ⟨h, φ⟩² / ‖h‖²‖φ‖² ≈ tr(H)² / (n tr(H²)).
        """
        if geometry.freedom is None:
            return None
        weight = math.fsum(self.weights[i] for i in S)
        return geometry.freedom * math.fsum((self.weights[i] / weight) ** 2 / self.points[i] for i in S)

    def _catch_up(self, state: State, clients: Sequence[int]) -> tuple[State, list[int]]:
        """Send the sampled clients what they missed, and count it; who has all of it now."""
        for _ in range(TRIES):
            state, present = self._tell(state, clients)
            if len(present) >= (self.minimum or 1):
                break
            self.engine.wait([i for i in clients if i not in present])
        self._enough(present, "could be told what they had missed")
        return state, present

    def _tell(self, state: State, clients: Sequence[int]) -> tuple[State, list[int]]:
        costs, present = state.costs, list(clients)
        for update in state.missing(min(state.delivered[i] for i in clients)):
            some = [i for i in present if state.delivered[i] < update.version]
            message = update.message(precision="float32" if state.job.closed else state.job.precision)
            reports = self._ask(state, message, some, tries=TRIES)
            costs = costs.down(message, len(some)).up(reports.values())
            present = [i for i in present if i in reports or i not in some]
        return replace(state, costs=costs, delivered=_set(state.delivered, present, state.t)), present

    def _increments(
        self, state: State, train: Message, S: Sequence[int]
    ) -> tuple[dict[int, Message], dict[int, Function], dict[str, list[float]]]:
        """What clients answered, the increments among it that are sound, and what those clients noted."""
        job, increments = state.job, dict[int, Function]()
        notes: dict[str, list[float]] = {name: [] for name in ("gamma", *job.algorithm.totals)}
        answers = self._ask(state, train, S)
        for _ in range(TRIES):
            if len(answers) >= (self.minimum or 0):
                break
            silent = [i for i in S if i not in answers]
            self.engine.wait(silent)
            answers |= self._ask(state, train, silent)
        for i in (i for i in S if i in answers):  # in this order: sums are rounded
            try:
                increments[i], noted = _increment(job, answers[i]), _notes(answers[i], job.algorithm)
            except FFGBError as error:
                increments.pop(i, None)
                self._leave_out(i, error)
                continue
            for name, values in noted.items():
                notes[name] += values
        self._enough(list(increments), "answered")
        return answers, increments, notes

    def _enough(self, clients: Sequence[int], what: str) -> None:
        if len(clients) < (fewest := self.minimum or 1):
            raise FFGBError(
                f"only {len(clients)} of {self.m} clients {what}, and a round needs {fewest}; when they are back, "
                f"{GO_ON}"
            )

    def _leave_out(self, i: int, error: FFGBError) -> None:
        """Go on without a client's answer; or do not, if everyone must answer."""
        who = self.names[i] if i < self.N else "the test set"
        if self.minimum is None:
            raise type(error)(f"{who} {error}") from error
        if i < self.N:  # a part of the test set that is missing is a part of a measurement
            log.warning("%s is left out of this round: it %s", who, error)

    def _ask(self, state: State, message: Message, clients: Sequence[int], tries: int = 1) -> dict[int, Message]:
        """Each client's answer.  A client that lost its state (its worker died, the run was resumed) is restored first.

        Restoring is not counted as traffic: it is an accident of this machine, not a part of the method.
        """
        expected = _expected(state.job, message)
        answers = self._exchange(message, clients, expected, tries)
        for _ in range(TRIES):
            lost = {i: int(a.values["version"]) for i, a in answers.items() if a.kind == "resync"}
            if not lost:
                return answers
            # Of one array there is only the newest: who lost it is given that, whatever it was about to be sent.
            newest = message.kind in ("train", "step", "setup", "report") or (
                message.kind == "update" and state.job.closed
            )
            version = message.round if newest else message.round - 1
            self._restore(state, lost, version)
            again = self._exchange(message, list(lost), expected)
            answers = {i: a for i, a in answers.items() if i not in lost} | again
        for i, answer in list(answers.items()):
            if answer.kind == "resync":
                del answers[i]
                self._leave_out(i, FFGBError(f"lost its state {TRIES} times in a row"))
        return answers

    def _restore(self, state: State, versions: Mapping[int, int], version: int) -> None:
        """Bring clients from the versions they have (−1: nothing) to f^version.  Who fails is asked again, or left."""

        def tell(message: Message, clients: Sequence[int]) -> None:
            self._exchange(message, clients, _expected(state.job, message))

        if fresh := [i for i, v in versions.items() if v < 0]:
            if state.teacher is not None:
                self._restore(state.teacher, dict.fromkeys(fresh, -1), state.teacher.t)
            tell(setup_message(state.job), fresh)
        for update in state.missing(max(min(versions.values()), state.job.at)):
            if update.version <= version:
                tell(update.message(exact=True), [i for i, v in versions.items() if v < update.version])
        for i in versions:
            if i in state.memory:
                since, memory = state.memory[i]
                tell(Message("memory", since, tensors=dict(memory)), [i])

    def _exchange(
        self, message: Message, clients: Sequence[int], expected: Expected, tries: int = 1, *, wait: bool = False
    ) -> dict[int, Message]:
        """The clients' answers, as far as they came and are as expected."""
        found: dict[int, Message] = {}
        data, waiting = encode(message), list(clients)
        for attempt in range(tries):
            if attempt and wait:
                self.engine.wait(waiting)
            came = self.engine.exchange(data, waiting)
            for i in waiting:
                try:
                    if i not in came:
                        raise FFGBError("did not answer in time")
                    answer = _read(came[i], replace(expected, client=i), message.kind, strict=self.minimum is None)
                    if answer.kind == "report" and i < self.N and answer.values["points"] != self.points[i]:
                        raise FFGBError(f"reports of {answer.values['points']} points, and has {self.points[i]}")
                    found[i] = answer
                    self._note(message, i, answer)
                except FFGBError as error:
                    self._leave_out(i, error)
            waiting = [i for i in waiting if i not in found]
            if not waiting:
                break
        return found

    def _note(self, question: Message, i: int, answer: Message) -> None:
        if answer.kind == "report":
            self.seen[i] = answer
        if i < self.N and answer.kind != "resync":
            key = what(question)
            if key not in self.sent or answer.size > self.sent[key].bytes:
                self.sent[key] = Sent.of(question, answer)

    def _metrics(
        self, state: State, S: Sequence[int], gammas: Sequence[float], reports: Mapping[int, Message]
    ) -> dict[str, Any]:
        weights = [self.weights[i] for i in S]
        losses = [reports[i].values["loss"] / reports[i].values["points"] for i in S]
        mean = sum(w * loss for w, loss in zip(weights, losses, strict=True)) / sum(weights) if S else None
        metrics: dict[str, Any] = {"round": state.t, "train_loss": mean}
        classification = state.job.loss.classification
        for name, part in (("train", S), ("test", [i for i in self.tests if i in reports])):
            if points := sum(reports[i].values["points"] for i in part):
                score = sum(reports[i].values["score"] for i in part) / points
                metrics[f"{name}_accuracy" if classification else f"{name}_rmse"] = (
                    score if classification else score**0.5
                )
                if name == "test":
                    metrics["test_loss"] = sum(reports[i].values["loss"] for i in part) / points
        return (
            metrics
            | state.costs.mean(self.N, state.job.family.size)
            | {
                "gamma_min": min(gammas) if gammas else None,  # only weak learners have one
                "gamma_median": statistics.median(gammas) if gammas else None,
                "participants": len(S),
            }
        )


def _expected(job: Job, question: Message) -> Expected:
    """What a client may answer to a question."""
    kinds = {"train": "answer", "direction": "slopes", **dict.fromkeys(("setup", "turn", "memory"), "ready")}
    kind = kinds.get(question.kind, "report")
    forms, optional, t = dict[str, Form](), frozenset[str](), None if kind == "ready" else question.round
    if kind == "answer":
        family, K = job.algorithm.answers(job.family, question.round), max(job.algorithm.K, 1)
        terms = 0 if family.closed and not job.algorithm.clips else K
        forms = {
            f"parameters/{name}": Form(shape, dtype, terms, family.largest(name))
            for name, (shape, dtype) in family.spec.items()
        }
        if terms:
            forms |= {name: Form((), "float64", terms, LARGEST) for name in ("weights", "radii")}
            optional = frozenset() if job.algorithm.clips else frozenset({"radii"})
    elif kind == "slopes":
        forms = {"slopes": Form((len(LENGTHS),), "float64"), "square": Form((1,), "float64")}
    numbers = ("square",) if kind == "answer" and isinstance(job.geometry, AtServer) else ()
    return Expected((kind, "resync", "error"), t, forms=forms, optional=optional, values=numbers)


def _read(data: bytes, expected: Expected, question: str, *, strict: bool) -> Message:
    """An answer; an FFGBError if it is refused, or says that something went wrong."""
    try:
        answer = decode(data, expected)
    except FFGBError as error:
        raise FFGBError(f"sent what is refused: {error}") from error
    if answer.kind == "error":
        text = shown(answer.values["text"])
        if answer.values.get("defect") and strict:
            raise RuntimeError(f"client {answer.client} failed at the message {question!r}:\n{answer.values['text']}")
        raise (DivergedError if answer.values.get("diverged") else FFGBError)(f"says: {text}")
    if answer.kind == "report":
        points, loss, score = (answer.values[name] for name in ("points", "loss", "score"))
        if points < 1 or abs(loss) > MOST or not 0 <= score <= MOST:
            raise FFGBError(f"reports what cannot be: {points} points, a loss of {loss:g}, a score of {score:g}")
    return answer


def _notes(answer: Message, algorithm: Algorithm) -> dict[str, list[float]]:
    """What a client noted in a round, by name, a number a step; checked, for it came from outside."""
    known, sent = ("gamma", *algorithm.totals), answer.values["notes"]
    if not sent.keys() <= set(known):
        raise FFGBError(f"sent notes that are refused: they are not {', '.join(known)}")
    for name, values in sent.items():
        fits = isinstance(values, list) and len(values) <= algorithm.K
        if not fits or not all(isinstance(v, float) and math.isfinite(v) for v in values):
            raise FFGBError(f"sent a {name} that is refused: it is not a finite number a local step")
    return dict(sent)


def _since(state: State, S: Sequence[int]) -> dict[str, Any]:
    """Since which round each client keeps what it should keep, if the algorithm lets it keep anything."""
    known = {str(i): state.memory[i][0] for i in S if i in state.memory}
    return {"memory": known} if known else {}


def _remembered(state: State, t: int, answered: Mapping[int, Function]) -> dict[int, tuple[int, Parameters]]:
    """What clients keep after round t, as the server knows it from what they were given and answered."""
    memory = dict(state.memory)
    for i, g in answered.items():
        _, before = memory.get(i, (0, {}))
        if after := state.job.algorithm.remember(before, state.f, g):
            memory[i] = t + 1, after
    return memory


def _increment(job: Job, answer: Message) -> Function:
    """A client's increment, checked: it is about to become a part of everyone's function."""
    try:
        return from_tensors(job.algorithm.answers(job.family, answer.round), answer.tensors)
    except FFGBError as error:
        raise FFGBError(f"sent an increment that is refused: {error}") from error


def _solved(geometry: Geometry | None, mean: Function) -> Function:
    """The mean answer: (G + λI)⁻¹ of the mean covector, if the server has the geometry."""
    if geometry is None:
        return mean
    return mean.family.member({"weight": geometry.solve(mean.tensors()["parameters/weight"])})


def _after(state: State, update: Update) -> State:
    """The state with f^{t+1} in place of f^t."""
    updates = () if state.job.closed else (*state.updates, update)
    return replace(state, t=update.version, f=update.after(state.f, state.job.algorithm), updates=updates)


def best_length(slopes: Array) -> float:
    """Where the slope along the line is 0, given it at `LENGTHS`; 0 if the line does not descend at all.

    >>> best_length(np.array(LENGTHS) - 3.0)
    3.0
    """
    if slopes[0] >= 0.0:
        return 0.0
    if (slopes < 0.0).all():
        return LENGTHS[-1]
    after = int(np.argmax(slopes >= 0.0))
    low, high = slopes[after - 1], slopes[after]
    return float(LENGTHS[after - 1] + (LENGTHS[after] - LENGTHS[after - 1]) * (-low / (high - low)))


def spent(metrics: Mapping[str, Any]) -> bool:
    """Is there nothing left to learn but noise?

    So it is when the mean answer explains less of the gradient than it would of pure noise, by a twentieth of it.
    """
    noise = metrics.get("noise")
    return noise is not None and bool(noise - metrics["explained"] > MARGIN)


def setup_message(job: Job) -> Message:
    """The job as a message."""
    recipe, arrays = describe(job)
    return Message("setup", values={"recipe": recipe}, tensors=arrays)


def _set(versions: tuple[int, ...], clients: Iterable[int], version: int) -> tuple[int, ...]:
    some = set(clients)
    return tuple(version if i in some else v for i, v in enumerate(versions))
