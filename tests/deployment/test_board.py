"""Boards count right while many threads write, stay small, and keep no text that is long or could do harm."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from ffgb.deployment import board as board_file
from ffgb.deployment import view
from ffgb.deployment.board import ARRAYS, ENTRIES, EVENTS, OTHERS, SITES, ServerBoard, SiteBoard
from ffgb.protocol.codec import LETTERS
from ffgb.report.past import POINTS


def texts(board: ServerBoard | SiteBoard) -> list[str]:
    return [event["text"] for event in board.snapshot()["events"]]


def size(board: ServerBoard | SiteBoard) -> int:
    return len(json.dumps(board.snapshot(), allow_nan=False))


def test_a_server_board_says_what_goes_on() -> None:
    began = time.time()
    board = ServerBoard("runs/a", 3)
    assert board.snapshot()["state"] == "starting"
    board.state("waiting for sites: 1 of 3 are here")
    board.site("north", "SHA256:abc")
    board.site("north", rows=120)  # the fingerprint stays
    board.heard("south")
    board.asked("increment", 2, 1000, 500)
    board.asked("increment", 1, 500, 250)
    board.measured({"round": 1, "train_loss": 0.5, "test_loss": math.nan, "participants": 2, "memory": {"a": 1}})
    board.refused("an answer came too late")
    board.refused("an answer came too late")
    now = json.loads(json.dumps(board.snapshot(), allow_nan=False))
    assert (now["out"], now["clients"], now["state"]) == ("runs/a", 3, "waiting for sites: 1 of 3 are here")
    assert began <= now["began"] <= now["since"] <= now["time"] <= time.time()
    north, south = now["sites"]
    assert north == {"name": "north", "fingerprint": "SHA256:abc", "rows": 120, "heard": None, "away": None}
    assert began <= south["heard"] <= now["time"]
    (asked,) = now["asked"]
    assert [asked[k] for k in ("question", "times", "sites", "bytes_down", "bytes_up")] == [
        "increment",
        2,
        1,
        1500,
        750,
    ]
    assert now["rounds"] == 1
    (line,) = now["lines"]
    assert (line["round"], line["train_loss"], line["test_loss"], line["participants"]) == (1.0, 0.5, None, 2.0)
    assert "memory" not in line
    (refusal,) = now["refusals"]
    assert (refusal["text"], refusal["times"], now["refused"]) == ("an answer came too late", 2, 2)


def test_sites_go_away_and_come_back() -> None:
    board = ServerBoard("runs/a", 2)
    board.away("north", "no answer")
    board.away("north", "no answer in 120 s")
    board.heard("north")  # it may be heard, and not be back in the training yet
    assert board.snapshot()["sites"][0]["away"] == "no answer in 120 s"
    board.back("north")
    board.back("north")
    assert board.snapshot()["sites"][0]["away"] is None
    assert texts(board) == ["north is here for the first time", "north is away: no answer", "north is back"]


def test_a_state_that_stays_is_one_event() -> None:
    board = SiteBoard("north", "server:1")
    for text in ("round 1", "round 1", "round 2"):
        board.state(text)
    assert texts(board) == ["round 1", "round 2"]
    since = board.snapshot()["since"]
    board.state("round 2")
    assert board.snapshot()["since"] == since


def test_a_site_board_says_what_left() -> None:
    board = SiteBoard("north", "server:1")
    for connected in (False, True, True, False):
        board.connected(connected)
    assert texts(board) == ["connected", "not connected any more"]
    board.asked("increment", "round 1", 70)
    board.asked("increment", "round 2", 30)
    board.left("increment", "round 1", [("weights", "float32", (4,))], 300)
    board.left("increment", "round 3", [("weights", "float32", (2,))], 100)
    board.left("increment", "round 2", [("weights", "float32", (3, 1))], 200)
    board.refused("question GramOf", "its owner has not agreed")
    now = json.loads(json.dumps(board.snapshot(), allow_nan=False))
    assert (now["name"], now["server"], now["connected"]) == ("north", "server:1", False)
    (asked,) = now["asked"]
    assert (asked["question"], asked["when"], asked["times"], asked["bytes"]) == ("increment", "round 2", 2, 100)
    (left,) = now["left"]
    assert left["arrays"] == [{"name": "weights", "dtype": "float32", "shape": [3, 1]}]
    assert (left["first_when"], left["last_when"]) == ("round 1", "round 2")
    assert [left[k] for k in ("times", "smallest", "largest", "bytes")] == [3, 100, 300, 600]
    (refusal,) = now["refusals"]
    assert (refusal["question"], refusal["why"]) == ("question GramOf", "its owner has not agreed")


def together(*works: Callable[[], Any], times: int = 50) -> None:
    """Do these at the same time, each again and again, in two threads."""
    failed: list[BaseException] = []
    ready = threading.Barrier(2 * len(works))

    def repeat(work: Callable[[], Any]) -> None:
        try:
            ready.wait()
            for _ in range(times):
                work()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=repeat, args=(work,)) for work in works for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


class SlowClock:
    """Looking at it takes so long that other threads have their turn in the middle of what is done."""

    @staticmethod
    def time() -> float:
        time.sleep(1e-4)
        return time.time()


def test_threads_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board_file, "time", SlowClock)
    numbers = iter(range(10**6))
    board = ServerBoard("runs/a", 3)
    together(
        lambda: board.asked("report", 3, 2, 1),
        lambda: board.refused("too late"),
        lambda: board.measured({"round": 1, "train_loss": 0.5}),
        lambda: board.heard(f"site {next(numbers) % 50}"),
        lambda: json.dumps(board.snapshot(), allow_nan=False),
    )
    now = board.snapshot()
    assert (now["asked"][0]["times"], now["asked"][0]["bytes_down"], now["asked"][0]["bytes_up"]) == (100, 200, 100)
    assert (now["refused"], now["refusals"][0]["times"], now["rounds"]) == (100, 100, 100)
    assert len(now["sites"]) == 50
    site = SiteBoard("north", "server:1")
    together(
        lambda: site.left("report", "round 1", [], 3),
        lambda: site.asked("report", "round 1", 2),
        lambda: site.refused("setup", "no"),
        lambda: json.dumps(site.snapshot(), allow_nan=False),
    )
    now = site.snapshot()
    assert (now["left"][0]["times"], now["left"][0]["bytes"], now["asked"][0]["bytes"]) == (100, 300, 200)
    assert (now["refused"], now["refusals"][0]["times"]) == (100, 100)


def test_hearing_a_site_waits_for_nobody() -> None:
    board = ServerBoard("runs/a", 1)
    board.heard("north")
    before = board.snapshot()["sites"][0]["heard"]
    with board._lock:
        thread = threading.Thread(target=board.heard, args=("north",), daemon=True)
        thread.start()
        thread.join(5.0)
        assert not thread.is_alive()
    assert board.snapshot()["sites"][0]["heard"] > before


def test_boards_stay_small() -> None:
    server, site, long = ServerBoard("runs/a", 3), SiteBoard("north", "server:1"), "x" * 10**5
    sizes = []
    for start in (0, 4000):
        for i in range(start, start + 4000):
            server.state(f"state {i}")
            server.heard(f"site {i}")
            server.site(f"site {i}", f"{i}{long}")
            server.away(f"site {i}", f"{i}{long}")
            server.asked(f"question {i}", 3, 1, 1)
            server.refused(f"text {i}")
            server.measured({"round": i, "train_loss": 1.0 / (i + 1)})
            site.state(f"state {i}")
            site.asked(f"question {i}", f"round {i}", 1)
            site.left(f"question {i}", f"round {i}", [(f"array {j}", "float32", (2, 3)) for j in range(ARRAYS + 7)], 1)
            site.refused(f"question {i}", long)
        sizes.append((size(server), size(site)))
    assert sizes[1][0] < 1.3 * sizes[0][0] < 2e6
    assert sizes[1][1] < 1.3 * sizes[0][1] < 2e6
    now = server.snapshot()
    assert (len(now["events"]), len(now["refusals"]), now["refused"]) == (EVENTS, ENTRIES, 8000)
    assert now["refusals"][0]["text"] == "text 7999"  # the newest first
    assert (len(now["sites"]), len(now["asked"])) == (SITES + 1, ENTRIES + 1)
    assert len(now["sites"][0]["fingerprint"]) == len(now["sites"][0]["away"]) == LETTERS
    assert (now["asked"][-1]["question"], now["asked"][-1]["times"]) == (OTHERS, 8000 - ENTRIES)
    now = site.snapshot()
    assert (len(now["left"]), len(now["asked"])) == (ENTRIES + 1, ENTRIES + 1)
    assert sum(left["bytes"] for left in now["left"]) == 8000  # the total is of all
    assert len(now["left"][0]["arrays"]) == ARRAYS
    assert now["left"][0]["more_arrays"] == 7


def test_many_rounds_are_thinned_evenly() -> None:
    board = ServerBoard("runs/a", 3)
    assert board.snapshot()["lines"] == []
    for t in range(1, 10_001):
        board.measured({"round": t})
        if t in (1, 2, 2 * POINTS):
            assert [line["round"] for line in board.snapshot()["lines"]] == list(range(1, t + 1))
    rounds = [line["round"] for line in board.snapshot()["lines"]]
    assert board.snapshot()["rounds"] == 10_000
    assert POINTS <= len(rounds) <= 2 * POINTS + 1
    assert (rounds[0], rounds[-1]) == (1.0, 10_000.0)
    gaps = {b - a for a, b in pairwise(rounds[:-1])}  # the last is always there
    assert len(gaps) == 1


def test_what_a_terminal_would_obey_is_not_kept() -> None:
    board = ServerBoard("runs/a", 3)
    board.heard("\x1b[2Jsite\x00")
    board.heard("\x1b[2Jsite\x00")
    board.refused("one\ntwo\u202e")
    (name,) = (site["name"] for site in board.snapshot()["sites"])
    assert name == "?[2Jsite?"
    assert board.snapshot()["refusals"][0]["text"] == "one two?"
    assert all(text.isprintable() for text in texts(board))


def test_news_is_no_refusal() -> None:
    board = ServerBoard("run", 3)
    board.event("north: its owner reads the job")
    now = board.snapshot()
    assert now["refusals"] == []
    assert now["events"][-1]["text"] == "north: its owner reads the job"
    shown = view.body("server", now)
    assert "Nothing was refused." in shown
    assert "its owner reads the job" in shown.partition("What happened")[2]


def test_pages_say_in_words_what_left_and_what_was_asked() -> None:
    site, server = SiteBoard("north", "h:1"), ServerBoard("run", 3)
    site.left("question GramOf", "set up", [("gram", "float64", (6,))], 1234)
    site.asked("question GramOf", "set up", 12)
    server.asked("question GramOf", 3, 10, 20)
    words = "sums of products of two features <code>question GramOf</code>"
    assert view.body("site", site.snapshot()).count(words) == 2
    assert view.body("server", server.snapshot()).count(words) == 1
