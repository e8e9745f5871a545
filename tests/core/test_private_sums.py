"""How far one row moves an answer, attacked: whatever a row holds, and whatever a question says."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffgb.core.points import Points
from ffgb.core.private_question import PrivateQuestion, clipped, unit_for
from ffgb.core.private_sums import CellBlocks, ColumnCounts, PairCounts, ResidualSums, all_pairs
from ffgb.core.questions import Here
from ffgb.errors import FFGBError
from ffgb.features.bins import Bins, Column

COSTS: dict[str, Any] = {"mu": 0.2, "shares": 3, "rows": 1, "seed": 0}
BINS = Bins.of(
    [
        Column("age", np.array([0]), 4, np.array([20.0, 40.0, 60.0]), False, 4, True, 4),
        Column("job", np.array([1, 2]), -1, np.arange(2), True, 2, True, 2),
        Column("dose", np.array([3]), -1, np.array([0.5]), False, 2, False, 2),
    ]
)
CELLS = BINS.layout.cells.astype(np.int16)
MAINS = CellBlocks.of([((c, np.arange(int(CELLS[c]))),) for c in range(3)], CELLS)
PAIRS = all_pairs([np.minimum(np.arange(int(size)), 1) for size in CELLS], CELLS)
NAN = math.nan


def column_counts() -> ColumnCounts:
    inputs, first = np.array([0, 1, 2, 3], np.int32), np.array([0, 1, 3, 4], np.int32)
    low, high = np.array([0.0, NAN, 0.0]), np.array([100.0, NAN, 1.0])
    return ColumnCounts(inputs, first, np.array([4, -1, -1], np.int32), low, high, 2.0**-8, **COSTS)


def test_a_missing_value_is_counted_wherever_its_flag_stands() -> None:
    low, high = np.array([0.0]), np.array([100.0])
    x = np.array([[1.0, 30.0], [0.0, 30.0], [0.0, NAN]], np.float32)  # the flag comes first
    points = Points(0, x, np.zeros(3))
    for flag, gone in ((0, 2.0), (-1, 1.0)):
        counts = ColumnCounts(
            *(np.array([1], np.int32), np.array([0, 1], np.int32), np.array([flag], np.int32), low, high, 2.0**-8),
            **COSTS,
        )
        assert counts.total(counts.part(Here(points, 1.0)))["missing"].tolist() == [gone]


def residual_sums(
    task: Literal["binary", "classes", "numbers"], outputs: int = 1, norm: float = 1.0, blocks: CellBlocks = MAINS
) -> ResidualSums:
    rng = np.random.default_rng(0)
    terms, spread = 3.0 * rng.standard_normal((outputs, int(MAINS.starts[-1]))), 0.3 if task == "numbers" else 0.0
    return ResidualSums(
        *(BINS, blocks, task, rng.standard_normal(outputs), MAINS, terms, 5.0, 2.0, 0.7, 2.0, norm, spread),
        unit_for(norm, 0.2, 3),
        **COSTS,
    )


def part(question: PrivateQuestion, x: Any, y: Any) -> dict[str, Any]:
    points = Points(0, np.asarray(x, np.float32).reshape(-1, 5), np.asarray(y))
    with np.errstate(all="ignore"):
        return dict(question.part(Here(points, 1.0)))


def norm(parts: dict[str, Any]) -> float:
    return sum(float(np.square(array).sum()) for array in parts.values())


anything = st.floats(width=32, allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, 1.0, NAN, math.inf, 1e30])
rows = st.lists(anything, min_size=5, max_size=5)
QUESTIONS: list[PrivateQuestion] = [
    column_counts(),
    PairCounts(BINS, PAIRS, 2.0**-8, **COSTS),
    residual_sums("binary"),
    residual_sums("binary", norm=0.3),
    residual_sums("binary", blocks=PAIRS),
    residual_sums("classes", 4, norm=math.sqrt(2.0)),
    residual_sums("numbers", norm=0.7 * math.sqrt(1.0 + 0.35**2)),
]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(QUESTIONS), rows, st.sampled_from([0, 1, 2, 3, -1, 99]) | anything)
def test_no_row_moves_an_answer_farther_than_its_sensitivity(question: PrivateQuestion, row: Any, y: Any) -> None:
    found = part(question, [row], [y])
    assert all(np.isfinite(array).all() and (array == np.round(array)).all() for array in found.values())
    assert norm(found) <= question.square


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(QUESTIONS), st.lists(rows, min_size=2, max_size=4))
def test_rows_add_up_exactly(question: PrivateQuestion, some: Any) -> None:
    y = [0] * len(some)
    together, single = part(question, some, y), [part(question, [row], [0]) for row in some]
    for name, array in together.items():
        assert (array == sum(each[name] for each in single)).all()


def test_the_sensitivity_is_reached() -> None:
    """Noise is not larger than it must be."""
    for question, row, y in ((column_counts(), [50, 1, 0, 0.2, 0], 0), (QUESTIONS[1], [50, 1, 0, 0.2, 0], 0)):
        assert norm(part(question, [row], [y])) == question.square
    sure = replace(residual_sums("binary"), constant=np.array([40.0]), terms=np.zeros((1, int(MAINS.starts[-1]))))
    assert norm(part(sure, [[50, 1, 0, 0.2, 0]], [0])) > 0.999 * sure.square


def test_residual_and_curvature_of_classes_are_within_their_norms() -> None:
    """(p − y)² + 8p²(1 − p)² ≤ 1, and over several classes Σ (p − y)² + 4 Σ p²(1 − p)² ≤ 2: nothing is clipped."""
    p = np.linspace(0.0, 1.0, 20_001)
    assert (p**2 + 8.0 * (p * (1.0 - p)) ** 2).max() <= 1.0 + 1e-12
    # the two lemmas of docs/privacy.md
    assert (1.0 + p - 8.0 * p**2 + 8.0 * p**3).min() > 0.447
    assert (5.0 * p - 8.0 * p**2 + 4.0 * p**3).max() <= 1.0 + 1e-12
    rng = np.random.default_rng(0)
    for classes in (3, 4, 10):
        q = rng.dirichlet(np.full(classes, 0.2), 20_000)
        residual = q - np.eye(classes)[0]
        assert (np.square(residual).sum(axis=1) + 4.0 * np.square(q * (1.0 - q)).sum(axis=1)).max() <= 2.0 + 1e-12


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(anything, min_size=3, max_size=3), min_size=1, max_size=4), st.integers(1, 10**9))
def test_clipped_rows_are_whole_and_short(values: Any, square: int) -> None:
    found = clipped(np.array(values, np.float64), square)
    assert found.dtype == np.int64
    assert ((found.astype(object) ** 2).sum(axis=1) <= square).all()


def test_no_row_is_too_long_to_be_found_out() -> None:
    """A row of very many large numbers, whose sum of squares is beyond 2^63, was not shortened once."""
    outputs, square = 64, 2**56
    long = np.full((1, 2 * outputs), float(math.isqrt(square)))
    with pytest.raises(FFGBError, match="too fine a unit"):
        clipped(long, square)
    largest = 2**62 // (2 * outputs) - 1
    found = clipped(np.full((1, 2 * outputs), float(math.isqrt(largest))), largest).astype(object)
    assert 0.999 * largest < (found**2).sum() <= largest


def test_sums_that_floating_point_could_round_are_refused() -> None:
    """A row may move a total by what it adds, and by nothing else."""
    question = replace(residual_sums("binary"), unit=2.0**-29)
    question.check_rows(2**20)
    with pytest.raises(FFGBError, match="too fine a unit for"):
        question.check_rows(2**25)


def test_noise_follows_from_the_price_and_the_shares() -> None:
    question = residual_sums("binary")
    one = replace(question, shares=1)
    assert one.deviation == pytest.approx(question.deviation * math.sqrt(3), rel=1e-4)
    assert replace(question, rows=2).deviation == pytest.approx(2 * question.deviation, rel=1e-4)
    assert replace(question, mu=0.1).deviation == pytest.approx(2 * question.deviation, rel=1e-4)
    exact = math.sqrt(question.square / 3) / 0.2
    assert exact <= question.deviation <= 1.001 * exact + 1


@pytest.mark.parametrize("wrong", [{"mu": 0.0}, {"mu": NAN}, {"mu": -1.0}, {"mu": 1e9}, {"shares": 0}, {"rows": 0}])
def test_questions_without_noise_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(FFGBError, match="does not say how much"):
        _ = replace(residual_sums("binary"), **wrong).deviation


def test_coarse_units_are_refused() -> None:
    with pytest.raises(FFGBError, match="coarse"):
        _ = replace(column_counts(), unit=1.0, mu=50.0).deviation


def test_counts_are_those_of_the_rows() -> None:
    x = [[10, 1, 0, 0.2, 0], [99, 0, 1, 0.9, 0], [0, 0, 0, 0.2, 1], [NAN, 1, 0, 5.0, 0]]
    question = column_counts()
    counts = question.total({name: a.copy() for name, a in part(question, x, [0] * 4).items()})
    assert counts["missing"].tolist() == [2.0, 0.0]
    assert counts["categories"].tolist() == [2.0, 1.0, 1.0]
    assert counts["level 16"].sum(axis=1).tolist() == [2.0, 4.0]
    assert counts["level 1024"][1, -1] == 1.0  # beyond its bounds
    for coarse, fine in ((16, 64), (64, 256), (256, 1024)):
        assert (counts[f"level {fine}"].reshape(2, coarse, -1).sum(axis=2) == counts[f"level {coarse}"]).all()


def test_residuals_are_those_of_the_model() -> None:
    question, x, y = residual_sums("binary"), [[10, 1, 0, 0.2, 0], [70, 0, 1, 0.9, 0]], [1, 0]
    residual, curvature, _ = question.total(part(question, x, y))
    z = BINS(np.asarray(x, np.float32))
    f = question.constant[0] + sum(question.terms[0, MAINS.starts[c] + z[:, c]] for c in range(3))
    p = 1.0 / (1.0 + np.exp(-f))
    for c in range(3):
        for values, sums in ((p - y, residual), (p * (1.0 - p), curvature)):
            cells = sums[0, MAINS.starts[c] : MAINS.starts[c + 1]]
            assert cells == pytest.approx(np.bincount(z[:, c], values, len(cells)), abs=4 * question.unit)


@final
@dataclass(frozen=True, eq=False)
class Tiny(PrivateQuestion):
    """A question whose row moves one number by one unit."""

    what: ClassVar[str] = "ones"
    mu: float
    shares: int = 1
    rows: int = 1
    seed: int = 0
    size: int = 1

    @property
    def square(self) -> int:
        return self.size

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"ones": (1,)}

    def part(self, here: Here) -> dict[str, Any]:
        return {"ones": np.ones(1)}

    def total(self, sums: Any) -> Any:
        return sums


def test_a_share_of_the_noise_has_256_units_at_least() -> None:
    margin = math.sqrt(1.0 + 2.0**-10)
    assert Tiny(margin / 255.5).deviation == 256
    assert Tiny(margin / 127.75, rows=2).deviation == 256
    assert Tiny(margin / 127.75, shares=4, size=16).deviation == 256
    with pytest.raises(FFGBError, match="a deviation is 255 of them"):
        _ = Tiny(margin / 254.5).deviation
    for mu in (1e-6, 100.0):
        with pytest.raises(FFGBError, match="does not say how much"):
            _ = Tiny(mu, size=2**60).deviation
    assert Tiny(1.01e-6).deviation > 0
    assert Tiny(99.9, size=2**60).deviation > 0


def test_sums_of_a_question_are_whole_and_bounded() -> None:
    assert {name: (each.shape, each.bound, each.kind) for name, each in Tiny(0.5).sums.items()} == {
        "ones": ((1,), 2.0**60, "count")
    }
    question = Tiny(0.5, size=15**2)
    question.check_rows(2**53 // 16 - 1)
    with pytest.raises(FFGBError, match="too fine a unit for"):
        question.check_rows(2**53 // 16)


@pytest.mark.parametrize(
    ("norm", "mu", "shares", "unit"),
    [(1.0, 1.0, 1, 2.0**-17), (8.0, 1.0, 1, 2.0**-14), (1.0, 0.25, 4, 2.0**-16), (1.0, 1e-9, 1, 2.0**-4)],
)
def test_units_are_fine_beside_the_noise(norm: float, mu: float, shares: int, unit: float) -> None:
    assert unit_for(norm, mu, shares) == unit


def test_rows_are_clipped_at_their_norm_and_not_before() -> None:
    assert clipped(np.array([[3.0, 4.0]]), 25).tolist() == [[3, 4]]
    assert clipped(np.array([[3.0, 4.0]]), 24).tolist() == [[2, 3]]
    assert clipped(np.array([[0.5, 1.5, -2.5]]), 25).tolist() == [[0, 2, -2]]
    assert clipped(np.array([[np.nan, np.inf, -np.inf]]), 10**6).tolist() == [[0, 707, -707]]
    with pytest.raises(FFGBError, match="too fine a unit for so many numbers"):
        clipped(np.zeros((1, 4)), 2**60)
    clipped(np.zeros((1, 3)), 2**60)
