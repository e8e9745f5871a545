"""What a site has spent of its privacy budget: a file that it keeps for each of its data files, across all runs.

Each line is one answer, or one budget that the owner has set, with the hash of the line before it: a line that is
changed or removed from the middle is found out.  A line is on the disk before the answer leaves.  No message of a
server's changes what is there: it can only ask for more answers, which are refused when the budget is spent.  An answer
that has been paid for may leave again; it is the same answer.

A budget is for all rows of one unit (a patient) together.  An answer that is μ-GDP for r rows is (μ k/r)-GDP for k
rows, so trainings by row and trainings by unit have one account: all are counted for the largest unit that the owner
has agreed to.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, final

from ffgb.errors import FFGBError, option
from ffgb.privacy.accountant import composed, epsilon_of, mu_of

ROOM = 1.0 + 1e-9
"""Costs are rounded: a budget may be exceeded by so little."""


@final
@dataclass(frozen=True)
class Budget:
    """What an owner allows, of one data file."""

    epsilon: float
    delta: float
    rows: int = 1
    """Rows of one unit, at most, which it is for together."""

    @property
    def mu(self) -> float:
        return mu_of(self.epsilon, self.delta)


@final
@dataclass(frozen=True)
class Entry:
    """A line: one answer, or a budget."""

    what: str
    question: str
    """The name of what was answered (release.py), in hexadecimal digits; empty of a budget."""
    mu: float
    time: float
    training: str
    budget: Budget | None = None
    rows: int = 1
    """What was paid is for so many rows together."""

    @property
    def of_a_row(self) -> float:
        """The μ of one row."""
        return self.mu / self.rows


@final
class Ledger:
    """The file of one data file."""

    def __init__(self, file: Path, data: str) -> None:
        """`data` is the hash of the data file."""
        self.file, self.data = file, data
        self.training, self.most, self.rows = "", math.inf, 1
        """The training that answers are for now, the μ that it may cost, and for how many rows together."""

    def entries(self) -> list[Entry]:
        """All lines, checked; an FFGBError if the file is damaged, or is that of other data."""
        if not self.file.exists():
            return []
        with self.file.open() as file:
            return self._checked(file)[0]

    def spent(self) -> float:
        """The μ of all answers so far, for one unit."""
        return _spent(self.entries())

    def budget(self) -> Budget | None:
        """The last one that the owner has set."""
        return next((entry.budget for entry in reversed(self.entries()) if entry.budget is not None), None)

    def allow(self, budget: Budget) -> None:
        """Write down what the owner allows of this file, in all trainings together."""
        _ = budget.mu  # an error if it is none
        with self._open() as (file, entries, last):
            now = next((entry.budget for entry in reversed(entries) if entry.budget is not None), None)
            if now != budget:
                self._append(file, last, Entry("budget", "", 0.0, time.time(), "", budget))

    def spend(self, what: str, question: bytes, mu: float, rows: int = 1) -> None:
        """Pay for an answer before it leaves, that is μ-GDP for so many rows; nothing, if it has left before.

        Raises an FFGBError that names the question if not enough is left.
        """
        with self._open() as (file, entries, last):
            name = question.hex()
            if any(entry.question == name for entry in entries):
                return
            budget = next((entry.budget for entry in reversed(entries) if entry.budget is not None), None)
            if budget is None:
                raise FFGBError("the owner of this site has set no privacy budget for this file, and nothing leaves it")
            unit, before = _unit(entries), _spent(entries)
            price = unit * mu / rows
            if composed([before, price]) > budget.mu * ROOM:
                raise FFGBError(
                    f"{what} would cost more than is left of this site's privacy budget: ε = "
                    f"{epsilon_of(before, budget.delta):.3g} of {budget.epsilon:g} is spent (δ = {budget.delta:g}), "
                    f"and it would be {epsilon_of(composed([before, price]), budget.delta):.3g}; its owner sees more "
                    "with: ffgb client ledger"
                )
            here = composed(unit * entry.of_a_row for entry in entries if entry.training == self.training)
            if composed([here, price]) > self.most * unit / self.rows * ROOM:
                raise FFGBError(
                    f"{what} would cost more than this site has agreed to for one training "
                    f"(ε = {epsilon_of(self.most, budget.delta):.3g})"
                )
            self._append(file, last, Entry(what, name, mu, time.time(), self.training, rows=rows))

    @contextmanager
    def _open(self) -> Iterator[tuple[IO[str], list[Entry], str]]:
        """The file, locked, with its entries and the hash of the last line."""
        self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = not self.file.exists()
        with os.fdopen(os.open(self.file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            entries, last = self._checked(file)
            file.seek(0)
            if (whole := file.read()) and not whole.endswith("\n"):
                # a power cut: the line was not on the disk, so its answer has not left
                file.truncate(len(whole[: whole.rfind("\n") + 1].encode()))
            if not last:
                last = self._write(file, {"ledger": 1, "data": self.data, "before": ""})
            if new:
                _settle(self.file.parent)
            yield file, entries, last

    def _append(self, file: IO[str], last: str, entry: Entry) -> None:
        budget = None if entry.budget is None else [entry.budget.epsilon, entry.budget.delta, entry.budget.rows]
        line = {"what": entry.what, "question": entry.question, "mu": entry.mu, "rows": entry.rows, "time": entry.time}
        self._write(file, {**line, "training": entry.training, "budget": budget, "before": last})

    def _write(self, file: IO[str], line: Mapping[str, Any]) -> str:
        text = json.dumps(line, sort_keys=True)
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
        return hashlib.sha256(text.encode()).hexdigest()

    def _checked(self, file: IO[str]) -> tuple[list[Entry], str]:
        """The entries, and the hash of the last line."""
        file.seek(0)
        found, last = list[Entry](), ""
        *lines, _ = file.read().split("\n")
        for number, text in enumerate(lines):
            try:
                line = json.loads(text)
                if line["before"] != last:
                    raise ValueError("a line before it is missing, or was changed")
                last = hashlib.sha256(text.encode()).hexdigest()
                if number == 0:
                    self._check_head(line)
                else:
                    found.append(_entry(line))
            except (ValueError, KeyError, TypeError) as error:
                raise FFGBError(
                    f"the privacy ledger {self.file} is damaged in line {number + 1} ({error}); nothing more leaves "
                    "this site: restore the file from a backup"
                ) from error
        return found, last

    def _check_head(self, line: Mapping[str, Any]) -> None:
        if line["data"] != self.data:
            raise FFGBError(
                f"{self.file} is the privacy ledger of another data file; give this site its own, which is in "
                f"{option('data')}'s place since it was first used"
            )


def _entry(line: Mapping[str, Any]) -> Entry:
    budget, rows = line["budget"], int(line.get("rows", 1))
    mu = float(line["mu"])
    if not 0.0 <= mu < 1e6 or rows < 1:
        raise ValueError("a cost that cannot be")
    return Entry(
        str(line["what"]),
        str(line["question"]),
        mu,
        float(line["time"]),
        str(line["training"]),
        None if budget is None else Budget(float(budget[0]), float(budget[1]), *map(int, budget[2:])),
        rows,
    )


def _unit(entries: Sequence[Entry]) -> int:
    """Rows of the largest unit that the owner has agreed to."""
    return max((entry.budget.rows for entry in entries if entry.budget is not None), default=1)


def _spent(entries: Sequence[Entry]) -> float:
    """The μ of these answers, for one unit."""
    return _unit(entries) * composed(entry.of_a_row for entry in entries)


def _settle(folder: Path) -> None:
    """A new file is in its folder after a power cut, too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def in_rows(ledger: Ledger) -> list[dict[str, Any]]:
    """A ledger as a table: what was spent on what."""
    rows, so_far, delta = list[dict[str, Any]](), list[Entry](), 1e-5
    for entry in ledger.entries():
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.time))
        so_far.append(entry)
        if entry.budget is None:
            spent = f"{epsilon_of(_spent(so_far), delta):.4g}"
            rows.append({"when": when, "what": entry.what, "μ": f"{entry.mu:.4g}", "ε so far": spent})
        else:
            delta, of = entry.budget.delta, entry.budget.rows
            what = f"budget: ε = {entry.budget.epsilon:g}, δ = {delta:g}" + (f", {of} rows together" if of > 1 else "")
            rows.append({"when": when, "what": what, "μ": "", "ε so far": ""})
    return rows
