"""Real processes: a SuperLink and three SuperNodes on loopback, with TLS and keys; and what the commands refuse."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from sklearn.datasets import load_digits

from ffgb.config import Config, load_data, make_algorithm, make_learner, make_loss
from ffgb.deploy import make_keys, name_in
from ffgb.errors import FFGBError
from ffgb.model import Model
from ffgb.runs import Run
from ffgb.server import Server
from ffgb.training import make_holdings, make_parts
from ffgb.wire import Message
from tests.conftest import ROOT
from tests.engines.faults import Faulty

FFGB = [sys.executable, "-m", "ffgb"]
NAMES = ("east", "north", "west")
CONFIG = 'learner = "linear"\ngeometry = "local"\nrounds = 3\nschedule = "constant"\n'


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    """Digits, dealt out to three files."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    for k, name in enumerate(NAMES):
        rows = order[k::3]
        table = np.column_stack([digits.data[rows], digits.target[rows]]).astype(int)
        header = ",".join([*(f"p{i}" for i in range(64)), "digit"])
        np.savetxt(tmp_path / f"{name}.csv", table, "%d", ",", header=header, comments="")
    (tmp_path / "run.toml").write_text(CONFIG)
    return tmp_path


def listens(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


@contextmanager
def started(folder: Path, log: str, *arguments: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A command under way; it and all that it started are gone afterwards."""
    with (folder / log).open("wb") as file:
        command = [*FFGB, *map(str, arguments)]
        process = subprocess.Popen(command, cwd=folder, stdout=file, stderr=file, stdin=subprocess.DEVNULL)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def client(folder: Path, port: int, name: str, *more: Any, log: str = "") -> Any:
    security = ("--tls", "keys", "--key", f"keys/sites/{name}")
    arguments = ("--server", f"127.0.0.1:{port}", "--data", f"{name}.csv", "--target", "digit", "--config", "run.toml")
    return started(folder, log or f"{name}.log", "client", *arguments, *(more or security), "--yes")


def until(done: Callable[[], bool], seconds: float, what: str) -> None:
    limit = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < limit, what
        time.sleep(0.1)


def under(process: subprocess.Popen[bytes], program: str, tries: int = 300) -> int:
    """The process of this name that was started, by whomever, under another; it may be about to be started again."""
    found = subprocess.run(["ps", "-wweo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    table = [line.split(None, 2) for line in found.splitlines()]
    below, new = {process.pid}, {process.pid}
    while new:
        new = {int(pid) for pid, parent, _ in table if int(parent) in below} - below
        below |= new
    # the guard has the program's name among its arguments, too
    pids = [int(p) for p, _, a in table if int(p) in below and program in a and "guard.py" not in a]
    if not pids and tries:
        time.sleep(0.2)
        return under(process, program, tries - 1)
    return min(pids)  # what it forks has its name


def tutorial() -> tuple[str, str, list[str]]:
    """Of docs/sites.md: the code that makes the files, the run's options, and the commands."""
    text = (ROOT / "docs" / "sites.md").read_text()
    code, options = (re.search(rf"```{kind}\n(.*?)```", text, re.DOTALL) for kind in ("python", "toml"))
    shell = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    assert code
    assert options
    return code[1], options[1], [line for block in shell for line in block.splitlines()]


def test_the_tutorial_as_written_and_a_key_that_no_one_knows(tmp_path: Path) -> None:
    """Three sites over TLS: the model of one machine to the bit, and of Flower's simulation."""
    pytest.importorskip("ray")
    code, options, commands = tutorial()
    (tmp_path / "run.toml").write_text(options)
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    make_keys(tmp_path / "others", "127.0.0.1", ["west"])
    # as written, but for a port that is free here, and sites with a state of their own
    port = str(free_port())
    words = [line.replace("9443", port).split() for line in commands]
    words = [[*w, "--port", port] if w[1] == "server" else w for w in words]
    long = [w for w in words if w[1] == "server" or (w[1] == "client" and "--dry-run" not in w)]
    first = words.index(long[0])
    for command in words[:first]:
        done = here(command, tmp_path)
        assert done.returncode == 0, done.stderr
    with ExitStack() as held:
        server = held.enter_context(started(tmp_path, "server.log", *long[0][1:], "--deadline", 120))
        impostor = [w.replace("keys/sites", "others/sites") for w in long[3]]
        held.enter_context(started(tmp_path, "impostor.log", *impostor[1:]))
        for j, command in enumerate(long[1:]):
            held.enter_context(started(tmp_path, f"client{j}.log", *command[1:]))
        code = server.wait(timeout=600)  # two minutes when little else runs, over four on a busy machine
    text = (tmp_path / "server.log").read_text()
    assert code == 0, text
    assert "round 3 of 3" in text
    assert "the server does not know its key" in (tmp_path / "impostor.log").read_text()  # it never came in
    assert Run.open(tmp_path / "runs" / "together").summary["participants"] == 3
    left = subprocess.run(["pgrep", "-f", f"127.0.0.1:{port}"], capture_output=True, text=True, check=False)
    assert left.stdout == ""
    for command in words[first + len(long) :]:
        done = here(command, tmp_path)
        assert done.returncode == 0, (command, done.stderr)


def here(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    if command[0] == "ffgb":
        command = [*FFGB, *command[1:]]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)


def test_a_node_is_killed_and_the_run_is_that_of_those_who_took_part(sites: Path) -> None:
    """kill -9 of a SuperNode in the middle of a round, with real processes; the server goes on, and it comes back."""
    (sites / "run.toml").write_text(CONFIG.replace("rounds = 3", "rounds = 6"))
    port, run = free_port(), sites / "run"
    common = ("--config", "run.toml", "--target", "digit", "--insecure", "--port", port, "--out", "run")
    options = ("--clients", 3, "--minimum", 2, "--deadline", 20, *common)

    def lines() -> list[dict[str, Any]]:
        file = run / "metrics.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    with (
        client(sites, port, "east", "--insecure"),
        client(sites, port, "north", "--insecure") as north,
        client(sites, port, "west", "--insecure"),
        started(sites, "first.log", "server", *options) as server,
    ):
        until(lambda: len(lines()) >= 1, 300, "no round was finished")
        os.kill(under(north, "flower-supernode"), signal.SIGKILL)
        assert server.wait(timeout=600) == 0, (sites / "first.log").read_text()
    assert "the node ended" in (sites / "north.log").read_text()
    present = [line["participants"] for line in lines()]
    assert len(present) == 6
    assert 2 in present

    files = tuple(str(sites / f"{name}.csv") for name in NAMES)
    config = Config(data=files, target="digit", learner="linear", geometry="local", rounds=6, schedule="constant")
    dataset = load_data(config)
    config = config.resolved(dataset)
    holdings, settings = make_holdings(config, dataset, make_parts(config, dataset))

    def absent(question: Message, i: int, answer: bytes) -> bytes | None:
        return None if question.kind == "train" and i == 1 and present[question.round] == 2 else answer

    loss = make_loss(config, dataset)
    server_here = Server(Faulty(holdings, absent), **settings, minimum=2)
    state = server_here.start(make_algorithm(config), make_learner(config, dataset), loss)
    for after, _ in server_here.rounds(state, 6):
        state = after
    (here,), (there,) = state.result.tensors().values(), Model.load(run).f.tensors().values()
    np.testing.assert_array_equal(here.astype(np.float32), there)  # as models are stored


def test_a_server_is_reached_by_a_name_in_its_certificate(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys", "ffgb.example.org", ["a"])
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        assert name_in(tmp_path / "keys" / "server.pem", "127.0.0.1", port) == "127.0.0.1"
    with pytest.raises(
        FFGBError, match=r"server.pem is for 127.0.0.1, ffgb.example.org, localhost, and this server is"
    ):
        name_in(tmp_path / "keys" / "server.pem", "127.0.0.1", port)
    (tmp_path / "x.pem").write_text("no")
    with pytest.raises(FFGBError, match=r"x.pem is no certificate"):
        name_in(tmp_path / "x.pem", "127.0.0.1", port)


def test_consent_is_asked_for_once_and_kept(sites: Path) -> None:
    """In a terminal, a question; the answer is remembered for this file, this server, and what is asked."""
    import pty

    state = {**os.environ, "XDG_STATE_HOME": str(sites / "state")}
    base = [*FFGB, "client", "--server", "127.0.0.1:1", "--data", "east.csv", "--target", "digit", "--insecure"]

    def asked(*more: str, answer: bytes) -> tuple[bool, subprocess.Popen[bytes], Path]:
        """Whether it asks; the process, then answered, and its output."""
        log, (ours, theirs) = sites / "asked.log", pty.openpty()
        with log.open("wb") as file:
            process = subprocess.Popen([*base, *more], cwd=sites, env=state, stdin=theirs, stdout=file, stderr=file)
        words = ("Send this, in every training", "connecting to")
        until(lambda: any(w in log.read_text() for w in words) or process.poll() is not None, 60, "nothing was said")
        question = words[0] in log.read_text()
        if question:
            os.write(ours, answer)
        os.close(theirs)
        return question, process, log

    question, process, log = asked(answer=b"n\n")
    assert question
    assert process.wait(timeout=60) == 2
    assert "nothing was sent" in log.read_text()
    for expected in (True, False):
        question, process, log = asked(answer=b"y\n")
        assert question == expected
        until(lambda: "connecting to" in log.read_text(), 60, log.read_text())  # noqa: B023
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
    (sites / "run.toml").write_text('learner = "mlp"\n')
    question, process, _ = asked("--config", "run.toml", answer=b"n\n")
    assert question  # for it is asked for something else
    assert process.wait(timeout=60) == 2


def test_keys_are_made_once_and_private(tmp_path: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    written = make_keys(tmp_path / "keys", "ffgb.example.org", ["a", "b-1"])
    assert {str(path.relative_to(tmp_path / "keys")) for path in written} == {
        "ca.crt", "server.pem", "server.key", "sites/a", "sites/a.pub", "sites/b-1", "sites/b-1.pub",
    }  # fmt: skip
    for secret in ("server.key", "sites/a"):
        assert (tmp_path / "keys" / secret).stat().st_mode & 0o077 == 0
    authority, server = (
        x509.load_pem_x509_certificate((tmp_path / "keys" / name).read_bytes()) for name in ("ca.crt", "server.pem")
    )
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "ffgb.example.org" in names.get_values_for_type(x509.DNSName)
    load_ssh_private_key((tmp_path / "keys" / "sites" / "a").read_bytes(), None)
    with pytest.raises(FFGBError, match="is not empty"):
        make_keys(tmp_path / "keys", "x", ["a"])
    for bad in ([], ["a", "a"], ["../a"], [""]):
        with pytest.raises(FFGBError, match="a name of its own"):
            make_keys(tmp_path / "more", "x", bad)
    assert not (tmp_path / "more").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("server", "--clients", 3), "give --tls DIR"),
        (("server", "--clients", 3, "--insecure", "--tls", "keys"), "give --tls DIR"),
        (("server", "--clients", 3, "--tls", "nowhere"), "ffgb tls init"),
        (("server", "--clients", 3, "--insecure", "--minimum", 4), "of 3 sites 4 cannot be the fewest"),
        (("client", "--server", "x", "--data", "east.csv", "--insecure"), "--server is HOST:PORT"),
        (("server", "--clients", 3, "--insecure", "--config", "none.toml"), "cannot be read as TOML"),
        (("server", "--clients", 3, "--insecure", "--config", "odd.toml"), "'colour', which is no option"),
        (("client", "--server", "x:1", "--data", "east.csv"), "give --tls DIR"),
        (("client", "--server", "x:1", "--data", "east.csv", "--tls", "."), "needs its own --key"),
        (("client", "--server", "x:1", "--data", "east.csv", "--tls", ".", "--key", "k"), "k is not there"),
        (("client", "--server", "x:1", "--data", "far.csv", "--insecure"), "far.csv"),
        (("client", "--server", "x:1", "--data", "east.csv", "--target", "digit", "--insecure"), "nothing was sent"),
    ],
)
def test_mistakes_are_told_in_a_sentence(sites: Path, arguments: tuple[Any, ...], words: str) -> None:
    (sites / "odd.toml").write_text("colour = 3\n")
    done = subprocess.run(
        [*FFGB, *map(str, arguments)], cwd=sites, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
        env={**os.environ, "XDG_STATE_HOME": str(sites / "state")},
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not (sites / "runs").exists()


def test_a_dry_run_shows_forms_and_never_values(sites: Path) -> None:
    arguments = ("client", "--server", "x:1", "--data", "east.csv", "--target", "digit", "--dry-run")
    done = subprocess.run([*FFGB, *arguments], cwd=sites, capture_output=True, text=True, check=True)
    assert "gram float32[" in " ".join(done.stdout.split())
    assert "increment" in done.stdout
    refused = subprocess.run(
        [*FFGB, *arguments, "--config", "run.toml"], cwd=sites, capture_output=True, text=True, check=True
    )
    assert "gram" not in refused.stdout
    kept = subprocess.run(
        [*FFGB, *arguments, "--no-shared-geometry"], cwd=sites, capture_output=True, text=True, check=True
    )
    assert "gram float32[" not in " ".join(kept.stdout.split())
    assert "refused: --no-shared-geometry" in " ".join(kept.stdout.split())


def test_a_site_with_one_class_says_what_it_would_send(sites: Path) -> None:
    head, *rows = (sites / "east.csv").read_text().splitlines()
    (sites / "east.csv").write_text("\n".join([head, *(row for row in rows if row.endswith(",3"))]) + "\n")
    arguments = ("client", "--server", "x:1", "--data", "east.csv", "--target", "digit", "--dry-run")
    done = subprocess.run([*FFGB, *arguments], cwd=sites, capture_output=True, text=True, check=True)
    assert "increment" in done.stdout
