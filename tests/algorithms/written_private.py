"""Private models and the questions they took, written down by `python -m tests.algorithms.written_private`.

Most constants of the method change no property that a test of a few rows could see.  They show here.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ffgb.algorithms.additive_private import Fitting, Plan, Public, private_family
from ffgb.core.points import Points
from ffgb.core.private_sums import ColumnCounts, ResidualSums
from ffgb.core.questions import Here
from ffgb.core.types import Array

FILE = Path(__file__).with_name("written_private.json")
PUBLIC = Public(("a", "b", "c"), ((0,), (1,), (2, 3, 4)), (5, -1, -1), (-3.0, -2.0, math.nan), (4.0, 3.0, math.nan))
PLAN = Plan(PUBLIC, "binary", 1, 0.0, 1.0, 2000, 1, 1, 1.5, 0)
PLANS = {
    "two classes": replace(PLAN, pairs=0),
    "two classes, pairs, many sites": replace(PLAN, clients=5, shares=4, pairs=2, mu=4.0),
    "two classes, few rows": replace(PLAN, mu=0.1),
    "classes": replace(PLAN, kind="classes", outputs=3, pairs=2, mu=2.5),
    "classes, fewer bins": replace(PLAN, kind="classes", outputs=3, pairs=1, mu=0.5),
    "numbers": replace(PLAN, kind="numbers", centre=1.0, scale=20.0, pairs=3, mu=2.0),
    "numbers, several rows a unit": replace(PLAN, kind="numbers", scale=8.0, rows=3, mu=1.2, pairs=1),
    "one column": replace(PLAN, public=Public(("a",), ((0,),), (5,), (-3.0,), (4.0,)), pairs=2, mu=2.0),
    "two columns": replace(PLAN, public=Public(("a", "b"), ((0,), (1,)), (5, -1), (-3.0, -2.0), (4.0, 3.0)), pairs=2),
    "pairs of categories": replace(
        PLAN,
        public=Public(("c", "b"), ((2, 3, 4), (1,)), (-1, -1), (math.nan, -2.0), (math.nan, 3.0)),
        kind="numbers",
        scale=10.0,
        pairs=1,
        mu=4.0,
    ),
    "numbers, few rows": replace(PLAN, kind="numbers", scale=5.0, mu=0.02),
}


def table(kind: str) -> tuple[Array, Array]:
    """2,000 rows with two numbers, a category of three, a flag of missing values, and their targets."""
    rng = np.random.default_rng(7)
    x = np.zeros((2000, 6), np.float32)
    x[:, 0], x[:, 1] = rng.gamma(2.0, 1.0, 2000) - 2.0, np.round(rng.standard_normal(2000), 1)
    x[np.arange(2000), 2 + rng.choice(3, 2000, p=[0.6, 0.3, 0.1])] = 1
    x[rng.random(2000) < 0.1, 5] = 1
    f = np.where(x[:, 5] == 1, 1.0, np.sin(2.0 * x[:, 0])) + 1.5 * x[:, 3] + 2.0 * np.sign(x[:, 0] * x[:, 1])
    f += np.where(x[:, 4] == 1, 4.0, -1.0) * x[:, 1]
    noisy = f + rng.logistic(size=2000)
    return x, {"binary": (noisy > 0.3).astype(int), "classes": np.digitize(noisy, [-1.0, 1.0])}.get(kind, noisy + 2.0)


def transcript(plan: Plan) -> dict[str, Any]:
    """What was asked, and the model."""
    rng, (x, y), asked = np.random.default_rng(3), table(plan.kind), list[dict[str, Any]]()
    points, counts = Points(0, x, y), list[Any]()

    def ask(question: Any) -> Any:
        if isinstance(question, ColumnCounts) and counts:
            return counts[0]  # it is asked again, and answered from memory
        sums = {
            name: np.asarray(array) + np.rint(rng.normal(0.0, plan.deviation(question), array.shape))
            for name, array in sorted(question.part(Here(points, 1.0)).items())
        }
        noted = {"mu": question.mu, "deviation": question.deviation, "square": question.square}
        if isinstance(question, ResidualSums):
            noted |= {name: getattr(question, name) for name in ("reach", "factor", "norm", "squares", "unit")}
            noted |= {"constant": question.constant.tolist(), "blocks": len(question.blocks)}
        asked.append({"type": type(question).__name__, **noted})
        found = question.total(sums)
        if isinstance(question, ColumnCounts):
            counts.append(found)
        return found

    family = private_family(plan, ask)
    fitting = Fitting(plan, ask, family.features)
    fitting.run()
    released = fitting.released()
    told = {"constant": released.constant, "columns": released.columns, "sizes": released.sizes}
    told |= {"groups": released.groups, "values": released.values, "cuts": family.features.cuts}
    told |= {"held": np.concatenate(fitting.held), "scales": np.stack([f.scale for f in fitting.fitted])}
    return {"asked": asked, **{name: np.asarray(array, np.float64).tolist() for name, array in told.items()}}


def rounded(value: Any) -> Any:
    """Numbers with eight digits."""
    match value:
        case dict():
            return {name: rounded(each) for name, each in value.items()}
        case list():
            return [rounded(each) for each in value]
        case float():
            return float(f"{value:.8g}")
    return value


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: rounded(transcript(plan)) for name, plan in PLANS.items()}) + "\n")
