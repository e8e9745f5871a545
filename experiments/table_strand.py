"""A study: would a blend gain from a linear strand?  On tables of the left column only.

    python experiments/table_strand.py [--rows 6000] TABLE …      # lines of tables/strand.json

The blend is trained as `ffgb-auto-pooled` is.  Its versions without a fold say what it predicts at rows of that fold.
Beside it stand linear models of the rows without the fold, and of all training rows (`linear-cv`: standardised numbers,
one-hot categories, penalty by cross-validation).  The rows of the folds choose the linear share, in quarters, of the
blend with its own factor; all candidates are scored on the test rows, too.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from table_central import linear
from table_list import TABLES
from table_pooled import Trained, trained_here
from table_rows import Array, Rows, rows_of
from table_scores import MAIN, scores

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
FILE = Path(__file__).parent / "tables" / "strand.json"


def studied(rows: Rows) -> dict[str, Any]:
    """What the rows of the folds choose, and what each share comes to on the test rows."""
    found = trained_here(rows)
    train = np.concatenate([np.flatnonzero(~rows.test & (rows.site == i)) for i in range(rows.sites)])
    algorithm, loss, target = found.algorithm, found.loss, found.target
    fold = algorithm.folds.of(_points(found))
    aside = np.isin(fold, algorithm.folds.without)
    blend_aside, line_aside = _of_versions(found, fold), np.zeros((len(train), loss.outputs))
    for k in np.unique(fold[aside]):
        part = Rows(rows.entry, rows.seed, rows.x.iloc[train], rows.y[train], rows.classes,
                    np.zeros(len(train), int), fold == k, 0)  # fmt: skip
        line_aside[fold == k] = _as_scores(linear(part, tuned=True), rows, target)
    y = found.dataset.y[aside] if rows.classes else target.encode(found.dataset.y)[aside]
    chosen = algorithm.chosen(found.f, found.lines)
    blend, line = chosen.f(found.dataset.x_test), _as_scores(linear(rows, tuned=True), rows, target)
    losses, main = list[float](), list[Any]()
    for share in SHARES:
        mixed = (1.0 - share) * blend_aside[aside] + share * line_aside[aside]
        losses.append(float(loss.value(mixed, y).mean()))
        values = (1.0 - share) * blend + share * line
        p = loss.probability(values) if rows.classes else loss.unscaled(values, target.mean, target.scale)[:, 0]
        tested = scores(rows.entry.task, p, rows.truth())
        main.append({name: tested[name] for name in (MAIN[rows.entry.task], "log_loss") if name in tested})
    best = int(np.argmin(losses))
    return {"share": SHARES[best], "aside": losses, "test": main, "rounds": len(found.lines)}


def _points(found: Trained) -> Any:
    from ffgb.core.points import Points

    return Points(0, found.dataset.x, found.dataset.y)


def _of_versions(found: Trained, fold: Array) -> Array:
    """The blend at each row by the versions without its fold; of other rows by that with all."""
    algorithm, c = found.algorithm, found.loss.outputs
    line = min(found.lines, key=lambda line: float(line["held_out"]))
    weights = algorithm.candidates[int(line["blend"])]
    start = algorithm._constant(c)
    each = found.best.reshape(len(fold), algorithm.strands, algorithm.each, c)
    version = np.zeros(len(fold), int)
    for k, without in enumerate(algorithm.folds.without[: algorithm.each]):
        version[fold == without] = k
    own = each[np.arange(len(fold)), :, version] - start  # (rows, strands, c)
    values: Array = start + np.tensordot(own, weights, axes=([1], [0]))
    return values


def _as_scores(predicted: Array, rows: Rows, target: Any) -> Array:
    """Predictions on the scale of f."""
    if not rows.classes:
        return np.asarray(target.encode(predicted))
    p = np.clip(predicted, 1e-9, 1.0)
    odds: Array = np.log(p[:, 1:] / p[:, :1]) if p.shape[1] == 2 else np.log(p)
    return odds


def main() -> None:
    parser = argparse.ArgumentParser(description="Would a blend gain from a linear strand?")
    parser.add_argument("tables", nargs="+")
    parser.add_argument("--rows", type=int, default=6000)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    with threadpool_limits(1):
        for entry in TABLES:
            if entry.name not in chosen.tables:
                continue
            if entry.held_back:
                raise SystemExit(f"{entry.name} is held back: nobody chooses by it")
            line = {"table": entry.name, "most": chosen.rows, **studied(rows_of(entry, 0, chosen.rows))}
            known = json.loads(FILE.read_text()) if FILE.exists() else []
            FILE.write_text(json.dumps([*known, line], indent=1) + "\n")
            print(line, flush=True)


if __name__ == "__main__":
    main()
