"""Statistical models over sites: what the commands of statistics have in common.

An analysis (`Analysis`) says which columns it needs, what a site checks before it takes part, and what is asked.  On
one machine `analysed` reads all files and asks them; between real sites the same analysis is asked by deployment/.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeAlias, TypeVar, final

import pandas as pd

from ffgb.core.questions import Ask
from ffgb.core.regression.design import Records
from ffgb.core.regression.survival import Survival
from ffgb.data.files import site_names
from ffgb.data.records import RowRespondent, SiteColumns, agreed_kinds, columns_of, read_columns
from ffgb.engines.hosted import Hosted
from ffgb.errors import FFGBError, option
from ffgb.federation.conversation import Conversation
from ffgb.federation.masked import Masked, MaskedSetUp
from ffgb.federation.participants import Participants
from ffgb.federation.totals import BeforeTraining, SetUp
from ffgb.protocol.costs import Costs

Data: TypeAlias = Sequence[Path | str | pd.DataFrame] | Mapping[str, Path | str | pd.DataFrame]
"""One file or table a site, perhaps by the names of the sites."""


def by_name(data: Data) -> dict[str, Path | str | pd.DataFrame]:
    """The tables by the names of their sites."""
    if isinstance(data, Path | str | pd.DataFrame) or len(data) == 0:
        raise FFGBError(f"one file or table a site is needed; name them with {option('data')}")
    if isinstance(data, Mapping):
        return dict(data)
    files = [Path(f"site {i + 1}" if isinstance(t, pd.DataFrame) else t) for i, t in enumerate(data)]
    return dict(zip(site_names(files), data, strict=True))


def references(pairs: Sequence[str]) -> dict[str, str]:
    """Reference categories from column=category."""
    found = {}
    for pair in pairs:
        name, equals, level = pair.partition("=")
        if not equals:
            raise FFGBError(f"{option('reference', pair)} is not column=category, for example sex=F")
        found[name.strip()] = level.strip()
    return found


Fitted = TypeVar("Fitted")


def without_each(data: Data, fit: Callable[[Data], Fitted]) -> dict[str, Fitted | FFGBError]:
    """For each site the model of all others, as if it had never taken part; or why there is none."""
    tables, found = by_name(data), dict[str, Fitted | FFGBError]()
    if len(tables) < 2:
        raise FFGBError("one site alone cannot be left out; name two or more")
    for name in tables:
        try:
            found[name] = fit({other: table for other, table in tables.items() if other != name})
        except FFGBError as error:
            found[name] = error
    return found


def read_sites(data: Data, names: Collection[str], text: Collection[str]) -> list[SiteColumns]:
    """The columns that a model names, of each site."""
    found = []
    for site, table in by_name(data).items():
        if isinstance(table, pd.DataFrame):
            if table.empty:
                raise FFGBError(f"{site} has no rows; leave it out")
            found.append(columns_of(table, site, site, names, text))
        else:
            found.append(read_columns(Path(table), site, names, text))
    return found


def check_times(survival: Survival, site: SiteColumns) -> None:
    """Refuse times and events that are none, by the name of the site."""
    try:
        survival.of(site.complete())
    except FFGBError as error:
        raise FFGBError(f"{site.name}: {error.raw}") from error


@final
@dataclass(frozen=True)
class Agreed:
    """What is known of all sites before they are asked anything."""

    names: tuple[str, ...]
    coded: tuple[str, ...]
    """Columns that are categories."""
    secure: bool = False
    """Totals are under masks."""
    own_site: bool = False
    """Files have no column `site`: it stands for the site itself."""


class Result(Protocol):
    """What comes of an analysis."""

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON has it."""

    def at_cost(self, costs: Costs) -> Self:
        """The same, with what it cost."""


Found = TypeVar("Found", bound=Result)
Step: TypeAlias = Callable[[int, float], None]


class Analysis(ABC, Generic[Found]):
    """What a statistician asks of all sites together: a frozen dataclass of options."""

    name: ClassVar[str]
    """Its command."""
    measure: ClassVar[str] = ""
    """What `on_step` is told at each step."""
    questions: ClassVar[tuple[str, ...]]
    """Kinds of questions that it asks, besides those for names of categories."""
    least: int

    @abstractmethod
    def check(self) -> None:
        """Raise an FFGBError if options are none, or do not fit together."""

    @abstractmethod
    def in_words(self) -> str:
        """What it finds out, in a sentence for someone whose rows it is about."""

    @property
    @abstractmethod
    def columns_used(self) -> tuple[str, ...]:
        """The columns that it needs of each file."""

    @property
    @abstractmethod
    def columns_of_text(self) -> frozenset[str]:
        """Those that are categories though they may look like numbers."""

    @abstractmethod
    def check_agreed(self, agreed: Agreed) -> None:
        """Raise an FFGBError if it cannot be asked of these sites."""

    @abstractmethod
    def check_site(self, site: SiteColumns) -> None:
        """Raise an FFGBError if the values of a site cannot be those of such a model."""

    @abstractmethod
    def asked(self, ask: Ask, agreed: Agreed, on_step: Step) -> Found:
        """The answer, from totals alone.  The same totals lead to the same questions, everywhere."""


def analysed(
    analysis: Analysis[Found], data: Data, *, secure: bool, on_step: Step = lambda step, measure: None
) -> Found:
    """The answer for files or tables that are all here."""
    agreed, records = prepared(analysis, data, secure=secure)
    with asking(agreed.names, records, secure=secure) as asked:
        found = analysis.asked(asked.ask, agreed, on_step)
        return found.at_cost(asked.costs)


def prepared(analysis: Analysis[Any], data: Data, *, secure: bool) -> tuple[Agreed, list[Records]]:
    """What is known of the sites whose files or tables these are, and their rows."""
    analysis.check()
    used = analysis.columns_used
    sites = read_sites(data, used, analysis.columns_of_text)
    coded = agreed_kinds({site.name: {name: site.kind(name) for name in used} for site in sites}, used)
    names = tuple(site.name for site in sites)
    agreed = Agreed(names, tuple(coded), secure, any(site.own_site for site in sites))
    analysis.check_agreed(agreed)
    for site in sites:
        analysis.check_site(site)
    return agreed, [site.complete() for site in sites]


@final
@dataclass
class Asking:
    """An `ask` over sites, and what it has cost."""

    ask: SetUp
    masked: bool

    @property
    def costs(self) -> Costs:
        return self.ask.costs


@contextmanager
def asking(
    names: Sequence[str],
    records: Sequence[Records],
    *,
    secure: bool,
    on_question: Callable[[str, int, int], None] = lambda what, done, sites: None,
) -> Iterator[Asking]:
    """An `ask` over these sites in this process, under masks or in the open."""
    clients = [RowRespondent(i, each) for i, each in enumerate(records)]
    with Hosted(clients) as engine:
        conversation = Conversation(engine, Participants([1] * len(clients), names=names))
        totals, absent = dict[str, Any](), dict[str, list[str]]()
        rest = Costs(), totals, absent, lambda known, costs: None, on_question
        ask = MaskedSetUp(Masked(conversation), *rest) if secure else BeforeTraining(conversation, *rest)
        yield Asking(ask, secure)
