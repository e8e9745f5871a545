"""The run directory: configuration, metrics, checkpoint, model and summary.

Every file is written whole (files.py).  `checkpoint/state.json` is written last in a round and says which of the other
files count, so a kill at any moment leaves a directory that goes on from the last whole round, to the same bits as an
unbroken run.

The checkpoint before is kept too: `state-T.json`, with the files that it names and its own `checkpoint/metrics.jsonl`.
Where a file of the newest one is damaged, a run goes on from there.  Files that both need are written twice (`*.copy`),
but for the rounds of an open sum: all of its `state-T.json` are kept, so that a run can go on from any whole round.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import logging
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

from ffgb.algorithms import Cells, Totals
from ffgb.core.functions import Function, from_tensors
from ffgb.core.geometry import Geometry
from ffgb.errors import FFGBError, option
from ffgb.federation.state import State
from ffgb.files import atomic_write, others, remove_leftovers, sync_folder
from ffgb.protocol.codec import Message, decode, encode
from ffgb.protocol.costs import Costs
from ffgb.protocol.describe import build, describe
from ffgb.protocol.job import Job, Update
from ffgb.protocol.messages import Setup
from ffgb.runs.going_on import going_on

log = logging.getLogger("ffgb")

PRIVATE = 0o700
"""The mode of new folders: a run says much about the rows that it was trained on."""
DAMAGE = (OSError, KeyError, TypeError, ValueError, FFGBError)
"""What reading a damaged file may raise."""


@final
class Run:
    """One run directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint = path / "checkpoint"
        self._lines: list[str] = []

    @staticmethod
    def create(path: Path, config: Mapping[str, Any]) -> Run:
        """A new directory with its configuration."""
        Run.must_be_free(path)
        run = Run(path)
        _make(path)
        run.write_json("config.json", config)  # before anything else: a directory without it is no run
        _make(run.checkpoint)
        return run

    @staticmethod
    def must_be_free(path: Path) -> None:
        if (path / "config.json").exists():
            raise FFGBError(
                f"{path} already holds a run; continue it with {option('resume')}, or choose another {option('out')}"
            )
        parent = next(p for p in (path, *path.resolve().parents) if p.exists())
        if not os.access(parent, os.W_OK):
            raise FFGBError(f"{parent} cannot be written to; choose another {option('out')}")
        if path.exists() and (not path.is_dir() or any(others(path))):
            raise FFGBError(f"{path} exists and is not an empty directory; choose another {option('out')}")

    @staticmethod
    def open(path: Path) -> Run:
        """An existing directory."""
        if not (path / "config.json").exists():
            raise FFGBError(
                f"{path} holds no run (there is no config.json in it); name the {option('out')} of an ffgb train or "
                "ffgb server"
            )
        return Run(path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """The directory is this process's alone: two that trained in it would overwrite each other."""
        _make(self.path)
        _make(self.checkpoint)
        with (self.checkpoint / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise FFGBError(f"another process is training in {self.path}; wait for it to end") from error
            self._clean()
            yield

    @property
    def config(self) -> dict[str, Any]:
        return self._read_json("config.json")

    @property
    def summary(self) -> dict[str, Any]:
        return self._read_json("summary.json")

    @property
    def clients(self) -> dict[str, Any] | None:
        """What is known about each client, if the run has ended (by_client.py)."""
        return self._read_json("clients.json") if (self.path / "clients.json").exists() else None

    @property
    def fit(self) -> dict[str, Any] | None:
        """How well the model fits rows that were held out (fit.py), if they were on this machine."""
        return self._read_json("fit.json") if (self.path / "fit.json").exists() else None

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        self._write(self.path / name, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())

    def write_model(self, data: bytes) -> None:
        self._write(self.path / "model.safetensors", data)

    def reopen(self) -> None:
        """Training goes on: what was written when it had ended is of another model."""
        models = ("model.safetensors", "distilled.safetensors", "reweighted.safetensors", "recalibrated.safetensors")
        for name in (
            *models,
            "summary.json",
            "clients.json",
            "fit.json",
            "conformal.json",
            "effects.json",
            "report.html",
        ):
            (self.path / name).unlink(missing_ok=True)

    def save(self, state: State, metrics: Sequence[Mapping[str, Any]], seconds: float) -> None:
        """Everything a resumed run needs.  A round adds one file; nothing that is already there is written again."""
        _make(self.checkpoint)  # a kill may have come before it
        if not self._lines:
            self._clean()
        # those of rounds before, as text: in thousands of rounds it takes time to make
        self._lines += [json.dumps(line, allow_nan=False) + "\n" for line in metrics[len(self._lines) :]]
        before = self._set_aside(state.t)
        job = self._job(state.job.at)
        if not job.exists():
            if state.geometry is not None:
                recipe, arrays = describe(state.geometry)
                message = Message("geometry", values={"recipe": recipe}, tensors=arrays)
                self._write_twice(self.checkpoint / "geometry.safetensors", encode(message))
            self._write_twice(job, encode(Setup(state.job).message()))
        if state.job.closed:
            self._write_update(f"f-{state.t:06d}.safetensors", Update(state.t, 0.0, state.f))
        elif state.updates:
            last = state.updates[-1]
            first = last.version == state.job.at + 1  # there is no round to go back to before it
            self._write_update(f"round-{last.version:06d}.safetensors", last, twice=first)
        lines = "".join(self._lines).encode()
        self._write(self.path / "metrics.jsonl", lines)
        for i, (since, memory) in state.memory.items():
            if since == state.t:
                message = Message("memory", since, i, tensors=dict(memory))
                self._write_twice(self._memory(i, since), encode(message))
        content = {
            "t": state.t,
            "at": state.job.at,
            "memory": {i: since for i, (since, _) in state.memory.items()},
            "costs": dataclasses.asdict(state.costs),
            "delivered": list(state.delivered),
            "gradient_bound": state.gradient_bound,
            "seconds": seconds,
            "metrics": _checksum(lines),
        }
        content["checksum"] = _checksum(json.dumps(content).encode())
        self._write(self.checkpoint / "state.json", json.dumps(content).encode())
        self._remove_old(content, before, closed=state.job.closed)

    def _set_aside(self, t: int) -> dict[str, Any] | None:
        """The newest checkpoint becomes the one before: what that says.

        If a run goes on from an earlier round, those of this round and later are removed first: their files are about
        to be those of another try.
        """
        newest = self.checkpoint / "state.json"
        for number, file in self._states():
            if number >= t:
                file.unlink()
        if newest.exists():
            try:
                content = _read_state(newest)
                passed = int(content["t"])
            except DAMAGE:
                passed = t
            if passed >= t:
                newest.unlink()
            else:
                self._write(self.checkpoint / "metrics.jsonl", "".join(self._lines[:passed]).encode())
                self._write(self.checkpoint / f"state-{passed:06d}.json", newest.read_bytes())
                return content
        for _, file in self._states():
            try:
                return _read_state(file)
            except DAMAGE:
                continue
        return None

    def _remove_old(self, newest: Mapping[str, Any], before: Mapping[str, Any] | None, *, closed: bool) -> None:
        """Only what the last two checkpoints name is kept, and of an open sum every round's state."""
        kept = set[str]()
        for content in (newest, before):
            if content is not None:
                memory = (self._memory(int(i), since).name for i, since in content["memory"].items())
                f = f"f-{content['t']:06d}.safetensors"
                kept |= {f, self._job(content["at"]).name, f"state-{content['t']:06d}.json", *memory}
        kept |= {file.name for number, file in self._states() if not closed and number >= newest["at"]}
        for pattern in ("f-*", "memory-*", "job-*", "state-*"):
            for old in self.checkpoint.glob(pattern):
                if old.name not in kept and old.with_suffix(".safetensors").name not in kept:
                    old.unlink()

    def save_setup(self, known: Mapping[str, Any], noted: Mapping[str, Any]) -> None:
        """The totals of the set-up that are known by now, of which the last is new, and what else is to be kept of it.

        `setup.json` is written last and says which files count.
        """
        recipe, arrays = describe([*known.values()][-1])
        message = Message("total", values={"recipe": recipe}, tensors=arrays)
        self._write(self._total(len(known)), encode(message))
        content = {**noted, "totals": list(known)}
        self._write(self.checkpoint / "setup.json", json.dumps(content).encode())

    def load_setup(self) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """What `save_setup` wrote: totals by their questions, and what else was kept; nothing if no total was known."""
        if not (self.checkpoint / "setup.json").exists():
            return {}, None
        content, known = self._read_json("checkpoint/setup.json"), {}
        if (self.checkpoint / "state.json").exists():  # the set-up is over
            return {}, content
        try:
            for number, key in enumerate(content["totals"], 1):
                message = decode(self._total(number).read_bytes())
                known[key] = build(message.values["recipe"], message.tensors)
        except (OSError, KeyError, TypeError, ValueError, FFGBError) as error:
            raise FFGBError(
                f"the set-up in {self.checkpoint} is damaged ({error}); start again with another {option('out')}"
            ) from error
        return known, content

    def forget_totals(self) -> None:
        """The set-up is over: its totals are of no more use."""
        for old in self.checkpoint.glob("total-*.safetensors"):
            old.unlink()

    def load(self) -> tuple[State, list[dict[str, Any]], float] | None:
        """The last whole round, the metrics so far and the seconds spent; None if no round was finished."""
        newest = self.checkpoint / "state.json"
        files = [newest, *(file for _, file in self._states())]
        if not any(file.exists() for file in files):
            return None
        damage: Exception | None = None
        for file in files:
            try:
                state, metrics, seconds = self._load(_read_state(file))
            except DAMAGE as error:
                damage = damage or error
                continue
            if damage is not None:
                log.warning(
                    "the newest checkpoint in %s is damaged (%s); the run goes on from the one of round %d",
                    *(self.checkpoint, damage, state.t),
                )
            return state, metrics, seconds
        raise FFGBError(
            f"the checkpoint in {self.checkpoint} is damaged ({damage}), and so is the one before; "
            f"start again with another {option('out')}"
        ) from damage

    def _load(self, content: Mapping[str, Any]) -> tuple[State, list[dict[str, Any]], float]:
        setup = self._read(self._job(int(content["at"])))
        job: Job = build(setup.values["recipe"], setup.tensors)
        t = int(content["t"])
        f, updates = self._read_functions(job, t)
        costs = Costs(**content["costs"])
        memory = {
            int(i): (since, self._read(self._memory(int(i), since)).tensors) for i, since in content["memory"].items()
        }
        state = State(
            job,
            t,
            f,
            updates,
            tuple(content["delivered"]),
            costs,
            self._read_geometry(job),
            memory,
            content.get("gradient_bound"),
        )
        return state, self._read_metrics(t, content.get("metrics")), float(content["seconds"])

    def _read_metrics(self, t: int, checksum: int | None) -> list[dict[str, Any]]:
        """The lines of so many rounds; later ones are of a round that was cut."""
        found = []
        for folder in (self.path, self.checkpoint):
            file = folder / "metrics.jsonl"
            lines = file.read_bytes().splitlines(keepends=True)[:t] if file.exists() else []
            if len(lines) == t and checksum in (None, _checksum(b"".join(lines))):
                return [json.loads(line) for line in lines]
            found.append(len(lines))
        wrong = "lines that were changed" if found[0] == t else f"{found[0]} rounds of {t}"
        raise FFGBError(f"metrics.jsonl has {wrong}")

    def _states(self) -> list[tuple[int, Path]]:
        """The checkpoints before the newest, by their rounds, the latest first."""
        files = ((file.stem.removeprefix("state-"), file) for file in self.checkpoint.glob("state-*.json"))
        return sorted(((int(number), file) for number, file in files if number.isdecimal()), reverse=True)

    def _clean(self) -> None:
        for folder in (self.path, self.checkpoint):
            remove_leftovers(folder)

    def _job(self, at: int) -> Path:
        return self.checkpoint / f"job-{at:06d}.safetensors"

    def _total(self, number: int) -> Path:
        return self.checkpoint / f"total-{number:06d}.safetensors"

    def _memory(self, i: int, since: int) -> Path:
        return self.checkpoint / f"memory-{i:06d}-{since:06d}.safetensors"

    def _read_geometry(self, job: Job) -> Geometry | None:
        if not isinstance(job.algorithm, Totals) or isinstance(job.algorithm, Cells):
            return None
        message = self._read(self.checkpoint / "geometry.safetensors")
        geometry = build(message.values["recipe"], message.tensors)
        if not isinstance(geometry, Geometry):
            raise FFGBError("its geometry is none")
        return geometry

    def _read_functions(self, job: Job, t: int) -> tuple[Function, tuple[Update, ...]]:
        if job.closed:
            message = self._read(self.checkpoint / f"f-{t:06d}.safetensors")
            return from_tensors(job.family, message.tensors), ()
        f, updates = job.start(), []
        for version in range(job.at + 1, t + 1):
            message = self._read(self.checkpoint / f"round-{version:06d}.safetensors")
            update = Update.read(message, job)
            f = update.after(f, job.algorithm)
            updates.append(update)
        return f, tuple(updates)

    def _write_update(self, name: str, update: Update, *, twice: bool = False) -> None:
        # in full precision, unlike what is sent: a resumed run must have the same bits
        data = encode(update.message(exact=True))
        (self._write_twice if twice else self._write)(self.checkpoint / name, data)

    def _write_twice(self, path: Path, data: bytes) -> None:
        """A file that more than one checkpoint names."""
        self._write(path.with_suffix(".copy"), data)
        self._write(path, data)

    @staticmethod
    def _read(path: Path) -> Message:
        """A file of the checkpoint, or its copy if it is damaged."""
        try:
            return decode(path.read_bytes())
        except DAMAGE as error:
            copy = path.with_suffix(".copy")
            if not copy.exists():
                raise FFGBError(f"{path.name}: {error}") from error
            message = decode(copy.read_bytes())
            log.warning("%s is damaged (%s); its copy is used", path, error)
            return message

    def _read_json(self, name: str) -> dict[str, Any]:
        path = self.path / name
        try:
            content: dict[str, Any] = json.loads(path.read_text())
        except FileNotFoundError as error:
            raise FFGBError(f"{path} is not there; did the run end? {going_on(self.path)}") from error
        except ValueError as error:
            raise FFGBError(f"{path} is not valid JSON ({error})") from error
        if not isinstance(content, dict):
            raise FFGBError(f"{path} was not written by ffgb")
        return content

    _write = staticmethod(atomic_write)


def _make(folder: Path) -> None:
    """A folder for its owner alone; one that is there stays as it is."""
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(PRIVATE, exist_ok=True)
        sync_folder(folder.parent)


def _read_state(file: Path) -> dict[str, Any]:
    """What a checkpoint says, if nothing of it was lost."""
    content = json.loads(file.read_bytes())
    if not isinstance(content, dict):
        raise FFGBError(f"{file.name} was not written by ffgb")
    checksum = content.pop("checksum", None)
    if checksum not in (None, _checksum(json.dumps(content).encode())):
        raise FFGBError(f"the checksum of {file.name} is wrong")
    return content


def _checksum(data: bytes) -> int:
    return zlib.crc32(data)
