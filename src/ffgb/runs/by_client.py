"""What is known about each client when training ends: how well the model does there, and, here, what it holds.

A server knows of its sites what they report; what is in their files it does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ffgb.core.losses.base import Measure
from ffgb.core.questions import Question
from ffgb.core.types import Array
from ffgb.data import Dataset
from ffgb.federation.server import Server
from ffgb.protocol.codec import Message
from ffgb.runs.model import Model

COLUMNS_SHOWN = 12
"""Columns that are written down."""
SCORES = ("loss", "accuracy", "rmse", "concordance")
"""Scores that are written down."""


def described(
    server: Server, model: Model, dataset: Dataset, names: Sequence[str], parts: Sequence[Array] | None
) -> dict[str, Any]:
    """What `clients.json` holds.  Without parts the rows are elsewhere, each site's held-out ones too."""
    measure = model.job.loss.measure
    test = _held_out(server, dataset, measure) if parts is None else _scored(model, dataset, names)
    rows = []
    for i, name in enumerate(names):
        held = {"labels": None, "target": None}
        if parts is not None and model.job.loss.alone:  # signs of times are events: no mean of them is told
            held = _held(dataset, parts[i])
        train = _score(server.conversation.seen[i], measure) if i in server.conversation.seen else None
        if train is not None:
            del train["points"]
        points = server.clients.points[i] if server.clients.counted else None
        rows.append({"name": name, "points": points, "train": train, "test": test.get(i), **held})
    words = _words(Question.__subclasses__())
    sent = [asdict(s) | {"words": words.get(s.what, s.what)} for s in server.conversation.sent.values()]
    columns = [] if parts is None else _columns(dataset, parts)
    return {
        "classes": list(dataset.classes),
        "clients": rows,
        "rows": sum(server.clients.points),
        "secure": None if server.masked is None else server.masked.in_words(),
        "columns": columns,
        "sent": sent,
        "told": list(dataset.told),
    }


def _words(kinds: Sequence[type[Question]]) -> dict[str, str]:
    """What questions of each kind ask for, by how the server counts them."""
    found: dict[str, str] = {}
    for kind in kinds:
        if what := getattr(kind, "what", ""):
            found[f"question {kind.__name__}"] = what
        found |= _words(kind.__subclasses__())
    return found


def _held(dataset: Dataset, rows: Array) -> dict[str, Any]:
    y = dataset.y[rows]
    if dataset.classes:
        return {"labels": np.bincount(y, minlength=len(dataset.classes)).tolist(), "target": None}
    first = y.reshape(len(y), -1)[:, 0]
    if len(first) < 2:
        return {"labels": None, "target": None}
    # no least or greatest value, and nothing of a single row: that would be its own
    return {"labels": None, "target": {"mean": float(first.mean()), "std": float(first.std())}}


def _columns(dataset: Dataset, parts: Sequence[Array]) -> list[dict[str, Any]]:
    """The columns of a table whose means differ most between clients, in standard deviations of all rows."""
    x = dataset.x
    if x.ndim != 2 or len(dataset.columns) != x.shape[1]:
        return []
    mean, deviation = x.mean(axis=0, dtype=np.float64), x.std(axis=0, dtype=np.float64)
    known = [i for i, rows in enumerate(parts) if len(rows) > 1]  # of one row it would be its own value
    if len(known) < 2:
        return []
    apart = np.stack([x[parts[i]].mean(axis=0, dtype=np.float64) - mean for i in known])
    apart /= np.where(deviation > 0, deviation, 1.0)
    most = np.argsort(-np.ptp(apart, axis=0), kind="stable")[:COLUMNS_SHOWN]
    values = dict(zip(known, apart.tolist(), strict=True))
    return [
        {
            "name": dataset.columns[j],
            "means": [round(values[i][j], 4) if i in values else None for i in range(len(parts))],
        }
        for j in most.tolist()
    ]


def _held_out(server: Server, dataset: Dataset, measure: Measure) -> dict[int, dict[str, Any]]:
    """What sites say of the rows they hold out: those that have any come in their order, after all that train."""
    assert dataset.site_test is not None
    with_tests = np.unique(dataset.site_test).tolist()
    found = {i: server.conversation.seen.get(server.N + j) for j, i in enumerate(with_tests)}
    return {i: _score(seen, measure) for i, seen in found.items() if seen is not None}


def _scored(model: Model, dataset: Dataset, names: Sequence[str]) -> dict[int, dict[str, Any]]:
    """The model at each natural client's own test rows."""
    if dataset.site_test is None or tuple(names) != dataset.sites:
        return {}
    scores = model.score_by_site(dataset.x_test, dataset.y_test, dataset.site_test, names, dataset.weights_test)
    return {
        i: {"points": scores[name]["rows"], **{k: v for k, v in scores[name].items() if k in SCORES}}
        for i, name in enumerate(names)
        if name in scores
    }


def _score(report: Message, measure: Measure) -> dict[str, Any]:
    points, weight = int(report.values["points"]), float(report.values["weight"])
    score = measure.of(float(report.values["score"]) / weight)
    return {"points": points, "loss": float(report.values["loss"]) / weight, measure.name: score}
