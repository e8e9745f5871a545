"""The job that a server proposes: the options of a training as TOML, which a site checks, shows, and keeps."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ffgb.data.reading import SETTINGS as OF_FILES
from ffgb.errors import FFGBError, SettingError, option
from ffgb.protocol.codec import shown
from ffgb.runs.config import SETTINGS, code_in

LARGEST: Final = 2**16
"""Bytes of a job."""
OWN: Final = frozenset(
    {"data", "clients", "split", *(each.name for each in OF_FILES if each.name not in ("drop", "missing"))}
)
"""Options that each side says for itself: they are no part of a job."""
_FILES: Final = ("start", "distill_data")


def job_text(settings: Mapping[str, Any], target: str | None, task: str | None) -> str:
    """The job as a file.

    >>> print(job_text({"rounds": 3, "data": ["sites"]}, "sick", None), end="")
    target = "sick"
    rounds = 3
    """
    values = {"target": target, "task": task, **{n: v for n, v in settings.items() if n not in OWN}}
    return "".join(f"{name} = {_literal(value)}\n" for name, value in values.items() if value is not None)


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F") if isinstance(value, str) else repr(value)


def read_job(text: str) -> dict[str, Any]:
    """The options of a job that came from a server; an FFGBError says what no site should accept of it."""
    try:
        values = tomllib.loads(text) if len(text) <= LARGEST else None
    except (tomllib.TOMLDecodeError, RecursionError):
        values = None
    if values is None:
        raise FFGBError("the server's job cannot be read; the server and this site need the same version of ffgb")
    if strange := [name for name in values if name not in SETTINGS or name in OWN]:
        raise FFGBError(f"the server's job has {shown(strange[0])!r}, which this site does not know as a part of a job")
    try:
        found = {name: SETTINGS[name].check(value) for name, value in values.items()}
    except SettingError as error:
        raise FFGBError(f"the server's job: {error.worded(lambda name, value: name)}") from error
    if code_in(found):
        raise FFGBError(f"the server's job names code, {shown(code_in(found)[0])}: no site should run code for another")
    maps = str(found.get("map") or "").split("+")
    named = [n for n in _FILES if found.get(n)] + [n for n in maps if n.endswith((".onnx", ".py")) or Path(n).parts[1:]]
    if named:
        raise FFGBError(
            f"the server's job names a file, {shown(named[0])}, which must be here too: get the file and the options "
            f"from the operator, and give the options with {option('config')}"
        )
    return found


_LEARNERS: Final[Mapping[str, str]] = {
    "features": "a linear model of numbers computed from the columns",
    "linear": "a linear model of the columns",
    "trees": "boosted decision trees",
    "additive": "a sum of one curve for each column",
    "blend": "boosted decision trees and sums of curves, blended",
    "auto": "for a table, boosted decision trees and sums of curves, blended",
}
"""Learners as people call them."""


def _kind_of(learner: str) -> str:
    return f" ({_LEARNERS[learner]})" if learner in _LEARNERS else ""


def in_words(settings: Mapping[str, Any]) -> list[str]:
    """A job as sentences, for whoever must allow it."""
    target, rounds = settings.get("target"), settings.get("rounds")
    learner = str(settings.get("learner") or SETTINGS["learner"].default)
    what = {"classification": " (a class)", "regression": " (a number)"}.get(str(settings.get("task")), "")
    known = {"target", "task", "rounds", "learner", "secure"}
    rest = [f"{name} = {_literal(value)}" for name, value in settings.items() if name not in known]
    return [
        f"It trains a model that predicts the column {shown(target)!r}{what}." if target is not None
        else "It trains a model that predicts the array y of an NPZ file.",
        f"The learner is {shown(learner)}{_kind_of(learner)}.  "
        f"There are {f'up to {rounds} rounds' if rounds else 'as many rounds as suit it'}.",
        *([f"Further options: {shown(', '.join(rest))}."] if rest else ["All other options are as by default."]),
    ]  # fmt: skip
