"""The estimators: scikit-learn's own checks, the same bits as `ffgb train`, and estimators as weak learners."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris, load_wine
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVR
from sklearn.tree import DecisionTreeRegressor
from threadpoolctl import threadpool_limits

from ffgb import FFGB, Config, FFGBError, Model, federate, train
from ffgb import sklearn as estimators
from ffgb.core.losses import CrossEntropy, Square
from ffgb.core.schedules import Constant
from ffgb.data import load_sites
from ffgb.features.basic import Flatten
from ffgb.learners import adapter
from ffgb.learners.adapter import Adapter
from ffgb.learners.trees import Tree
from ffgb.protocol.describe import build, describe
from ffgb.runs.config import load_data
from ffgb.runs.holdings import make_parts
from ffgb.sklearn import EstimatorError, FFGBClassifier, FFGBRegressor, _sites

SMALL: dict[str, Any] = {"map": "inputs+steps", "features": 32, "rounds": 3}
"""A closed learner that is fitted in no time."""
CART = DecisionTreeRegressor(max_depth=3)


def iris() -> tuple[Any, Any]:
    x, y = load_iris(return_X_y=True)
    return x, y


def arrays(estimator: Any) -> dict[str, Any]:
    """All that the trained function is made of."""
    found: dict[str, Any] = estimator.model_.f.tensors()
    return found


def assert_same(some: dict[str, Any], others: dict[str, Any]) -> None:
    assert some.keys() == others.keys()
    for name, array in some.items():
        np.testing.assert_array_equal(array, others[name])


def untimed(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name != "seconds"} for line in history]


def test_importing_the_estimators_does_not_import_torch() -> None:
    code = "import sys, ffgb.sklearn; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# The same training as ffgb's own


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"map": "inputs", "geometry": "local", "local_steps": 2},
        {"learner": "tree", "depth": 2},
        {"learner": "mlp", "hidden": (4,), "oracle_steps": 5, "participation": 0.5},
        {"learner": "linear", "algorithm": "ffgb-c"},
        {"learner": "mlp", "algorithm": "scaffold", "hidden": (4,), "local_steps": 2},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())) or "default",
)
def test_equals_training_to_the_bit(settings: dict[str, Any]) -> None:
    config = Config(data=("wine",), clients=4, rounds=3, seed=5, **settings)
    dataset = load_data(config)
    clients = np.empty(len(dataset.y), int)
    for i, rows in enumerate(make_parts(config.resolved(dataset), dataset)):
        clients[rows] = i
    with threadpool_limits(limits=1):  # as the estimator does: of sums in float64 the last bit depends on it
        result = train(config, workers=0)
    estimator = FFGBClassifier(**settings, rounds=3, random_state=5).fit(dataset.x, dataset.y, clients=clients)
    assert_same(arrays(estimator), result.model.f.tensors())
    np.testing.assert_array_equal(
        estimator.predict_proba(dataset.x_test), result.model.predict_proba(dataset.x_test.astype(np.float32))
    )
    for mine, theirs in zip(untimed(estimator.history_), result.metrics, strict=True):
        # there, a client with test rows looks at every step: the exchange's number, up to whole words
        exchanges = 32 if "learner" not in settings else 1  # a round of trees has some for each level
        assert 0 <= theirs["bytes_down"] - mine.pop("bytes_down") <= 8 * exchanges * theirs["round"]
        assert {name: theirs[name] for name in mine} == mine


def test_equals_federate_to_the_bit() -> None:
    algorithm: dict[str, Any] = {"learner": "tree", "depth": 2, "rounds": 4, "local_steps": 2, "step_size": 0.3}
    x, y = iris()
    three = [(x[y == c].astype(np.float32), y[y == c]) for c in range(3)]
    state, _ = federate(three, Tree(Flatten(4), 3, depth=2), CrossEntropy(3), FFGB(Constant(0.3), K=2), rounds=4)
    assert_same(arrays(FFGBClassifier(**algorithm).fit(x, y, clients=y)), state.f.tensors())

    x, y = load_diabetes(return_X_y=True)
    names = np.array(["north", "south", "east"])[np.arange(len(y)) % 3]
    parts = [names == name for name in ("east", "north", "south")]
    fitted = FFGBRegressor(**algorithm).fit(x, y, clients=names)
    target = fitted.model_.job.target  # an estimator scales its targets
    assert target is not None
    some = [(x[rows].astype(np.float32), target.encode(y[rows])) for rows in parts]
    state, _ = federate(some, Tree(Flatten(10), 1, depth=2), Square(1), FFGB(Constant(0.3), K=2), rounds=4)
    assert_same(arrays(fitted), state.f.tensors())


def test_worker_processes_change_nothing() -> None:
    x, y = iris()
    alone, two = (FFGBClassifier(**SMALL, n_jobs=n).fit(x, y, clients=np.arange(150) % 3) for n in (None, 2))
    assert_same(arrays(alone), arrays(two))


def test_the_order_of_rows_within_clients_is_kept_and_clients_are_sorted() -> None:
    x, y = iris()
    numbers = np.arange(150) % 12
    by_number, by_name, by_tuple = (
        FFGBClassifier(**SMALL).fit(x, y, clients=ids)
        for ids in (numbers, [f"{n:02}" for n in numbers], [(0, n) for n in numbers])
    )
    assert_same(arrays(by_number), arrays(by_name))
    assert_same(arrays(by_number), arrays(by_tuple))
    one, without = (FFGBClassifier(**SMALL).fit(x, y, clients=ids) for ids in (np.zeros(150), None))
    assert_same(arrays(one), arrays(without))
    mixed = FFGBClassifier(**SMALL).fit(x, y, clients=[1, "1", None.__class__] * 50)  # no order: as they come
    assert mixed.config_.clients == 3


def test_the_default_on_clients_that_hold_one_class_each() -> None:
    x, y = iris()
    names = load_iris().target_names[y]
    classifier = FFGBClassifier(learner="features").fit(x, names, clients=y)
    assert list(classifier.classes_) == ["setosa", "versicolor", "virginica"]
    assert classifier.score(x, names) > 0.95
    assert len(classifier.history_) < classifier.config_.rounds == 10  # nothing but noise was left to learn
    assert classifier.history_[-1]["train_accuracy"] == pytest.approx(classifier.score(x, names))
    np.testing.assert_allclose(classifier.predict_proba(x).sum(axis=1), 1.0)
    local = FFGBClassifier(learner="tree", rounds=3).fit(x, names, clients=y)  # each knows one class
    assert local.predict_proba(x).shape == (150, 3)


def test_a_saved_model_predicts_the_same(tmp_path: Path) -> None:
    x, y = iris()
    frame = pd.DataFrame(x, columns=["a", "b", "c", "d"])
    classifier = FFGBClassifier(**SMALL).fit(frame, y == 2)
    assert list(classifier.feature_names_in_) == ["a", "b", "c", "d"]
    (tmp_path / "model.safetensors").write_bytes(classifier.model_.to_bytes())
    frame.to_csv(tmp_path / "new.csv", index=False)
    model = Model.load(tmp_path)
    points = model.read(tmp_path / "new.csv")
    np.testing.assert_array_equal(model.predict(points), [str(c) for c in classifier.predict(frame)])
    np.testing.assert_array_equal(model.predict_proba(points), classifier.predict_proba(frame))


def test_several_targets_and_one_in_a_column() -> None:
    x, y = load_diabetes(return_X_y=True)
    two = FFGBRegressor(**SMALL).fit(x, np.c_[y, -y])
    np.testing.assert_allclose(two.predict(x)[:, 0], -two.predict(x)[:, 1], rtol=1e-4)
    one = FFGBRegressor(**SMALL).fit(x, y)
    with pytest.warns(DataConversionWarning):
        column = FFGBRegressor(**SMALL).fit(x, y[:, None])
    np.testing.assert_array_equal(one.predict(x), column.predict(x))


def test_validation_chooses_ridge_and_rounds() -> None:
    x, y = load_wine(return_X_y=True)
    chosen = FFGBClassifier(map="inputs", rounds=3, validation=0.2).fit(x, y, clients=np.arange(len(y)) % 3)
    assert chosen.config_.rounds == len(chosen.history_)
    assert min(abs(chosen.config_.ridge * len(y) / f - 1) for f in (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)) < 1e-12


# In scikit-learn's tools


def test_grid_search_over_a_learners_parameters() -> None:
    x, y = iris()
    search = GridSearchCV(FFGBClassifier(learner="tree", rounds=3), {"depth": np.arange(1, 4)}, cv=3).fit(x, y)
    assert search.best_score_ > 0.9
    assert search.best_params_["depth"] in (1, 2, 3)
    search = GridSearchCV(FFGBClassifier(**SMALL), {"ridge": [1e-3, 1e3]}, cv=3).fit(x, y)
    assert search.best_params_ == {"ridge": 1e-3}
    search = GridSearchCV(FFGBClassifier(learner=clone(CART), rounds=3), {"learner__max_depth": [1, 3]}, cv=3)
    assert search.fit(x, y).best_estimator_.learner.max_depth in (1, 3)


def test_grid_search_with_clients() -> None:
    x, y = iris()
    clients = np.array(["a", "b", "c"])[np.arange(150) % 3]
    search = GridSearchCV(FFGBClassifier(**SMALL), {"ridge": [1e-3, 1e-1]}, cv=3).fit(x, y, clients=clients)
    assert search.best_estimator_.config_.clients == 3
    with config_context(enable_metadata_routing=True):
        estimator = FFGBClassifier(**SMALL).set_fit_request(clients=True)
        routed = GridSearchCV(estimator, {"ridge": [1e-3, 1e-1]}, cv=3).fit(x, y, clients=clients)
    assert routed.best_estimator_.config_.clients == 3
    np.testing.assert_array_equal(routed.cv_results_["mean_test_score"], search.cv_results_["mean_test_score"])


def test_in_a_pipeline() -> None:
    x, y = iris()
    pipeline = make_pipeline(StandardScaler(), FFGBClassifier(**SMALL))
    assert cross_val_score(pipeline, x, y, cv=3).min() >= 0.9
    p = pipeline.fit(x, y, ffgbclassifier__clients=y).predict_proba(x)
    assert pipeline[-1].config_.clients == 3
    with config_context(transform_output="pandas"):
        by_name = make_pipeline(StandardScaler(), FFGBClassifier(**SMALL)).fit(x, y, ffgbclassifier__clients=y)
        np.testing.assert_array_equal(by_name.predict_proba(x), p)
    assert by_name[-1].feature_names_in_[0] == "x0"


def test_clones_and_parameters() -> None:
    x, y = iris()
    classifier = FFGBClassifier(**SMALL, options={"precision": "float16"}, hidden=[3, 3]).fit(x, y)
    again = clone(classifier)
    assert again.get_params() == classifier.get_params()
    assert not hasattr(again, "model_")
    assert_same(arrays(again.fit(x, y)), arrays(classifier))
    assert classifier.config_.precision == "float16"
    again.set_params(random_state=np.int64(7), features=np.int64(16), options=None).fit(x, y)
    assert (again.config_.seed, again.config_.precision) == (7, "float32")
    drawn = FFGBClassifier(**SMALL, random_state=np.random.RandomState(3)).fit(x, y)
    assert drawn.config_.seed == np.random.RandomState(3).randint(2**31 - 1)
    assert FFGBClassifier(**SMALL, random_state=None).fit(x, y).config_.seed >= 0


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"rounds": 0}, "rounds is a whole number"),
        ({"algorithm": "ffgb-d"}, "algorithm is .*ffgb or .*, not 'ffgb-d'"),
        ({"learner": "forest"}, "no learner 'forest'"),
        ({"learner": "tree", "geometry": "shared"}, "geometry='shared' is for"),
        ({"learner": "tree", "depth": 13}, "has depth 1 … 12"),
        ({"participation": 9}, "participation=9 is neither"),
        ({"client_weights": "rows"}, "client_weights is uniform or size"),
        ({"random_state": -1}, "random_state is -1"),
        ({"learner": "tree", "depth": 2.5}, r"depth is a whole number from 1 on, not 2\.5"),
        ({"learner": "tree", "depth": np.float64(2.0)}, r"depth is a whole number from 1 on, not 2\.0"),
        ({"rounds": np.float64(2.5)}, r"rounds is a whole number from 1 on, or None, not 2\.5"),
        ({"rounds": True}, "rounds is a whole number from 1 on, or None, not True"),
        ({"features": "many"}, "features is a whole number from 1 on, or None, not 'many'"),
        ({"ridge": "small"}, "ridge is a number from 0 on, or None, not 'small'"),
        ({"participation": "half"}, "participation is a number such as 5, or a share such as 0.5, or None, not 'half'"),
        ({"geometry": 3}, "geometry is a name, or None, not 3"),
        ({"learner": "mlp", "hidden": 32}, r"hidden is whole numbers such as \(32, 32\), or None, not 32"),
        ({"learner": "mlp", "hidden": (32, 2.5)}, r"hidden is whole numbers such as .* not \(32, 2\.5\)"),
        ({"n_jobs": "two"}, "n_jobs is a whole number or None, not 'two'"),
        ({"options": "momentum"}, "options is a dictionary such as"),
        ({"options": {"residual": 1}}, "residual is True or False, not 1"),
        ({"options": {"momentum": 0.9}}, r"momentum is for fedavg and fedprox and mime, not for ffgb"),
        ({"options": {"local_epochs": 2}}, r"local_epochs is for fedavg and fedprox and scaffold and mime"),
        ({"options": {np.str_("data"): "digits"}}, "takes no 'data'"),
        ({"geometry": np.str_("flat")}, "geometry is local or shared, not 'flat'"),
        ({"loss": "square"}, "the loss 'square' is none for FFGBClassifier; choose auto, cross-entropy, logistic"),
        ({"options": {"seed": 3}}, "options takes no 'seed'"),
        ({"options": {"data": "digits"}}, "takes no 'data'; it takes aggregate"),
        ({"options": {"categories": ["a"]}}, "columns of a DataFrame"),
    ],
)
def test_wrong_settings_are_value_errors_that_name_parameters(parameters: dict[str, Any], words: str) -> None:
    x, y = iris()
    with pytest.raises(ValueError, match=words) as caught:
        FFGBClassifier(**{**SMALL, **parameters}).fit(x, y)
    assert isinstance(caught.value, FFGBError)
    assert "--" not in str(caught.value)


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        (np.zeros(149), "clients has 149 entries, which is inconsistent with X; give .* each of the 150 rows"),
        (5, "clients is 5; give a name or number for each of the 150 rows of X"),
        (np.array(5), "clients is 5; give"),
        ("a" * 150, "clients is 'aaa"),
        ([None] * 150, "missing"),
        ([np.nan] * 150, "missing"),
        (pd.array([pd.NA] * 150), "missing"),
        (np.zeros((150, 2)), "no names"),
    ],
)
def test_wrong_clients_are_refused(clients: Any, words: str) -> None:
    x, y = iris()
    with pytest.raises(ValueError, match=words):
        FFGBClassifier(**SMALL).fit(x, y, clients=clients)


@pytest.mark.parametrize("learner", ["linear", "trees"])
def test_sparse_rows_are_rows(learner: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((80, 6)).astype(np.float32) * (rng.random((80, 6)) < 0.4)
    y = (x[:, 0] + x[:, 1] > 0).astype(int)
    full = FFGBClassifier(learner=learner, rounds=2).fit(x, y)
    sparse = FFGBClassifier(learner=learner, rounds=2).fit(csr_matrix(x), y)
    np.testing.assert_array_equal(sparse.predict_proba(csr_matrix(x)), full.predict_proba(x))


@pytest.mark.parametrize("learner", ["linear", "trees"])
def test_a_large_sparse_matrix_stays_sparse_and_gives_the_same_bits(
    learner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((200, 8)) * (rng.random((200, 8)) < 0.4)).astype(np.float32)
    y, clients = (x[:, 0] + x[:, 1] > 0).astype(int), np.arange(200) % 3
    chosen: dict[str, Any] = {"learner": learner, "rounds": 2, "random_state": 0}
    full = FFGBClassifier(**chosen).fit(x, y, clients=clients)
    monkeypatch.setattr(estimators, "FEW_CELLS", 100)
    monkeypatch.setattr(estimators, "_in_full_rows", None)  # no one may call it
    sparse = FFGBClassifier(**chosen).fit(csr_matrix(x), y, clients=clients)
    assert sparse.model_.to_bytes() == full.model_.to_bytes()
    np.testing.assert_array_equal(sparse.predict_proba(csr_matrix(x)), full.predict_proba(x))


def test_other_learners_have_sparse_rows_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimators, "FEW_CELLS", 100)
    x, y = iris()
    fitted = FFGBClassifier(learner="mlp", rounds=1, oracle_steps=2).fit(csr_matrix(x), y)
    assert fitted.predict(csr_matrix(x)).shape == y.shape


def test_sparse_rows_that_do_not_fit_in_full_are_refused_with_a_remedy() -> None:
    places = (np.arange(4), np.array([0, 1, 2, 10**9]))
    wide = csr_matrix((np.ones(4, np.float32), places), shape=(10**4, 10**9 + 1))
    with pytest.raises(ValueError, match="TruncatedSVD"):
        FFGBClassifier().fit(wide, np.arange(10**4) % 2)


def test_one_class_is_refused() -> None:
    x, _ = iris()
    with pytest.raises(ValueError, match=r"y has one class, 0\.0;"):
        FFGBClassifier().fit(x, np.zeros(150))
    with pytest.raises(ValueError, match="y has one class, 'a';"):
        FFGBClassifier().fit(x, np.array(["a"] * 150))


def test_losses_of_classes_are_none_for_a_regressor() -> None:
    x, y = load_diabetes(return_X_y=True)
    with pytest.raises(
        ValueError,
        match="'logistic' is none for FFGBRegressor; choose auto, cox, gamma, huber, poisson, quantile, square",
    ):
        FFGBRegressor(loss="logistic").fit(x, y)


def test_names_of_clients_are_plain() -> None:
    x, y = iris()
    ids = [np.str_("1"), np.int64(1), np.str_("a")] * 50
    fitted = FFGBClassifier(**SMALL, warm_start=True).fit(x, y, clients=ids)
    assert fitted.config_.clients == 3
    assert _sites(ids, 150)[0] == ("'1'", "1", "'a'")


# Rounds

LEARNERS: list[dict[str, Any]] = [
    SMALL,
    {**SMALL, "geometry": "local", "participation": 2},
    {"learner": "tree", "depth": 2, "mu": 0.01},
    {"learner": "linear", "algorithm": "ffgb-c", "options": {"bound": 0.5}},
    {"learner": "mlp", "hidden": (3,), "oracle_steps": 3, "participation": 2},
    {"learner": "mlp", "hidden": (3,), "algorithm": "mime", "local_steps": 2},
    {"learner": "mlp", "hidden": (3,), "oracle_steps": 3, "options": {"distill": "rounds", "distill_rounds": 1}},
    {"learner": CART},
    {"learner": KNeighborsRegressor(3), "participation": 2},
]


each_learner = pytest.mark.parametrize("settings", LEARNERS, ids=lambda s: "-".join(map(str, s.values())))


@each_learner
def test_a_warm_start_equals_all_rounds_at_once(settings: dict[str, Any]) -> None:
    x, y = iris()
    clients = np.arange(150) % 4
    classifier = FFGBClassifier(**{**settings, "rounds": 2}, warm_start=True).fit(x, y, clients=clients)
    classifier.set_params(rounds=4).fit(x, y, clients=clients)
    pickle.loads(pickle.dumps(classifier)).set_params(rounds=5).fit(x, y, clients=clients)  # changes nothing here
    classifier.fit(x, y, clients=clients).set_params(rounds=5).fit(x, y, clients=clients)
    at_once = FFGBClassifier(**{**settings, "rounds": 5}).fit(x, y, clients=clients)
    assert untimed(classifier.history_) == untimed(at_once.history_)
    np.testing.assert_array_equal(classifier.predict_proba(x), at_once.predict_proba(x))
    if isinstance(settings.get("learner", ""), str):
        assert classifier.model_.to_bytes() == at_once.model_.to_bytes()
    for some, others in zip(classifier.staged_predict_proba(x), at_once.staged_predict_proba(x), strict=True):
        np.testing.assert_array_equal(some, others)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rounds": 2}, "had 3 rounds, not 2"),
        ({"ridge": 0.1}, "keeps ridge at"),
        ({"random_state": 1}, "keeps seed at 0"),
        ({"learner": "tree"}, "keeps the learner 'auto'"),
        ({"validation": 0.2}, "validation chooses"),
    ],
)
def test_a_warm_start_with_other_settings_is_refused(change: dict[str, Any], words: str) -> None:
    x, y = iris()
    classifier = FFGBClassifier(**SMALL, warm_start=True).fit(x, y)
    before = classifier.predict(x)
    with pytest.raises(ValueError, match=f"{words}.*; set warm_start=False to start anew"):
        classifier.set_params(**change).fit(x, y)
    np.testing.assert_array_equal(classifier.predict(x), before)


def test_a_warm_start_with_other_rows_is_refused() -> None:
    x, y = iris()
    classifier = FFGBClassifier(**SMALL, warm_start=True).fit(x, y, clients=y)
    for rows, labels, clients in ((x + 1, y, y), (x, 2 - y, y), (x, y, None), (x[1:], y[1:], y[1:]), (x, y > 0, y)):
        with pytest.raises(ValueError, match="same rows, targets and clients"):
            classifier.set_params(rounds=4).fit(rows, labels, clients=clients)
    assert set(classifier.predict(x)) == {0, 1, 2}  # it is as it was
    classifier.set_params(warm_start=False).fit(x, y > 0)
    adapted = FFGBClassifier(learner=Ridge(), rounds=1, warm_start=True).fit(x, y)
    with pytest.raises(ValueError, match="keeps the learner"):
        adapted.set_params(learner__alpha=2.0, rounds=2).fit(x, y)


def test_a_fit_that_ended_of_itself_stays_ended() -> None:
    x, y = load_diabetes(return_X_y=True)
    regressor = FFGBRegressor(learner="features", warm_start=True).fit(x, y)
    ended = len(regressor.history_)
    assert ended < 10
    assert len(regressor.fit(x, y).history_) == ended
    with pytest.raises(ValueError, match=f"after round {ended} there was nothing left to learn"):
        regressor.set_params(rounds=12).fit(x, y)


@each_learner
def test_staged_predictions_are_those_of_fewer_rounds(settings: dict[str, Any]) -> None:
    x, y = iris()
    settings = {**settings, "rounds": 3}
    classifier = FFGBClassifier(**settings).fit(x, y, clients=np.arange(150) % 4)
    stages, classes = list(classifier.staged_predict_proba(x)), list(classifier.staged_predict(x))
    assert len(stages) == len(classes) == len(classifier.history_)
    np.testing.assert_array_equal(stages[-1], classifier.predict_proba(x))
    np.testing.assert_array_equal(classes[-1], classifier.predict(x))
    for line, stage in zip(classifier.history_, classes, strict=True):
        if "participation" not in settings:
            assert line["train_accuracy"] == pytest.approx((stage == y).mean())
    fewer = clone(classifier).set_params(rounds=2).fit(x, y, clients=np.arange(150) % 4)
    np.testing.assert_allclose(stages[len(fewer.history_) - 1], fewer.predict_proba(x), atol=1e-12)


def test_staged_values_of_a_regressor() -> None:
    x, y = load_diabetes(return_X_y=True)
    regressor = FFGBRegressor(learner="tree", rounds=5).fit(x, y)
    stages = list(regressor.staged_predict(x))
    np.testing.assert_array_equal(stages[-1], regressor.predict(x))
    for line, stage in zip(regressor.history_, stages, strict=True):
        assert line["train_rmse"] == pytest.approx(np.sqrt(np.mean((stage - y) ** 2)))


@each_learner
def test_pickled_estimators_say_the_same(settings: dict[str, Any]) -> None:
    x, y = iris()
    classifier = FFGBClassifier(**{**settings, "rounds": 2}).fit(x, y, clients=np.arange(150) % 4)
    for again in (pickle.loads(pickle.dumps(classifier)), copy.deepcopy(classifier)):
        np.testing.assert_array_equal(again.predict_proba(x), classifier.predict_proba(x))
        for some, others in zip(again.staged_predict(x), classifier.staged_predict(x), strict=True):
            np.testing.assert_array_equal(some, others)


# Tables as they are


def sites() -> Iterator[tuple[str, pd.DataFrame]]:
    rng = np.random.default_rng(0)
    for name, jobs in (("east", ["nurse", "clerk"]), ("west", ["nurse", "cook"])):
        n = 60
        frame = pd.DataFrame({"age": rng.normal(40, 10, n), "job": rng.choice(jobs, n), "grade": rng.integers(1, 4, n)})
        frame["sick"] = np.where((frame["job"] == "nurse") ^ (rng.random(n) < 0.1), "yes", "no")
        frame.loc[::7, "age"] = np.nan
        frame.loc[::9, "job"] = None
        yield name, frame


def test_a_frame_is_what_files_of_sites_are(tmp_path: Path) -> None:
    parts = dict(sites())
    for name, frame in parts.items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    files = load_sites([tmp_path / f"{name}.csv" for name in parts], "sick", holdout=0.0, categories=["grade"])
    whole = pd.concat(parts, names=["site"]).reset_index(level="site").sample(frac=1.0, random_state=0)
    x, y, clients = whole[["age", "job", "grade"]], whole["sick"], whole["site"]
    classifier = FFGBClassifier(**SMALL, options={"categories": ["grade"]}).fit(x, y, clients=clients)
    assert classifier.model_.table == files.table
    assert classifier.model_.columns == files.columns
    assert files.columns == (
        *("age", "job=clerk", "job=cook", "job=nurse", "grade=1", "grade=2", "grade=3", "age missing"),
    )
    assert classifier.n_features_in_ == 3
    sorted_rows = whole.sort_index()
    in_order = FFGBClassifier(**SMALL, options={"categories": ["grade"]})
    in_order.fit(sorted_rows[["age", "job", "grade"]], sorted_rows["sick"], clients=sorted_rows["site"])
    assert in_order.score(x, y) > 0.85

    new = pd.DataFrame({"age": [np.nan, 30.0, 30.0], "job": ["pilot", None, "nurse"], "grade": [9, None, 2]})
    p = classifier.predict_proba(new)
    assert np.isfinite(p).all()
    assert list(classifier.classes_) == ["no", "yes"]
    assert (classifier.predict(x[x["job"] == "nurse"]) == "yes").mean() > 0.8
    # an unknown category and a missing one are the same: none of the known ones
    one = pd.DataFrame({"age": [30.0, 30.0], "job": ["pilot", None], "grade": [2, 2]})
    assert len(np.unique(classifier.predict_proba(one), axis=0)) == 1
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        np.testing.assert_array_equal(classifier.predict_proba(new.to_numpy(object)), p)


def test_a_frame_of_numbers_is_an_array_with_names_that_may_miss_values_later() -> None:
    x, y = iris()
    frame = pd.DataFrame(x)  # columns that are numbers are no names to scikit-learn
    plain, named = (FFGBClassifier(**SMALL).fit(data, y, clients=y) for data in (x, frame))
    np.testing.assert_array_equal(plain.predict_proba(x), named.predict_proba(frame))
    assert not hasattr(named, "feature_names_in_")
    frame.iloc[0, 0] = np.nan
    assert np.isfinite(named.predict_proba(frame)).all()
    with pytest.raises(ValueError, match="contains NaN"):
        plain.predict(frame)


def test_a_frame_that_cannot_be_used_is_refused() -> None:
    x, y = iris()
    frame = pd.DataFrame(x, columns=list("abcd"))
    dated = frame.assign(a=pd.Timestamp("2020-01-01"))
    with pytest.raises(ValueError, match=r"column 'a' holds datetime64.* values"):
        FFGBClassifier(**SMALL).fit(dated, y)
    with pytest.raises(ValueError, match="infinite"):
        FFGBClassifier(**SMALL).fit(frame.assign(a=np.inf), y)
    with pytest.raises(ValueError, match="unique column names"):
        FFGBClassifier(**SMALL).fit(frame.set_axis(list("aacd"), axis=1), y)
    with pytest.raises(ValueError, match="no column 'e'"):
        FFGBClassifier(**SMALL, options={"categories": ["e"]}).fit(frame, y)
    with pytest.raises(ValueError, match="1 sample"):
        FFGBRegressor(**SMALL).fit(frame[:1], y[:1])
    classifier = FFGBClassifier(**SMALL).fit(frame, y)
    with pytest.raises(ValueError, match="feature names"):
        classifier.predict(frame[list("abdc")])
    with pytest.raises(ValueError, match="text where numbers belong"):
        classifier.predict(frame.astype(object).assign(a="tall"))
    with pytest.raises(ValueError, match="0 sample"):
        classifier.predict(frame[:0])
    with pytest.raises(ValueError, match="y contains NaN"):
        FFGBRegressor(**SMALL).fit(frame, np.where(y == 0, np.nan, y))


def test_one_category_may_be_named_as_such() -> None:
    x, y = iris()
    frame = pd.DataFrame(x, columns=list("abcd")).assign(age=y % 2)
    fitted = FFGBClassifier(**SMALL, options={"categories": "age"}).fit(frame, y)
    assert fitted.model_.columns[-2:] == ("age=0", "age=1")
    with pytest.raises(ValueError, match=r"categories is names such as \['age'\], not \(4,\)"):
        FFGBClassifier(**SMALL, options={"categories": [4]}).fit(frame, y)


def test_categories_by_dtype() -> None:
    x, y = iris()
    frame = pd.DataFrame(x, columns=list("abcd")).assign(code=pd.Categorical(y % 2))
    assert FFGBClassifier(**SMALL).fit(frame, y).model_.columns[-2:] == ("code=0", "code=1")


# ONNX


def test_a_fitted_estimator_is_exported(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    ort = pytest.importorskip("onnxruntime")
    x, y = iris()
    classifier = FFGBClassifier(**SMALL).fit(x, y, clients=y)
    assert classifier.export(tmp_path / "array.onnx") < 1e-5
    session = ort.InferenceSession((tmp_path / "array.onnx").read_bytes(), providers=["CPUExecutionProvider"])
    labels, p = session.run(["label", "probabilities"], {"x": x.astype(np.float32)})
    np.testing.assert_allclose(p, classifier.predict_proba(x), atol=1e-5)
    assert labels.tolist() == [str(c) for c in classifier.predict(x)]

    frame = pd.concat([part for _, part in sites()], ignore_index=True)
    named = FFGBClassifier(**SMALL).fit(frame[["age", "job"]], frame["sick"])
    named.export(str(tmp_path / "frame.onnx"))
    session = ort.InferenceSession((tmp_path / "frame.onnx").read_bytes(), providers=["CPUExecutionProvider"])
    age, job = frame[["age"]].to_numpy(np.float32), frame[["job"]].fillna("").to_numpy(object)
    assert session.run(["label"], {"age": age, "job": job})[0].tolist() == named.predict(frame[["age", "job"]]).tolist()

    with pytest.raises(ValueError, match=r"the folder .* does not exist"):
        named.export(tmp_path / "no" / "model.onnx")
    with pytest.raises(NotFittedError):
        clone(named).export(tmp_path / "m.onnx")
    with pytest.raises(EstimatorError, match="cannot be saved, exported or sent; choose the learner 'tree'"):
        FFGBClassifier(learner=CART, rounds=1).fit(x, y).export(tmp_path / "m.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["array.onnx", "frame.onnx"]


# Estimators as weak learners


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_tree_by_the_adapter_is_the_tree_of_that_depth(outputs: int) -> None:
    x, y = iris()
    y = y if outputs == 3 else y > 0
    clients = np.arange(150) % 3
    own = FFGBClassifier(learner="tree", depth=3, rounds=6).fit(x, y, clients=clients)
    adapted = FFGBClassifier(learner=CART, rounds=6).fit(x, y, clients=clients)
    np.testing.assert_allclose(adapted.predict_proba(x), own.predict_proba(x), atol=1e-12)
    gammas = [(line["gamma_min"], line["gamma_median"]) for line in own.history_]
    np.testing.assert_allclose([(line["gamma_min"], line["gamma_median"]) for line in adapted.history_], gammas)
    assert adapted.history_[-1]["models_up"] == own.history_[-1]["models_up"]
    assert not hasattr(CART, "tree_")  # what was given is not fitted
    assert adapted.config_.learner == "DecisionTreeRegressor"


@pytest.mark.parametrize(
    "learner",
    [KNeighborsRegressor(5), Ridge(), SVR(), make_pipeline(StandardScaler(), Ridge())],
    ids=lambda learner: type(learner).__name__,
)
def test_any_regressor_boosts(learner: Any) -> None:
    x, y = iris()
    classifier = FFGBClassifier(learner=learner, rounds=5).fit(x, y, clients=np.arange(150) % 3)
    assert classifier.score(x, y) > 0.8
    losses = [line["train_loss"] for line in classifier.history_]
    assert losses == sorted(losses, reverse=True)
    x, y = load_diabetes(return_X_y=True)
    assert FFGBRegressor(learner=learner, rounds=2).fit(x, y).score(x, y) > 0


def test_random_states_come_from_the_seed() -> None:
    x, y = iris()
    learner = DecisionTreeRegressor(max_depth=2, max_features=1)
    same, again, other = (FFGBClassifier(learner=learner, rounds=3, random_state=s).fit(x, y) for s in (0, 0, 1))
    np.testing.assert_array_equal(same.predict_proba(x), again.predict_proba(x))
    assert (same.predict_proba(x) != other.predict_proba(x)).any()


def test_a_model_of_estimators_cannot_be_written(tmp_path: Path) -> None:
    x, y = iris()
    classifier = FFGBClassifier(learner=CART, rounds=2).fit(x, y)
    with pytest.raises(FFGBError, match="cannot be saved, exported or sent; choose the learner 'tree'"):
        classifier.model_.to_bytes()
    assert classifier.model_.f.terms == 4
    half = classifier.model_.f * 0.5
    np.testing.assert_allclose((half + half)(x), classifier.model_.f(x))
    np.testing.assert_allclose((half - half)(x), 0.0, atol=1e-12)
    assert np.abs(half.clip(0.01)(x)).max() == 0.01


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"n_jobs": 2}, "live in this process.*n_jobs=None"),
        ({"algorithm": "ffgb-c"}, "the algorithm is 'ffgb'"),
        ({"geometry": "shared"}, "the geometry is 'local'"),
        ({"learner": LogisticRegression()}, "no scikit-learn regressor"),
        ({"learner": DecisionTreeRegressor}, "no scikit-learn regressor"),
        ({"learner": 3}, "no scikit-learn regressor"),
        ({"learner": KNeighborsRegressor(100)}, "KNeighborsRegressor fails when it predicts at 75 points"),
        ({"learner": Ridge(alpha=-1)}, "Ridge fails when it is fitted at 75 points"),
    ],
)
def test_what_an_estimator_cannot_do_is_refused(parameters: dict[str, Any], words: str) -> None:
    x, y = iris()
    with pytest.raises(FFGBError, match=words) as caught:
        FFGBClassifier(**{"learner": CART, "rounds": 2, **parameters}).fit(x, y, clients=np.arange(150) % 2)
    assert isinstance(caught.value, EstimatorError)


def test_stores_go_with_the_last_that_refers_to_them() -> None:
    x, y = iris()
    gc.collect()
    before = len(adapter._stores)
    classifier = FFGBClassifier(learner=CART, rounds=2, warm_start=True).fit(x, y)
    assert len(adapter._stores) == before + 1
    family = classifier.model_.family
    assert isinstance(family, Adapter)
    fitted = weakref.ref(family._members.fitted[0])
    del family
    copied = pickle.loads(pickle.dumps(classifier))
    assert len(adapter._stores) == before + 2  # a store of its own
    classifier.set_params(rounds=3).fit(x, y)
    copied.set_params(rounds=3).fit(x, y)
    np.testing.assert_array_equal(classifier.predict_proba(x), copied.predict_proba(x))
    del classifier
    gc.collect()
    assert len(adapter._stores) == before + 1
    assert fitted() is None
    copied.fit(x, y)
    del copied
    gc.collect()
    assert len(adapter._stores) == before


def test_a_store_that_is_not_here_is_named() -> None:
    family = Adapter.of(CART, Flatten(4), 3)
    recipe, found = describe(family)
    assert build(recipe, found) == family
    with pytest.raises(FFGBError, match="not in this process"):
        family.check({"place": np.array([0])})
    del family
    gc.collect()
    with pytest.raises(FFGBError, match="live in the process that fitted them"):
        build(recipe, found)


def test_an_adapter_knows_the_learners_of_this_process_alone() -> None:
    family = Adapter.of(CART, Flatten(2), 1)
    x = np.arange(8.0, dtype=np.float32).reshape(4, 2)
    fit = family.least_squares(x)
    members = [fit(x[:, :1] + k, np.random.default_rng(0)) for k in range(2)]
    for places in (np.array(0), np.array([0, 1]), np.array([], int)):
        family.check({"place": places})
    for places in (np.array(-1), np.array([0, 2]), np.array([-1, 1]), np.array([1, 2])):
        with pytest.raises(FFGBError, match="not in this process"):
            family.check({"place": places})
    np.testing.assert_allclose(family.member(members[1]).evaluate(x)[:, 0], x[:, 0] + 1.0)
