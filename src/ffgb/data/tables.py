"""The UCI and StatLib tables as numbers: columns, categories and fill values that are public knowledge.

Nothing here is computed from the rows.  A mean or a list of the categories that occur would be a statistic over all
sites, which no site could compute for itself; the lists below are from the sets' own documentation.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from ffgb.core.types import Array
from ffgb.data.formats import damaged

ADULT_CLASSES = ("<=50K", ">50K")
# Column by column, as in adult.names; None is a number.
_ADULT: Mapping[str, tuple[str, ...] | None] = {
    "age": None,
    "workclass": (
        "Private", "Self-emp-not-inc", "Self-emp-inc", "Federal-gov", "Local-gov", "State-gov", "Without-pay",
        "Never-worked",
    ),
    "fnlwgt": None,
    "education": (
        "Bachelors", "Some-college", "11th", "HS-grad", "Prof-school", "Assoc-acdm", "Assoc-voc", "9th", "7th-8th",
        "12th", "Masters", "1st-4th", "10th", "Doctorate", "5th-6th", "Preschool",
    ),
    "education-num": None,
    "marital-status": (
        "Married-civ-spouse", "Divorced", "Never-married", "Separated", "Widowed", "Married-spouse-absent",
        "Married-AF-spouse",
    ),
    "occupation": (
        "Tech-support", "Craft-repair", "Other-service", "Sales", "Exec-managerial", "Prof-specialty",
        "Handlers-cleaners", "Machine-op-inspct", "Adm-clerical", "Farming-fishing", "Transport-moving",
        "Priv-house-serv", "Protective-serv", "Armed-Forces",
    ),
    "relationship": ("Wife", "Own-child", "Husband", "Not-in-family", "Other-relative", "Unmarried"),
    "race": ("White", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other", "Black"),
    "sex": ("Female", "Male"),
    "capital-gain": None,
    "capital-loss": None,
    "hours-per-week": None,
    "native-country": (
        "United-States", "Cambodia", "England", "Puerto-Rico", "Canada", "Germany", "Outlying-US(Guam-USVI-etc)",
        "India", "Japan", "Greece", "South", "China", "Cuba", "Iran", "Honduras", "Philippines", "Italy", "Poland",
        "Jamaica", "Vietnam", "Mexico", "Portugal", "Ireland", "France", "Dominican-Republic", "Laos", "Ecuador",
        "Taiwan", "Haiti", "Columbia", "Hungary", "Guatemala", "Nicaragua", "Scotland", "Thailand", "Yugoslavia",
        "El-Salvador", "Trinadad&Tobago", "Peru", "Hong", "Holand-Netherlands",
    ),
}  # fmt: skip

HEART_CLASSES = ("absent", "present")
_HEART_COLUMNS = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal",
)  # fmt: skip
# The codes of the columns whose numbers are names, from heart-disease.names.
_HEART_CODES: Mapping[str, Mapping[int, str]] = {
    "cp": {1: "typical angina", 2: "atypical angina", 3: "non-anginal pain", 4: "asymptomatic"},
    "restecg": {0: "normal", 1: "ST-T abnormality", 2: "hypertrophy"},
    "slope": {1: "up", 2: "flat", 3: "down"},
    "thal": {3: "normal", 6: "fixed defect", 7: "reversible defect"},
}
# What stands for "not measured" in the other columns: the unremarkable value a physician would assume.  Each of them
# has an indicator column besides: what is measured differs from hospital to hospital, and from patient to patient.
_HEART_FILL: Mapping[str, float] = {
    "trestbps": 120,
    "chol": 200,
    "fbs": 0,
    "thalach": 150,
    "exang": 0,
    "oldpeak": 0,
    "ca": 0,
}
# A pressure or a cholesterol of 0 is impossible; all of Switzerland's cholesterol is so recorded.
_HEART_ZERO_IS_MISSING = ("trestbps", "chol")

HOUSING_COLUMNS = (
    "median_income",
    "housing_median_age",
    "rooms_per_household",
    "bedrooms_per_household",
    "population",
    "persons_per_household",
    "latitude",
    "longitude",
)


def _adult_columns() -> tuple[str, ...]:
    names: list[str] = []
    for column, categories in _ADULT.items():
        names += [column] if categories is None else [f"{column}={category}" for category in categories]
    return tuple(names)


ADULT_COLUMNS = _adult_columns()
HEART_COLUMNS = (
    *(column for column in _HEART_COLUMNS if column not in _HEART_CODES),
    *(f"{column}={name}" for column, codes in _HEART_CODES.items() for name in codes.values()),
    *(f"{column} missing" for column in _HEART_FILL),
)


def parse_adult(content: bytes, path: Path) -> tuple[Array, Array]:
    """Adult's rows as numbers and one-hot categories; an unknown category, "?", is all zeros in its columns.

    `adult.test` has a comment line on top and a full stop after each label; both are let pass.
    """
    table = _table(content, path, (*_ADULT, "income"), comment="|")
    blocks: list[Array] = []
    for column, categories in _ADULT.items():
        if categories is None:
            blocks.append(_numbers(table, column, path)[:, None])
        else:
            blocks.append(_one_hot(table, column, {name: name for name in categories}, path))
    label = table["income"].str.removesuffix(".")
    if not label.isin(ADULT_CLASSES).all():
        raise damaged(path, "it has labels other than <=50K and >50K")
    return np.hstack(blocks).astype(np.float32), (label == ADULT_CLASSES[1]).to_numpy(np.int64)


def parse_heart(content: bytes, path: Path) -> tuple[Array, Array]:
    """One hospital's patients: numbers, one-hot codes (all zeros if missing), indicators of what was not measured.

    The label is whether any vessel is narrowed by more than half: num > 0.
    """
    table = _table(content, path, (*_HEART_COLUMNS, "num"))
    values: list[Array] = []
    codes: list[Array] = []
    missing: list[Array] = []
    for column in _HEART_COLUMNS:
        number = _numbers(table, column, path, missing="?")
        if column in _HEART_CODES:
            codes.append((number[:, None] == np.array(list(_HEART_CODES[column]))).astype(np.float64))
            continue
        if column in _HEART_ZERO_IS_MISSING:
            number[number == 0] = np.nan
        if column in _HEART_FILL:
            absent = np.isnan(number)
            missing.append(absent.astype(np.float64))
            number = np.where(absent, _HEART_FILL[column], number)
        values.append(number)
    x = np.column_stack([*values, *codes, *missing]).astype(np.float32)
    if not np.isfinite(x).all():
        raise damaged(path, "it lacks values in columns that are complete in the published file")
    return x, (_numbers(table, "num", path) > 0).astype(np.int64)


def parse_housing(content: bytes, path: Path) -> tuple[Array, Array]:
    """California's census blocks with totals turned into ratios a household, and the value in units of $100,000."""
    names = ("longitude", "latitude", "age", "rooms", "bedrooms", "population", "households", "income", "value")
    raw = _table(content, path, names)
    table = {name: _numbers(raw, name, path) for name in names}
    households = table["households"]
    if (households <= 0).any():
        raise damaged(path, "it has blocks without households")
    x = np.column_stack(
        [
            table["income"],
            table["age"],
            table["rooms"] / households,
            table["bedrooms"] / households,
            table["population"],
            table["population"] / households,
            table["latitude"],
            table["longitude"],
        ]
    )
    return x.astype(np.float32), table["value"] / 100_000


def _table(content: bytes, path: Path, names: tuple[str, ...], comment: str | None = None) -> pd.DataFrame:
    """All cells as text: what counts as a number or as missing is each column's matter."""
    try:
        table = pd.read_csv(
            io.BytesIO(content),
            header=None,
            names=list(names),
            index_col=False,
            dtype=str,
            keep_default_na=False,
            skipinitialspace=True,
            comment=comment,
            encoding="ascii",
        )
    except ValueError as error:  # pandas' parser errors and Unicode's are both of this kind
        raise damaged(path, f"no table of {len(names)} columns") from error
    if table.empty or bool(table.isna().to_numpy().any()):
        raise damaged(path, f"it has rows of fewer than {len(names)} values")
    return table


def _numbers(table: pd.DataFrame, column: str, path: Path, missing: str | None = None) -> Array:
    text = table[column] if missing is None else table[column].replace(missing, "nan")
    try:
        return np.array(text.to_numpy(str), np.float64)
    except ValueError as error:
        raise damaged(path, f"column {column} has text where numbers belong") from error


def _one_hot(table: pd.DataFrame, column: str, names: Mapping[str, str], path: Path) -> Array:
    text = table[column].to_numpy(str)
    if not np.isin(text, [*names, "?"]).all():
        raise damaged(path, f"column {column} has a category that is not in the documentation")
    hot: Array = text[:, None] == np.array(list(names))
    return hot.astype(np.float64)
