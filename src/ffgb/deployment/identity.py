"""A real site among the others: its keys, the participants that it has met, and whom it adds its numbers to."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, final

from ffgb.deployment.keys import der, fingerprint, own_public, private, site_key, write_new
from ffgb.deployment.once import Once
from ffgb.deployment.policy import Policy
from ffgb.errors import FFGBError
from ffgb.files import atomic_write
from ffgb.privacy.ciphers import KEY, check_signature, derived, signed
from ffgb.privacy.identity import Identity, Participant
from ffgb.privacy.ledger import Ledger
from ffgb.protocol.codec import shown

SECRET, PARTICIPANTS, SCORES, MASKS = "secret", "participants.json", "scores.json", "masks"


@final
@dataclass(frozen=True, eq=False)
class SiteIdentity(Identity):
    """A site with a registered key, a secret of its own, and a list of those it has met."""

    name: str
    folder: Path
    """Where the site keeps what it knows about this server."""
    key: Any
    """Its private key, whose public half is registered with the server."""
    policy: Policy = field(default_factory=Policy)
    purse: Ledger | None = None
    """What its data file has cost so far, if nothing leaves it without noise."""
    rows_of_a_unit: int = 1
    confirm: Callable[[Mapping[str, str]], bool] = lambda participants: True
    """Asks the owner about participants that are met for the first time: names, and fingerprints of their keys."""

    @staticmethod
    def of(
        name: str,
        folder: Path,
        key: Path | None = None,
        policy: Policy | None = None,
        confirm: Callable[[Mapping[str, str]], bool] = lambda participants: True,
        purse: Ledger | None = None,
        rows_of_a_unit: int = 1,
    ) -> SiteIdentity:
        rules, own = policy or Policy(), site_key(key or folder / "key")
        return SiteIdentity(name, folder, own, rules, purse, rows_of_a_unit, confirm)

    @property
    def private(self) -> bool:
        return self.purse is not None

    @property
    def colluders(self) -> int:
        return self.policy.colluders

    def spend(self, what: str, question: bytes, mu: float, rows: int) -> None:
        if self.purse is None:
            raise FFGBError("the owner of this site has set no privacy budget; nothing is answered with noise")
        self.purse.spend(what, question, mu, rows)

    @property
    def registered(self) -> bytes:
        """Its public key (DER)."""
        return der(own_public(self.key), "the key of this site")

    def secret(self, use: bytes) -> bytes:
        file = self.folder / SECRET
        if not file.exists():
            private(self.folder)
            write_new(file, secrets.token_bytes(KEY), 0o600)
        return derived(file.read_bytes(), b"ffgb site" + use)

    def sign(self, words: bytes) -> bytes:
        return signed(self.key, words)

    def check(self, participants: Mapping[str, bytes], threshold: int) -> None:
        N, policy = len(participants), self.policy
        if participants.get(self.name) != self.registered:
            raise FFGBError(f"the list of participants does not have {self.name} with its own key")
        if policy.least_sites > N:
            raise FFGBError(f"{N} sites take part, and the policy of {self.name} wants at least {policy.least_sites}")
        if threshold and not policy.missing_sites:
            raise FFGBError(
                f"a total is to come out with {threshold} of {N} sites, and the policy of {self.name} wants all in it "
                "(missing_sites is false)"
            )
        needed = N // 2 + 1 if policy.honest_server else 2 * N // 3 + 1
        if threshold and threshold < needed:
            raise FFGBError(
                f"a total is to come out with {threshold} of {N} sites, and the policy of {self.name} wants {needed} "
                f"(honest_server is {str(policy.honest_server).lower()})"
            )
        marks = {name: fingerprint(key) for name, key in participants.items()}
        if len(set(marks.values())) < N:
            raise FFGBError("two participants have the same key")
        self._meet(marks)

    def _meet(self, marks: Mapping[str, str]) -> None:
        """Compare the others with those in the policy, and with those that were met before: these may not change, since
        the difference of totals over two lists tells the part of a site that is only in one."""
        others, before = {name: mark for name, mark in marks.items() if name != self.name}, self.met()
        for known in (dict(self.policy.participants), before):
            self._compare(others, known)
        if left := sorted(before.keys() - others.keys()):
            raise FFGBError(
                f"{shown(left[0])} took part before, and is not in the list of participants now: the difference of "
                f"both would tell its part; to agree to the new list all the same, the owner of {self.name} removes "
                f"{PARTICIPANTS} in its folder"
            )
        if not before:
            if not self.policy.participants and not self.confirm(others):
                raise FFGBError("the owner of this site has not agreed to these participants")
            private(self.folder)
            atomic_write(self.folder / PARTICIPANTS, json.dumps(others, indent=1).encode(), 0o600)

    @staticmethod
    def _compare(others: Mapping[str, str], known: Mapping[str, str]) -> None:
        """Raise an FFGBError if one of the others is not known, or has another key; if no one is known, all may be."""
        strange = [name for name in others if known.get(name) != others[name]] if known else []
        if strange:
            name, why = strange[0], "is not among the participants that this site knows"
            if name in known:
                why = f"has another key than this site knows: {others[name]} in place of {known[name]}"
            raise FFGBError(f"{shown(name)} {why}; ask its owner, and the server's operator")

    def met(self) -> dict[str, str]:
        """The participants that this site has met: fingerprints by name."""
        try:
            found = json.loads((self.folder / PARTICIPANTS).read_text())
            return {str(name): str(mark) for name, mark in found.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError) as error:
            raise FFGBError(
                f"{self.folder / PARTICIPANTS} is damaged ({error}); remove it, and compare fingerprints again"
            ) from error

    def reopens(self) -> bool:
        return self.policy.reopen

    @cached_property
    def _once(self) -> Once:
        return Once(self.folder / MASKS)

    def once(self, name: bytes, said: bytes) -> bool:
        return self._once(name, said)

    def keep_scores(self, scores: Mapping[str, Any]) -> None:
        """Write down how good the model is at this site's own rows: no one else is told."""
        private(self.folder)
        atomic_write(self.folder / SCORES, json.dumps(scores, indent=1).encode(), 0o600)

    def verify(self, participant: Participant, signature: bytes, words: bytes) -> None:
        check_signature(participant.registered, signature, words, shown(participant.name))
