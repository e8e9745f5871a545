"""The run directory: configuration, metrics, checkpoint, model and summary.

Every file is written under a temporary name and renamed.  `checkpoint/state.json` is written last in a round and says
which of the other files count, so a kill at any moment leaves a directory that goes on from the last whole round, to
the same bits as an unbroken run.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

from ffgb.errors import FFGBError
from ffgb.federation import Job, Update
from ffgb.functions import Function, from_tensors
from ffgb.geometry import AtServer, Geometry
from ffgb.recipes import build, describe
from ffgb.server import Costs, State, setup_message
from ffgb.wire import Message, decode, encode


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
        path.mkdir(parents=True, exist_ok=True)
        run.write_json("config.json", config)  # before anything else: a directory without it is no run
        run.checkpoint.mkdir()
        return run

    @staticmethod
    def must_be_free(path: Path) -> None:
        if (path / "config.json").exists():
            raise FFGBError(f"{path} already holds a run; continue it with --resume, or choose another --out")
        parent = next(p for p in (path, *path.resolve().parents) if p.exists())
        if not os.access(parent, os.W_OK):
            raise FFGBError(f"{parent} cannot be written to; choose another --out")
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise FFGBError(f"{path} exists and is not an empty directory; choose another --out")

    @staticmethod
    def open(path: Path) -> Run:
        """An existing directory."""
        if not (path / "config.json").exists():
            raise FFGBError(f"{path} holds no run (there is no config.json in it); name the --out of an ffgb train")
        return Run(path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """The directory is this process's alone: two that trained in it would overwrite each other."""
        self.checkpoint.mkdir(parents=True, exist_ok=True)
        with (self.checkpoint / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise FFGBError(f"another process is training in {self.path}; wait for it to end") from error
            yield

    @property
    def config(self) -> dict[str, Any]:
        return self._read_json("config.json")

    @property
    def summary(self) -> dict[str, Any]:
        return self._read_json("summary.json")

    @property
    def clients(self) -> dict[str, Any] | None:
        """What is known about each client, if the run has ended (clients.py)."""
        return self._read_json("clients.json") if (self.path / "clients.json").exists() else None

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        self._write(self.path / name, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())

    def write_model(self, data: bytes) -> None:
        self._write(self.path / "model.safetensors", data)

    def reopen(self) -> None:
        """Training goes on: what was written when it had ended is of another model."""
        models = ("model.safetensors", "distilled.safetensors", "reweighted.safetensors")
        for name in (*models, "summary.json", "clients.json", "report.html"):
            (self.path / name).unlink(missing_ok=True)

    def save(self, state: State, metrics: Sequence[Mapping[str, Any]], seconds: float) -> None:
        """Everything a resumed run needs.  A round adds one file; nothing that is already there is written again."""
        self.checkpoint.mkdir(exist_ok=True)  # a kill may have come before it
        job = self._job(state.job.at)
        if not job.exists():
            if state.geometry is not None:
                recipe, arrays = describe(state.geometry)
                message = Message("geometry", values={"recipe": recipe}, tensors=arrays)
                self._write(self.checkpoint / "geometry.safetensors", encode(message))
            self._write(job, encode(setup_message(state.job)))
        if state.job.closed:
            self._write_update(f"f-{state.t:06d}.safetensors", Update(state.t, 0.0, state.f))
        elif state.updates:
            last = state.updates[-1]
            self._write_update(f"round-{last.version:06d}.safetensors", last)
        # those of rounds before, as text: in thousands of rounds it takes time to make
        self._lines += [json.dumps(line, allow_nan=False) + "\n" for line in metrics[len(self._lines) :]]
        self._write(self.path / "metrics.jsonl", "".join(self._lines).encode())
        for i, (since, memory) in state.memory.items():
            if since == state.t:
                message = Message("memory", since, i, tensors=dict(memory))
                self._write(self._memory(i, since), encode(message))
        content = {
            "t": state.t,
            "at": state.job.at,
            "memory": {i: since for i, (since, _) in state.memory.items()},
            "costs": dataclasses.asdict(state.costs),
            "delivered": list(state.delivered),
            "seconds": seconds,
        }
        self._write(self.checkpoint / "state.json", json.dumps(content).encode())
        kept = {f"f-{state.t:06d}.safetensors", job.name} | {
            self._memory(i, since).name for i, (since, _) in state.memory.items()
        }
        for pattern in ("f-*.safetensors", "memory-*.safetensors", "job-*.safetensors"):
            for old in self.checkpoint.glob(pattern):
                if old.name not in kept:
                    old.unlink()

    def load(self) -> tuple[State, list[dict[str, Any]], float] | None:
        """The last whole round, the metrics so far and the seconds spent; None if no round was finished."""
        if not (self.checkpoint / "state.json").exists():
            return None
        try:
            content = self._read_json("checkpoint/state.json")
            setup = decode(self._job(int(content["at"])).read_bytes())
            job: Job = build(setup.values["recipe"], setup.tensors)
            t = int(content["t"])
            f, updates = self._read_functions(job, t)
            costs = Costs(**content["costs"])
            metrics = [json.loads(line) for line in (self.path / "metrics.jsonl").read_text().splitlines()[:t]]
            if len(metrics) != t:
                raise FFGBError(f"metrics.jsonl has {len(metrics)} rounds of {t}")
            memory = {
                int(i): (since, decode(self._memory(int(i), since).read_bytes()).tensors)
                for i, since in content["memory"].items()
            }
            state = State(job, t, f, updates, tuple(content["delivered"]), costs, self._read_geometry(job), memory)
            return state, metrics, float(content["seconds"])
        except (OSError, KeyError, TypeError, ValueError, FFGBError) as error:
            raise FFGBError(
                f"the checkpoint in {self.checkpoint} is damaged ({error}); start again with another --out"
            ) from error

    def _job(self, at: int) -> Path:
        return self.checkpoint / f"job-{at:06d}.safetensors"

    def _memory(self, i: int, since: int) -> Path:
        return self.checkpoint / f"memory-{i:06d}-{since:06d}.safetensors"

    def _read_geometry(self, job: Job) -> Geometry | None:
        if not isinstance(job.geometry, AtServer):
            return None
        message = decode((self.checkpoint / "geometry.safetensors").read_bytes())
        geometry = build(message.values["recipe"], message.tensors)
        if not isinstance(geometry, Geometry):
            raise FFGBError("its geometry is none")
        return geometry

    def _read_functions(self, job: Job, t: int) -> tuple[Function, tuple[Update, ...]]:
        if job.closed:
            message = decode((self.checkpoint / f"f-{t:06d}.safetensors").read_bytes())
            return from_tensors(job.family, message.tensors), ()
        f, updates = job.start(), []
        for version in range(job.at + 1, t + 1):
            message = decode((self.checkpoint / f"round-{version:06d}.safetensors").read_bytes())
            update = Update.read(message, job)
            f = update.after(f, job.algorithm)
            updates.append(update)
        return f, tuple(updates)

    def _write_update(self, name: str, update: Update) -> None:
        # in full precision, unlike what is sent: a resumed run must have the same bits
        self._write(self.checkpoint / name, encode(update.message(exact=True)))

    def _read_json(self, name: str) -> dict[str, Any]:
        path = self.path / name
        try:
            content: dict[str, Any] = json.loads(path.read_text())
        except FileNotFoundError as error:
            raise FFGBError(
                f"{path} is not there; did the run end? continue it with: ffgb train --resume --out {self.path}"
            ) from error
        except ValueError as error:
            raise FFGBError(f"{path} is not valid JSON ({error})") from error
        if not isinstance(content, dict):
            raise FFGBError(f"{path} was not written by ffgb")
        return content

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_bytes(data)
        temporary.replace(path)
