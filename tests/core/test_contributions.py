"""Shapley values of trees: those of the definition, by brute force over all sets of columns."""

from __future__ import annotations

from itertools import combinations, product
from math import factorial

import numpy as np
import pandas as pd
import pytest

from ffgb.core.contributions import contributions, leaves
from ffgb.core.types import Array
from ffgb.runs.config import Config
from ffgb.runs.model import Model
from ffgb.runs.training import train

COLUMNS = 4


@pytest.fixture(scope="module", params=["trees", "additive", "blend"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("tree") / "a.csv"
    x = rng.integers(0, 4, (400, COLUMNS)).astype(float)
    x[rng.random(400) < 0.1, 0] = np.nan
    y = np.nan_to_num(x[:, 0]) * (x[:, 1] > 1) + np.sin(x[:, 2]) + x[:, 3] + 0.1 * rng.standard_normal(400)
    pd.DataFrame(x, columns=list("abcd")).assign(y=y).to_csv(path, index=False)
    options = {"learner": request.param, "bins": 4, "rounds": 2, "leaf_rows": 5, "task": "regression"}
    return train(Config(data=(str(path),), target="y", **options), workers=0).model


def brute(f: object, cells: list[int], row: Array, shares: list[Array]) -> tuple[Array, float]:
    """From the definition: v(S) as a mean over all combinations of cells."""
    everything = np.array(list(product(*(range(n) for n in cells))))
    chances = np.array([shares[c][everything[:, c]] for c in range(len(cells))])
    values = f(everything)[:, 0]  # type: ignore[operator]

    def v(some: tuple[int, ...]) -> float:
        inside = (everything[:, list(some)] == row[list(some)]).all(axis=1)
        others = [c for c in range(len(cells)) if c not in some]
        return float((values * chances[others].prod(axis=0))[inside].sum())

    found, m = np.zeros(len(cells)), len(cells)
    for c in range(m):
        others = [e for e in range(m) if e != c]
        for size in range(m):
            weight = factorial(size) * factorial(m - size - 1) / factorial(m)
            for some in combinations(others, size):
                found[c] += weight * (v((*some, c)) - v(some))
    return found, v(())


def test_they_are_shapley_values_and_add_up_to_f(model: Model) -> None:
    family, rng = model.family, np.random.default_rng(1)
    cells = family.layout.cells.tolist()  # type: ignore[attr-defined]
    shares = [rng.dirichlet(np.ones(n)) for n in cells]
    z = np.stack([rng.integers(0, n, 5) for n in cells], axis=1).astype(np.uint8)
    blocks = model.f.blocks  # type: ignore[attr-defined]
    some = (leaf for block in blocks for leaf in leaves(block.stack, block.weights, np.array(cells)))
    found, base = contributions(some, z, shares, 1)
    np.testing.assert_allclose(base + found.sum(axis=1), model.f.evaluate(z), atol=1e-9)
    for row, own in zip(z, found, strict=True):
        expected, nothing = brute(lambda w: model.f.evaluate(w.astype(np.uint8)), cells, row, shares)
        np.testing.assert_allclose(own[:, 0], expected, atol=1e-9)
        assert base[0] == pytest.approx(nothing)
