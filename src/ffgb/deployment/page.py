"""The status page that a server or a site shows to whoever runs it, on its own machine only.

Its address holds a secret, so that other users of the machine cannot read it.  It can be read and nothing else.  While
nobody looks, it costs nothing: its thread sleeps until somebody connects.
"""

from __future__ import annotations

import contextlib
import hmac
import io
import json
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, final

from ffgb.deployment import view
from ffgb.errors import FFGBError

HOST = "127.0.0.1"
LARGEST_REQUEST = 8192
"""Bytes of a request line and all headers."""
PATIENCE = 5.0
"""Seconds that a request may take to come, and its answer to go."""
MOST_REQUESTS = 16
"""Requests that are answered at the same time; others wait."""
HEADERS = {
    "Content-Security-Policy": f"{view.POLICY}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Of every answer."""


@contextlib.contextmanager
def served(snapshot: Callable[[], Mapping[str, Any]], kind: str, port: int = 0) -> Iterator[str]:
    """Serve the page of a board as long as the context lasts; its address.

    `kind` is "server" or "site", whichever board the snapshots are of.  Port 0 is any that is free.
    """
    token = secrets.token_urlsafe(24)
    pages = {
        "": ("text/html; charset=utf-8", lambda: view.page(kind, snapshot())),
        "body.html": ("text/html; charset=utf-8", lambda: view.body(kind, snapshot())),
        "status.json": ("application/json", lambda: json.dumps(snapshot(), allow_nan=False)),
    }
    with _Door(port, token, pages) as door:
        yield f"http://{HOST}:{door.server_port}/{token}/"


@final
class _Door(ThreadingHTTPServer):
    """Accepts connections in a thread of its own, until the context ends."""

    def __init__(self, port: int, token: str, pages: Mapping[str, tuple[str, Callable[[], str]]]) -> None:
        self.token, self.pages = token, pages
        self.slots = threading.Semaphore(MOST_REQUESTS)
        self.closing = threading.Event()
        try:
            super().__init__((HOST, port), _Visit)
        except (OSError, OverflowError) as error:
            raise FFGBError(f"the status page cannot use port {port} ({error}); choose another port") from error
        self.socket.setblocking(False)
        self.bell, self.ear = socket.socketpair()
        self.thread = threading.Thread(target=self._serve, name="status page", daemon=True)
        self.thread.start()

    def __exit__(self, *args: object) -> None:
        self.closing.set()
        self.slots.release()  # it may wait for one
        self.bell.close()  # which wakes up the other end
        self.thread.join()
        self.server_close()
        self.ear.close()

    def _serve(self) -> None:
        """Like serve_forever, which wakes up twice a second to see whether it should end."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.socket, selectors.EVENT_READ)
            selector.register(self.ear, selectors.EVENT_READ)
            while not self.closing.is_set():
                selector.select()
                self.handle_request()  # at once if there is none

    def server_bind(self) -> None:
        """Bind, but do not ask the network for this machine's name, as HTTPServer does."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.socket.getsockname()[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        self.slots.acquire()
        if self.closing.is_set():
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self.slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: whoever looks went away in the middle of an answer."""


@final
class _Visit(BaseHTTPRequestHandler):
    """One connection, which is one request."""

    server: _Door

    def setup(self) -> None:
        super().setup()
        with self.rfile as arriving:
            self.rfile = io.BytesIO(_head(self.connection, arriving))

    def do_GET(self) -> None:
        hosts = [host.lower() for host in self.headers.get_all("Host", [])]
        allowed = [f"{name}:{self.server.server_port}" for name in (HOST, "localhost")]
        path = self.path.partition("?")[0].split("/", 2)
        known = len(path) == 3 and not path[0] and hmac.compare_digest(path[1].encode(), self.server.token.encode())
        if len(hosts) != 1 or hosts[0] not in allowed:
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)  # by a name that somebody else gave to this machine
        elif not known or path[2] not in self.server.pages:
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            self._answer(*self.server.pages[path[2]])

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self, kind: str, page: Callable[[], str]) -> None:
        try:
            content = page().encode()
        except Exception as error:  # a defect: nobody reads a log of this page, but its reader may tell
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, explain=f"{type(error).__name__}: {error}")
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def end_headers(self) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def version_string(self) -> str:
        return "ffgb"

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the terminal clean."""


def _head(connection: socket.socket, arriving: io.BufferedIOBase) -> bytes:
    """A request up to the empty line after its headers; nothing if it is too long, or takes too long."""
    until, head = time.monotonic() + PATIENCE, b""
    with contextlib.suppress(OSError):
        while (wait := until - time.monotonic()) > 0 and len(head) <= LARGEST_REQUEST:
            connection.settimeout(wait)
            part = arriving.read1(LARGEST_REQUEST)
            head += part
            if b"\r\n\r\n" in head and len(head) <= LARGEST_REQUEST:
                connection.settimeout(PATIENCE)
                return head
            if not part:
                break
    return b""
