"""Notebooks: progress while a training goes on, and results as HTML that fits light and dark pages."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, final

from ffgb.data import Dataset
from ffgb.runs.callbacks import Callback
from ffgb.runs.config import Config
from ffgb.runs.headline import in_bytes, score_of

EVERY = 0.2
"""Seconds between two updates, at least."""
WIDTH, HEIGHT = 240, 48
"""Of the small curve beside a result."""

Show = Callable[[str, str], None]
"""Shows HTML in a cell of a notebook, or the text where there is no HTML; again, it takes the place of the last."""


def notebook() -> list[Callback]:
    """What shows progress, if this process is a notebook's kernel; it needs no widgets."""
    show = _display()
    return [] if show is None else [Progress(show)]


def _display() -> Show | None:
    """How to show something in this notebook; None if this is none."""
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    if not hasattr(shell, "kernel"):
        return None
    display: Any = sys.modules["IPython.core.display_functions"]
    handles: list[Any] = []

    def show(html: str, text: str) -> None:
        data = {"text/html": html, "text/plain": text}
        if handles:
            handles[0].update(data, raw=True)
        else:
            handles.append(display.display(data, raw=True, display_id=True))

    return show


@final
class Progress(Callback):
    """A bar with the round, the score so far and the traffic; it goes when the training ends."""

    def __init__(self, show: Show, clock: Callable[[], float] = time.monotonic) -> None:
        self._show, self._clock = show, clock
        self._total, self._last = 0, -EVERY

    def start(self, config: Config, dataset: Dataset) -> None:
        self._total = config.exchanges
        self._say(0, "set up", now=True)

    def setup(self, what: str, done: int, clients: int) -> None:
        self._say(0, f"set up: {what}, {done} of {clients} clients")

    def round(self, metrics: dict[str, Any]) -> None:
        t, traffic = int(metrics["round"]), metrics["bytes_up"] + metrics["bytes_down"]
        self._say(t, f"round {t} of {self._total}: {score_of(metrics)}, {in_bytes(traffic)} a client")

    def end(self, result: Any) -> None:
        self._show("", "")

    def _say(self, done: int, text: str, *, now: bool = False) -> None:
        if not now and self._clock() - self._last < EVERY:
            return
        self._last = self._clock()
        bar = (
            f'<progress value="{done}" max="{max(self._total, 1)}" style="width:16em;vertical-align:middle"></progress>'
        )
        self._show(f"<div>{bar} {escape(text)}</div>", text)


def result_html(lines: Sequence[str], metrics: Sequence[Mapping[str, Any]]) -> str:
    """A result: its lines, the first of them large, and the score by rounds if more than two differ."""
    first, *rest = map(escape, lines)
    more = "".join(f'<div style="opacity:.75">{line}</div>' for line in rest)
    return f'<div style="line-height:1.5"><div style="font-weight:600">{first}</div>{more}{_curve(metrics)}</div>'


def _curve(metrics: Sequence[Mapping[str, Any]]) -> str:
    """The score of each round as a small curve with its first and last values."""
    names = ("test_accuracy", "test_rmse", "test_concordance", "test_loss", "train_loss")
    name = next((n for n in names if metrics and metrics[-1].get(n) is not None), None)
    values = [float(line[name]) for line in metrics if line.get(name) is not None] if name is not None else []
    if name is None or len(values) < 3 or min(values) == max(values):
        return ""
    low, high = min(values), max(values)
    across, span = len(values) - 1, high - low
    points = " ".join(
        f"{4 + (WIDTH - 8) * i / across:.1f},{4 + (HEIGHT - 8) * (high - v) / span:.1f}" for i, v in enumerate(values)
    )
    called = name.replace("_", " ").replace("rmse", "RMSE").replace("concordance", "c-index")
    caption = f"{called} by rounds: {values[0]:.4g} after the first, {values[-1]:.4g} after the last"
    return (
        f'<svg role="img" aria-label="{caption}" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'style="display:block;margin-top:.4em"><polyline fill="none" stroke="#3b82c4" stroke-width="2" '
        f'points="{points}"/></svg><div style="opacity:.75;font-size:.9em">{caption}</div>'
    )
