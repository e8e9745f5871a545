"""An HTTP server in a thread, on one socket, that strangers cannot keep busy.

Connections are counted as they are accepted, before TLS begins; they must bring a request in time, and its body with a
least pace.  What a request means is its application's to say (engines/fleet.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
import threading
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias, final

from ffgb.errors import FFGBError, option

HEADER_SECONDS = 10.0
"""Seconds in which a connection must bring a whole request's headers."""
RATE = 50_000.0
"""Bytes a second that a body must come with, on average, after the first ten seconds."""
STRANGERS = 64
"""Connections that have not shown a key, before or after their TLS handshake; the oldest goes when there are more."""

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"

Scope: TypeAlias = dict[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[dict[str, Any]]]
Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]


class RefusedError(Exception):
    """A request is turned away, with an HTTP status and a sentence."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class GoneError(Exception):
    """Whoever asked has hung up."""


@final
class Listener:
    """One socket, and the connections to it that have not shown who they are."""

    def __init__(self, host: str, port: int, certificate: tuple[Path, Path] | None) -> None:
        """Without a certificate (chain and key) it is plain HTTP."""
        self.host, self.port, self.certificate = host, port, certificate
        self.strangers: OrderedDict[Any, socket.socket] = OrderedDict()
        """By address; an application takes a connection out that has shown a key."""

    def shown(self) -> bytes:
        """The certificate that is shown to who connects (DER); nothing without TLS."""
        if self.certificate is None:
            return b""
        chain, _ = self.certificate
        try:
            first, end, _ = chain.read_text("ascii").partition(_END)
            return ssl.PEM_cert_to_DER_cert(first[max(first.find(_BEGIN), 0) :] + end)
        except (OSError, ValueError) as error:
            raise FFGBError(f"the certificate in {chain} cannot be used ({error})") from error

    @contextlib.contextmanager
    def serving(self, app: Any, beside: Callable[[], Coroutine[Any, Any, None]]) -> Iterator[asyncio.AbstractEventLoop]:
        """Serve an ASGI application, with something that runs beside it, until the block ends: in this loop."""
        import uvicorn

        most_files()
        listener = self._bound()
        try:
            server = uvicorn.Server(_configured(app, self.certificate))
        except FFGBError:
            listener.close()
            raise
        over, failed, loops = threading.Event(), list[BaseException](), list[asyncio.AbstractEventLoop]()

        async def serve() -> None:
            loops.append(asyncio.get_running_loop())
            task = asyncio.ensure_future(beside())
            try:
                await server.serve(sockets=[listener])
            finally:
                task.cancel()

        def run() -> None:
            try:
                with asyncio.Runner(loop_factory=_Loop) as runner:
                    runner.run(serve())
            except BaseException as error:  # uvicorn ends with SystemExit when it cannot listen
                failed.append(error)
            finally:
                over.set()

        thread = threading.Thread(target=run, daemon=True, name="ffgb listener")
        thread.start()
        while not server.started and not over.wait(0.005):
            pass
        if not server.started:
            raise FFGBError(f"the server cannot listen on {self.host}:{self.port} ({failed[:1]})")
        try:
            yield loops[0]
        finally:
            server.should_exit = True
            thread.join(5.0)

    def _bound(self) -> socket.socket:
        """The listening socket; connections are counted as they come, before TLS has begun."""
        strangers = self.strangers

        class Counting(socket.socket):
            def accept(self) -> tuple[socket.socket, Any]:
                connection, address = super().accept()
                strangers[address[:2]] = connection
                thin_out(strangers, STRANGERS)
                return connection, address

        try:
            family, _, _, _, address = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
        except OSError as error:
            raise FFGBError(f"{option('host', self.host)} is no address of this machine ({error.strerror})") from error
        # with its protocol by name: only then does asyncio send small answers at once (TCP_NODELAY)
        listener = Counting(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(128)
        except OSError as error:
            listener.close()
            raise FFGBError(
                f"the server cannot listen on {self.host}:{self.port} ({error.strerror or error}); end what uses the "
                f"port, or choose another {option('port')}"
            ) from error
        return listener


@final
class _Loop(asyncio.SelectorEventLoop):
    """A loop whose TLS handshakes end in time."""

    async def create_server(self, *args: Any, **more: Any) -> Any:
        if more.get("ssl") is not None:
            more |= {"ssl_handshake_timeout": HEADER_SECONDS, "ssl_shutdown_timeout": 2.0}
        return await super().create_server(*args, **more)


def _configured(app: Any, certificate: tuple[Path, Path] | None) -> Any:
    """A configuration of uvicorn: one application, HTTP alone, nothing logged, and no word on what serves it."""
    import uvicorn

    chain, key = certificate or (None, None)
    config = uvicorn.Config(
        app,
        http=_bounded(),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=1,
        ssl_certfile=chain,
        ssl_keyfile=key,
    )
    for name in ("uvicorn", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        config.load()
    except (ssl.SSLError, OSError) as error:
        raise FFGBError(f"the certificate in {chain} and the key in {key} cannot be used ({error})") from error
    return config


def _bounded() -> Any:
    """The protocol of a connection that brings its headers in time, and gives way if it never shows a key."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Bounded(H11Protocol):
        alarm: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.alarm = self.loop.call_later(HEADER_SECONDS, transport.abort)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is None or self.cycle.response_complete:
                self.alarm = self.alarm or self.loop.call_later(HEADER_SECONDS, self.transport.abort)
            elif self.alarm is not None:
                self.alarm.cancel()
                self.alarm = None

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.cycle is not None and not self.cycle.response_complete and self.alarm is not None:
                self.alarm.cancel()  # the next request had come already
                self.alarm = None

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            if self.alarm is not None:
                self.alarm.cancel()

    return Bounded


def thin_out(connections: OrderedDict[Any, socket.socket], most: int) -> None:
    """Forget connections that are closed; of the others some go, if there are too many.

    The oldest of the machine that has most of them goes first: who opens many crowds out nobody else.
    """
    for address in [address for address, connection in connections.items() if connection.fileno() < 0]:
        del connections[address]
    while len(connections) > most:
        crowd = Counter(host for host, _ in connections).most_common(1)[0][0]
        oldest = next(address for address in connections if address[0] == crowd)
        with contextlib.suppress(OSError):
            connections.pop(oldest).shutdown(socket.SHUT_RDWR)


def most_files() -> None:
    """As many open files as the system allows this process: a connection is one, and so is a checkpoint."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard) if soft != hard else (soft, hard))


async def read_body(headers: Mapping[bytes, bytes], receive: Receive, most: int) -> bytes:
    """A request's body: of a length that is said, not too large, and in time."""
    try:
        length = int(headers[b"content-length"])
    except (KeyError, ValueError) as error:
        raise RefusedError(411, "say how long the body is") from error
    if not 0 <= length <= most:
        raise RefusedError(413, f"the body has {length:,} bytes, and at most {most:,} are taken")
    body = bytearray()
    try:
        async with asyncio.timeout(HEADER_SECONDS + length / RATE):
            while True:
                part = await receive()
                if part["type"] == "http.disconnect":
                    raise GoneError
                body += part.get("body", b"")
                if len(body) > most:
                    raise RefusedError(413, "the body is longer than it said")
                if not part.get("more_body"):
                    return bytes(body)
    except TimeoutError as error:
        raise RefusedError(408, "the body did not come in time") from error
