"""An exchange between a server and its sites: ours beside stock Flower, real processes on this machine, in one run.

Stock: `flower-superlink`, `flower-supernode` and `flwr run`, without TLS or keys, with an app that answers as many
bytes as it was sent.  Ours: the Fleet protocol served by one process, over TLS with signed requests, and nodes that
answer the same.  Then: thirty nodes of ours, and what server and nodes use of a core when there is nothing to do.

    python benchmarks/flower_round.py [--exchanges 6] [--skip-stock]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ffgb.deployment import keys
from ffgb.engines.fleet import Fleet
from ffgb.engines.flower import Counted
from ffgb.engines.node import KIND, Node, pack, trusting, unpack
from ffgb.engines.private import ENVIRONMENT, flwr

SIZE = 10_000
APP = {
    "pyproject.toml": """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "echo"
version = "1.0.0"
description = "answers as many bytes"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41.0"]

[tool.flwr.app]
publisher = "ffgb"
fab-format-version = 1
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "echo.server:app"
clientapp = "echo.client:app"

[tool.flwr.app.config]
job = ""
""",
    "LICENSE": "Apache-2.0\n",
    "echo/__init__.py": "",
    "echo/client.py": """import os

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train("ffgb")
def answer(message, context):
    data = os.urandom(len(message.content["said"]["data"]))
    return Message(RecordDict({"said": ConfigRecord({"data": data})}), reply_to=message)
""",
    "echo/server.py": """import json
import os
import time
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    job = json.loads(context.run_config["job"])
    while len(nodes := list(grid.get_node_ids())) < job["nodes"]:
        time.sleep(0.05)
    seconds = []
    for _ in range(job["exchanges"]):
        began = time.perf_counter()
        data = RecordDict({"said": ConfigRecord({"data": os.urandom(job["size"])})})
        waiting = set(grid.push_messages([Message(data, node, "train.ffgb", ttl=120.0) for node in nodes]))
        while waiting:
            waiting -= {m.metadata.reply_to_message_id for m in grid.pull_messages(list(waiting))}
            time.sleep(0.05 if waiting else 0.0)
        seconds.append(time.perf_counter() - began)
    Path(job["out"]).write_text(json.dumps(seconds))
""",
}


def free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


@contextlib.contextmanager
def started(command: Sequence[object], home: Path, log: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program under way; it, and what it has started, is gone afterwards."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, **ENVIRONMENT, "FLWR_HOME": str(home), "PATH": path}
    with (home / log).open("wb") as file:
        process = subprocess.Popen(
            [str(c) for c in command], env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def program(name: str) -> str:
    return shutil.which(name, path=str(Path(sys.executable).parent)) or name


def stock(exchanges: int, nodes: int) -> list[float]:
    """Seconds of each exchange with stock Flower."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as held:
        home, port = Path(folder), free_port()
        link = [program("flower-superlink"), "--host", "127.0.0.1", "--port", port, "--insecure"]
        held.enter_context(started(link, home, "superlink.log"))
        for name, text in APP.items():
            (home / "app" / name).parent.mkdir(parents=True, exist_ok=True)
            (home / "app" / name).write_text(text)
        address = f"127.0.0.1:{port}"
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{address}"\ninsecure = true\n'
        )
        until = time.monotonic() + 60.0
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=0.5):
                break
            time.sleep(0.1)
        for k in range(nodes):
            node = [program("flower-supernode"), "--insecure", "--superlink", address, "--host", "127.0.0.1"]
            held.enter_context(started([*node, "--port", free_port()], home, f"node{k}.log"))
        job = {"nodes": nodes, "exchanges": exchanges, "size": SIZE, "out": str(home / "seconds.json")}
        (home / "job.toml").write_text(f"job = {json.dumps(json.dumps(job))}\n")
        run = [program("flwr"), "run", home / "app", "here", "--stream", "--run-config", home / "job.toml"]
        process = held.enter_context(started(run, home, "run.log"))
        process.wait(timeout=120.0 + 30.0 * exchanges)
        seconds: list[float] = json.loads((home / "seconds.json").read_text())
        return seconds


@contextlib.contextmanager
def ours(nodes: int) -> Iterator[tuple[Counted, list[int], list[int]]]:
    """A server of ours in this process, with nodes in others: the grid, the nodes' numbers, and their pids."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as held:
        home, port = Path(folder), free_port()
        fleet = Fleet("127.0.0.1", port, keys.server_files(home / "keys", ["127.0.0.1"]))
        numbers, pids = [], []
        for k in range(nodes):
            key = keys.site_key(home / f"key{k}")
            numbers.append(fleet.admit(f"site{k}", keys.own_public(key)))
        fleet.expect(100_000_000)
        held.enter_context(fleet.listening())
        for k in range(nodes):
            node = [
                sys.executable,
                __file__,
                "--node",
                f"127.0.0.1:{port}",
                home / f"key{k}",
                home / "keys" / "server.pem",
            ]
            pids.append(held.enter_context(started(node, home, f"node{k}.log")).pid)
        grid = Counted(fleet.grid, fleet)
        while len(grid.nodes()) < nodes:
            grid.rest()
        yield grid, numbers, pids


def be_a_node(address: str, key: str, certificate: str) -> None:
    node = Node(address, keys.site_key(Path(key)), trusting(Path(certificate).read_bytes(), pinned=True))
    node.run(
        lambda data, said: ({"data": os.urandom(len(data["data"]))}, {}),
        threading.Event(),
        lambda text: None,
        lambda up: None,
    )


def exchange(grid: Counted, nodes: Sequence[int], size: int) -> float:
    """Seconds until all of these nodes have answered."""
    flower, began = flwr(), time.perf_counter()
    data = os.urandom(size)
    waiting = set(grid.push([flower.Message(pack({"data": data}, {}), node, KIND, ttl=120.0) for node in nodes]))
    while waiting:
        for asked, message in grid.pull(waiting):
            waiting.discard(asked)
            if message is None or message.has_error() or len(unpack(message.content)[0]["data"]) != size:
                raise SystemExit("a node did not answer")
        if waiting:
            grid.rest()
    return time.perf_counter() - began


def used(pid: int) -> float:
    """Seconds of the processor."""
    fields: list[Any] = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exchanges", type=int, default=6)
    parser.add_argument("--skip-stock", action="store_true")
    parser.add_argument("--node", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.node:
        be_a_node(*given.node)
        return
    flower = [] if given.skip_stock else stock(given.exchanges, 3)
    with ours(3) as (grid, nodes, pids):
        exchange(grid, nodes, SIZE)
        small = [exchange(grid, nodes, SIZE) for _ in range(5 * given.exchanges)]
        large = {size: [exchange(grid, nodes, size) for _ in range(3)] for size in (1_000_000, 30_000_000)}
        time.sleep(3.0)
        before = [used(os.getpid()), *(used(pid) for pid in pids)]
        time.sleep(30.0)
        idle = [(used(pid) - then) / 30.0 for pid, then in zip([os.getpid(), *pids], before, strict=True)]
    with ours(30) as (grid, nodes, _):
        exchange(grid, nodes, SIZE)
        many = [exchange(grid, nodes, SIZE) for _ in range(given.exchanges)]
    middle = statistics.median(small)
    print(f"ours, 3 nodes, 10 kB: {middle:.3f} s an exchange (median of {len(small)}, at most {max(small):.3f})")
    for size, seconds in large.items():
        print(f"ours, 3 nodes, {size:,} bytes: {statistics.median(seconds):.2f} s")
    print(f"ours, 30 nodes, 10 kB: {statistics.median(many):.2f} s (at most {max(many):.2f})")
    print(f"idle, of a core: server {idle[0]:.2%}, a node {statistics.fmean(idle[1:]):.2%}")
    if flower:
        theirs = statistics.median(flower)
        print(f"stock Flower, 3 nodes, 10 kB: {theirs:.2f} s (median of {len(flower)})")
        print(f"ratio {theirs / middle:.0f}")


if __name__ == "__main__":
    main()
