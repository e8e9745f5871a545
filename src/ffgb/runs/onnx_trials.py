"""Rows to try an ONNX file on: around the places where the model jumps or bends, with gaps and unknown categories."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np

from ffgb.core.functions import Clipped, Function, OpenSum
from ffgb.core.maps import FeatureMap
from ffgb.core.types import Array
from ffgb.features.basic import Clip, Flatten, Standardize
from ffgb.features.tables import Columns, ObliviousTrees, RankWaves, Steps
from ffgb.learners.trees import Tree
from ffgb.runs.model import Model

ROWS, IMAGES = 1000, 500
"""That a file is tried on before it is written."""


def _cuts(columns: Iterable[Columns], clips: Iterable[Clip], f: Function) -> dict[int, Array]:
    """Where maps and trees cut or clip an input, by input; nothing for those that they do not cut."""
    cuts = defaultdict[int, list[Array]](list)
    for table in columns:
        for j, count in enumerate(table.count):
            cuts[j].append(table.cuts[j, :count])
    for clip in clips:
        for j, (low, high) in enumerate(zip(clip.low, clip.high, strict=True)):
            cuts[j].append(np.array([low, high] if low < high else [], np.float64))
    for j, threshold in _thresholds(f):
        cuts[j].append(threshold)
    merged = {j: np.unique(np.concatenate(found).astype(np.float64)) for j, found in cuts.items()}
    return {j: found for j, found in merged.items() if len(found)}


@final
@dataclass(frozen=True, eq=False)
class _Places:
    """Where a model's inputs lie, as far as it knows itself."""

    mean: Array
    spread: Array
    cuts: Mapping[int, Array]
    """Where it jumps or bends, by input."""
    binary: frozenset[int]
    """Inputs that are 0 or 1: sums of them are compared, and of other numbers a sum depends on its order."""
    known: bool
    """Whether it knows anything."""

    @staticmethod
    def of(model: Model) -> _Places:
        inputs, maps = int(np.prod(model.shape)), list(_maps(model.family.features))
        mean, spread, scaled = np.zeros(inputs), np.ones(inputs), False
        for phi in maps:
            match phi:
                case Standardize(inner=Flatten() | Clip(inner=Flatten())):
                    scaled, mean, spread = True, phi.mean, np.where(np.isfinite(phi.scale), phi.scale, 1.0)
        columns = [phi.columns for phi in maps if isinstance(phi, Steps | ObliviousTrees | RankWaves)]
        binary = frozenset(int(j) for table in columns for unit in table.units if len(unit) > 1 for j in unit)
        cuts = _cuts(columns, [phi for phi in maps if isinstance(phi, Clip)], model.f)
        if not scaled:
            for j, found in cuts.items():
                mean[j], spread[j] = np.median(found), float(np.std(found)) or max(1.0, abs(float(found[0])))
        return _Places(mean, spread, cuts, binary, scaled or bool(cuts))

    def draw(self, j: int, rows: int, rng: np.random.Generator) -> Array:
        """Numbers of one input, float32: in its range, at the places where the model jumps, and right beside them."""
        if j in self.binary:
            return rng.integers(0, 2, rows).astype(np.float32)
        wide: Array = (self.mean[j] + self.spread[j] * rng.standard_normal(rows)).astype(np.float32)
        if j not in self.cuts:
            return wide
        at = rng.choice(self.cuts[j], rows).astype(np.float32)
        beside = [np.nextafter(at, np.float32(side * np.inf)) for side in (-1, 1)]
        drawn: Array = np.choose(rng.integers(0, 5, rows), [wide, wide, at, *beside])
        return drawn


def _maps(phi: FeatureMap) -> Iterator[FeatureMap]:
    """A map and all that it is made of."""
    yield phi
    for part in getattr(phi, "parts", ()) or ([phi.inner] if hasattr(phi, "inner") else []):
        yield from _maps(part)


def _thresholds(f: Function) -> Iterator[tuple[int, Array]]:
    """Of the trees in a function, by the input that they look at."""
    f = f.inner if isinstance(f, Clipped) else f
    if not (isinstance(f, OpenSum) and isinstance(f.family, Tree) and isinstance(f.family.features, Flatten)):
        return
    (block,) = f.merged().blocks
    feature, threshold = (np.ravel(block.stack[name]) for name in ("feature", "threshold"))
    real = np.abs(threshold) < np.finfo(np.float32).max  # a branch that ends early has none
    for j in np.unique(feature[real]):
        yield int(j), np.unique(threshold[real & (feature == j)])


def trials(model: Model, points: Array | None) -> tuple[list[Mapping[str, Array]], str]:
    """Rows to try a file on, and what they are: given ones, and random ones around what the model knows.

    Numbers are float32 here, as the file takes them: in float64 they may lie on the other side of a threshold.
    """
    rng, places = np.random.default_rng(0), _Places.of(model)
    around = " around the model's own thresholds and ranges" if places.known else ""
    if model.table is None:
        image = len(model.shape) > 1
        rows = IMAGES if image else ROWS
        x = np.stack([places.draw(j, rows, rng) for j in range(int(np.prod(model.shape)))], axis=1)
        if image and not places.known:
            x[::2] = rng.random(x[::2].shape, np.float32)  # as pixels mostly are
        given: list[Mapping[str, Array]] = [] if points is None else [{"x": points}]
        tried = f"{rows:,} random {'images' if image else 'rows'}{around}"
        more = "" if points is None else f" and {len(points):,} given ones"
        return [{"x": x.reshape(-1, *model.shape)}, *given], tried + more
    raw: dict[str, Array] = {}
    place, odd = 0, dict[str, None]()
    for c in model.table.columns:
        if c.categories is not None:
            raw[c.name] = rng.choice(np.array([*c.categories, "what no one has seen", None], object), ROWS)
            place += len(c.categories)
            odd["unknown categories"] = None
            continue
        numbers = places.draw(place, ROWS, rng).astype(np.float64)
        numbers = np.where(rng.random(ROWS) < 0.1, np.float64(np.float32(c.fill)), numbers)
        raw[c.name] = np.where(rng.random(ROWS) < 0.2, np.nan, numbers)
        place += 1
        odd["missing values"] = None
    return [raw], f"{ROWS:,} random rows{around}, with {' and '.join(odd)}"
