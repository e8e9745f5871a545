"""The private mechanism on sums in memory: it learns, spends its budget exactly, and its trees are its terms."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ffgb.algorithms.additive_private import (
    AdditivePrivate,
    AdditiveReleased,
    Fitting,
    Kind,
    Plan,
    Public,
    binned,
    private_family,
    sum_of_blocks,
)
from ffgb.core.losses import LOSSES
from ffgb.core.points import Points
from ffgb.core.private_question import PrivateQuestion
from ffgb.core.private_sums import CellBlocks, ColumnCounts
from ffgb.core.questions import Here
from ffgb.errors import FFGBError
from ffgb.privacy.accountant import composed, mu_of
from tests.algorithms import written_private

PUBLIC = Public(("a", "b", "c"), ((0,), (1,), (2, 3)), (4, -1, -1), (-3.0, -3.0, math.nan), (3.0, 3.0, math.nan))


def table(n: int, seed: int) -> tuple[Any, Any]:
    """Points, and an effect of each column and of a pair."""
    rng = np.random.default_rng(seed)
    x = np.zeros((n, 5), np.float32)
    x[:, :2] = rng.standard_normal((n, 2))
    x[np.arange(n), 2 + rng.integers(0, 2, n)] = 1
    x[rng.random(n) < 0.1, 4] = 1
    f = np.where(x[:, 4] == 1, 1.5, 1.5 * np.sin(2 * x[:, 0])) + x[:, 2] - 0.5 + np.sign(x[:, 0] * x[:, 1])
    return x, f


def agreement(h: Any, x: Any, f: Any) -> float:
    """The correlation of a model with the truth."""
    return float(np.corrcoef(h(x)[:, 0], f)[0, 1])


def fitted(
    kind: Kind,
    x: Any,
    y: Any,
    epsilon: float,
    *,
    scale: float = 4.0,
    noise: int = 0,
    public: Public = PUBLIC,
    **more: Any,
) -> tuple[Any, Any, list[PrivateQuestion]]:
    """The model, and the questions that it took, with the noise of one curator."""
    rng, asked, known = np.random.default_rng(noise), list[PrivateQuestion](), dict[int, Any]()
    outputs = 3 if kind == "classes" else 1
    values = {"pairs": 0, **more}
    plan = Plan(public, kind, outputs, 0.0, scale, len(x), 1, 1, mu_of(epsilon, 1e-5), 0, **values)

    def ask(question: Any) -> Any:
        if isinstance(question, ColumnCounts) and asked:
            return known[0]
        sums = {n: a + rng.normal(0, question.deviation, a.shape).round() for n, a in part(question).items()}
        known[len(asked)] = question.total(sums)
        asked.append(question)
        return known[len(asked) - 1]

    def part(question: PrivateQuestion) -> dict[str, Any]:
        return dict(question.part(Here(Points(0, x, y), 1.0)))

    family = private_family(plan, ask)
    fitting = Fitting(plan, ask, family.features)
    fitting.run()
    released = fitting.released()
    assert isinstance(released, AdditiveReleased)
    name = {"binary": "logistic", "classes": "cross-entropy", "numbers": "square"}[kind]
    loss = LOSSES[name].of(3 if kind == "classes" else 2 if kind == "binary" else 0, outputs)
    h = released.round(0, family.zero(), None, loss, None).h  # type: ignore[arg-type]
    return fitting, h, asked


@pytest.mark.parametrize("pairs", [0, 2])
def test_two_classes(pairs: int) -> None:
    x, f = table(6000, 0)
    y = (np.random.default_rng(1).random(6000) < 1 / (1 + np.exp(-f))).astype(int)
    fitting, h, asked = fitted("binary", x, y, 8.0, pairs=pairs)
    x_new, f_new = table(2000, 2)
    assert agreement(h, x_new, f_new) > (0.9 if pairs else 0.7)
    assert composed(q.mu for q in asked) == pytest.approx(fitting.plan.mu, rel=1e-12)
    assert len(fitting.priors.kernels) - fitting.priors.mains == (1 if pairs else 0)
    # what trees say is what the terms say
    z = fitting.features(x_new)
    by_terms = fitting.fitted[0].constant + sum(
        fitting.fitted[0].terms[start : start + size][code] for start, size, code in fitting.priors.blocks.codes(z)
    )
    assert h(x_new)[:, 0] == pytest.approx(by_terms, abs=1e-9)


def test_numbers() -> None:
    x, f = table(6000, 0)
    _, h, _ = fitted("numbers", x, f, 8.0, pairs=2)
    x_new, f_new = table(2000, 2)
    error = np.sqrt(np.mean((4.0 * h(x_new)[:, 0] - f_new) ** 2))
    assert error < 0.5 * f_new.std()


@pytest.mark.parametrize("noise", range(2))
def test_bounds_that_are_far_too_wide_do_little_harm(noise: int) -> None:
    """Clips, priors and the weights of rounds follow the residuals, and not the bounds of the target."""
    x, f = table(6000, 0)
    x_new, f_new = table(2000, 2)
    errors = []
    for scale in (4.0, 400.0):
        h = fitted("numbers", x, f, 4.0, pairs=2, scale=scale, noise=noise)[1]
        errors.append(np.sqrt(np.mean((scale * h(x_new)[:, 0] - f_new) ** 2)))
    assert errors[1] < 1.1 * errors[0]


@pytest.mark.parametrize("noise", range(2))
def test_a_heavy_tail_moves_no_prediction_far_off(noise: int) -> None:
    """A few rows near bounds that are 100 standard deviations away, and cells with few rows."""
    x, f = table(12000, 0)
    x[:, 0] = np.round(x[:, 0] * 2.0) / 2.0
    rng = np.random.default_rng(3)
    y = f + rng.standard_normal(len(f)) + np.where(rng.random(len(f)) < 0.001, 50.0, 0.0)
    x_new, f_new = table(2000, 2)
    h = fitted("numbers", x, y, 4.0, pairs=4, scale=200.0, noise=noise)[1]
    assert np.abs(200.0 * h(x_new)[:, 0] - f_new).max() < 8.0


@pytest.mark.parametrize("noise", range(2))
def test_few_rows_and_columns_that_say_the_same(noise: int) -> None:
    """Two-way counts tell that columns depend on each other: without them an effect is added up once a column."""
    x = np.repeat(table(4000, 0)[0][:, :1], 10, axis=1)
    public = Public(tuple("abcdefghij"), tuple((i,) for i in range(10)), (-1,) * 10, (-3.0,) * 10, (3.0,) * 10)
    fitting, h, _ = fitted("numbers", x, 2.0 * x[:, 0], 1.0, public=public, noise=noise)
    assert fitting.plan.scarce
    assert not fitting.plan.few
    assert np.mean((4.0 * h(x)[:, 0] - 2.0 * x[:, 0]) ** 2) < 0.5 * 4.0


def test_several_classes() -> None:
    x, f = table(6000, 0)
    y = np.digitize(f, [-1.0, 1.0])
    fitting, h, asked = fitted("classes", x, y, 8.0)
    x_new, f_new = table(2000, 2)
    labels = np.digitize(f_new, [-1.0, 1.0])
    assert (h(x_new).argmax(axis=1) == labels).mean() > max(np.bincount(labels)) / 2000 + 0.1
    assert composed(q.mu for q in asked) == pytest.approx(fitting.plan.mu, rel=1e-12)


def test_few_rows_spend_everything_on_rounds() -> None:
    x, f = table(300, 0)
    fitting, _, asked = fitted("binary", x, (f > 0).astype(int), 1.0)
    assert [type(q).__name__ for q in asked] == ["ResidualSums"] * 4
    assert composed(q.mu for q in asked) == pytest.approx(fitting.plan.mu, rel=1e-12)


def test_with_less_noise_it_is_better() -> None:
    x, f = table(4000, 0)
    y = (np.random.default_rng(1).random(4000) < 1 / (1 + np.exp(-f))).astype(int)
    x_new, f_new = table(2000, 2)
    strong, weak = (agreement(fitted("binary", x, y, e)[1], x_new, f_new) for e in (0.05, 8.0))
    assert weak > strong + 0.1


WRITTEN = json.loads(written_private.FILE.read_text())


def alike(found: Any, expected: Any, place: str) -> None:
    """Numbers as they are written, up to rounding."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), place
        for name, value in expected.items():
            alike(found[name], value, f"{place}/{name}")
    elif expected and isinstance(expected, list) and isinstance(expected[0], dict):
        assert len(found) == len(expected), place
        for k, (one, other) in enumerate(zip(found, expected, strict=True)):
            alike(one, other, f"{place}/{k}")
    elif isinstance(expected, str):
        assert found == expected, place
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7, err_msg=place)


@pytest.mark.parametrize("name", written_private.PLANS)
def test_questions_and_model_are_as_written_down(name: str) -> None:
    alike(written_private.transcript(written_private.PLANS[name]), WRITTEN[name], name)


PLAN = written_private.PLAN


def test_how_many_rows_a_bin_takes() -> None:
    """Effective rows are μ n/(60 √columns) for units of one row; bins are a power of two from 8 to 64."""
    plan = replace(PLAN, mu=2.0, rows_in_all=6000, rows=4)
    assert plan.effective == pytest.approx(2.0 / 4 * 6000 / (60.0 * math.sqrt(3.0)))
    a_bin = 60.0 * math.sqrt(3.0) / PLAN.rows_in_all
    for effective, bins in ((0.1, 8), (11.3, 8), (11.4, 16), (22.7, 32), (45.0, 32), (45.3, 64), (1e4, 64)):
        assert replace(PLAN, mu=effective * a_bin).bins == bins
    for kind, few in (("binary", 8.0), ("classes", 8.0), ("numbers", 2.0)):
        for factor, less in ((0.999, True), (1.001, False)):
            plan = replace(PLAN, kind=kind, mu=few * factor * a_bin)  # type: ignore[arg-type]
            assert plan.few == less
            assert replace(plan, mu=8.0 * factor * a_bin).scarce == less


def test_a_question_has_its_part_of_the_budget_and_all_clients_their_noise() -> None:
    plan = replace(PLAN, mu=2.0, shares=3, clients=4, rows=2, seed=5)
    assert plan.costs(0.25) == {"mu": 1.0, "shares": 3, "rows": 2, "seed": 5}
    # 2^17 units a deviation of a share, up to rounding to a power of two: 2 · 8/(1 · √3) is nearest to 2^3
    assert plan.unit(8.0, 0.25) == 2.0 ** (3 - 17)
    counts = [q for q in fitted_questions(plan) if isinstance(q, ColumnCounts)]
    assert plan.deviation(counts[0]) == 2.0 * counts[0].deviation


def fitted_questions(plan: Plan) -> list[PrivateQuestion]:
    asked = list[PrivateQuestion]()

    def ask(question: Any) -> Any:
        asked.append(question)
        return question.total({name: np.ones(shape) * question.weight for name, shape in question.shapes.items()})

    binned(plan, ask)
    return asked


def test_too_few_rows_are_put_into_bins_of_equal_widths() -> None:
    plan = replace(PLAN, mu=0.01)
    columns = binned(plan, fail)
    assert columns[0].column.cuts.tolist() == pytest.approx([-3.0 + 7.0 * k / 8.0 for k in range(1, 8)])
    assert columns[0].counts.tolist() == [2000 / 9] * 9  # one is for what is missing
    assert columns[1].counts.tolist() == [250.0] * 8
    assert columns[2].counts.tolist() == [500.0] * 4  # one is for what is no category
    first = replace(plan, public=replace(plan.public, inputs=((1,), (2,), (3, 4, 5)), flag=(0, -1, -1)))
    assert len(binned(first, fail)[0].counts) == 9  # the flag may be the first input


def fail(question: Any) -> Any:
    raise AssertionError(question)


def test_a_pair_of_columns_is_a_tree_with_a_leaf_a_cell() -> None:
    columns = [each.column for each in binned(replace(PLAN, mu=0.01), fail)]
    family = private_family(replace(PLAN, mu=0.01), fail)
    assert len(columns) == 3
    cells = family.layout.cells.astype(np.int16)
    groups = np.array([0, 0, 1, 2, 3, 4, 4, 4, 2]), np.array([2, 0, 1, 1])
    blocks = CellBlocks.of([((0, groups[0]), (2, groups[1])), ((1, np.arange(8)),)], cells)
    values = np.arange(1.0, 24.0)[None] ** 2
    h = sum_of_blocks(family, blocks, np.array([0.5]), values)
    x = np.zeros((36 * 8, 6), np.float32)
    z = np.stack(np.meshgrid(np.arange(9), np.arange(8), np.arange(4), indexing="ij"), axis=-1).reshape(-1, 3)
    middles = [[low + (high - low) * (k + 0.5) / 8.0 for k in range(8)] for low, high in ((-3.0, 4.0), (-2.0, 3.0))]
    x[:, 0] = np.array([*middles[0], 0.0])[z[:, 0]]
    x[:, 5] = z[:, 0] == 8  # missing
    x[:, 1] = np.array(middles[1])[z[:, 1]]
    x[np.arange(len(z)), 2 + np.minimum(z[:, 2], 2)] = z[:, 2] < 3
    expected = 0.5 + values[0][groups[0][z[:, 0]] * 3 + groups[1][z[:, 2]]] + values[0][15 + z[:, 1]]
    assert h(x)[:, 0] == pytest.approx(expected)


def test_a_tree_has_256_leaves_at_most() -> None:
    family = private_family(replace(PLAN, mu=4.0), lambda question: ones(question))
    cells = family.layout.cells.astype(np.int16)
    for groups, fits in ((16, True), (17, False)):
        part = np.minimum(np.arange(int(cells[0])), groups - 1), np.minimum(np.arange(int(cells[1])), 15)
        blocks = CellBlocks.of([((0, part[0]), (1, part[1]))], cells)
        values = np.zeros((1, groups * 16))
        if fits:
            sum_of_blocks(family, blocks, np.zeros(1), values)
        else:
            with pytest.raises(FFGBError, match="has 272 cells, more than the 256 leaves"):
                sum_of_blocks(family, blocks, np.zeros(1), values)


def ones(question: Any) -> Any:
    return question.total({name: np.full(shape, 50.0 * question.weight) for name, shape in question.shapes.items()})


def test_a_private_model_is_prepared_before_the_first_round() -> None:
    plan, counts = written_private.PLANS["two classes, few rows"], list[Any]()
    (x, y), rng = written_private.table("binary"), np.random.default_rng(3)

    def ask(question: Any) -> Any:
        counts.append(question)
        parts = sorted(question.part(Here(Points(0, x, y), 1.0)).items())
        noise = {name: np.rint(rng.normal(0.0, plan.deviation(question), array.shape)) for name, array in parts}
        return question.total({name: array + noise[name] for name, array in parts})

    algorithm, family, loss = AdditivePrivate(plan=plan, promise="{}"), private_family(plan, fail), LOSSES["logistic"]
    released = algorithm.prepared(ask, family, loss.of(2, 1), np.zeros(1), np.ones(1))
    assert isinstance(released, AdditiveReleased)
    assert released.promise == "{}"
    assert len(counts) == 4
    expected = WRITTEN["two classes, few rows"]
    np.testing.assert_allclose(released.values, expected["values"], rtol=1e-5, atol=1e-7)
    step = released.round(0, family.zero(), None, loss.of(2, 1), None)  # type: ignore[arg-type]
    assert (step.decay, step.length, step.shown) == (1.0, 1.0, False)
    assert step.measured == {"gamma": None, "explained": None, "noise": None}
    assert [each.eta(k, 3) for each in (algorithm, released) for k in (1, 2)] == [1.0] * 4
    with pytest.raises(FFGBError, match="before training begins"):
        algorithm.round(0, family.zero(), None, loss.of(2, 1), None)  # type: ignore[arg-type]
    nothing = AdditiveReleased().round(0, family.zero(), None, loss.of(2, 1), None).h  # type: ignore[arg-type]
    assert np.abs(nothing(x[:5])).max() == 0.0


@pytest.mark.parametrize(("ratio", "kernels"), [(4.0, 3), (4.01, 5)])
def test_pairs_have_terms_if_there_is_enough_evidence(
    monkeypatch: pytest.MonkeyPatch, ratio: float, kernels: int
) -> None:
    """Of three pairs two at most have terms, beside the columns."""
    monkeypatch.setattr(Fitting, "_evidence", lambda *args: (ratio, 0.5))
    x, f = table(4000, 0)
    fitting, _, _ = fitted("binary", x, (f > 0).astype(int), 8.0, pairs=2)
    assert len(fitting.priors.kernels) == kernels
