"""Prediction sets and intervals that hold the truth with a given chance, at each site.

A row's score says how far off the model is: 1 − p of the true class, or |y − prediction|.  A threshold that the scores
of enough held-out rows stay below gives sets (all classes whose score would stay below it) and intervals.  If a new row
comes as the held-out rows of a site came, the truth is inside with at least the chance that was asked for, and at most
1/(n + 1) more for n held-out rows (Vovk, Gammerman & Shafer 2005, whatever the model).

Scores are counted between fixed edges, so counts of sites add up.  Each site with enough rows has thresholds of its
own; the others share those of all of them together.  The largest threshold holds at each site.

>>> found = Conformal.of_scores(np.arange(1, 200) / 200, np.zeros(199, int), ["here"], scale=None)
>>> round(found.threshold(0.9), 3)
0.901
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from scipy.special import expit

from ffgb.core.types import Array
from ffgb.errors import FFGBError, SettingError

COVERAGES = tuple(round(c / 1000, 3) for c in (*range(500, 990, 5), *range(990, 1000)))
"""Chances that thresholds are kept for; one in between takes the next higher."""
FEWEST = 100
"""Held-out rows of a site that has thresholds of its own."""
OTHERS = "others"
"""Sites with fewer rows, together."""
OF_CLASSES = expit(np.arange(-1024, 1025) / 64)
"""Edges of scores of classes."""
OF_NUMBERS = np.geomspace(1e-6, 1e6, 5601)
"""Edges of scores of numbers, in units of their scale: half a percent apart."""


@final
@dataclass(frozen=True)
class Thresholds:
    """Of one site: the scores below which rows stay, one for each chance."""

    rows: int
    values: tuple[float, ...]
    """Infinite where the rows are too few for a chance."""


@final
@dataclass(frozen=True)
class Conformal:
    """Thresholds of sites, by name."""

    of: Mapping[str, Thresholds]

    @staticmethod
    def of_scores(scores: Array, site: Array, names: Sequence[str], scale: float | None) -> Conformal:
        """From the scores of held-out rows, the number of each row's site, and the sites' names.

        `scale` is a typical size of scores of numbers; None for scores of classes.
        """
        edges = OF_CLASSES if scale is None else OF_NUMBERS * scale
        cells = np.searchsorted(edges, scores, side="left")
        counts = np.zeros((len(names), len(edges) + 1), np.int64)
        np.add.at(counts, (site, cells), 1)
        ends = np.append(edges, 1.0 if scale is None else math.inf)
        large = counts.sum(axis=1) >= FEWEST
        found = {name: _thresholds(own, ends) for name, own, enough in zip(names, counts, large, strict=True) if enough}
        if (~large).any() and counts[~large].sum():
            found[OTHERS] = _thresholds(counts[~large].sum(axis=0), ends)
        return Conformal(found)

    def threshold(self, coverage: float, site: str | None = None) -> float:
        """The score below which a row stays with this chance: at a site, or, without one, at each site."""
        if not 0.0 < coverage < 1.0:
            raise SettingError("coverage", f"is a chance between 0 and 1, not {coverage:g}")
        if coverage > COVERAGES[-1]:
            raise SettingError("coverage", f"is {coverage:g}; thresholds are kept for up to {COVERAGES[-1]:g}")
        at = int(np.searchsorted(COVERAGES, coverage - 1e-9))
        if site is None:
            found = max(own.values[at] for own in self.of.values())
        else:
            own = self.of.get(site) or self.of.get(OTHERS)
            if own is None:
                raise SettingError("site", f"is {site!r}; there are thresholds of {', '.join(self.of)}")
            found = own.values[at]
        if math.isinf(found):
            few = min(own.rows for own in self.of.values())
            raise FFGBError(
                f"a coverage of {coverage:g} takes more held-out rows than the {few} that there are; ask for less"
            )
        return found

    def to_json(self) -> dict[str, Any]:
        """As `conformal.json` has it."""
        return {
            "coverages": list(COVERAGES),
            "sites": {
                name: {"rows": own.rows, "thresholds": [None if math.isinf(v) else v for v in own.values]}
                for name, own in self.of.items()
            },
        }

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> Conformal:
        """The inverse of `to_json`."""
        try:
            if tuple(content["coverages"]) != COVERAGES:
                raise FFGBError("its thresholds are those of another version of ffgb; train again")
            return Conformal(
                {
                    str(name): Thresholds(
                        int(own["rows"]), tuple(math.inf if v is None else float(v) for v in own["thresholds"])
                    )
                    for name, own in content["sites"].items()
                }
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FFGBError(f"it holds no thresholds that ffgb wrote ({error})") from error


def _thresholds(counts: Array, ends: Array) -> Thresholds:
    """The ends of the cells in which the rank of each chance lies."""
    rows, up_to = int(counts.sum()), np.cumsum(counts)
    values = []
    for coverage in COVERAGES:
        rank = math.ceil((rows + 1) * coverage - 1e-9)
        values.append(math.inf if rank > rows else float(ends[int(np.searchsorted(up_to, rank))]))
    return Thresholds(rows, tuple(values))
