"""Which learner is trained where none is named: `auto`.

A table gets a blend (algorithms/blended.py), or the best of what can be trained where a blend cannot.  Everything else
gets what suits it: features.  Between real sites numbers of rows choose nothing: an owner agrees to a training before
anyone knows how many rows there are in all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ffgb.core.losses import LOSSES
from ffgb.data import Dataset
from ffgb.features.tables import MANY_FEATURES
from ffgb.learners.additive import Additive
from ffgb.learners.blend import Blend
from ffgb.learners.boosted_trees import BoostedTrees
from ffgb.learners.catalogue import CLOSED

AUTO = "auto"
"""The learner's name where none is chosen."""
FEATURES, LINEAR = CLOSED
FEWEST_ROWS = 100
"""Of a table for trees: bins and leaves need rows."""
MOST_CELLS = 2**24
"""Rows × columns of a blend; a larger table gets trees alone."""
MOST_COLUMNS, MOST_COLUMNS_OF_TREES = 300, 2_000
MOST_CLASSES = 40
"""Of a blend: each class has its own trees, in each version."""
IDLE: Mapping[str, Any] = {
    "local_steps": 1, "schedule": "constant", "mu": 0.0, "step_size": None, "client_weights": "size",
}  # fmt: skip
"""Settings that have no effect on learners that are grown from totals, unless they have these values."""
OF_FEATURES = ("map", "features", "gram", "rank", "ridge", "validation", "precision", "aggregate", "largest_weight")
"""More settings that features have a use for, and blends do not."""


class LearnerChoice(NamedTuple):
    """The learner, and why it is this one."""

    learner: str
    because: str


def choose_learner(config: Any, dataset: Dataset, chosen: Mapping[str, Any]) -> LearnerChoice:
    """What is trained where no learner is named; `chosen` has the loss, and how many clients take part."""
    if dataset.image or dataset.x.ndim != 2:
        return LearnerChoice(FEATURES, "the data are no table")
    if (why := _not_grown(config, dataset, chosen)) is not None:
        return LearnerChoice(FEATURES, why)
    if (why := _too_large_for_trees(dataset)) is not None:
        return LearnerChoice(LINEAR if dataset.x.shape[1] > MANY_FEATURES else FEATURES, why)
    if chosen["loss"] in LOSSES and not LOSSES[chosen["loss"]].alone and dataset.x.shape[1] <= MOST_COLUMNS:
        return LearnerChoice(Additive.name, "times until events: there are fewer events than rows")
    why = _not_blended(config, dataset, chosen["loss"])
    if why is not None:
        return LearnerChoice(BoostedTrees.name, why)
    kinds = f"trees and {Additive.name} models"
    return LearnerChoice(Blend.name, f"a table: {kinds}, chosen and stopped by rows set aside")


def _not_grown(config: Any, dataset: Dataset, chosen: Mapping[str, Any]) -> str | None:
    """Why nothing can be grown from totals of all rows."""
    usual = type(config)()
    if config.algorithm != usual.algorithm:
        return f"{config.algorithm} grows no trees"
    if config.geometry == "local":
        return "the local geometry is not of all rows"
    if chosen["participation"] < chosen["clients"]:
        return "not all clients take part in a round, and trees need sums over the same rows"
    given = [name for name in OF_FEATURES if getattr(config, name) != getattr(usual, name)]
    given += [name for name, only in IDLE.items() if getattr(config, name) not in (None, only)]
    if given:
        return f"the setting {given[0]} is for features, not for trees"
    if len(dataset.x) < FEWEST_ROWS and not _between_sites(config):
        return f"trees need {FEWEST_ROWS} rows"
    return None


def _between_sites(config: Any) -> bool:
    return tuple(config.data) == ("sites",)


def _too_large_for_trees(dataset: Dataset) -> str | None:
    columns = dataset.x.shape[1]
    if columns > MOST_COLUMNS_OF_TREES:
        return f"trees take up to {MOST_COLUMNS_OF_TREES:,} columns, and there are {columns:,}"
    return None


def _not_blended(config: Any, dataset: Dataset, loss: str) -> str | None:
    """Why there can be trees, but no blend."""
    rows, columns = dataset.x.shape
    if not (loss in LOSSES and (LOSSES[loss].classification or LOSSES[loss].smooth)):
        return f"the curvature of the loss {loss} has no bound, so that a blend's steps may go too far"
    if config.group is not None:
        return "a blend sets single rows aside, and a group keeps rows together"
    if rows * columns > MOST_CELLS and not _between_sites(config):
        return f"a blend takes up to {MOST_CELLS:,} cells, and {rows:,} rows of {columns:,} columns are more"
    if columns > MOST_COLUMNS:
        return f"a blend takes up to {MOST_COLUMNS} columns, and there are {columns:,}"
    if len(dataset.classes) > MOST_CLASSES:
        return f"a blend takes up to {MOST_CLASSES} classes, and there are {len(dataset.classes)}"
    return None
