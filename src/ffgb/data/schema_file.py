"""A schema: what a table's columns are, in a TOML file that people write and sites share before they train.

target = "disease"
missing = ["-999"]                 # stands for unknown values, in all columns

[columns.age]
type = "number"
unit = "years"
bounds = [0, 120]

[columns.sex]
type = "category"
categories = ["f", "m"]
label = "Sex at birth"

[columns.admitted]
type = "date"
order = "dmy"                      # 03/04/2023 is in April

[columns.patient_id]
type = "drop"

Bounds and categories are public knowledge, and not computed from anyone's rows: whoever writes the schema answers for
that.  Each site reads its file by the schema, and refuses values outside it, by their rows.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from ffgb.core.types import Array
from ffgb.data.preprocess import NUMBER, TEXT
from ffgb.data.targets import target_columns
from ffgb.errors import FFGBError
from ffgb.toml_files import Toml, did_you_mean, read_toml

CATEGORY, DATE, DROP = "category", "date", "drop"
TYPES: Final = (NUMBER, CATEGORY, DATE, DROP)
ORDERS: Final = ("dmy", "mdy")
_SHOWN = 5
_BARE = re.compile(r"[A-Za-z0-9_-]+")


@final
@dataclass(frozen=True)
class ColumnRule:
    """What is known of a column, whoever's file it is in."""

    type: str = NUMBER
    unit: str = ""
    label: str = ""
    """A name for people."""
    bounds: tuple[float, float] | None = None
    """Of a number: the least and the largest that there can be."""
    categories: tuple[str, ...] = ()
    """All that there can be; none: any."""
    order: str | None = None
    """Of a date's day and month, where its values do not tell."""

    def outside(self, values: Array) -> Array:
        """Which of a raw column's values cannot be, (n,): float64 with NaN, or text with None, where unknown."""
        if self.bounds is not None and values.dtype != object:
            with np.errstate(invalid="ignore"):
                found: Array = (values < self.bounds[0]) | (values > self.bounds[1])
            return found
        if self.categories and values.dtype == object:
            known = {*self.categories, None}
            return np.array([value not in known for value in values], bool)
        return np.zeros(len(values), bool)

    def in_words(self) -> str:
        """The values that there can be.

        >>> ColumnRule(bounds=(0.0, 120.0), unit="years").in_words()
        'numbers from 0 to 120 years'
        """
        unit = f" {self.unit}" if self.unit else ""
        if self.bounds is not None:
            return f"numbers from {self.bounds[0]:g} to {self.bounds[1]:g}{unit}"
        if self.categories:
            shown = ", ".join(self.categories[:12])
            return f"one of {shown}{' …' if len(self.categories) > 12 else ''}"
        return {NUMBER: f"numbers{unit}", CATEGORY: "text", DATE: "dates", DROP: "not used"}[self.type]


@final
@dataclass(frozen=True)
class SchemaFile:
    """A schema as people have written it."""

    columns: Mapping[str, ColumnRule]
    target: str | None = None
    missing: tuple[str, ...] = ()

    @staticmethod
    def read(path: Path) -> SchemaFile:
        """The schema in a file; an FFGBError names the line that is wrong, and what is allowed there."""
        toml = read_toml(path)
        for name in toml.values:
            if name not in _FIELDS:
                hint = did_you_mean(name, _FIELDS)
                raise FFGBError(f"{toml.at(name)}, has {name!r}, which is no part of a schema{hint}; parts are "
                                f"{', '.join(_FIELDS)}")  # fmt: skip
        target, missing, columns = (toml.values.get(name) for name in _FIELDS)
        if target is not None and not isinstance(target, str):
            raise FFGBError(f"{toml.at('target')}: target is the name of a column, not {target!r}")
        if missing is not None and not _texts(missing):
            raise FFGBError(f'{toml.at("missing")}: missing is a list of texts such as ["-999"], not {missing!r}')
        if not isinstance(columns, dict) or not columns:
            raise FFGBError(f"{toml.at('columns')} has no columns; each has a table such as [columns.age]")
        rules = {name: _rule(toml, name, values) for name, values in columns.items()}
        if target is not None and target in rules and rules[target].type in (DROP, DATE):
            raise FFGBError(f"{toml.at('columns', target)}: the target {target!r} is a number or a category")
        return SchemaFile(rules, target, tuple(missing or ()))

    def of_type(self, *types: str) -> tuple[str, ...]:
        """Names of the columns of these types."""
        return tuple(name for name, rule in self.columns.items() if rule.type in types)

    @property
    def kinds(self) -> dict[str, str]:
        """Of the columns that are read as numbers or as text, whatever they look like."""
        kinds = {NUMBER: NUMBER, CATEGORY: TEXT}
        return {name: kinds[rule.type] for name, rule in self.columns.items() if rule.type in kinds}

    @property
    def orders(self) -> dict[str, str]:
        """Of day and month, by the date columns that say it."""
        return {name: rule.order for name, rule in self.columns.items() if rule.order is not None}

    def violations(self, raw: Mapping[str, Array]) -> list[str]:
        """A sentence for each column with values that cannot be: their rows, and what can."""
        found = []
        for name, values in raw.items():
            rule = self.columns.get(name)
            bad = np.flatnonzero(rule.outside(values)) if rule is not None else np.zeros(0, int)
            if rule is None or len(bad) == 0:
                continue
            shown = ", ".join(f"{_shown(values[i])} in row {i + 1}" for i in bad[:_SHOWN])
            more = f" and in {len(bad) - _SHOWN} more rows" if len(bad) > _SHOWN else ""
            found.append(f"column {name!r} has {shown}{more}; the schema allows {rule.in_words()}")
        return found

    def to_toml(self, notes: Mapping[str, str] | None = None) -> str:
        """The file's text; `notes` are comments on columns, by their names."""
        lines = [f"target = {_text(self.target)}" if self.target is not None else '# target = "the column to predict"']
        lines.append(f"missing = [{', '.join(map(_text, self.missing))}]  # these stand for unknown values")
        for name, rule in self.columns.items():
            lines += [
                "",
                f"[columns.{name if _BARE.fullmatch(name) else _text(name)}]",
                *(f"# {n}" for n in (notes or {}).get(name, "").splitlines()),
            ]
            lines.append(f"type = {_text(rule.type)}")
            lines += [f"unit = {_text(rule.unit)}"] if rule.unit or rule.type == NUMBER else []
            lines += [f"label = {_text(rule.label)}"] if rule.label else []
            if rule.bounds is not None:
                lines.append(f"bounds = [{rule.bounds[0]:.15g}, {rule.bounds[1]:.15g}]")
            if rule.categories:
                lines.append(f"categories = [{', '.join(map(_text, rule.categories))}]")
            lines += [f"order = {_text(rule.order)}"] if rule.order is not None else []
        return "\n".join(lines) + "\n"


_FIELDS: Final = ("target", "missing", "columns")
_ALLOWED: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "type": (lambda v: v in TYPES, "one of " + ", ".join(TYPES)),
    "unit": (lambda v: isinstance(v, str), 'text, such as "mg/dl"'),
    "label": (lambda v: isinstance(v, str), "text"),
    "bounds": (lambda v: _is_interval(v), "the least and the largest number, such as [0, 120]"),
    "categories": (lambda v: _texts(v) and len(set(v)) == len(v) > 0, 'a list of different texts, such as ["f", "m"]'),
    "order": (lambda v: v in ORDERS, "one of " + ", ".join(ORDERS)),
}
_OF_TYPE: Final = {"bounds": NUMBER, "unit": NUMBER, "categories": CATEGORY, "order": DATE}


def _rule(toml: Toml, name: str, values: Any) -> ColumnRule:
    if not isinstance(values, dict):
        raise FFGBError(f"{toml.at('columns', name)}: a column is a table such as [columns.age], not {values!r}")
    for field, value in values.items():
        where = toml.at("columns", name, field)
        if field not in _ALLOWED:
            hint = did_you_mean(field, _ALLOWED)
            raise FFGBError(
                f"{where}, has {field!r}, which is no part of a column{hint}; parts are {', '.join(_ALLOWED)}"
            )
        fits, words = _ALLOWED[field]
        if not fits(value):
            raise FFGBError(f"{where}: {field} of {name!r} is {words}, not {value!r}")
        if _OF_TYPE.get(field, kind := values.get("type", NUMBER)) != kind:
            raise FFGBError(f"{where}: {field} is for columns of the type {_OF_TYPE[field]}, and {name!r} is a {kind}")
    given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    return ColumnRule(**given)


def _is_interval(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 2:
        return False
    numbers = [v for v in value if type(v) in (int, float) and math.isfinite(v)]
    return len(numbers) == 2 and numbers[0] < numbers[1]


def _texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(v, str) for v in value)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")


def _shown(value: object) -> str:
    text = f"{value:.15g}" if isinstance(value, float) else repr(str(value))
    return text if len(text) <= 40 else f"{text[:36]}…'"


# A draft


def draft(
    raw: Mapping[str, Array], dates: Sequence[str], target: str | None, rare: int
) -> tuple[SchemaFile, dict[str, str]]:
    """A schema for a person to edit, from one site's columns, and comments on it.

    It is for others to see: bounds are rounded outwards, and a category of few rows is not named.
    """
    rules: dict[str, ColumnRule] = {}
    notes: dict[str, str] = {}
    targets = target_columns(target)
    for name, values in raw.items():
        rules[name], notes[name] = (_number if values.dtype != object else _category)(values, rare, name in targets)
    for name in dates:
        rules[name], notes[name] = ColumnRule(DATE), ""
    return SchemaFile(rules, target), notes


def _number(values: Array, rare: int, target: bool) -> tuple[ColumnRule, str]:
    there = values[np.isfinite(values)]
    if len(there) == 0:
        return ColumnRule(NUMBER), "no value in this file"
    low, high = float(there.min()), float(there.max())
    different, counts = np.unique(there, return_counts=True)
    notes = ["bounds are rounded from this file: write the least and the largest value that there can be anywhere"]
    if len(different) <= 10 and np.all(different == np.round(different)) and not target:
        notes.append('few whole numbers: if they are codes, write type = "category" and no bounds and unit')
    alone = [
        f"{v:g}" for v, n in zip(different, counts, strict=True) if n > 1 and v in (-1, -9, -99, -999, -9999, 999, 9999)
    ]
    if alone:
        notes.append(f"{', '.join(alone)} may stand for unknown values: then add to missing")
    if len(different) == len(there) >= 20 and np.all(there == np.round(there)) and high - low < 2 * len(there):
        notes.append('every value is different: if it is the number of a row or a patient, write type = "drop"')
    return ColumnRule(NUMBER, bounds=_outwards(low, high)), "\n".join(notes)


def _outwards(low: float, high: float) -> tuple[float, float]:
    """Round bounds that are no one's value.

    >>> _outwards(29, 77), _outwards(-3.2, 0.061)
    ((20.0, 80.0), (-4.0, 1.0))
    """
    unit = 10.0 ** math.floor(math.log10(max(abs(low), abs(high), 1e-300)))
    ends = math.floor(low / unit) * unit, math.ceil(high / unit) * unit
    return ends if ends[0] < ends[1] else (ends[0], ends[0] + unit)


def _category(values: Array, rare: int, target: bool) -> tuple[ColumnRule, str]:
    there = [value for value in values if value is not None]
    counts = Counter(there)
    different = sorted(counts)
    if 2 * len(different) > len(there) and not target:
        return ColumnRule(DROP), "almost every value is different: a name, an id or a remark"
    named = tuple(value for value in different if counts[value] >= rare)
    fewer = len(different) - len(named)
    note = (
        f"{fewer} more in this file, each in fewer than {rare} rows: add them if all may know of them" if fewer else ""
    )
    return ColumnRule(CATEGORY, categories=named), note
