"""Secure totals: the server adds up what clients send under masks, and sees nothing but the sum.

`Masked` is one run's: who takes part with which keys, and the numbers of questions.  `MaskedSetUp` and `MaskedRound`
are what totals.py has for parts in the open.
"""

from __future__ import annotations

import hashlib
import logging
import math
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any, TypeAlias, final

import numpy as np

from ffgb.core.functions import Function
from ffgb.core.losses import Loss
from ffgb.core.questions import Question, RoundQuestion
from ffgb.core.types import Array, Tensors
from ffgb.errors import DivergedError, FFGBError
from ffgb.federation.conversation import TRIES, Conversation
from ffgb.federation.participants import GO_ON
from ffgb.federation.parts import check_own, means_of
from ffgb.federation.round import Delivered
from ffgb.federation.state import State
from ffgb.federation.totals import AT_ONCE, RoundAsk, SetUp, total_of
from ffgb.privacy.ciphers import KEY, tag
from ffgb.privacy.hidden import Hidden
from ffgb.privacy.integers import ROWS, SHARE, SHARES
from ffgb.privacy.masks import FEWEST, MaskedSum, Roster, check_threshold, sign_of, too_few
from ffgb.privacy.reports import Scores
from ffgb.privacy.secured import run_of
from ffgb.privacy.tolerance import BATCH, Unmasking, shapes
from ffgb.protocol.codec import Message, encode
from ffgb.protocol.costs import Costs
from ffgb.protocol.masking import Group, Introduce, Masking, Prepare, Reopen, Roll, Tie, Ties, Unmask
from ffgb.protocol.messages import Asked, Report
from ffgb.protocol.sending import Sending
from ffgb.settings import RUN, Setting

log = logging.getLogger("ffgb")

SETTINGS = (
    Setting(
        "secure",
        "text",
        "Totals under masks: no one sees the part of a single client (shared geometry).",
        RUN,
        unset="on between real sites, off on one machine",
        choices=("on", "off"),
        when="Say on to try and measure masks on one machine; say off between sites that may see one another's sums.",
    ),
)

Asking: TypeAlias = Callable[[Sending, Sequence[int]], dict[int, Message]]
"""Send a message to clients, and get the answers that came."""


LIAR = "one of them has sent wrong numbers, and masks hide which"
DOUBT = "train without masks, or without the client that is in doubt"


class ImpossibleError(FFGBError):
    """A total that no sites can have: one of them has sent wrong numbers, and masks hide which."""


@final
@dataclass(frozen=True, eq=False)
class Whole:
    """A total over some clients, as integers."""

    sums: dict[str, Array]
    came: list[int]
    """Whose parts are in it."""
    complete: bool

    @property
    def share(self) -> float:
        """Of how much of the whole it is."""
        return 1.0 if self.complete else float(self.sums[SHARE][0]) * float(SHARES.unit)

    @property
    def rows(self) -> int:
        return int(self.sums[ROWS][0])

    @property
    def own(self) -> Tensors:
        """The arrays of the question alone."""
        return {name: array for name, array in self.sums.items() if name not in (SHARE, ROWS)}


@final
class Masked:
    """The totals of one run, under masks."""

    def __init__(self, conversation: Conversation, registered: dict[str, str] | None = None) -> None:
        """`registered` are the public keys (DER, in hexadecimal digits) of sites by name; none in a simulation."""
        clients = conversation.clients
        self.conversation, self.run = conversation, secrets.token_hex(8)
        N, minimum = clients.N, clients.minimum
        threshold = 0 if minimum is None or minimum == N else minimum
        if N < FEWEST:
            raise FFGBError(too_few(N))
        if threshold:
            check_threshold(threshold, N)
        self.groups = [self._group(range(N), clients.called, registered, threshold)]
        owned = [(i, clients.called[clients.owners[i]]) for i in clients.parts if i in clients.owners]
        if len(owned) >= FEWEST:
            numbers, names = zip(*owned, strict=True)
            some = min(threshold, len(owned))
            self.groups.append(self._group(numbers, names, registered, some if 2 * some > len(owned) else 0))
        elif owned:
            log.warning("fewer than %d sites hold out rows: there is no total score over them", FEWEST)
        self.bare = () if owned else tuple(clients.parts)
        """Parts of a test set that belong to no site."""
        self.costs = Costs()
        self.rows: dict[frozenset[int], int] = {}
        """Rows of some clients together, where those of single ones are not known."""
        self.number = -1
        self._roll: Roll | None = None
        self._ties: Ties | None = None
        self._prepared: dict[int, Unmasking] = {}
        self._tags: dict[int, bytes] = {}
        """Of the parts of the last question: who sends its part again sends the same."""
        self._marker = secrets.token_bytes(KEY)

    @staticmethod
    def _group(
        numbers: Iterable[int], names: Sequence[str], registered: dict[str, str] | None, threshold: int
    ) -> Group:
        keys = tuple("" if registered is None else registered[name] for name in names)
        return Group(tuple(numbers), tuple(names), keys, threshold)

    @property
    def strict(self) -> bool:
        """Everyone who trains is in every total."""
        return not self.groups[0].threshold

    @property
    def tests(self) -> list[int]:
        """Clients that report on rows that are held out."""
        asked = [*self.bare, *(i for group in self.groups[1:] for i in group.numbers)]
        return [i for i in self.conversation.clients.tests if i in asked]

    def in_words(self) -> str:
        """What masks have hidden, in a sentence."""
        group = self.groups[0]
        few = f"; {group.threshold} of them had to answer" if group.threshold else ", all of which answered"
        return f"The server saw only totals over {len(group.names)} clients{few}: parts of single clients were masked."

    # Who takes part

    def _introduce(self, clients: Sequence[int] | None = None) -> None:
        """Exchange keys with all clients; with some of them again, if they have forgotten."""
        if clients is None and self._roll is not None:
            return
        everyone = [i for group in self.groups for i in group.numbers]
        keys = self._exchange(Introduce(self.run, tuple(self.groups)), clients or everyone)
        if self._roll is None:
            if missing := [self.conversation.clients.name(i) for i in everyone if i not in keys]:
                raise FFGBError(f"{missing[0]} sent no key, and secure totals begin with all clients; {GO_ON}")
            self._roll = Roll(
                self.run,
                tuple(np.stack([keys[i].tensors["key"] for i in group.numbers]) for group in self.groups),
                tuple(tuple(keys[i].values["signature"] for i in group.numbers) for group in self.groups),
            )
        ready = self._exchange(self._roll, clients or everyone)
        if clients is None and (missing := [self.conversation.clients.name(i) for i in everyone if i not in ready]):
            raise FFGBError(f"{missing[0]} does not take the keys of the other clients; {GO_ON}")
        if clients is not None and self._ties is not None:
            self._exchange(self._ties, clients)

    def share_secret(self) -> None:
        """All who train have a secret in common, which the server does not know."""
        self._introduce()
        numbers = self.groups[0].numbers
        tied = self._from_all(Tie(self.run), numbers)
        ties = Ties(self.run, np.stack([tied[i].tensors["tie"] for i in numbers]))
        self._from_all(ties, numbers)
        self._ties = ties

    def _from_all(self, sending: Sending, clients: Sequence[int]) -> dict[int, Message]:
        answers = self._known(self._exchange, sending, clients)
        if missing := [self.conversation.clients.name(i) for i in clients if i not in answers]:
            raise FFGBError(f"{missing[0]} does not share a secret with the other clients; {GO_ON}")
        return answers

    def _exchange(self, sending: Sending, clients: Sequence[int]) -> dict[int, Message]:
        """Answers to a message about masks; who sends none is named in the log, and is missing."""
        failed: dict[int, FFGBError] = {}
        answers = self.conversation.exchange(sending, clients, None, TRIES, wait=True, failed=failed)
        self.costs = self.costs.down(sending.message(), len(clients)).up(answers.values())
        for i, error in failed.items():
            log.warning("%s %s", self.conversation.clients.name(i), error)
        return answers

    def _next(self, clients: Sequence[int]) -> Masking:
        """The masks of the next question to these clients.

        Every now and then clients share the secrets of some questions; a question does without those that have not.
        """
        self._introduce()
        self.number += 1
        assert self._roll is not None
        without: list[int] = []
        for g, group in enumerate(self.groups):
            if not group.threshold:
                continue
            if self.number % BATCH == 0:
                roster = Roster(run_of(self.run, g), group.names, _rows(self._roll.keys[g]), group.threshold)
                self._prepared[g] = Unmasking(roster, {})
            prepared = self._prepared[g].prepared
            if asked := [i for i in group.numbers if i in clients and group.place(i) not in prepared]:
                sending = Prepare(self.run, self.number // BATCH, shapes(len(group.names)))
                answers = self._known(self._exchange, sending, asked)
                prepared.update({group.place(i): a.tensors for i, a in answers.items() if a.kind == "prepared"})
            without += [i for i in group.numbers if group.place(i) not in prepared]
        return Masking(self.run, self.number, self.bare, tuple(without))

    def _known(self, ask: Asking, sending: Sending, clients: Sequence[int]) -> dict[int, Message]:
        """Answers of clients that know the run; those that have forgotten it are introduced again."""
        answers = ask(sending, clients)
        for _ in range(TRIES):
            strangers = [i for i, answer in answers.items() if answer.kind == "stranger"]
            if not strangers:
                break
            self._introduce(strangers)
            answers |= ask(sending, strangers)
        return {i: answer for i, answer in answers.items() if answer.kind != "stranger"}

    # Totals

    def total(
        self, sending: Sending, ask: Asking, clients: Sequence[int], some: int
    ) -> tuple[dict[int, Whole], dict[int, Message], Hidden]:
        """The total of each group, and the answers that are no part of one: some clients are asked at a time."""
        hidden = Hidden(sending, self._next(clients))
        asked = [i for i in clients if i not in hidden.masking.without]
        sums = {g: MaskedSum(hidden.sums) for g in range(len(self.groups))}
        group_of = {i: g for g, group in enumerate(self.groups) for i in group.numbers}
        came: dict[int, list[int]] = {g: [] for g in sums}
        others: dict[int, Message] = {}
        for first in range(0, len(asked), some):
            for i, answer in self._known(ask, hidden, asked[first : first + some]).items():
                if answer.kind == "masked":
                    if i not in group_of:
                        continue
                    sums[group_of[i]].add(answer.tensors)
                    self._tags[i] = self._tag(answer)
                    came[group_of[i]].append(i)
                    answer = replace(answer, tensors={})
                others[i] = answer
        question = hashlib.sha256(encode(hidden.message())).digest()
        found: dict[int, Whole] = {}
        for g, group in enumerate(self.groups):
            arrived = sorted(came[g])
            if not arrived or (len(arrived) < (group.threshold or len(group.numbers))):
                continue
            if group.threshold:
                sums[g].unmask(self._shares(g, question, hidden.masking.number, arrived))
            found[g] = Whole(sums[g].total, arrived, len(arrived) == len(group.numbers))
        return found, others, hidden

    def _shares(self, g: int, question: bytes, number: int, arrived: Sequence[int]) -> list[tuple[bytes, int]]:
        """The masks that are left in a total, by the shares of those whose parts have arrived."""
        group, unmasking = self.groups[g], self._prepared[g]
        places = tuple(group.place(i) for i in arrived)
        unmask = Unmask(self.run, number, question.hex(), places, unmasking.boxes(number))
        answers = self._exchange(unmask, arrived)
        shares = {group.place(i): a.tensors["shares"] for i, a in answers.items() if a.kind == "shares"}
        if len(shares) < group.threshold:
            raise FFGBError(
                f"only {len(shares)} of {len(group.names)} clients gave their shares, and {group.threshold} must; "
                f"{GO_ON}"
            )
        label = hashlib.sha256(unmasking.roster.digest + question).digest()
        return unmasking.streams(number, label, places, shares)

    def culprit(self, question: Question, hidden: Hidden, ask: Asking, came: Sequence[int]) -> str:
        """Who has sent an impossible part of an impossible total, in words, if all clients reopen its masks.

        Clients give away the keys of that question's masks and send their parts again, which are then seen one by one.
        """
        group, number = self.groups[0], hidden.masking.number
        content = hashlib.sha256(encode(hidden.message())).digest()
        reopen = Reopen(self.run, number, content.hex(), len(group.names))
        opened = self._exchange(reopen, came)
        seeds = {group.place(i): a.tensors["seeds"] for i, a in opened.items() if a.kind == "seeds"}
        if closed := [group.names[group.place(i)] for i in came if group.place(i) not in seeds]:
            return f"no one is named, since {closed[0]} does not reopen its masks; {DOUBT}"
        for a, b in combinations(sorted(seeds), 2):
            if not np.array_equal(seeds[a][b], seeds[b][a]):
                return f"{group.names[a]} and {group.names[b]} say different masks: one of them lies"
        assert self._roll is not None
        roster = Roster(run_of(self.run, 0), group.names, _rows(self._roll.keys[0]), group.threshold)
        without = {group.names[group.place(i)] for i in hidden.masking.without if i in group.numbers}
        found = []
        for i in came:
            answer, place = ask(hidden, [i]).get(i), group.place(i)
            if answer is None or answer.kind != "masked":
                return f"{group.names[place]} does not send its part again"
            if self._tag(answer) != self._tags[i]:
                return f"{group.names[place]} sends another part than before"
            bare, name = MaskedSum(hidden.sums), group.names[place]
            bare.add(answer.tensors)
            others = [other for other in roster.neighbours(name) if other not in without]
            streams = [(seeds[place][roster.names.index(other)].tobytes(), sign_of(name, other)) for other in others]
            if group.threshold:
                streams.append((seeds[place][place].tobytes(), 1))
            bare.unmask(streams)
            if (why := _wrong(question, Whole(bare.total, [i], False))) is not None:
                found.append(f"{self.conversation.clients.name(i)} has sent a part that is impossible ({why})")
        return "; ".join(found) or f"each part alone is possible, and no one can be named; {DOUBT}"

    def _tag(self, answer: Message) -> bytes:
        return tag(self._marker, (answer.tensors[name] for name in sorted(answer.tensors)))

    def silent(self, others: dict[int, Message]) -> str:
        """The clients that did not answer, in words."""
        clients = self.conversation.clients
        came = [i for i, answer in others.items() if answer.kind == "masked"]
        return ", ".join(clients.name(i) for i in range(clients.N) if i not in came)

    def scores(
        self, found: dict[int, Whole], others: dict[int, Message], loss: Loss
    ) -> tuple[Scores | None, Scores | None]:
        """How good f^t is at the rows to train with, and at those held out."""
        train, test = (_scores(found[g], loss) if g in found else None for g in (0, 1))
        if self.bare:
            test = Scores.of(others[i].values for i in self.bare if i in others and others[i].kind == "report")
        return train, test


def _wrong(question: Question, whole: Whole) -> str | None:
    """Why a part cannot be a client's, in words."""
    own = {name: whole.sums[name].astype(each.dtype) for name, each in question.sums.items()}
    try:
        if not 0.0 < whole.share <= 1.0 + 1e-6 or whole.rows < 1:
            raise FFGBError(f"it is of {whole.rows} rows, and {whole.share:g} of the whole")
        question.certify(check_own(question, own, whole.rows, whole.share), whole.share)
    except (FFGBError, ArithmeticError, np.linalg.LinAlgError) as error:
        return str(error)
    return None


def checked(
    question: Question, whole: Whole, culprit: Callable[[], str] = lambda: DOUBT, *, strict: bool = True
) -> Any:
    """What the server wanted to know; an ImpossibleError if no sites can have this total.

    Bounds follow from totals before: not `strict`, those who were missing then may be in this one, and exceed them.
    """
    try:
        _check_bounds(question, whole, 1.0 if strict else 2.0)
        means = means_of(whole.own, question.sums, whole.share)
        question.check_total(means, whole.rows, len(whole.came))
        question.certify(means, 1.0 / len(whole.came))
    except (FFGBError, ArithmeticError, np.linalg.LinAlgError) as error:
        raise ImpossibleError(
            f"the total of {question.what} over {len(whole.came)} clients is impossible ({error}); {LIAR}: {culprit()}"
        ) from error
    return total_of(question, whole.own, whole.share)


def _check_bounds(question: Question, whole: Whole, slack: float) -> None:
    """Raise an FFGBError if a total is beyond the bounds that parts and sums of parts have, so many times."""
    came = len(whole.came)
    if whole.rows < came or not 0.0 < whole.share <= 1.0 + 1e-6:
        raise FFGBError(f"it is of {whole.rows} rows, and {whole.share:g} of the whole")
    for name, each in question.sums.items():
        values = np.abs(whole.sums[name].astype(np.float64)) * each.unit
        beyond = values > slack * np.asarray(each.bound) * (1.0 + 1e-6) + (came + 1.0) * each.unit
        if beyond.any():
            raise FFGBError(f"its {name} has a value of {float(values[beyond].max()):g}, beyond its bound")


def _scores(whole: Whole, loss: Loss) -> Scores:
    """Loss and score from a total of reports; an ImpossibleError if no sites can have it."""
    scores, came = Scores.total(whole.sums), len(whole.came)
    least = (loss.least - 1e-6) * scores.weight
    most = scores.weight * (1.0 + 1e-9) if loss.classification else math.inf
    if scores.clients != came or scores.points < came or not scores.weight > 0:
        why = f"{scores.clients} clients with {scores.points} rows that weigh {scores.weight:g}"
    elif not least <= scores.loss or not 0.0 <= scores.score <= most:
        why = f"a loss of {scores.loss:g} and a score of {scores.score:g} over {scores.weight:g}"
    else:
        return scores
    raise ImpossibleError(f"the total of the reports of {came} clients is impossible: {why}; {LIAR}: {DOUBT}")


def _rows(keys: Array) -> tuple[bytes, ...]:
    return tuple(row.tobytes() for row in keys)


@final
class MaskedSetUp(SetUp):
    """`ask` in set-up, under masks."""

    def __init__(self, masked: Masked, *rest: Any) -> None:
        super().__init__(masked.conversation, *rest)
        self.masked = masked

    def _asked(self, question: Question, first: Sequence[int]) -> tuple[Any, list[int] | None]:
        asked = Asked(question, self.clients.weighting(first, by_rows=question.by_rows))
        self.costs = self.costs.down(asked.message(), len(first))
        done = 0

        def ask(sending: Sending, clients: Sequence[int]) -> dict[int, Message]:
            nonlocal done
            self.on_setup(question.what, done, self.clients.N)
            failed: dict[int, FFGBError] = {}
            answers = self.conversation.exchange(sending, clients, None, TRIES, wait=True, failed=failed)
            done += len(answers)
            self.costs = self.costs.up(answers.values())
            for i, error in failed.items():
                if isinstance(error, DivergedError):
                    raise DivergedError(f"{self.clients.name(i)} {error.raw}") from error
                log.warning("%s is left out of the total of %s: it %s", self.clients.name(i), question.what, error)
            return answers

        before = self.masked.costs
        found, others, hidden = self.masked.total(asked, ask, first, max(4, min(16, AT_ONCE // max(question.size, 1))))
        self.costs = self.costs.plus(self.masked.costs.since(before))
        if 0 not in found:
            raise FFGBError(
                f"{self.masked.silent(others)} did not answer a question about {question.what}, and a secure total "
                f"needs {self.masked.groups[0].threshold or 'all'} of {self.clients.N} clients; {GO_ON}"
            )
        came, strict = found[0].came, self.masked.strict
        found_out = partial(self.masked.culprit, question, hidden, ask, came)
        return checked(question, found[0], found_out, strict=strict), came


@final
class MaskedRound(RoundAsk):
    """`ask` in a round, under masks."""

    def __init__(self, masked: Masked, state: State, S: Sequence[int]) -> None:
        super().__init__(masked.conversation, state, S)
        self.masked = masked

    def __call__(self, question: RoundQuestion, shown: Function | None = None) -> Any:
        looking = self.masked.tests if shown is not None else []
        weighting = self.clients.weighting(self.present, rows=self._rows())
        asked = Asked(question, weighting, self.state.t, shown, tuple(looking), self.state.job.precision)
        some = max(16, AT_ONCE // max(question.size, 1))
        found, _, hidden = self._total(asked, [*self.present, *looking], some)
        self.present = came = found[0].came
        self.masked.rows[frozenset(came)] = found[0].rows
        found_out = partial(self.masked.culprit, question, hidden, self._ask, came)
        return checked(question, found[0], found_out, strict=self.masked.strict)

    def _rows(self) -> int:
        """Of those who are present: a sum, which is asked for if no question has told it."""
        if self.clients.counted or len(self.present) == self.clients.N:
            return sum(self.clients.points[i] for i in self.present)
        if frozenset(self.present) not in self.masked.rows:
            found, _, _ = self._total(Report(self.state.t), self.present, 1024)
            self.present = found[0].came
            self.masked.rows[frozenset(self.present)] = Scores.total(found[0].sums).points
        return self.masked.rows[frozenset(self.present)]

    def noise(self, freedom: float | None) -> float | None:
        if self.clients.counted or freedom is None:
            return super().noise(freedom)
        return freedom / self._rows()

    def _total(
        self, sending: Sending, clients: Sequence[int], some: int
    ) -> tuple[dict[int, Whole], dict[int, Message], Hidden]:
        """A total over those who are present, and what it cost."""
        before = self.masked.costs
        found, others, hidden = self.masked.total(sending, self._ask, clients, some)
        costs = self.state.costs.plus(self.masked.costs.since(before))
        costs = costs.down(hidden.message(), sum(1 for i in clients if i < self.clients.N))
        costs = costs.up(others[i] for i in others if i < self.clients.N)
        self.state = replace(self.state, costs=costs)
        if 0 not in found:
            raise FFGBError(
                f"{self.masked.silent(others)} did not answer {sending.answer}, and a secure total needs "
                f"{self.masked.groups[0].threshold or 'all'} of {self.clients.N} clients; {GO_ON}"
            )
        return found, others, hidden

    def _ask(self, sending: Sending, clients: Sequence[int]) -> dict[int, Message]:
        """Answers; those that are silent are waited for, if they are needed."""
        answers = self.conversation.ask(self.state, sending, clients)
        for _ in range(TRIES):
            silent = [i for i in clients if i not in answers]
            came = sum(1 for i in answers if i < self.clients.N)
            if not silent or (self.masked.groups[0].threshold and came >= self.masked.groups[0].threshold):
                break
            self.conversation.engine.wait(silent)
            answers |= self.conversation.ask(self.state, sending, silent)
        return answers

    def scores(self) -> tuple[Scores | None, Scores | None]:
        """How good f^t is, at the rows to train with and at those held out."""
        found, others, _ = self._total(Report(self.state.t), [*self.present, *self.masked.tests], 1024)
        return self.masked.scores(found, others, self.state.job.loss)

    def deliver(self, state: State, sending: Sending) -> Delivered:
        self.state = state
        found, others, _ = self._total(sending, [*self.present, *self.masked.tests], 1024)
        came = [i for i in self.present if i in others]
        return Delivered(self.state, came, scores=self.masked.scores(found, others, state.job.loss))
