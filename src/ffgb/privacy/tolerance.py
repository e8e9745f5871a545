"""Totals that come out although sites die on the way: double masking with shared secrets.

Besides the masks that it has with others, a site adds one of its own to each part.  Before questions are asked, it
shares two secrets of each question among all sites, t of which can put one together:

* the key of its own mask, which is revealed if its part has arrived;
* the key to the seeds of its masks with others, which is revealed if its part is missing.

Never both: then its part would be bare.  So each site says at most once, for each question, whose parts have arrived
and whose are missing, and t is more than half of the sites.  A server that tells sites different lists gets neither
secret of a site it attacks if t is more than two thirds of them (and fewer than t − N/2 sites help it).

Shares travel in boxes that only their holders can open; the server keeps them and hands them back when it asks.
Everything a site makes here follows from its own seed: a site that restarts makes the same again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import final

import numpy as np

from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError
from ffgb.privacy.ciphers import KEY, TAG, add_stream, derived, opened, sealed
from ffgb.privacy.masks import Masks, Roster, sign_of
from ffgb.privacy.shares import joined, mark, secret_of, split

BATCH = 32
"""Questions that sites prepare at a time."""
BOX = 2 * KEY + TAG
"""Bytes of a box: a share of each of the two secrets."""


def shapes(N: int) -> dict[str, tuple[int, ...]]:
    """The arrays in which a site prepares questions, all of bytes."""
    return {"boxes": (BATCH, N, BOX), "seeds": (BATCH, N, KEY), "marks": (BATCH, 2, KEY)}


@final
class Tolerance:
    """One site's secrets, and its shares of others'."""

    def __init__(self, seed: bytes, masks: Masks) -> None:
        self.roster, self.masks = masks.roster, masks
        self._seed = derived(seed, b"ffgb tolerance" + masks.roster.digest)
        self._me = masks.roster.names.index(masks.name)
        self._labels: dict[int, bytes] = {}
        """The question of each number that this site has answered."""
        self._said: dict[int, tuple[int, ...]] = {}
        """Whose parts had arrived, as this site was told, by number."""

    def _secrets(self, number: int) -> tuple[bytes, bytes]:
        """The key of this site's own mask, and the key to its seeds."""
        label = number.to_bytes(8, "big")
        return secret_of(self._seed, b"own" + label), secret_of(self._seed, b"seeds" + label)

    def prepared(self, batch: int) -> dict[str, Array]:
        """What this site sends before a batch of questions."""
        roster, N = self.roster, len(self.roster.names)
        found = {name: np.zeros(shape, np.uint8) for name, shape in shapes(N).items()}
        for k in range(BATCH):
            number = batch * BATCH + k
            own, key = self._secrets(number)
            shared = [
                split(secret, roster.threshold, N, self._seed, kind + number.to_bytes(8, "big"))
                for secret, kind in ((own, b"own"), (key, b"seeds"))
            ]
            seeds = np.zeros((N, KEY), np.uint8)
            for other, name in enumerate(roster.names):
                if other == self._me:
                    continue
                box_key = self.masks.box_key(name, self.masks.name, number)
                box = sealed(box_key, shared[0][other] + shared[1][other])
                found["boxes"][k, other] = np.frombuffer(box, np.uint8)
                seeds[other] = np.frombuffer(self.masks.seed(name, number), np.uint8)
            flat = seeds.ravel()
            add_stream([flat], derived(key, b"ffgb seeds"), 1)
            found["seeds"][k] = flat.reshape(N, KEY)
            found["marks"][k] = np.stack([np.frombuffer(mark(secret), np.uint8) for secret in (own, key)])
        return found

    def own_mask(self, number: int, label: bytes) -> bytes:
        """The key of this site's own mask for a question; one number serves for one question."""
        if self._labels.setdefault(number, label) != label:
            raise FFGBError("the server gives two questions the same number; the second is not answered")
        return self._secrets(number)[0]

    def shares(self, number: int, label: bytes, arrived: Sequence[int], boxes: Array) -> Array:
        """This site's share of a secret of each site: of its own mask if its part has arrived, else of its seeds."""
        N, came = len(self.roster.names), tuple(arrived)
        if self._labels.get(number) != label or self._me not in came:
            raise FFGBError("the server wants to unmask a question that this site has not answered")
        if len(set(came)) != len(came) or not all(0 <= i < N for i in came) or len(came) < self.roster.threshold:
            raise FFGBError(
                f"the server wants to unmask a total over {len(came)} sites, and this site has agreed to no fewer than "
                f"{self.roster.threshold}"
            )
        if self._said.setdefault(number, came) != came:
            raise FFGBError("the server says in two ways whose parts have arrived; a site says its shares only once")
        found = np.zeros((N, KEY), np.uint8)
        for i, name in enumerate(self.roster.names):
            if i == self._me:
                own = self._secrets(number)[0]
                share = split(own, self.roster.threshold, N, self._seed, b"own" + number.to_bytes(8, "big"))[i]
            else:
                both = opened(self.masks.box_key(name, name, number), boxes[i].tobytes())
                share = both[:KEY] if i in came else both[KEY:]
            found[i] = np.frombuffer(share, np.uint8)
        return found


@final
@dataclass(frozen=True, eq=False)
class Unmasking:
    """The server's side: what sites have prepared, and how their shares take off the masks that are left."""

    roster: Roster
    prepared: Mapping[int, Tensors]
    """By the number of a site in the roster."""

    def boxes(self, number: int) -> Array:
        """What the server hands back, (receivers, senders, bytes)."""
        N, k = len(self.roster.names), number % BATCH
        found = np.zeros((N, N, BOX), np.uint8)
        for i, arrays in self.prepared.items():
            found[:, i] = arrays["boxes"][k]
        return found

    def streams(
        self, number: int, label: bytes, arrived: Sequence[int], shares: Mapping[int, Array]
    ) -> list[tuple[bytes, int]]:
        """Keys of the masks that are left in the sum of the parts that have arrived, and their signs."""
        roster, came, k = self.roster, set(arrived), number % BATCH
        found: list[tuple[bytes, int]] = []
        for i, name in enumerate(roster.names):
            if i in came:
                own = self._together(i, 0, k, shares)
                found.append((derived(own, label), 1))
                continue
            key = self._together(i, 1, k, shares)
            seeds = self.prepared[i]["seeds"][k].ravel().copy()
            add_stream([seeds], derived(key, b"ffgb seeds"), -1)
            for other in came:
                seed = seeds.reshape(-1, KEY)[other].tobytes()
                found.append((derived(seed, label), sign_of(roster.names[other], name)))
        return found

    def _together(self, i: int, which: int, k: int, shares: Mapping[int, Array]) -> bytes:
        """Secret `which` of site i, from the shares of t holders; wrong ones are found by its mark."""
        wanted, holders = self.prepared[i]["marks"][k, which].tobytes(), sorted(shares)
        t = self.roster.threshold
        for tried, some in enumerate(combinations(holders, t)):
            if tried > 1000:
                break
            try:
                secret = joined({holder + 1: shares[holder][i].tobytes() for holder in some})
            except FFGBError:
                continue
            if mark(secret) == wanted:
                return secret
        raise FFGBError(
            f"the shares of {len(holders)} sites do not give the mask of {self.roster.names[i]} away: a share is wrong"
        )
