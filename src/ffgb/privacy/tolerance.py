"""Totals that come out although sites die on the way: double masking with shared secrets.

Besides the masks that it has with others, a site adds one of its own to each part.  Before questions are asked, it
shares two secrets of each question among all sites, t of which can put one together:

* the key of its own mask, which is revealed if its part has arrived;
* the key to the seeds of its masks with others, which is revealed if its part is missing.

Never both: then its part would be bare.  So each site says at most once, for each question, whose parts have arrived
and whose are missing.  A server that tells sites different lists has N shares of the two secrets of a site, and one
more from each site that helps it; it needs 2t.  So t is more than half of the sites, and a part stays hidden as long as
fewer than 2t − N sites help the server: a third of them, if t is two thirds.

Shares travel in boxes that only their holders can open; the server keeps them and hands them back when it asks.
Everything a site makes here follows from its own seed: a site that restarts makes the same again.  The questions that
it has answered, and the lists that it was told, it must remember (`labels`, `said`).

A site that has not shared its secrets of a batch of questions has no part in them: these questions say so, and no one
has a mask with it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import final

import numpy as np

from ffgb.core.types import Array, Tensors
from ffgb.errors import FFGBError
from ffgb.privacy.ciphers import KEY, TAG, add_streams, derived, opened, sealed
from ffgb.privacy.masks import Masks, Roster, sign_of
from ffgb.privacy.shares import joined, mark, secret_of, split

log = logging.getLogger("ffgb")

BATCH = 32
"""Questions that sites prepare at a time."""
BOX = 2 * KEY + TAG
"""Bytes of a box: a share of each of the two secrets."""
NONE = 0xFF
"""Every byte of a share that a site does not have: no number modulo the prime is so large."""
TRIES = 3000
"""Sets of holders that a secret is put together from before it is given up: enough for any two that lie of 77."""


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
        self.labels: dict[int, bytes] = {}
        """The question of each number that this site has answered."""
        self.said: dict[int, tuple[int, ...]] = {}
        """Whose parts had arrived, as this site was told, by number."""
        self.without: dict[int, tuple[int, ...]] = {}
        """With whom this site has no mask in the question of a number."""

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
            add_streams([flat], [(derived(key, b"ffgb seeds"), 1)])
            found["seeds"][k] = flat.reshape(N, KEY)
            found["marks"][k] = np.stack([np.frombuffer(mark(secret), np.uint8) for secret in (own, key)])
        return found

    def own_mask(self, number: int, label: bytes, without: Collection[int] = ()) -> bytes:
        """The key of this site's own mask for a question; one number serves for one question.

        There are no masks with those that the question does `without`.
        """
        if self.labels.setdefault(number, label) != label:
            raise FFGBError("the server gives two questions the same number; the second is not answered")
        self.without.setdefault(number, tuple(sorted(without)))
        return self._secrets(number)[0]

    def shares(self, number: int, label: bytes, arrived: Sequence[int], boxes: Array) -> Array:
        """This site's share of a secret of each site: of its own mask if its part has arrived, else of its seeds.

        Of a site whose box cannot be opened it is `NONE`: one site that shares badly does not silence the others.  So
        it is of those that the question does without.  They count neither as arrived nor as missing: otherwise a
        total over fewer than t would come out.
        """
        N, came = len(self.roster.names), tuple(sorted(arrived))
        if self.labels.get(number) != label or self._me not in came:
            raise FFGBError("the server wants to unmask a question that this site has not answered")
        if len(set(came)) != len(came) or not all(0 <= i < N for i in came) or len(came) < self.roster.threshold:
            raise FFGBError(
                f"the server wants to unmask a total over {len(came)} sites, and this site has agreed to no fewer than "
                f"{self.roster.threshold}"
            )
        without = self.without.get(number, ())
        if set(without) & set(came):
            raise FFGBError("the server says that parts have arrived of sites that the question does without")
        if self.said.setdefault(number, came) != came:
            raise FFGBError("the server says in two ways whose parts have arrived; a site says its shares only once")
        found = np.full((N, KEY), NONE, np.uint8)
        for i, name in enumerate(self.roster.names):
            if i in without:
                continue
            if i == self._me:
                own = self._secrets(number)[0]
                share = split(own, self.roster.threshold, N, self._seed, b"own" + number.to_bytes(8, "big"))[i]
            else:
                try:
                    both = opened(self.masks.box_key(name, name, number), boxes[i].tobytes())
                except FFGBError:
                    continue
                share = both[:KEY] if i in came else both[KEY:]
            found[i] = np.frombuffer(share, np.uint8)
        if (found != NONE).any(axis=1).sum() < self.roster.threshold:
            raise FFGBError("the sealed boxes that the server hands back cannot be opened: they are not those of sites")
        return found


@final
@dataclass(frozen=True, eq=False)
class Unmasking:
    """The server's side: what sites have prepared, and how their shares take off the masks that are left."""

    roster: Roster
    prepared: dict[int, Tensors]
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
        found, holders = list[tuple[bytes, int]](), _Holders(roster, shares)
        for i, name in enumerate(roster.names):
            if i not in self.prepared:
                continue
            marks = self.prepared[i]["marks"][k]
            if i in came:
                found.append((derived(holders.secret(i, marks[0].tobytes()), label), 1))
                continue
            key = holders.secret(i, marks[1].tobytes())
            seeds = self.prepared[i]["seeds"][k].ravel().copy()
            add_streams([seeds], [(derived(key, b"ffgb seeds"), -1)])
            for other in came:
                seed = seeds.reshape(-1, KEY)[other].tobytes()
                found.append((derived(seed, label), sign_of(roster.names[other], name)))
        return found


@final
class _Holders:
    """Sites that have given their shares, and those among them that have given a wrong one."""

    def __init__(self, roster: Roster, shares: Mapping[int, Array]) -> None:
        self.roster, self.shares = roster, shares
        self.wrong: set[int] = set()

    def secret(self, i: int, wanted: bytes) -> bytes:
        """A secret of site i, from the shares of t holders: its mark tells whether it is the right one."""
        given = {h: shares[i].tobytes() for h, shares in self.shares.items() if (shares[i] != NONE).any()}
        sound = [h for h in sorted(given) if h not in self.wrong]
        for some in islice(_choices(sound, self.roster.threshold), TRIES):
            secret = _joined(given, some)
            if secret is not None and mark(secret) == wanted:
                if some != tuple(sound[: len(some)]):
                    self._blame(i, given, some, secret)
                return secret
        raise FFGBError(
            f"the shares of {len(given)} sites do not give the mask of {self.roster.names[i]} away: it has shared it "
            "wrongly, or several sites have sent wrong shares"
        )

    def _blame(self, i: int, given: Mapping[int, bytes], some: Sequence[int], secret: bytes) -> None:
        """Find whose shares are wrong, given t that are right: they are not used again."""
        for holder in given.keys() - set(some) - self.wrong:
            if _joined(given, (*some[1:], holder)) != secret:
                self.wrong.add(holder)
                log.warning("%s sent a wrong share of the mask of %s", *(self.roster.names[k] for k in (holder, i)))


def _choices(holders: Sequence[int], t: int) -> Iterator[tuple[int, ...]]:
    """The first t holders, then t without any one of them, without any two …"""
    seen: set[tuple[int, ...]] = set()
    for fewer in range(len(holders) - t + 1):
        for left_out in combinations(holders, fewer):
            some = tuple([h for h in holders if h not in left_out][:t])
            if some not in seen:
                seen.add(some)
                yield some


def _joined(given: Mapping[int, bytes], holders: Sequence[int]) -> bytes | None:
    """The secret that these shares give; None if one of them is no share."""
    try:
        return joined({holder + 1: given[holder] for holder in holders})
    except FFGBError:
        return None
