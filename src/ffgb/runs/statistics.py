"""Statistical models over sites: what the commands of statistics have in common."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, final

import pandas as pd

from ffgb.core.regression.design import Records
from ffgb.core.regression.survival import Survival
from ffgb.data.files import site_names
from ffgb.data.records import RowRespondent, SiteColumns, columns_of, read_columns
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


def check_times(survival: Survival, sites: Sequence[SiteColumns]) -> None:
    """Refuse times and events that are none, by the name of the site."""
    for site in sites:
        try:
            survival.of(site.complete())
        except FFGBError as error:
            raise FFGBError(f"{site.name}: {error.raw}") from error


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
