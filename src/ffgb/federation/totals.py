"""Totals: from a question to the sum over all clients, part by part checked, added up as integers."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np

from ffgb.core.functions import Function
from ffgb.core.means import Aggregate, Mean
from ffgb.core.questions import Question, RoundQuestion
from ffgb.core.types import Array, Tensors
from ffgb.errors import DivergedError, FFGBError
from ffgb.federation.conversation import TRIES, AbsentError, Conversation
from ffgb.federation.parts import means_of, own_part
from ffgb.federation.round import Delivered
from ffgb.federation.state import State
from ffgb.privacy.integers import add
from ffgb.privacy.reports import Scores
from ffgb.protocol.codec import Message
from ffgb.protocol.costs import Costs
from ffgb.protocol.describe import describe, hash_of
from ffgb.protocol.job import Update
from ffgb.protocol.messages import Asked, Take
from ffgb.protocol.sending import Sending

log = logging.getLogger("ffgb")

AT_ONCE = 512 * 2**20
"""Bytes of answers to a question that are held at a time: Gram matrices are large, and clients many."""

UNUSABLE = (FFGBError, ArithmeticError, np.linalg.LinAlgError)
"""What checking and adding up an answer may raise."""

REFUSED = "sent a part that is refused"


class SetUp(ABC):
    """`ask` in set-up: all clients are asked.

    `known` remembers totals for the next time that the same is asked; `keep` is given both after each question, so that
    a server that is started again need not repeat it.
    """

    def __init__(
        self,
        conversation: Conversation,
        costs: Costs,
        known: dict[str, Any],
        absent: dict[str, list[str]],
        keep: Callable[[Mapping[str, Any], Costs], None],
        on_setup: Callable[[str, int, int], None],
    ) -> None:
        self.conversation, self.clients = conversation, conversation.clients
        self.costs, self.known, self.absent, self.keep, self.on_setup = costs, known, absent, keep, on_setup

    def __call__(self, question: Question) -> Any:
        key = hash_of(question).hex()
        if key not in self.known:
            came, asked = None, self.clients.everyone
            while came is None:  # a total that a lie was added to cannot be mended: it is asked for again
                total, came = self._asked(question, asked)
            if not all(np.isfinite(array).all() for array in describe(total)[1].values()):
                raise FFGBError(f"the total of {question.what} is not finite; look for columns with very large values")
            self.known[key] = total
            if not question.by_rows:
                self.clients.in_geometry = set(came)
            if missing := [i for i in range(self.clients.N) if i not in came]:
                name = f"{len(self.known)} {type(question).__name__}"
                self.absent[name] = [self.clients.called[i] for i in missing]
            self.keep(self.known, self.costs)
        return self.known[key]

    @abstractmethod
    def _asked(self, question: Question, first: Sequence[int]) -> tuple[Any, list[int] | None]:
        """The total over those who are asked first, and whose answers are in it; None if it must be asked again."""


@final
class BeforeTraining(SetUp):
    """`ask` in set-up, with parts in the open: a client that lies is left out of the run."""

    def _asked(self, question: Question, first: Sequence[int]) -> tuple[Any, list[int] | None]:
        """The total, and whose answers are in it; None if one of those is a lie.

        Each answer is checked, added up and let go, some clients at a time.  Shares are of those who were asked first:
        who is asked again answers with the same bytes, and tells nothing new.
        """
        everyone, came = self.clients.everyone, list[int]()
        columns, missing = list[tuple[Array, Array]](), dict[int, FFGBError]()
        weighting = self.clients.weighting(first, by_rows=question.by_rows)
        asked = Asked(question, weighting)
        self.costs = self.costs.down(asked.message(), len(everyone))

        def parts() -> Iterator[Tensors]:
            for i, answer in self._answers(asked, everyone, missing):
                self.costs = self.costs.up([answer])
                try:
                    own = own_part(question, answer, self.clients.points[i], weighting, self.clients.sizes[i])
                    if self.clients.minimum is not None:  # else all clients are ours
                        question.certify(own, weighting.part(self.clients.sizes[i]))
                    compared = question.spread(own)
                except UNUSABLE as error:
                    self.clients.refuse(i, f"{REFUSED}: {error}", error)
                    continue
                came.append(i)
                columns.extend(() if compared is None else (compared,))
                yield answer.tensors

        whole = add(parts(), question.sums)
        for i, silence in missing.items():
            log.warning("%s is left out of the total of %s: it %s", self.clients.name(i), question.what, silence)
        if len(came) < (fewest := self.clients.minimum or 1):
            silent = "; ".join(f"{self.clients.name(i)} {silence}" for i, silence in missing.items())
            raise FFGBError(
                f"only {len(came)} of {self.clients.N} clients answered a question about {question.what}, and {fewest} "
                f"must: {silent}{self.clients.those_refused()}; try again later"
            )
        strange = question.strange(*map(np.array, zip(*columns, strict=True))) if columns else {}
        for k, why in strange.items():
            self.clients.refuse(came[k], f"{REFUSED}: {why}")
        if strange:
            return None, None
        return total_of(question, whole, self.clients.part_of(weighting, first, came)), came

    def _answers(
        self, asked: Asked, clients: Sequence[int], missing: dict[int, FFGBError]
    ) -> Iterator[tuple[int, Message]]:
        """The clients' answers to a question, one after the other; those of some clients are held at a time."""
        some = max(4, min(16, AT_ONCE // max(asked.question.size, 1)))
        for first in range(0, len(clients), some):
            these, failed = clients[first : first + some], dict[int, FFGBError]()
            self.on_setup(asked.question.what, first, self.clients.N)
            answers = self.conversation.exchange(asked, these, None, TRIES, wait=True, failed=failed)
            for i, error in failed.items():
                if isinstance(error, AbsentError | DivergedError):
                    missing[i] = error
                else:
                    self.clients.refuse(i, error.raw, error)
            for i in these:
                if i in answers:
                    yield i, answers.pop(i)


class RoundAsk(ABC):
    """`ask` in a round: the clients of the round are asked."""

    def __init__(self, conversation: Conversation, state: State, S: Sequence[int]) -> None:
        self.conversation, self.clients = conversation, conversation.clients
        self.state, self.present = state, list(S)
        """The state, with what questions have cost, and those who have answered all of them."""

    @abstractmethod
    def __call__(self, question: RoundQuestion, shown: Function | None = None) -> Any: ...

    @abstractmethod
    def deliver(self, state: State, sending: Sending) -> Delivered:
        """Everyone who is present goes on to f^{t+1}."""

    def hand_over(self, state: State, update: Update) -> Delivered:
        """Everyone who is present goes on, and says nothing; parts of the test set that belong to no client report."""
        take = Take(update, state.form.precision(state.job), quiet=True)
        came = self.conversation.ask(state, take, self.present)
        costs = state.costs.down(take.message(), len(self.present)).up(came.values())
        tests = [i for i in self.clients.tests if i not in self.clients.owners]
        reports = self.conversation.ask(state, replace(take, quiet=False), tests) if tests else {}
        scores = Scores.of([report.values for report in reports.values()]) if reports else None
        return Delivered(replace(state, costs=costs), [i for i in self.present if i in came], scores=(None, scores))

    @property
    def complete(self) -> bool:
        """Everyone takes part whose points the geometry was made of."""
        made_of = self.clients.in_geometry
        return set(self.present) == (set(range(self.clients.N)) if made_of is None else made_of)

    def gradient_bound(self, of_loss: float) -> float:
        if not self.complete:
            return math.inf
        return of_loss if self.state.gradient_bound is None else min(of_loss, self.state.gradient_bound)

    def noise(self, freedom: float | None) -> float | None:
        """For independent noise at n points and h = Hφ, H = Φ(G + λI)⁻¹Φ'/n, one expects
        ⟨h, φ⟩² / ‖h‖²‖φ‖² ≈ tr(H)² / (n tr(H²))."""
        if freedom is None:
            return None
        weights = self.clients.weights(self.present)
        total, points = math.fsum(weights), self.clients.points
        return freedom * math.fsum((w / total) ** 2 / points[i] for i, w in zip(self.present, weights, strict=True))


@final
class InARound(RoundAsk):
    """`ask` in a round, with parts in the open: a client that lies is left out of the round."""

    def __init__(self, conversation: Conversation, state: State, S: Sequence[int], aggregate: Aggregate) -> None:
        super().__init__(conversation, state, S)
        self.aggregate = aggregate

    def __call__(self, question: RoundQuestion, shown: Function | None = None) -> Any:
        weighting = self.clients.weighting(self.present)
        looking = self.clients.tests if shown is not None else []
        asked = Asked(question, weighting, self.state.t, shown, tuple(looking), self.state.job.precision)
        answers = self._asked(asked, [*self.present, *looking])
        came = {i: answers[i] for i in self.present if i in answers and answers[i].kind == "part"}
        costs = self.state.costs.down(asked.message(), len(self.present)).up(came.values())
        own: dict[int, dict[str, Array]] = {}
        for i, answer in came.items():
            try:
                own[i] = own_part(question, answer, self.clients.points[i], weighting, self.clients.sizes[i])
            except FFGBError as error:
                self.clients.leave_out(i, error)
        influence = {i: question.influence(mine) for i, mine in own.items()}
        for name in next(iter(influence.values()), {}):
            sound = self.clients.comparable({i: influence[i][name] for i in own}, name)
            own = {i: own[i] for i in sound}
        self.clients.enough(list(own), f"answered the question about {question.what}")
        whole = add((answers[i].tensors for i in own), question.sums)
        part = self.clients.part_of(weighting, self.present, list(own))
        self.state, self.present = replace(self.state, costs=costs), list(own)
        if isinstance(self.aggregate, Mean):
            return total_of(question, whole, part)
        weights = [weighting.part(self.clients.sizes[i]) for i in own]
        robust = self._robust([own[i] for i in own], weights, question)
        return question.total({**means_of(whole, question.sums, part), **robust})

    def _asked(self, asked: Asked, clients: Sequence[int]) -> dict[int, Message]:
        answers = self.conversation.ask(self.state, asked, clients)
        for _ in range(TRIES):
            if sum(i in answers for i in self.present) >= (self.clients.minimum or 0):
                break
            silent = [i for i in self.present if i not in answers]
            self.conversation.engine.wait(silent)
            answers |= self.conversation.ask(self.state, asked, silent)
        return answers

    def _robust(
        self, own: Sequence[Mapping[str, Array]], weights: Sequence[float], question: RoundQuestion
    ) -> dict[str, Array]:
        """The arrays of a robust mean: of each client's own means, as one row."""
        found: dict[str, Array] = {}
        for names in question.robust:
            rows = np.stack([np.concatenate([mine[name].ravel() for name in names]) for mine in own])
            mean, at = self.aggregate.rows(rows, weights), 0
            for name in names:
                array = own[0][name]
                found[name] = mean[at : at + array.size].reshape(array.shape)
                at += array.size
        return found

    @property
    def complete(self) -> bool:
        # what robust means say of sizes bounds nothing
        return isinstance(self.aggregate, Mean) and super().complete

    def deliver(self, state: State, sending: Sending) -> Delivered:
        reports = self.conversation.ask(state, sending, [*self.present, *self.clients.tests])
        came = [i for i in self.present if i in reports]
        costs = state.costs.down(sending.message(), len(self.present)).up(reports[i] for i in came)
        return Delivered(replace(state, costs=costs), came, reports)


def total_of(question: Question, whole: Tensors, part: float) -> Any:
    """What the server wanted to know, from the sum of parts that make up this share of the whole."""
    with np.errstate(all="ignore"):
        try:
            return question.total(means_of(whole, question.sums, part))
        except (ArithmeticError, np.linalg.LinAlgError) as error:
            raise FFGBError(f"no total can be made of {question.what}: {error}") from error
