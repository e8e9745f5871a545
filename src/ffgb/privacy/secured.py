"""One client's side of secure totals: its keys, the list of participants, and its answers under masks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from ffgb.core.questions import Sum
from ffgb.core.types import Tensors
from ffgb.errors import FFGBError
from ffgb.privacy.ciphers import KEY, derived, public_of
from ffgb.privacy.identity import Identity, Participant
from ffgb.privacy.masks import FEWEST, Masks, Roster, check_threshold, too_few
from ffgb.privacy.tolerance import Tolerance
from ffgb.protocol.codec import Message
from ffgb.protocol.masking import Group, Introduce, Masking, Prepare, Reopen, Roll, Tie, Ties, Unmask


def words_to_sign(run: str, group: Group, key: bytes) -> bytes:
    """What a site signs: its key for a group's totals in a run (`run_of`), among these participants."""
    parts = [run.encode(), group.threshold.to_bytes(4, "big"), key]
    parts += [text.encode() for pair in zip(group.names, group.registered, strict=True) for text in pair]
    digest = hashlib.sha256(b"".join(len(part).to_bytes(4, "big") + part for part in parts)).digest()
    return b"ffgb key for secure totals" + digest


def run_of(run: str, group: int) -> str:
    """The name of a group's roster: those who train and those who hold out rows have different masks."""
    return f"{run}/{group}"


@final
@dataclass(eq=False)
class _Run:
    """A run that a client has everyone's keys of."""

    masks: Masks
    tolerance: Tolerance | None
    common: bytes | None = None
    """A secret of all sites."""
    reopened: bytes | None = None
    """The question whose masks were given away."""


@final
class Secured:
    """What a client has of runs with secure totals.

    A run has one list of participants, and each of them one key.  What has left the client under which mask is never
    forgotten, however often it is introduced: `memory` is for another process that goes on as this client.
    """

    def __init__(self, client: int, identity: Identity) -> None:
        self.client, self.identity = client, identity
        self._introductions: dict[str, Introduce] = {}
        self._runs: dict[str, _Run] = {}
        self._past: dict[str, Mapping[str, Any]] = {}
        self._marker = identity.secret(b"ffgb parts")
        self.sent = b""
        """A tag of the part that was masked last: of another part, in any run, it is another."""

    @property
    def hides(self) -> bool:
        """It takes part in a run with secure totals: nothing of its rows leaves it in the open."""
        return bool(self._introductions)

    @property
    def common(self) -> tuple[bytes, bool] | None:
        """The secret that all sites of a run have, if they have one, and whether this is the first of them."""
        runs = [run for run in self._runs.values() if run.common is not None]
        return (runs[-1].common or b"", runs[-1].masks.leads) if runs else None

    def knows(self, run: str) -> bool:
        """Can it mask answers in this run?"""
        return run in self._runs

    def together(self, run: str) -> int:
        """Participants that are in each total of this client's group in a run; 0 if some may be missing."""
        _, group, _ = self._group(self._introductions[run])
        return 0 if group.threshold else len(group.names)

    def among(self, run: str) -> bytes:
        """Who they are: the same for the same participants, in whatever run and order."""
        _, group, _ = self._group(self._introductions[run])
        pairs = sorted(zip(group.names, group.registered, strict=True))
        words = [text.encode() for pair in pairs for text in pair]
        return hashlib.sha256(b"".join(len(word).to_bytes(4, "big") + word for word in words)).digest()

    def answer(self, sending: Introduce | Roll | Tie | Ties | Prepare | Unmask | Reopen) -> Message:
        match sending:
            case Introduce():
                return self._introduce(sending)
            case Roll():
                return self._roll(sending)
        if sending.run not in self._runs:
            return Message("stranger", client=self.client)
        match sending:
            case Reopen():
                return self._reopen(self._runs[sending.run], sending)
            case Tie():
                tie = np.frombuffer(self._runs[sending.run].masks.tie(), np.uint8)
                return Message("tied", client=self.client, tensors={"tie": tie})
            case Ties():
                return self._tied(self._runs[sending.run], sending)
        tolerance = self._runs[sending.run].tolerance
        if tolerance is None:
            raise FFGBError("in this run all participants must answer, and no one keeps shares of secrets")
        if isinstance(sending, Prepare):
            return Message("prepared", client=self.client, tensors=tolerance.prepared(sending.batch))
        return self._shares(tolerance, sending)

    def _group(self, introduction: Introduce) -> tuple[int, Group, bytes]:
        """The client's group in a run, the participants in it, and the client's private key."""
        g = next((g for g, group in enumerate(introduction.groups) if self.client in group.numbers), -1)
        if g < 0:
            raise FFGBError("this client is not among the participants")
        use = f"ffgb mask key {run_of(introduction.run, g)} {self.client}".encode()
        return g, introduction.groups[g], self.identity.secret(use)

    def _introduce(self, introduction: Introduce) -> Message:
        """Look at who takes part, and make a key for this run."""
        run = introduction.run
        if run in self._introductions and self._introductions[run].groups != introduction.groups:
            raise FFGBError(
                "the server names other participants than before in the same run; who takes part in a run never "
                "changes: the difference of two totals would tell the part of one"
            )
        g, group, secret = self._group(introduction)
        if len(group.names) < FEWEST:
            raise FFGBError(too_few(len(group.names)))
        if group.threshold:
            check_threshold(group.threshold, len(group.names))
        self.identity.check(dict(zip(group.names, map(bytes.fromhex, group.registered), strict=True)), group.threshold)
        self._introductions[run] = introduction
        key = public_of(secret)
        signature = self.identity.sign(words_to_sign(run_of(run, g), group, key))
        values = {"signature": signature.hex()}
        return Message("key", client=self.client, values=values, tensors={"key": np.frombuffer(key, np.uint8)})

    def _roll(self, roll: Roll) -> Message:
        """Take everyone's keys, if those have signed them."""
        introduction = self._introductions.get(roll.run)
        if introduction is None:
            raise FFGBError("the keys of participants come before the list of them")
        g, group, secret = self._group(introduction)
        if g >= len(roll.keys) or len(roll.keys[g]) != len(group.names):
            raise FFGBError("there are not as many keys as participants")
        keys, run = tuple(row.tobytes() for row in roll.keys[g]), run_of(roll.run, g)
        for name, registered, key, signature in zip(
            group.names, group.registered, keys, roll.signatures[g], strict=True
        ):
            words = words_to_sign(run, group, key)
            self.identity.verify(Participant(name, bytes.fromhex(registered)), bytes.fromhex(signature), words)
        roster = Roster(run, group.names, keys, group.threshold)
        if roll.run not in self._runs:
            masks = Masks(group.names[group.place(self.client)], secret, roster, self._marker)
            self._runs[roll.run] = _Run(masks, Tolerance(secret, masks) if group.threshold else None)
            self._recall(self._runs[roll.run])
        elif self._runs[roll.run].masks.roster.digest != roster.digest:
            raise FFGBError("the server names other keys of the participants than before in the same run")
        return Message("ready", client=self.client)

    def _tied(self, run: _Run, ties: Ties) -> Message:
        """A secret that all sites know, and the server does not."""
        names = run.masks.roster.names
        if len(ties.ties) != len(names):
            raise FFGBError("there are not as many ties as participants")
        common = run.masks.common(dict(zip(names, (row.tobytes() for row in ties.ties), strict=True)))
        if run.common not in (None, common):
            raise FFGBError("the server names other ties of the participants than before in the same run")
        run.common = common
        return Message("ready", client=self.client)

    def _shares(self, tolerance: Tolerance, unmask: Unmask) -> Message:
        N = len(tolerance.roster.names)
        if unmask.boxes.shape[:2] != (N, N):
            raise FFGBError("the server hands back other boxes than were sent")
        _, group, _ = self._group(self._introductions[unmask.run])
        label, mine = tolerance.masks.label(bytes.fromhex(unmask.question)), unmask.boxes[group.place(self.client)]
        found = tolerance.shares(unmask.number, label, unmask.arrived, mine)
        self._once(tolerance.roster, f"list {unmask.number}".encode(), repr(sorted(unmask.arrived)).encode())
        return Message("shares", client=self.client, tensors={"shares": found})

    def _reopen(self, run: _Run, reopen: Reopen) -> Message:
        """The keys of this client's masks for one question, that of its own mask in its own place.

        With them the server sees this client's part of that question, and of no other: seeds, which other questions
        of the same number would have in common, stay here.  Nothing more is answered in the run.
        """
        label = run.masks.label(bytes.fromhex(reopen.question))
        if not self.identity.reopens():
            raise FFGBError("its owner has not agreed to reopen masks (reopen, in the policy of the site)")
        if label not in run.masks.used or (run.reopened or label) != label:
            raise FFGBError("the server wants to reopen a question that was not answered, or a second one")
        self._once(run.masks.roster, b"reopened", label)
        run.reopened = label
        roster, neighbours = run.masks.roster, set(run.masks.roster.neighbours(run.masks.name))
        seeds = np.zeros((len(roster.names), KEY), np.uint8)
        for k, name in enumerate(roster.names):
            if name == run.masks.name:
                if run.tolerance is not None:
                    seeds[k] = np.frombuffer(derived(run.tolerance.own_mask(reopen.number, label), label), np.uint8)
            elif name in neighbours:
                seeds[k] = np.frombuffer(derived(run.masks.seed(name, reopen.number), label), np.uint8)
        return Message("seeds", client=self.client, tensors={"seeds": seeds})

    def hidden(self, part: Tensors, sums: Mapping[str, Sum], question: bytes, masking: Masking, round: int) -> Message:
        """An answer as it leaves: under masks."""
        run = self._runs[masking.run]
        if run.reopened not in (None, run.masks.label(question)):
            raise FFGBError("masks of this run were reopened, and nothing more is answered in it")
        _, group, _ = self._group(self._introductions[masking.run])
        without = [group.names[group.place(i)] for i in masking.without if i in group.numbers]
        left = len(group.names) - len(without)
        if self.client in masking.without or left < (group.threshold or len(group.names)):
            raise FFGBError(
                f"the server wants a total over {left} of {len(group.names)} participants, and this client has agreed "
                f"to no fewer than {group.threshold or len(group.names)}, and only to those that it is in"
            )
        own, label, roster = None, run.masks.label(question), run.masks.roster
        if run.tolerance is not None:
            own = run.tolerance.own_mask(masking.number, label, [roster.names.index(name) for name in without])
            self._once(roster, f"number {masking.number}".encode(), label)
        tensors = run.masks.masked(part, sums, question, masking.number, own, without)
        self._once(roster, b"part" + label, run.masks.used[label])
        self.sent = run.masks.used[label]
        return Message("masked", round, self.client, tensors=tensors)

    def _once(self, roster: Roster, name: bytes, said: bytes) -> None:
        """Raise an FFGBError if this client has said something else before, in this process or another."""
        if not self.identity.once(b"ffgb " + roster.digest + name, said):
            raise FFGBError(
                "a question came again after this site had answered it in another way, before it restarted or in "
                "another training; its masks are not used twice"
            )

    # Another process that goes on as this client

    def memory(self) -> Message:
        """What has left the client under which mask, and whose parts it was told had arrived."""
        runs = {}
        for run in self._runs.values():
            labels, said, without = ({}, {}, {})
            if run.tolerance is not None:
                labels, said, without = run.tolerance.labels, run.tolerance.said, run.tolerance.without
            runs[run.masks.roster.digest.hex()] = {
                "used": {label.hex(): content.hex() for label, content in run.masks.used.items()},
                "labels": {str(number): label.hex() for number, label in labels.items()},
                "said": {str(number): list(came) for number, came in said.items()},
                "without": {str(number): list(places) for number, places in without.items()},
                "reopened": None if run.reopened is None else run.reopened.hex(),
            }
        return Message("masks", client=self.client, values={"runs": {**self._past, **runs}})

    def recall(self, memory: Message) -> None:
        """Go on as the process that kept this."""
        self._past |= memory.values["runs"]
        for run in self._runs.values():
            self._recall(run)

    def _recall(self, run: _Run) -> None:
        past = self._past.get(run.masks.roster.digest.hex())
        if past is None:
            return
        run.reopened = None if past["reopened"] is None else bytes.fromhex(past["reopened"])
        run.masks.used.update({bytes.fromhex(label): bytes.fromhex(c) for label, c in past["used"].items()})
        if run.tolerance is not None:
            run.tolerance.labels.update({int(n): bytes.fromhex(label) for n, label in past["labels"].items()})
            run.tolerance.said.update({int(n): tuple(came) for n, came in past["said"].items()})
            run.tolerance.without.update({int(n): tuple(places) for n, places in past["without"].items()})
