"""Docstrings as Markdown: an extension of Griffe, which reads the modules for the API reference."""

from __future__ import annotations

import re
from typing import Any, final

import griffe

EXAMPLES = r"^>>> .*(?:\n(?!\s*$).*)*(?:\n\n>>> .*(?:\n(?!\s*$).*)*)*"
"""Lines from a prompt to the next empty line, and the examples that follow."""
SPECIAL = re.compile(rf"(?P<examples>{EXAMPLES})|(?P<code>`[^`]+`)|\]\(", re.MULTILINE)


@final
class Docstrings(griffe.Extension):
    """Fences doctests, which Markdown would read as quotations, and escapes ∇R[f](x), which it would read as a link."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = SPECIAL.sub(_as_markdown, obj.docstring.value)


def _as_markdown(match: re.Match[str]) -> str:
    if match["examples"]:
        return f"\n```pycon\n{match[0]}\n```\n"
    return match["code"] or r"]\("
