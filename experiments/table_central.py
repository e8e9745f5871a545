"""What others do with the same rows: central libraries, linear models, each site alone, trees bagged by site.

One rule for all central libraries.  *Defaults*: nothing is set but the seed, the number of threads, and that columns of
text are categories.  *Early stopping* (`-es`): up to 1,000 trees, stopped after 20 that do not lower the loss on a
tenth of the training rows.  The seed draws these rows, the same ones for all libraries.  Nothing else is set.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, Ridge, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from ffgb.core.seeds import stream
from ffgb.data.dataset import hold_out
from table_list import UnavailableError
from table_rows import Array, Rows

MOST, PATIENCE, ASIDE = 1000, 20, 0.1
THREADS = 1


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UnavailableError(f"the package {name} is not installed") from error


def _categories(x: pd.DataFrame) -> list[str]:
    return [name for name in x.columns if not pd.api.types.is_numeric_dtype(x[name].dtype)]


def _typed(rows: Rows) -> pd.DataFrame:
    """Columns of text as pandas' categories, the same ones for all rows."""
    return rows.x.assign(**{name: rows.x[name].astype("category") for name in _categories(rows.x)})


def _aside(rows: Rows) -> tuple[Array, Array]:
    """Training rows to learn from, and those that say when to stop."""
    train = np.flatnonzero(~rows.test)
    keep, stop = hold_out(rows.y[train], ASIDE, stream(rows.seed, "holdout", 2))
    return train[keep], train[stop]


def _answer(rows: Rows, model: Any, x: pd.DataFrame) -> Array:
    """Values, or a probability for each class of the table: a model may not have met them all."""
    if not rows.classes:
        return np.asarray(model.predict(x), np.float64).reshape(len(x))
    p = np.zeros((len(x), len(rows.classes)))
    p[:, np.asarray(model.classes_).astype(int)] = model.predict_proba(x)
    return p


def hist_gradient_boosting(rows: Rows, early: bool) -> Array:
    x, order = _typed(rows), rows.order()
    kind = HistGradientBoostingClassifier if rows.classes else HistGradientBoostingRegressor
    if not early:
        train = np.flatnonzero(~rows.test)
        model = kind(random_state=rows.seed, early_stopping=False)
        return _answer(rows, model.fit(x.iloc[train], rows.y[train]), x.iloc[order])
    train, stop = _aside(rows)
    model = kind(random_state=rows.seed, early_stopping=True, max_iter=MOST, n_iter_no_change=PATIENCE)
    model.fit(x.iloc[train], rows.y[train], X_val=x.iloc[stop], y_val=rows.y[stop])
    return _answer(rows, model, x.iloc[order])


def lightgbm(rows: Rows, early: bool) -> Array:
    library, x, order = _package("lightgbm"), _typed(rows), rows.order()
    kind = library.LGBMClassifier if rows.classes else library.LGBMRegressor
    x.columns = pd.Index([f"x{i}" for i in range(x.shape[1])])  # it refuses some characters in names
    settings = {"random_state": rows.seed, "n_jobs": THREADS, "verbose": -1}
    if not early:
        train = np.flatnonzero(~rows.test)
        return _answer(rows, kind(**settings).fit(x.iloc[train], rows.y[train]), x.iloc[order])
    train, stop = _aside(rows)
    model = kind(n_estimators=MOST, **settings)
    model.fit(
        x.iloc[train],
        rows.y[train],
        eval_set=[(x.iloc[stop], rows.y[stop])],
        callbacks=[library.early_stopping(PATIENCE, verbose=False)],
    )
    return _answer(rows, model, x.iloc[order])


def xgboost(rows: Rows, early: bool) -> Array:
    library, x, order = _package("xgboost"), _typed(rows), rows.order()
    kind = library.XGBClassifier if rows.classes else library.XGBRegressor
    x.columns = pd.Index([f"x{i}" for i in range(x.shape[1])])
    settings = {"random_state": rows.seed, "n_jobs": THREADS, "enable_categorical": True}
    if not early:
        train = np.flatnonzero(~rows.test)
        return _answer(rows, kind(**settings).fit(x.iloc[train], rows.y[train]), x.iloc[order])
    train, stop = _aside(rows)
    model = kind(n_estimators=MOST, early_stopping_rounds=PATIENCE, **settings)
    model.fit(x.iloc[train], rows.y[train], eval_set=[(x.iloc[stop], rows.y[stop])], verbose=False)
    return _answer(rows, model, x.iloc[order])


def catboost(rows: Rows, early: bool) -> Array:
    library, order = _package("catboost"), rows.order()
    text = _categories(rows.x)
    x = rows.x.assign(**{name: rows.x[name].astype("object").fillna("missing").astype(str) for name in text})
    kind = library.CatBoostClassifier if rows.classes else library.CatBoostRegressor
    settings = {
        "random_seed": rows.seed, "thread_count": THREADS, "verbose": False, "allow_writing_files": False,
        "cat_features": text,
    }  # fmt: skip
    if not early:
        train = np.flatnonzero(~rows.test)
        return _answer(rows, kind(**settings).fit(x.iloc[train], rows.y[train]), x.iloc[order])
    train, stop = _aside(rows)
    model = kind(iterations=MOST, early_stopping_rounds=PATIENCE, **settings)
    model.fit(x.iloc[train], rows.y[train], eval_set=(x.iloc[stop], rows.y[stop]))
    return _answer(rows, model, x.iloc[order])


def linear(rows: Rows, tuned: bool) -> Array:
    """Logistic or ridge regression: standardised numbers, one-hot categories; `tuned`: penalty by cross-validation."""
    text = _categories(rows.x)
    numbers = [name for name in rows.x.columns if name not in text]
    columns = make_column_transformer(
        (make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler()), numbers),
        (
            make_pipeline(
                SimpleImputer(strategy="constant", fill_value="missing"), OneHotEncoder(handle_unknown="ignore")
            ),
            text,
        ),
    )
    if rows.classes:
        model: Any = LogisticRegression(max_iter=2000)
        if tuned:
            model = LogisticRegressionCV(
                Cs=7, cv=5, scoring="neg_log_loss", max_iter=500, l1_ratios=(0,), use_legacy_attributes=False
            )
    else:
        model = RidgeCV(alphas=np.logspace(-3, 4, 15)) if tuned else Ridge()
    x, y = rows.train()
    x = x.assign(**{name: x[name].astype("object").where(x[name].notna(), np.nan) for name in text})
    fit = make_pipeline(columns, model).fit(x, y)
    other = rows.x.iloc[rows.order()]
    other = other.assign(**{name: other[name].astype("object").where(other[name].notna(), np.nan) for name in text})
    return _answer(rows, fit, other)


def alone(rows: Rows) -> list[tuple[int, Array]]:
    """What each site's own scikit-learn boosting says of all test rows, and how many rows it had."""
    x, order = _typed(rows), rows.order()
    kind = HistGradientBoostingClassifier if rows.classes else HistGradientBoostingRegressor
    found: list[tuple[int, Array]] = []
    for i in range(rows.sites):
        own = np.flatnonzero(~rows.test & (rows.site == i))
        labels = np.unique(rows.y[own])
        if rows.classes and len(labels) == 1:  # one class: a site can say nothing else
            p = np.zeros((len(order), len(rows.classes)))
            p[:, labels[0]] = 1
            found.append((len(own), p))
            continue
        model = kind(random_state=rows.seed, early_stopping=False).fit(x.iloc[own], rows.y[own])
        found.append((len(own), _answer(rows, model, x.iloc[order])))
    return found


def bagged(
    rows: Rows,
    rounds: int,
    rate: float,
    note: Callable[[Array, float, int], None] = lambda predicted, sent, done: None,
) -> tuple[Array, dict[str, float]]:
    """Flower's XGBoost example: in a round each site boosts one tree on its own rows from the common model, and the
    server adds all trees to that model.  Trees have depth 8, as there.

    A tree depends on the common model through its scores only, so a site starts from these.  The base score is 0.5 at
    all sites (a regression target is standardised): newer versions of XGBoost would let each site choose its own.
    `note` is told of the predictions, of the bytes that a site has sent and of the rounds so far.
    """
    library, x = _package("xgboost"), _typed(rows)
    x.columns = pd.Index([f"x{i}" for i in range(x.shape[1])])
    settings, outputs = _bagging(rows, rate)
    y, train, order = rows.y.astype(np.float64), ~rows.test, rows.order()
    centre, scale = (0.0, 1.0) if rows.classes else (float(y[train].mean()), float(y[train].std()))
    matrices = []
    for i in range(rows.sites):
        own = np.flatnonzero(train & (rows.site == i))
        target = (y[own] - centre) / scale
        matrices.append((own, library.DMatrix(x.iloc[own], target, enable_categorical=True)))
    everyone = library.DMatrix(x, base_margin=np.zeros(len(y) * outputs), enable_categorical=True)
    f = np.zeros((len(y), outputs))
    size = 0
    for done in range(1, rounds + 1):
        step = np.zeros_like(f)
        for own, data in matrices:
            data.set_base_margin(f[own].ravel())
            tree = library.train(settings, data, num_boost_round=1)
            size += len(tree.save_raw("json"))
            step += tree.predict(everyone, output_margin=True).reshape(f.shape)
        f += step
        note(_answered(rows, f[order], centre, scale), size / rows.sites, done)
    return _answered(rows, f[order], centre, scale), {"bytes_up": size / rows.sites, "exchanges": rounds}


def _bagging(rows: Rows, rate: float) -> tuple[dict[str, Any], int]:
    """XGBoost's settings in Flower's example, for this kind of target, and the number of scores a row."""
    settings: dict[str, Any] = {
        "eta": rate, "max_depth": 8, "tree_method": "hist", "subsample": 1, "num_parallel_tree": 1, "nthread": THREADS,
        "seed": rows.seed, "base_score": 0.5, "objective": "binary:logistic",
    }  # fmt: skip
    if not rows.classes:
        settings |= {"objective": "reg:squarederror", "base_score": 0.0}
    if len(rows.classes) > 2:
        settings |= {"objective": "multi:softprob", "num_class": len(rows.classes)}
    return settings, len(rows.classes) if len(rows.classes) > 2 else 1


def _answered(rows: Rows, f: Array, centre: float, scale: float) -> Array:
    """Predictions from scores."""
    if not rows.classes:
        return f[:, 0] * scale + centre
    if f.shape[1] == 1:
        p = 1 / (1 + np.exp(-f[:, 0]))
        return np.stack([1 - p, p], axis=1)
    e = np.exp(f - f.max(axis=1, keepdims=True))
    p = e / e.sum(axis=1, keepdims=True)
    return np.asarray(p)


CENTRAL: dict[str, Callable[[Rows], Array]] = {
    "linear": lambda rows: linear(rows, tuned=False),
    "linear-cv": lambda rows: linear(rows, tuned=True),
    "lightgbm": lambda rows: lightgbm(rows, early=False),
    "lightgbm-es": lambda rows: lightgbm(rows, early=True),
    "sklearn": lambda rows: hist_gradient_boosting(rows, early=False),
    "sklearn-es": lambda rows: hist_gradient_boosting(rows, early=True),
    "xgboost": lambda rows: xgboost(rows, early=False),
    "xgboost-es": lambda rows: xgboost(rows, early=True),
    "catboost": lambda rows: catboost(rows, early=False),
    "catboost-es": lambda rows: catboost(rows, early=True),
}  # fmt: skip
LIBRARIES = ("sklearn", "lightgbm", "xgboost", "catboost")
BAGGED: dict[str, tuple[int, bool]] = {"bagged": (3, False), "bagged-scaled": (100, True)}
"""By site: rounds, and whether the rate 0.1 is divided by the number of sites.  The first is as in the example."""
