"""Flower's Fleet protocol, served by this process, and nothing else of Flower's.

A site's node (engines/node.py) is the only thing that connects.  It asks for messages, and an empty answer is held back
until there is one; it sends its reply in parts.  The door below lets a request in by these rules, in this order:

1. Only the eight calls that a node needs, and the one by which an invited site joins.  Other paths answer 404.
2. The request is signed by a registered key, for this server, before any of its body is read.  Otherwise 401.
3. Its body is no larger than the job can need, and comes in time.
4. It speaks for the node of that key, and of objects that this node was given or has announced.

What a request does is left to Flower's own handlers, on Flower's state in memory.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import itertools
import json
import logging
import re
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

from ffgb.engines import private
from ffgb.engines.listener import (
    HEADER_SECONDS,
    RATE,
    GoneError,
    Listener,
    Receive,
    RefusedError,
    Scope,
    Send,
    read_body,
    thin_out,
)
from ffgb.engines.node import (
    CHUNK,
    ENVELOPE,
    KEY_HEADER,
    SIGNATURE_HEADER,
    TIME_HEADER,
    mark_of,
    signed_words,
)
from ffgb.errors import FFGBError

log = logging.getLogger("ffgb")

HOLD = 20.0
"""Seconds that an empty answer to a pull is held back; a node waits for 30."""
SKEW = 300.0
"""Seconds by which a site's clock may differ from the server's."""
SMALL = 64 * 2**10
"""Bytes of a request that carries no object."""
OBJECTS = 64
"""Objects of one reply, besides the chunks of its arrays."""
PER_NODE = 8
"""Requests that one node may have under way, and half of the connections that it may have."""
BEAT = 10.0
GUESSING = 1.0
"""Seconds that whoever cannot join waits for the answer: no one guesses quickly."""

JOIN = "/v1/ffgb/join"
_PREFIX = "/v1/fleet/"
_OBJECT = re.compile(r"[0-9a-f]{64}")


@final
@dataclass
class Guest:
    """A registered key: whose it is, its node, and what that node may name."""

    name: str
    key: bytes
    node: int
    connections: OrderedDict[Any, socket.socket] = field(default_factory=OrderedDict)
    given: set[str] = field(default_factory=set)
    """Objects of messages that it has been given."""
    announced: dict[str, str] = field(default_factory=dict)
    """Objects of replies that it has announced and not sent yet, and to which question each reply is."""
    awaited: dict[str, int] = field(default_factory=dict)
    """Questions whose reply has been announced, and how many of its objects are still to come."""
    replied: dict[str, tuple[str, frozenset[str]]] = field(default_factory=dict)
    """Questions that it has replied to: by which message, of which objects."""
    received: int = 0
    """Bytes of objects that it has sent since it was last asked."""
    busy: int = 0
    heard: float = 0.0
    """When it last spoke, in seconds since the epoch."""
    bell: asyncio.Event | None = None
    """Of the pull that is held back."""


@final
class Fleet:
    """The server's end: sites by name, messages to them, and their replies."""

    def __init__(
        self,
        host: str,
        port: int,
        certificate: tuple[Path, Path] | None,
        *,
        join: Callable[[Mapping[str, Any]], tuple[str, bytes]] | None = None,
        heard: Callable[[str], None] = lambda name: None,
        hold: float = HOLD,
    ) -> None:
        """Without a certificate (chain and key) it is plain HTTP, and any key is let in: to try it on one machine.

        `join` checks what an invited site sends and returns its name and public key, or raises an FFGBError.
        """
        self._f = private.names(private.SERVER, private.REQUESTS)
        self._join, self._hold = join, hold
        self._heard = heard
        self.open = certificate is None
        self.largest = 16 * 2**20
        """Bytes that all objects of a reply may have."""
        self.guests: dict[bytes, Guest] = {}
        self._by_node: dict[int, Guest] = {}
        self._complete: set[str] = set()
        """Questions whose replies are here as a whole."""
        self._arrived = threading.Event()
        self._lock = threading.RLock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.listener = Listener(host, port, certificate)
        self._mark = mark_of(self.listener.shown())
        f = self._f
        self._state = f.LinkStateFactory(
            ":flwr-in-memory:", f.NoOpFederationManager(), f.ObjectStoreFactory(":flwr-in-memory:")
        ).state()
        run = self._state.create_run(
            "ffgb/ffgb", "1.0.0", None, {}, f.NOOP_FEDERATION_ID, None, f.NOOP_FLWR_AID, f.TaskType.SERVER_APP
        )
        (self._run,) = self._state.get_run_info(run_ids=[run])
        task = self._run.primary_task_id
        if not self._state.claim_task(task) or not self._state.activate_task(task):
            raise FFGBError("Flower's state could not start a run; is flwr 1.41 installed?")
        (self._task,) = self._state.get_tasks(task_ids=[task])
        f.TaskIdentity.task_id, f.TaskIdentity.run_id, f.TaskIdentity.node_id = task, run, 1
        self.grid = _grid(self)
        post = f.fleet_handlers
        self._calls: dict[str, tuple[type[Any], Callable[..., Any]]] = {
            "activate-node": (f.ActivateNodeRequest, self._activate),
            "deactivate-node": (f.DeactivateNodeRequest, self._deactivate),
            "send-node-heartbeat": (f.SendNodeHeartbeatRequest, lambda g, r: post.send_node_heartbeat(r, self._state)),
            "pull-messages": (f.PullMessagesRequest, self._pull),
            "push-messages": (f.PushMessagesRequest, self._push),
            "pull-object": (f.PullObjectRequest, self._pull_object),
            "push-object": (f.PushObjectRequest, self._push_object),
            "confirm-message-received": (f.ConfirmMessageReceivedRequest, self._confirm),
        }

    # Sites

    def admit(self, name: str, key: bytes) -> int:
        """Let the site of this public key (PEM) in, under this name, in place of the key that had it: its node."""
        with self._lock:
            f = self._f
            for other in [guest for guest in self.guests.values() if guest.name == name and guest.key != key]:
                del self.guests[other.key], self._by_node[other.node]
                self._state.delete_node(f.NOOP_FLWR_AID, other.node)
            if key not in self.guests:
                node = self._state.create_node(f.NOOP_FLWR_AID, f.NOOP_ACCOUNT_NAME, key, 30.0)
                self.guests[key] = self._by_node[node] = Guest(name, key, node)
            return self.guests[key].node

    def names(self) -> dict[int, str]:
        """Node numbers, and whose they are; none if keys say nothing about names."""
        return {} if self.open else {guest.node: guest.name for guest in self.guests.values()}

    def expect(self, size: float) -> None:
        """Replies are no larger than so many bytes from now on."""
        self.largest = int(min(size, 2.0**40))

    # Between the training's thread and the loop

    def reply(self, question: str) -> Any:
        """The reply to a question, as a Flower message; None, and a word in the log, if it is none.

        What is inside was written by its sender: that it answers this question, and for whom, is checked here.
        """
        try:
            node = self._state.message_ins_store[question].metadata.dst_node_id
            (found,) = self.grid.pull_messages([question])
            about = found.metadata
            if about.reply_to_message_id != question or (not found.has_error() and about.src_node_id != node):
                raise ValueError("it is another's")
            return found
        except Exception as error:  # whatever a sender can do to Flower's own reading
            log.warning("a reply that is none is refused (%s)", type(error).__name__)
            return None
        finally:
            self.forget([question])

    def sent(self, nodes: Iterable[int]) -> None:
        """There is something for these nodes."""
        with self._lock:
            guests = [self._by_node[node] for node in nodes if node in self._by_node]
            for guest in guests:
                guest.received = 0
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has just been closed
                self._loop.call_soon_threadsafe(_ring, guests)

    def arrived(self, ids: Iterable[str]) -> set[str]:
        """Of these questions, those whose replies are here."""
        with self._lock:
            return self._complete & set(ids)

    def forget(self, ids: Iterable[str]) -> None:
        """No one waits for replies to these questions: let go of them, and of what they are made of."""
        gone = set(ids)
        if not gone:
            return
        store, replies = self._state.object_store, self._state.message_ins_id_to_message_res_id
        with self._lock:
            self._complete -= gone
            for guest in self.guests.values():
                for name in gone & guest.replied.keys():
                    _, objects = guest.replied.pop(name)
                    guest.awaited.pop(name, None)
                    guest.announced = {o: q for o, q in guest.announced.items() if o not in objects}
            for name in gone:
                store.delete(name)
                if (reply := replies.get(name)) is not None:
                    store.delete(reply)
            self._state.delete_messages(gone)

    def wait(self, seconds: float) -> None:
        """Until a reply is here, or so long."""
        self._arrived.wait(seconds)
        self._arrived.clear()

    # The process's own server

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Serve, in a thread, until the block ends."""
        with self.listener.serving(self, self._beat) as loop:
            self._loop = loop
            try:
                yield
            finally:
                self._hold, self._loop = 0.0, None
                loop.call_soon_threadsafe(_ring, list(self.guests.values()))

    async def _beat(self) -> None:
        """Flower's state wants to know that whoever runs its task is alive."""
        while True:
            self._state.acknowledge_task_heartbeat(self._task.task_id)
            await asyncio.sleep(BEAT)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One HTTP request (ASGI)."""
        with contextlib.ExitStack() as held:
            try:
                status, body, kind = 200, await self._answer(scope, receive, held), "application/protobuf"
            except RefusedError as refused:
                status, kind = refused.status, "application/json"
                body = json.dumps({"detail": str(refused)}).encode()
            except GoneError:
                return
            if isinstance(body, dict):
                body, kind = json.dumps(body).encode(), "application/json"
            headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
            if status >= 400:
                headers.append((b"connection", b"close"))
            async with asyncio.timeout(HEADER_SECONDS + len(body) / RATE):  # whoever asks also reads
                await send({"type": "http.response.start", "status": status, "headers": headers})
                await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, receive: Receive, held: contextlib.ExitStack) -> bytes | dict[str, Any]:
        path, headers = str(scope["path"]), dict(scope["headers"])
        if scope["type"] != "http" or scope["method"] != "POST":
            raise RefusedError(404, "there is nothing here")
        if path == JOIN and self._join is not None:
            return await self._welcome(await read_body(headers, receive, SMALL))
        name = path.removeprefix(_PREFIX)
        if not path.startswith(_PREFIX) or name not in self._calls:
            raise RefusedError(404, "there is nothing here")
        guest = self._who(headers)
        self._seated(guest, scope.get("client"))
        form, call = self._calls[name]
        most = min(self.largest, CHUNK) + ENVELOPE if name == "push-object" else SMALL
        if guest.busy >= PER_NODE:
            raise RefusedError(429, "this node has too many requests under way")
        guest.busy += 1
        held.callback(_leave, guest)
        try:
            request = _parsed(form, await read_body(headers, receive, most))
            self._speaks_for(guest, request)
            guest.heard = time.time()
            self._heard(guest.name)
            if name == "pull-messages":
                return await self._held(guest, request, receive)
            return bytes(call(guest, request).SerializeToString())
        except self._f.FlowerError as error:
            known = self._f.API_ERROR_MAP.get(error.code)
            text = known.public_message if known else ""
            raise RefusedError(known.http_status_code if known else 500, text) from error
        except (RefusedError, GoneError, asyncio.CancelledError):
            raise
        except Exception as error:  # whatever a request can do to Flower's handlers
            raise RefusedError(400, "the request cannot be answered") from error

    def _seated(self, guest: Guest, client: Any) -> None:
        """A connection has shown a key: it is no stranger's any more, and one of not too many of its node's."""
        address = tuple(client) if client else None
        if (connection := self.listener.strangers.pop(address, None)) is not None:
            guest.connections[address] = connection
            thin_out(guest.connections, 2 * PER_NODE)

    def _who(self, headers: Mapping[bytes, bytes]) -> Guest:
        """Whose request this is, by the key that has signed the time."""
        f = self._f
        try:
            key = base64.b64decode(headers[KEY_HEADER.encode()], validate=True)
            signature = base64.b64decode(headers[SIGNATURE_HEADER.encode()], validate=True)
            when = headers[TIME_HEADER.encode()].decode("ascii")
            age = abs((datetime.now(UTC) - datetime.fromisoformat(when)).total_seconds())
            if key not in self.guests and not self.open:
                raise RefusedError(401, "this key is not registered here")
            if age > SKEW:
                raise RefusedError(
                    401, f"the clocks of this site and of the server differ by {age:.0f} s; switch NTP on at both"
                )
            if not f.verify_signature(f.bytes_to_public_key(key), signed_words(when, self._mark), signature):
                raise ValueError
        except (KeyError, ValueError, TypeError, AttributeError, OverflowError, binascii.Error) as error:
            raise RefusedError(
                401, "a signature by a registered key, for the certificate of this server, is missing or wrong"
            ) from error
        if key not in self.guests:
            self.admit(f"key {hashlib.sha256(key).hexdigest()[:12]}", key)
        return self.guests[key]

    @staticmethod
    def _speaks_for(guest: Guest, request: Any) -> None:
        if hasattr(request, "public_key"):
            own = request.public_key == guest.key
        else:
            own = (request.node.node_id if hasattr(request, "node") else request.node_id) == guest.node
        if not own:
            raise RefusedError(401, "a key speaks for its own node only")

    async def _welcome(self, body: bytes) -> dict[str, Any]:
        assert self._join is not None
        try:
            asked = json.loads(body)
            name, key = await asyncio.get_running_loop().run_in_executor(None, self._join, asked)
            self.admit(name, key)
        except FFGBError as error:
            await asyncio.sleep(GUESSING)
            raise RefusedError(403, str(error)) from error
        except Exception as error:  # whatever a stranger can write
            await asyncio.sleep(GUESSING)
            raise RefusedError(400, "this is no request to join") from error
        return {"name": name}

    # The calls

    def _activate(self, guest: Guest, request: Any) -> Any:
        """A node comes, or comes back: its last process, if it was killed, is counted as gone."""
        self._state.deactivate_node(guest.node)
        _hang_up(guest)
        self.forget(guest.awaited)  # replies that it will not finish
        with self._lock:
            guest.given, guest.announced, guest.awaited, guest.replied, guest.received = set(), {}, {}, {}, 0
        return self._f.fleet_handlers.activate_node(request, self._state)

    def _deactivate(self, guest: Guest, request: Any) -> Any:
        _hang_up(guest)
        return self._f.fleet_handlers.deactivate_node(request, self._state)

    async def _held(self, guest: Guest, request: Any, receive: Receive) -> bytes:
        """The node's next message; if there is none, wait for one.  The newest of its pulls is the one that waits."""
        loop = asyncio.get_running_loop()
        if guest.bell is not None:
            guest.bell.set()
        bell = guest.bell = asyncio.Event()
        until = loop.time() + self._hold
        gone = asyncio.ensure_future(receive())
        try:
            while True:
                bell.clear()
                if gone.done():
                    raise GoneError
                if guest.bell is bell and (answer := self._pull(guest, request)).messages_list:
                    return bytes(answer.SerializeToString())
                if guest.bell is not bell:
                    raise RefusedError(409, "another process speaks for this site")
                if (left := min(until - loop.time(), self._hold)) <= 0:
                    return b""
                rung = asyncio.ensure_future(bell.wait())
                await asyncio.wait({rung, gone}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                rung.cancel()
        finally:
            gone.cancel()
            if guest.bell is bell:
                guest.bell = None

    def _pull(self, guest: Guest, request: Any) -> Any:
        answer = self._f.fleet_handlers.pull_messages(request, self._state, self._state.object_store)
        with self._lock:
            for tree in answer.message_object_trees:
                guest.given |= {part.object_id for part in self._f.iterate_object_tree(tree)}
        return answer

    def _push(self, guest: Guest, request: Any) -> Any:
        """A reply is announced: of this node, to a question to it, of a bounded number of objects."""
        if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
            raise RefusedError(400, "a node pushes one reply at a time")
        about = request.messages_list[0].metadata
        if about.src_node_id != guest.node:
            raise RefusedError(401, "a node pushes replies of its own only")
        question = about.reply_to_message_id
        if question not in guest.given:
            raise RefusedError(403, "a node replies to what it was asked")
        tree, most = request.message_object_trees[0], OBJECTS + self.largest // CHUNK
        objects = frozenset(part.object_id for part in itertools.islice(self._f.iterate_object_tree(tree), most + 1))
        if len(objects) > most:
            raise RefusedError(413, "the reply has more objects than any answer needs")
        if tree.object_id != about.message_id or not all(map(_OBJECT.fullmatch, objects)):
            raise RefusedError(400, "the reply's objects are not its own")
        if guest.replied.setdefault(question, (about.message_id, objects)) != (about.message_id, objects):
            raise RefusedError(409, "this question has another reply already")
        answer = self._f.fleet_handlers.push_messages(request, self._state)
        with self._lock:
            missing = set(answer.objects_to_push)
            guest.announced |= dict.fromkeys(missing, question)
            if missing:
                guest.awaited[question] = len(missing)
            else:
                self._whole(question)
        return answer

    def _push_object(self, guest: Guest, request: Any) -> Any:
        question = guest.announced.get(request.object_id)
        if question is None:
            raise RefusedError(403, "a node sends objects that it has announced")
        if guest.received + len(request.object_content) > self.largest + OBJECTS * 1024:
            raise RefusedError(413, f"the reply has more than {self.largest:,} bytes, which no answer needs")
        answer = self._f.fleet_handlers.push_object(request, self._state)
        with self._lock:
            if answer.stored and guest.announced.pop(request.object_id, None) is not None:
                guest.received += len(request.object_content)
                guest.awaited[question] -= 1
                if not guest.awaited[question]:
                    del guest.awaited[question]
                    self._whole(question)
        return answer

    def _whole(self, question: str) -> None:
        self._complete.add(question)
        self._arrived.set()

    def _pull_object(self, guest: Guest, request: Any) -> Any:
        if request.object_id not in guest.given:
            raise RefusedError(403, "a node takes objects of its own messages")
        return self._f.fleet_handlers.pull_object(request, self._state)

    def _confirm(self, guest: Guest, request: Any) -> Any:
        if request.message_object_id not in guest.given:
            raise RefusedError(403, "a node confirms its own messages")
        with self._lock:
            guest.given = {request.message_object_id}  # to reply to; its objects have arrived
        return self._f.fleet_handlers.confirm_message_received(request, self._state, self._state.object_store)


def _grid(fleet: Fleet) -> Any:
    """Flower's grid, whose calls are made here and now instead of over HTTP."""
    f = fleet._f
    names = {
        "GetNodes": "get_nodes",
        "PushMessages": "push_messages",
        "PullMessages": "pull_messages",
        "PushObject": "push_object",
        "PullObject": "pull_object",
        "ConfirmMessageReceived": "confirm_message_received",
    }

    class Direct:
        def __getattr__(self, name: str) -> Callable[[Any], Any]:
            handler = getattr(f.runtime_handlers, names[name])
            return lambda request: handler(request, fleet._state, fleet._task)

    direct = Direct()

    class Grid(f.HttpGrid):  # type: ignore[misc, name-defined, unused-ignore]
        @property
        def _runtime_client(self) -> Any:
            return direct

    grid = Grid(token="in process")  # noqa: S106  (Flower wants one; nothing checks it)
    grid.set_run(fleet._run)
    return grid


def _leave(guest: Guest) -> None:
    guest.busy -= 1


def _hang_up(guest: Guest) -> None:
    """The pull that is held for a process that has ended, perhaps on a half-open connection, gets no message."""
    if guest.bell is not None:
        guest.bell.set()
        guest.bell = None


def _ring(guests: Iterable[Guest]) -> None:
    for guest in guests:
        if guest.bell is not None:
            guest.bell.set()


def _parsed(form: type[Any], body: bytes) -> Any:
    try:
        return form.FromString(body)
    except Exception as error:  # protobuf's own error
        raise RefusedError(400, "the body is none of Flower's requests") from error
