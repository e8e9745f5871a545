"""The site's process: it joins a server, keeps what its owner agreed to, and answers until it is told to stop."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from ffgb._version import __version__
from ffgb.deployment.agreement import Agreement
from ffgb.deployment.attendant import Attendant
from ffgb.deployment.keys import (
    AUTHORITY,
    Invitation,
    UnreachableError,
    check_address,
    join,
    private,
    site_key,
)
from ffgb.engines.node import Answer, Node, trusting
from ffgb.errors import FFGBError, option
from ffgb.files import atomic_write, content_hash
from ffgb.privacy.ledger import Ledger as Purse

PINNED, JOINED, LEDGER, AGREED = "server.pem", "joined", "ledger.jsonl", "agreed.json"
JOB = "job.toml"
"""The server's job, as its owner agreed to it."""


EXCUSE_SECONDS = 30.0
"""That a site waits to tell why it does not take part."""


def state_folder() -> Path:
    """Where a user's own state is kept."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "ffgb" / "servers"


def privacy_ledger(data: Path) -> Purse:
    """What a data file has cost so far, in all trainings with all servers: by the hash of its bytes."""
    digest = content_hash(data)
    return Purse(state_folder().parent / "privacy" / f"{digest}.jsonl", digest)


@final
@dataclass(frozen=True)
class Home:
    """What a site keeps about one server: its key, the server's certificate, what was agreed to and what was sent."""

    folder: Path
    address: str
    name: str

    @staticmethod
    def of(address: str, name: str) -> Home:
        check_address(address)
        return Home(state_folder() / address.replace(":", "_").strip("[]") / name, address, name)

    @staticmethod
    def known(address: str) -> list[str]:
        """Names under which sites of this machine have joined this server."""
        folder = state_folder() / address.replace(":", "_").strip("[]")
        return sorted(path.parent.name for path in folder.glob(f"*/{PINNED}"))

    @property
    def ledger(self) -> Path:
        return self.folder / LEDGER

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Two processes with one key would take each other's messages."""
        private(self.folder)
        with (self.folder / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise FFGBError(
                    f"another ffgb client is site {self.name} of {self.address} on this machine; end it first"
                ) from error
            yield

    def join(self, invitation: Invitation, stop: threading.Event, say: Callable[[str], None]) -> bool:
        """Join the server of an invitation, once: False if this site has used it before, or was told to stop.

        A server that is not there yet is waited for.
        """
        file = self.folder / PINNED
        used, mark = self.folder / JOINED, hashlib.sha256(str(invitation).encode()).hexdigest()
        if file.exists() and used.exists() and used.read_text() == mark:
            return False
        key = site_key(self.folder / "key")
        told = False
        while not stop.is_set():
            try:
                atomic_write(file, join(invitation, key), 0o644)
                atomic_write(used, mark.encode(), 0o600)
                return True
            except UnreachableError as error:
                if not told:
                    say(f"{error} Trying again." if str(error).endswith("?") else f"{error}; trying again")
                told = True
                stop.wait(1.0)
        return False

    @property
    def job(self) -> bytes | None:
        """The job that the owner agreed to; None if there is none."""
        file = self.folder / JOB
        return file.read_bytes() if file.exists() else None

    def keep_job(self, job: bytes) -> None:
        """Write down the job that the owner has agreed to."""
        private(self.folder)
        atomic_write(self.folder / JOB, job, 0o600)

    def agreed(self, inputs: str) -> Agreement | None:
        """What the owner agreed to for these very inputs."""
        kept = self._agreed()
        return Agreement.from_json(kept["agreement"]) if kept is not None and kept["inputs"] == inputs else None

    def covers(self, agreement: Agreement) -> bool:
        """Has the owner agreed to all of this before, if with other rows in the file?"""
        kept = self._agreed()
        return kept is not None and Agreement.from_json(kept["agreement"]).covers(agreement)

    def agree(self, inputs: str, agreement: Agreement) -> None:
        private(self.folder)
        text = json.dumps({"inputs": inputs, "agreement": agreement.to_json()})
        atomic_write(self.folder / AGREED, text.encode(), 0o600)

    def _agreed(self) -> dict[str, Any] | None:
        try:
            kept = json.loads((self.folder / AGREED).read_text())
            Agreement.from_json(kept["agreement"])
            return dict(kept)
        except (OSError, ValueError, KeyError, TypeError, FFGBError):
            return None  # there is none, or it is damaged: the owner is asked again


def inputs_of(data: Path, settings: Mapping[str, Any], *more: Any) -> str:
    """A name for all that a rehearsal depends on: the file's bytes, the settings, and this version."""
    digest = hashlib.sha256(json.dumps([settings, [str(m) for m in more], __version__], sort_keys=True).encode())
    with data.open("rb") as file:
        while part := file.read(2**20):
            digest.update(part)
    return digest.hexdigest()


def connection(address: str, home: Home, tls: Path | None, key: Path | None, *, insecure: bool) -> Node:
    """The node of a site: with what it got when it joined, with files of its own, or without TLS on this machine."""
    if insecure:
        return Node(address, site_key(home.folder / "key"), None)
    if tls is not None:
        if key is None:
            raise FFGBError(
                f"with {option('tls')} a site needs its own {option('key')}, whose public half the server's operator "
                "registers"
            )
        for file in (tls / AUTHORITY, key):
            if not file.exists():
                raise FFGBError(f"{file} is not there")
        return Node(address, site_key(key), trusting((tls / AUTHORITY).read_bytes(), pinned=False))
    file = home.folder / PINNED
    return Node(address, site_key(home.folder / "key"), trusting(file.read_bytes(), pinned=True))


class _UnderWayError(Exception):
    """The server asks for answers, and not who is here."""


def fetch_job(node: Node, stop: threading.Event, say: Callable[[str], None]) -> bytes | None:
    """The job that the server proposes; nothing is answered but that the owner reads it.

    None if the server has a training under way, in which this site takes part, or if it is told to stop.
    """
    found, done = list[bytes](), threading.Event()

    def answer(data: Mapping[str, bytes], said: Mapping[str, Any]) -> tuple[dict[str, bytes], dict[str, Any]]:
        done.set()
        if not said.get("hello"):
            raise _UnderWayError  # no answer: the server asks again
        found.append(data.get("job", b""))
        return {}, {"waiting": True}

    _answer_once(node, answer, done, stop, say)
    return found[0] if found else None


def excuse(node: Node, why: str, stop: threading.Event, say: Callable[[str], None]) -> None:
    """Tell a server that asks who is here why this site does not take part, if it asks soon."""
    done = threading.Event()

    def answer(data: Mapping[str, bytes], said: Mapping[str, Any]) -> tuple[dict[str, bytes], dict[str, Any]]:
        done.set()
        return {}, {"failed": why}

    _answer_once(node, answer, done, stop, say, EXCUSE_SECONDS)


def _answer_once(
    node: Node,
    answer: Answer,
    done: threading.Event,
    stop: threading.Event,
    say: Callable[[str], None],
    seconds: float = math.inf,
) -> None:
    """Answer until one answer is done, told to stop, or so long."""
    until = time.monotonic() + seconds
    thread = threading.Thread(target=node.run, args=(answer, done, say, lambda up: None), daemon=True, name="ffgb job")
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
        if stop.is_set() or time.monotonic() > until:
            done.set()
            break
    node.close()


def attend(node: Node, attendant: Attendant, stop: threading.Event, say: Callable[[str], None]) -> None:
    """Be a site until told to stop.  Waiting for the server is done in a thread, which ends with the process."""
    failed: list[BaseException] = []

    def told(text: str) -> None:
        left = attendant.ended and text.startswith("cannot reach")
        say("the server has left; this site waits for it and for another training, until Ctrl-C" if left else text)

    def run() -> None:
        try:
            node.run(attendant.answer, stop, told, attendant.board.connected)
        except BaseException as error:
            failed.append(error)
        finally:
            stop.set()

    threading.Thread(target=run, daemon=True, name="ffgb node").start()
    stop.wait()
    node.close()
    if failed:
        raise failed[0]
