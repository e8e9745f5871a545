"""f⁰ from a model that was trained before, here or elsewhere: `--start`.

A run that starts from a model goes on in its family: the same features, the same scaling of targets, the same columns
and classes.  Steps, rounds, the geometry, the ridge and the algorithm are the run's own.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from ffgb.core.functions import Family
from ffgb.core.losses import Loss
from ffgb.data import Dataset
from ffgb.errors import FFGBError, option
from ffgb.learners.adapter import Adapter
from ffgb.learners.catalogue import CLOSED, trains
from ffgb.learners.linear import Linear
from ffgb.runs.model import Model
from ffgb.settings import RUN, Setting, Values

SHAPING = ("map", "features", "hidden", "depth")
"""Settings that shape a family, which a model has already."""


def starting_model(config: Values) -> Model | None:
    """The model that a run starts from, if it does."""
    return None if config.start is None else Model.load(config.start)


def starting_file(config: Values) -> Path | None:
    """Where that model is."""
    if config.start is None:
        return None
    path = Path(config.start)
    return path / "model.safetensors" if path.is_dir() else path


def learner_of(config: Values, model: Model, default: Values) -> str:
    """The learner's name in a run that starts from a model: that of the model."""
    for name in SHAPING:
        if getattr(config, name) != getattr(default, name):
            raise FFGBError(
                f"{option(name)} shapes learners, and those of {config.start} have their shape; leave it out"
            )
    if config.validation:
        raise FFGBError(f"{option('validation')} tries settings from f⁰ = 0; leave it or {option('start')} out")
    family: Any = model.family
    if isinstance(family, Linear):
        known = config.learner if config.learner in CLOSED else CLOSED[0]
    elif isinstance(family, Adapter) or not getattr(type(family), "name", ""):
        raise FFGBError(f"learners like those of {config.start} cannot be trained here; start from another model")
    else:
        own = getattr(family, "module", "")
        known = own if ":" in own else type(family).name
        known = config.learner if trains(config.learner, known) else known
    # code of a user's own is imported only if the user names it: a model file may be anyone's
    if config.learner not in (known, default.learner) or (":" in known and config.learner != known):
        raise FFGBError(f"{config.start} is a model of {option('learner', known)}; training goes on with that learner")
    return str(known)


def check_start(model: Model, dataset: Dataset, loss: Loss, name: str) -> None:
    """Refuse a model of other points, other classes or another loss."""
    if dataset.x.shape[1:] != model.shape or (model.columns and dataset.columns and dataset.columns != model.columns):
        raise FFGBError(
            f"{name} is a model of points of shape {model.shape}, and these have {dataset.x.shape[1:]}: start from a "
            "model of the same columns"
        )
    if dataset.classes != model.classes:
        raise FFGBError(
            f"{name} is a model of {'the classes ' + ', '.join(model.classes) if model.classes else 'numbers'}, and "
            f"the target has {'the classes ' + ', '.join(dataset.classes) if dataset.classes else 'numbers'}"
        )
    if type(model.job.loss) is not type(loss) or model.job.loss.outputs != loss.outputs:
        raise FFGBError(
            f"{name} was trained with the loss {type(model.job.loss).__name__}, and not {type(loss).__name__}: its "
            f"values mean something else; choose that {option('loss')}"
        )


def with_settings(family: Family, fields: dict[str, Any]) -> Family:
    """The model's family, fitted by the run's own settings."""
    kind: Any = family
    own = {field.name for field in dataclasses.fields(kind)}
    found: Family = dataclasses.replace(kind, **{name: value for name, value in fields.items() if name in own})
    return found


SETTINGS = (
    Setting(
        "start",
        "text",
        "Begin with the function of a model (f⁰): a run directory or a model.safetensors.",
        RUN,
        unset="f⁰ = 0",
        when="To go on with new rows, other sites or another algorithm from a model that is there.",
    ),
)
