"""Real servers and sites on loopback, over TLS with keys: the tutorial as written, and what happens when they die."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

import httpx
from flwr.proto.control_pb2 import StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

from ffgb.deployment.keys import CERTIFICATE
from ffgb.engines.node import trusting
from ffgb.federation.server import Server
from ffgb.protocol.codec import Message, encode
from ffgb.protocol.job import light
from ffgb.protocol.messages import what_leaves
from ffgb.runs.config import Config, load_data
from ffgb.runs.directory import Run
from ffgb.runs.holdings import make_holdings, make_parts
from ffgb.runs.learners import make_algorithm, make_learner
from ffgb.runs.model import Model
from ffgb.runs.resolve import make_loss
from ffgb.runs.training import train
from tests.conftest import ROOT
from tests.deployment.real import (
    LINEAR,
    NAMES,
    children,
    client,
    files,
    free_port,
    growth,
    invite,
    lines,
    listeners,
    run,
    server,
    started,
    started_anew,
    until,
    write_sites,
)
from tests.engines.faults import Faulty, begins, in_set_up

SERVED = {
    f"/v1/fleet/{name}" for name in (
        "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "pull-object",
        "push-object", "confirm-message-received",
    )
}  # fmt: skip


def tutorial() -> tuple[str, str, list[str]]:
    """Of docs/sites.md: the code that makes the files, the run's options, and the commands."""
    text = (ROOT / "docs" / "sites.md").read_text()
    code, options = (re.search(rf"```{kind}\n(.*?)```", text, re.DOTALL) for kind in ("python", "toml"))
    shell = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    assert code
    assert options
    return code[1], options[1], [line for block in shell for line in block.splitlines()]


def test_the_tutorial_as_written(tmp_path: Path) -> None:
    """Three sites over TLS: the model of one machine to the bit; one listener at the server, and none at sites."""
    code, options, commands = tutorial()
    (tmp_path / "run.toml").write_text(options)
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    port = str(free_port())  # as written, but for a port that is free here, and no pages

    def words(command: str) -> tuple[list[str], str | None, str | None]:
        """Arguments, and where standard input and output are."""
        parts = shlex.split(command)
        given, taken = (parts[parts.index(s) + 1] if s in parts else None for s in ("<", ">"))
        parts = parts[: min([parts.index(s) for s in ("<", ">") if s in parts], default=len(parts))]
        if parts[1] == "server":
            parts += ["--address", f"127.0.0.1:{port}"] if "invite" in parts else ["--port", port]
        return parts, given, taken

    long = [c for c in commands if "--out runs/together" in c or "--join" in c]
    first = commands.index(long[0])
    for command in commands[:first]:
        parts, _, out = words(command)
        done = run(tmp_path, *parts[1:])
        assert done.returncode == 0, done.stderr
        if out:
            (tmp_path / out).write_text(done.stdout)
    with ExitStack() as held:
        running = []
        for j, command in enumerate(long):
            parts, given, _ = words(command)
            begin = (
                started_anew if j < 2 else started
            )  # the server and a site as a user starts them, the others at once
            stdin = os.devnull if given is None else str(tmp_path / given)
            running.append(held.enter_context(begin(tmp_path, f"{j}.log", *parts[1:], "--no-page", stdin=stdin)))
        until(lambda: "round 1 of 10" in (tmp_path / "0.log").read_text(), 240, "no round was finished")
        assert listeners(running[0].pid) == [f"127.0.0.1:{port}"]
        assert [listeners(process.pid) for process in running[1:]] == [[], [], []]
        assert running[0].wait(timeout=240) == 0, (tmp_path / "0.log").read_text()
    assert "round 10 of 10" in (tmp_path / "0.log").read_text()
    joined = re.findall(r"site (\w+) has joined; the fingerprint of its key is (\S+)", (tmp_path / "0.log").read_text())
    assert sorted(name for name, _ in joined) == ["east", "north", "west"]
    told = "".join((tmp_path / f"{j}.log").read_text() for j in (1, 2, 3))
    assert all(f"the fingerprint of this site's key is {mark}" in told for _, mark in joined)
    assert Run.open(tmp_path / "runs" / "together").summary["participants"] == 3
    for command in commands[first + len(long) :]:
        parts, _, _ = words(command)
        done = (
            run(tmp_path, *parts[1:])
            if parts[0] == "ffgb"
            else subprocess.run(parts, cwd=tmp_path, capture_output=True, text=True, check=False)
        )
        assert done.returncode == 0, (command, done.stderr)


def test_who_is_killed_comes_back_within_seconds(tmp_path: Path) -> None:
    """Where all must answer: a killed site, then a killed server.  The model is that of one machine."""
    write_sites(tmp_path, 30)
    port = free_port()
    lines_of = invite(tmp_path, port)
    with ExitStack() as held:
        for name in ("east", "west"):
            held.enter_context(client(tmp_path, name, lines_of[name]))
        with server(tmp_path, port, log="first.log") as first:
            with client(tmp_path, "north", lines_of["north"]) as north:
                until(lambda: len(lines(tmp_path)) >= 3, 240, "no round was finished")
                os.kill(north.pid, signal.SIGKILL)
                north.wait()
            held.enter_context(
                client(tmp_path, "north", lines_of["north"], start=started_anew)
            )  # as it was, with the invitation it has used
            before = len(lines(tmp_path))
            back = until(lambda: len(lines(tmp_path)) > before + 1, 120, "no round came after the site was killed")
            before = len(lines(tmp_path))
            assert before < 30, "the run was over before its server could be killed"
            # a round counts once state.json names it; its line of metrics.jsonl is written a moment before
            counted = json.loads((tmp_path / "run" / "checkpoint" / "state.json").read_text())["t"]
            acknowledged = "".join((tmp_path / "run" / "metrics.jsonl").read_text().splitlines(keepends=True)[:counted])
            os.kill(first.pid, signal.SIGKILL)
        with server(tmp_path, port, log="second.log", start=started_anew) as second:
            again = until(lambda: "round " in (tmp_path / "second.log").read_text(), 120, "the server did not go on")
            assert second.wait(timeout=240) == 0, (tmp_path / "second.log").read_text()
    limit = 5.0 * max(1.0, os.getloadavg()[0])  # beside other work Python alone takes seconds to start
    assert back <= limit, f"the killed site was back after {back:.1f} s"
    assert again <= limit, f"the killed server had its sites back after {again:.1f} s"
    assert [line["participants"] for line in lines(tmp_path)] == [3] * 30
    assert counted >= 3
    assert (tmp_path / "run" / "metrics.jsonl").read_text().startswith(acknowledged)  # no round that counts is lost
    config = Config(data=files(tmp_path), target="digit", rounds=30, **LINEAR)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == train(config, workers=0).model.to_bytes()


def replayed(folder: Path, config: Config) -> dict[str, Any]:
    """The model of one machine where those are absent who were absent in a run, question by question."""
    rounds, asked = lines(folder), list[bytes]()

    def absent(question: Message, i: int, answer: bytes) -> bytes | None:
        missing: list[str] = []
        if in_set_up(question):
            data = encode(question)
            asked.extend([] if data in asked else [data])
            name = f"{asked.index(data) + 1} {what_leaves(question).removeprefix('question ')}"
            missing = rounds[0].get("setup_absent", {}).get(name, [])
        elif begins(question):
            missing = rounds[question.round].get("absent", [])
        return None if i < len(NAMES) and NAMES[i] in missing else answer

    dataset = load_data(config)
    config = config.resolved(dataset)
    holdings, settings = make_holdings(config, dataset, make_parts(config, dataset))
    local = Server(Faulty(holdings, absent), **settings, minimum=2, names=NAMES)
    state = local.start(make_algorithm(config), make_learner(config, dataset), make_loss(config, dataset))
    for after, _ in local.rounds(state, config.exchanges):
        state = after
    return light(state.result)


def steps_in(seconds: float, paths: tuple[str, ...]) -> int:
    """How many steps a client trains in so many seconds, on this machine as busy as it is."""
    config = Config(data=paths, target="digit", rounds=1, learner="mlp", oracle_steps=100)
    began = time.monotonic()
    train(config, workers=0)
    return max(20, int(100 * 3 * seconds / (time.monotonic() - began)))


def test_a_site_that_dies_again_and_again(tmp_path: Path) -> None:
    """Set-up included: the run ends, and its model is that of those who took part.

    FFGB_CHURN says for how many seconds the site is killed: with 120, every ten seconds for two minutes, in a job of
    forty rounds.
    """
    seconds = float(os.environ.get("FFGB_CHURN", "4"))
    rounds = 40 if seconds > 10 else 20
    write_sites(tmp_path, rounds)
    settings: dict[str, Any] = {"learner": "mlp", "oracle_steps": steps_in(seconds / 120, files(tmp_path))}
    (tmp_path / "run.toml").write_text(
        f'target = "digit"\nsecure = "off"\nlearner = "mlp"\noracle_steps = {settings["oracle_steps"]}\n'
        f"rounds = {rounds}\n"
    )
    port = free_port()
    lines_of = invite(tmp_path, port)
    kills, deadline = 0, max(3.0, seconds / 10)

    def away() -> int:
        return sum("north" in line.get("absent", []) for line in lines(tmp_path))

    with ExitStack() as held:
        for name in ("east", "west"):
            held.enter_context(client(tmp_path, name, lines_of[name]))
        process = held.enter_context(server(tmp_path, port, "--minimum", 2, "--deadline", deadline))
        last = math.inf
        while (kills < 2 or time.monotonic() < last) and process.poll() is None:
            with client(tmp_path, "north", lines_of["north"]) as north:
                if kills == 0:  # in the set-up
                    until(lambda: "training with" in (tmp_path / "server.log").read_text(), 240, "no training")
                    last = time.monotonic() + seconds
                elif kills == 1:
                    until(lambda: len(lines(tmp_path)) >= 2, 240, "no round")
                else:
                    time.sleep(max(2.0, seconds / 12))
                os.kill(north.pid, signal.SIGKILL)
                kills += 1
            if kills == 2:  # once it stays away for longer than others wait
                until(away, 240, "no round without it")
        held.enter_context(client(tmp_path, "north", lines_of["north"]))
        assert process.wait(timeout=60 + 5 * seconds) == 0, (tmp_path / "server.log").read_text()
    print(f"killed {kills} times; away in {away()} of {len(lines(tmp_path))} rounds, and in the set-up in "
          f"{len(lines(tmp_path)[0].get('setup_absent', {}))} questions")  # fmt: skip
    assert kills >= max(2, seconds / 15)
    assert len(lines(tmp_path)) == rounds
    assert away()
    config = Config(data=files(tmp_path), target="digit", rounds=rounds, **settings)
    there, here = light(Model.load(tmp_path / "run").f), replayed(tmp_path, config)
    assert there.keys() == here.keys()
    for name, array in here.items():
        np.testing.assert_array_equal(there[name], array)


def plays_the_outsider(folder: Path, pid: int, port: int) -> float:
    """Someone with the server's address and Flower's own calls, without a key: by how much its memory grew, in MB.

    Among these calls is the one by which a stock SuperLink runs a bundle of the caller's own.
    """
    bundle, mark = io.BytesIO(), folder / "executed"
    with zipfile.ZipFile(bundle, "w") as file:
        file.writestr("evil/server.py", f"from pathlib import Path\nPath({str(mark)!r}).touch()\n")
    content = bundle.getvalue()
    run_it = StartRunRequest(fab=Fab(hash_str=hashlib.sha256(content).hexdigest(), content=content))
    chunk, sent = bytes(2**20), 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(300):
            sent += 1
            yield chunk

    certificate = trusting((folder / "keys" / CERTIFICATE).read_bytes(), pinned=True)  # all who connect see it
    with growth(pid) as most:
        with httpx.Client(verify=certificate, timeout=20.0) as caller:
            for _, path in PROTOBUF_REQUEST_TYPES:
                body = run_it.SerializeToString() if path.endswith("/start-run") else b""
                found = caller.post(f"https://127.0.0.1:{port}{path}", content=body)
                assert found.status_code == (401 if path in SERVED else 404), path
        for path in ("/v1/fleet/push-object", "/v1/control/start-run", "/v1/ffgb/join"):
            for length in ({"content-length": str(300 * 2**20)}, {}):
                with suppress(httpx.HTTPError), httpx.Client(verify=certificate, timeout=20.0) as caller:
                    caller.post(f"https://127.0.0.1:{port}{path}", content=endless(), headers=length)
        assert sent
        grown = most()
    assert listeners(pid) == [f"127.0.0.1:{port}"]
    assert children(pid) == []
    assert not mark.exists()
    return grown


def test_an_outsider_gets_nothing_and_sigterm_ends_a_server_as_ctrl_c_does(tmp_path: Path) -> None:
    write_sites(tmp_path, 100)
    port = free_port()
    lines_of = invite(tmp_path, port)
    with ExitStack() as held:
        with server(tmp_path, port) as process:
            until(lambda: "listening on" in (tmp_path / "server.log").read_text(), 60, "nothing listens")
            grown = plays_the_outsider(tmp_path, process.pid, port)
            print(f"bodies of 300 MB moved the server's memory by {grown:.1f} MB")
            assert grown < 20.0
            clients = [held.enter_context(client(tmp_path, name, lines_of[name])) for name in NAMES]
            until(lambda: len(lines(tmp_path)) >= 2, 240, "no round was finished")
            assert [listeners(each.pid) + children(each.pid) for each in clients] == [[], [], []]
            process.send_signal(signal.SIGTERM)
            code = process.wait(timeout=10)
        assert code == 130, (tmp_path / "server.log").read_text()
        kept = len(lines(tmp_path))
        assert 2 <= kept < 100
        clients[0].send_signal(signal.SIGTERM)
        assert clients[0].wait(timeout=10) == 0
        assert "this site has left" in (tmp_path / "east.log").read_text()
    assert "Traceback" not in (tmp_path / "server.log").read_text()


def test_consent_is_asked_for_once_and_kept(tmp_path: Path) -> None:
    """In a terminal, a question; the answer is remembered for this server and what is asked."""
    import pty

    write_sites(tmp_path, 3)
    base = ["client", "--server", "127.0.0.1:1", "--data", "east.csv", "--insecure", "--no-page"]
    held = ExitStack()

    def asked(*more: str, answer: bytes, early: bytes = b"") -> tuple[bool, Any, Path]:
        """Whether it asks; the process, then answered, and its output."""
        log, (ours, theirs) = tmp_path / "asked.log", pty.openpty()
        log.unlink(missing_ok=True)
        process = held.enter_context(started(tmp_path, log.name, *base, *more, stdin=os.ttyname(theirs)))
        os.write(ours, early)
        phrases = ("Send this, in up to", "cannot reach the server")
        until(lambda: any(w in log.read_text() for w in phrases) or process.poll() is not None, 60, "nothing was said")
        question = phrases[0] in log.read_text()
        if question:
            os.write(ours, answer)
        os.close(theirs)
        return question, process, log

    with held:
        # what was typed before the question is no answer to it
        question, process, log = asked("--config", "run.toml", answer=b"n\n", early=b"y\n")
        assert question
        assert process.wait(timeout=60) == 2
        assert "nothing was sent" in log.read_text()
        for expected in (True, False):
            question, process, log = asked("--config", "run.toml", answer=b"y\n")
            assert question == expected
            until(lambda: "cannot reach the server" in log.read_text(), 60, log.read_text())  # noqa: B023
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=60) == 0
        (tmp_path / "run.toml").write_text('target = "digit"\nlearner = "mlp"\noracle_steps = 2\n')
        question, process, _ = asked("--config", "run.toml", answer=b"n\n")
        assert question  # for it is asked for something else
        assert process.wait(timeout=60) == 2
