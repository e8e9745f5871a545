"""The server's door, as an outsider finds it: over real sockets, with TLS, with and without keys."""

from __future__ import annotations

import base64
import contextlib
import json
import math
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ffgb.deployment import keys
from ffgb.engines import listener as door
from ffgb.engines.fleet import Fleet
from ffgb.engines.flower import Counted
from ffgb.engines.node import (
    CHUNK,
    ENVELOPE,
    KEY_HEADER,
    KIND,
    SIGNATURE_HEADER,
    TIME_HEADER,
    Node,
    mark_of,
    pack,
    signed_words,
    trusting,
    unpack,
)
from ffgb.engines.private import flwr
from ffgb.errors import FFGBError
from tests.deployment.real import free_port, growth

PROTOBUF = {"content-type": "application/protobuf"}


@dataclass
class Place:
    """A fleet that listens, with two registered sites."""

    fleet: Fleet
    keys: dict[str, Any]
    nodes: dict[str, int]
    certificate: bytes | None
    port: int

    @property
    def url(self) -> str:
        return f"http{'s' if self.certificate else ''}://127.0.0.1:{self.port}"

    @property
    def context(self) -> ssl.SSLContext | None:
        return trusting(self.certificate, pinned=True) if self.certificate else None

    @property
    def mark(self) -> bytes:
        """Of this server, in signatures."""
        return mark_of(b"" if self.certificate is None else keys.der(self.certificate, "it"))

    def headers(self, key: Any, when: datetime | None = None) -> dict[str, str]:
        stamp = (when or datetime.now(UTC)).isoformat()
        return signed(key, stamp, signed_words(stamp, self.mark))

    def post(self, path: str, content: bytes = b"", headers: dict[str, str] | None = None) -> httpx.Response:
        with httpx.Client(verify=self.context or True, timeout=10.0) as client:
            return client.post(self.url + path, content=content, headers=headers or PROTOBUF)


def signed(key: Any, stamp: str, words: bytes) -> dict[str, str]:
    """Headers of a request with these signed words."""
    return {
        **PROTOBUF,
        KEY_HEADER: base64.b64encode(keys.own_public(key)).decode(),
        TIME_HEADER: stamp,
        SIGNATURE_HEADER: base64.b64encode(key.sign(words, ec.ECDSA(hashes.SHA256()))).decode(),
    }


@contextlib.contextmanager
def place(folder: Path, *, tls: bool = True, **more: Any) -> Iterator[Place]:
    port = free_port()
    files = keys.server_files(folder / "keys", []) if tls else None
    fleet = Fleet("127.0.0.1", port, files, **more)
    pairs = {name: keys.site_key(folder / name) for name in ("east", "north")}
    nodes = {name: fleet.admit(name, keys.own_public(key)) for name, key in pairs.items()}
    with fleet.listening():
        yield Place(fleet, pairs, nodes, files[0].read_bytes() if files else None, port)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Place]:
    with place(tmp_path) as found:
        yield found


def every_path() -> list[str]:
    """All that a stock SuperLink serves: from Flower's own table."""
    from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

    return sorted(path for _, path in PROTOBUF_REQUEST_TYPES)


def site(here: Place, name: str, answer: Any) -> contextlib.AbstractContextManager[Node]:
    """A node in a thread."""
    return speaking(here, name, Node(f"127.0.0.1:{here.port}", here.keys[name], here.context), answer)


@contextlib.contextmanager
def speaking(here: Place, name: str, node: Node, answer: Any) -> Iterator[Node]:
    stop = threading.Event()
    thread = threading.Thread(target=node.run, args=(answer, stop, lambda t: None, lambda up: None), daemon=True)
    thread.start()
    grid = Counted(here.fleet.grid, here.fleet)
    until = time.monotonic() + 10.0
    while here.nodes[name] not in grid.nodes() and time.monotonic() < until:
        time.sleep(0.01)
    try:
        yield node
    finally:
        stop.set()
        node.close()


def ask(here: Place, name: str, data: bytes, seconds: float = 10.0) -> list[Any]:
    """What a site answers to a message."""
    grid = Counted(here.fleet.grid, here.fleet)
    (sent,) = grid.push([flwr().Message(pack({"data": data}, {}), here.nodes[name], KIND, ttl=60.0)])
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := grid.pull([sent]):
            return [message for _, message in found]
        grid.rest()
    grid.forget([sent])
    return []


@pytest.mark.parametrize("tls", [True, False])
def test_nothing_but_the_fleet_protocol_is_served(tls: bool, tmp_path: Path) -> None:
    """Every path of the Control and Runtime APIs, and of everything else, by everyone: 404."""
    paths = every_path()
    assert sum(path.startswith(("/v1/control/", "/v1/runtime/")) for path in paths) > 50
    with place(tmp_path, tls=tls) as here:
        registered, stranger = here.headers(here.keys["east"]), here.headers(keys.site_key(tmp_path / "stranger"))
        allowed = {
            f"/v1/fleet/{name}" for name in (
                "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages",
                "pull-object", "push-object", "confirm-message-received",
            )
        }  # fmt: skip
        with httpx.Client(verify=here.context or True, timeout=10.0) as client:
            for path in [
                *paths,
                "/",
                "/docs",
                "/openapi.json",
                "/v1/fleet/",
                "/v1/ffgb/join",
                "/v1/control/../fleet/x",
            ]:
                for headers in (PROTOBUF, stranger, registered):
                    found = client.post(here.url + path, content=b"\x0a\x00", headers=headers)
                    expected = {404} if path not in allowed else {401}
                    if path in allowed and (headers is registered or (headers is stranger and not tls)):
                        expected = {400, 401, 403}  # an empty request speaks for no node
                    assert found.status_code in expected, (path, found.status_code)
                others = ("PUT", "DELETE", "OPTIONS", "CONNECT", "FLOWER") if path.endswith("-messages") else ()
                for method in ("GET", *others):
                    assert client.request(method, here.url + path, headers=registered).status_code in (404, 400)
        assert here.fleet._state.num_message_ins() == 0
        assert {guest.name for guest in here.fleet.guests.values()} >= {"east", "north"}
        assert len(here.fleet.guests) == 2 + (not tls)


def test_only_a_registered_key_comes_in_and_only_as_itself(here: Place, tmp_path: Path) -> None:
    from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, PushMessagesRequest
    from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
    from flwr.proto.message_pb2 import PullObjectRequest, PushObjectRequest
    from flwr.proto.node_pb2 import Node as NodeProto

    stranger, east = keys.site_key(tmp_path / "stranger"), here.keys["east"]

    def activate(key: Any, headers: dict[str, str]) -> int:
        body = ActivateNodeRequest(public_key=keys.own_public(key), heartbeat_interval=10).SerializeToString()
        return here.post("/v1/fleet/activate-node", body, headers).status_code

    assert activate(east, here.headers(east)) == 200
    assert activate(stranger, here.headers(stranger)) == 401
    assert activate(stranger, here.headers(east)) == 401  # another key than the one that signs
    forged = here.headers(stranger) | {KEY_HEADER: here.headers(east)[KEY_HEADER]}
    assert activate(east, forged) == 401  # a registered key, and a signature by another
    old = here.headers(east, datetime.now(UTC) - timedelta(minutes=10))
    assert activate(east, old) == 401
    body = ActivateNodeRequest(public_key=keys.own_public(east), heartbeat_interval=10).SerializeToString()
    said = here.post("/v1/fleet/activate-node", body, old).json()["detail"]
    assert said == "the clocks of this site and of the server differ by 600 s; switch NTP on at both"
    mixed = here.headers(east) | {TIME_HEADER: datetime.now(UTC).isoformat()}
    assert activate(east, mixed) == 401
    for broken in ({SIGNATURE_HEADER: "?"}, {KEY_HEADER: ""}, {TIME_HEADER: "yesterday"}):
        assert activate(east, here.headers(east) | broken) == 401

    north = NodeProto(node_id=here.nodes["north"])
    own = NodeProto(node_id=here.nodes["east"])
    of_another: dict[str, Any] = {
        "pull-messages": PullMessagesRequest(node=north),
        "send-node-heartbeat": SendNodeHeartbeatRequest(node=north, heartbeat_interval=10),
        "pull-object": PullObjectRequest(node=north, run_id=1, object_id="x"),
    }
    for path, request in of_another.items():
        assert here.post(f"/v1/fleet/{path}", request.SerializeToString(), here.headers(east)).status_code == 401
    # its own number, and things that are not its own
    not_its_own: dict[str, Any] = {
        "pull-object": PullObjectRequest(node=own, run_id=1, object_id="x"),
        "push-object": PushObjectRequest(node=own, run_id=1, object_id="x", object_content=b"y"),
    }
    for path, request in not_its_own.items():
        assert here.post(f"/v1/fleet/{path}", request.SerializeToString(), here.headers(east)).status_code == 403
    assert here.post("/v1/fleet/push-messages", b"", here.headers(east)).status_code == 401
    pushed = PushMessagesRequest(node=own).SerializeToString()
    assert here.post("/v1/fleet/push-messages", pushed, here.headers(east)).status_code == 400


def test_a_signature_is_for_one_server(here: Place, tmp_path: Path) -> None:
    """A site may bring one key to two servers: neither can speak to the other as the site."""
    from flwr.proto.fleet_pb2 import ActivateNodeRequest

    east, stamp = here.keys["east"], datetime.now(UTC).isoformat()
    body = ActivateNodeRequest(public_key=keys.own_public(east), heartbeat_interval=10).SerializeToString()
    other, _ = keys.server_files(tmp_path / "other", [])
    for words, status in (
        (signed_words(stamp, here.mark), 200),
        (signed_words(stamp, mark_of(keys.der(other.read_bytes(), "it"))), 401),
        (signed_words(stamp, b""), 401),
        (stamp.encode(), 401),  # as Flower's own nodes sign
    ):
        assert here.post("/v1/fleet/activate-node", body, signed(east, stamp, words)).status_code == status
    seen: list[str] = []
    who = here.fleet._who
    here.fleet._who = lambda headers: seen.append(headers[b"ffgb-signature"]) or who(headers)  # type: ignore[method-assign,func-returns-value,arg-type]
    with site(here, "east", lambda data, said: (dict(data), {})):
        assert ask(here, "east", b"hello")
    assert len(seen) > 3
    assert len(set(seen)) == len(seen)


def test_a_reply_counts_only_under_the_senders_own_number(here: Place) -> None:
    """East answers north's question, and pushes a reply in north's name: both are refused, and north's own comes in."""
    from flwr.common.serde import message_to_proto
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from flwr.proto.node_pb2 import Node as NodeProto
    from flwr.supercore.inflatable.inflatable_object import get_object_tree

    statuses: list[int] = []

    def answer(data: Any, said: Any) -> tuple[dict[str, bytes], dict[str, Any]]:
        for source in ("north", "east"):
            question = flwr().Message(pack({"data": b"?"}, {}), here.nodes["north"], KIND, ttl=60.0)
            question.metadata.__dict__["_message_id"] = next(iter(here.fleet._state.message_ins_store))
            reply = flwr().Message(pack({"data": b"forged"}, {}), reply_to=question)
            reply.metadata.__dict__["_src_node_id"] = here.nodes[source]
            reply.metadata.__dict__["_message_id"] = reply.object_id
            request = PushMessagesRequest(
                node=NodeProto(node_id=here.nodes["east"]),
                messages_list=[message_to_proto(reply)],
                message_object_trees=[get_object_tree(reply)],
            ).SerializeToString()
            statuses.append(here.post("/v1/fleet/push-messages", request, here.headers(here.keys["east"])).status_code)
        return {"data": b"honest"}, {}

    with site(here, "north", answer):
        (found,) = ask(here, "north", b"?")
    assert statuses == [401, 403]
    assert unpack(found.content)[0]["data"] == b"honest"


ALONE = """
import sys
from pathlib import Path

from ffgb.deployment import keys
from ffgb.engines import fleet as door

port, folder = int(sys.argv[1]), Path(sys.argv[2])
fleet = door.Fleet("127.0.0.1", port, keys.server_files(folder / "keys", []))
fleet.admit("east", keys.own_public(keys.site_key(folder / "east")))
with fleet.listening():
    print("careful", flush=True)
    sys.stdin.readline()
    read = door.read_body
    door.read_body = lambda headers, receive, most: read(headers, receive, 2**40)
    print("greedy", flush=True)
    sys.stdin.readline()
"""


def sends(here: Place, headers: dict[str, str], megabytes: int) -> int:
    """Send a body to the door, until it is closed: how many megabytes went out."""
    sent, chunk = 0, bytes(2**20)

    def endless() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(megabytes):
            sent += 1
            yield chunk

    with contextlib.suppress(httpx.HTTPError), httpx.Client(verify=here.context or True) as client:
        found = client.post(here.url + "/v1/fleet/push-object", content=endless(), headers=headers)
        assert found.status_code in (400, 401, 411, 413)
    return sent


def test_a_strangers_body_is_not_read(tmp_path: Path) -> None:
    """300 MB without a key, with an unregistered one, and with a registered one: the server's memory does not move.

    The server is a process of its own, so what this one has used before does not count.  A server that reads all that
    comes shows that the memory would be seen to move.
    """
    port, own = free_port(), {name: keys.site_key(tmp_path / name) for name in ("east", "stranger")}
    files = keys.server_files(tmp_path / "keys", [])
    here = Place(None, own, {}, files[0].read_bytes(), port)  # type: ignore[arg-type]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", ALONE, str(port), str(tmp_path)], stdin=pipe, stdout=pipe, text=True
    ) as alone:
        assert alone.stdin is not None
        assert alone.stdout is not None
        assert alone.stdout.readline() == "careful\n"
        with growth(alone.pid) as most:
            sent = 0
            for headers in (PROTOBUF, *(here.headers(key) for key in own.values())):
                for length in ({"content-length": str(300 * 2**20)}, {}):  # said, or in chunks without a length
                    sent += sends(here, {**headers, **length}, 300)
        assert sent  # bodies were on their way
        careful = most()
        alone.stdin.write("\n")
        alone.stdin.flush()
        assert alone.stdout.readline() == "greedy\n"
        length = {"content-length": str(100 * 2**20)}
        with growth(alone.pid) as most:
            assert sends(here, {**here.headers(own["east"]), **length}, 100) == 100
        greedy = most()
        alone.stdin.close()
        assert alone.wait(timeout=20) == 0
    print(f"a server that reads nothing grew by {careful:.1f} MB, one that reads 100 MB by {greedy:.1f} MB")
    assert careful < 20.0
    assert greedy > 90.0


def test_who_is_slow_or_silent_is_closed(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "HEADER_SECONDS", 0.4)
    assert here.context is not None

    def closed(data: bytes) -> float:
        """Seconds until the server closes a connection that has sent this."""
        began = time.monotonic()
        plain = socket.create_connection(("127.0.0.1", here.port))
        with plain, here.context.wrap_socket(plain) as secure:  # type: ignore[union-attr]
            secure.settimeout(5.0)
            secure.sendall(data)
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                while secure.recv(4096):
                    pass
        return time.monotonic() - began

    assert 0.3 < closed(b"") < 3.0
    assert 0.3 < closed(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: x\r\n") < 3.0  # headers that never end
    head = b"POST /v1/fleet/activate-node HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n"
    signed = "".join(f"{k}: {v}\r\n" for k, v in here.headers(here.keys["east"]).items()).encode()
    assert 0.3 < closed(head + signed + b"\r\nab") < 3.0  # a body that never ends


def test_strangers_do_not_crowd_sites_out(here: Place) -> None:
    """Two hundred connections that say nothing: a site is still answered."""
    assert here.context is not None
    with contextlib.ExitStack() as held, site(here, "east", lambda data, said: (dict(data), {})):
        for _ in range(200):
            plain = held.enter_context(socket.create_connection(("127.0.0.1", here.port)))
            held.enter_context(here.context.wrap_socket(plain))
        (found,) = ask(here, "east", b"hello")
        assert unpack(found.content)[0]["data"] == b"hello"
        assert len(here.fleet.listener.strangers) <= door.STRANGERS


@pytest.mark.parametrize("size", [0, 10, 3_000_000, 12_000_000])
def test_messages_arrive_whole_and_leave_nothing_behind(size: int, here: Place) -> None:
    data = os.urandom(size)
    here.fleet.expect(2 * size)
    with site(here, "east", lambda data, said: ({"data": data["data"][::-1]}, {})):
        for _ in range(3):
            (found,) = ask(here, "east", data)
            assert unpack(found.content)[0]["data"] == data[::-1]
    state = here.fleet._state
    assert (state.num_message_ins(), state.num_message_res(), len(state.object_store.store)) == (0, 0, 0)
    assert not here.fleet._complete
    assert all(not guest.announced and len(guest.given) <= 1 for guest in here.fleet.guests.values())


def test_what_no_answer_needs_is_refused(here: Place) -> None:
    """A registered site sends more than the question allows."""
    here.fleet.expect(100_000)
    with site(here, "east", lambda data, said: ({"data": os.urandom(4_000_000)}, {})):
        found = ask(here, "east", b"?", seconds=1.5)
    assert not found
    assert len(here.fleet._state.object_store.store) <= 3  # the question's own, at most


def test_a_held_pull_ends_when_the_server_does(tmp_path: Path) -> None:
    with place(tmp_path) as here, site(here, "east", lambda data, said: ({}, {})):
        time.sleep(0.3)
        began = time.monotonic()
    assert time.monotonic() - began < 4.0


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        fleet = Fleet("127.0.0.1", taken.getsockname()[1], keys.server_files(tmp_path, []))
        with pytest.raises(FFGBError, match="cannot listen on 127"), fleet.listening():
            pass


def test_a_node_knows_its_server_by_the_certificate(here: Place, tmp_path: Path) -> None:
    other, _ = keys.server_files(tmp_path / "other", ["127.0.0.1"])
    said: list[str] = []
    stop = threading.Event()
    node = Node(f"127.0.0.1:{here.port}", here.keys["east"], trusting(other.read_bytes(), pinned=True))

    def say(text: str) -> None:
        said.append(text)
        stop.set()

    node.run(lambda data, said: ({}, {}), stop, say, lambda up: None)
    assert "is not the one that this site trusts" in said[0]
    stop.clear()
    node = Node(f"127.0.0.1:{here.port}", keys.site_key(tmp_path / "stranger"), here.context)
    node.run(lambda data, said: ({}, {}), stop, say, lambda up: None)
    assert "does not know this site's key" in said[1]
    stop.clear()
    node = Node(f"127.0.0.1:{free_port()}", here.keys["east"], here.context)
    node.run(lambda data, said: ({}, {}), stop, say, lambda up: None)
    assert "cannot reach the server" in said[2]


def test_replies_share_nothing_that_another_site_could_announce_and_keep(here: Place) -> None:
    """Two sites that say the same: Flower keeps equal objects once, and would wait for whoever announced one first."""
    seen: list[set[str]] = []
    push = here.fleet._push

    def watched(guest: Any, request: Any) -> Any:
        seen.append({part.object_id for part in here.fleet._f.iterate_object_tree(request.message_object_trees[0])})
        return push(guest, request)

    here.fleet._calls["push-messages"] = (here.fleet._calls["push-messages"][0], watched)
    with site(here, "east", lambda data, said: ({}, {})), site(here, "north", lambda data, said: ({}, {})):
        assert ask(here, "east", b"?")
        assert ask(here, "north", b"?")
    assert len(seen) == 2
    assert not seen[0] & seen[1]


def test_connections_count_before_their_handshake(here: Place) -> None:
    """Three hundred that never begin TLS: the oldest are closed, and a site is answered."""
    with contextlib.ExitStack() as held, site(here, "east", lambda data, said: (dict(data), {})):
        for _ in range(300):
            held.enter_context(socket.create_connection(("127.0.0.1", here.port)))
        (found,) = ask(here, "east", b"hello")
        assert unpack(found.content)[0]["data"] == b"hello"
        alive = [connection for connection in here.fleet.listener.strangers.values() if connection.fileno() >= 0]
        assert len(alive) <= door.STRANGERS


def test_a_reply_that_cannot_be_read_costs_its_sender_and_no_one_else(
    here: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Its root is no message: Flower's own reading raises, and the training goes on without the site."""
    from flwr.app import ConfigRecord

    node_of = here.nodes["east"]
    plain = Node._reply

    def odd(message: Any, answer: Any) -> Any:
        reply = plain(message, answer)
        reply.__dict__["deflate"] = lambda: ConfigRecord({"x": 1}).deflate()
        return reply

    with pytest.MonkeyPatch.context() as patch, site(here, "east", lambda data, said: ({}, {})):
        patch.setattr(Node, "_reply", staticmethod(odd))
        found = ask(here, "east", b"?", seconds=2.0)
    assert found in ([], [None])
    with site(here, "north", lambda data, said: (dict(data), {})):
        (answer,) = ask(here, "north", b"!")
    assert unpack(answer.content)[0]["data"] == b"!"
    assert node_of in here.fleet._by_node


def test_what_flower_cannot_inflate_is_no_answer(here: Place, caplog: pytest.LogCaptureFixture) -> None:
    def broken(ids: Any) -> Any:
        raise KeyError("a child that is not there")

    with site(here, "east", lambda data, said: (dict(data), {})), pytest.MonkeyPatch.context() as patch:
        patch.setattr(here.fleet.grid, "pull_messages", broken)
        assert ask(here, "east", b"?") == [None]
    assert "a reply that is none is refused (KeyError)" in caplog.text
    assert here.fleet._state.num_message_ins() == 0


def test_a_question_has_one_reply(here: Place) -> None:
    """The same node pushes its reply again with other objects each time: nothing grows."""
    from flwr.proto.fleet_pb2 import PushMessagesRequest

    statuses: list[int] = []
    push = here.fleet._push

    def again(guest: Any, request: Any) -> Any:
        answer = push(guest, request)
        for k in range(3):
            other = PushMessagesRequest.FromString(request.SerializeToString())
            child = other.message_object_trees[0].children.add()
            child.object_id = f"{k:064x}"
            try:
                push(guest, other)
            except door.RefusedError as refused:
                statuses.append(refused.status)
        return answer

    here.fleet._calls["push-messages"] = (here.fleet._calls["push-messages"][0], again)
    with site(here, "east", lambda data, said: (dict(data), {})):
        (found,) = ask(here, "east", b"x")
    assert unpack(found.content)[0]["data"] == b"x"
    assert statuses == [409] * 3
    assert len(here.fleet._state.object_store.store) == 0


def test_two_processes_with_one_key_are_told(here: Place) -> None:
    said: list[str] = []
    stop = threading.Event()
    nodes = [Node(f"127.0.0.1:{here.port}", here.keys["east"], here.context) for _ in range(2)]
    threads = [
        threading.Thread(target=node.run, args=(lambda d, s: ({}, {}), stop, said.append, lambda up: None), daemon=True)
        for node in nodes
    ]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 10.0
    while not any("another process speaks for this site" in text for text in said) and time.monotonic() < until:
        time.sleep(0.05)
    stop.set()
    assert any("another process speaks for this site" in text for text in said)
    for node in nodes:
        node.close()


@pytest.mark.parametrize(
    "head", ["content-length: 5000000000", "", "content-length: 2\r\ntransfer-encoding: chunked",
             "content-length: 2\r\ncontent-encoding: gzip"],
)  # fmt: skip
def test_a_node_takes_no_more_than_a_question_has(head: str, tmp_path: Path) -> None:
    """A server that sends too much, or does not say how much, or hides it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(10.0)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n".encode() + b"5\r\nhello\r\n0\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        said: list[str] = []
        stop = threading.Event()

        def say(text: str) -> None:
            said.append(text)
            stop.set()

        node = Node(f"127.0.0.1:{listener.getsockname()[1]}", keys.site_key(tmp_path / "key"), None)
        node.run(lambda d, s: ({}, {}), stop, say, lambda up: None)
        node.close()
        thread.join()
    assert "too many to take" in said[0] or "does not say how long" in said[0]


def test_many_small_parts_are_not_more_than_one(here: Place) -> None:
    """Each object is small enough; together they are more than the question allows."""
    here.fleet.expect(8_000_000)
    with site(here, "east", lambda data, said: ({"data": os.urandom(20_000_000)}, {})):
        assert not ask(here, "east", b"?", seconds=1.5)
    kept = sum(len(entry.content) for entry in here.fleet._state.object_store.store.values())
    assert kept < 20_000_000
    here.fleet.expect(50_000_000)
    with site(here, "east", lambda data, said: ({"data": os.urandom(20_000_000)}, {})):
        (found,) = ask(here, "east", b"?")
        assert len(unpack(found.content)[0]["data"]) == 20_000_000


def test_a_reply_has_its_own_root(here: Place) -> None:
    """Objects under another name than the reply's would be found by no one, and stay for ever."""
    from flwr.proto.fleet_pb2 import PushMessagesRequest

    statuses: list[int] = []
    push = here.fleet._push

    def elsewhere(guest: Any, request: Any) -> Any:
        for name in ("0" * 64, "\x1b[2J"):
            other = PushMessagesRequest.FromString(request.SerializeToString())
            other.message_object_trees[0].object_id = name
            with pytest.raises(door.RefusedError) as refused:
                push(guest, other)
            statuses.append(refused.value.status)
        return push(guest, request)

    here.fleet._calls["push-messages"] = (here.fleet._calls["push-messages"][0], elsewhere)
    with site(here, "east", lambda data, said: (dict(data), {})):
        assert ask(here, "east", b"x")
    assert statuses == [400, 400]


def test_an_exchange_waits_for_nothing(here: Place) -> None:
    """No poll, no sleep, no delayed acknowledgement: forty milliseconds a request would be a third of a second."""
    seconds = []
    with site(here, "east", lambda data, said: (dict(data), {})):
        for _ in range(15):
            began = time.monotonic()
            assert ask(here, "east", os.urandom(10_000))
            seconds.append(time.monotonic() - began)
    assert sorted(seconds)[3] < 0.15  # machines are busy, but not always


@contextlib.contextmanager
def says(status: str, body: bytes) -> Iterator[int]:
    """A server that answers every request with this; its port."""
    over = threading.Event()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0.1)

        def serve() -> None:
            while not over.is_set():
                with contextlib.suppress(OSError):
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(65536)
                        connection.sendall(f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            over.set()
            thread.join()


def told(node: Node) -> str:
    """The first thing that a node says of its server; it goes on afterwards, until it is stopped."""
    said: list[str] = []
    stop = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        stop.set()

    node.run(lambda data, words: ({}, {}), stop, say, lambda up: None)
    node.close()
    return said[0]


def test_no_answer_of_a_server_ends_a_site(tmp_path: Path) -> None:
    """Flower's own nodes end, and take their process along, when a server says that their version does not fit."""
    from flwr.supercore.error import ApiErrorCode, FlowerError
    from flwr.supercore.runtime_version_compatibility import get_runtime_version_incompatibility_exit_message

    end = json.dumps(FlowerError(ApiErrorCode.RUNTIME_VERSION_INCOMPATIBLE, "end").to_json("\x1b[2Jend yourself"))
    assert get_runtime_version_incompatibility_exit_message(end) is not None
    with says("426 Upgrade Required", end.encode()) as port:
        said = told(Node(f"127.0.0.1:{port}", keys.site_key(tmp_path / "key"), None))
    assert "refuses this site (426" in said
    assert "\x1b" not in said


def test_an_answer_is_no_larger_than_its_call_needs(tmp_path: Path) -> None:
    """Of the calls only that for an object has large answers, and these are not larger than Flower's objects."""
    with says("200 OK", bytes(2 * 2**20)) as port:
        said = told(Node(f"127.0.0.1:{port}", keys.site_key(tmp_path / "key"), None))
    assert "2,097,152 bytes, too many to take" in said
    node = Node("127.0.0.1:1", keys.site_key(tmp_path / "key"), None)
    (check,) = node._client._client.event_hooks["response"]
    for path, size, fits in (
        ("pull-object", CHUNK + ENVELOPE, True), ("pull-object", CHUNK + ENVELOPE + 1, False),
        ("pull-messages", 2**20, True), ("pull-messages", 2**20 + 1, False),
    ):  # fmt: skip
        request = httpx.Request("POST", f"http://127.0.0.1:1/v1/fleet/{path}")
        answer = httpx.Response(200, headers={"content-length": str(size)}, request=request)
        with contextlib.nullcontext() if fits else pytest.raises(httpx.DecodingError, match="too many to take"):
            check(answer)
    node.close()


def test_certificates_of_ones_own(tmp_path: Path) -> None:
    """A server with a certificate by an authority: sites trust the authority, and signatures are for that server."""
    authority, other = (Authority(tmp_path / name) for name in ("ours", "theirs"))
    port, key = free_port(), keys.site_key(tmp_path / "east")
    fleet = Fleet("127.0.0.1", port, authority.signs("localhost"))
    number = fleet.admit("east", keys.own_public(key))
    here = Place(fleet, {"east": key}, {"east": number}, authority.pem, port)

    def node(trusted: bytes, host: str) -> Node:
        return Node(f"{host}:{port}", key, trusting(trusted, pinned=False))

    with fleet.listening():
        assert "is not the one that this site trusts" in told(node(other.pem, "localhost"))  # the wrong authority
        assert "is not the one that this site trusts" in told(node(authority.pem, "127.0.0.1"))  # another name
        with speaking(here, "east", node(authority.pem, "localhost"), lambda data, said: (dict(data), {})):
            (found,) = ask(here, "east", b"hello")
            assert unpack(found.content)[0]["data"] == b"hello"


class Authority:
    """Signs certificates of servers."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder, self.key = folder, ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, folder.name)])
        made = self._made(self.name, self.key).add_extension(x509.BasicConstraints(True, None), True)
        self.pem = made.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _made(self, name: Any, key: Any) -> Any:
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(datetime.now(UTC) - timedelta(hours=1))
            .not_valid_after(datetime.now(UTC) + timedelta(hours=1))
        )

    def signs(self, host: str) -> tuple[Path, Path]:
        """The chain and the key of a server with this name."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = self._made(x509.Name([]), key).add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), True)
        form = serialization.Encoding.PEM
        chain, secret = self.folder / "server.pem", self.folder / "server.key"
        chain.write_bytes(b"of this server\n" + made.sign(self.key, hashes.SHA256()).public_bytes(form) + self.pem)
        secret.write_bytes(key.private_bytes(form, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
        return chain, secret


def test_a_certificate_that_is_none_is_said(tmp_path: Path) -> None:
    chain, key = keys.server_files(tmp_path, [])
    for text in ("", "no certificate", chain.read_text()[:90]):
        chain.write_text(text)
        with pytest.raises(FFGBError, match=r"the certificate in .* cannot be used"):
            Fleet("127.0.0.1", free_port(), (chain, key))


def test_who_opens_many_connections_crowds_out_nobody_else(here: Place) -> None:
    """Another machine opens one after another: who was there before can take its time."""
    flooding = threading.Event()

    def flood() -> None:
        held = deque[socket.socket]()
        while not flooding.is_set():
            held.append(socket.socket())
            held[-1].bind(("127.0.0.2", 0))
            with contextlib.suppress(OSError):
                held[-1].connect(("127.0.0.1", here.port))
            if len(held) > 2 * door.STRANGERS:
                held.popleft().close()
            time.sleep(0.002)
        for connection in held:
            connection.close()

    strangers, until = here.fleet.listener.strangers, time.monotonic() + 20.0
    with socket.create_connection(("127.0.0.1", here.port)) as slow:
        while not strangers and time.monotonic() < until:
            time.sleep(0.01)
        (first,) = strangers
        thread = threading.Thread(target=flood)
        thread.start()
        try:
            while len(strangers) < door.STRANGERS and time.monotonic() < until:
                time.sleep(0.01)
            time.sleep(0.3)  # each one more is one too many
            assert len(strangers) <= door.STRANGERS + 1
            assert first in strangers
            assert here.context is not None
            with here.context.wrap_socket(slow) as secure:
                secure.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
                assert secure.recv(12) == b"HTTP/1.1 404"
            with site(here, "east", lambda data, said: (dict(data), {})):
                (found,) = ask(here, "east", b"hello")
            assert unpack(found.content)[0]["data"] == b"hello"
        finally:
            flooding.set()
            thread.join()


ENVELOPES: dict[str, tuple[str, object]] = {
    "a lifetime that is no number": ("ttl", math.nan),
    "no end": ("ttl", math.inf),
    "an end before the beginning": ("ttl", -1.0),
    "made at the end of time": ("created_at", math.inf),
    "of no kind": ("message_type", ""),
    "for another": ("dst_node_id", 12345),
    "of another run": ("run_id", 7),
    "in reply to nothing": ("reply_to_message_id", "nothing"),
    "much beside it": ("group_id", "x" * 50_000),
}


def test_what_is_written_on_an_envelope_costs_its_sender_and_no_one_else(here: Place) -> None:
    plain, came = Node._reply, dict[str, list[Any]]()
    with site(here, "north", lambda data, said: (dict(data), {})):
        for name, (part, value) in ENVELOPES.items():

            def odd(message: Any, answer: Any, part: str = part, value: object = value) -> Any:
                reply = plain(message, answer)
                if message.metadata.dst_node_id == here.nodes["east"]:
                    reply.metadata.__dict__[f"_{part}"] = value
                return reply

            with pytest.MonkeyPatch.context() as patch, site(here, "east", lambda data, said: (dict(data), {})):
                patch.setattr(Node, "_reply", staticmethod(odd))
                came[name] = ask(here, "east", b"?", seconds=0.5)
                (found,) = ask(here, "north", b"!")
                assert unpack(found.content)[0]["data"] == b"!", name
    for name in ("no end", "an end before the beginning", "made at the end of time", "for another"):
        assert came[name] in ([], [None]), name
    for name in ("of no kind", "of another run", "in reply to nothing"):
        assert came[name] == [], name
    state = here.fleet._state
    assert (state.num_message_ins(), state.num_message_res(), len(state.object_store.store)) == (0, 0, 0)
