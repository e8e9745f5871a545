"""`model-card.md`: what a model is and was trained on (no rows), how well it does for whom, what left the sites."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ffgb.errors import FFGBError
from ffgb.model import Model
from ffgb.runs import Run


def card(run: Run, model: Model, onnx: Path | None = None) -> str:
    """The text, in Markdown."""
    config, summary, known = run.config, run.summary, run.clients
    if known is None:
        raise FFGBError(f"the run in {run.path} has no clients.json: a version before wrote it; train it again")
    parts = [
        f"# Model card: {_plain(run.path.name)}",
        _what(model, config, summary),
        "## Results",
        *_results(summary, known),
        "## Data",
        *_data(model, known),
        "## What left the clients",
        *_left(summary, known),
        "## Limits",
        "Trained without differential privacy or secure aggregation: the server saw what is listed above, of each "
        "client. Scores are of rows that clients held out, or of a test set of the same origin; elsewhere it may do "
        "worse, and for the clients at the top of the table it does already.",
    ]
    if onnx is not None:
        parts += ["## Using it", *_usage(model, onnx)]
    return "\n\n".join(parts) + "\n"


def _what(model: Model, config: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    task = f"one of {len(model.classes)} classes ({_names(model.classes)})" if model.classes else "a number"
    numbers = sum(a.size for a in model.f.tensors().values())
    target = f", {_plain(config['target'])}" if config.get("target") else ""
    return (
        f"Predicts {task}{target}. A sum of {model.f.terms:,} function{'s' * (model.f.terms != 1)} of the learner "
        f"`{config['learner']}` ({numbers:,} numbers), trained by `{config['algorithm']}` in {summary['rounds']} "
        f"rounds with {summary['clients']} clients, none of which showed its rows. "
        f"ffgb {config['versions']['ffgb']}, seed {config['seed']}."
    )


def _results(summary: Mapping[str, Any], known: Mapping[str, Any]) -> list[str]:
    name = "accuracy" if known["classes"] else "rmse"
    scores = {label: summary.get(f"{key}_{name}") for key, label in (("test", "Test"), ("train", "training"))}
    overall = [f"{label} {name} **{score:.4f}**" for label, score in scores.items() if score is not None]

    def score(client: Mapping[str, Any]) -> float:
        found = client["test"] or client["train"]
        return 0.0 if found is None else float(found[name]) * (1 if known["classes"] else -1)

    rows = [
        (
            _plain(c["name"]), f"{c['points']:,}", _number(c["train"], name),
            f"{c['test']['points']:,}" if c["test"] else "", _number(c["test"], name),
        )
        for c in sorted(known["clients"], key=score)
    ]  # fmt: skip
    head = ("client", "training rows", f"{name} there", "rows held out", f"{name} there")
    return [", ".join(overall) + ". Clients, the worst first:", _table(head, rows[:50])] + (
        [f"and {len(rows) - 50} more."] if len(rows) > 50 else []
    )


def _data(model: Model, known: Mapping[str, Any]) -> list[str]:
    clients = known["clients"]
    found = [
        f"{sum(c['points'] for c in clients):,} training rows at {len(clients)} clients, none of them in this file."
    ]
    if model.table is not None:
        rows = [
            (
                _plain(c.name),
                "number" if c.categories is None else f"{len(c.categories)} categories",
                f"missing values become {c.fill:.4g}, and are flagged" if c.flagged
                else f"missing values become {c.fill:.4g}" if c.categories is None
                else "missing, rare and unknown ones are none of: " + _names(c.categories),
            )
            for c in model.table.columns
        ]  # fmt: skip
        found.append(_table(("column", "holds", "preprocessing"), rows))
    elif model.columns:
        found.append(f"Columns, all numbers: {_names(model.columns)}.")
    else:
        found.append(f"Images of shape {model.shape}.")
    if known["classes"] and clients[0]["labels"] is not None:
        held = [(_plain(c["name"]), *(f"{n:,}" for n in c["labels"])) for c in clients[:50]]
        found += ["Rows of each class:", _table(("client", *map(_plain, known["classes"])), held)]
    return found


def _left(summary: Mapping[str, Any], known: Mapping[str, Any]) -> list[str]:
    rows = [
        (
            "once" if s["once"] else "each round", _plain(s["what"]),
            ", ".join(f"{name} {dtype}{list(shape)}" for name, dtype, shape in s["arrays"]) or "a few sums",
            f"{s['bytes']:,}",
        )
        for s in sorted(known["sent"], key=lambda s: not s["once"])
    ]  # fmt: skip
    total = (
        f"In all a client sent {summary['bytes_up']:,.0f} bytes and was sent {summary['bytes_down']:,.0f}, on average."
    )
    return [
        "Every kind of message that a client sent, with its arrays and the size of the largest; sites with files also "
        "told their number of rows, the names and kinds of their columns, how many values are missing, sums of "
        "numbers, and categories and classes that occur often enough.",
        _table(("when", "what", "arrays", "bytes"), rows),
        total,
    ]


def _usage(model: Model, onnx: Path) -> list[str]:
    if model.table is None:
        inputs = [("x", f"float32 (n, {', '.join(map(str, model.shape))})")]
    else:
        inputs = [
            (
                _plain(c.name),
                "float32 (n, 1), NaN if missing" if c.categories is None else "string (n, 1), empty if missing",
            )
            for c in model.table.columns
        ]
    outputs = "`label` and `probabilities`" if model.classes else "`prediction`"
    fingerprint = hashlib.sha256(onnx.read_bytes()).hexdigest()
    return [
        f"`{_plain(onnx.name)}` (ONNX, sha256 {fingerprint}) has the inputs below and gives {outputs}.",
        _table(("input", "is"), inputs),
    ]


def _number(score: Mapping[str, Any] | None, name: str) -> str:
    return "" if score is None else f"{score[name]:.4f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(map(_plain, names[:20]))
    return shown + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def _plain(text: object) -> str:
    """Text from outside, harmless in Markdown."""
    return "".join(f"\\{c}" if c in "|\\`*_{}[]<>#" else c if c.isprintable() else " " for c in str(text))
