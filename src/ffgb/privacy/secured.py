"""One client's side of secure totals: its keys, the list of participants, and its answers under masks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import final

import numpy as np

from ffgb.core.questions import Sum
from ffgb.core.types import Tensors
from ffgb.errors import FFGBError
from ffgb.privacy.ciphers import public_of
from ffgb.privacy.identity import Identity, Participant
from ffgb.privacy.masks import Masks, Roster, check_threshold
from ffgb.privacy.tolerance import Tolerance
from ffgb.protocol.codec import Message
from ffgb.protocol.masking import Group, Introduce, Prepare, Roll, Unmask


def words_to_sign(run: str, group: Group, key: bytes) -> bytes:
    """What a site signs: its key for this run, among these participants."""
    parts = [run.encode(), group.threshold.to_bytes(4, "big"), key]
    parts += [text.encode() for pair in zip(group.names, group.registered, strict=True) for text in pair]
    digest = hashlib.sha256(b"".join(len(part).to_bytes(4, "big") + part for part in parts)).digest()
    return b"ffgb key for secure totals" + digest


def run_of(run: str, group: int) -> str:
    """The name of a group's roster: those who train and those who hold out rows have different masks."""
    return f"{run}/{group}"


@final
class Secured:
    """What a client has of a run with secure totals."""

    def __init__(self, client: int, identity: Identity) -> None:
        self.client, self.identity = client, identity
        self._introduction: Introduce | None = None
        self._group = 0
        self._masks: Masks | None = None
        self._tolerance: Tolerance | None = None

    def knows(self, run: str) -> bool:
        """Can it mask answers in this run?"""
        return self._masks is not None and self._introduction is not None and self._introduction.run == run

    def answer(self, sending: Introduce | Roll | Prepare | Unmask) -> Message:
        match sending:
            case Introduce():
                return self._introduce(sending)
            case Roll():
                return self._roll(sending)
        if self._introduction is None or self._tolerance is None or self._introduction.run != sending.run:
            return Message("stranger", client=self.client)
        if isinstance(sending, Prepare):
            return Message("prepared", client=self.client, tensors=self._tolerance.prepared(sending.batch))
        return self._shares(self._tolerance, sending)

    @property
    def _words(self) -> tuple[Introduce, Group, bytes]:
        assert self._introduction is not None
        use = f"ffgb mask key {run_of(self._introduction.run, self._group)} {self.client}".encode()
        return self._introduction, self._introduction.groups[self._group], self.identity.secret(use)

    def _introduce(self, introduction: Introduce) -> Message:
        """Look at who takes part, and make a key for this run."""
        self._introduction, self._masks, self._tolerance = introduction, None, None
        self._group = next((g for g, group in enumerate(introduction.groups) if self.client in group.numbers), -1)
        if self._group < 0:
            raise FFGBError("this client is not among the participants")
        _, group, secret = self._words
        if group.threshold:
            check_threshold(group.threshold, len(group.names))
        registered = [bytes.fromhex(key) for key in group.registered]
        self.identity.check(dict(zip(group.names, registered, strict=True)), group.threshold)
        key = public_of(secret)
        signature = self.identity.sign(words_to_sign(introduction.run, group, key))
        values = {"signature": signature.hex()}
        return Message("key", client=self.client, values=values, tensors={"key": np.frombuffer(key, np.uint8)})

    def _roll(self, roll: Roll) -> Message:
        """Take everyone's keys, if those have signed them."""
        if self._introduction is None or self._introduction.run != roll.run:
            raise FFGBError("the keys of participants come before the list of them")
        introduction, group, secret = self._words
        if self._group >= len(roll.keys) or len(roll.keys[self._group]) != len(group.names):
            raise FFGBError("there are not as many keys as participants")
        keys = tuple(row.tobytes() for row in roll.keys[self._group])
        signatures = roll.signatures[self._group]
        for name, registered, key, signature in zip(group.names, group.registered, keys, signatures, strict=True):
            words = words_to_sign(introduction.run, group, key)
            self.identity.verify(Participant(name, bytes.fromhex(registered)), bytes.fromhex(signature), words)
        roster = Roster(run_of(introduction.run, self._group), group.names, keys, group.threshold)
        masks = Masks(group.names[group.place(self.client)], secret, roster)
        if self._masks is None or self._masks.roster.digest != roster.digest:  # else the message was repeated
            self._masks = masks
            self._tolerance = Tolerance(secret, masks) if group.threshold else None
        return Message("ready", client=self.client)

    def _shares(self, tolerance: Tolerance, unmask: Unmask) -> Message:
        N = len(tolerance.roster.names)
        if len(unmask.boxes) != N or unmask.boxes.shape[1] != N:
            raise FFGBError("the server hands back other boxes than were sent")
        _, group, _ = self._words
        label, mine = tolerance.masks.label(bytes.fromhex(unmask.question)), unmask.boxes[group.place(self.client)]
        found = tolerance.shares(unmask.number, label, unmask.arrived, mine)
        return Message("shares", client=self.client, tensors={"shares": found})

    def hidden(self, part: Tensors, sums: Mapping[str, Sum], question: bytes, number: int, round: int) -> Message:
        """An answer as it leaves: under masks."""
        assert self._masks is not None
        own = None
        if self._tolerance is not None:
            own = self._tolerance.own_mask(number, self._masks.label(question))
        tensors = self._masks.masked(part, sums, question, number, own)
        return Message("masked", round, self.client, tensors=tensors)
