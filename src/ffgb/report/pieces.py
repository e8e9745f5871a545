"""Pieces of a page; texts in them are escaped already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ffgb.report.past import MEASURES, Past
from ffgb.report.words import column_name, escaped, value_text

NAMES = {
    "ffgb": "FFGB", "ffgb-c": "FFGB.C", "ffgb-l": "FFGB.L",
    "fedavg": "FedAvg", "fedprox": "FedProx", "scaffold": "SCAFFOLD", "mime": "Mime",
}  # fmt: skip


IN_NUMBERS = "The same in numbers"


def section(title: str, *content: str, note: str = "") -> str:
    said = f'<p class="say">{note}</p>' if note else ""
    return f"<section><h2>{title}</h2>{said}{''.join(content)}</section>"


def folded(title: str, content: str, look: str = "") -> str:
    return f'<details class="{look}"><summary>{title}</summary>{content}</details>'


def scrolling(title: str, content: str) -> str:
    """What may be too wide scrolls in a box of its own, which can be reached by keyboard."""
    return f'<div class="scroll" tabindex="0" role="group" aria-label="{title}">{content}</div>'


def tabular(title: str, head: Iterable[str], rows: Iterable[Iterable[str]], attributes: str = "") -> str:
    heads, body = "".join(f'<th scope="col">{cell}</th>' for cell in head), []
    for first, *others in rows:
        body.append(f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in others)}</tr>')
    content = f"<thead><tr>{heads}</tr></thead><tbody>{''.join(body)}</tbody>"
    return scrolling(title, f"<table{attributes}>{content}</table>")


def each_round(past: Past, when: str = "after ") -> list[str]:
    """Heads of columns, one a round, where rounds are few."""
    return [f"{when}the only round"] if past.rounds == 1 else [f"{when}round {t}" for t in range(1, past.rounds + 1)]


def grid(figures: Sequence[str]) -> str:
    return f'<div class="grid4">{"".join(figures)}</div>' if figures else ""


def side_by_side(*parts: str) -> str:
    return f'<div class="pair">{"".join(parts)}</div>'


def rounds_table(title: str, past: Past, run: int, name: str = "") -> str:
    """The numbers that curves are drawn by.  The script reads them here, too."""
    scores = [f"{part}_{what}" for what in (*MEASURES, "loss") for part in ("test", "train")]
    models = "parameters" if name else "models"  # runs side by side may have models of different sizes
    wanted = (*scores, models, "bytes", "seconds", "gamma_median", "gamma_min")
    columns = ["round", *(column for column in wanted if past.series(column))]
    rows = zip(*([value_text(column, v) for v in past.series(column)] for column in columns), strict=True)
    some = f", {len(past.drawn)} of {past.rounds:,}" if len(past.drawn) < past.rounds else ""
    attributes = f' id="rounds{run}" data-name="{name}"'
    return folded(f"{title}{some}", tabular("Rounds in numbers", map(column_name, columns), rows, attributes))


def method(past: Past) -> str:
    """Algorithm, learner and geometry in words."""
    geometry = " in a shared geometry" if past.config.get("geometry") == "shared" else ""
    algorithm = NAMES.get(past.algorithm, past.algorithm)
    return f"{escaped(algorithm, 40)} with {escaped(past.config.get('learner', 'features'), 60)}{geometry}"
