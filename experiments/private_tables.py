"""Private models on further tables beside DP-EBM (interpret) and diffprivlib: `private_tables.py [TABLE|EPSILON …]`.

Needs the packages of experiments/tables/packages.txt and interpret; and diffprivlib 0.6.6, which needs an older
scikit-learn than ours, in an environment whose python is named by DIFFPRIVLIB.  80 % of the rows train, the same for
everyone.  Bounds and categories are those of the table itself, rounded outwards, as public ones would be, and the same
for all.  Ours are ten clients under masks.  diffprivlib's models are linear, with δ = 0.  private_tables.json gets the
scores: AUC for two classes, accuracy for several, R² for numbers; seconds are those of processors, a training.
`private_tables.py summary` prints them as a table, with mean ranks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import rankdata
from sklearn.metrics import accuracy_score, r2_score, roc_auc_score

from ffgb import FFGBClassifier, FFGBRegressor
from ffgb.data.schema_file import SchemaFile, draft
from table_list import TABLES

OUT = Path(__file__).parent / "private_tables.json"
NAMES = ("mortgages", "jobs_runtime", "telco_churn", "taxi_tips", "nursery", "wages", "diamonds", "fertility")
EPSILONS, SEEDS, DELTA = (1.0, 4.0), 5, 1e-5
METHODS = ("ours", "dp_ebm", "diffprivlib")


def loaded(name: str) -> tuple[str, pd.DataFrame, Any]:
    """The task, the columns as numbers or text without missing values, and the target."""
    entry = next(each for each in TABLES if each.name == name)
    frame = entry.frame()
    y, x = frame.pop("target"), frame
    x = x[[c for c in x if x[c].nunique() > 1 and c != "site"]]
    columns = {}
    for c in x:
        numeric = pd.api.types.is_numeric_dtype(x[c])
        columns[str(c)] = x[c].fillna(x[c].min()).astype(float) if numeric else x[c].fillna("none").astype(str)
    target = (
        y.astype(float).to_numpy() if entry.task == "regression" else np.unique(y.astype(str), return_inverse=True)[1]
    )
    return entry.task, pd.DataFrame(columns), target


def schema_of(x: pd.DataFrame, y: Any, task: str) -> SchemaFile:
    raw = {str(c): x[c].to_numpy(float if x[c].dtype == float else object) for c in x}
    schema, _ = draft({**raw, **({"target": y} if task == "regression" else {})}, (), None, 1)
    return SchemaFile(schema.columns, "target" if task == "regression" else None)


def score(task: str, y: Any, found: Any) -> float:
    if task == "regression":
        return float(r2_score(y, found))
    return float(roc_auc_score(y, found[:, 1]) if task == "binary" else accuracy_score(y, found.argmax(axis=1)))


def ours(task: str, parts: tuple[Any, ...], schema: SchemaFile, epsilon: float, seed: int) -> float:
    x, y, x_new, y_new = parts
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(schema.to_toml())
        file.flush()
        kind = FFGBRegressor if task == "regression" else FFGBClassifier
        model = kind(epsilon=epsilon, schema=file.name, noise_seed=seed, options={"secure": "on"})
        model.fit(x, y, clients=np.arange(len(y)) % 10)
    if task != "regression":
        return score(task, y_new, model.predict_proba(x_new))
    low, high = schema.columns["target"].bounds or (0.0, 1.0)
    return score(task, y_new, np.clip(model.predict(x_new), low, high))


def ebm(task: str, parts: tuple[Any, ...], schema: SchemaFile, epsilon: float, seed: int) -> float | None:
    from interpret.privacy import DPExplainableBoostingClassifier, DPExplainableBoostingRegressor

    if task == "classes":
        return None  # it has two classes only
    x, y, x_new, y_new = parts
    bounds = {c: schema.columns[c].bounds for c in x if schema.columns[c].bounds is not None}
    kinds = ["continuous" if c in bounds else "nominal" for c in x]
    known = {"epsilon": epsilon, "delta": DELTA, "privacy_bounds": bounds, "feature_types": kinds, "random_state": seed}
    if task == "binary":
        return score(task, y_new, DPExplainableBoostingClassifier(**known).fit(x, y).predict_proba(x_new))
    low, high = schema.columns["target"].bounds or (0.0, 1.0)
    model = DPExplainableBoostingRegressor(privacy_target_min=low, privacy_target_max=high, **known).fit(x, y)
    return score(task, y_new, np.clip(model.predict(x_new), low, high))


LINEAR = """
import sys, warnings
import numpy as np
warnings.simplefilter("ignore")
from diffprivlib.models import LinearRegression, LogisticRegression
d = np.load(sys.argv[1], allow_pickle=False)
epsilon, seed = float(d["epsilon"]), int(d["seed"])
if d["task"] == "regression":
    model = LinearRegression(epsilon=epsilon, bounds_X=(0.0, 1.0), bounds_y=tuple(d["bounds"]), random_state=seed)
    found = np.clip(model.fit(d["a"], d["y"]).predict(d["b"]), *d["bounds"])
else:
    model = LogisticRegression(epsilon=epsilon, data_norm=float(d["norm"]), max_iter=500, random_state=seed)
    found = model.fit(d["a"], d["y"]).predict_proba(d["b"])
np.save(sys.argv[2], found)
"""


def design(frame: pd.DataFrame, schema: SchemaFile) -> Any:
    """Columns between 0 and 1."""
    blocks = []
    for c in frame:
        rule = schema.columns[str(c)]
        if rule.bounds is not None:
            low, high = rule.bounds
            blocks.append(np.clip((frame[c].to_numpy() - low) / (high - low), 0.0, 1.0)[:, None])
        else:
            blocks.append((frame[c].to_numpy()[:, None] == np.array(rule.categories, object)).astype(float))
    return np.hstack(blocks)


def linear(task: str, parts: tuple[Any, ...], schema: SchemaFile, epsilon: float, seed: int) -> float | None:
    if "DIFFPRIVLIB" not in os.environ:
        return None
    x, y, x_new, y_new = parts
    bounds = (schema.columns["target"].bounds if task == "regression" else None) or (0.0, 1.0)
    norm = np.sqrt(len(x.columns))  # a row has one entry of at most 1 a column
    with tempfile.TemporaryDirectory() as folder:
        given, answer = Path(folder) / "given.npz", Path(folder) / "found.npy"
        arrays = {"a": design(x, schema), "b": design(x_new, schema), "y": y}
        np.savez(given, task=task, epsilon=epsilon, seed=seed, bounds=bounds, norm=norm, **arrays)
        subprocess.run([os.environ["DIFFPRIVLIB"], "-c", LINEAR, str(given), str(answer)], check=True, env={})
        return score(task, y_new, np.load(answer, allow_pickle=False))


def processor() -> float:
    """Seconds of processors so far, of this process and those that it has started."""
    return sum(os.times()[:4])


def main(names: list[str], epsilons: list[float]) -> None:
    for name in names:
        task, x, y = loaded(name)
        schema, order = schema_of(x, y, task), np.random.default_rng(0).permutation(len(y))
        test, train = np.split(order, [len(y) // 5])
        parts = (x.iloc[train].reset_index(drop=True), y[train], x.iloc[test].reset_index(drop=True), y[test])
        for epsilon in epsilons:
            found: dict[str, Any] = {"task": task, "rows": len(train), "columns": x.shape[1]}
            for what, method in (("ours", ours), ("dp_ebm", ebm), ("diffprivlib", linear)):
                began = processor()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    scores = [method(task, parts, schema, epsilon, seed) for seed in range(SEEDS)]
                known = [s for s in scores if s is not None]
                found[what] = [round(s, 4) for s in known]
                found[f"{what}_mean"] = round(float(np.mean(known)), 4) if known else None
                found[f"{what}_seconds"] = round((processor() - began) / SEEDS, 2) if known else None
            results = json.loads(OUT.read_text()) if OUT.exists() else {}
            results[f"{name} {epsilon:g}"] = found
            OUT.write_text(json.dumps(results, indent=1) + "\n")
            print(name, epsilon, {k: v for k, v in found.items() if k.endswith("mean")}, flush=True)


def summary() -> str:
    """A line a table and ε, and the mean ranks of each method over the tables that it can be trained on."""
    results, ranks = json.loads(OUT.read_text()), {method: list[float]() for method in METHODS}
    lines = ["| table | rows | what is predicted | ε | ours | DP-EBM | diffprivlib |", "|---|---|---|---|---|---|---|"]
    for name in sorted(results, key=lambda name: (results[name]["rows"], name)):
        line = results[name]
        means = {method: line[f"{method}_mean"] for method in METHODS}
        known = {method: mean for method, mean in means.items() if mean is not None}
        for method, rank in zip(known, rankdata([-mean for mean in known.values()]), strict=True):
            ranks[method].append(float(rank))
        best = max(known.values())
        cells = ["–" if m is None else f"**{m:.4f}**" if m == best else f"{m:.4f}" for m in means.values()]
        table, _, epsilon = name.partition(" ")
        lines.append(f"| {table} | {line['rows']:,} | {line['task']} | {epsilon} | {' | '.join(cells)} |")
    mean = [f"{np.mean(some):.2f} ({len(some)})" if some else "–" for some in ranks.values()]
    return "\n".join([*lines, f"| mean rank (of so many) | | | | {' | '.join(mean)} |"])


if __name__ == "__main__":
    if sys.argv[1:] == ["summary"]:
        print(summary())
    else:
        numbers = [word for word in sys.argv[1:] if word.replace(".", "", 1).isdigit()]
        words = [word for word in sys.argv[1:] if word not in numbers]
        main(words or list(NAMES), [float(number) for number in numbers] or list(EPSILONS))
