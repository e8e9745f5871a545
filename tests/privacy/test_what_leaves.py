"""docs/what-leaves.md names every question that a server can ask."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ffgb
from ffgb.core.questions import Question

PAGE = Path(__file__).parents[2] / "docs" / "what-leaves.md"


def kinds(of: type[Any] = Question) -> Iterator[type[Any]]:
    each: type[Any]
    for each in of.__subclasses__():
        yield each
        yield from kinds(each)


def test_every_question_is_on_the_page() -> None:
    for package in ("core", "core.regression", "features"):
        for module in pkgutil.iter_modules([str(Path(ffgb.__file__).parent.joinpath(*package.split(".")))]):
            importlib.import_module(f"ffgb.{package}.{module.name}")
    named = set(re.findall(r"`(\w+)`", PAGE.read_text()))
    ours = {each.__name__ for each in kinds() if not inspect.isabstract(each) and each.__module__.startswith("ffgb.")}
    assert len(ours) > 40
    assert sorted(ours - named) == []
