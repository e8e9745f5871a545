"""`ffgb.train` on a table's site files, with the defaults, as a library."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ffgb import train
from ffgb.data import Dataset
from ffgb.engines.local import InProcess
from table_pooled import settings_of
from table_rows import Array, Rows
from table_scores import MAIN, scores

_NAME = "exchange"


@contextmanager
def counted() -> Iterator[list[int]]:
    """The number of clients of each exchange, while this lasts."""
    sent: list[int] = []
    exchange = InProcess.exchange

    def counting(engine: InProcess, data: bytes, clients: Sequence[int]) -> dict[int, bytes]:
        sent.append(len(clients))
        return exchange(engine, data, clients)

    setattr(InProcess, _NAME, counting)
    try:
        yield sent
    finally:
        setattr(InProcess, _NAME, exchange)


def ours(rows: Rows, **settings: Any) -> tuple[Array, dict[str, Any]]:
    """Predictions for the test rows, and what the training cost.

    Predictions are for one file with the test rows of all sites, as for anyone who gets the model.  `own` is the
    library's own score of the same rows, each read at its site: the same, since all sites know the same categories.
    """
    read: list[Dataset] = []
    with tempfile.TemporaryDirectory() as name, counted() as sent:
        files, test = rows.write(Path(name))
        config = settings_of(rows, tuple(map(str, files)), **settings)
        result = train(config, workers=0, on_start=lambda config, dataset: read.append(dataset))
        x = result.model.read(test)
    held_out, model = read[0], result.model
    assert held_out.classes == rows.classes
    assert np.array_equal(held_out.y_test, rows.truth()), "the library held out other rows"
    predict = model.predict_proba if rows.classes else model.predict
    own = scores(rows.entry.task, predict(held_out.x_test), rows.truth())[MAIN[rows.entry.task]]
    names = ("rounds", "round", "chosen", "learner", "bytes_up", "bytes_down", "parameters_up")
    learned = {name: result.summary[name] for name in names if name in result.summary}
    return predict(x), {"own": own, **learned, "exchanges": len(sent)}
