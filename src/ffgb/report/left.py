"""For the data-protection officer: what left each site, and under which guarantee."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ffgb.report.past import Past, finite
from ffgb.report.pieces import section, tabular
from ffgb.report.words import bytes_text, escaped

SHOWN = 40
"""Kinds of messages in the table."""


def left(past: Past) -> str:
    """Every kind of message that a client sent, and what protects it."""
    if not past.sent:
        return section("What left each site", note="This run does not say what its clients sent.")
    items = "".join(f"<li><b>{title}</b>{text}</li>" for title, text in _guarantees(past))
    rows = [_row(message) for message in sorted(past.sent, key=lambda m: not m.get("once"))[:SHOWN]]
    note = (
        "Every kind of message that a client sent, with its arrays and the size of the largest one. Rows stayed where "
        "they were. docs/what-leaves.md says what each party can compute from these numbers."
    )
    table = tabular("What left each site", ("what", "when", "arrays", "size"), rows)
    return section("What left each site", f'<ul class="facts">{items}</ul>', table, note=note)


def _guarantees(past: Past) -> list[tuple[str, str]]:
    real = past.config.get("data") == ["sites"]
    if past.secure:
        masks = f"{escaped(past.secure, 400)} The parts of a single site were noise to the server."
    elif real:
        masks = "There were none: the server saw the sums of each site, and can compute rows from them."
    else:
        masks = "There were none, and nothing to protect: all rows were on one machine, where sites were simulated."
    least = finite(past.config.get("least"))
    counts = (
        "No least count was asked for." if least is None or least <= 1
        else f"Thresholds, categories and leaves hold {least:g} rows of all sites together, or none. Some counts are "
        "not covered; docs/what-leaves.md lists them."
    )  # fmt: skip
    return [
        ("Masks", masks),
        ("Least counts", counts),
        ("Noise", "None was added: the model and the totals are exact, and say something about the rows in them."),
    ]


def _row(message: Mapping[str, Any]) -> list[str]:
    arrays = ", ".join(
        f"{escaped(name, 30)} {'×'.join(escaped(n, 12) for n in shape) or '1'}"
        for name, _, shape in message.get("arrays") or ()
    )
    words, size = escaped(message.get("words") or message.get("what"), 80), finite(message.get("bytes"))
    return [
        f'<span class="wrap">{words}</span>',
        "once" if message.get("once") else "each round",
        f'<span class="wrap">{arrays or "a few sums"}</span>',
        "–" if size is None else bytes_text(size),
    ]
