"""Fed-TCGA-BRCA of FLamby by its own split: our default for times until an event, Cox's model, and what others reach.

    python experiments/tcga_brca.py

Six regions are the sites.  Scores are FLamby's metric (lifelines' c-index) on its test rows: the mean over regions, and
over all test rows together.  "default" is our default, an additive model with the Cox loss, whose
scales the evidence sets, by totals of the training rows.  Beside it: other learners, each region alone, one site with
all rows, FedAvg of a line; and Cox's model with a penalty that cross-validation within the training rows chose (by the
c-index within sites).  Intervals (95 %) and differences are of a bootstrap of test rows within regions.
$FFGB_DATA/tcga_brca has the files.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ffgb import FFGBRegressor
from ffgb.core.concordance import c_index, concordance
from ffgb.core.types import Array
from ffgb.errors import FFGBError
from ffgb.runs.cox import CoxResult, cox

PENALTIES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
FOLDS, REPEATS, DRAWS = 5, 4, 500


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
    """FLamby's c-index (that of lifelines, as a test has it): the mean over regions, over all rows, and by region."""
    time, event = rows["T"].to_numpy(), rows["E"].to_numpy() > 0
    found = [c_index(concordance(time[p], event[p], risk[p])) for p in places(rows)]
    by, pooled = [value for value in found if value is not None], c_index(concordance(time, event, risk))
    assert pooled is not None
    return float(np.mean(by)), pooled, by


def places(rows: pd.DataFrame) -> list[Array]:
    return [np.asarray(p) for p in rows.reset_index(drop=True).groupby("region").groups.values()]


def drawn(rows: pd.DataFrame, risks: dict[str, Array]) -> dict[str, Array]:
    """Both scores of each model at the same bootstrap samples of rows within regions, (draws, 2)."""
    rng, found = np.random.default_rng(0), {name: list[tuple[float, float]]() for name in risks}
    for _ in range(DRAWS):
        place = np.concatenate([rng.choice(group, len(group)) for group in places(rows)])
        some = rows.iloc[place]
        for name, risk in risks.items():
            found[name].append(scores(some, risk[place])[:2])
    return {name: np.array(values) for name, values in found.items()}


def boosted(train: pd.DataFrame, test: pd.DataFrame, features: list[str], **settings: Any) -> Array:
    """The log hazard ratios of test rows by a model that was boosted with the Cox loss."""
    y = np.where(train["E"] > 0, train["T"], -train["T"]).astype(float)
    clients = pd.factorize(train["region"], sort=True)[0]
    found: Array = (
        FFGBRegressor(loss="cox", **settings).fit(train[features], y, clients=clients).predict(test[features])
    )
    return found


def alone(train: pd.DataFrame, test: pd.DataFrame, features: list[str]) -> Array:
    """Each region's own model at its own test rows; 0 where it has too few events for one."""
    found = np.zeros(len(test))
    for region in sorted(train["region"].unique()):
        here = (test["region"] == region).to_numpy()
        try:
            found[here] = boosted(train[train["region"] == region], test[here], features)
        except FFGBError as error:
            print(region, error)
    return found


METHODS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"learner": "linear"},
    "trees": {"learner": "trees"},
    "features": {"learner": "features"},
    "fedavg of a line": {"algorithm": "fedavg", "learner": "linear"},
}


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
    risks = {name: boosted(train, test, features, **settings) for name, settings in METHODS.items()}
    risks["one site with all rows"] = boosted(train.assign(region="all"), test, features)
    risks["each region alone"] = alone(train, test, features)
    risks["Cox's model"] = fit(train, features, chosen).risk(test)
    risks["Cox's model, one baseline for all"] = fit(train, features, chosen, together=False).risk(test)
    samples, models = drawn(test, risks), {}
    for name, risk in risks.items():
        mean, pooled, by = scores(test, risk)
        low, high = np.quantile(samples[name], [0.025, 0.975], axis=0)
        apart = np.quantile(samples["default"] - samples[name], [0.025, 0.975], axis=0)
        models[name] = {
            score: {
                "value": round(value, 4),
                "interval": [round(float(low[k]), 3), round(float(high[k]), 3)],
                "interval of default less this": [round(float(end[k]), 3) for end in apart],
            }
            for k, (score, value) in enumerate((("mean", mean), ("pooled", pooled)))
        } | {"by region": [round(value, 3) for value in by]}
    found = {
        "patients": {"train": len(train), "test": len(test)},
        "events": {"train": int(train.E.sum()), "test": int(test.E.sum())},
        "models": models,
        "penalty of Cox's model": chosen,
        "penalties": {str(penalty): each for penalty, each in tried.items()},
    }
    Path(__file__).with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(models, indent=1))


if __name__ == "__main__":
    main()
