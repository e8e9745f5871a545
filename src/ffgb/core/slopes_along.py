"""How steeply the sum of losses changes along a step, at some lengths: the same bits over any split of the rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from ffgb.core.exact_sums import EXACT, counted, unit_for, weighed, whole
from ffgb.core.questions import Here, RoundQuestion, Sum, known
from ffgb.core.types import Array, Tensors


@final
@dataclass(frozen=True, eq=False)
class SlopesAlong(RoundQuestion):
    """Σ ⟨∇ℓ(f + a h), h⟩ over all rows for each length a, where h comes with the question.

    No row counts for more than `most`, so that there is a unit in which the sum fits.
    """

    what: ClassVar[str] = "slopes along a step"
    lengths: tuple[float, ...]
    most: float
    rows: int

    @property
    def sums(self) -> Mapping[str, Sum]:
        return {"slopes": counted((len(self.lengths),))}

    @property
    def unit(self) -> float:
        return unit_for(self.rows * self.most, self.rows, EXACT)

    def part(self, here: Here) -> Tensors:
        assert here.loss is not None
        f, y, h = known(here.f), known(here.y), known(here.h)
        with np.errstate(over="ignore", invalid="ignore"):
            each = [weighed(here, here.loss.gradient(f + a * h, y) * h).sum(axis=1) for a in self.lengths]
        # an overflow is as steep as can be
        slopes = np.clip(np.nan_to_num(np.stack(each), nan=self.most), -self.most, self.most)
        return {"slopes": whole(slopes, self.unit).sum(axis=1)}

    def total(self, sums: Tensors) -> Array:
        slopes: Array = sums["slopes"] * self.unit
        return slopes


def safe_length(lengths: tuple[float, ...], slopes: Array) -> float:
    """The longest step that does not go far beyond the minimum along it, from slopes at 0 and at lengths that fall.

    >>> safe_length((0.0, 1.0, 0.5, 0.25), np.array([-1.0, 9.0, 0.2, -0.5]))
    0.5
    """
    start = float(slopes[0])
    fits = slopes[1:] <= max(0.5 * abs(start), 3.0 * start)
    return lengths[1 + int(fits.argmax())] if fits.any() else lengths[-1]
