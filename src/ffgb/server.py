"""The server: the paper's Algorithm 1, the same for every algorithm and every engine."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, final

from ffgb.algorithms import Algorithm
from ffgb.engines import Engine
from ffgb.errors import FFGBError
from ffgb.features import Moments
from ffgb.federation import Job, Target, Update, sample
from ffgb.functions import Family, Function, average, from_tensors
from ffgb.losses import Loss
from ffgb.recipes import describe
from ffgb.wire import Message, decode, encode

Learner: TypeAlias = Callable[[Moments], Family]
"""How a family comes about: from moments aggregated over all clients (empty ones, if none were asked for)."""

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
        """One message to several clients; what a client sent itself, it need not be sent back."""
        own = list(known)
        return replace(
            self,
            parameters_down=self.parameters_down + message.parameters * clients - sum(m.parameters for m in own),
            bytes_down=self.bytes_down
            + len(encode(message)) * clients
            - sum(a.nbytes for m in own for a in m.tensors.values()),
        )

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

    @property
    def result(self) -> Function:
        """Proj_C(f^t), Algorithm 1, line 6."""
        return self.job.algorithm.project(self.f)

    def missing(self, version: int) -> tuple[Update, ...]:
        """What brings a client from f^version to f^t."""
        if version >= self.t:
            return ()
        if self.job.family.closed:
            return (Update(self.t, 0.0, self.f),)
        return self.updates[version:]


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
    ) -> None:
        self.engine = engine
        self.N = len(points)
        self.m = self.N if participation is None else participation
        if not 1 <= self.m <= self.N:
            raise FFGBError(f"{self.m} of {self.N} clients cannot take part in a round; choose 1 … {self.N}")
        self.tests = tuple(range(self.N, self.N + tests))
        self.weights = [float(n) for n in points] if by_size else [1.0] * self.N
        self.seed = seed

    def start(self, algorithm: Algorithm, learner: Learner, loss: Loss, *, moments: bool, scale_target: bool) -> State:
        """The set-up exchange: aggregated moments up, the job down."""
        everyone, costs = range(self.N), Costs()
        x_moments = Moments.none()
        target: Target | None = None
        if moments or scale_target:
            request = Message("moments")
            answers = self._exchange(encode(request), everyone)
            costs = costs.down(request, self.N).up(answers.values())
            x_moments = _total([answers[i] for i in everyone], "x/")
            target = Target.by(_total([answers[i] for i in everyone], "y/")) if scale_target else None
        job = Job(algorithm, learner(x_moments), loss, target, self.seed)
        setup = setup_message(job)
        ready = self._exchange(encode(setup), [*everyone, *self.tests])
        costs = costs.down(setup, self.N).up(ready[i] for i in everyone)
        return State(job, 0, job.family.zero(), (), (0,) * self.N, costs)

    def rounds(self, state: State, T: int) -> Iterator[tuple[State, dict[str, Any]]]:
        """Algorithm 1: the state and the metrics after each round."""
        for t in range(state.t, T):
            began = time.perf_counter()
            S = sample(self.seed, t, self.N, self.m)  # line 3
            state = self._catch_up(state, S)
            train = Message("train", t)
            answers = self._ask(state, train, S)
            increment = average([_increment(state.job.family, answers[i]) for i in S], [self.weights[i] for i in S])
            state = self._step(state, increment)  # line 4
            update = state.missing(t)[-1].message()
            reports = self._ask(state, update, [*S, *self.tests])
            state = replace(state, costs=state.costs.down(train, len(S)).up(answers[i] for i in S))
            if self.m == self.N or not state.job.family.closed:
                known = () if state.job.family.closed else [answers[i] for i in S]
                costs = state.costs.down(update, len(S), known=known).up(reports[i] for i in S)
                state = replace(state, costs=costs, delivered=_set(state.delivered, S, t + 1))
            # else: a client that is sampled now and then needs f only when it is sampled again, and will then be sent
            # the newest.  That we look at f^{t+1} at its points already is a measurement, as on the test set.
            metrics = self._metrics(state, S, answers, reports) | {"seconds": time.perf_counter() - began}
            if not math.isfinite(metrics["train_loss"]):
                raise FFGBError(f"the loss became infinite in round {state.t}; choose a smaller --step-size")
            yield state, metrics

    def _step(self, state: State, increment: Function) -> State:
        """f^{t+1} = the mean of the clients' g^{K+1,t} = decay · f^t + the mean of their increments."""
        decay = state.job.algorithm.decay(state.t)
        f = state.f * decay + increment
        updates = () if state.job.family.closed else (*state.updates, Update(state.t + 1, decay, increment))
        return replace(state, t=state.t + 1, f=f, updates=updates)

    def _catch_up(self, state: State, clients: Sequence[int]) -> State:
        """Send the sampled clients what they missed, and count it."""
        costs = state.costs
        for update in state.missing(min(state.delivered[i] for i in clients)):
            some = [i for i in clients if state.delivered[i] < update.version]
            message = update.message()
            reports = self._ask(state, message, some)
            costs = costs.down(message, len(some)).up(reports.values())
        return replace(state, costs=costs, delivered=_set(state.delivered, clients, state.t))

    def _ask(self, state: State, message: Message, clients: Sequence[int]) -> dict[int, Message]:
        """Each client's answer.  A client that lost its state (its worker died, the run was resumed) is restored first.

        Restoring is not counted as traffic: it is an accident of this machine, not a part of the method.
        """
        data = encode(message)
        answers = self._exchange(data, clients)
        for _ in range(TRIES):
            lost = {i: int(a.values["version"]) for i, a in answers.items() if a.kind == "resync"}
            if not lost:
                return answers
            self._restore(state, lost, message.round if message.kind == "train" else message.round - 1)
            answers |= self._exchange(data, list(lost))
        raise FFGBError(f"client {min(lost)} lost its state {TRIES} times in a row; see the messages above for why")

    def _restore(self, state: State, versions: Mapping[int, int], version: int) -> None:
        """Bring clients from the versions they have (−1: nothing) to f^version."""
        if fresh := [i for i, v in versions.items() if v < 0]:
            self._exchange(encode(setup_message(state.job)), fresh)
        for update in state.missing(max(min(versions.values()), 0)):
            if update.version <= version:
                some = [i for i, v in versions.items() if v < update.version]
                self._exchange(encode(update.message()), some)

    def _exchange(self, data: bytes, clients: Sequence[int]) -> dict[int, Message]:
        answers = {i: decode(answer) for i, answer in self.engine.exchange(data, clients).items()}
        for i in clients:
            if answers[i].kind == "error":
                text = answers[i].values["text"]
                if answers[i].values.get("defect"):
                    raise RuntimeError(f"client {i} failed at the message {decode(data).kind!r}:\n{text}")
                raise FFGBError(f"client {i}: {text}")
        return answers

    def _metrics(
        self, state: State, S: Sequence[int], answers: Mapping[int, Message], reports: Mapping[int, Message]
    ) -> dict[str, Any]:
        gammas = [gamma for i in S for gamma in answers[i].values["gamma"]]
        weights = [self.weights[i] for i in S]
        losses = [reports[i].values["loss"] / reports[i].values["points"] for i in S]
        metrics: dict[str, Any] = {
            "round": state.t,
            "train_loss": sum(w * loss for w, loss in zip(weights, losses, strict=True)) / sum(weights),
        }
        classification = state.job.loss.classification
        for name, part in (("train", S), ("test", self.tests)):
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
            | {"gamma_min": min(gammas), "gamma_median": statistics.median(gammas), "participants": len(S)}
        )


def _increment(family: Family, answer: Message) -> Function:
    """A client's increment, checked: it is about to become a part of everyone's function."""
    try:
        return from_tensors(family, answer.tensors)
    except FFGBError as error:
        raise FFGBError(f"client {answer.client} sent an increment that is refused: {error}") from error


def setup_message(job: Job) -> Message:
    """The job as a message."""
    recipe, arrays = describe(job)
    return Message("setup", values={"recipe": recipe}, tensors=arrays)


def _set(versions: tuple[int, ...], clients: Iterable[int], version: int) -> tuple[int, ...]:
    some = set(clients)
    return tuple(version if i in some else v for i, v in enumerate(versions))


def _total(messages: Sequence[Message], prefix: str) -> Moments:
    return Moments.total(
        Moments.from_tensors({n.removeprefix(prefix): a for n, a in m.tensors.items() if n.startswith(prefix)})
        for m in messages
    )
