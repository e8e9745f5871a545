"""A headless Chromium that a test can steer: over a pipe, so that nothing needs to be installed."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
    "--hide-scrollbars", "--no-first-run", "--remote-debugging-pipe",
)  # fmt: skip

MOVED = """import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])"""
"""Chromium takes commands from descriptor 3, and answers to 4."""


@final
class Tab:
    """An open page: what it shows, what it complains about, and what it loads."""

    def __init__(self, commands: int, events: int) -> None:
        self._commands, self._events, self._buffer, self._number, self._session = commands, events, b"", 0, ""
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def look(self, *, width: int = 1200, dark: bool = False) -> None:
        """Of the window, and of what its user likes."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address: str) -> None:
        self._call("Page.navigate", url=address)
        self.wait_for("document.readyState === 'complete' && document.getElementById('live') !== null")

    def run(self, expression: str) -> Any:
        """The value of an expression in the page."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 30.0) -> None:
        until = time.monotonic() + seconds
        while not self.run(expression):
            assert time.monotonic() < until, f"{expression} never came; the page shows: {self.text}"
            time.sleep(0.1)

    @property
    def text(self) -> str:
        return str(self.run("document.body.innerText"))

    def picture(self) -> bytes:
        """The whole page as PNG."""
        found = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(found["data"])

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": self._number, "method": method, "params": parameters, **session}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self._number:
                assert "error" not in found, found
                return dict(found["result"])
            self._note(found.get("method", ""), found.get("params", {}))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._events], [], [], 60.0)
            part = os.read(self._events, 2**16) if ready else b""
            assert part, "Chromium does not answer"
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    def _note(self, method: str, parameters: dict[str, Any]) -> None:
        if method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.complaints.append(json.dumps(parameters))
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])


@contextlib.contextmanager
def opened(profile: Path) -> Iterator[Tab]:
    """A tab of a browser that ends with the context."""
    from_us, commands = os.pipe()
    events, to_us = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", MOVED, str(from_us), str(to_us), str(CHROMIUM), *OPTIONS, f"--user-data-dir={profile}"],
        pass_fds=(from_us, to_us),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(from_us)
    os.close(to_us)
    try:
        yield Tab(commands, events)
    finally:
        os.close(commands)  # it ends by itself when nobody is there any more
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(events)
