"""Choices where none is given: what suits the data, the learner and the algorithm.

What a learner or an algorithm needs other than usual is declared by its class (`defaults`).  Here are the choices that
depend on several parts at once, and the checks that they fit together.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ffgb.algorithms import Algorithm, Task
from ffgb.algorithms.catalogue import ALGORITHMS
from ffgb.algorithms.ffgb_l import FFGBL
from ffgb.algorithms.parametric import Parametric
from ffgb.core.losses import LOSSES, Loss
from ffgb.core.losses.cox import Cox
from ffgb.core.types import Array
from ffgb.data import Dataset
from ffgb.data.targets import time_and_event
from ffgb.errors import FFGBError, SettingError, option
from ffgb.features.catalogue import SMOOTH, TIED, Space, default_map
from ffgb.features.encoder import Encoder
from ffgb.features.tables import ENOUGH_STEPS, MANY_FEATURES
from ffgb.learners.blend import Blend, suiting
from ffgb.learners.boosted_trees import LEAF_ROWS
from ffgb.learners.catalogue import CLOSED, FAMILIES, GROWN, family_for
from ffgb.learners.nets import Net
from ffgb.privacy.masks import FEWEST
from ffgb.runs.choose_learner import AUTO, IDLE, choose_learner
from ffgb.runs.private import masked_by_default, with_privacy
from ffgb.runs.starting import SHAPING, check_start, learner_of, starting_model
from ffgb.settings import Values
from ffgb.user_code import class_named

RIDGE = 1e-3
"""Of a client's own fit."""
SHARED: Mapping[str, Any] = {"rounds": 10, "local_steps": 1, "schedule": "search"}
"""In a shared geometry one local step is all there is to gain, and the search finds its length."""
LOCAL: Mapping[str, Any] = {"rounds": 30, "local_steps": 2, "schedule": "constant"}
"""Of closed families in the geometry of a client's own points; the step is the inverse of the loss's smoothness."""
PARAMETRIC_STEPS = {"features": 4.0, "linear": 0.1}
"""Step sizes of methods on parameters, where a learner does not say; others take 0.05.  `ffgb tune` finds better."""


def algorithm_class(name: str) -> type[Algorithm]:
    """The algorithm of a name, or of the user's own."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    found: type[Algorithm] = class_named(name, Algorithm, "algorithm")
    return found


def learner_class(config: Values) -> Any:
    """The class of an open family; None for those that are linear over a map."""
    if config.learner in CLOSED:
        return None
    needs = algorithm_class(config.algorithm).needs
    if config.learner in GROWN:
        needs = "layout"
    if config.learner in FAMILIES:
        found = family_for(config.learner, needs)
        if found is None:
            raise FFGBError(
                f"{config.algorithm} needs learners with {needs}, and {config.learner} has none; choose another "
                f"{option('learner')}"
            )
        return found
    if ":" not in config.learner:
        known = ", ".join((AUTO, *CLOSED, *FAMILIES))
        raise FFGBError(f"there is no learner {config.learner!r}; choose {known}, or your own package.module:Name")
    return class_named(config.learner, object, "learner", otherwise=Net)


def make_loss(config: Values, dataset: Dataset) -> Loss:
    """The loss, if it fits the task."""
    kind: Any = LOSSES[config.loss] if config.loss in LOSSES else class_named(config.loss, Loss, "loss")
    fields = {field.name for field in dataclasses.fields(kind)} - {"outputs"}
    own = {name: getattr(config, name) for name in fields if hasattr(config, name)}
    loss: Loss = kind.of(len(dataset.classes), dataset.outputs, **own)
    if config.loss not in LOSSES:
        _try_loss(loss, config.loss, dataset.y[:3])
    return loss


def _try_loss(loss: Loss, name: str, y: Array) -> None:
    """Raise an FFGBError if a loss of the user's own does not answer in the shapes that training needs."""
    y = y if loss.classification else y.reshape(len(y), -1)
    f = np.zeros((len(y), loss.outputs))
    for method, shape in (("value", (len(y),)), ("gradient", f.shape), ("curvature", f.shape)):
        try:
            found = np.shape(getattr(loss, method)(f, y))
        except Exception as error:
            raise FFGBError(
                f"the method {method} of the loss {name} fails for f of shape {f.shape} and y of shape {y.shape} "
                f"({type(error).__name__}: {error})"
            ) from error
        if found != shape:
            raise FFGBError(
                f"the method {method} of the loss {name} gives the shape {found} for f of shape {f.shape} and y of "
                f"shape {y.shape}; it should give {shape} (targets that are numbers come as (n, c))"
            )


def make_space(dataset: Dataset) -> Space:
    """What a feature map may know of the data before it asks."""
    return Space(dataset.x.shape[1:], dataset.image, dataset.columns, len(dataset.x))


def resolved(config: Any, dataset: Dataset, users: Mapping[str, Sequence[str]]) -> Any:
    """The configuration with every choice made."""
    config = with_privacy(config)
    model = starting_model(config)
    if model is not None:
        config = dataclasses.replace(config, learner=learner_of(config, model, type(config)()))
    algorithm = algorithm_class(config.algorithm)
    chosen = _who(config, dataset)
    m, clients = int(chosen["participation"]), chosen["clients"]
    chosen["loss"] = _loss(config, dataset, algorithm)
    if config.learner == AUTO:
        learner, because = choose_learner(config, dataset, chosen)
        config = dataclasses.replace(config, learner=learner, because=because)
    closed = config.learner in CLOSED
    if model is not None:
        check_start(model, dataset, make_loss(dataclasses.replace(config, loss=chosen["loss"]), dataset), config.start)
    chosen["geometry"] = config.geometry or (algorithm.geometries[0] if closed or config.learner in GROWN else "local")
    task = Task(dataset.name, len(dataset.classes), m < clients)
    _check(config, algorithm, chosen["geometry"], task, users)
    chosen["task"] = dataset.task
    chosen["mu"] = algorithm.defaults.get("mu", 0.0) if config.mu is None else config.mu
    chosen |= algorithm.suits(config, task)
    chosen["stop"] = config.rounds is None if config.stop is None else config.stop
    # The paper weights clients alike; in a shared geometry the result should not depend on the split, and FedAvg and
    # those after it weight clients by their points.
    by_size = chosen["geometry"] == "shared" or issubclass(algorithm, Parametric)
    chosen["client_weights"] = config.client_weights or ("size" if by_size else "uniform")
    _check_weights(config, chosen)
    masked = masked_by_default(config, chosen["clients"])
    chosen["secure"] = secure_or_not(dataclasses.replace(config, secure=masked), chosen)
    found = dataclasses.replace(config, **chosen)
    suits = _suits(found, dataset, algorithm, m < clients)
    unset = {name: value for name, value in suits.items() if hasattr(config, name) and getattr(config, name) is None}
    if model is not None:
        unset = {name: value for name, value in unset.items() if name not in SHAPING}
    return dataclasses.replace(found, **unset)


def secure_or_not(config: Any, chosen: Mapping[str, Any]) -> str:
    """Are totals masked?  Between real sites they are, unless someone says that they are not."""
    real = tuple(config.data) == ("sites",)
    if config.secure == "off" or (config.secure is None and not real):
        return "off"
    _refuse_unmasked(_not_secure(config, chosen))
    return "on"


def refuse_at_once(config: Any, clients: int) -> None:
    """Raise an FFGBError before any site is asked, if so many sites could not have secure totals of this job."""
    if config.secure == "off":
        return
    alone = config.learner in FAMILIES and config.learner not in (*CLOSED, *GROWN)
    geometry = config.geometry or ("local" if alone else "shared")
    chosen = {"geometry": geometry, "clients": clients, "participation": clients, "client_weights": "size"}
    _refuse_unmasked(_not_secure(config, chosen))


def _refuse_unmasked(why: str | None) -> None:
    if why is None:
        return
    raise FFGBError(f"totals cannot be secure here: {why}, or say {option('secure', 'off')}, which every site is shown")


def _not_secure(config: Any, chosen: Mapping[str, Any]) -> str | None:
    """Why totals cannot be masked, and what to do; None if they can."""
    if chosen["geometry"] != "shared" or (config.local_steps or 1) > 1:
        return (
            "in this training clients send increments of their own, which are no sums; use "
            f"{option('geometry', 'shared')} with one local step"
        )
    if chosen["clients"] < FEWEST:
        return f"with {chosen['clients']} sites each knows the other's part from the total; bring {FEWEST}"
    if chosen["participation"] < chosen["clients"]:
        return f"the difference of totals over different clients tells one of them; leave {option('participation')} out"
    if config.aggregate != "mean":
        return f"masks hide what robust means compare; use {option('aggregate', 'mean')}"
    if config.largest_weight is not None:
        return f"masks hide the sizes that {option('largest_weight')} compares; leave it out"
    if config.precision != "float32":
        return f"parts are exact integers under masks; leave {option('precision')} out"
    if tuple(config.data) == ("sites",) and chosen["client_weights"] != "size":
        return f"the rows of single sites are not known to the server; use {option('client_weights', 'size')}"
    return None


def _who(config: Any, dataset: Dataset) -> dict[str, Any]:
    """Who holds what, and who takes part."""
    split = config.split or ("natural" if dataset.sites else "similarity")
    clients = config.clients or (max(1, len(dataset.sites)) if split == "natural" else 20)
    if split == "natural" and config.by:
        raise FFGBError(
            f"{option('by')} is for a set that is dealt out to clients; these are clients already: leave it out"
        )
    m = clients if config.participation is None else config.participation
    m = max(1, round(m * clients)) if isinstance(m, float) and 0 < m <= 1 else m
    if not (1 <= m <= clients and float(m).is_integer()):
        raise FFGBError(
            f"{option('participation', config.participation)} is neither a share up to 1.0 nor a number from 1 to "
            f"{clients}"
        )
    return {"split": split, "clients": clients, "participation": int(m)}


def _loss(config: Any, dataset: Dataset, algorithm: type[Algorithm]) -> str:
    times = time_and_event(config.target) is not None
    if times and config.loss not in ("auto", Cox.name):
        raise FFGBError(
            f"{option('target', config.target)} is a time until an event, and {option('loss', config.loss)} knows of "
            f"no events; leave {option('loss')} out"
        )
    if times or config.loss == Cox.name:
        _check_times(config)
        return Cox.name
    if config.loss != "auto":
        return str(config.loss)
    if not dataset.classes:
        return str(algorithm.defaults.get("regression_loss", "square"))
    return "logistic" if len(dataset.classes) == 2 else "cross-entropy"


def _check_times(config: Any) -> None:
    """Settings that the Cox loss has no form for."""
    for name in ("weights", "exposure", "class_weight", "distill"):
        if getattr(config, name, None):
            raise SettingError(name, f"cannot be combined with {option('loss', Cox.name)}; leave it out")
    if config.learner == Blend.name:
        raise FFGBError(
            f"a blend sets rows aside, and in {option('loss', Cox.name)} every row counts the others at risk beside "
            f"it; choose {option('learner', 'additive')} or trees"
        )


def _suits(config: Any, dataset: Dataset, algorithm: type[Algorithm], sampled: bool) -> dict[str, Any]:
    """What suits the learner and the algorithm, where nothing is given."""
    closed, shared = config.learner in CLOSED, config.geometry == "shared"
    suits: dict[str, Any] = {**(SHARED if shared else LOCAL)} if closed else {**learner_class(config).defaults}
    fitted = {name: Net.defaults[name] for name in ("hidden", "oracle_steps", "learning_rate", "batch")}
    suits = {**fitted, **suits, **algorithm.defaults}
    if closed:
        suits |= _map_for(config, dataset, algorithm)
    if config.learner in GROWN:
        suits |= {"leaf_rows": LEAF_ROWS}
    if config.learner == Blend.name:
        numbers = sum("=" not in name for name in dataset.columns) or math.prod(dataset.x.shape[1:])
        suits |= suiting(len(dataset.x), numbers, regression=not dataset.classes)
    if sampled and suits["schedule"] == "search":
        # A search among few clients finds the step that is best for them.  Shorter steps average over samples, and
        # everyone should have about ten turns.
        m, clients = config.participation, config.clients
        rounds = min(100, math.ceil(10 * clients / m))
        suits |= {"schedule": "constant", "shrinkage": math.sqrt(m / clients), "rounds": rounds}
    if not dataset.classes and "regression_rounds" in suits:
        suits["rounds"] = suits["regression_rounds"]
    if config.learner not in GROWN:
        suits["step_size"] = _step_size(config, dataset, algorithm, suits)
    return suits


def _step_size(config: Any, dataset: Dataset, algorithm: type[Algorithm], suits: Mapping[str, Any]) -> float:
    if issubclass(algorithm, Parametric):  # a step in parameter space has nothing to do with the loss's smoothness
        closed = config.learner in CLOSED
        return float(PARAMETRIC_STEPS[config.learner] if closed else suits.get("parametric_step", 0.05))
    if (config.schedule or suits["schedule"]) in ("constant", "search"):
        return float(suits.get("shrinkage", 1.0) / make_loss(config, dataset).smoothness)
    if not dataset.classes:
        return 2.0  # 2/(Kt+k+1): the theorem's, for the square loss is strongly convex with μ = 1
    return float(suits.get("step_size", 20.0))


def _map_for(config: Any, dataset: Dataset, algorithm: type[Algorithm]) -> dict[str, Any]:
    """The feature map, the Gram and the ridge."""
    suits: dict[str, Any] = {"map": "inputs" if config.learner == "linear" else default_map(make_space(dataset))}
    if algorithm is FFGBL and config.learner != "linear":
        suits |= {"map": "inputs+fourier", "features": 512}
    if algorithm is not FFGBL and not issubclass(algorithm, Parametric):  # ffgb-l chooses its own
        suits["ridge"] = RIDGE
    if config.geometry == "shared":
        columns = math.prod(dataset.x.shape[1:])
        tied = (config.map or suits["map"]) in TIED
        suits["gram"] = "tied" if tied else "exact" if columns <= MANY_FEATURES else "nystrom"
        suits["ridge"] = None
        features = max(columns if config.learner == "linear" else ENOUGH_STEPS * columns, config.features or 0)
        if features > MANY_FEATURES or not _fits_itself(config, config.gram or suits["gram"]):
            # λ = trace(G)/n: a prior variance of 1 against a noise of 1.  What a cruder Gram leaves out smooths too.
            suits["ridge"] = (1.0 if (config.gram or suits["gram"]) == "exact" else 0.1) / len(dataset.x)
    return suits


def _fits_itself(config: Any, gram: str) -> bool:
    """Is λ where the evidence is largest?  So it is where nothing else chooses it and every step is searched."""
    steps = config.local_steps in (None, 1) and config.schedule in (None, "search") and config.mu == 0.0
    everyone = config.participation == config.clients and config.aggregate == "mean"
    return config.algorithm == "ffgb" and steps and everyone and not config.validation and gram == "exact"


# Checks


def _check(
    config: Any, algorithm: type[Algorithm], geometry: str, task: Task, users: Mapping[str, Sequence[str]]
) -> None:
    """Refuse settings that do not fit together: someone would wait for their effect."""
    closed = config.learner in CLOSED
    if config.learner in GROWN:
        _check_grown(config, algorithm, geometry)
    elif config.monotone:
        raise SettingError("monotone", f"is for {option('learner', 'trees')}; {config.learner} would not keep to it")
    elif geometry == "shared" and not closed:
        raise FFGBError(
            f"{option('geometry', 'shared')} is for {' and '.join(CLOSED)}; {config.learner} has none to share"
        )
    if geometry not in algorithm.geometries:
        whose = "all clients' points together" if geometry == "local" else "each client's own points"
        raise FFGBError(
            f"{config.algorithm} fits in norms of {whose}; use {option('geometry', algorithm.geometries[0])}"
            + ("" if closed else f" and {option('learner', CLOSED[0])}")
        )
    if config.algorithm in ALGORITHMS:
        used = {*algorithm.uses, *(field.name for field in dataclasses.fields(algorithm))}  # type: ignore[arg-type]
        for name, some in users.items():
            idle = config.algorithm not in some and name not in used
            if idle and getattr(config, name) != type(config)().__getattribute__(name):
                raise FFGBError(f"{option(name)} is for {' and '.join(some)}, not for {config.algorithm}")
    one_array = issubclass(algorithm, Parametric) or (closed and not algorithm.terms)
    if config.aggregate != "mean" and not one_array:
        raise FFGBError(
            f"{option('aggregate', config.aggregate)} is for learners whose sum is one array, such as features"
        )
    _check_distillation(config, closed)
    if config.schedule == "search" and not algorithm.searches:
        raise FFGBError(
            f"{config.algorithm} is bounded by the steps of its schedule: this algorithm cannot be combined with "
            f"{option('schedule', 'search')}"
        )
    algorithm.check(config, task)
    if algorithm.needs == FFGBL.needs:
        _check_lipschitz(config)


def _check_grown(config: Any, algorithm: type[Algorithm], geometry: str) -> None:
    """Learners that are grown from totals."""
    if "shared" not in algorithm.geometries:
        raise FFGBError(f"{config.learner} is grown from totals by ffgb, not by {config.algorithm}")
    for name, only in IDLE.items():
        chosen = config.asked and name not in config.asked  # by a version before, in a run that goes on
        if not chosen and getattr(config, name) not in (None, only):
            raise FFGBError(
                f"{option(name)} has no effect on {config.learner}, whose steps are Newton's on all rows; leave it out"
            )
    if geometry != "shared":
        raise FFGBError(
            f"{config.learner} is grown in the geometry of all rows; leave {option('geometry')} out, or choose "
            f"{option('learner', 'tree')}"
        )
    if config.distill in ("clients", "server"):
        raise FFGBError(f"{option('distill', config.distill)} is for clients that train on their own; leave it out")


def _check_weights(config: Any, chosen: Mapping[str, Any]) -> None:
    share, clients = config.largest_weight, chosen["clients"]
    if share is not None and chosen["client_weights"] != "size":
        raise FFGBError(
            f"{option('largest_weight')} is for clients that weigh by their rows; add "
            f"{option('client_weights', 'size')}"
        )
    if share is not None and share * clients < 1:
        raise FFGBError(
            f"{option('largest_weight', f'{share:g}')} is less than an equal share of {clients} clients; "
            f"choose {1 / clients:.3g} or more"
        )


def _check_distillation(config: Any, closed: bool) -> None:
    if config.distill and closed:
        raise FFGBError(f"{option('distill')} is for ensembles; {config.learner} is one array, whatever was added")
    if config.distill_rounds != type(config)().distill_rounds and config.distill != "rounds":
        raise FFGBError(f"{option('distill_rounds')} is for {option('distill', 'rounds')}")
    if bool(config.distill_data) != (config.distill == "server"):
        raise FFGBError(
            f"{option('distill', 'server')} needs points of the server's own, and {option('distill_data')} names their "
            "files: give both, or none"
        )
    if config.distill == "server" and config.schedule == "search":
        raise FFGBError(f"{option('distill', 'server')} cannot be combined with {option('schedule', 'search')}")
    if config.distill == "rounds" and config.learner in ("tree", *GROWN):
        raise FFGBError(
            f"{option('distill', 'rounds')} moves a learner by gradients, and trees have none; use "
            f"{option('distill', 'clients')}"
        )


def _check_lipschitz(config: Any) -> None:
    """Maps and learners whose Lipschitz constant is known."""
    if config.learner not in (*CLOSED, "mlp"):
        raise FFGBError(
            f"ffgb-l needs functions whose Lipschitz constant is known, and {config.learner} has none: trees jump, and "
            f"nets of your own may be as steep as they like; choose {option('learner', 'features')}, linear or mlp"
        )
    for name in (config.map or "inputs").split("+"):
        if name not in SMOOTH and not Encoder.names(name):
            raise FFGBError(f"ffgb-l needs a map without jumps, and {name} has some; choose {', '.join(SMOOTH)}")
