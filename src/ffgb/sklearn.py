"""scikit-learn estimators: `fit(X, y, clients=…)` trains across clients that are named row by row.

>>> from sklearn.datasets import load_iris
>>> x, y = load_iris(return_X_y=True)
>>> classifier = FFGBClassifier(learner="linear", rounds=3).fit(x, y, clients=y)  # three clients with a class each
>>> bool(classifier.score(x, y) > 0.9), len(classifier.history_)
(True, 3)

They train as `ffgb train` does, and `model_` is the model that it would have written, to the bit.
`classifier.export("model.onnx")` writes it as a file that runs without ffgb (runs/onnx.py).  Arrays are numbers,
as scikit-learn checks them.  The columns of a data frame (pandas, polars, pyarrow, DuckDB and others that speak
Arrow) may be text and have missing values: each client says what sites say about their files, and all agree on what
becomes of each column (data/preprocess.py).
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import logging
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self, final

import numpy as np
import pandas as pd
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, is_classifier
from sklearn.utils import _safe_indexing, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from ffgb.algorithms.ffgb_shared import spent
from ffgb.core.conformal import Conformal
from ffgb.core.functions import OpenSum
from ffgb.core.losses import LOSSES
from ffgb.core.sparse_rows import SparseRows, as_rows, tensors_of
from ffgb.core.types import Array
from ffgb.data import Dataset
from ffgb.data.class_weights import weighted_by_class
from ffgb.data.dataset import CLASSIFICATION, REGRESSION
from ffgb.data.frames import as_frame, as_values
from ffgb.data.partition import natural
from ffgb.data.preprocess import NUMBER, TEXT, Table, agree, describe, raw
from ffgb.errors import FFGBError, as_parameter
from ffgb.features.basic import Flatten
from ffgb.federation.server import Learner
from ffgb.federation.state import State
from ffgb.hardware import available, cores, one_blas_thread
from ffgb.learners.adapter import INSTEAD, Adapter, Resident
from ffgb.learners.boosted_trees import BoostedTrees
from ffgb.protocol.codec import decode, encode
from ffgb.protocol.costs import Costs
from ffgb.protocol.job import Update
from ffgb.runs import onnx
from ffgb.runs.choose_learner import AUTO
from ffgb.runs.choose_ridge import choose
from ffgb.runs.config import SETTINGS, Config
from ffgb.runs.conformal import calibrated, intervals, sets
from ffgb.runs.held_out import HeldOut
from ffgb.runs.holdings import make_parts
from ffgb.runs.learners import make_learner
from ffgb.runs.model import Model
from ffgb.runs.private import is_private, private_table, schema_of
from ffgb.runs.resolve import make_loss
from ffgb.runs.training import SETTLED, boosted, model_of
from ffgb.settings import plain
from ffgb.user_code import define

log = logging.getLogger("ffgb")

LEAST = 2
"""Rows to learn from."""
ELSEWHERE = (
    *("data", "target", "task", "clients", "split", "similarity", "alpha", "labels", "by", "seed"),
    *("weights", "exposure", "group", "start", "distill_data"),
    *("sep", "decimal", "encoding", "sheet", "drop", "missing", "unit", "unit_rows"),
)
"""Settings of `ffgb train` that say where its rows are and who holds them."""
KEEP_SPARSE = (AUTO, "linear", BoostedTrees.name)
"""Learners that take sparse rows a few at a time, or make bins of them."""
FEW_CELLS = 2**24
"""Rows times columns that are kept in full, whoever needs them: 64 MB."""
BYTES_A_COLUMN = 2**14
"""What counts, and a sketch of a Gram, need for each column of sparse rows."""
OWN: Mapping[str, Any] = {"warm_start": False, "random_state": 0, "n_jobs": None, "options": None}
"""Parameters that are no settings of a run, and what they are by default."""


@final
class EstimatorError(FFGBError, ValueError):
    """An FFGBError as scikit-learn's users expect it: a ValueError, in terms of parameters rather than of flags."""


@contextmanager
def _as_value_error() -> Iterator[None]:
    try:
        yield
    except FFGBError as error:
        raise EstimatorError(error.worded(as_parameter)) from error


def _settings() -> dict[str, Any]:
    """The settings that an estimator has as parameters, and what they are by default."""
    return {name: setting.default for name, setting in SETTINGS.items() if name not in ELSEWHERE}


@final
@dataclass(frozen=True, eq=False)
class _Progress:
    """What a warm start goes on from."""

    config: Config
    rows: str
    """A fingerprint of the rows and of who holds them."""
    learner: str
    """What was given as the learner, in full."""
    state: State


class _Federated(BaseEstimator):  # type: ignore[misc]
    """What both estimators do: settings, rows and rounds."""

    _checks: ClassVar[Mapping[str, bool]]
    """How scikit-learn is to check targets."""

    config_: Config
    """The settings, with every choice made."""
    history_: list[dict[str, Any]]
    """The metrics of each round."""
    model_: Model
    """What `ffgb train` would have written: `to_bytes` is the content of a model.safetensors."""
    n_features_in_: int
    conformal_: Conformal
    """How far the model is off, after `calibrate`."""
    feature_names_in_: Array
    """Names of the columns of a DataFrame."""
    _stages: list[Update]
    """What each round made of f."""

    def __init__(self, **parameters: Any) -> None:
        for name, default in {**_settings(), **OWN}.items():
            setattr(self, name, parameters.pop(name, default))
        if parameters:
            raise TypeError(f"{type(self).__name__} has no parameter {next(iter(parameters))!r}")

    # what scikit-learn reads the parameters from
    __init__.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD),
            *(
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
                for name, default in {**_settings(), **OWN}.items()
            ),
        ]
    )

    def fit(self, X: Any, y: Any, clients: Any = None, sample_weight: Any = None) -> Self:
        """Train.

        Parameters
        ----------
        X : array, sparse matrix or data frame
            A row a point.  A sparse matrix stays sparse for the learners "auto", "linear" and "trees" if it has more
            than 16,777,216 cells; for others it becomes a full one in float32.
        y : array
            Targets.
        clients : array, optional
            Who holds which row, by a name or number a row.  Without it one client holds all.
        sample_weight : array, optional
            What each row weighs.  Without it all weigh the same.
        """
        workers, adapted = _workers(self.n_jobs), not isinstance(self.learner, str)
        progress = getattr(self, "_progress", None) if self.warm_start else None
        # One job is one thread: where cores are busy, more of them wait for each other for seconds in a small fit.
        with _as_value_error(), nullcontext() if workers else one_blas_thread():
            config = self._config(progress)
            if adapted:
                _check_adapted(config, workers)
            dataset, classes = self._dataset(config, X, y, clients, sample_weight)
            config = config.resolved(dataset)
            if adapted:
                config = replace(config, learner=type(self.learner).__name__)
            # a hash of all rows would tell whoever knows all but one what that one is
            rows = "" if is_private(config) else _fingerprint(dataset)
            learner = _in_full(self.learner)
            state, history, stages = None, list[dict[str, Any]](), list[Update]()
            if progress is not None:
                _check_same(progress, _Progress(config, rows, learner, progress.state), self.history_)
                state, history, stages = progress.state, list(self.history_), list(self._stages)
            parts, costs = make_parts(config, dataset), Costs()
            if config.validation:
                config, costs, _ = choose(config, dataset, parts, workers)
            make = partial(_adapted, self.learner) if adapted else make_learner
            if not (history and (SETTLED in history[-1] or (config.stop and spent(history[-1])))):  # else it had ended
                for after, line in boosted(config, dataset, parts, make, workers, state, costs):
                    state = after
                    history.append(line)
                    stages.append(_stage(state))
                if SETTLED in history[-1]:
                    del stages[:-1]  # of several versions of f, which only the last exchange has made one
        assert state is not None
        if classes is not None:
            self.classes_ = classes
        self.config_, self.history_, self.model_ = config, history, _model(state, dataset, adapted=adapted)
        self._stages = stages
        # Geometries are large.  A fit from the start comes to the same bits, so that nothing but time is lost.
        self._progress = _Progress(config, rows, learner, state) if self.warm_start else None
        return self

    def export(self, path: str | Path) -> float:
        """Write the fitted model as an ONNX file, once that says what the model says; the largest difference.

        The file takes what `fit` took: an array as the float32 input x, (n, columns); of a DataFrame each column as an
        input of its name, (n, 1), float32 with NaN or text with "" where a value is missing.  It gives label, the class
        as text, and probabilities in the order of `classes_`; or prediction.  See runs/onnx.py; it needs ffgb[onnx].
        """
        check_is_fitted(self)
        with _as_value_error():
            return onnx.export(self.model_, Path(path))

    def calibrate(self, X: Any, y: Any, clients: Any = None) -> Self:
        """Find out, on rows that `fit` has not seen, how far the model is off: sets and intervals come from that.

        Parameters
        ----------
        X, y, clients : as in `fit`
        """
        x = self._points(X)
        targets, site = self._known(column_or_1d(y)), _sites(clients, len(x))
        with _as_value_error():
            found = calibrated(self.model_, HeldOut(x, targets, *site))
            if found is None:
                raise FFGBError("several targets have no intervals; fit one estimator for each")
        self.conformal_ = found
        return self

    def _threshold(self, coverage: float, client: Any) -> float:
        check_is_fitted(self, "conformal_", msg="call calibrate(X, y) first, with rows that fit has not seen")
        with _as_value_error():
            return self.conformal_.threshold(coverage, None if client is None else str(client))

    @abstractmethod
    def _known(self, y: Array) -> Array:
        """Targets of rows to calibrate by, as the model has them."""

    @abstractmethod
    def _targets(self, y: Array) -> tuple[Array, Array | None]:
        """Checked targets as a data set has them, and their classes."""

    @abstractmethod
    def _values(self, f: Array) -> Array:
        """What f is called: probabilities of classes, or values in the target's units."""

    def _config(self, progress: _Progress | None) -> Config:
        """The settings as given; a seed that is drawn stays the same for a warm start."""
        if not isinstance(self.options, Mapping | None):
            raise EstimatorError(f"options is a dictionary such as {{'momentum': 0.9}}, not {plain(self.options)!r}")
        more = dict(self.options or {})
        own = {name: value for name, value in self.get_params(deep=False).items() if name not in OWN}
        for name in more.keys() - own.keys():
            raise EstimatorError(f"options takes no {plain(name)!r}; it takes {', '.join(sorted(own))}")
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            drawn = check_random_state(seed).randint(2**31 - 1) if progress is None else progress.config.seed
            seed = int(drawn)
        if seed < 0:
            raise EstimatorError(f"random_state is {seed}; give a whole number from 0 on")
        given = {name: plain(value) for name, value in (own | more | {"seed": seed}).items()}
        if isinstance(given["loss"], type):
            given["loss"] = define(given["loss"])
        if isinstance(given["class_weight"], Mapping):
            given["class_weight"] = _class_weights(given["class_weight"])
        if not isinstance(self.learner, str):
            given["learner"] = "tree"  # what suits trees suits most learners that are no nets: steps that are shrunk
        classes = is_classifier(self)
        kind = LOSSES.get(given["loss"])
        if kind is not None and kind.classification != classes:
            fitting = ("auto", *(name for name, loss in LOSSES.items() if loss.classification == classes))
            raise EstimatorError(
                f"the loss {given['loss']!r} is none for {type(self).__name__}; choose {', '.join(fitting)}"
            )
        if given.get("schema") is not None and given.get("epsilon") is None:
            raise EstimatorError("schema is for private trainings; add epsilon, or leave it out")
        return Config(**given, data=("memory",), split="natural")

    def _dataset(
        self, config: Config, X: Any, y: Any, clients: Any, sample_weight: Any
    ) -> tuple[Dataset, Array | None]:
        """The rows, with who holds them; and the classes."""
        X, y, clients, sample_weight = as_frame(X), as_values(y), as_values(clients), as_values(sample_weight)
        table, weights = None, None
        if sample_weight is not None:
            X, y, clients, weights = _weighed(X, y, clients, sample_weight)
        if isinstance(X, pd.DataFrame):
            y = validate_data(self, X="no_validation", y=y, **self._checks)
            validate_data(self, X, y, skip_check_array=True)  # after y, which would make it forget the names
            check_consistent_length(X, y)
            _check_rows(len(X), LEAST)
            sites, site = _sites(clients, len(X))
            if is_private(config):
                table, x = _by_schema(self._frame(X), config)
            else:
                table, x = _agreed(self._frame(X), sites, natural(site), config)
        else:
            if config.categories:
                raise EstimatorError("categories names columns of a DataFrame, and X is an array; leave it out")
            x, y = validate_data(
                self, X, y, dtype=np.float32, accept_sparse="csr", ensure_min_samples=LEAST, **self._checks
            )
            x = _kept_rows(x, config)
            sites, site = _sites(clients, len(x))
        y, classes = self._targets(y)
        names = () if classes is None else _class_names(classes)
        columns = self._names if table is None else table.names
        dataset = Dataset(
            "X",
            CLASSIFICATION if names else REGRESSION,
            *(x, y, x[:0], y[:0], names, columns),  # no rows are held out
            sites=sites,
            site=site,
            site_test=site[:0],
            table=table,
            weights=weights,
        )
        return weighted_by_class(dataset, config.class_weight), classes

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    @property
    def _names(self) -> tuple[str, ...]:
        """Of the columns that X has; numbered if they have none."""
        given = getattr(self, "feature_names_in_", None)
        return tuple(f"x{j}" for j in range(self.n_features_in_)) if given is None else tuple(map(str, given))

    def _frame(self, X: Any) -> pd.DataFrame:
        """X with columns that are called by name."""
        frame = X if isinstance(X, pd.DataFrame) else pd.DataFrame(np.asarray(X))
        return frame.set_axis(list(self._names), axis=1)

    def _points(self, X: Any) -> Array:
        """Rows to predict at."""
        check_is_fitted(self)
        X, table = as_frame(X), self.model_.table
        if table is None:
            return _kept_rows(validate_data(self, X, dtype=np.float32, accept_sparse="csr", reset=False), self.config_)
        validate_data(self, X, reset=False, skip_check_array=True)
        frame = self._frame(X)
        _check_rows(len(frame), 1)
        with _as_value_error():
            return table(
                {c.name: raw(frame, c.name, "X", NUMBER if c.categories is None else TEXT) for c in table.columns}
            )

    def _staged(self, X: Any) -> Iterator[Array]:
        """What is said after each round; an ensemble's older learners are not evaluated again, as at clients."""
        x, model = self._points(X), self.model_
        f = np.zeros((len(x), model.job.loss.outputs))
        for t, stage in enumerate(self._stages, 1):
            if t < len(self._stages):
                f = stage.decay * f + stage.step * replace(model, f=stage.increment).decision(x)
            else:
                f = model.decision(x)  # the same sum, in an order that may matter in the last bit
            yield self._values(model.job.algorithm.seen(f))

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if "model_" in state and not isinstance(self.model_.f, Resident):
            # as ffgb writes them: checked when they are read, and not bound to how its classes are made today
            state["model_"] = self.model_.to_bytes()
            state["_stages"] = [encode(stage.message()) for stage in self._stages]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if isinstance(state.get("model_"), bytes):
            model = Model.from_bytes(state["model_"])
            stages = [Update.read(decode(data), model.job) for data in state["_stages"]]
            state = {**state, "model_": model, "_stages": stages}
        super().__setstate__(state)


@final
class FFGBClassifier(ClassifierMixin, _Federated):  # type: ignore[misc]
    """A classifier that clients train together.

    Parameters are the settings of `ffgb train`, with its defaults.  None is what suits the data and the learner, and
    `config_` says what that was.

    - algorithm: "ffgb"; "ffgb-c", clipped, for clients that differ; "ffgb-l", Lipschitz, for regression; "fedavg",
      "fedprox", "scaffold", "mime".
    - learner: "auto": a blend for tables; "blend", "trees" (boosted) and "additive", from totals; "features",
      "linear", "mlp", "tree", or a scikit-learn regressor, whose fitted copies stay in this process: then the model
      cannot be saved.
    - rounds, local_steps: T and K.
    - schedule, step_size: "search", "constant", "power", "theorem1" or "theorem2", and its η₀.
    - mu: Tikhonov regularisation.
    - geometry: "shared", to fit in L² of all clients' points, or "local", of each client's own.
    - loss: "auto", "cross-entropy", "logistic", "square" or "huber"; or your own: its class (with n_jobs=None), or
      "package.module:Name".
    - map, features, ridge: the feature map, how many features it has, and the oracle's ridge (features, linear).
    - hidden, oracle_steps, learning_rate, batch: the net and how it is fitted (mlp, cnn).
    - depth: of trees (tree).
    - participation: clients that are sampled a round, a number such as 5 or a share such as 0.5.
    - client_weights: "uniform" or "size".
    - class_weight: "balanced", or a dictionary such as {"sick": 3.0}: what rows of each class weigh.
    - validation: the share of its rows that each client sets aside to choose the ridge and the rounds by.
    - warm_start: go on where the last fit ended, with more rounds on the same rows, to the same bits as all of them at
      once.
    - epsilon, delta, schema: differential privacy with this budget; the schema file has public bounds and categories.
    - random_state: the seed; None draws one.
    - n_jobs: worker processes that clients are spread over, to the same bits; None or 1 is this process alone.
    - options: settings that are not named here, such as {"momentum": 0.9}, or, for DataFrames, {"categories": ["code"],
      "rare": 5}: columns that are text whatever they look like, and the rows that all together must have of a category.
    """

    _checks: ClassVar[Mapping[str, bool]] = {}

    classes_: Array
    """The classes, sorted."""

    def predict_proba(self, X: Any) -> Array:
        """Probabilities (n, classes), in the order of `classes_`."""
        x = self._points(X)
        return self._values(self.model_.decision(x))

    def predict(self, X: Any) -> Array:
        """The class of each row."""
        return self._named(self.predict_proba(X))

    def decision_function(self, X: Any) -> Array:
        """f: a score a class, (n, classes); with two classes the log odds of the second, (n,)."""
        x = self._points(X)
        f = self.model_.decision(x)
        return f if len(self.classes_) > 2 else f[:, -1] - (f[:, 0] if f.shape[1] == 2 else 0.0)

    def staged_predict_proba(self, X: Any) -> Iterator[Array]:
        """`predict_proba` after each round."""
        return self._staged(X)

    def staged_predict(self, X: Any) -> Iterator[Array]:
        """`predict` after each round."""
        return map(self._named, self._staged(X))

    def predict_set(self, X: Any, coverage: float = 0.9, client: Any = None) -> Array:
        """Which classes are in the set of each row, (n, classes), bool: with the chance `coverage`, the right one is.

        Call `calibrate` first.  The chance holds at the client, or, without one, at each of them.
        """
        threshold = self._threshold(coverage, client)
        return sets(self.model_, self._points(X), threshold)

    def _known(self, y: Array) -> Array:
        found = np.searchsorted(self.classes_, y)
        unknown = (found >= len(self.classes_)) | (self.classes_[np.minimum(found, len(self.classes_) - 1)] != y)
        if unknown.any():
            raise EstimatorError(
                f"y has the class {plain(y[unknown][0])!r}, which fit has not seen; leave those rows out"
            )
        return found

    def _named(self, p: Array) -> Array:
        names: Array = self.classes_[p.argmax(axis=1)]
        return names

    def _values(self, f: Array) -> Array:
        return self.model_.job.loss.probability(f)

    def _targets(self, y: Array) -> tuple[Array, Array | None]:
        check_classification_targets(y)
        classes, indices = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise EstimatorError(f"y has one class, {plain(classes[0])!r}; a classifier needs rows of two at least")
        return indices.astype(np.int64), classes


@final
class FFGBRegressor(RegressorMixin, _Federated):  # type: ignore[misc]
    """A regressor that clients train together, of one target or of several.

    Its parameters are those of `FFGBClassifier`.  With `loss="cox"` a target is a time until an event, negative where
    observation ended without one; predictions are log hazard ratios, and `score` is the c-index.
    """

    _checks: ClassVar[Mapping[str, bool]] = {"multi_output": True, "y_numeric": True}

    def predict(self, X: Any) -> Array:
        """Values (n,), or (n, targets), in the target's units."""
        x = self._points(X)
        return self._values(self.model_.decision(x))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of the variance that is explained (R²); of times, the share of pairs in the right order."""
        if self.model_.job.loss.alone:
            return float(super().score(X, y, sample_weight))
        return self.model_.score(self._points(X), np.asarray(y, np.float64))["concordance"]

    def predict_interval(self, X: Any, coverage: float = 0.9, client: Any = None) -> Array:
        """The ends of each row's interval, (n, 2): with the chance `coverage`, the target lies between them.

        Call `calibrate` first.  The chance holds at the client, or, without one, at each of them.
        """
        threshold = self._threshold(coverage, client)
        return np.stack(intervals(self.model_, self._points(X), threshold), axis=1)

    def _known(self, y: Array) -> Array:
        return np.asarray(y, np.float64)

    def staged_predict(self, X: Any) -> Iterator[Array]:
        """`predict` after each round."""
        return self._staged(X)

    def _values(self, f: Array) -> Array:
        values = self.model_.job.predicted(f)
        return values[:, 0] if values.shape[1] == 1 else values

    def _targets(self, y: Array) -> tuple[Array, Array | None]:
        y = np.asarray(y, np.float64)
        return column_or_1d(y, warn=True) if y.ndim == 2 and y.shape[1] == 1 else y, None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


# Settings


def _workers(n_jobs: int | None) -> int:
    """Worker processes, by scikit-learn's rule: −1 is all cores, −2 all but one.  One job needs no process."""
    if not isinstance(n_jobs, int | np.integer | None) or isinstance(n_jobs, bool):
        raise EstimatorError(f"n_jobs is a whole number or None, not {plain(n_jobs)!r}")
    count = n_jobs or 1
    count = count if count > 0 else max(1, cores() + 1 + count)
    return 0 if count == 1 else count


def _check_adapted(config: Config, workers: int) -> None:
    """Refuse what does not go with an estimator as the learner."""
    if workers:
        raise FFGBError(
            "learners that are scikit-learn estimators live in this process and cannot go to others; use n_jobs=None, "
            f"or {INSTEAD}"
        )
    if config.algorithm != "ffgb" or config.geometry == "shared" or config.validation or config.distill == "rounds":
        raise FFGBError(
            "with a scikit-learn estimator as the learner the algorithm is 'ffgb', the geometry is 'local', and there "
            f"is neither validation nor distillation after rounds; or {INSTEAD}"
        )


def _adapted(estimator: Any, config: Config, dataset: Dataset) -> Learner:
    outputs = make_loss(config, dataset).outputs
    family = Adapter.of(estimator, Flatten(dataset.x.shape[1]), outputs)
    return lambda ask: (family, None)


def _in_full(learner: Any) -> str:
    """A learner with all its parameters: two that are the same read the same."""
    if not hasattr(learner, "get_params") or isinstance(learner, type):
        return repr(plain(learner))
    return f"{type(learner).__name__} {sorted(learner.get_params().items(), key=lambda item: item[0])}"


# Rows


def _check_rows(n: int, least: int) -> None:
    if n < least:
        raise ValueError(f"Found array with {n} sample(s) while a minimum of {least} is required.")


def _weighed(X: Any, y: Any, clients: Any, sample_weight: Any) -> tuple[Any, Any, Any, Array]:
    """Rows with their weights; those that weigh nothing are left out."""
    weights: Array = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    check_consistent_length(X, y, weights)
    heavy = weights > 0
    if heavy.all():
        return X, y, clients, weights
    rows = np.flatnonzero(heavy)
    some = None if clients is None else _safe_indexing(clients, rows)
    return _safe_indexing(X, rows), _safe_indexing(y, rows), some, weights[rows]


def _kept_rows(x: Any, config: Config) -> Array:
    """Rows as they are, in full if X is a sparse matrix of few cells, or if the learner needs them so."""
    rows, columns = x.shape
    if not issparse(x):
        return np.asarray(x)
    keeps = config.learner in KEEP_SPARSE and config.algorithm == "ffgb" and config.geometry != "local"
    if keeps and rows * columns > FEW_CELLS and BYTES_A_COLUMN * columns <= available() / 2:
        return as_rows(SparseRows(x))
    return _in_full_rows(x)


def _in_full_rows(x: Any) -> Array:
    """Sparse rows in full: in float32, if they fit."""
    rows, columns = x.shape
    if (need := 4 * rows * columns) > (have := available()) / 2:
        raise EstimatorError(
            f"X is sparse, and its {rows:,} rows of {columns:,} columns in full need {need / 1e9:,.1f} GB of the "
            f"{have / 1e9:,.1f} GB that are free; choose learner='linear' or 'trees', which keep them sparse, choose "
            "columns (sklearn.feature_selection), or project them (sklearn.decomposition.TruncatedSVD)"
        )
    whole: Any = x
    found: Array = whole.toarray()
    return found


def _class_weights(given: Mapping[Any, Any]) -> str:
    """Weights of classes as the setting has them."""
    names = _class_names(np.array(list(given)))
    if strange := [name for name in names if "," in name or "=" in name]:
        raise EstimatorError(
            f"class_weight cannot name the class {strange[0]!r}, which has a , or =; use sample_weight"
        )
    return ",".join(f"{name}={plain(weight)!r}" for name, weight in zip(names, given.values(), strict=True))


def _class_names(classes: Array) -> tuple[str, ...]:
    return tuple(f"{c:.15g}" if isinstance(c, float) else str(c) for c in classes.tolist())


def _sites(clients: Any, n: int) -> tuple[tuple[str, ...], Array]:
    """Names of the clients, in order, and which of them holds each row."""
    if clients is None:
        return ("all",), np.zeros(n, np.int64)
    ids = _client_of_each(clients, n)
    distinct = dict.fromkeys(ids)
    try:
        order = sorted(distinct)
    except TypeError:  # names and numbers: as they come
        order = list(distinct)
    index = {name: i for i, name in enumerate(order)}
    names = [str(name) for name in order]
    unique = len(set(names)) == len(names)
    return tuple(names if unique else map(repr, order)), np.array([index[name] for name in ids], np.int64)


def _client_of_each(clients: Any, n: int) -> list[Any]:
    """The client of each of n rows, a name or a number."""
    each = f"give a name or number for each of the {n} rows of X"
    ids = clients.tolist() if hasattr(clients, "tolist") else clients
    if isinstance(ids, str | bytes) or not hasattr(ids, "__iter__"):
        raise EstimatorError(f"clients is {ids!r}; {each}")
    ids = [name.item() if isinstance(name, np.generic) else name for name in ids]
    if len(ids) != n:
        raise EstimatorError(f"clients has {len(ids)} entries, which is inconsistent with X; {each}")
    try:
        distinct = dict.fromkeys(ids)
    except TypeError as error:
        raise EstimatorError("clients has entries that are no names; give one name or number a row") from error
    if any(name is None or name is pd.NA or name != name for name in distinct):  # NaN is not what it is
        raise EstimatorError("clients has missing entries; say of every row who holds it")
    return ids


def _by_schema(frame: pd.DataFrame, config: Config) -> tuple[Table, Array]:
    """The table of a private training, which follows from the schema alone; and all rows as numbers."""
    if config.schema is None:
        raise EstimatorError("with epsilon give schema, a file with public bounds and categories of the columns")
    schema = schema_of(config)
    table = private_table(schema, None)
    if lacking := [c.name for c in table.columns if c.name not in frame]:
        raise EstimatorError(f"X has no column {lacking[0]!r}, which the schema has")
    values = {c.name: raw(frame, c.name, "X", schema.kinds[c.name]) for c in table.columns}
    if wrong := schema.violations(values):
        raise EstimatorError(f"X: {wrong[0]}")
    return table, table(values)


def _agreed(frame: pd.DataFrame, sites: Sequence[str], parts: Sequence[Array], config: Config) -> tuple[Table, Array]:
    """The table that clients agree on, each having said what it says about its own rows; and all rows as numbers."""
    columns = [str(name) for name in frame]
    kinds = {name: TEXT for name in columns if isinstance(frame[name].dtype, pd.CategoricalDtype)}
    kinds |= dict.fromkeys(config.categories, TEXT)
    if strange := [name for name in config.categories if name not in frame]:
        raise EstimatorError(f"X has no column {strange[0]!r}, which categories names")
    held = {
        site: {name: raw(part, name, f"client {site}" if len(sites) > 1 else "X", kinds.get(name)) for name in columns}
        for site, part in zip(sites, (frame.iloc[rows] for rows in parts), strict=True)
    }
    described = {site: describe(values) for site, values in held.items()}
    table, told = agree(described, config.rare, config.least)
    for line in told:
        log.warning("%s", line)
    x = np.empty((len(frame), len(table.names)), np.float32)
    for rows, values in zip(parts, held.values(), strict=True):
        x[rows] = table(values)
    return table, x


def _fingerprint(dataset: Dataset) -> str:
    names = (dataset.classes, dataset.columns, dataset.sites, dataset.table)
    rest = dataset.y, dataset.site, dataset.weights
    arrays = [*tensors_of(dataset.x).values(), *(a for a in rest if a is not None)]
    parts = [repr(names).encode(), *(np.ascontiguousarray(a).tobytes() for a in arrays)]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


# Rounds


def _check_same(before: _Progress, now: _Progress, history: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a warm start that would not come to what all rounds at once come to."""
    anew = "set warm_start=False to start anew, or fit a clone of the estimator"
    if now.config.validation:
        raise EstimatorError(f"validation chooses the number of rounds, so that there is none to go on with; {anew}")
    if now.config.closing:
        raise EstimatorError(f"the learner {now.config.learner} chooses the number of rounds when a fit ends; {anew}")
    if before.rows != now.rows:
        raise EstimatorError(f"a warm start needs the same rows, targets and clients, and they have changed; {anew}")
    if before.learner != now.learner:
        raise EstimatorError(f"a warm start keeps the learner {before.learner}, and it is {now.learner} now; {anew}")
    for field in dataclasses.fields(Config):
        was, asked = getattr(before.config, field.name), getattr(now.config, field.name)
        if field.name not in ("rounds", "stop", "asked", "because") and was != asked:
            raise EstimatorError(f"a warm start keeps {field.name} at {was!r}, and it is {asked!r} now; {anew}")
    if (before.config.one_round and before.config.rounds != now.config.rounds) or now.config.exchanges < before.state.t:
        raise EstimatorError(f"the last fit had {before.config.rounds} rounds, not {now.config.rounds}; {anew}")
    ends = [t for t, line in enumerate(history, 1) if spent(line)]
    if ends and before.config.stop != now.config.stop:
        raise EstimatorError(
            f"after round {ends[0]} there was nothing left to learn but noise, which ends a fit if rounds is None; "
            f"keep that as it was, or {anew}"
        )


def _stage(state: State) -> Update:
    """What the last round made of f: an ensemble's new learners, or all of f where that is one array."""
    if state.updates and state.updates[-1].version == state.t:
        return state.updates[-1]
    return Update(state.t, 0.0, state.result)


def _model(state: State, dataset: Dataset, *, adapted: bool) -> Model:
    """The model as it is after it was written and read; if it cannot be, its function says so when it is asked."""
    if not adapted:
        return model_of(state, dataset)
    f = state.result
    job = replace(state.job, family=f.family)
    said: Any = (dataset.x.shape[1:], dataset.classes, dataset.columns, dataset.table)
    return Model(job, Resident(f.merged() if isinstance(f, OpenSum) else f), *said)
