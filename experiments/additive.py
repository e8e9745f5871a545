"""Additive models beside logistic and ridge regression on small tables: five-fold cross-validation, twice.

All rows are in one place, which changes nothing for the additive model.  The penalties of scikit-learn's models are
chosen by cross-validation on the training rows; the additive model has its defaults.

    python experiments/additive.py        # writes experiments/additive.json
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegressionCV, RidgeCV
from sklearn.metrics import log_loss, mean_squared_error, roc_auc_score
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ffgb import Config
from ffgb.algorithms.additive_shared import AdditiveShared
from ffgb.core.losses import CrossEntropy, Logistic, Loss, Square
from ffgb.core.types import Array
from ffgb.features.bins import bins_of
from ffgb.learners.additive import CELLS_A_ROW, Additive
from ffgb.learners.boosted_trees import BoostedTrees
from ffgb.runs.config import load_data
from ffgb.runs.training import federate

BINS, ROWS = Additive.defaults["bins"], 20


def additive(x: Array, y: Array, loss: Loss, names: tuple[str, ...]) -> Any:
    rounds = Additive.defaults["rounds" if loss.classification else "regression_rounds"]
    state, _ = federate(
        [(x, y)],
        lambda ask: (BoostedTrees(bins_of(ask, names, x.shape[1], BINS, ROWS, CELLS_A_ROW), loss.outputs), None),
        loss,
        AdditiveShared(),
        rounds,
        by_size=True,
    )
    return state.f


def regression(x: Array, y: Array, new: Array, truth: Array, names: tuple[str, ...]) -> dict[str, list[float]]:
    mean, scale = y.mean(), y.std()
    ours = additive(x, (y - mean) / scale, Square(1), names)(new)[:, 0] * scale + mean
    theirs = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-2, 4, 25))).fit(x, y).predict(new)
    return {"rmse": [float(mean_squared_error(truth, p) ** 0.5) for p in (ours, theirs)]}


def classification(x: Array, y: Array, new: Array, truth: Array, names: tuple[str, ...]) -> dict[str, list[float]]:
    classes = int(y.max()) + 1
    loss = Logistic() if classes == 2 else CrossEntropy(classes)
    ours = loss.probability(additive(x, y, loss, names)(new))
    model = LogisticRegressionCV(Cs=10, scoring="neg_log_loss", max_iter=1000)
    theirs = make_pipeline(StandardScaler(), model).fit(x, y).predict_proba(new)
    found: dict[str, list[float]] = {"auc": [], "log_loss": [], "accuracy": []}
    for p in (ours, theirs):
        found["auc"].append(float(roc_auc_score(truth, p[:, 1] if classes == 2 else p, multi_class="ovr")))
        found["log_loss"].append(float(log_loss(truth, p)))
        found["accuracy"].append(float((p.argmax(axis=1) == truth).mean()))
    return found


def measured(name: str) -> dict[str, list[float]]:
    data = load_data(Config(data=(name,)))
    x, y = np.concatenate([data.x, data.x_test]), np.concatenate([data.y, data.y_test]).reshape(-1)
    found: dict[str, list[list[float]]] = {}
    for seed in (0, 1):
        folds = (StratifiedKFold if data.classes else KFold)(5, shuffle=True, random_state=seed)
        for some, rest in folds.split(x, y):
            fit = classification if data.classes else regression
            for score, pair in fit(x[some], y[some], x[rest], y[rest], data.columns).items():
                found.setdefault(score, []).append(pair)
    return {score: np.mean(pairs, axis=0).round(4).tolist() for score, pairs in found.items()}


def main() -> None:
    warnings.filterwarnings("ignore")
    found = {}
    for name in ("heart", "breast_cancer", "wine", "diabetes"):
        found[name] = measured(name)
        print(name, found[name], flush=True)
    scores = {"columns": ["additive", "logistic or ridge regression"], **found}
    Path(__file__).with_suffix(".json").write_text(json.dumps(scores, indent=1) + "\n")


if __name__ == "__main__":
    main()
