"""Settings of private trainings for numbers, on held-out fifths of the training rows: `private_settings.py [TABLE …]`.

Each alternative is one constant of the mechanism, changed; totals have the noise of ten clients under masks.
private_settings.json gets R² of each alternative, table, ε and seed (of the fifth and of the noise).  Needs what
private_tables.py needs, but for diffprivlib.  Rows that other experiments test on are never read.
"""

from __future__ import annotations

import json
import math
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from ffgb.algorithms import additive_private
from ffgb.algorithms.additive_private import Fitting, Plan, Public, private_family
from ffgb.core import private_terms
from ffgb.core.points import Points
from ffgb.core.private_sums import ColumnCounts
from ffgb.core.questions import Here
from ffgb.data import load
from ffgb.data.schema_file import SchemaFile
from ffgb.privacy.accountant import mu_of
from ffgb.runs.private import public_of
from private_tables import DELTA, loaded, schema_of

HERE = Path(__file__).parent
OUT = HERE / "private_settings.json"
NAMES, EPSILONS, SEEDS, CLIENTS, MOST_ROWS = ("bike_sharing", "flight_delays", "cal_housing"), (1.0, 4.0), 3, 10, 30_000
PRIORS = {name: getattr(private_terms, name) for name in ("FIRST", "OF_PAIRS", "TOWARDS")}
ALTERNATIVES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "priors 0.3": {k: 0.3 * v for k, v in PRIORS.items()}
    | {"MOST_SCALE": {**additive_private.MOST_SCALE, "numbers": 0.6}},
    "priors 3": {k: 3.0 * v for k, v in PRIORS.items()}
    | {"MOST_SCALE": {**additive_private.MOST_SCALE, "numbers": 6.0}},
    **{f"clip {clip:g}": {"NARROWER": clip} for clip in (1.5, 3.0)},
    **{f"deviations {sure:g}": {"SURELY": sure} for sure in (0.0, 4.0)},
    **{f"pairs {pairs}": {"pairs": pairs} for pairs in (0, 2, 8)},
}


def table(name: str) -> tuple[Public, float, float, Any, Any]:
    """Public bounds, the middle and half of the width of the target's, and the training rows."""
    if name == "cal_housing":
        data, schema = load(name, seed=0), SchemaFile.read(HERE / "private" / f"{name}.toml")
        low, high = schema.columns[schema.target or ""].bounds or (0.0, 1.0)
        return public_of(data, schema), (low + high) / 2, (high - low) / 2, data.x.astype(np.float32), data.y
    task, frame, y = loaded(name)
    schema, order = schema_of(frame, y, task), np.random.default_rng(0).permutation(len(y))
    inputs, flags, bounds, columns, k = [], [], [], [], 0
    for c in frame:
        rule = schema.columns[str(c)]
        if rule.bounds is not None:
            part = np.column_stack([frame[c].to_numpy(), np.zeros(len(y))])
        else:
            part = (frame[c].to_numpy()[:, None] == np.array(sorted(rule.categories or ()), object)).astype(float)
        numeric = rule.bounds is not None
        inputs.append((k,) if numeric else tuple(range(k, k + part.shape[1])))
        flags.append(k + 1 if numeric else -1)
        bounds.append(rule.bounds or (math.nan, math.nan))
        columns.append(part)
        k += part.shape[1]
    train = order[len(y) // 5 :]
    public = Public(tuple(map(str, frame)), tuple(inputs), tuple(flags), *zip(*bounds, strict=True))
    low, high = schema.columns["target"].bounds or (0.0, 1.0)
    return public, (low + high) / 2, (high - low) / 2, np.hstack(columns).astype(np.float32)[train], y[train]


def score(known: tuple[Public, float, float, Any, Any], epsilon: float, seed: int, pairs: int) -> float:
    """R² on a fifth of the rows of a training with the others."""
    public, centre, scale, x, y = known
    order = np.random.default_rng(100 + seed).permutation(len(y))[:MOST_ROWS]
    held, kept = np.split(order, [len(order) // 5])
    rng, counts = np.random.default_rng(seed + 1000 * round(4 * epsilon)), list[Any]()
    mu = mu_of(epsilon, DELTA)
    plan = Plan(public, "numbers", 1, centre, scale, len(kept), CLIENTS, CLIENTS - 1, mu, 0, 1, pairs)
    here = Here(Points(0, x[kept], y[kept]), 1.0)

    def ask(question: Any) -> Any:
        if isinstance(question, ColumnCounts) and counts:
            return counts[0]
        deviation = question.deviation * math.sqrt(CLIENTS)
        part = question.part(here)
        counts.append(question.total({k: a + rng.normal(0, deviation, a.shape).round() for k, a in part.items()}))
        return counts[-1]

    fitting = Fitting(plan, ask, private_family(plan, ask).features)
    fitting.run()
    terms, found = fitting.fitted[0].terms, np.full(len(held), fitting.fitted[0].constant)
    for start, size, code in fitting.priors.blocks.codes(fitting.features(x[held])):
        found += terms[start : start + size][code]
    aim = y[held]
    said = np.clip(found * scale + centre, centre - scale, centre + scale)
    return float(1.0 - np.mean(np.square(said - aim)) / aim.var())


def main(names: list[str]) -> None:
    for name in names:
        known = table(name)
        for what, changes in ALTERNATIVES.items():
            with ExitStack() as stack:
                for constant, value in changes.items():
                    if constant != "pairs":
                        module = private_terms if hasattr(private_terms, constant) else additive_private
                        stack.enter_context(mock.patch.object(module, constant, value))
                pairs = changes.get("pairs", additive_private.MOST_PAIRS)
                found = {f"{e:g}": [round(score(known, e, s, pairs), 4) for s in range(SEEDS)] for e in EPSILONS}
            results = json.loads(OUT.read_text()) if OUT.exists() else {}
            results.setdefault(what, {})[name] = found
            OUT.write_text(json.dumps(results, indent=1) + "\n")
            print(name, what, found, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or list(NAMES))
