"""Flower as the engine: the same messages between real sites.  This is the only file that uses flwr.

A node holds one site (sites.py).  The server asks it by a Flower message that carries one of ours and the numbers of
the clients it is for; the answers come back in one.  Flower starts a new process for every message, so what clients
know is kept in the node's own `Context.state`, and if that is lost too, they say so and are brought up to date.

Who does not answer before the deadline is left out, and not asked again until it answers a small question of its own
that waits for it: so that a dead node costs one deadline, not one a round.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from threadpoolctl import threadpool_limits

from ffgb.engines import Engine
from ffgb.errors import FFGBError, missing_extra
from ffgb.sites import Resident, Schema, Site, agrees, hello, met, written_down
from ffgb.wire import Message as OurMessage
from ffgb.wire import decode, encode, shown

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid

log = logging.getLogger("ffgb")

ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
"""What Flower does unless it is told not to: telemetry, a look for updates, and installing packages at run time."""

KIND = "train.ffgb"
"""Flower's name for all our messages."""
POLL = 0.05
BYTES = "ffgb.bytes"
"""How our arrays are serialised, to Flower: not at all."""


def _flwr() -> Any:
    try:
        import flwr.app
    except ImportError as error:
        raise missing_extra("flwr", "flower", "training between sites") from error
    return flwr.app


def pack(data: Mapping[str, bytes], said: Mapping[str, Any]) -> Any:
    """Bytes by name, and a few words, as Flower carries them: an array of bytes is what it is quickest with."""
    flower = _flwr()
    arrays = {name: flower.Array(dtype="uint8", shape=(len(b),), stype=BYTES, data=b) for name, b in data.items()}
    content = flower.RecordDict({"said": flower.ConfigRecord(dict(said))})
    if arrays:
        content["data"] = flower.ArrayRecord(arrays)
    return content


def unpack(content: Any) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The inverse; an FFGBError if it is something else."""
    try:
        said = dict(content["said"])
        data = {str(name): array.data for name, array in content["data"].items()} if "data" in content else {}
    except (KeyError, AttributeError, TypeError) as error:
        raise FFGBError("a Flower message is not one of ours") from error
    if not all(isinstance(b, bytes) for b in data.values()):
        raise FFGBError("a Flower message is not one of ours")
    return data, said


# The server's side


@final
class FlowerEngine(Engine):
    """Clients at nodes of a Flower grid."""

    def __init__(self, grid: Grid, nodes: Mapping[str, int], schema: Schema, seed: int, deadline: float) -> None:
        self.grid, self.nodes, self.schema, self.deadline = grid, dict(nodes), schema, deadline
        self.text = schema.to_json().encode()
        self.common = {"schema": hashlib.sha256(self.text).hexdigest(), "seed": seed}
        self.places = dict(enumerate(schema.names))
        with_tests = [name for name, rows in zip(schema.names, schema.test_rows, strict=True) if rows]
        self.places |= {len(schema.names) + j: name for j, name in enumerate(with_tests)}
        self.away: dict[str, set[str]] = {}
        """Sites that missed a deadline, and the questions that wait for each."""

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
            for message in self.grid.pull_messages(list(waiting)):
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
            self.away[name] = set()
        return answers

    def _read(self, name: str, message: Message) -> tuple[dict[str, bytes], dict[str, Any]]:
        """What a node sent; nothing, and a word in the log, if that is no answer."""
        if message.has_error():
            log.warning("site %s failed: %s", name, shown(message.error.reason))
            return {}, {}
        try:
            return unpack(message.content)
        except FFGBError as error:
            log.warning("site %s sent what is refused: %s", name, error)
            return {}, {}

    def _push(self, contents: Mapping[str, Any]) -> dict[str, str]:
        """Send to sites; the ids of what was sent, and to whom."""
        flower = _flwr()
        messages = [
            flower.Message(content, self.nodes[name], KIND, ttl=self.deadline) for name, content in contents.items()
        ]
        return dict(zip(self.grid.push_messages(messages), contents, strict=True))

    def _look_for_those_away(self) -> None:
        """Sites that answer again are asked again; one that comes back as another node is known by its name."""
        if not self.away:
            return
        present = set(self.grid.get_node_ids())
        for node in present - set(self.nodes.values()):
            for name in meet(self.grid, [node], 2.0):
                if name in self.away:
                    log.warning("site %s is back", name)
                    self.nodes[name] = node
                    del self.away[name]
        for name, asked in list(self.away.items()):
            replies = list(self.grid.pull_messages(asked)) if asked else []
            if any(not reply.has_error() for reply in replies):
                log.warning("site %s is back", name)
                del self.away[name]
            elif self.nodes[name] in present and len(asked) < 3:
                asked |= set(self._push({name: pack({}, {"hello": True})}))

    def close(self, *, at_once: bool = False) -> None:
        """Nodes live on: they are not ours."""


def meet(grid: Grid, nodes: Iterable[int], limit: float) -> dict[str, tuple[int, Any]]:
    """Ask nodes who they are: by name, the node and what it says about its file."""
    flower = _flwr()
    asked = [flower.Message(pack({}, {"hello": True}), node, KIND, ttl=max(limit, 1.0)) for node in nodes]
    waiting = dict(zip(grid.push_messages(asked), [m.metadata.dst_node_id for m in asked], strict=True))
    found: dict[str, tuple[int, Any]] = {}
    until = time.monotonic() + limit
    while waiting and time.monotonic() < until:
        for message in grid.pull_messages(list(waiting)):
            node = waiting.pop(message.metadata.reply_to_message_id, None)
            if node is None or message.has_error():
                continue
            try:
                data, _ = unpack(message.content)
                name, columns = met(data["hello"])
            except (FFGBError, KeyError) as error:
                log.warning("a node that says what is refused is left out: %s", shown(error))
                continue
            if name in found:
                log.warning("two nodes say that they are site %s; the second is left out", shown(name))
                continue
            found[name] = node, columns
        time.sleep(POLL)
    return found


def gather(
    grid: Grid, count: int, patience: float, say: Callable[[str], None] = lambda text: None
) -> dict[str, tuple[int, Any]]:
    """Wait until so many sites are there."""
    found: dict[str, tuple[int, Any]] = {}
    until = time.monotonic() + patience
    while len(found) < count:
        new = [node for node in grid.get_node_ids() if node not in {n for n, _ in found.values()}]
        for name, met_now in meet(grid, new, min(60.0, patience)).items() if new else ():
            found.setdefault(name, met_now)
        say(f"{len(found)} of {count} sites are here")
        if len(found) < count:
            if time.monotonic() > until:
                here = ", ".join(sorted(found)) or "none"
                raise FFGBError(
                    f"only {len(found)} of {count} sites came within {patience:g} s ({here}); start the others"
                )
            time.sleep(1.0)
    return dict(sorted(found.items())[:count])


# A node's side

_residents: dict[tuple[int, int], tuple[str, Resident]] = {}
"""Clients that this process held last: it may be asked again, and then need not read its file anew."""


def client_app() -> ClientApp:
    """The app that every node runs."""
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train("ffgb")
    def answer(message: Message, context: Context) -> Message:
        flower = _flwr()
        with threadpool_limits(limits=1):
            content = _answer(message, context)
        return flower.Message(content, reply_to=message)  # type: ignore[no-any-return]

    return app


def site_of(config: Mapping[str, Any]) -> Site:
    """The site that a node's configuration describes."""
    path = Path(str(config["data"]))
    target, task = (str(config[key]) if key in config else None for key in ("target", "task"))
    return Site(str(config.get("name", path.stem)), path, target, task)


def _answer(message: Message, context: Context) -> Any:
    data, said = unpack(message.content)
    site = site_of(context.node_config)
    if said.get("hello"):
        return pack({"hello": hello(site)}, {})
    kept, known = unpack(context.state) if "said" in context.state else ({}, {})
    if "schema" in data:
        kept["schema"] = data["schema"]
    if hashlib.sha256(kept.get("schema", b"")).hexdigest() != said["schema"]:
        return pack({}, {"needs": "schema"})
    place = (context.run_id, context.node_id)
    token, resident = _residents.get(place, ("", None))
    if resident is None or token != known.get("token"):
        resident = Resident(site, Schema.from_json(kept["schema"].decode()), int(said["seed"]))
        resident.restore(kept)
    clients = [int(i) for i in said["clients"]]
    answers = _with_consent(data["message"], clients, resident, context.node_config)
    token = message.metadata.message_id
    _residents[place] = token, resident
    state = pack({"schema": kept["schema"], **resident.snapshot()}, {"token": token})
    for name in ("said", "data"):
        context.state[name] = state[name]
    return pack({str(i): a for i, a in answers.items()}, {})


def _with_consent(
    data: bytes, clients: Sequence[int], resident: Resident, config: Mapping[str, Any]
) -> dict[int, bytes]:
    """The answers, if the site has agreed to such questions; and a line in its own log for all that comes and goes."""
    question, strange = decode(data), None
    if "agreed" in config:
        strange = agrees(question, frozenset(str(config["agreed"]).split()))
    if strange is None:
        answers = resident.answer(data, clients)
    else:
        text = f"this site has not agreed to {strange}; its owner sees what is asked for with: ffgb client --dry-run"
        answers = {i: encode(OurMessage("error", question.round, i, {"text": text})) for i in clients}
    if "log" in config:
        lines = [written_down(data, "in"), *(written_down(a, "out") for i, a in answers.items() if i == resident.i)]
        with Path(str(config["log"])).open("a") as file:
            file.writelines(lines)
    return answers


def server_app() -> Any:
    """The app that the server runs: a whole training, described by one JSON object in the run's configuration."""
    _flwr()
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
    try:
        found = gather(grid, int(job["clients"]), float(job["patience"]), lambda text: _note(job, text))
        schema = Schema.of({name: columns for name, (_, columns) in found.items()}, job["target"], job["task"])
        nodes = {name: node for name, (node, _) in found.items()}
        resume = (out / "config.json").exists()
        values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in job["config"].items()}
        config = Config.from_json(Run.open(out).config) if resume else Config(**values)
        engine = FlowerEngine(grid, nodes, schema, config.seed, float(job["deadline"]))
        total: list[int] = []
        _note(job, f"training with {', '.join(schema.names)}")
        train(
            *(config, out),
            resume=resume,
            elsewhere=Elsewhere(engine, schema, int(job["minimum"])),
            on_setup=lambda what, done, clients: _note(job, f"set up: {what}, {done} of {clients} sites"),
            on_start=lambda config, dataset: total.append(config.exchanges),
            on_round=lambda line: _note(job, f"round {line['round']} of {total[0]}"),
        )
    except FFGBError as error:
        trouble.write_text(str(error))
        raise


def _note(job: Mapping[str, Any], text: str) -> None:
    """Where things stand, for the command that started us."""
    file = Path(job["progress"])
    temporary = file.with_name(file.name + ".tmp")
    temporary.write_text(text)
    temporary.replace(file)
