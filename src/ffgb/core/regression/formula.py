"""Formulas such as `outcome ~ age + C(stage) * sex + site`: which columns a model has.

Terms are joined by `+`; `a:b` is an interaction, and `a*b` stands for `a + b + a:b`.  `C(x)` reads numbers as
categories, `-1` or `0` leaves the intercept out, and a name in backticks may have any characters.

A categorical column has one indicator for each level but the first, its reference, if the model has what remains of the
term without it.  Otherwise it has one for every level.  This is the rule of S and R.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import final

from ffgb.core.regression.design import DesignColumn, Variable
from ffgb.errors import FFGBError

_TOKEN = re.compile(r"\s*(?:(?P<name>`[^`]+`|[^\W\d][\w.]*)|(?P<number>\d+)|(?P<mark>[~+\-:*()]))")
MOST_CHARACTERS = 10_000
"""Characters of a formula."""


@final
@dataclass(frozen=True)
class Factor:
    """A column in a term."""

    name: str
    categorical: bool = False
    """Written C(name): its numbers are names."""

    @property
    def label(self) -> str:
        return f"C({self.name})" if self.categorical else self.name


@final
@dataclass(frozen=True)
class Formula:
    """What is explained, and by what."""

    response: str
    terms: tuple[tuple[Factor, ...], ...]
    """In order of their degree."""
    intercept: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that explain, each once."""
        return tuple(dict.fromkeys(factor.name for term in self.terms for factor in term))

    @property
    def categorical(self) -> frozenset[str]:
        """Columns that are categories though they may look like numbers."""
        return frozenset(factor.name for term in self.terms for factor in term if factor.categorical)

    @staticmethod
    def of(response: str, columns: Sequence[str]) -> Formula:
        """All of these columns, without interactions."""
        return Formula(response, tuple((Factor(name),) for name in dict.fromkeys(columns)))

    @staticmethod
    def parse(text: str) -> Formula:
        """The formula that a text spells; an FFGBError says what is wrong with it.

        >>> Formula.parse("y ~ a * b - 1").names
        ('a', 'b')
        """
        if len(text) > MOST_CHARACTERS:
            raise FFGBError(f"a formula has at most {MOST_CHARACTERS:,} characters")
        tokens = list(_tokens(text))
        names = [token for kind, token in tokens[:1] if kind == "name"]
        if not names or tokens[1:2] != [("mark", "~")]:
            raise FFGBError(f"the formula {text!r} does not begin with a column and ~; write outcome ~ age + sex")
        return _Parser(text, tokens[2:]).formula(names[0])


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    text = text.rstrip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None or found.lastgroup is None:
            raise FFGBError(
                f"the formula has {text[at:].lstrip()[0]!r}, which is not understood; it may have names, C(name), "
                "+, :, *, and -1 (put a name with other characters in backticks)"
            )
        yield found.lastgroup, found[found.lastgroup].strip("`")
        at = found.end()


class _Parser:
    """Reads what comes after the ~."""

    def __init__(self, text: str, tokens: Sequence[tuple[str, str]]) -> None:
        self.text, self.tokens, self.at = text, tokens, 0

    def formula(self, response: str) -> Formula:
        terms, intercept, sign = dict[frozenset[str], tuple[Factor, ...]](), True, "+"
        if self._next("-"):
            sign = "-"
        while True:
            kind, word = self._peek()
            if kind == "number":
                self.at += 1
                if word not in ("0", "1"):
                    raise self._error(f"{word} is no term; only 1 and 0 stand for the intercept")
                intercept = (word == "1") == (sign == "+")
            elif sign == "-":
                raise self._error("only the intercept can be taken away, with - 1")
            else:
                for term in self._product():
                    terms.setdefault(frozenset(factor.name for factor in term), term)
            if self.at == len(self.tokens):
                break
            kind, sign = self._peek()
            if sign not in ("+", "-") or kind != "mark":
                raise self._error(f"{sign!r} comes where + or the end was expected")
            self.at += 1
        if not terms and not intercept:
            raise self._error("it has no term")
        if response in {name for names in terms for name in names}:
            raise self._error(f"{response!r} cannot explain itself")
        return Formula(response, tuple(sorted(terms.values(), key=len)), intercept)

    def _product(self) -> list[tuple[Factor, ...]]:
        """Interactions joined by *: all that can be made of them."""
        parts = [self._interaction()]
        while self._next("*"):
            parts.append(self._interaction())
        some = (chosen for size in range(1, len(parts) + 1) for chosen in combinations(parts, size))
        return [_once(factor for part in chosen for factor in part) for chosen in some]

    def _interaction(self) -> tuple[Factor, ...]:
        factors = [self._factor()]
        while self._next(":"):
            factors.append(self._factor())
        return _once(iter(factors))

    def _factor(self) -> Factor:
        kind, name = self._peek()
        if kind != "name":
            raise self._error(f"{name or 'the end'!r} comes where a column was expected")
        self.at += 1
        if not self._next("("):
            return Factor(name)
        kind, inner = self._peek()
        if name != "C" or kind != "name":
            raise self._error(f"there is no function {name!r} of columns here; only C(column) is known")
        self.at += 1
        if not self._next(")"):
            raise self._error("a bracket is not closed")
        return Factor(inner, True)

    def _peek(self) -> tuple[str, str]:
        return self.tokens[self.at] if self.at < len(self.tokens) else ("end", "")

    def _next(self, mark: str) -> bool:
        """Is this the next mark?  Then it is read."""
        found = self._peek() == ("mark", mark)
        self.at += found
        return found

    def _error(self, problem: str) -> FFGBError:
        return FFGBError(f"the formula {self.text!r} cannot be read: {problem}")


def _once(factors: Iterator[Factor]) -> tuple[Factor, ...]:
    return tuple({factor.name: factor for factor in factors}.values())


def columns_of(formula: Formula, levels: Mapping[str, Sequence[str]]) -> tuple[DesignColumn, ...]:
    """The columns of the design, given the levels of those that are categories: the first is the reference.

    >>> [column.name for column in columns_of(Formula.parse("y ~ age + sex"), {"sex": ["F", "M"]})]
    ['Intercept', 'age', 'sex[T.M]']
    """
    found = [DesignColumn("Intercept", ())] if formula.intercept else []
    present = {frozenset(factor.name for factor in term) for term in formula.terms}
    if formula.intercept:
        present.add(frozenset())
    for term in formula.terms:
        choices, every = list[list[tuple[str, Variable]]](), True
        for factor in term:
            if factor.name not in levels:
                choices.append([(factor.label, Variable(factor.name))])
                every = False
                continue
            contrast = frozenset(other.name for other in term) - {factor.name} in present
            mark, some = ("T.", levels[factor.name][1:]) if contrast else ("", levels[factor.name])
            choices.append([(f"{factor.label}[{mark}{level}]", Variable(factor.name, level)) for level in some])
            every = every and not contrast
        for chosen in product(*choices):
            found.append(DesignColumn(":".join(name for name, _ in chosen), tuple(v for _, v in chosen)))
        if every:  # its indicators add up to 1
            present.add(frozenset())
    return tuple(found)
