"""Flower as the engine: the same messages between real sites, or in Flower's simulation under Ray.

A node is a site (deployment/), or in a simulation one client (runs/simulation.py).  The server asks it by a Flower
message that carries one of ours and the numbers of the clients it is for; the answers come back in one.

A node that restarts while it is asked has lost the question, and is asked again.  Who does not answer before the
deadline, or of whom Flower says that it is gone, is left out, and not asked again until it restarts, or answers a small
question of its own that waits for it: so that a dead node costs one deadline, not one a round.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, final

from ffgb.engines.fleet import Fleet
from ffgb.engines.node import KIND, pack, unpack, weight
from ffgb.engines.private import flwr
from ffgb.errors import FFGBError
from ffgb.protocol.codec import shown
from ffgb.protocol.engine import Engine

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.serverapp import Grid

log = logging.getLogger("ffgb")

POLL = 0.05
LOOK = 0.5
"""Seconds between two looks at whether nodes are alive, while their answers are awaited."""
WAIT = 600.0
"""Seconds that a question who is there waits for its node."""
REST_SECONDS = 10.0
"""Between two questions to a node that is not there."""
NEWS = {"news": True}
"""Of a line of the log that tells what happens: nothing is refused."""
START = 300.0
"""Seconds that a simulation has to start."""
FOREVER = 7 * 24 * 3600.0
"""The deadline of clients that no one can lose."""


Met: TypeAlias = Callable[[bytes], tuple[str, Any]]
"""The name of a site, and what it says of its file, from what it sends when it is asked who it is."""


# The server's side


@final
class Counted:
    """A Flower grid, and the bytes of all that goes through it.

    If its nodes are served by this process, it is known when an answer is there; otherwise the grid is asked for them.
    """

    def __init__(self, grid: Grid, fleet: Fleet | None = None, *, job: bytes = b"") -> None:
        """`job` is what every node is told when it is asked who it is."""
        self.grid, self.fleet, self.up, self.down, self.job = grid, fleet, 0, 0, job

    def push(self, messages: Sequence[Message]) -> list[str]:
        self.down += sum(map(weight, messages))
        ids = list(self.grid.push_messages(messages))
        if self.fleet is not None:
            self.fleet.sent(message.metadata.dst_node_id for message in messages)
        return ids

    def pull(self, ids: Iterable[str]) -> list[tuple[str, Message | None]]:
        """Of these questions those that are answered, with the answer; None if that is no message at all.

        A grid that is not ours also answers for nodes that are gone.
        """
        if self.fleet is None:
            messages = list(self.grid.pull_messages(list(ids)))
            found: list[tuple[str, Message | None]] = [(m.metadata.reply_to_message_id, m) for m in messages]
        else:
            found = [(question, self.fleet.reply(question)) for question in self.fleet.arrived(ids)]
        self.up += sum(weight(message) for _, message in found if message is not None)
        return found

    def rest(self) -> None:
        """Wait a little for answers."""
        if self.fleet is None:
            time.sleep(POLL)
        else:
            self.fleet.wait(LOOK)

    def nodes(self) -> dict[int, str]:
        """The nodes that are here, and since when each has been, if the grid knows."""
        if (look := getattr(self.grid, "get_nodes", None)) is None:
            return dict.fromkeys(self.grid.get_node_ids(), "")
        return {node.node_id: str(node.last_activated_at) for node in look()}

    def forget(self, ids: Iterable[str]) -> None:
        """No one waits for answers to these any more."""
        if self.fleet is not None:
            self.fleet.forget(ids)


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
        agreed: bytes = b"",
        seed: int = 0,
        training: str = "",
        met: Met = lambda data: ("", None),
        keys: Callable[[], Mapping[int, str] | None] = lambda: None,
        on_site: Callable[[str, str], None] = lambda name, why: None,
    ) -> None:
        """Nodes by the names of their sites, and clients' numbers with the site where each lives.

        Sites need what all agreed on and the training's name; `met` reads what a site says of itself.  With `keys` a
        node is who its key says that it is.  `on_site` is told who goes, and why, or comes back, with no reason.
        """
        self.grid, self.nodes, self.places, self.deadline = grid, dict(nodes), dict(places), deadline
        self.keys, self.on_site, self.met = keys, on_site, met
        self.agreed = agreed
        self.common = {"schema": hashlib.sha256(agreed).hexdigest(), "seed": seed, "training": training}
        self.newest = b""
        """What all have agreed on last: it comes with the next message, for sites that have all before it."""
        self.away: dict[str, str] = {}
        """Sites that missed a deadline, or failed, and since when their nodes had been here then."""
        self.asked: dict[str, tuple[int, str]] = {}
        """Questions who is there that wait for an answer, the nodes they went to, and since when those were here."""

    def agree(self, more: bytes) -> None:
        """All have agreed on something more."""
        self.agreed, self.newest = self.agreed + more, more
        self.common["schema"] = hashlib.sha256(self.agreed).hexdigest()

    def expect(self, size: float) -> None:
        """A site answers for two clients at most: its rows to train with, and those that it holds out."""
        if self.grid.fleet is not None:
            self.grid.fleet.expect(2.0 * size)

    def exchange(self, data: bytes, clients: Sequence[int]) -> dict[int, bytes]:
        self._look_for_those_away()
        here, looked = self._here(), time.monotonic()
        asking = _Asking(self, data, self._wanted(clients, here), here)
        until = looked + self.deadline
        while asking.waiting and time.monotonic() < until:
            asking.pull()
            if asking.waiting and time.monotonic() > looked + LOOK:
                looked = time.monotonic()
                asking.look()
            if asking.waiting:
                self.grid.rest()
        for name in asking.waiting.values():
            self._lose(name, f"did not answer within {self.deadline:g} s")
        self.grid.forget(asking.waiting)
        return asking.answers

    def _wanted(self, clients: Sequence[int], here: Mapping[str, str]) -> dict[str, list[int]]:
        """The clients to ask, by their sites: those that are not away, and whose node is not gone."""
        wanted: dict[str, list[int]] = {}
        for i in clients:
            if (name := self.places[i]) not in self.away:
                wanted.setdefault(name, []).append(i)
        for name in [name for name in wanted if name not in here]:
            self._lose(name, "is gone")
            del wanted[name]
        return wanted

    def _here(self) -> dict[str, str]:
        """Sites whose nodes are here, and since when each has been."""
        nodes = self.grid.nodes()
        return {name: nodes[node] for name, node in self.nodes.items() if node in nodes}

    def _lose(self, name: str, why: str) -> None:
        log.warning("site %s %s; it is left out until it is back", shown(name), why)
        self.away[name] = self._here().get(name, "")
        self.on_site(name, why)

    def wait(self, clients: Sequence[int]) -> None:
        """Until one of those that are away is back, as long as an answer may take."""
        lost = {self.places[i] for i in clients} & self.away.keys()
        until = time.monotonic() + self.deadline
        while lost and lost <= self.away.keys() and time.monotonic() < until:
            self._look_for_those_away()
            self.grid.rest()

    def _read(self, name: str, message: Message | None) -> tuple[dict[str, bytes], dict[str, Any]]:
        """What a node sent; nothing, and a word in the log, if that is no answer."""
        if message is None:
            self._lose(name, "sent what is no message")
            return {}, {}
        if message.has_error():
            self._lose(name, f"failed: {shown(message.error.reason)}")
            return {}, {}
        try:
            came, said = unpack(message.content)
        except FFGBError as error:
            log.warning("site %s sent what is refused: %s", shown(name), error)
            return {}, {}
        if "failed" in said:
            self._lose(name, f"says: {shown(said['failed'])}")
        return came, said

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
        here = self._here()
        back = [(name, self.nodes[name]) for name, then in self.away.items() if here.get(name, then) != then]
        back += [(name, node) for name, node, _ in _who_answered(self.grid, self.asked, self.met, self.keys())]
        for name, node in back:
            if name in self.away:
                log.warning("site %s is back", shown(name))
                self.nodes[name] = node
                del self.away[name]
                self.on_site(name, "")
        known = {node for name, node in self.nodes.items() if name not in self.away}
        self.asked |= _ask_who(self.grid, self.asked, known, WAIT)

    def farewell(self, parts: Mapping[str, bytes], said: Mapping[str, Any], seconds: float) -> list[str]:
        """Tell all sites that are here that the training has ended, and what came of it: those that have heard it."""
        self._look_for_those_away()
        names = [name for name in self._here() if name not in self.away]
        asked = self._push({name: pack(parts, {**self.common, **said}) for name in names})
        heard, until = list[str](), time.monotonic() + seconds
        while asked and time.monotonic() < until:
            for question, message in self.grid.pull(asked):
                name = asked.pop(question, None)
                if name is not None and message is not None and not message.has_error():
                    heard.append(name)
            if asked:
                self.grid.rest()
        self.grid.forget(asked)
        return sorted(heard)

    def wire(self) -> dict[str, int]:
        return {"wire_up": self.grid.up, "wire_down": self.grid.down}

    def close(self, *, at_once: bool = False) -> None:
        """Nodes live on: they are not ours."""


@final
class _Asking:
    """One message to sites, and their answers as they come."""

    def __init__(
        self, engine: FlowerEngine, data: bytes, wanted: Mapping[str, list[int]], here: dict[str, str]
    ) -> None:
        """Ask clients by their sites; `here` says since when each site's node has been here."""
        self.engine, self.data, self.wanted, self.here = engine, data, wanted, here
        newest = {"more": engine.newest} if engine.newest else {}
        self.contents = {name: self._content(name, {"message": data, **newest}) for name in wanted}
        self.waiting = engine._push(self.contents)
        """What was asked and has no answer yet, and of whom."""
        self.told: set[str] = set()
        """Sites that have asked for what all agreed on."""
        self.answers: dict[int, bytes] = {}

    def _content(self, name: str, parts: Mapping[str, bytes]) -> Any:
        return pack(parts, {**self.engine.common, "clients": self.wanted[name]})

    def pull(self) -> None:
        """Take the answers that have come; who lacks what all agreed on is told, once."""
        for asked, message in self.engine.grid.pull(self.waiting):
            if asked not in self.waiting:
                continue  # it came twice
            name = self.waiting.pop(asked)
            came, said = self.engine._read(name, message)
            if said.get("needs") == "schema" and name not in self.told:
                self.told.add(name)
                self.contents[name] = self._content(name, {"message": self.data, "schema": self.engine.agreed})
                self.waiting |= self.engine._push({name: self.contents[name]})
            self.answers |= {i: came[str(i)] for i in self.wanted[name] if str(i) in came}

    def look(self) -> None:
        """Ask a site again whose node is another process by now; who is gone is not waited for."""
        now = self.engine._here()
        for asked, name in [(a, n) for a, n in self.waiting.items() if now.get(n) != self.here.get(n)]:
            del self.waiting[asked]
            self.engine.grid.forget([asked])
            if name in now:
                self.here[name] = now[name]
                self.waiting |= self.engine._push({name: self.contents[name]})
            else:
                self.engine._lose(name, "is gone")


def _ask_who(
    grid: Counted, asked: Mapping[str, tuple[int, str]], known: set[int], wait: float
) -> dict[str, tuple[int, str]]:
    """Ask nodes who they are that are not known and have not been asked: the questions, and to whom each went."""
    flower, nodes = flwr(), grid.nodes()
    new = [node for node in nodes if node not in known and node not in {node for node, _ in asked.values()}]
    told = {"job": grid.job} if grid.job else {}
    messages = [flower.Message(pack(told, {"hello": True}), node, KIND, ttl=wait) for node in new]
    ids = grid.push(messages) if messages else ()
    return {name: (node, nodes[node]) for name, node in zip(ids, new, strict=True)}


def _replies(grid: Counted, asked: dict[str, tuple[int, str]]) -> Iterator[tuple[int, Any]]:
    """The nodes that have answered, and what; the questions that were, or that no one will answer, are taken away."""
    for question, message in grid.pull(asked) if asked else ():
        node, _ = asked.pop(question, (None, ""))
        if message is None:
            log.warning("a node could not say who it is: it sent what is no message")
        elif node is not None and message.has_error():
            log.info("a site went away before it said who it is; it is asked again when it is back")
        elif node is not None:
            yield node, message.content
    nodes = grid.nodes()
    gone = [name for name, (node, since) in asked.items() if nodes.get(node) != since]
    grid.forget(gone)
    for name in gone:
        del asked[name]


def _who_answered(
    grid: Counted, asked: dict[str, tuple[int, str]], met: Met, keys: Mapping[int, str] | None = None
) -> Iterator[tuple[str, int, Any]]:
    """The sites that have answered: name, node, and what each says about its file.

    With keys a site bears the name of the key that its node has shown; another name is refused.
    """
    for node, content in _replies(grid, asked):
        try:
            data, said = unpack(content)
            if "failed" in said:
                raise FFGBError(str(said["failed"]))
            if "waiting" in said:  # it comes back when its owner has agreed
                log.warning("%s: its owner reads the job", shown((keys or {}).get(node, "a site")), extra=NEWS)
                continue
            name, columns = met(data["hello"])
        except (FFGBError, KeyError) as error:
            log.warning("%s is left out: %s", shown((keys or {}).get(node, "a site")), shown(error))
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
    met: Met,
    say: Callable[[str], None] = lambda text: None,
    keys: Callable[[], Mapping[int, str] | None] = lambda: None,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, tuple[int, Any]]:
    """Wait until so many sites are there.  `keys` may grow: sites join."""
    found: dict[str, tuple[int, Any]] = {}
    asked: dict[str, tuple[int, str]] = {}
    rests: dict[tuple[int, str], float] = {}
    """When a node that has been here since then may be asked again: it may have been mended."""
    until = time.monotonic() + patience
    while len(found) < count:
        if stop():
            raise KeyboardInterrupt
        for name, node, columns in _who_answered(grid, asked, met, keys()):
            if name in found and found[name][0] != node and found[name][0] in grid.nodes():
                log.warning("two nodes say that they are site %s; the second is left out", shown(name))
            else:  # if it was there before, it died and came back
                found[name] = node, columns
        now = time.monotonic()
        nodes = grid.nodes()
        resting = {node for (node, since), until in rests.items() if until > now and nodes.get(node) == since}
        new = _ask_who(grid, asked, {node for node, _ in found.values()} | resting, WAIT)
        asked |= new
        rests |= dict.fromkeys(new.values(), now + REST_SECONDS)
        say(f"{len(found)} of {count} sites are here")
        if len(found) < count:
            if time.monotonic() > until:
                names = ", ".join(sorted(found)) or "none"
                raise FFGBError(
                    f"only {len(found)} of {count} sites came within {patience:g} s ({names}); start the others"
                )
            grid.rest()
    return dict(sorted(found.items())[:count])
