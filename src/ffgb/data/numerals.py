"""Numbers as people write them: 1'250.50, 1 250,5, 1.250,50, and minus signs of word processors.

A mark that may stand for decimals or for thousands is not guessed: it stays as it is, and the value is refused later,
by its row, or the column is refused here.  So is a column of numbers with something around them, such as 7 % or <0.01.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import pandas as pd

from ffgb.errors import FFGBError, option

SAMPLE: Final = 1000
"""Values by which a column is first looked at."""
FEW: Final = 10
"""Different values of a column that may be categories, although they look like numbers with something around them."""
_MINUS = str.maketrans(
    {"\u2212": "-", "\u2013": "-", **{chr(zero + k): str(k) for zero in (0xFF10, 0x660, 0x6F0) for k in range(10)}}
)
"""Minus signs of word processors, and digits of other scripts."""
_SPACES = "'\u2019 \u00a0\u202f"
_SPACED = re.compile(rf"([-+]?[1-9]\d{{0,2}})((?:[{_SPACES}]\d{{3}})+)(?:([.,])(\d+))?")
_PLAIN = {
    ".": re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?"),
    ",": re.compile(r"[-+]?(\d+,?\d*|,\d+)([eE][-+]?\d+)?"),
}
_GROUPED = {
    ".": re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(\.\d+)?"),
    ",": re.compile(r"[-+]?[1-9]\d{0,2}(?:\.\d{3})+(,\d+)?"),
}
"""Numbers with marks between thousands, by their decimal mark."""
_AROUND = re.compile(r"(?:[<>≤≥~≈±]=?\s*)?[-+]?\d[\d.,]*(?:\s*(?P<unit>[^\d\s.,;:/()-][^\d]{0,15}))?")
_OTHER: Final = {".": ",", ",": "."}


def surely_grouped(text: str, decimal: str) -> bool:
    """Does this number, with this decimal mark, have marks between thousands that cannot be anything else?

    >>> surely_grouped("1.250,5", ","), surely_grouped("1.250.000", ","), surely_grouped("1.250", ",")
    (True, True, False)
    """
    found = _GROUPED[decimal].fullmatch(text)
    return found is not None and (found[1] is not None or text.count(_OTHER[decimal]) > 1)


def plain_numbers(
    values: pd.Series[Any], decimal: str | None, what: str, *, given: bool
) -> tuple[pd.Series[Any], bool]:
    """A column with its numbers written plainly, if most of its values are numbers; and whether thousands had marks.

    Text stays as it is.  `decimal` is the mark of the file, None if the column itself has to show it; `given` if
    someone said so: then the other mark stands between thousands.

    >>> plain_numbers(pd.Series(["1'250", "2 300,5"], dtype=object), ",", "it", given=False)[0].tolist()
    ['1250', '2300.5']
    """
    if not is_text(values):
        return values, False
    cells = [v.strip().translate(_MINUS) if isinstance(v, str) else "" for v in values.tolist()]
    there = [text for text in cells if text]
    decimal = decimal or _shown(there)
    sample = there[:SAMPLE]
    if not sample or 2 * sum(_value(text, decimal) is not None for text in sample) <= len(sample):
        return values, False
    certain = given or any(surely_grouped(text, decimal) for text in there)
    found = values.where(values.notna(), None).astype(object).tolist()
    grouped = False
    for row, text in enumerate(cells):
        if not text:
            continue
        unsure = _GROUPED[decimal].fullmatch(text) is not None and not surely_grouped(text, decimal)
        slip = decimal == "," and _PLAIN["."].fullmatch(text) is not None and "." in text
        if (unsure and not certain and decimal == ",") or (slip and not unsure):
            raise FFGBError(
                f"{what} has {text!r} in row {row + 1}, where decimals have commas; it may be a thousand: write it "
                f"with a comma, or say which mark is the decimal one, with {option('decimal')}"
            )
        number = None if unsure and not certain else _value(text, decimal)
        if number is not None:  # else it is refused as text among numbers
            found[row] = number
            grouped = grouped or unsure or surely_grouped(text, decimal) or _SPACED.fullmatch(text) is not None
    return pd.Series(found, values.index, dtype=object, name=values.name), grouped


def is_text(values: pd.Series[Any]) -> bool:
    """May this column hold text?"""
    return bool(pd.api.types.is_object_dtype(values) or pd.api.types.is_string_dtype(values))


def _shown(texts: Sequence[str]) -> str:
    """The decimal mark that a column shows by numbers that have both marks; a point if it shows none."""
    sure = {mark: any(surely_grouped(text, mark) for text in texts[:SAMPLE]) for mark in _PLAIN}
    return "," if sure[","] and not sure["."] else "."


def _value(text: str, decimal: str) -> str | None:
    """A number as Python reads it; None if this is no number."""
    if _PLAIN[decimal].fullmatch(text) is not None:
        return text.replace(decimal, ".")
    if _GROUPED[decimal].fullmatch(text) is not None:
        return text.replace(_OTHER[decimal], "").replace(decimal, ".")
    if (spaced := _SPACED.fullmatch(text)) is not None:
        whole = spaced[1] + re.sub(rf"[{_SPACES}]", "", spaced[2])
        return whole if spaced[4] is None else f"{whole}.{spaced[4]}"
    if decimal == "," and _PLAIN["."].fullmatch(text) is not None:
        return text  # a slip among decimal commas: its caller decides
    return None


def refuse_wrapped(values: pd.Series[Any], what: str, otherwise: str) -> None:
    """Refuse a column of numbers with signs or units around them, which would pass for many categories."""
    if not is_text(values):
        return
    rows = [(i, v.strip()) for i, v in enumerate(values.tolist()) if isinstance(v, str) and v.strip()][:SAMPLE]
    wrapped = [(i, t, m["unit"]) for i, t in rows if (m := _AROUND.fullmatch(t)) is not None]
    odd = [(i, t) for i, t, unit in wrapped if unit is not None or t[0] in "<>≤≥~≈±"]
    units = {unit.strip() for _, _, unit in wrapped if unit is not None}
    many = len({text for _, text, _ in wrapped}) > FEW
    if not odd or len(units) > 3 or 2 * len(wrapped) <= len(rows) or not many:
        return
    row, text = odd[0]
    raise FFGBError(
        f"{what} has {text[:30]!r} in row {row + 1}, a number with something around it; write plain numbers, in the "
        f"same unit at all sites, or {otherwise}"
    )
