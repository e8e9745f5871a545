"""Sums as integers: the one way in which parts of clients become totals.

A part is rounded to whole multiples of its unit, and parts are added as integers.  Integer sums do not depend on the
order, so a total has the same bits however clients are spread over processes, machines and engines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from ffgb.core.questions import Sum
from ffgb.core.types import Array, Tensors
from ffgb.errors import DivergedError, FFGBError, option

SHARE, ROWS = "#share", "#rows"
"""Names of arrays that masked parts have besides those of the question: the client's share of a mean, and its rows."""
SHARES = Sum((1,), 1.0)


def with_share(sums: Mapping[str, Sum]) -> dict[str, Sum]:
    """The sums of a question, and those that say of how much a total is, whoever answered."""
    return {**sums, SHARE: SHARES, ROWS: Sum((1,), 2.0**62, kind="count")}


def share_of(parts: Iterable[float]) -> float:
    """The sum of some clients' shares of a mean, as integers give it: the same in any order."""
    unit = float(SHARES.unit)
    return sum(round(part / unit) for part in parts) * unit


def to_integers(part: Tensors, sums: Mapping[str, Sum]) -> dict[str, Array]:
    """A client's part as it travels.

    Raises a DivergedError if a number is beyond its bound: sums of more might not fit.
    """
    found: dict[str, Array] = {}
    for name, each in sums.items():
        values = np.asarray(part[name], np.float64)
        if values.shape != each.shape:
            raise FFGBError(f"the part {name} has the shape {values.shape}, not {each.shape}")
        if not (np.abs(values) <= np.asarray(each.bound) * (1.0 + 1e-9) + each.unit).all():
            raise DivergedError(
                f"{name} is beyond its bound; choose a smaller {option('step_size')}, or look for huge values"
            )
        whole = values if each.kind == "largest" else np.rint(values / each.unit)
        found[name] = whole.astype(each.dtype)
    return found


def from_integers(whole: Tensors, sums: Mapping[str, Sum]) -> dict[str, Array]:
    """Integers as the numbers that they stand for."""
    return {name: whole[name].astype(np.float64) * each.unit for name, each in sums.items()}


def check_integers(whole: Tensors, sums: Mapping[str, Sum]) -> None:
    """Raise an FFGBError if these cannot be a client's part: another form, or beyond the bound."""
    if whole.keys() != sums.keys():
        raise FFGBError(f"it has the arrays {sorted(whole)}, expected {sorted(sums)}")
    for name, each in sums.items():
        array = whole[name]
        if array.shape != each.shape or array.dtype != np.dtype(each.dtype):
            raise FFGBError(
                f"its {name} should be {each.dtype} of shape {each.shape}, and is {array.dtype} of {array.shape}"
            )
        if not np.isfinite(array).all():
            raise FFGBError(f"its {name} has values that are not finite")
        beyond = np.abs(array.astype(np.float64)) * each.unit > np.asarray(each.bound) * (1.0 + 1e-6) + 2.0 * each.unit
        if beyond.any():
            worst = float((np.abs(array.astype(np.float64)) * each.unit)[beyond].max())
            raise FFGBError(f"its {name} has a value of {worst:g}, beyond its bound")


def add(parts: Iterable[Tensors], sums: Mapping[str, Sum]) -> dict[str, Array]:
    """The total of parts, as integers: in any order the same."""
    total: dict[str, Array] = {}
    for part in parts:
        for name, each in sums.items():
            array = part[name]
            if name not in total:
                total[name] = array.astype(np.float64 if each.kind == "largest" else np.int64)
            elif each.kind == "largest":
                np.maximum(total[name], array, out=total[name])
            else:
                total[name] += array
    return total
