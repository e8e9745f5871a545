"""Formulas mean what they mean in S and R; what cannot be read is refused in a sentence."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf

from ffgb.core.regression.formula import Formula, columns_of
from ffgb.errors import FFGBError

LEVELS = {"a": ["p", "q", "r"], "b": ["u", "v"], "k": ["1", "2", "10"]}


@pytest.mark.parametrize(
    "text",
    [
        "x + a",
        "x * a",
        "a * b",
        "a : b - 1",
        "a + b - 1",
        "x + C(k)",
        "0 + x + C(k) : b",
        "x : a + a",
        "a * b * x",
        "x",
        "1",
        "x + a + a:b",
    ],
)
def test_columns_are_those_of_other_software(text: str) -> None:
    rng = np.random.default_rng(0)
    n = 200
    frame = pd.DataFrame({name: rng.choice(levels, n) for name, levels in LEVELS.items()})
    frame["k"] = frame["k"].astype(int)
    frame["x"], frame["y"] = rng.normal(size=(2, n))
    expected = smf.ols(f"y ~ {text}", frame).exog_names
    found = columns_of(Formula.parse(f"y ~ {text}"), LEVELS)
    assert sorted(column.name for column in found) == sorted(expected)


def test_columns_in_backticks_and_other_spellings() -> None:
    parsed = Formula.parse("`odd name!` ~ `more (of it)`*x+x:`more (of it)`")
    assert (parsed.response, parsed.names) == ("odd name!", ("more (of it)", "x"))
    assert [len(term) for term in parsed.terms] == [1, 1, 2]
    assert Formula.parse("y ~ x + 1").intercept
    assert not Formula.parse("y ~ -1 + x").intercept
    assert not Formula.parse("y ~ x + 0").intercept


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("age + sex", "does not begin"),
        ("y ~", "column was expected"),
        ("y ~ x +", "column was expected"),
        ("y ~ x sex", "where \\+ or the end"),
        ("y ~ log(x)", "only C\\(column\\)"),
        ("y ~ C(x", "not closed"),
        ("y ~ x - z", "only the intercept"),
        ("y ~ x / z", "not understood"),
        ("y ~ 2", "is no term"),
        ("y ~ -1", "has no term"),
        ("y ~ y + x", "explain itself"),
        ("y ~ " + "x + " * 5000 + "x", "at most"),
    ],
)
def test_what_cannot_be_read_is_said(text: str, said: str) -> None:
    with pytest.raises(FFGBError, match=said):
        Formula.parse(text)
