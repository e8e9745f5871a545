"""The server's process in an analysis: it lets sites in, asks them what the analysis asks, and keeps the result."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from ffgb.data.preprocess import TEXT
from ffgb.data.records import SITE, agreed_kinds
from ffgb.data.sites import Met, met
from ffgb.deployment.analysis_job import analysis_text
from ffgb.deployment.board import ServerBoard
from ffgb.deployment.course import header_of, write_result
from ffgb.deployment.server import FAREWELL, Door, Service, Watched, opened, refuse_few, refuse_secure, registered_keys
from ffgb.engines.flower import FlowerEngine, gather
from ffgb.errors import FFGBError, option
from ffgb.federation.conversation import Conversation
from ffgb.federation.masked import Masked, MaskedSetUp
from ffgb.federation.participants import Participants
from ffgb.federation.shown import ShownAsk
from ffgb.federation.totals import BeforeTraining, SetUp
from ffgb.files import atomic_write
from ffgb.protocol.codec import shown
from ffgb.protocol.costs import Costs
from ffgb.runs.statistics import Agreed, Analysis, Found

BEGUN: Final = "analysis.json"
"""In the folder of an analysis: its job and its name."""
RESULT_TEXT, RESULT = "result.txt", "result.json"


@final
@dataclass(frozen=True)
class Place:
    """The folder that an analysis has."""

    folder: Path
    job: str

    @property
    def ended(self) -> bool:
        """Is the result there?"""
        return (self.folder / RESULT).exists()

    def training(self) -> str:
        """The analysis's name, that it goes on by; an FFGBError if the folder has another result, or other files."""
        file = self.folder / BEGUN
        begun = json.loads(file.read_text()) if file.exists() else None
        if begun is not None and begun["job"] == self.job:
            return str(begun["training"])
        if self.ended:
            raise FFGBError(f"{self.folder} has the result of another analysis; name another {option('out')}")
        if begun is None and self.folder.exists() and any(self.folder.iterdir()):
            raise FFGBError(f"{self.folder} is not empty, and has no analysis; name another {option('out')}")
        self.folder.mkdir(parents=True, exist_ok=True)
        name = secrets.token_hex(8)
        atomic_write(file, json.dumps({"job": self.job, "training": name}).encode(), 0o600)
        return name


def analyse(
    service: Service,
    analysis: Analysis[Found],
    place: Place,
    *,
    secure: bool,
    board: ServerBoard,
    show: Callable[[Found], str],
    say: Callable[[str], None],
    warn: Callable[[str], None],
    stop: Callable[[], bool] = lambda: False,
) -> Found:
    """Ask sites until the analysis has its answer, or told to stop; an FFGBError says what went wrong."""
    training = place.training()
    with opened(service, place.job.encode(), board=board, say=say, warn=warn) as door:
        sites = Sites(door, service, training, board, stop)
        found = sites.asked(analysis, secure=secure)
        write_result(place.folder, found, show(found), place.job.encode())
        return found


@final
@dataclass(frozen=True)
class Sites:
    """The sites of one analysis."""

    door: Door
    service: Service
    training: str
    board: ServerBoard
    stop: Callable[[], bool]

    def asked(self, analysis: Analysis[Found], *, secure: bool) -> Found:
        """What comes of the analysis; all sites that are there hear of its end."""
        door, service = self.door, self.service
        found = gather(door.grid, service.clients, service.patience, met, door.say, door.keys, self.stop)
        nodes = {name: node for name, (node, _) in found.items()}
        hellos: dict[str, Met] = {name: said for name, (_, said) in found.items()}
        agreed = agreed_by(analysis, hellos, secure=secure)
        engine = self._engine(nodes, agreed)
        ask = ShownAsk(self._ask(engine, agreed, hellos), engine.agree)
        door.say(f"{analysis.name} with {', '.join(map(shown, agreed.names))}")

        def on_step(step: int, measure: float) -> None:
            door.say(f"step {step}: {analysis.measure} {measure:.6g}")

        try:
            with np.errstate(all="ignore"):  # totals are checked
                return analysis.asked(ask, agreed, on_step).at_cost(ask.ask.costs)
        finally:
            if not ask.unanswered:  # it has an answer, or there is none to be had: sites come to the same
                heard = engine.farewell({"schema": engine.agreed}, {"ended": True}, FAREWELL)
                door.say(f"the analysis has ended; {len(heard)} of {len(nodes)} sites know")

    def _engine(self, nodes: Mapping[str, int], agreed: Agreed) -> FlowerEngine:
        def on_site(name: str, why: str) -> None:
            self.board.away(name, why) if why else self.board.back(name)

        return FlowerEngine(
            # owners compare fingerprints meanwhile, perhaps over the telephone
            *(self.door.grid, nodes, dict(enumerate(agreed.names)), self.service.patience),
            agreed=header_of(agreed),
            met=met,
            training=self.training,
            keys=self.door.keys,
            on_site=on_site,
        )

    def _ask(self, engine: FlowerEngine, agreed: Agreed, hellos: Mapping[str, Met]) -> SetUp:
        """Questions to all sites: under masks, or in the open."""
        N = len(agreed.names)
        clients = Participants([1] * N, names=agreed.names, minimum=N)
        conversation = Conversation(Watched(engine, self.board), clients)

        def asking(what: str, done: int, sites: int) -> None:
            if self.stop():
                raise KeyboardInterrupt
            self.door.say(f"asks about {what}, {done} of {sites} sites" if done else f"asks about {what}")

        rest: tuple[Any, ...] = (Costs(), {}, {}, lambda known, costs: None, asking)
        if not agreed.secure:
            return BeforeTraining(conversation, *rest)
        masked = Masked(conversation, registered_keys(hellos, self.door.keys_of_sites))
        masked.share_secret()
        engine.deadline = self.service.deadline
        return MaskedSetUp(masked, *rest)


def agreed_by(analysis: Analysis[Any], hellos: Mapping[str, Met], *, secure: bool) -> Agreed:
    """What is known of all sites, if the analysis can be asked of them."""
    if secure:
        refuse_few(hellos)
    else:
        refuse_secure(hellos)
    kinds = {site: {name: said.kind for name, said in told.columns.columns.items()} for site, told in hellos.items()}
    used = analysis.columns_used
    own_site = SITE in used and not any(SITE in has for has in kinds.values())
    if own_site:
        kinds = {site: {**has, SITE: TEXT} for site, has in kinds.items()}
    for site, has in kinds.items():
        if lacking := [name for name in used if name not in has]:
            raise FFGBError(
                f"site {shown(site)} has no column {lacking[0]!r}; all sites need the columns of the analysis: ask its "
                "owner to name it so, or choose other columns"
            )
    coded = tuple(agreed_kinds(kinds, used))
    agreed = Agreed(tuple(sorted(hellos)), coded, secure, own_site)
    analysis.check_agreed(agreed)
    return agreed


def place_of(out: Path, analysis: Analysis[Any], *, secure: bool) -> Place:
    """The folder of this analysis."""
    return Place(out, analysis_text(analysis, secure=secure))
