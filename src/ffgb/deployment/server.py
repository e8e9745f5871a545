"""The server's process: it lets sites in, trains with them, and leaves a run directory."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from ffgb.core.outliers import strange_sizes
from ffgb.core.survey import FileCounts
from ffgb.data.dataset import CLASSIFICATION, REGRESSION
from ffgb.data.files import Columns
from ffgb.data.preprocess import RARE
from ffgb.data.sites import SITES_FILE, Met, Schema, met
from ffgb.data.survey import Counts, survey, without_counts
from ffgb.deployment.board import ServerBoard
from ffgb.deployment.job_file import job_text
from ffgb.deployment.keys import der, fingerprint, registered, server_files, welcome
from ffgb.engines.fleet import Fleet
from ffgb.engines.flower import Counted, FlowerEngine, gather
from ffgb.errors import FFGBError, option
from ffgb.features.tables import LEAST
from ffgb.federation.conversation import Conversation
from ffgb.federation.masked import Masked, MaskedSetUp
from ffgb.federation.participants import Participants
from ffgb.federation.totals import BeforeTraining
from ffgb.privacy.masks import FEWEST
from ffgb.protocol.codec import decode, shown
from ffgb.protocol.costs import Costs
from ffgb.protocol.engine import Engine
from ffgb.protocol.messages import what_leaves
from ffgb.runs.config import Config, code_in
from ffgb.runs.directory import Run
from ffgb.runs.private import private_schema
from ffgb.runs.training import Elsewhere, Result, train
from ffgb.user_code import must_be_named

log = logging.getLogger("ffgb")

FAREWELL = 20.0
"""Seconds that sites have to take the model."""


@final
@dataclass(frozen=True)
class Service:
    """What a server needs to know besides the training itself."""

    clients: int
    minimum: int
    host: str
    port: int
    keys: Path | None
    """The folder with its certificate and the sites' public keys; None for plain HTTP on this machine."""
    deadline: float
    patience: float


@final
@dataclass(frozen=True)
class Task:
    """What is trained: options of `ffgb train` by their names, and what is predicted."""

    settings: Mapping[str, Any]
    target: str | None
    task: str | None


def ended(out: Path, settings: Mapping[str, Any]) -> bool:
    """Is the run there over?  An FFGBError if it was begun with other options; more rounds may be asked for."""
    run, asked = Run.open(out), json.loads(json.dumps(dict(settings)))
    begun = json.loads((out / SITES_FILE).read_text())["settings"] if (out / SITES_FILE).exists() else asked
    rounds = asked.pop("rounds", None)
    if asked != {name: value for name, value in begun.items() if name != "rounds"}:
        name = next(n for n in sorted({*asked, *begun}) if asked.get(n) != begun.get(n))
        then, now = (json.dumps(o[name]) if name in o else "its default" for o in (begun, asked))
        raise FFGBError(f"the run in {out} was begun with {name} = {then}, not {now}; name another {option('out')}")
    with run.locked():  # another server may have it
        pass
    return (out / "summary.json").exists() and rounds in (None, run.config.get("rounds"))


def serve(
    service: Service,
    task: Task,
    out: Path,
    *,
    board: ServerBoard,
    say: Callable[[str], None],
    warn: Callable[[str], None],
    stop: Callable[[], bool] = lambda: False,
) -> Result:
    """Train with sites until it is over, or told to stop; an FFGBError says what went wrong."""

    job = job_text(task.settings, task.target, task.task).encode()
    with opened(service, job, board=board, say=say, warn=warn) as door:
        return federate(
            door.grid,
            service,
            task,
            out,
            keys=door.keys,
            keys_of_sites=door.keys_of_sites,
            board=board,
            say=door.say,
            stop=stop,
        )


@final
@dataclass(frozen=True)
class Door:
    """Where sites come in."""

    grid: Counted
    keys: Callable[[], Mapping[int, str] | None]
    """The sites by their nodes."""
    keys_of_sites: Callable[[], Mapping[str, bytes]]
    """Their public keys (PEM), if this server registers them."""
    say: Callable[[str], None]
    """Tell what is going on, once."""


@contextmanager
def opened(
    service: Service, job: bytes, *, board: ServerBoard, say: Callable[[str], None], warn: Callable[[str], None]
) -> Iterator[Door]:
    """Listen for sites, and propose them this job."""
    last = ""

    def tell(text: str) -> None:
        nonlocal last
        if text != last:
            last = text
            board.state(text)
            say(text)

    with _heeded(warn, board):
        fleet = _fleet(service, board, warn)
        with fleet.listening():
            tell(f"listening on {service.host}:{service.port}")
            yield Door(
                Counted(fleet.grid, fleet, job=job),
                lambda: None if fleet.open else fleet.names(),
                lambda: {} if service.keys is None else registered(service.keys),
                tell,
            )


def _fleet(service: Service, board: ServerBoard, tell: Callable[[str], None]) -> Fleet:
    """The door, with the keys of all registered sites."""
    if service.keys is None:
        return Fleet(service.host, service.port, None, heard=board.heard)
    folder = service.keys
    files = server_files(folder, [service.host])

    def joined(asked: Mapping[str, Any]) -> tuple[str, bytes]:
        name, pem = welcome(folder, asked)
        mark = fingerprint(der(pem, "the key"))
        board.site(name, mark)
        tell(f"site {shown(name)} has joined; the fingerprint of its key is {mark}")
        return name, pem

    fleet = Fleet(service.host, service.port, files, join=joined, heard=board.heard)
    for name, pem in registered(folder).items():
        fleet.admit(name, pem)
        board.site(name, fingerprint(der(pem, "the key")))
    return fleet


def federate(
    grid: Counted,
    service: Service,
    task: Task,
    out: Path,
    *,
    keys: Callable[[], Mapping[int, str] | None] = lambda: None,
    keys_of_sites: Callable[[], Mapping[str, bytes]] = dict,
    board: ServerBoard,
    say: Callable[[str], None],
    stop: Callable[[], bool] = lambda: False,
) -> Result:
    """A whole training with the nodes of a grid: of our own fleet, or of a Flower federation.

    `keys` are the sites by their nodes, and `keys_of_sites` their public keys (PEM), if this server registers them.
    """
    found = gather(grid, service.clients, service.patience, met, say, keys, stop)
    nodes = {name: node for name, (node, _) in found.items()}
    hellos: dict[str, Met] = {name: said for name, (_, said) in found.items()}
    resume = (out / "config.json").exists()
    config, training = _configuration(task, out), _training_of(out) or secrets.token_hex(8)
    asked = _Asked(grid, nodes, service, training, keys)
    schema, known = _agreed(asked, hellos, config, task, out, keys_of_sites, say)
    if known is None:
        for name, rows in zip(schema.names, schema.rows, strict=True):
            board.site(name, rows=rows)
    if resume:
        _must_be(out, schema, hellos)
        _show_rounds(out, board)

    def on_site(name: str, why: str) -> None:
        board.away(name, why) if why else board.back(name)

    engine = engine_of(
        grid, nodes, schema, config.seed, service.deadline, training=training, keys=keys, on_site=on_site
    )
    total: list[int] = []

    def remember() -> None:
        if (out / "config.json").exists() and not (out / SITES_FILE).exists():
            begun = {"sites": json.loads(schema.to_json()), "settings": dict(task.settings), "training": training}
            Run.open(out).write_json(SITES_FILE, begun)

    def setting_up(what: str, done: int, clients: int) -> None:
        remember()
        say(f"set up: {what}, {done} of {clients} sites" if done else f"set up: {what}")

    def after(line: dict[str, Any]) -> None:
        remember()
        board.measured(line)
        say(f"round {line['round']} of {total[0]}")

    say(f"training with {', '.join(map(shown, schema.names))}")
    result = train(
        config,
        out,
        resume=resume,
        elsewhere=Elsewhere(Watched(engine, board), schema, service.minimum, known),
        on_setup=setting_up,
        on_start=lambda config, dataset: total.append(config.exchanges),
        on_round=after,
        should_stop=stop,
    )
    if result.finished:
        parts = {"model": result.model.to_bytes(), "summary": json.dumps(result.summary).encode()}
        heard = engine.farewell(parts, {"ended": True}, FAREWELL)
        say(f"training has ended; {len(heard)} of {len(nodes)} sites have the model")
    return result


@final
@dataclass(frozen=True)
class _Asked:
    """The sites of a training, before they have agreed on anything."""

    grid: Counted
    nodes: Mapping[str, int]
    service: Service
    training: str
    keys: Callable[[], Mapping[int, str] | None]

    def engine(self, seed: int) -> FlowerEngine:
        engine = FlowerEngine(
            # owners compare fingerprints meanwhile, perhaps over the telephone
            *(self.grid, self.nodes, dict(enumerate(sorted(self.nodes))), self.service.patience),
            seed=seed,
            met=met,
            training=self.training,
            keys=self.keys,
        )
        engine.common["survey"] = True
        return engine


def _agreed(
    asked: _Asked,
    hellos: Mapping[str, Met],
    config: Config,
    task: Task,
    out: Path,
    keys_of_sites: Callable[[], Mapping[str, bytes]],
    say: Callable[[str], None],
) -> tuple[Schema, dict[str, str] | None]:
    """What all sites agree on, by sums under masks or in the open; under masks also the keys that they go by."""
    begun = _begun(out)
    if config.secure == "off":
        described = _in_the_open(hellos, asked.service.minimum)
        if begun is not None:
            return _with_rows(begun, described), None
        return _surveyed(asked.engine(config.seed), described, hellos, None, asked.service.minimum, task, say), None
    known = registered_keys(hellos, keys_of_sites)
    if begun is not None:
        return begun, known
    refuse_few(hellos)
    described = {name: without_counts(said.columns) for name, said in hellos.items()}
    return _surveyed(asked.engine(config.seed), described, hellos, known, asked.service.minimum, task, say), known


def _show_rounds(out: Path, board: ServerBoard) -> None:
    """The rounds of a run that goes on are on the page again."""
    file = out / "metrics.jsonl"
    for line in file.read_text().splitlines() if file.exists() else ():
        board.measured(json.loads(line))


def _configuration(task: Task, out: Path) -> Config:
    """The options of a training: of the run that is there, with as many rounds as are asked for now, or as asked."""
    values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in task.settings.items()}
    if not (out / "config.json").exists():
        return Config(**values | {"target": task.target, "task": task.task})
    config = Config.from_json(Run.open(out).config)
    named = code_in(task.settings)
    must_be_named(config.code, named, out, "if you trust it, name it in the options of this server")
    return replace(config, rounds=values.get("rounds") or config.rounds)


@final
class Watched(Engine):
    """An engine whose exchanges are shown on a board: what was asked, of how many, and how much it was."""

    def __init__(self, engine: FlowerEngine, board: ServerBoard) -> None:
        self.engine, self.board = engine, board

    def exchange(self, data: bytes, clients: Sequence[int]) -> dict[int, bytes]:
        answers = self.engine.exchange(data, clients)
        asked, answered = ({self.engine.places[i] for i in some} for some in (clients, answers))
        up = sum(map(len, answers.values()))
        self.board.asked(what_leaves(decode(data)), len(answered), len(data) * len(asked), up)
        return answers

    def expect(self, size: float) -> None:
        self.engine.expect(size)

    def wait(self, clients: Sequence[int]) -> None:
        self.engine.wait(clients)

    def wire(self) -> dict[str, int]:
        return self.engine.wire()

    def close(self, *, at_once: bool = False) -> None:
        self.engine.close(at_once=at_once)


def registered_keys(hellos: Mapping[str, Met], registered: Callable[[], Mapping[str, bytes]]) -> dict[str, str]:
    """The public key of each site (DER, in hexadecimal digits): what it says must be what is registered."""
    known = registered()
    found = {}
    for name, said in hellos.items():
        if name in known and der(known[name], f"the key of {name}").hex() != said.key:
            raise FFGBError(f"site {shown(name)} says that its key is another than the one that is registered")
        if not said.key:
            raise FFGBError(
                f"site {shown(name)} takes part without masks alone; say {option('secure', 'off')}, which every site "
                "is shown, or ask its owner"
            )
        found[name] = said.key
    return found


def refuse_few(hellos: Mapping[str, Met]) -> None:
    """Raise an FFGBError if there are too few sites for secure totals."""
    if len(hellos) < FEWEST:
        raise FFGBError(
            f"with {len(hellos)} sites each knows the other's part from a total: secure totals need {FEWEST}; say "
            f"{option('secure', 'off')}, which every site is shown"
        )


def _fewest(task: Task) -> dict[str, int]:
    """Rows of a category, and of an interval or leaf, at all sites together, by the options."""
    return {"rare": int(task.settings.get("rare", RARE)), "least": int(task.settings.get("least", LEAST))}


def _in_the_open(hellos: Mapping[str, Met], minimum: int) -> dict[str, Columns]:
    """What sites have said of their files without masks."""
    refuse_secure(hellos)
    return _believable({name: said.columns for name, said in hellos.items()}, minimum)


def refuse_secure(hellos: Mapping[str, Met]) -> None:
    """Raise an FFGBError if a site wants masks where there are none."""
    if private := sorted(name for name, said in hellos.items() if said.private):
        raise FFGBError(
            f"site {shown(private[0])} takes part in secure totals alone, and this training is without; leave "
            f"{option('secure', 'off')} out, or ask its owner"
        )


def _with_rows(begun: Schema, described: Mapping[str, Columns]) -> Schema:
    """What sites agreed on, with the rows that they have now."""
    names = tuple(sorted(described))
    rows, test_rows = (tuple(getattr(described[name], part) for name in names) for part in ("rows", "test_rows"))
    return replace(begun, names=names, rows=rows, test_rows=test_rows)


def _surveyed(
    engine: FlowerEngine,
    described: Mapping[str, Columns],
    hellos: Mapping[str, Met],
    registered: dict[str, str] | None,
    minimum: int,
    task: Task,
    say: Callable[[str], None],
) -> Schema:
    """What sites agree on, from sums over all of their files: under masks, if their keys are given."""
    names = sorted(hellos)
    clients = Participants([1] * len(names), names=names, minimum=minimum)
    for i, name in enumerate(names):
        if name not in described:
            clients.refused[i] = "it is left out"
    conversation = Conversation(engine, clients)

    def setting_up(what: str, done: int, sites: int) -> None:
        say(f"agree on a table: {what}, {done} of {sites} sites" if done else f"agree on a table: {what}")

    rest: tuple[Any, ...] = (Costs(), {}, {}, lambda known, costs: None, setting_up)
    masked = None if registered is None else Masked(conversation, registered)
    if masked is not None:
        masked.share_secret()
    ask = BeforeTraining(conversation, *rest) if masked is None else MaskedSetUp(masked, *rest)
    if task.settings.get("epsilon") is not None and isinstance(ask, MaskedSetUp):
        return _from_schema(ask, described, task)
    labelled = [name for name in described if hellos[name].labelled]
    found, counts = survey(ask, described, labelled, **_fewest(task))
    left = {name: found[name] for i, name in enumerate(names) if i not in clients.refused}
    schema = Schema.of(left, task.target, task.task, **_fewest(task))
    return schema if masked is None else schema.with_counts(counts)


def _from_schema(ask: MaskedSetUp, sites: Mapping[str, Columns], task: Task) -> Schema:
    """What sites agree on in a private training: the schema file, and how many rows all have together."""
    values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in task.settings.items()}
    config = Config(**values | {"target": task.target, "task": task.task})
    agreed = private_schema(config)
    if agreed is None or agreed.table is None:
        raise FFGBError(f"a private training needs the schema of all sites: {option('schema', 'FILE')}")
    rows, test_rows = (int(n) for n in ask(FileCounts(()))["rows"])
    names, classes = tuple(sorted(sites)), agreed.classes or ()
    held_out = tuple(min(sites[name].test_rows, 1) for name in names)
    kind = CLASSIFICATION if classes else REGRESSION
    shape, outputs = (len(agreed.table.names),), 1
    schema = Schema(names, agreed.table, classes, kind, shape, (1,) * len(names), held_out, outputs)
    return schema.with_counts(Counts(rows, test_rows))


def _believable(described: Mapping[str, Columns], minimum: int) -> dict[str, Columns]:
    """The sites whose sizes can be true beside the others'; who claims absurdly many rows is named and left out."""
    strange = strange_sizes({name: said.rows + said.test_rows for name, said in described.items()})
    for name, why in strange.items():
        log.warning("site %s is left out of this training: %s", shown(name), why)
    left = {name: said for name, said in described.items() if name not in strange}
    if len(left) < minimum:
        name, why = next(iter(strange.items()))
        raise FFGBError(f"site {shown(name)} cannot take part ({why}), and {option('minimum')} is {minimum}")
    return left


def _training_of(out: Path) -> str | None:
    """The name of the training that was begun there."""
    if not (out / SITES_FILE).exists():
        return None
    begun = json.loads((out / SITES_FILE).read_text())
    return str(begun["training"]) if "training" in begun else None


def _begun(out: Path) -> Schema | None:
    """What sites agreed on when the run there began."""
    if not (out / SITES_FILE).exists():
        return None
    return Schema.from_json(json.dumps(json.loads((out / SITES_FILE).read_text())["sites"]))


def _must_be(out: Path, schema: Schema, hellos: Mapping[str, Met]) -> None:
    """Raise an FFGBError if the run there was begun with other sites, or other rows of theirs."""
    before = _begun(out)
    if before is None:
        return
    if not schema.counted:  # whether a site has other rows now, it says itself
        schema = replace(schema, names=tuple(sorted(hellos)))
    if before.names != schema.names:
        then, now = (", ".join(map(shown, s.names)) for s in (before, schema))
        raise FFGBError(
            f"the run in {out} was begun with {then}, and here are {now}; bring those, or name a new {option('out')}"
        )
    for name, *rows in zip(schema.names, before.rows, schema.rows, before.test_rows, schema.test_rows, strict=True):
        if (had := rows[0] + rows[2]) != (has := rows[1] + rows[3]):
            raise FFGBError(
                f"site {name} had {had} rows when the run in {out} began, and has {has}; give it the file of then, "
                f"or name a new {option('out')}"
            )
    if before != schema:
        raise FFGBError(
            f"columns or classes are not those that the run in {out} began with; name a new {option('out')}"
        )


@contextmanager
def _heeded(warn: Callable[[str], None], board: ServerBoard) -> Iterator[None]:
    """What goes wrong in the training is told as it happens."""

    class Heed(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            warn(text)
            if getattr(record, "news", False):
                board.event(text)
            else:
                board.refused(text)

    handler = Heed(logging.WARNING)
    log.addHandler(handler)
    before, log.propagate = log.propagate, False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = before


def engine_of(
    grid: Counted,
    nodes: Mapping[str, int],
    schema: Schema,
    seed: int,
    deadline: float,
    **more: Any,
) -> FlowerEngine:
    """The engine for sites that agreed on a schema: a client each for its rows, and one for those it holds out."""
    with_tests = [name for name, rows in zip(schema.names, schema.test_rows, strict=True) if rows]
    places = dict(enumerate([*schema.names, *with_tests]))
    return FlowerEngine(grid, nodes, places, deadline, agreed=schema.to_json().encode(), seed=seed, met=met, **more)
