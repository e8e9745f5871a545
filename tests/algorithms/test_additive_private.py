"""The private mechanism on sums in memory: it learns, spends its budget exactly, and its trees are its terms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ffgb.algorithms.additive_private import AdditiveReleased, Fitting, Kind, Plan, Public, private_family
from ffgb.core.losses import LOSSES
from ffgb.core.points import Points
from ffgb.core.private_question import PrivateQuestion
from ffgb.core.private_sums import ColumnCounts
from ffgb.core.questions import Here
from ffgb.privacy.accountant import composed, mu_of

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


@pytest.mark.parametrize("noise", range(4))
def test_bounds_that_are_far_too_wide_do_little_harm(noise: int) -> None:
    """Clips, priors and the weights of rounds follow the residuals, and not the bounds of the target."""
    x, f = table(6000, 0)
    x_new, f_new = table(2000, 2)
    errors = []
    for scale in (4.0, 400.0):
        h = fitted("numbers", x, f, 4.0, pairs=2, scale=scale, noise=noise)[1]
        errors.append(np.sqrt(np.mean((scale * h(x_new)[:, 0] - f_new) ** 2)))
    assert errors[1] < 1.1 * errors[0]


@pytest.mark.parametrize("noise", range(4))
def test_a_heavy_tail_moves_no_prediction_far_off(noise: int) -> None:
    """A few rows near bounds that are 100 standard deviations away, and cells with few rows."""
    x, f = table(12000, 0)
    x[:, 0] = np.round(x[:, 0] * 2.0) / 2.0
    rng = np.random.default_rng(3)
    y = f + rng.standard_normal(len(f)) + np.where(rng.random(len(f)) < 0.001, 50.0, 0.0)
    x_new, f_new = table(2000, 2)
    h = fitted("numbers", x, y, 4.0, pairs=4, scale=200.0, noise=noise)[1]
    assert np.abs(200.0 * h(x_new)[:, 0] - f_new).max() < 8.0


@pytest.mark.parametrize("noise", range(4))
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
