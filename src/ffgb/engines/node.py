"""A site's end of Flower's Fleet protocol, inside the site's own process: no listener, no second process, no code.

The node asks its server for messages, hands each to the site (deployment/attendant.py), and sends back what that
answers.  It knows the server by its certificate and nothing else, follows no redirect, and takes no more bytes than a
question can have.

It signs the time and the certificate that the server has shown.  Flower's own nodes sign the time alone: a server to
which such a node speaks could pass the signature on to another server that knows the same key, and speak there as the
site.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import secrets
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias, final

from ffgb.engines import private
from ffgb.engines.private import flwr
from ffgb.errors import FFGBError
from ffgb.protocol.codec import shown

KIND = "train.ffgb"
"""Flower's name for all our messages."""
BYTES = "ffgb.bytes"
"""How our arrays are serialised, to Flower: not at all."""
COMPACT = 4 * 2**20
"""Bytes up to which all parts of a message travel as one of Flower's objects: each object is a request of its own."""
BEAT = 10.0
"""Seconds between signs of life; Flower's least.  A node that is silent for twice as long counts as gone."""
LARGEST_MESSAGE, MOST_OBJECTS = 2**31, 1024
"""Bytes and objects that a node takes in one message of its server."""
CHUNK = 5 * 2**20
"""Bytes of the largest object that Flower makes of an array."""
ENVELOPE = 64 * 2**10
"""Bytes that a request or an answer with an object has besides it."""
WORDS = 2**20
"""Bytes of an answer without an object: of the largest, the names of a message's objects."""
PAUSE = (0.2, 0.5, 1.0, 2.0)
"""Seconds between tries to reach a server that is away."""
KEY_HEADER, TIME_HEADER, SIGNATURE_HEADER = "ffgb-key", "ffgb-time", "ffgb-signature"
"""Of a request: whose it is (PEM), when it was made, and the proof; both in base64 but for the time."""

Answer: TypeAlias = Callable[[Mapping[str, bytes], Mapping[str, Any]], tuple[dict[str, bytes], dict[str, Any]]]


def pack(data: Mapping[str, bytes], said: Mapping[str, Any]) -> Any:
    """Bytes by name, and a few words, as Flower carries them."""
    flower = flwr()
    if sum(map(len, data.values())) <= COMPACT:
        inside = {f"data.{name}": part for name, part in data.items()}
        return flower.RecordDict({"said": flower.ConfigRecord({**said, **inside})})
    arrays = {name: flower.Array(dtype="uint8", shape=(len(b),), stype=BYTES, data=b) for name, b in data.items()}
    return flower.RecordDict({"said": flower.ConfigRecord(dict(said)), "data": flower.ArrayRecord(arrays)})


def unpack(content: Any) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The inverse of `pack`; an FFGBError if it is something else."""
    try:
        words = dict(content["said"])
        data = {str(name): array.data for name, array in content["data"].items()} if "data" in content else {}
    except (KeyError, AttributeError, TypeError) as error:
        raise FFGBError("a Flower message is not one of ours") from error
    for name in [name for name in words if name.startswith("data.")]:
        data[name.removeprefix("data.")] = words.pop(name)
    if not all(isinstance(part, bytes) for part in data.values()):
        raise FFGBError("a Flower message is not one of ours")
    return data, words


def weight(message: Any) -> int:
    """Bytes of a message as Flower serialises it, envelope and all."""
    return int(private.names(private.MESSAGES).message_to_proto(message).ByteSize())


def trusting(certificate: bytes, *, pinned: bool) -> ssl.SSLContext:
    """TLS with a server that shows this very certificate (`pinned`), or one signed by this authority (both PEM)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_verify_locations(cadata=certificate.decode("ascii"))
    except (ssl.SSLError, UnicodeDecodeError, ValueError) as error:
        raise FFGBError(f"the server's certificate cannot be read ({error})") from error
    if pinned:  # the one certificate is known by all of its bytes: its names do not matter
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.check_hostname = False
    return context


def mark_of(certificate: bytes) -> bytes:
    """What a server is known by in signatures, from its certificate (DER); nothing without TLS.

    >>> mark_of(b"") == b""
    True
    """
    return hashlib.sha256(certificate).digest() if certificate else b""


def signed_words(when: str, server: bytes) -> bytes:
    """What a node signs: the time, for this server alone (`mark_of`)."""
    return b"ffgb node " + when.encode("ascii") + b" " + server


def bounded(largest: Callable[[str], int]) -> Callable[[Any], None]:
    """For an HTTP client, before a body is read: it says its length, is not too long, and is as it is.

    `largest` says how long an answer may be, by the path that was asked.
    """
    import httpx

    def check(response: httpx.Response) -> None:
        headers = response.headers
        try:
            length = int(headers["content-length"])
        except (KeyError, ValueError) as error:
            raise httpx.DecodingError("the server does not say how long its answer is") from error
        plain = headers.get("content-encoding", "identity") == "identity" and "transfer-encoding" not in headers
        if not 0 <= length <= largest(response.request.url.path) or not plain:
            raise httpx.DecodingError(f"the server's answer has {length:,} bytes, too many to take")

    return check


@final
class Node:
    """Speaks to one server, as one site."""

    def __init__(
        self, address: str, key: Any, context: ssl.SSLContext | None, *, largest: int = LARGEST_MESSAGE
    ) -> None:
        """Over TLS, or without a context over plain HTTP; `key` is the site's private key (cryptography)."""
        import httpx

        self._f = private.names(private.SITE, private.REQUESTS)
        self._m, self._http = private.names(private.MESSAGES), httpx
        self.address, self.key = address, self._f.public_key_to_bytes(key.public_key())
        self._secret, self._url = key, f"{'http' if context is None else 'https'}://{address}"
        self._server = b""
        """The mark of the server that this node speaks to."""

        self.largest = largest
        # without Flower's own interceptors: one of them ends the process when a server says so
        self._client = self._f.FleetHttpClient(self._url)
        self._client._client.close()
        self._client._client = httpx.Client(
            verify=True if context is None else context,
            timeout=httpx.Timeout(30.0, connect=10.0),
            follow_redirects=False,
            headers={"accept-encoding": "identity"},
            event_hooks={"request": [self._sign], "response": [bounded(_most)]},
        )
        self._node: Any = None
        self._idle = threading.Event()
        """No thread is in `run`."""
        self._idle.set()

    def close(self) -> None:
        """Deactivate the node, if the server can be reached, and close the connections.

        `run` must have been told to stop.  Its connections are closed once it has ended: the system may give the number
        of a closed socket to the next one, and `run` would read from that.
        """
        if (node := self._node) is not None:
            with contextlib.suppress(self._http.HTTPError):
                self._client.DeactivateNode(self._f.DeactivateNodeRequest(node_id=node.node_id))
        if self._idle.wait(35.0):  # longer than a request may take
            self._client._client.close()

    def run(
        self, answer: Answer, stop: threading.Event, say: Callable[[str], None], up: Callable[[bool], None]
    ) -> None:
        """Answer messages until told to stop, through all that a network may do.

        `say` is told in a sentence what is wrong, once; `up` whether the server is reached.
        """
        self._idle.clear()
        try:
            self._run(answer, stop, say, up)
        finally:
            self._idle.set()

    def _run(
        self, answer: Answer, stop: threading.Event, say: Callable[[str], None], up: Callable[[bool], None]
    ) -> None:
        threading.Thread(target=self._beats, args=(stop,), daemon=True, name="ffgb heartbeat").start()
        told, tries = "", 0
        while not stop.is_set():
            try:
                if self._node is None:
                    self._activate()
                    up(True)
                    say(f"connected to {self.address}")
                    told, tries = "", 0
                self._step(answer, stop)
            except Exception as error:  # a server may send anything, and a network do anything
                # whatever was under way may be lost: coming back as new makes the server ask again
                self._node = None
                up(False)
                if stop.is_set():
                    return
                if (why := self.trouble(error)) != told:
                    told = why
                    say(why)
                stop.wait(PAUSE[min(tries, len(PAUSE) - 1)])
                tries += 1

    def trouble(self, error: Exception) -> str:
        """What is wrong between this site and its server, and what to do."""
        http = self._http
        if isinstance(error, http.HTTPStatusError):
            try:
                said = str(error.response.json()["detail"])
            except (ValueError, KeyError, TypeError):
                said = ""
            status = error.response.status_code
            if status in (401, 412) and ("not registered" in said or status == 412):
                return (
                    f"the server at {self.address} does not know this site's key; "
                    "ask its operator for an invitation, and join with it; trying again"
                )
            if status == 409:
                return f"another process speaks for this site at {self.address}; end one of them; trying again"
            return f"the server at {self.address} refuses this site ({status}: {shown(said)}); trying again"
        text = str(error)
        if "CERTIFICATE_VERIFY_FAILED" in text:
            return (
                f"the certificate of the server at {self.address} is not the one that this site trusts "
                f"({shown(text.partition('CERTIFICATE_VERIFY_FAILED] ')[2] or text)}): it may be another server, "
                "or its certificate was replaced; ask its operator for a new invitation; trying again"
            )
        if isinstance(error, http.ConnectError | http.ConnectTimeout):
            return f"cannot reach the server at {self.address}; trying again"
        return f"the connection to {self.address} broke ({shown(text) or type(error).__name__}); trying again"

    def _sign(self, request: Any) -> None:
        when = datetime.now(UTC).isoformat()
        signature = self._f.sign_message(self._secret, signed_words(when, self._server))
        request.headers[KEY_HEADER] = base64.b64encode(self.key).decode("ascii")
        request.headers[TIME_HEADER] = when
        request.headers[SIGNATURE_HEADER] = base64.b64encode(signature).decode("ascii")

    def _meet(self) -> None:
        """Look at the certificate of the server; TLS has checked it."""
        with self._client._client.stream("GET", self._url) as answer:
            connection = answer.extensions["network_stream"].get_extra_info("ssl_object")
            self._server = mark_of(connection.getpeercert(True) if connection is not None else b"")

    def _activate(self) -> None:
        self._meet()
        request = self._f.ActivateNodeRequest(public_key=self.key, heartbeat_interval=BEAT)
        self._node = self._f.Node(node_id=self._client.ActivateNode(request).node_id)

    def _beats(self, stop: threading.Event) -> None:
        while not stop.wait(BEAT):
            if (node := self._node) is not None:
                with contextlib.suppress(Exception):  # the loop sees it, too
                    self._client.SendNodeHeartbeat(self._f.SendNodeHeartbeatRequest(node=node, heartbeat_interval=BEAT))

    def _step(self, answer: Answer, stop: threading.Event) -> None:
        """Wait for a message, and answer it."""
        f, m, client = self._f, self._m, self._client
        found = client.PullMessages(f.PullMessagesRequest(node=self._node))
        if not found.messages_list or stop.is_set():
            return
        envelope, tree = m.message_from_proto(found.messages_list[0]), found.message_object_trees[0]
        run, name = envelope.metadata.run_id, envelope.metadata.message_id
        contents: dict[str, bytes] = {}
        for part in m.iterate_object_tree(tree):
            contents[part.object_id] = self._object(part.object_id, run)
            if len(contents) > MOST_OBJECTS or sum(map(len, contents.values())) > self.largest:
                raise ValueError("the server's message is too large to take")
        client.ConfirmMessageReceived(
            f.ConfirmMessageReceivedRequest(node=self._node, run_id=run, message_object_id=name)
        )
        message = m.inflate_object_from_contents(name, contents)
        message.metadata.__dict__["_message_id"] = name
        reply = self._reply(message, answer)
        with m.no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            pushed = client.PushMessages(
                f.PushMessagesRequest(
                    node=self._node,
                    messages_list=[m.message_to_proto(m.remove_content_from_message(reply))],
                    message_object_trees=[m.get_object_tree(reply)],
                )
            )
            objects, wanted = m.get_all_nested_objects(reply), set(pushed.objects_to_push)
            for number, thing in objects.items():
                if number in wanted:
                    client.PushObject(
                        f.PushObjectRequest(
                            node=self._node,
                            run_id=run,
                            object_id=number,
                            object_content=thing.deflate(),
                            session_id=pushed.session_id,
                        )
                    )

    def _object(self, number: str, run: int) -> bytes:
        """An object of a message; it may still be on its way into the server's store."""
        until = time.monotonic() + 30.0
        while True:
            found = self._client.PullObject(self._f.PullObjectRequest(node=self._node, run_id=run, object_id=number))
            if found.object_available:
                return bytes(found.object_content)
            if not found.object_found or time.monotonic() > until:
                raise ValueError("a message has lost a part")
            time.sleep(0.01)

    @staticmethod
    def _reply(message: Any, answer: Answer) -> Any:
        flower = flwr()
        try:
            data, said = answer(*unpack(message.content))
        except FFGBError as error:
            data, said = {}, {"failed": str(error)}
        # Flower keeps equal objects once: no one shall announce a part of this reply before, and never send it
        return flower.Message(pack(data, {**said, "nonce": secrets.token_hex(16)}), reply_to=message)


def _most(path: str) -> int:
    """Bytes of the server's answer to a call."""
    return CHUNK + ENVELOPE if path.endswith("/pull-object") else WORDS
