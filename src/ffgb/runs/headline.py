"""A result in two or three lines, for someone who reads no more than these.

The score comes with its interval and with what guessing would score; then what it took.  γ, models and everything else
are in the report and in summary.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ffgb.core.statistics import LEVEL as LEVEL
from ffgb.report.words import chosen_of

SCORES = ("test_accuracy", "test_rmse", "test_concordance", "train_accuracy", "train_rmse", "train_concordance")
LOSSES = ("train_loss", "test_loss")


def rounds_used(metrics: Sequence[Mapping[str, Any]]) -> int:
    """The round that made f what it is at the end: those after it changed nothing.

    >>> rounds_used([{"train_loss": 0.5}, {"train_loss": 0.2}, {"train_loss": 0.2}])
    2
    """
    t = len(metrics)
    while t > 1 and all(metrics[t - 1].get(name) == metrics[t - 2].get(name) for name in LOSSES):
        t -= 1
    return t


def score_of(line: Mapping[str, Any]) -> str:
    """The score of a round, or of a result, in words.

    >>> score_of({"test_rmse": 2.5})
    'test RMSE 2.5'
    """
    name = next((name for name in SCORES if line.get(name) is not None), None)
    return "" if name is None else f"{_called(name)} {_figure(name, line[name])}"


def headline(summary: Mapping[str, Any]) -> list[str]:
    """How good the model is, what it took, and which learner was chosen if none was named: a sentence each.

    >>> headline({"test_accuracy": 0.9, "test_accuracy_low": 0.8, "test_accuracy_high": 0.95, "rounds": 3})[0]
    'test accuracy 0.9000 (95 % interval 0.8000 to 0.9500)'
    """
    name = next((name for name in SCORES if name in summary), None)
    lines = []
    if name is not None:
        beside = [*_interval(summary, name), *_guess(summary, name)]
        more = [f"{word} {summary[n]:.4f}" for n, word in _MORE.items() if n in summary and "accuracy" in name]
        lines.append(", ".join([score_of(summary) + (f" ({'; '.join(beside)})" if beside else ""), *more]))
    if "bytes_up" in summary:
        lines.append("; ".join(_costs(summary)))
    if said := chosen_of(summary):
        lines.append(said)
    return lines


_MORE = {"test_auc": "AUC", "test_loss": "log loss"}


def _called(name: str) -> str:
    return name.replace("_", " ").replace("rmse", "RMSE").replace("concordance", "c-index")


def _figure(name: str, value: float) -> str:
    return f"{value:.4f}" if name.endswith(("accuracy", "concordance")) else f"{value:.4g}"


def _interval(summary: Mapping[str, Any], name: str) -> list[str]:
    low, high = (summary.get(f"{name}_{end}") for end in ("low", "high"))
    if low is None or high is None:
        return []
    return [f"{100 * LEVEL:.0f} % interval {_figure(name, low)} to {_figure(name, high)}"]


def _guess(summary: Mapping[str, Any], name: str) -> list[str]:
    """What the score is without a model."""
    if name == "test_rmse" and "test_rmse_of_mean" in summary:
        return [f"guessing the mean: {_figure(name, summary['test_rmse_of_mean'])}"]
    if name == "test_accuracy" and "test_base_rate" in summary:
        share = summary["test_base_rate"]
        most = max(share, 1.0 - share) if "test_auc" in summary else share
        return [f"guessing the most frequent class: {_figure(name, most)}"]
    return []


def _costs(summary: Mapping[str, Any]) -> list[str]:
    rounds, clients, used = summary["rounds"], summary["clients"], summary.get("rounds_used", summary["rounds"])
    after = f"after {used} round{'s' * (used != 1)} with {clients} client{'s' * (clients != 1)}"
    if used < rounds:
        more = rounds - used
        after += " (another round changed nothing)" if more == 1 else f" ({more} more rounds changed nothing)"
    return [
        after,
        f"each sent {in_bytes(summary['bytes_up'])} and received {in_bytes(summary['bytes_down'])}",
        f"{summary['seconds_total']:.1f} s",
    ]


def in_bytes(count: float) -> str:
    """A size as people write it.

    >>> in_bytes(12_340)
    '12.3 kB'
    """
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
