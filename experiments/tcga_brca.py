"""Fed-TCGA-BRCA of FLamby by its own split: Cox's model stratified by site, and what it is worth.

    python experiments/tcga_brca.py

Six regions are the sites.  The penalty is chosen on training rows alone, by the c-index within sites of five-fold
cross-validation; then the model is fitted to all training rows and scored on FLamby's test rows, by FLamby's metric
(lifelines' c-index): the mean over regions, and over all test rows together.  $FFGB_DATA/tcga_brca has the files.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from lifelines.utils import concordance_index

from ffgb.core.concordance import c_index, concordance
from ffgb.runs.cox import CoxResult, cox

PENALTIES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
FOLDS, REPEATS, DRAWS = 5, 4, 1000


def patients() -> tuple[pd.DataFrame, list[str]]:
    """The patients of FLamby's split with their region and fold, and the names of the features."""
    for folder in os.environ["FFGB_DATA"].split(":"):
        if (path := Path(folder, "tcga_brca")).is_dir():
            break
    rows = pd.read_csv(path / "brca.csv")
    features = [name for name in rows.columns if name not in ("pid", "E", "T")]
    found = pd.read_csv(path / "train_test_split.csv").merge(rows, on="pid")
    return found.assign(region=found.fold2.str.split("_").str[1]), features


def fit(rows: pd.DataFrame, features: list[str], penalty: float, *, together: bool = True) -> CoxResult:
    sites = {str(region): some for region, some in rows.groupby("region")} if together else {"all": rows}
    some = [name for name in features if rows[name].nunique() > 1]  # a fold may have one value only
    return cox(sites, columns=some, time="T", event="E", penalty=penalty, least=1)


def within_sites(rows: pd.DataFrame, risk: Any) -> tuple[int, int, int]:
    pairs = np.zeros(3, int)
    for _, place in rows.reset_index(drop=True).groupby("region").groups.items():
        some = rows.iloc[place]
        pairs += concordance(some["T"].to_numpy(), some["E"].to_numpy() > 0, risk[place])
    return tuple(int(n) for n in pairs)  # type: ignore[return-value]


def cross_validated(rows: pd.DataFrame, features: list[str], penalty: float) -> float:
    pairs = np.zeros(3, int)
    for repeat in range(REPEATS):
        rng = np.random.default_rng(repeat)
        fold = np.zeros(len(rows), int)
        for _, place in rows.reset_index(drop=True).groupby(["region", "E"]).groups.items():
            fold[rng.permutation(place)] = (np.arange(len(place)) + rng.integers(FOLDS)) % FOLDS
        for k in range(FOLDS):
            held = rows[fold == k]
            pairs += within_sites(held, fit(rows[fold != k], features, penalty).risk(held))
    found = c_index([float(n) for n in pairs])
    assert found is not None
    return found


def scores(rows: pd.DataFrame, risk: Any) -> tuple[float, float, list[float]]:
    """FLamby's c-index: the mean over regions, over all rows together, and by region."""
    by = []
    for _, place in rows.reset_index(drop=True).groupby("region").groups.items():
        some = rows.iloc[place]
        if c_index(concordance(some["T"].to_numpy(), some["E"].to_numpy() > 0, risk[place])) is not None:
            by.append(float(concordance_index(some["T"], -risk[place], some["E"])))
    return float(np.mean(by)), float(concordance_index(rows["T"], -risk, rows["E"])), by


def interval(rows: pd.DataFrame, risk: Any) -> list[list[float]]:
    """95 % intervals of both scores: the bootstrap of rows within regions."""
    rng, drawn = np.random.default_rng(0), []
    groups = [np.asarray(p) for p in rows.reset_index(drop=True).groupby("region").groups.values()]
    for _ in range(DRAWS):
        place = np.concatenate([rng.choice(group, len(group)) for group in groups])
        drawn.append(scores(rows.iloc[place], risk[place])[:2])
    found: list[list[float]] = np.quantile(drawn, [0.025, 0.975], axis=0).T.round(3).tolist()
    return found


def main() -> None:
    rows, features = patients()
    train, test = rows[rows.fold == "train"], rows[rows.fold == "test"]
    tried = {}
    for penalty in PENALTIES:
        validated = cross_validated(train, features, penalty)
        mean, pooled, _ = scores(test, fit(train, features, penalty).risk(test))
        tried[penalty] = {"cross-validated": validated, "mean": mean, "pooled": pooled}
        print(penalty, tried[penalty], flush=True)
    chosen = max(PENALTIES, key=lambda p: tried[p]["cross-validated"])
    model = fit(train, features, chosen)
    mean, pooled, by = scores(test, model.risk(test))
    one = scores(test, fit(train, features, chosen, together=False).risk(test))
    found = {
        "patients": {"train": len(train), "test": len(test)},
        "events": {"train": int(train.E.sum()), "test": int(test.E.sum())},
        "penalty": chosen,
        "mean": mean,
        "pooled": pooled,
        "by region": by,
        "95 % intervals": dict(zip(("mean", "pooled"), interval(test, model.risk(test)), strict=True)),
        "one baseline for all (pooled rows)": {"mean": one[0], "pooled": one[1]},
        "penalties": {str(penalty): each for penalty, each in tried.items()},
    }
    Path(__file__).with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
