"""The status page: only its owner can read it, it can only be read, nothing from outside becomes markup."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest

from ffgb.deployment import page as door
from ffgb.deployment.board import ServerBoard, SiteBoard
from ffgb.deployment.page import HEADERS, LARGEST_REQUEST, served
from ffgb.errors import FFGBError
from tests.deployment.browser import CHROMIUM, Tab, opened

HOSTILE = "<script>alert(1)</script>\"'&\u202e\x00\ud800"


def server_board(rounds: int = 3, score: str = "accuracy") -> ServerBoard:
    board = ServerBoard("runs/federation", 3)
    board.site("north", "SHA256:abc", 1204)
    board.heard("north")
    board.away("south", "no answer within 120 s")
    board.asked("increment", 2, 3000, 1500)
    board.refused("an answer came too late")
    for t in range(1, rounds + 1):
        scores = {f"{part}_{score}": 1 - 0.5 / t for part in ("train", "test")}
        board.measured(
            {"round": t, "train_loss": 1 / t, "test_loss": 1.1 / t, "participants": 2, "seconds": 0.5, **scores}
        )
    board.state(f"round {rounds} of 10")
    return board


def site_board() -> SiteBoard:
    board = SiteBoard("north", "ffgb.example.org:9443")
    board.connected(True)
    board.asked("increment", "round 1", 700)
    board.left("increment", "round 1", [("weights", "float32", (40, 3)), ("count", "int64", ())], 1200)
    board.left("increment", "round 2", [("weights", "float32", (80, 3)), ("count", "int64", ())], 2400)
    board.refused("question GramOf", "its owner has not agreed")
    board.state("round 2")
    return board


@pytest.fixture
def address() -> Iterator[str]:
    with served(server_board().snapshot, "server") as address:
        yield address


def get(address: str, path: str = "", method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    """Status, headers and content of an answer."""
    parts = urlsplit(address)
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", parts.port, timeout=20)) as connection:
        connection.request(method, path if path.startswith("/") else parts.path + path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()


def said(address: str, request: bytes) -> bytes:
    """The answer to these bytes; nothing if the connection is closed instead."""
    with socket.create_connection(("127.0.0.1", urlsplit(address).port or 0), timeout=20) as connection:
        try:
            connection.sendall(request)
            return b"".join(iter(lambda: connection.recv(2**16), b""))
        except (ConnectionResetError, BrokenPipeError):
            return b""


def parsed(text: str) -> ElementTree.Element:
    """The page as XML: every tag is closed, every attribute quoted, every text escaped."""
    return ElementTree.fromstring(text.partition("\n")[2] if text.startswith("<!DOCTYPE html>") else text)


def words(text: str) -> str:
    return re.sub(r"\s+", " ", " ".join(parsed(text).itertext()))


def test_the_server_page_shows_its_numbers(address: str) -> None:
    status, headers, text = get(address)
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    shown = words(text)
    for part in ("ffgb server runs/federation", "Round 3 of 10", "1 site is away: south", "1 of 3"):
        assert part in shown
    assert "south – not yet away : no answer within 120 s" in shown
    assert "north 1,204 just now here SHA256:abc" in shown
    assert "increment 1 2 3.0 kB 1.5 kB just now" in shown
    assert "an answer came too late 1 just now" in shown
    assert "test accuracy 83.33 %" in shown
    captions = [words(ElementTree.tostring(c, "unicode")).strip() for c in parsed(text).iter("figcaption")]
    assert captions == ["Accuracy by rounds", "Loss by rounds", "Sites that answered", "Time of each round"]


def test_the_part_that_changes_is_that_of_the_page() -> None:
    now = server_board().snapshot()
    with served(lambda: now, "server") as address:
        whole, part = get(address)[2], get(address, "body.html")[2]
    assert part.startswith('<div id="live"><header>')
    assert part in whole


def test_the_site_page_shows_what_left() -> None:
    with served(site_board().snapshot, "site") as address:
        shown = words(get(address)[2])
    assert "Connected to ffgb.example.org:9443" in shown
    forms = "weights (80×3 float32), count (one int64)"
    assert f"increment 2 3.6 kB 1.2 kB to 2.4 kB {forms} round 1 to round 2 just now" in shown
    assert "in all 2 3.6 kB" in shown
    assert "question GramOf 1 its owner has not agreed just now" in shown
    assert "increment 1 700 B round 1 just now" in shown


@pytest.mark.parametrize("rounds", [0, 1, 2, 1000])
@pytest.mark.parametrize("score", ["accuracy", "rmse", "nothing"])
def test_any_number_of_rounds_is_shown(rounds: int, score: str) -> None:
    with served(server_board(rounds, score).snapshot, "server") as address:
        root, shown = parsed(get(address)[2]), words(get(address)[2])
    assert len(list(root.iter("figure"))) == (0 if rounds < 2 else 3 if score == "nothing" else 4)
    assert ("No round is over yet" in shown) == (rounds == 0)
    if rounds:
        assert {"accuracy": "test accuracy", "rmse": "test RMSE", "nothing": "test loss"}[score] in shown


def test_boards_that_know_nothing_yet_are_shown() -> None:
    for board, kind in ((ServerBoard("a", 2), "server"), (SiteBoard("a", "b:1"), "site")):
        with served(board.snapshot, kind) as address:
            shown = words(get(address)[2])
        assert "Nothing was refused" in shown
        assert ("No site is here yet; 2 sites" if kind == "server" else "This site is not connected to b:1") in shown


def test_times_are_told_as_ages() -> None:
    now: dict[str, Any] = server_board().snapshot()
    now["sites"][0]["heard"] = now["time"] - 3.4
    now["sites"][1]["heard"] = now["time"] - 200.0
    with served(lambda: now, "server") as address:
        shown = words(get(address)[2])
    assert "3 s ago here" in shown
    assert "3 min ago away" in shown


def test_the_status_is_the_snapshot() -> None:
    board = site_board()
    with served(board.snapshot, "site") as address:
        status, headers, text = get(address, "status.json")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert json.loads(text) | {"time": 0} == board.snapshot() | {"time": 0}


@pytest.mark.parametrize("kind", ["server", "site"])
def test_nothing_from_outside_becomes_markup(kind: str) -> None:
    server, site = ServerBoard(HOSTILE, 3), SiteBoard(HOSTILE, HOSTILE)
    server.site(HOSTILE, HOSTILE, 5)
    server.away(HOSTILE, HOSTILE)
    server.state(HOSTILE)
    server.asked(HOSTILE, 3, 5, 5)
    server.refused(HOSTILE)
    server.measured({"round": HOSTILE, "train_loss": 1.0, HOSTILE: 3.0})
    site.state(HOSTILE)
    site.asked(HOSTILE, HOSTILE, 5)
    site.left(HOSTILE, HOSTILE, [(HOSTILE, HOSTILE, (2, 3))], 5)
    site.refused(HOSTILE, HOSTILE)
    with served(server.snapshot if kind == "server" else site.snapshot, kind) as address:
        pages = [get(address)[2], get(address, "body.html")[2]]
        assert json.loads(get(address, "status.json")[2])["state"].startswith("<script>alert(1)</script>")
    for text, scripts in zip(pages, (1, 0), strict=True):
        root = parsed(text)
        assert len(list(root.iter("script"))) == scripts  # ours
        assert "<script>alert(1)</script>" in "".join(root.itertext())  # as a text
        assert not any(name.startswith("on") for element in root.iter() for name in element.attrib)
        assert all(c.isprintable() or c in "\n\N{NO-BREAK SPACE}" for c in text)


def test_without_the_token_there_is_nothing(address: str) -> None:
    token = urlsplit(address).path.strip("/")
    assert len(token) >= 32
    for path in ("/", "/status.json", "//", "/x/status.json", f"/{token[:-1]}/", f"/{token}x/", f"/{token}", "/%C3%A9/",
                 f"/a/{token}/", f"/%{token}/"):  # fmt: skip
        status, _, text = get(address, path)
        assert status == 404
        assert "federation" not in text
    for path in ("other", "body.html/", "../", "status.json/x", "/..", "live.js"):
        assert get(address, f"/{token}/{path}")[0] == 404
    assert get(address, "status.json?now")[0] == 200
    assert get(address, "/x/", "POST")[0] == 501
    with served(server_board().snapshot, "server") as other:
        assert urlsplit(other).path.strip("/") != token


def test_other_names_of_this_machine_are_refused(address: str) -> None:
    port = urlsplit(address).port
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"LocalHost:{port}"):
        assert get(address, Host=host)[0] == 200
    for host in ("127.0.0.1", "localhost", f"evil.example:{port}", f"localhost.evil:{port}", "localhost:1", ""):
        status, _, text = get(address, Host=host)
        assert status == 421
        assert "federation" not in text
    path, ours = urlsplit(address).path.encode(), f"Host: localhost:{port}\r\n".encode()
    for hosts, code in ((ours, b"200"), (b"", b"421"), (ours + b"Host: evil\r\n", b"421"), (ours + ours, b"421")):
        assert said(address, b"GET " + path + b" HTTP/1.0\r\n" + hosts + b"\r\n").split()[1] == code


def test_it_can_only_be_read(address: str) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "get"):
        status, headers, text = get(address, method=method)
        assert status == 501
        assert "federation" not in text
        assert headers.items() >= HEADERS.items()
    _, headers, text = get(address, "status.json")
    status, head, _ = get(address, "status.json", "HEAD")
    assert status == 200
    assert head["Content-Type"] == headers["Content-Type"]
    assert int(head["Content-Length"]) == pytest.approx(len(text), abs=30)
    parts = urlsplit(address)
    request = f"HEAD {parts.path} HTTP/1.0\r\nHost: {parts.netloc}\r\n\r\n"
    assert said(address, request.encode()).endswith(b"\r\n\r\n")  # no content follows


def test_every_answer_forbids_what_is_not_ours(address: str) -> None:
    for path, status in (("", 200), ("body.html", 200), ("status.json", 200), ("other", 404)):
        found, headers, _ = get(address, path)
        assert found == status
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Server"] == "ffgb"
        assert "Access-Control-Allow-Origin" not in headers
        policy = dict(rule.strip().split(" ", 1) for rule in headers["Content-Security-Policy"].split(";"))
        assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert policy["connect-src"] == "'self'"
        assert re.fullmatch(r"'sha256-[^' ]+'", policy["script-src"])


def test_what_is_too_large_is_not_read(address: str) -> None:
    path, port = urlsplit(address).path.encode(), urlsplit(address).port
    start = b"GET " + path + f" HTTP/1.0\r\nHost: localhost:{port}\r\n".encode()
    fits = start + b"A: " + b"x" * (LARGEST_REQUEST - len(start) - 7) + b"\r\n\r\n"
    assert len(fits) == LARGEST_REQUEST
    assert said(address, fits).startswith(b"HTTP/1.0 200")
    assert said(address, fits.replace(b"A: ", b"A: x")) == b""
    began = time.monotonic()
    assert said(address, b"GET /" + b"x" * 10**6 + b" HTTP/1.0\r\n\r\n") == b""
    assert said(address, start + b"A: b\r\n" * 10**5 + b"\r\n") == b""
    assert said(address, b"\0" * 10**6) == b""
    assert time.monotonic() - began < door.PATIENCE  # at once
    assert get(address)[0] == 200


def test_who_dawdles_is_shown_out(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one who sends a byte now and then."""
    monkeypatch.setattr(door, "PATIENCE", 0.5)
    began = time.monotonic()
    place = ("127.0.0.1", urlsplit(address).port or 0)
    with socket.create_connection(place, timeout=20) as connection, contextlib.suppress(OSError):
        while time.monotonic() < began + 10:
            connection.sendall(b"G")
            time.sleep(0.05)
    assert time.monotonic() - began < 5


def test_few_are_answered_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others wait for their turn; and the page closes at once, whoever is still there."""
    monkeypatch.setattr(door, "PATIENCE", 1.0)
    monkeypatch.setattr(door, "MOST_REQUESTS", 3)
    before = threading.active_count()
    with served(server_board().snapshot, "server") as address:
        place = ("127.0.0.1", urlsplit(address).port or 0)
        idle = [socket.create_connection(place, timeout=20) for _ in range(5)]
        time.sleep(0.3)
        assert threading.active_count() == before + 1 + 3
        began = time.monotonic()
        assert get(address)[0] == 200
        assert time.monotonic() - began > 0.5  # it had to wait until the first were shown out
        idle += [socket.create_connection(place, timeout=20) for _ in range(5)]
        time.sleep(0.3)
        began = time.monotonic()
    assert time.monotonic() - began < 0.5
    for connection in idle:
        connection.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(place)


def test_nobody_costs_nothing() -> None:
    """Its thread does not wake up unless somebody connects."""
    if not Path("/proc/self/task").exists():
        pytest.skip("no /proc here to see threads in")
    with served(server_board().snapshot, "server") as address:
        assert get(address)[0] == 200
        (thread,) = (t for t in threading.enumerate() if t.name == "status page")

        def wakes() -> int:
            text = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
            return sum(int(n) for n in re.findall(r"ctxt_switches:\s*(\d+)", text))

        time.sleep(0.2)
        before = wakes()
        time.sleep(1.5)
        assert wakes() == before
        assert get(address)[0] == 200
        assert wakes() > before
    assert not thread.is_alive()


def test_only_this_machine_reaches_it(address: str) -> None:
    """Nor by its other addresses, of which 127.0.0.2 is one everywhere but on a Mac."""
    with pytest.raises(OSError, match=r"refused|timed out|assign"):
        socket.create_connection(("127.0.0.2", urlsplit(address).port or 0), timeout=2)


def test_a_port_that_is_taken_is_said(address: str) -> None:
    port = urlsplit(address).port or 0
    with pytest.raises(FFGBError, match=rf"cannot use port {port} \(.*; choose another"), served(dict, "site", port):
        pass
    with pytest.raises(FFGBError, match="cannot use port 70000"), served(dict, "site", 70000):
        pass
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        free = trial.getsockname()[1]
    with served(site_board().snapshot, "site", free) as chosen:
        assert urlsplit(chosen).port == free
        assert get(chosen)[0] == 200


def test_a_defect_is_told_to_the_reader_only(capfd: pytest.CaptureFixture[str]) -> None:
    def broken() -> dict[str, Any]:
        raise KeyError("<lines>")

    with served(broken, "server") as address:
        for path in ("", "status.json"):
            status, headers, text = get(address, path)
            assert status == 500
            assert "KeyError: &#x27;&lt;lines&gt;&#x27;" in text or "KeyError: '&lt;lines&gt;'" in text
            assert headers.items() >= HEADERS.items()
        with socket.create_connection(("127.0.0.1", urlsplit(address).port or 0)) as connection:
            connection.sendall(b"GET / HTTP/9.9\r\n\r\n")  # and away
        assert get(address, "/")[0] == 404
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here to open the page in")
def test_a_browser_follows_it(tmp_path: Path) -> None:
    server, site = server_board(), site_board()
    with opened(tmp_path / "profile") as tab:
        with served(server.snapshot, "server") as address:
            tab.look(width=400)
            tab.open(address)
            assert "Round 3 of 10" in tab.text
            assert tab.run("document.title") == "Round 3 of 10 – ffgb server"
            tab.run("document.querySelectorAll('details').forEach(part => { part.open = true; })")
            tab.run("document.querySelector('.scroll').scrollLeft = 30; document.querySelector('.scroll').focus()")
            server.state("round 4 of 10")
            server.site("<script>alert(1)</script>", rows=77)
            server.measured({"round": 4, "train_loss": 0.2, "test_accuracy": 0.9876})
            tab.wait_for("document.querySelector('h1').textContent === 'Round 4 of 10'")
            assert "98.76" in tab.text
            assert "<script>alert(1)</script>" in tab.text
            assert tab.run("document.title") == "Round 4 of 10 – ffgb server"
            assert tab.run(
                "[...document.querySelectorAll('details')].every(part => part.open)"
            )  # as the reader left it
            assert tab.run("document.querySelector('.scroll').scrollLeft") == 30
            assert tab.run("document.activeElement.className") == "scroll"
            fits(tab)
            quiet(tab, address)
        tab.wait_for("!document.getElementById('gone').hidden")
        assert "This page no longer follows ffgb" in tab.text
        assert "Round 4 of 10" in tab.text
        asked = len(tab.requests)
        time.sleep(2.5)
        assert tab.run("document.getElementById('gone').hidden") is False
        assert len(tab.requests) == asked
        tab.complaints.clear()  # that the last request failed
        tab.requests.clear()
        with served(site.snapshot, "site") as address:
            tab.open(address)
            assert "3.6\N{NO-BREAK SPACE}kB" in tab.text
            site.left("report", "round 2", [], 5_000_000)
            site.connected(False)
            tab.wait_for("document.body.innerText.includes('This site is not connected')")
            assert "5.0\N{NO-BREAK SPACE}MB" in tab.text
            fits(tab)
            quiet(tab, address)


def fits(tab: Tab) -> None:
    """Nothing is wider than the window but what scrolls in a box of its own; and it is light or dark as is liked."""
    for width, dark in ((400, False), (400, True), (1200, True)):
        tab.look(width=width, dark=dark)
        assert tab.run("document.documentElement.scrollWidth") <= width
        paper = tab.run("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number)")
        assert max(paper) < 60 if dark else min(paper) > 200


def quiet(tab: Tab, address: str) -> None:
    """No errors, and no request to anywhere else."""
    assert tab.complaints == []
    assert {url.removeprefix(address) for url in tab.requests} == {"", "body.html"}
