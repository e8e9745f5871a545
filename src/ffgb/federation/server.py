"""The server: Algorithm 1, the same for every algorithm and every engine."""

from __future__ import annotations

import hashlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeAlias, final

import numpy as np

from ffgb.algorithms import Algorithm
from ffgb.algorithms.ffgb_shared import spent
from ffgb.core.functions import Family, Function
from ffgb.core.geometry import Geometry
from ffgb.core.losses import Loss
from ffgb.core.means import Aggregate, Mean
from ffgb.core.quantiles import quantile_of_targets, robust_scaling
from ffgb.core.questions import Ask
from ffgb.errors import DivergedError, FFGBError, SettingError, option
from ffgb.federation.conversation import Conversation
from ffgb.federation.masked import Masked, MaskedRound, MaskedSetUp
from ffgb.federation.participants import Participants
from ffgb.federation.procedures import InTheOpen, Procedure, UnderMasks
from ffgb.federation.result import AskHeldOut
from ffgb.federation.round import Round
from ffgb.federation.state import State
from ffgb.federation.totals import BeforeTraining, SetUp
from ffgb.privacy.reports import Scores
from ffgb.protocol.codec import PRECISIONS, Message, encode
from ffgb.protocol.costs import Costs
from ffgb.protocol.engine import Engine
from ffgb.protocol.job import Beginning, Job, Target
from ffgb.protocol.messages import Report, Setup, Turn

Learner: TypeAlias = Callable[[Ask], tuple[Family, Geometry | None]]
"""How a family comes about, and the geometry that its clients share: from a seed, settings, and totals that are asked
for."""


def scaled_target(ask: Ask, algorithm: Algorithm, loss: Loss) -> Target | None:
    """How targets are scaled, so that f = 0 is a good constant to begin with."""
    if not loss.alone:  # only the order of targets counts, and not even their mean leaves a client
        return None
    scaling = loss.scaling(algorithm.moments_of_targets(ask, loss.outputs))
    if scaling is None:
        return None
    mean, scale = scaling
    if loss.robust:
        mean, scale = robust_scaling(ask, mean, scale)
    if loss.start_level is not None:
        mean = quantile_of_targets(ask, loss.start_level, mean, scale)
    return Target(mean, scale)


@final
class Server:
    """Trains with the clients of an engine."""

    def __init__(
        self,
        engine: Engine,
        points: Sequence[int],
        tests: int = 0,
        *,
        seed: int = 0,
        precision: str = "float32",
        aggregate: Aggregate | None = None,
        secure: bool = False,
        registered: dict[str, str] | None = None,
        on_setup: Callable[[str, int, int], None] = lambda what, done, clients: None,
        **clients: Any,
    ) -> None:
        """Clients 0 … N−1 train, with so many points each; `tests` more clients only report.

        `clients` says how they take part (participants.py): participation, by_size, minimum, names …  With `secure`
        the server sees totals alone; `registered` are then the keys of real sites (federation/masked.py).
        """
        if precision not in PRECISIONS:
            raise SettingError("precision", f"is {' or '.join(PRECISIONS)}, not {precision!r}")
        self.clients = Participants(points, tests, **clients)
        self.conversation = Conversation(engine, self.clients)
        self.engine, self.seed, self.precision, self.on_setup = engine, seed, precision, on_setup
        self.aggregate = aggregate or Mean()
        self.masked = self._hidden(registered) if secure else None
        self.ways = InTheOpen(self.conversation, self.aggregate) if self.masked is None else UnderMasks(self.masked)
        self.setup_absent: dict[str, list[str]] = {}
        """Who is missing in the total of each question of the set-up, where anyone is."""

    def _hidden(self, registered: dict[str, str] | None) -> Masked:
        """Totals under masks, if everything else allows them."""
        if self.clients.m < self.clients.N:
            raise SettingError(
                "participation",
                "cannot be combined with secure totals: the difference of two totals over different clients tells one "
                f"of them; leave {option('participation')} out",
            )
        if not isinstance(self.aggregate, Mean) or self.clients.largest_weight is not None:
            raise FFGBError(
                f"secure totals hide the parts that {option('aggregate')} and {option('largest_weight')} compare; "
                f"leave these out, or use {option('secure', 'off')}"
            )
        self.conversation.quiet = True
        return Masked(self.conversation, registered)

    @property
    def heard(self) -> bool:
        """Clients have reported how good f is, one by one or together."""
        return bool(self.conversation.seen) or (self.masked is not None and self.masked.number >= 0)

    @property
    def N(self) -> int:
        """How many clients there are."""
        return self.clients.N

    def start(
        self,
        algorithm: Algorithm,
        learner: Learner,
        loss: Loss,
        *,
        scale_target: bool = False,
        f0: Function | None = None,
        target: Target | None = None,
        known: dict[str, Any] | None = None,
        before: Costs | None = None,
        keep: Callable[[Mapping[str, Any], Costs], None] = lambda known, costs: None,
    ) -> State:
        """The set-up: the learner asks for what it needs, and the job comes down.

        `f0` is the function to begin with, in the family of the learner, and `target` how its targets were scaled.
        `known` remembers totals for the next start with the same clients, `before` is what was spent already; `keep` is
        given both after each question, so that a server that is started again need not repeat it.
        """
        totals = {} if known is None else known
        rest = before or Costs(), totals, self.setup_absent, keep, self.on_setup
        ask: SetUp = (
            BeforeTraining(self.conversation, *rest) if self.masked is None else MaskedSetUp(self.masked, *rest)
        )
        try:
            with np.errstate(all="ignore"):  # totals are checked
                if scale_target and f0 is None:
                    target = scaled_target(ask, algorithm, loss)
                family, geometry = learner(ask)
                scaling = target or Target.unchanged(loss.outputs)
                algorithm = algorithm.prepared(ask, family, loss, scaling.mean, scaling.scale)
        except (ArithmeticError, np.linalg.LinAlgError) as error:
            raise FFGBError(
                f"no learner can be made from the totals of all clients ({error}); look for columns with very large "
                f"values, or choose another {option('map')}"
            ) from error
        self._procedure(algorithm)  # refused here if there is none
        self.conversation.quiet |= algorithm.silent
        at_server, at_clients = algorithm.placed(geometry)
        if self.clients.m < self.N:
            algorithm.check_sampling()
        begins = None if f0 is None else Beginning.of(f0)
        space = algorithm.space(family)
        trained = algorithm.trains(loss)
        job = Job(algorithm, space, trained, target, self.seed, at_clients, begins, precision=self.precision)
        setup, everyone = Setup(job), self.clients.everyone
        ready = self.conversation.exchange(setup, [*everyone, *self.clients.tests], job)
        costs = ask.costs.down(setup.message(), len(everyone)).up(ready[i] for i in everyone if i in ready)
        return State(job, 0, job.start(), (), (0,) * self.N, costs, at_server)

    def take_up(self, state: State) -> None:
        """Go on with one of several jobs that have the same clients in turn.

        Who was in this job before goes on where it was; others start, and are restored when they are asked.
        """
        name = hashlib.sha256(encode(Setup(state.job).message())).hexdigest()
        clients = [*self.clients.everyone, *self.clients.tests]
        self.conversation.exchange(Turn(state.job, name), clients, state.job)

    def teach(self, state: State, job: Job) -> State:
        """The clients leave their job for one in which they learn what f^t says at their points."""
        state, _ = self.conversation.catch_up(state, self.clients.everyone)
        return replace(self.go_on(state, job), teacher=state)

    def go_on(self, state: State, job: Job) -> State:
        """The clients leave their job for another."""
        everyone = self.clients.everyone
        setup = Setup(job, state.t)
        ready = self.conversation.ask(state, setup, [*everyone, *self.clients.tests])
        costs = state.costs.down(setup.message(), len(everyone)).up(ready[i] for i in everyone if i in ready)
        return State(job, job.at, job.start(), (), (job.at,) * self.N, costs)

    def rounds(self, state: State, T: int, *, stop: bool = False) -> Iterator[tuple[State, dict[str, Any]]]:
        """Algorithm 1: the state and the metrics after each round.

        With `stop` they end early, when a step would fit more noise than it finds to learn.
        """
        for t in range(state.t, T):  # line 2
            began = time.perf_counter()
            sampled = self.clients.sample(self.seed, t // state.job.algorithm.phases)  # line 3
            state, S = self.conversation.catch_up(state, sampled)
            done: Round = self._procedure(state.job.algorithm)(state, S, stop)  # lines 4 and 5
            state, scores = done.state, done.scores
            if scores is None:
                reports = self.conversation.reports(done.state, done.S, done.reports)
                scores = self._scores([i for i in done.S if i in reports], reports)
            metrics = self._metrics(state, done.gammas, *scores) | dict(done.measured)
            metrics |= {"participants": len(done.answered), "seconds": time.perf_counter() - began}
            metrics |= self._absences(t, [*self.clients.refused, *sampled], done)
            if metrics["train_loss"] is not None and not math.isfinite(metrics["train_loss"]):
                raise DivergedError(
                    f"the loss became infinite in round {state.t}; choose a smaller {option('step_size')}"
                )
            yield state, metrics
            if stop and spent(metrics):
                return

    def _procedure(self, algorithm: Algorithm) -> Procedure:
        """A round, by the way in which clients take part."""
        return algorithm.by(self.ways)

    def settle(self, state: State, metrics: Sequence[Mapping[str, Any]]) -> tuple[State, dict[str, Any]] | None:
        """Everyone has the result in place of f, and says how good it is; None if f is the result."""
        chosen = state.job.algorithm.chosen(state.f, metrics)
        if chosen is None:
            return None
        algorithm, f, measured = chosen
        loss, job = state.job.algorithm.tasked(state.job.loss), state.job
        settled = Job(
            algorithm,
            f.family,
            loss,
            job.target,
            job.seed,
            None,
            Beginning.of(f),
            state.t + 1,
            precision=self.precision,
        )
        state, scores = self.report(self.go_on(state, settled))
        return state, scores | dict(measured)

    def report(self, state: State) -> tuple[State, dict[str, Any]]:
        """Loss and score of f^t, as everyone sees it."""
        if self.masked is not None:
            ask = MaskedRound(self.masked, state, self.clients.everyone)
            scores = ask.scores()
            return ask.state, self._metrics(ask.state, (), *scores)
        question, everyone = Report(state.t), self.clients.everyone
        reports = self.conversation.ask(state, question, [*everyone, *self.clients.tests])
        came = [i for i in everyone if i in reports]
        costs = state.costs.down(question.message(), len(everyone)).up(reports[i] for i in came)
        state = replace(state, costs=costs)
        return state, self._metrics(state, (), *self._scores(came, reports))

    def asking_held_out(self, state: State, rows: int) -> AskHeldOut:
        """What asks all rows that are held out, so many, about the result; an FFGBError if these have no total."""
        return AskHeldOut(self.conversation, self.masked, state, rows)

    def noted(self, costs: Costs) -> dict[str, Any]:
        """What a server that is started again must know of the set-up besides its totals: `recall` reads it."""
        called = self.clients.called
        return {
            "clients": dict(zip(called, self.clients.points, strict=True)),
            "refused": {called[i]: why for i, why in self.clients.refused.items()},
            "absent": self.setup_absent,
            "geometry": None
            if self.clients.in_geometry is None
            else [called[i] for i in sorted(self.clients.in_geometry)],
            "costs": asdict(costs),
        }

    def recall(self, noted: Mapping[str, Any]) -> Costs:
        """Go on with the set-up that was noted; an FFGBError if it was another federation's.  What it cost so far."""
        called = self.clients.called
        if noted["clients"] != dict(zip(called, self.clients.points, strict=True)):
            raise FFGBError("the set-up of this run was begun with other clients, or other rows; start another run")
        self.clients.refused = {called.index(name): why for name, why in noted["refused"].items()}
        self.setup_absent = dict(noted["absent"])
        if (made_of := noted.get("geometry")) is not None:
            self.clients.in_geometry = {called.index(name) for name in made_of}
        return Costs(**noted["costs"])

    def _absences(self, t: int, wanted: Sequence[int], done: Round) -> dict[str, Any]:
        """Who was to take part in a round and did not: by these lines a run can be repeated with the same clients."""
        called = self.clients.called
        found: dict[str, Any] = {
            "absent": [called[i] for i in sorted(wanted) if i not in done.answered],
            "absent_from_step": [called[i] for i in done.answered if i not in done.S],
            "setup_absent": self.setup_absent if t == 0 else {},
        }
        return {name: names for name, names in found.items() if names}

    def _scores(self, S: Sequence[int], reports: Mapping[int, Message]) -> tuple[Scores | None, Scores | None]:
        """How good f^t is at the rows of these clients, and at those held out."""
        tests = [i for i in self.clients.tests if i in reports]
        train, test = (Scores.of([reports[i].values for i in some]) for some in (S, tests))
        if train is not None:
            means = [reports[i].values["loss"] / reports[i].values["weight"] for i in S]
            weights = self.clients.weights(S)
            mean = sum(w * each for w, each in zip(weights, means, strict=True)) / sum(weights)
            train = replace(train, mean=mean * train.clients)
        return train, test

    def _metrics(
        self, state: State, gammas: Sequence[float], train: Scores | None, test: Scores | None
    ) -> dict[str, Any]:
        loss = None
        if train is not None:
            by_size = self.clients.by_size and self.masked is not None
            loss = train.loss / train.weight if by_size else train.mean / train.clients
        metrics: dict[str, Any] = {"round": state.t, "train_loss": loss}
        measure = state.job.loss.measure
        for name, part in (("train", train), ("test", test)):
            if part is not None:
                metrics[f"{name}_{measure.name}"] = measure.of(part.score / part.weight)
        if test is not None:
            metrics["test_loss"] = test.loss / test.weight
            metrics["test_rows"] = test.points
        return (
            metrics
            | state.costs.mean(self.N, state.job.family.size)
            | {
                "gamma_min": min(gammas) if gammas else None,  # only weak learners have one
                "gamma_median": statistics.median(gammas) if gammas else None,
                "participants": 0 if train is None else train.clients,
            }
        )
