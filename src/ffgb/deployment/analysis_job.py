"""The job of an analysis: what `ffgb server glm` proposes to sites, as TOML, which a site checks, shows and keeps."""

from __future__ import annotations

import dataclasses
import json
import tomllib
import types
import typing
from collections.abc import Mapping
from typing import Any, Final

from ffgb.deployment.job_file import LARGEST
from ffgb.errors import FFGBError
from ffgb.protocol.codec import shown
from ffgb.runs.cox import Cox
from ffgb.runs.glm import GLM
from ffgb.runs.kaplan_meier import SurvivalCurves
from ffgb.runs.statistics import Analysis, references

ANALYSES: Final[Mapping[str, type[Analysis[Any]]]] = {kind.name: kind for kind in (GLM, Cox, SurvivalCurves)}
KEY: Final = "analysis"
"""What a job has in place of a training's options: which analysis it is."""


def analysis_text(analysis: Analysis[Any], *, secure: bool) -> str:
    """The job as a file: options that are not as by default.

    >>> print(analysis_text(GLM("y ~ sex", reference={"sex": "F"}), secure=True), end="")
    analysis = "glm"
    formula = "y ~ sex"
    reference = ["sex=F"]
    """
    values: dict[str, Any] = {KEY: analysis.name}
    for each in dataclasses.fields(analysis):  # type: ignore[arg-type]
        value = getattr(analysis, each.name)
        empty = each.default is dataclasses.MISSING and not value
        if value != each.default and not empty:
            values[each.name] = [f"{k}={v}" for k, v in value.items()] if isinstance(value, Mapping) else value
    if not secure:
        values["secure"] = "off"
    return "".join(f"{name} = {_literal(value)}\n" for name, value in values.items())


def _literal(value: Any) -> str:
    """A value as TOML has it."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F") if isinstance(value, str) else repr(value)


def is_analysis(job: bytes | None) -> bool:
    """Is a server's job an analysis, and no training?"""
    if job is None or len(job) > LARGEST:
        return False
    try:
        return KEY in tomllib.loads(job.decode("utf-8", "replace"))
    except (tomllib.TOMLDecodeError, RecursionError):
        return False  # read as a job of a training, it is refused


def read_analysis(text: str) -> tuple[Analysis[Any], bool]:
    """The analysis in a job, and whether totals are under masks; an FFGBError says what is wrong with it."""
    values = tomllib.loads(text)
    name, secure = values.pop(KEY), values.pop("secure", "on")
    if not isinstance(name, str) or name not in ANALYSES or secure not in ("on", "off"):
        raise FFGBError(
            f"the server's job is the analysis {shown(name)!r}, which this site does not know; the server and this "
            "site need the same version of ffgb"
        )
    kind = ANALYSES[name]
    hints = typing.get_type_hints(kind)
    fields = {each.name for each in dataclasses.fields(kind)}  # type: ignore[arg-type]
    found = dict[str, Any]()
    for word, value in values.items():
        if word not in fields:
            raise FFGBError(f"the server's job has {shown(word)!r}, which this site does not know as a part of {name}")
        found[word] = _checked(word, value, hints[word])
    analysis: Analysis[Any] = kind(**found)
    if type(analysis.least) is not int or analysis.least < 1:
        raise FFGBError("the server's job has a least that is no number from 1 on")
    analysis.check()
    return analysis, secure == "on"


def _checked(name: str, value: Any, hint: Any) -> Any:
    """A value of a field, as the analysis has it."""
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    for kind in kinds:
        origin, inner = typing.get_origin(kind), typing.get_args(kind)
        if origin is typing.Literal and value in inner:
            return value
        if origin is tuple and isinstance(value, list) and all(_is(each, inner[0]) for each in value):
            return tuple(map(inner[0], value))
        if origin is Mapping and isinstance(value, list):
            return references([str(each) for each in value])
        if origin is None and _is(value, kind):
            return kind(value)
    raise FFGBError(f"the server's job has {name} = {shown(value)}, which it cannot be")


def _is(value: Any, kind: Any) -> bool:
    if kind is float:
        return type(value) in (int, float)
    return type(value) is kind
