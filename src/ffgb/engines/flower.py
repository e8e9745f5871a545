"""Flower as the engine: the same messages between real sites, or in Flower's simulation under Ray.

A node is a site (sites.py), or in a simulation one client.  The server asks it by a Flower message that carries one of
ours and the numbers of the clients it is for; the answers come back in one.

Who does not answer before the deadline, or of whom Flower says that it is gone, is left out, and not asked again until
it answers a small question of its own that waits for it: so that a dead node costs one deadline, not one a round.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from threadpoolctl import threadpool_limits

from ffgb.data.preprocess import RARE
from ffgb.engines import Engine
from ffgb.engines.local import Holding
from ffgb.engines.node import KIND, flwr, pack, unpack, weight
from ffgb.errors import FFGBError, missing_extra
from ffgb.sites import SITES_FILE, Resident, Schema, met
from ffgb.wire import shown

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid

log = logging.getLogger("ffgb")

POLL = 0.05
WAIT = 600.0
"""Seconds that a question who is there waits for its node."""
REST = 10.0
START = 300.0
"""Seconds that a simulation has to start."""
FOREVER = 7 * 24 * 3600.0
"""The deadline of clients that no one can lose."""


# The server's side


@final
class Counted:
    """A Flower grid, and the bytes of all that goes through it."""

    def __init__(self, grid: Grid) -> None:
        self.grid, self.up, self.down = grid, 0, 0

    def push(self, messages: Sequence[Message]) -> list[str]:
        self.down += sum(map(weight, messages))
        return list(self.grid.push_messages(messages))

    def pull(self, ids: Iterable[str]) -> list[Message]:
        found = list(self.grid.pull_messages(list(ids)))
        self.up += sum(map(weight, found))
        return found

    def nodes(self) -> set[int]:
        return set(self.grid.get_node_ids())


@final
class FlowerEngine(Engine):
    """Clients at nodes of a Flower grid."""

    def __init__(
        self,
        grid: Counted,
        nodes: Mapping[str, int],
        places: Mapping[int, str],
        deadline: float,
        *,
        schema: Schema | None = None,
        seed: int = 0,
        keys: Mapping[int, str] | None = None,
    ) -> None:
        """Nodes by the names of their sites, and clients' numbers with the site where each lives.

        Sites need a schema; with `keys` a node is who its key says that it is.
        """
        self.grid, self.nodes, self.places, self.deadline = grid, dict(nodes), dict(places), deadline
        self.keys = keys
        self.text = b"" if schema is None else schema.to_json().encode()
        self.common = {"schema": hashlib.sha256(self.text).hexdigest(), "seed": seed}
        self.away: set[str] = set()
        """Sites that missed a deadline, or failed."""
        self.asked: dict[str, int] = {}
        """Questions who is there that wait for an answer, and the nodes they went to."""

    @staticmethod
    def of_sites(
        grid: Counted,
        nodes: Mapping[str, int],
        schema: Schema,
        seed: int,
        deadline: float,
        keys: Mapping[int, str] | None = None,
    ) -> FlowerEngine:
        with_tests = [name for name, rows in zip(schema.names, schema.test_rows, strict=True) if rows]
        places = dict(enumerate([*schema.names, *with_tests]))
        return FlowerEngine(grid, nodes, places, deadline, schema=schema, seed=seed, keys=keys)

    def exchange(self, data: bytes, clients: Sequence[int]) -> dict[int, bytes]:
        self._look_for_those_away()
        wanted: dict[str, list[int]] = {}
        for i in clients:
            if (name := self.places[i]) not in self.away:
                wanted.setdefault(name, []).append(i)
        answers: dict[int, bytes] = {}
        waiting = self._push(
            {name: pack({"message": data}, {**self.common, "clients": some}) for name, some in wanted.items()}
        )
        until = time.monotonic() + self.deadline
        while waiting and time.monotonic() < until:
            for message in self.grid.pull(waiting):
                if (asked := message.metadata.reply_to_message_id) not in waiting:
                    continue  # it came twice
                name = waiting.pop(asked)
                came, said = self._read(name, message)
                if said.get("needs") == "schema":
                    both = {"message": data, "schema": self.text}
                    waiting |= self._push({name: pack(both, {**self.common, "clients": wanted[name]})})
                for i in wanted[name]:
                    if str(i) in came:
                        answers[i] = came[str(i)]
            if waiting:
                time.sleep(POLL)
        for name in waiting.values():
            log.warning("site %s did not answer within %g s; it is left out until it does", name, self.deadline)
            self.away.add(name)
        return answers

    def wait(self, clients: Sequence[int]) -> None:
        """Until one of those that are away is back, as long as an answer may take."""
        lost = {self.places[i] for i in clients} & self.away
        until = time.monotonic() + self.deadline
        while lost and lost <= self.away and time.monotonic() < until:
            self._look_for_those_away()
            time.sleep(POLL)

    def _read(self, name: str, message: Message) -> tuple[dict[str, bytes], dict[str, Any]]:
        """What a node sent; nothing, and a word in the log, if that is no answer."""
        if message.has_error():
            log.warning("site %s failed, and is left out until it answers again: %s", name, shown(message.error.reason))
            self.away.add(name)
            return {}, {}
        try:
            return unpack(message.content)
        except FFGBError as error:
            log.warning("site %s sent what is refused: %s", name, error)
            return {}, {}

    def _push(self, contents: Mapping[str, Any]) -> dict[str, str]:
        """Send to sites; the ids of what was sent, and to whom."""
        flower = flwr()
        messages = [
            flower.Message(content, self.nodes[name], KIND, ttl=self.deadline) for name, content in contents.items()
        ]
        return dict(zip(self.grid.push(messages), contents, strict=True))

    def _look_for_those_away(self) -> None:
        """Sites that answer again are asked again; one that comes back as another node is known by its name."""
        if not self.away:
            return
        for name, node, _ in _who_answered(self.grid, self.asked, self.keys):
            if name in self.away:
                log.warning("site %s is back", name)
                self.nodes[name] = node
                self.away.remove(name)
        known = {node for name, node in self.nodes.items() if name not in self.away}
        self.asked |= _ask_who(self.grid, self.grid.nodes() - known - set(self.asked.values()), WAIT)

    def wire(self) -> dict[str, int]:
        return {"wire_up": self.grid.up, "wire_down": self.grid.down}

    def close(self, *, at_once: bool = False) -> None:
        """Nodes live on: they are not ours."""


def _ask_who(grid: Counted, nodes: Iterable[int], wait: float) -> dict[str, int]:
    """Ask nodes who they are: the questions, and to whom each went."""
    flower = flwr()
    messages = [flower.Message(pack({}, {"hello": True}), node, KIND, ttl=wait) for node in nodes]
    ids = grid.push(messages) if messages else ()
    return dict(zip(ids, [m.metadata.dst_node_id for m in messages], strict=True))


def _replies(grid: Counted, asked: dict[str, int]) -> Iterator[tuple[int, Any]]:
    """The nodes that have answered, and what; the questions that were, or that no one will answer, are taken away."""
    for message in grid.pull(asked) if asked else ():
        node = asked.pop(message.metadata.reply_to_message_id, None)
        if node is not None and message.has_error():
            log.warning("a node could not say who it is: %s", shown(message.error.reason))
        elif node is not None:
            yield node, message.content


def _who_answered(
    grid: Counted, asked: dict[str, int], keys: Mapping[int, str] | None = None
) -> Iterator[tuple[str, int, Any]]:
    """The sites that have answered: name, node, and what each says about its file.

    With keys a site bears the name of the key that its node has shown; another name is refused.
    """
    for node, content in _replies(grid, asked):
        try:
            data, _ = unpack(content)
            name, columns = met(data["hello"])
        except (FFGBError, KeyError) as error:
            log.warning("a node that says what is refused is left out: %s", shown(error))
            continue
        if keys is None or keys.get(node) == name:
            yield name, node, columns
        else:
            whose = shown(keys.get(node, "no one"))
            log.warning("a node with the key of %s says that it is site %s; it is left out", whose, shown(name))


def gather(
    grid: Counted,
    count: int,
    patience: float,
    say: Callable[[str], None] = lambda text: None,
    keys: Mapping[int, str] | None = None,
) -> dict[str, tuple[int, Any]]:
    """Wait until so many sites are there."""
    found: dict[str, tuple[int, Any]] = {}
    asked: dict[str, int] = {}
    rests: dict[int, float] = {}
    """When a node may be asked again: it may have been mended."""
    until = time.monotonic() + patience
    while len(found) < count:
        for name, node, columns in _who_answered(grid, asked, keys):
            if name in found and found[name][0] in grid.nodes():
                log.warning("two nodes say that they are site %s; the second is left out", shown(name))
            else:  # if it was there before, it died and came back
                found[name] = node, columns
        now, busy = time.monotonic(), {node for node, _ in found.values()} | set(asked.values())
        new = {node for node in grid.nodes() if node not in busy and rests.get(node, 0.0) <= now}
        asked |= _ask_who(grid, new, WAIT)
        rests |= dict.fromkeys(new, now + REST)
        say(f"{len(found)} of {count} sites are here")
        if len(found) < count:
            if time.monotonic() > until:
                names = ", ".join(sorted(found)) or "none"
                raise FFGBError(
                    f"only {len(found)} of {count} sites came within {patience:g} s ({names}); start the others"
                )
            time.sleep(POLL)
    return dict(sorted(found.items())[:count])


# A whole training at the server


def server_app() -> Any:
    """The app that the server runs: a whole training, described by one JSON object in the run's configuration."""
    flwr()
    from flwr.serverapp import ServerApp

    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(grid, json.loads(str(context.run_config["job"])))

    return app


def serve(grid: Grid, job: Mapping[str, Any]) -> None:
    """Train with the sites of a grid, and leave a run directory; what goes wrong is left beside it, in a sentence."""
    from ffgb.config import Config
    from ffgb.runs import Run
    from ffgb.training import Elsewhere, train

    out, trouble = Path(job["out"]), Path(job["trouble"])
    warnings = logging.FileHandler(job["warnings"])
    log.addHandler(warnings)
    try:
        keys = None if job["keys"] is None else {int(node): name for node, name in job["keys"].items()}
        counted = Counted(grid)
        found = gather(counted, int(job["clients"]), float(job["patience"]), lambda text: _note(job, text), keys)
        described = {name: columns for name, (_, columns) in found.items()}
        schema = Schema.of(described, job["target"], job["task"], int(job["config"].get("rare", RARE)))
        nodes = {name: node for name, (node, _) in found.items()}
        resume = (out / "config.json").exists()
        values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in job["config"].items()}
        values |= {"target": job["target"], "task": job["task"]}
        config = Config.from_json(Run.open(out).config) if resume else Config(**values)
        if resume:
            _refuse_others(out, schema)
            config = replace(config, rounds=values.get("rounds") or config.rounds)
        engine = FlowerEngine.of_sites(counted, nodes, schema, config.seed, float(job["deadline"]), keys)
        total: list[int] = []

        def after(line: Mapping[str, Any]) -> None:
            _note(job, f"round {line['round']} of {total[0]}")
            if not (out / SITES_FILE).exists():
                begun = {"sites": json.loads(schema.to_json()), "settings": job["config"]}
                Run.open(out).write_json(SITES_FILE, begun)

        _note(job, f"training with {', '.join(schema.names)}")
        train(
            *(config, out),
            resume=resume,
            elsewhere=Elsewhere(engine, schema, int(job["minimum"])),
            on_setup=lambda what, done, clients: _note(job, f"set up: {what}, {done} of {clients} sites"),
            on_start=lambda config, dataset: total.append(config.exchanges),
            on_round=after,
        )
    except Exception as error:
        known = isinstance(error, FFGBError)
        trouble.write_text(str(error) if known else f"an error in ffgb itself: {shown(repr(error))}")
        raise
    finally:
        log.removeHandler(warnings)
        warnings.close()


def _refuse_others(out: Path, schema: Schema) -> None:
    """A run goes on with the sites that it began with, and their rows."""
    if not (out / SITES_FILE).exists():
        return
    before = Schema.from_json(json.dumps(json.loads((out / SITES_FILE).read_text())["sites"]))
    if before.names != schema.names:
        then, now = (", ".join(s.names) for s in (before, schema))
        raise FFGBError(f"the run in {out} was begun with {then}, and here are {now}; bring those, or name a new --out")
    for name, *rows in zip(schema.names, before.rows, schema.rows, before.test_rows, schema.test_rows, strict=True):
        if (had := rows[0] + rows[2]) != (has := rows[1] + rows[3]):
            raise FFGBError(
                f"site {name} had {had} rows when the run in {out} began, and has {has}; give it the file of then, "
                "or name a new --out"
            )
    if before != schema:
        raise FFGBError(f"columns or classes are not those that the run in {out} began with; name a new --out")


def _note(job: Mapping[str, Any], text: str) -> None:
    """Where things stand, for the command that started us."""
    file = Path(job["progress"])
    temporary = file.with_name(file.name + ".tmp")
    temporary.write_text(text)
    temporary.replace(file)


# Flower's simulation

_residents: OrderedDict[tuple[int, int], tuple[str, Resident]] = OrderedDict()
"""Clients that this process held last: it may be asked again, and then need not be told what they know."""
HELD = 64


def client_app(config: str) -> ClientApp:
    """The app of a simulation's nodes, for a training with this configuration, as JSON.

    Any of Ray's processes may be a node's next, so what its client knows travels with it, in its `Context.state`.
    """
    flower = flwr()
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train("ffgb")
    def answer(message: Message, context: Context) -> Message:
        data, said = unpack(message.content)
        i = int(context.node_config["partition-id"])
        if said.get("hello"):
            return flower.Message(pack({}, {"place": i}), reply_to=message)  # type: ignore[no-any-return]
        with threadpool_limits(limits=1):
            resident = _resident(config, i, context)
            answers = resident.answer(data["message"], said["clients"])
        token = message.metadata.message_id
        _residents[context.run_id, i] = token, resident
        if len(_residents) > HELD:
            _residents.popitem(last=False)
        state = pack(resident.snapshot(), {"token": token})
        for name in state:
            context.state[name] = state[name]
        content = pack({str(i): a for i, a in answers.items()}, {})
        return flower.Message(content, reply_to=message)  # type: ignore[no-any-return]

    return app


def _resident(config: str, i: int, context: Context) -> Resident:
    """The client of a node, as the last message left it, whichever process that came to."""
    kept, known = unpack(context.state) if "said" in context.state else ({}, {})
    token, resident = _residents.pop((context.run_id, i), ("", None))
    if resident is None or token != known.get("token"):
        resident = Resident({i: _holdings(config)[i]})
        resident.restore(kept)
    return resident


@functools.lru_cache(maxsize=1)
def _holdings(config: str) -> list[Holding]:
    """Who holds what in a simulated training: read once by each process."""
    from ffgb.config import Config, load_data
    from ffgb.training import make_holdings, make_parts
    from ffgb.trust import allow

    chosen = Config.from_json(json.loads(config))
    for module in chosen.code:
        allow(module)
    dataset = load_data(chosen)
    return make_holdings(chosen, dataset, make_parts(chosen, dataset))[0]


@contextmanager
def simulation(config: str, clients: int, workers: int | None = None) -> Iterator[FlowerEngine]:
    """An engine whose clients are nodes of Flower's simulation, under Ray: here, or on the cluster at RAY_ADDRESS.

    Every process reads the data itself, by the configuration (as JSON), so files must be where each can read them.
    """
    flwr()
    try:
        import ray  # noqa: F401
    except ImportError as error:
        raise missing_extra("ray", "simulation", "--engine flower") from error
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    grids: queue.Queue[Grid | BaseException] = queue.Queue()
    over, server = threading.Event(), ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        grids.put(grid)
        over.wait()

    init: dict[str, Any] = {"include_dashboard": False, "logging_level": "error", "log_to_driver": False}
    if workers is not None:
        init["num_cpus"] = max(workers, 1)
    backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": init}

    def simulate() -> None:
        try:
            run_simulation(server, client_app(config), clients, backend_config=backend)
        except BaseException as error:
            grids.put(error)

    logging.getLogger("flwr").setLevel(logging.ERROR)
    thread = threading.Thread(target=simulate, daemon=True)
    thread.start()
    try:
        arrived = grids.get(timeout=START)
        if isinstance(arrived, BaseException):
            raise FFGBError(f"Flower's simulation did not start: {shown(arrived)}") from arrived
        grid = Counted(arrived)
        found: dict[str, int] = {}
        asked: dict[str, int] = {}
        until = time.monotonic() + START
        while len(found) < clients and time.monotonic() < until:
            asked |= _ask_who(grid, grid.nodes() - set(found.values()) - set(asked.values()), START)
            time.sleep(POLL)
            found |= {str(unpack(content)[1]["place"]): node for node, content in _replies(grid, asked)}
        if len(found) < clients:
            raise FFGBError(f"only {len(found)} of {clients} simulated clients answered within {START:g} s")
        yield FlowerEngine(grid, found, {i: str(i) for i in range(clients)}, FOREVER)
    except queue.Empty:
        raise FFGBError(f"Flower's simulation did not start within {START:g} s") from None
    finally:
        over.set()
        thread.join(timeout=60.0)
