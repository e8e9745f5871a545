"""`model-card.md`: what a model is and was trained on (no rows), how well it does for whom, what left the sites."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ffgb.data.preprocess import RARE
from ffgb.errors import FFGBError
from ffgb.features.tables import LEAST
from ffgb.report.fit import NAMES
from ffgb.report.words import chosen_of
from ffgb.runs.config import Config, load_data
from ffgb.runs.directory import Run
from ffgb.runs.model import Model
from ffgb.runs.onnx import output_names

OWN: Final = "model.safetensors"
"""The model that a run ends with: the scores in its files are of this one."""
SEEN: Final = "Totals were not masked: the server saw what is listed above, of each client."


def card(run: Run, model: Model, onnx: tuple[Path, bytes] | None = None, file: str = OWN) -> str:
    """The text, in Markdown, about the model in this file of the run; the ONNX file may not be written yet."""
    config, summary, known = run.config, run.summary, run.clients
    if known is None:
        raise FFGBError(f"the run in {run.path} has no clients.json: a version before wrote it; train it again")
    results, by_client = _results(summary, known) if file == OWN else _results_of(file, run, model, summary, known)
    parts = [
        f"# Model card: {_plain(run.path.name)}",
        _what(model, config, summary, file),
        *filter(None, [chosen_of(summary)]),
        "## Results",
        *results,
        *(_judged(run.fit) if file == OWN else []),
        "## Data",
        *_data(model, known),
        *_told(known),
        "## What left the clients",
        *_left(config, summary, known, file),
        "## Limits",
        f"{_privacy(summary)} {known.get('secure') or SEEN} Scores are of rows that clients held "
        "out, or of a test set of the same origin; elsewhere it may do "
        f"worse{', and for the clients at the top of the table it does already' * by_client}.",
    ]
    if onnx is not None:
        parts += ["## Using it", *_usage(model, *onnx)]
    return "\n\n".join(parts) + "\n"


def _privacy(summary: Mapping[str, Any]) -> str:
    """What is promised of single rows."""
    promise = summary.get("privacy")
    if not promise:
        return "Trained without differential privacy."
    warning = f" {_plain(promise['warning'])}." if promise.get("warning") else ""
    return (
        f"Trained with differential privacy: ε = {promise['epsilon']:g}, δ = {promise['delta']:g}, where "
        f"{_plain(promise['adjacency'])}. The noise is {_plain(promise['noise'])}. Public, and not covered: "
        f"{', '.join(map(_plain, promise['public']))}; nor are {_plain(promise['not_covered'])}.{warning}"
    )


def measured(run: Run, model: Model) -> tuple[dict[str, dict[str, Any]], str]:
    """A model's scores at the run's test rows, of all and of each site's own; if there are none, why."""
    try:
        dataset = load_data(Config.from_json(run.config))
    except (FFGBError, OSError) as error:
        return {}, str(error).partition(";")[0]
    if not len(dataset.y_test):
        return {}, "the run held out no rows"
    x, y, weights = dataset.x_test, dataset.y_test, dataset.weights_test
    found: dict[str, dict[str, Any]] = {"": {"rows": len(y), **model.score(x, y, weights)}}
    if dataset.site_test is not None:
        found |= model.score_by_site(x, y, dataset.site_test, dataset.sites, weights)
    return found, ""


def _what(model: Model, config: Mapping[str, Any], summary: Mapping[str, Any], file: str) -> str:
    task = f"one of {len(model.classes)} classes ({_names(model.classes)})" if model.classes else "a number"
    numbers = sum(a.size for a in model.f.tensors().values())
    target = f", {_plain(config['target'])}" if config.get("target") else ""
    made = "trained" if file == OWN else f"made of {_code(OWN)}, which was trained"
    return (
        f"Predicts {task}{target}. This is {_code(file)} of the run: a sum of {model.f.terms:,} "
        f"function{'s' * (model.f.terms != 1)} of the learner "
        f"`{config['learner']}` ({numbers:,} numbers), {made} by `{config['algorithm']}` in {summary['rounds']} "
        f"rounds with {summary['clients']} clients, none of which showed its rows. "
        f"ffgb {config['versions']['ffgb']}, seed {config['seed']}."
    )


def _measure(summary: Mapping[str, Any]) -> str:
    """What the model is judged by."""
    return next(name for name in ("accuracy", "concordance", "rmse") if f"train_{name}" in summary or name == "rmse")


def _overall(summary: Mapping[str, Any], name: str) -> str:
    scores = {label: summary.get(f"{key}_{name}") for key, label in (("test", "test"), ("train", "training"))}
    return ", ".join(f"{label} {name} **{score:.4f}**" for label, score in scores.items() if score is not None)


def _results_of(
    file: str, run: Run, model: Model, summary: Mapping[str, Any], known: Mapping[str, Any]
) -> tuple[list[str], bool]:
    """Of a model that was made after training: what it scores itself; and whether that is said client by client."""
    name = _measure(summary)
    scores, why = measured(run, model)
    own = f"The model that it was made of, {_code(OWN)}, has {_overall(summary, name)}."
    if not scores:
        text = f"{_code(file)} was **not measured**: {_plain(why)}. {own} What was made of it may do better or worse."
        return [text], False
    whole = scores.pop("")
    found = [f"{_code(file)} has test {name} **{whole[name]:.4f}** at {whole['rows']:,} rows. {own}"]
    if len(scores) < 2:
        return found, False
    worst = sorted(scores, key=lambda site: scores[site][name] * (-1 if name == "rmse" else 1))
    rows = [(_plain(site), f"{scores[site]['rows']:,}", _number(scores[site], name)) for site in worst]
    found += ["Clients, the worst first:", _table(("client", "rows held out", f"{name} there"), rows[:50])]
    return found + ([f"and {len(rows) - 50} more."] if len(rows) > 50 else []), True


def _results(summary: Mapping[str, Any], known: Mapping[str, Any]) -> tuple[list[str], bool]:
    name = _measure(summary)
    overall = _overall(summary, name)

    def score(client: Mapping[str, Any]) -> float:
        found = client["test"] or client["train"]
        return 0.0 if found is None else float(found[name]) * (-1 if name == "rmse" else 1)

    rows = [
        (
            _plain(c["name"]), _count(c["points"]), _number(c["train"], name),
            f"{c['test']['points']:,}" if c["test"] else "", _number(c["test"], name),
        )
        for c in sorted(known["clients"], key=score)
    ]  # fmt: skip
    head = ("client", "training rows", f"{name} there", "rows held out", f"{name} there")
    if not any(c["train"] or c["test"] for c in known["clients"]):
        return [f"{overall[:1].upper()}{overall[1:]}. Scores of single clients are known to these alone."], False
    found = [overall[:1].upper() + overall[1:] + ". Clients, the worst first:", _table(head, rows[:50])]
    return found + ([f"and {len(rows) - 50} more."] if len(rows) > 50 else []), True


def _judged(found: Mapping[str, Any] | None) -> list[str]:
    """The scores of all held-out rows, with their intervals."""
    if found is None:
        return []
    whole = found["parts"]["all"]
    rows = [
        (NAMES[name], f"{score['value']:.4f}", _ends(score))
        for name, score in whole["scores"].items()
        if name in NAMES and score["value"] is not None
    ]
    how = " Rows stayed at their sites: scores are computed from totals over them." * (found.get("by") == "totals")
    said = f"At {whole['rows']:,} held-out rows, with {100 * found['level']:g} % intervals.{how}"
    return [said, _table(("score", "value", "interval"), rows)]


def _ends(score: Mapping[str, Any]) -> str:
    return "" if score["low"] is None or score["high"] is None else f"{score['low']:.4f} to {score['high']:.4f}"


def _data(model: Model, known: Mapping[str, Any]) -> list[str]:
    clients = known["clients"]
    found = [
        f"{known.get('rows') or sum(c['points'] for c in clients):,} training rows at {len(clients)} clients, none of "
        "them in this file."
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


def _told(known: Mapping[str, Any]) -> list[str]:
    """Where sites have not the same columns, if the run says so."""
    lines = known.get("told") or []
    return ["## Columns that differ", "\n".join(f"- {_plain(line)}" for line in lines)] if lines else []


def _left(config: Mapping[str, Any], summary: Mapping[str, Any], known: Mapping[str, Any], file: str) -> list[str]:
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
    after = (
        f" What was exchanged to make {_code(file)} of the model, if clients took part in that, is not in this table."
    )
    rare = max(config.get("rare", RARE), config.get("least", LEAST))
    if known.get("secure"):
        return [
            "Every kind of message that a client sent, with its arrays and the size of the largest. All sums were "
            "under masks. Sites with files also told the names and kinds of their columns.",
            _table(("when", "what", "arrays", "bytes"), rows),
            total + (after if file != OWN else ""),
        ]
    return [
        "Every kind of message that a client sent, with its arrays and the size of the largest. Sites with files also "
        "told their number of rows, the names and kinds of their columns, how many values are missing, sums of "
        f"numbers, rows by a hash of their category, and the categories that at least {rare} rows of all sites "
        "together have. Of the target they named every class; or, if it is numbers that may be classes, every value.",
        _table(("when", "what", "arrays", "bytes"), rows),
        total + (after if file != OWN else ""),
    ]


def _usage(model: Model, onnx: Path, data: bytes) -> list[str]:
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
    names = output_names(model)
    renamed = [
        f" A column is called {_code(name)}, so that output is called {_code(given)}."
        for name, given in names.items()
        if name != given
    ]
    fingerprint = hashlib.sha256(data).hexdigest()
    return [
        f"{_code(onnx.name)} (ONNX, sha256 {fingerprint}) has the inputs below and gives "
        f"{' and '.join(map(_code, names.values()))}.{''.join(renamed)}",
        _table(("input", "is"), inputs),
    ]


def _count(points: int | None) -> str:
    return "" if points is None else f"{points:,}"


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


def _code(text: str) -> str:
    """A name in code, where backslashes would be shown."""
    return f"`{''.join(c if c.isprintable() and c not in '`|' else ' ' for c in text)}`"
