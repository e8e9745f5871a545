"""What a question accepts at the very limit of what can be, and what it refuses one step beyond."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ffgb.core.exact_sums import ORDERS, TargetOrders, TargetSums
from ffgb.core.gradients import SlopesOf
from ffgb.core.grams import GramOf
from ffgb.core.losses import Logistic
from ffgb.core.moments import MAGNITUDES, MagnitudeOf, MomentsOf, check_bounds
from ffgb.core.quantiles import BelowEdges
from ffgb.core.questions import Question
from ffgb.core.regression.cox import ConcordantPairs, EventCounts
from ffgb.core.regression.kaplan_meier import TimeCounts
from ffgb.core.regression.sums import CellCounts, ColumnOrders
from ffgb.core.steepness import SteepnessOf
from ffgb.core.survey import CHECK, LETTERS, FileCounts, NameCounts, NamesIn
from ffgb.errors import FFGBError
from ffgb.features.basic import Flatten

ROWS = 3
"""Of the client whose parts these are."""

Lies = list[tuple[str, dict[str, Any]]]


def orders(*entries: tuple[int, float]) -> np.ndarray:
    counts = np.zeros((1, ORDERS + 1))
    for place, count in entries:
        counts[0, place] = count
    return counts


def magnitudes(*entries: tuple[int, float]) -> np.ndarray:
    counts = np.zeros((1, len(MAGNITUDES)))
    for place, count in entries:
        counts[0, place] = count
    return counts


STEEP = {"steeper": [3.0, 3.0], "conflicts": [3.0], "errors": [0.0, 4.0], "extremes": [0.0, 1.0]}
FILES = {"rows": [2.0, 0.0], "counts": [[0.0, 2.0], [2.0, 0.0]]}
NAMES = {name: np.full((1, 2), 1.0) for name in ("counts", "marks", "proofs")}
HONEST: dict[str, tuple[Question, dict[str, Any], Lies]] = {
    "slopes of labels": (
        # labels are up to 1 and their mean is 0, so that no error is larger than (2 · 1)²; three rows make three pairs
        SteepnessOf(Flatten(1), np.zeros(1), np.ones(1), 1.0, (1.0, 2.0)),
        STEEP,
        [
            ("no such numbers", {"steeper": [3.0, -1.0]}),
            ("no such numbers", {"steeper": [2.0, 3.0]}),
            ("no such numbers", {"conflicts": [-1.0]}),
            ("no such numbers", {"errors": [-1.0, 0.0]}),
            ("no such numbers", {"extremes": [-1.0, 1.0]}),
            ("more pairs than 3 points", {"steeper": [4.0, 3.0]}),
            ("more pairs than 3 points", {"conflicts": [4.0]}),
            ("larger than its labels", {"errors": [0.0, 4.01]}),
            ("larger than it said", {"extremes": [0.0, 1.01]}),
        ],
    ),
    "files": (
        FileCounts(("a", "b")),
        FILES,
        [
            ("counts of rows and values", {"rows": [3.0, -1.0]}),
            ("counts of rows and values", {"counts": [[-1.0, 2.0], [2.0, 0.0]]}),
            ("more values in a column", {"counts": [[1.0, 2.0], [2.0, 0.0]]}),
        ],
    ),
    "categories": (
        NameCounts(("a",), (0,), (0,), 1),
        NAMES,
        [
            *(("negative", {name: np.full((1, 2), -1.0)}) for name in NAMES),
            ("marks of categories are larger", {"marks": np.full((1, 2), 2.0**22)}),
        ],
    ),
    "names": (
        NamesIn(("a",), (11,), (0,), (0,), (10,), (0,)),
        {"letters": np.zeros((1, 2 + LETTERS + CHECK))},
        [("none", {"letters": np.full((1, 2 + LETTERS + CHECK), -1.0)})],
    ),
    "rows and cells": (
        CellCounts(),
        {"rows": [2.0, 0.0], "cells": [2.0, 0.0]},
        [
            ("counts of rows", {"rows": [2.0, -1.0]}),
            ("counts of rows", {"cells": [2.0, -1.0]}),
            ("counts of rows", {"cells": [3.0, 0.0]}),
        ],
    ),
    "orders of columns": (
        ColumnOrders((), np.zeros(0)),
        {"orders": [[0.0, 3.0], [3.0, 0.0]]},
        [
            ("orders of magnitude", {"orders": [[0.0, 3.0], [4.0, -1.0]]}),
            ("orders of magnitude", {"orders": [[0.0, 3.0], [2.0, 0.0]]}),
            ("orders of magnitude", {"orders": [[0.0, 3.0], [4.0, 0.0]]}),
        ],
    ),
    "events": (
        EventCounts(None),  # type: ignore[arg-type]
        {"counts": [2.0, 0.0, 2.0]},
        [
            ("rows and events", {"counts": [2.0, -1.0, 2.0]}),
            ("rows and events", {"counts": [2.0, 0.0, 3.0]}),
        ],
    ),
    "concordant pairs": (
        ConcordantPairs(None, None, np.zeros(1), 2),  # type: ignore[arg-type]
        {"pairs": [[2.0, 1.0, 3.0], [0.0, 0.0, 0.0]]},
        [
            ("counts of pairs", {"pairs": [[2.0, 1.0, 3.0], [0.0, -1.0, 0.0]]}),
            ("counts of pairs", {"pairs": [[2.0, 2.0, 3.0], [0.0, 0.0, 0.0]]}),
            ("counts of pairs", {"pairs": [[2.0, 1.0, 3.0], [1.0, 0.0, 0.0]]}),
        ],
    ),
    "events by time": (
        TimeCounts(None, (), np.zeros(1)),  # type: ignore[arg-type]
        {"counts": [[[0.0, 1.0]]]},
        [("negative", {"counts": [[[-1.0, 1.0]]]})],
    ),
    "orders of targets": (
        TargetOrders(np.zeros(1)),
        dict.fromkeys(("weights", "values", "squares"), orders((0, 1.0), (5, 2.0))),
        [
            ("do not add up to its 3 rows", {"values": orders((0, 1.0), (5, 1.0))}),
            ("do not add up to its 3 rows", {"squares": orders((0, 1.0), (5, 3.0))}),
            ("do not add up to its 3 rows", {"weights": orders((0, -1.0), (5, 4.0))}),
        ],
    ),
    "sums of targets": (
        TargetSums(np.zeros(1), np.ones((3, 1))),
        {"sums": [[0.0], [-2.0], [0.0]]},
        [
            ("negative", {"sums": [[-1.0], [0.0], [0.0]]}),
            ("negative", {"sums": [[0.0], [0.0], [-1.0]]}),
        ],
    ),
    "orders of magnitude": (
        MagnitudeOf(None, np.zeros(1)),
        {"clients": magnitudes((4, 1.0))},
        [
            ("one order of magnitude", {"clients": magnitudes()}),
            ("one order of magnitude", {"clients": magnitudes((4, 1.0), (5, 1.0))}),
            ("one order of magnitude", {"clients": magnitudes((4, 2.0), (5, -1.0))}),
        ],
    ),
    "moments": (
        MomentsOf(None, np.zeros(1), np.full(1, 2.0)),
        {"mean": [1.0], "square": [1.0]},
        [("negative variance", {"mean": [1.0], "square": [0.99]})],
    ),
    "the Gram": (
        # the variances of two features that are one, then their covariance: 1/4 each
        GramOf(Flatten(2), (2,), 1, np.zeros(2), np.ones(2)),
        {"mean": [0.5, 0.0], "gram": [0.25, 0.25, 0.25]},
        [
            ("negative variance", {"gram": [0.25, 0.0, -0.01]}),
            ("negative variance", {"mean": [0.51, 0.0]}),
            ("larger than its variances", {"gram": [0.25, 0.26, 0.25]}),
            ("larger than its variances", {"gram": [0.25, -0.26, 0.25]}),
            ("larger than its variances", {"gram": [0.25, 0.01, 0.0]}),
        ],
    ),
    "slopes along a line": (
        # the gradient of the logistic loss is 1 at most, and grows by a quarter a step; the line is 2 long
        SlopesOf(Logistic(), 1.0, 0.0, lengths=(0.0, 1.0, 2.0)),
        {"slopes": [-2.0, -1.0, 0.0], "square": [4.0]},
        [
            ("mean square of -0.01", {"square": [-0.01]}),
            ("do not increase", {"slopes": [-2.0, -1.0, -1.01]}),
            ("sent slopes from -2.01", {"slopes": [-2.01, -1.01, -0.01]}),
            ("sent slopes from 2.01", {"slopes": [2.01, 2.01, 2.01]}),
            ("sent slopes from -2 to 0", {"slopes": [-2.0, -0.99, 0.0]}),
            ("sent slopes from -2 to 0.01", {"slopes": [-2.0, -1.0, 0.01]}),
            ("sent slopes from", {"square": [3.95]}),
        ],
    ),
    "slopes along a line that shrinks f": (
        SlopesOf(Logistic(), 0.9, 0.1, lengths=(0.0, 1.0, 2.0)),
        {"slopes": [-9.0, 0.0, 9.0], "square": [0.0]},
        [("do not increase", {"slopes": [-9.0, 9.0, 8.9]})],
    ),
    "shares below edges": (
        BelowEdges(np.array([[0.0, 1.0, 2.0]])),
        {"below": np.array([[0.0, 0.5, 1.0]])},
        [
            ("below some edges", {"below": np.array([[-1e-6, 0.5, 1.0]])}),
            ("below some edges", {"below": np.array([[0.0, 0.5, 0.499]])}),
            ("below some edges", {"below": np.array([[0.0, 0.5, 1.0001]])}),
        ],
    ),
}


@pytest.mark.parametrize("name", HONEST)
def test_what_is_possible_is_accepted_and_the_next_number_is_not(name: str) -> None:
    question, honest, lies = HONEST[name]
    own = {key: np.asarray(value, np.float64) for key, value in honest.items()}
    question.check(own, ROWS, 1.0)
    for words, lie in lies:
        with pytest.raises(FFGBError, match=words):
            question.check(own | {key: np.asarray(value, np.float64) for key, value in lie.items()}, ROWS, 1.0)


def test_a_total_of_orders_has_one_for_each_client() -> None:
    question = MagnitudeOf(None, np.zeros(1))
    question.check_total({"clients": magnitudes((4, 1.0), (5, 2.0))}, ROWS, 3)
    for wrong in (magnitudes((4, 1.0), (5, 1.0)), magnitudes((4, 4.0), (5, -1.0))):
        with pytest.raises(FFGBError, match="3 clients should name"):
            question.check_total({"clients": wrong}, ROWS, 3)


def test_features_cannot_be_beyond_their_bounds() -> None:
    bounds = np.array([np.inf, 2.0])
    check_bounds(bounds, np.array([1e9, 1.2]), np.array([1e9, 2.56]))  # 1.2² + 1.6² = 2²
    with pytest.raises(FFGBError, match=r"its feature 1 has a mean of 1\.2 and a variance of 2\.6"):
        check_bounds(bounds, np.array([1e9, 1.2]), np.array([1e9, 2.6]))
