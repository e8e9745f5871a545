"""Asking clients: exchanges, answers that are checked, clients that are restored or catch up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ffgb.core.losses import Loss
from ffgb.errors import DivergedError, FFGBError
from ffgb.federation.participants import GO_ON, Participants
from ffgb.federation.state import State
from ffgb.protocol.codec import Expected, Message, Sent, decode, encode, shown
from ffgb.protocol.engine import Engine
from ffgb.protocol.job import Job
from ffgb.protocol.messages import Remember, Report, Setup, Take, Train
from ffgb.protocol.sending import Sending

LARGEST_REPORT = 1e200
"""Of a loss or a score that a client reports: sums of more would not be finite."""

TRIES = 3
"""How often a client that lost its state is restored for one question before the run ends."""


class AbsentError(FFGBError):
    """A client said nothing, or that it cannot answer: no lie, and it may be asked again."""


class Conversation:
    """What the server says to its clients, and hears from them."""

    def __init__(self, engine: Engine, clients: Participants) -> None:
        self.engine, self.clients = engine, clients
        self.sent: dict[str, Sent] = {}
        """What clients have sent so far: the largest message of each kind."""
        self.seen: dict[int, Message] = {}
        """The last report of each client, and of each part of the test set."""
        self.quiet = False
        """Clients that are brought up to date report nothing."""

    def exchange(
        self,
        sending: Sending,
        clients: Sequence[int],
        job: Job | None,
        tries: int = 1,
        *,
        wait: bool = False,
        failed: dict[int, FFGBError] | None = None,
    ) -> dict[int, Message]:
        """The clients' answers, as far as they came and are as expected; and why others failed, to who asks for it."""
        found: dict[int, Message] = {}
        errors: dict[int, FFGBError] = {}
        expected, data, waiting = sending.expected(job), encode(sending.message()), list(clients)
        for attempt in range(tries):
            if attempt and wait:
                self.engine.wait(waiting)
            self.engine.expect(expected.limit)
            came = self.engine.exchange(data, waiting)
            for i in waiting:
                try:
                    if i not in came:
                        raise AbsentError("did not answer in time")
                    found[i] = self._heard(sending, i, came[i], expected, job)
                except FFGBError as error:
                    if self.clients.minimum is None:
                        self.clients.leave_out(i, error)
                    errors[i] = error
            waiting = [i for i in waiting if i not in found]
            if not waiting:
                break
        for i in waiting:
            if failed is None:
                self.clients.leave_out(i, errors[i])
            else:
                failed[i] = errors[i]
        return found

    def _heard(self, sending: Sending, i: int, data: bytes, expected: Expected, job: Job | None) -> Message:
        answer = _read(data, replace(expected, client=i), sending.kind, strict=self.clients.minimum is None)
        if answer.kind == "report":
            own = (self.clients.points[i], self.clients.sizes[i]) if i < self.clients.N else None
            _check_report(answer.values, None if job is None else job.loss, own)
            self.seen[i] = answer
        last = self.sent.get(sending.answer)
        counts = i < self.clients.N or (sending.after_training and answer.kind in ("part", "masked"))
        if counts and answer.kind != "resync" and (last is None or answer.size > last.bytes):
            once = sending.before_training or sending.after_training
            self.sent[sending.answer] = Sent.of(sending.answer, answer, once=once)
        return answer

    def ask(
        self,
        state: State,
        sending: Sending,
        clients: Sequence[int],
        tries: int = 1,
        *,
        version: int | None = None,
        failed: dict[int, FFGBError] | None = None,
    ) -> dict[int, Message]:
        """Each client's answer.  A client that lost its state (its worker died, the run was resumed) is restored first,
        to f^version: f^t, if nothing is said.

        Restoring is not counted as traffic: it is an accident of this machine, not a part of the method.
        """
        answers = self.exchange(sending, clients, state.job, tries, failed=failed)
        for _ in range(TRIES):
            lost = {i: int(a.values["version"]) for i, a in answers.items() if a.kind == "resync"}
            if not lost:
                return answers
            self.restore(state, lost, state.t if version is None else version)
            again = self.exchange(sending, list(lost), state.job, failed=failed)
            answers = {i: a for i, a in answers.items() if i not in lost} | again
        for i, answer in list(answers.items()):
            if answer.kind == "resync":
                del answers[i]
                self.clients.leave_out(i, FFGBError(f"lost its state {TRIES} times in a row"))
        return answers

    def restore(self, state: State, versions: Mapping[int, int], version: int) -> None:
        """Bring clients from the versions they have (−1: nothing) to f^version.  Who fails is asked again, or left.

        A client that is ahead, because the server died before it had written a round down, starts anew.
        """
        versions = {i: v if v <= version else -1 for i, v in versions.items()}
        if fresh := [i for i, v in versions.items() if v < 0]:
            if state.teacher is not None:
                self.restore(state.teacher, dict.fromkeys(fresh, -1), state.teacher.t)
            self.exchange(Setup(state.job), fresh, state.job)
        for update in state.missing(max(min(versions.values()), state.job.at)):
            if update.version <= version:
                behind = [i for i, v in versions.items() if v < update.version]
                self.exchange(Take(update, exact=True, quiet=self.quiet), behind, state.job)
        for i in versions:
            if i in state.memory:
                self.exchange(Remember(*state.memory[i]), [i], state.job)

    def catch_up(self, state: State, clients: Sequence[int]) -> tuple[State, list[int]]:
        """Send the sampled clients what they missed, and count it; who has all of it now."""
        for _ in range(TRIES):
            state, present = self._tell(state, clients)
            if len(present) >= (self.clients.minimum or 1):
                break
            self.engine.wait([i for i in clients if i not in present])
        self.clients.enough(present, "could be told what they had missed")
        return state, present

    def _tell(self, state: State, clients: Sequence[int]) -> tuple[State, list[int]]:
        costs, present = state.costs, list(clients)
        for update in state.missing(min(state.delivered[i] for i in clients)):
            some = [i for i in present if state.delivered[i] < update.version]
            take = Take(update, state.form.precision(state.job), quiet=self.quiet)
            reports = self.ask(state, take, some, tries=TRIES, version=update.version)
            costs = costs.down(take.message(), len(some)).up(reports.values())
            present = [i for i in present if i in reports or i not in some]
        return replace(state, costs=costs).told(present), present

    def reports(self, state: State, S: Sequence[int], reports: dict[int, Message]) -> dict[int, Message]:
        """The reports, if there is one at all: an f that no one can evaluate must not be kept, or there is no way
        back."""
        for _ in range(TRIES):
            if any(i in reports for i in S):
                return reports
            self.engine.wait(S)
            reports = reports | self.ask(state, Report(state.t), S)
        raise FFGBError(f"no client could say how good round {state.t} is, so it is not kept; {GO_ON}")

    def trained(self, state: State, train: Train, S: Sequence[int]) -> dict[int, Message]:
        """What clients answer when they are to train; those that are silent are asked again if they are needed."""
        answers = self.ask(state, train, S)
        for _ in range(TRIES):
            if len(answers) >= (self.clients.minimum or 0):
                break
            silent = [i for i in S if i not in answers]
            self.engine.wait(silent)
            answers |= self.ask(state, train, silent)
        return {i: answers[i] for i in S if i in answers}  # in this order: sums are rounded


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
        raise (DivergedError if answer.values.get("diverged") else AbsentError)(f"says: {text}")
    return answer


def _check_report(values: Mapping[str, Any], loss: Loss | None, own: tuple[int, float] | None) -> None:
    """Raise an FFGBError if a client cannot report this; of its own rows it is known how many they are, and their
    weight."""
    points, total, score, weight = (values[name] for name in ("points", "loss", "score", "weight"))
    least = -LARGEST_REPORT if loss is None else max((loss.least - 1e-6) * weight, -LARGEST_REPORT)  # up to rounding
    most = weight * (1.0 + 1e-9) if loss is not None and loss.classification else LARGEST_REPORT
    if points < 1 or not weight > 0 or not least <= total <= LARGEST_REPORT or not 0 <= score <= most:
        raise FFGBError(f"reports what cannot be: {points} points, a loss of {total:g}, a score of {score:g}")
    if own is not None and points != own[0]:
        raise FFGBError(f"reports of {points} points, and has {own[0]}")
    if own is not None and abs(weight - own[1]) > 1e-6 * own[1]:
        raise FFGBError(f"reports of points that weigh {weight:g}, and has {own[1]:g}")
