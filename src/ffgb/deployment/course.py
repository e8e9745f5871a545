"""A site in an analysis (`ffgb server glm`): it follows the server's program, and answers what that asks, nothing else.

The site has the analysis that its owner agreed to, and the totals that the server shows.  With both it runs the same
program as the server (runs/glm.py …), up to the first question that no total has been shown of: this is the only one
that it answers.  When the program ends, the site has the result, and need not believe the server.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from ffgb.core.proofs import Proven
from ffgb.core.questions import Question
from ffgb.data.files import Columns
from ffgb.data.preprocess import TEXT, Said
from ffgb.data.records import RowRespondent, SiteColumns
from ffgb.deployment.agreement import Agreement
from ffgb.deployment.analysis_job import analysis_text
from ffgb.deployment.keys import private
from ffgb.errors import FFGBError
from ffgb.federation.shown import Followed, NextQuestion, differs, framed, parts_of
from ffgb.files import atomic_write
from ffgb.protocol.codec import Expected, Message, Sent, decode, encode
from ffgb.runs.statistics import Agreed, Analysis, Result, asking

MOST_QUESTIONS: Final = 300
"""Of one analysis that a site answers."""
FOR_NAMES: Final = ("NameCounts", "NamesIn")
"""Questions by which names of categories are found."""
PROGRAM: Final = "the program that its owner agreed to"


def header_of(agreed: Agreed) -> bytes:
    """What the server says of all sites, as it travels."""
    values = {"names": list(agreed.names), "coded": list(agreed.coded), "own_site": agreed.own_site}
    return framed(encode(Message("analysis", values=values)))


def said_of(columns: SiteColumns, analysis: Analysis[Any]) -> Columns:
    """What a site says of its file: the columns that the analysis names, and their kinds."""
    kinds = {name: columns.kind(name) for name in analysis.columns_used if name not in columns.own_site}
    said = {name: Said(kind, 0, 0, 0.0, {}) for name, kind in kinds.items()}
    return Columns(columns.complete().rows, 0, (), said, "numbers", (), 1)


@final
class Course:
    """An analysis at a site, as far as it has come."""

    def __init__(self, analysis: Analysis[Any], columns: SiteColumns, *, secure: bool) -> None:
        self.analysis, self.columns, self.secure = analysis, columns, secure
        self.said = said_of(columns, analysis)
        self.records = columns.complete()
        self.kinds = tuple(f"question {kind}" for kind in (*FOR_NAMES, *analysis.questions))
        self._data = b""
        self._header: Agreed | None = None
        self._shown: list[bytes] = []
        self._proven, self._secret = 0, b""

    def agreement(self, trainings: int) -> Agreement:
        """To take part in this analysis, so many times at most."""
        text = analysis_text(self.analysis, secure=self.secure)
        size = int(self.rehearsed()[1])
        return Agreement((("analysis", text),), 1, size, 0, trainings, 1, self.analysis.columns_used, 0)

    def rehearsed(self) -> tuple[list[Sent], float]:
        """What would leave the site with its own rows alone, the largest of each kind, and the bytes of all."""
        analysis = replace(self.analysis, least=1)  # type: ignore[type-var]
        agreed = Agreed((self.columns.name,), self._own_text, False, bool(self.columns.own_site))
        with asking(agreed.names, [self.records], secure=False) as asked, suppress(FFGBError):
            analysis.asked(asked.ask, agreed, lambda step, measure: None)  # may have no answer for these rows alone
        return list(asked.ask.conversation.sent.values()), asked.costs.bytes_up

    @property
    def _own_text(self) -> tuple[str, ...]:
        """The columns that are categories here."""
        return tuple(name for name in self.analysis.columns_used if self.columns.kind(name) == TEXT)

    def respondent(self, i: int, secret: Callable[[], tuple[bytes, bool]]) -> RowRespondent:
        """The client that answers for this site's rows."""
        return RowRespondent(i, self.records, self.analysis.least, secret=secret, guard=self._check)

    def takes(self, data: Mapping[str, bytes], wanted: str) -> bool:
        """Take what the server shows; is it now all that it has shown, by its hash?"""
        for whole in (data.get("schema"), self._data + data["more"] if "more" in data else None):
            if whole is not None and self._hash != wanted and hashlib.sha256(whole).hexdigest() == wanted:
                self._begin(whole)
        return self._hash == wanted

    @property
    def _hash(self) -> str:
        return hashlib.sha256(self._data).hexdigest()

    def _begin(self, data: bytes) -> None:
        parts = list(parts_of(data))
        if not parts:
            raise FFGBError("the server does not say who takes part in the analysis")
        header, *totals = parts
        if len(totals) > MOST_QUESTIONS:
            raise FFGBError(f"the server shows {len(totals)} totals, more than an analysis has")
        goes_on = bool(self._data) and data.startswith(self._data)
        agreed = self._agreed(header)
        self._proven = self._proven if goes_on else 0
        self._data, self._header, self._shown = data, agreed, totals

    def _agreed(self, header: bytes) -> Agreed:
        """What the server says of all sites, if it fits what this one knows of itself."""
        values = decode(header, Expected(("analysis",), forms={})).values
        names, coded = (_words(values.get(word)) for word in ("names", "coded"))
        own_site = values.get("own_site") is True
        if names.count(self.columns.name) != 1 or len(set(names)) < len(names):
            raise FFGBError(f"the server's list of sites does not have {self.columns.name} once")
        if coded != self._own_text or own_site != bool(self.columns.own_site):
            raise FFGBError("the server says that other columns are categories than in this site's file")
        agreed = Agreed(names, coded, self.secure, own_site)
        self.analysis.check_agreed(agreed)
        return agreed

    def _followed(self, secret: bytes) -> Any:
        """The result of the program, with the totals that were shown; a NextQuestion if there is none yet."""
        if self._header is None:
            raise FFGBError("the server has not said who takes part in the analysis")
        if secret != self._secret:
            self._secret, self._proven = secret, 0
        ask = Followed(self._shown, secret, self._proven)
        try:
            with np.errstate(all="ignore"):
                return self.analysis.asked(ask, self._header, lambda step, measure: None)
        finally:
            self._proven = ask.proven

    def _check(self, question: Question, secret: bytes) -> None:
        """Raise an FFGBError unless this is the question that the program asks next."""
        if not isinstance(question, Proven) or question.number != len(self._shown):
            raise FFGBError("this site has not agreed to a question out of the order of its analysis")
        if question.number >= MOST_QUESTIONS:
            raise FFGBError(f"this site has not agreed to more than {MOST_QUESTIONS} questions")
        try:
            self._followed(secret)
        except NextQuestion as come:
            expected = come.question
        else:
            raise FFGBError(f"this site has not agreed to another question: {PROGRAM} has ended")
        if differs(question.question, expected):
            asked = type(question.question).__name__
            raise FFGBError(
                f"this site has not agreed to this {asked}: with the totals that were shown, {PROGRAM} asks "
                + (f"about {expected.what}" if asked != type(expected).__name__ else "it with other numbers")
            )

    def result(self, secret: bytes) -> Any:
        """What came of the analysis; an FFGBError if the program ended without, or has not ended."""
        if self.secure and not secret:
            raise FFGBError("this site has no secret with the others, and cannot check the totals that it was shown")
        try:
            return self._followed(secret)
        except NextQuestion as come:
            raise FFGBError(f"the server has ended the analysis before its end, at {come.question.what}") from come


def _words(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise FFGBError("what the server says of all sites is not understood")
    return tuple(value)


@final
@dataclass(frozen=True)
class AnalysisKeepsake:
    """Keeps results in a folder of the site."""

    folder: Path
    job: bytes
    show: Callable[[Any], str]
    """A result as a text."""

    def keep(self, found: Result) -> list[str]:
        """Keep a result; sentences for the owner."""
        n = 1
        while (place := self.folder / f"analysis-{n}").exists():
            n += 1
        private(place)
        text = self.show(found)
        write_result(place, found, text, self.job)
        return [
            *(line for line in text.splitlines() if line.strip()),
            f"the analysis has ended; this site has computed the same result from the totals, and keeps it in {place}",
        ]


def write_result(folder: Path, found: Result, text: str, job: bytes) -> None:
    """A result as JSON, as a text, and the job that it is of."""
    for name, data in {
        "job.toml": job,
        "result.txt": text.encode(),
        "result.json": json.dumps(found.to_json(), allow_nan=False, indent=1).encode(),
    }.items():
        atomic_write(folder / name, data, 0o600)
