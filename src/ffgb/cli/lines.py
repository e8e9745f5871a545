"""Sentences on a terminal: lines break between words, and what is to be copied stays whole."""

from __future__ import annotations

import re
import textwrap

from rich.console import Console

from ffgb.errors import printable

NAME = "ffgb: "
"""Before what the program says."""
_COMMAND = re.compile(r": ffgb [^;]+")
_STAND_IN = "\N{NO-BREAK SPACE}"


def wrapped(text: str, width: int, first: str = NAME) -> str:
    """A sentence in lines of this width; a command at its end, a path or a fingerprint is not broken.

    >>> print(wrapped("the run did not end; continue it with: ffgb train --resume --out run", 40))
    ffgb: the run did not end; continue it
          with:
          ffgb train --resume --out run
    """
    whole = _COMMAND.sub(lambda found: ": " + found[0][2:].replace(" ", _STAND_IN), text)
    lines = textwrap.wrap(
        whole,
        max(width - len(first), 20),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return first + ("\n" + " " * len(first)).join(line.replace(_STAND_IN, " ") for line in lines)


def tell(console: Console, text: str, first: str = NAME) -> None:
    """Say something on a terminal, or as one line where there is none."""
    text = printable(text)
    shown = wrapped(text, console.width, first) if console.is_terminal else first + text
    console.print(shown, highlight=False, markup=False, soft_wrap=True)
