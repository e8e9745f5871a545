"""Any scikit-learn regressor as a weak learner, on one machine.

A fitted estimator is an object of someone else's class.  It has no arrays that a receiver could check, and no format
but pickle, which no one should read from a stranger.  So it does not travel: fitted estimators stay in this process, in
a `Store`, and messages carry their places in it, one number a member.  A family is described by the number of its
store, which means something only here and only as long as some family of that store is alive; with the last of them
the store and all that is in it goes.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final
from weakref import WeakValueDictionary

import numpy as np

from ffgb.core.capabilities import Fit
from ffgb.core.functions import Family, Function, OpenFamily
from ffgb.core.maps import FeatureMap
from ffgb.core.types import Array, Parameters
from ffgb.errors import FFGBError

INSTEAD = "choose the learner 'tree', 'mlp', 'features' or 'linear' instead"

# By number, as long as anyone holds them: there is no other way from a message back to an object of this process.
_stores: WeakValueDictionary[int, Store] = WeakValueDictionary()
_numbers = itertools.count()


@final
class Store:
    """Fitted estimators, and the one that they are copies of."""

    def __init__(self, template: Any) -> None:
        self.template = template
        self.fitted: list[Any] = []
        self._enter()

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A copy, here or in another process, is a store of its own: what is fitted next goes into one of the two.
        self.__dict__.update(state)
        self._enter()

    def _enter(self) -> None:
        self.number = next(_numbers)
        _stores[self.number] = self

    def keep(self, estimator: Any) -> int:
        """The place of a fitted estimator."""
        self.fitted.append(estimator)
        return len(self.fitted) - 1


@final
@dataclass(frozen=True)
class Adapter(OpenFamily):
    """Copies of a scikit-learn regressor, fitted by its own `fit`.  They see the inputs as float64.

    All its random states are set from the seed of the run, as scikit-learn's ensembles do with theirs.
    """

    features: FeatureMap
    outputs: int
    store: int
    """Its number."""

    def __post_init__(self) -> None:
        if self.store not in _stores:
            raise FFGBError(
                "its learners are scikit-learn estimators, which live in the process that fitted them and are not "
                f"here; use no worker processes (workers=0, n_jobs=None) and no sites, or {INSTEAD}"
            )
        object.__setattr__(self, "_held", _stores[self.store])  # alive from here on

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__dict__["store"] = self._members.number

    @staticmethod
    def of(estimator: Any, features: FeatureMap, outputs: int) -> Adapter:
        """The family of an estimator that is not fitted yet; it is copied, and left as it is."""
        from sklearn.base import clone, is_regressor
        from sklearn.multioutput import MultiOutputRegressor
        from sklearn.utils import get_tags

        instance = hasattr(estimator, "__sklearn_tags__") and not isinstance(estimator, type)
        if not instance or not is_regressor(estimator):
            raise FFGBError(
                f"the learner {estimator!r} is no scikit-learn regressor; weak learners fit gradients, which are "
                "numbers: give a regressor such as DecisionTreeRegressor(max_depth=3), for classification too"
            )
        template = clone(estimator)
        if outputs > 1 and not get_tags(template).target_tags.multi_output:
            template = MultiOutputRegressor(template)
        store = Store(template)  # a name, so that it lives until the family holds it
        return Adapter(features, outputs, store.number)

    @property
    def spec(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        return {"place": ((), "int64")}

    def check(self, parameters: Parameters) -> None:
        place = parameters["place"]
        if place.size and not (place.min() >= 0 and place.max() < len(self._members.fitted)):
            raise FFGBError("it refers to learners that are not in this process")

    def members(self, stack: Parameters, z: Array) -> Array:
        points, out = z.astype(np.float64), np.empty((len(stack["place"]), len(z), self.outputs))
        for values, place in zip(out, stack["place"], strict=True):
            try:
                values[:] = np.reshape(self._members.fitted[place].predict(points), values.shape)
            except Exception as error:
                raise self._failed("predicts", points, error) from error
        return out

    def least_squares(self, z: Array) -> Fit:
        points = z.astype(np.float64)

        def fit(phi: Array, rng: np.random.Generator) -> Parameters:
            estimator = self._copy(rng)
            try:
                estimator.fit(points, phi[:, 0] if self.outputs == 1 else phi)
            except Exception as error:
                raise self._failed("is fitted", points, error) from error
            return {"place": np.array(self._members.keep(estimator))}

        return fit

    @property
    def _members(self) -> Store:
        store: Store = self._held  # type: ignore[attr-defined]
        return store

    def _copy(self, rng: np.random.Generator) -> Any:
        from sklearn.base import clone

        estimator = clone(self._members.template)
        names = sorted(estimator.get_params())
        random = [name for name in names if name == "random_state" or name.endswith("__random_state")]
        return estimator.set_params(**{name: int(rng.integers(2**31)) for name in random})

    def _failed(self, when: str, points: Array, error: Exception) -> FFGBError:
        """Someone else's code may fail in any way at all; a frequent one is a client with too few points for it."""
        name = type(self._members.template).__name__
        return FFGBError(
            f"the learner {name} fails when it {when} at {len(points)} points ({error}); change its parameters, or "
            "leave out clients with few rows"
        )


@final
@dataclass(frozen=True, eq=False)
class Resident(Function):
    """A function whose members live here: it can be evaluated, and not be written down."""

    inner: Function

    @property
    def family(self) -> Family:  # type: ignore[override]
        return self.inner.family

    def evaluate(self, z: Array) -> Array:
        return self.inner.evaluate(z)

    def __mul__(self, a: float) -> Resident:
        return Resident(self.inner * a)

    def __add__(self, other: Function) -> Resident:
        return Resident(self.inner + (other.inner if isinstance(other, Resident) else other))

    def clip(self, radius: float) -> Resident:
        return Resident(self.inner.clip(radius))

    @property
    def terms(self) -> int:
        return self.inner.terms

    def tensors(self) -> dict[str, Array]:
        raise FFGBError(
            "a model whose learners are scikit-learn estimators has no format that is safe to read, so it cannot be "
            f"saved, exported or sent; {INSTEAD}"
        )
