"""What a round between sites costs beyond Flower itself: real SuperLinks and SuperNodes on this machine, in turn.

Flower's floor is an app whose clients answer at once with nothing, asked as often and polled as often as ours.  Ours is
`ffgb server` and `ffgb client` on a closed family: two messages to each site in a round, one for its increment and one
for f^{t+1} and what it thinks of it.  Also: how long a node's app takes to import, beside Flower's own part of that.

    python benchmarks/flower_round.py [--rounds 6] [--repeats 2]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ffgb import deploy

SITES = ("east", "north", "west")
IDLE = {
    "ffgb_app/client.py": """from flwr.app import Message
from flwr.clientapp import ClientApp

from ffgb.engines.node import pack

app = ClientApp()


@app.train("ffgb")
def answer(message, context):
    return Message(pack({}, {}), reply_to=message)
""",
    "ffgb_app/server.py": """import json
import time
from pathlib import Path

from flwr.app import Message
from flwr.serverapp import ServerApp

from ffgb.engines.node import KIND, pack

app = ServerApp()


@app.main()
def main(grid, context):
    job = json.loads(context.run_config["job"])
    while len(nodes := list(grid.get_node_ids())) < job["clients"]:
        time.sleep(0.05)
    seconds = []
    for _ in range(job["messages"]):
        began = time.perf_counter()
        waiting = set(grid.push_messages([Message(pack({}, {}), node, KIND, ttl=60.0) for node in nodes]))
        while waiting:
            waiting -= {m.metadata.reply_to_message_id for m in grid.pull_messages(list(waiting))}
            time.sleep(0.05 if waiting else 0.0)
        seconds.append(time.perf_counter() - began)
    Path(job["out"]).write_text(json.dumps(seconds))
""",
}


def floor(messages: int) -> list[float]:
    """Seconds of each message to three idle sites, there and back."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as held:
        home = Path(folder)
        service = deploy.Service(len(SITES), len(SITES), "127.0.0.1", deploy.free_port(), None, 60.0, 60.0)
        held.enter_context(deploy.superlink(service, home))
        deploy.write_app(home / "app", {**deploy.APP, **IDLE})
        deploy.write_connection(service, home)
        for name in SITES:
            command = [deploy.program("flower-supernode"), "--insecure", "--superlink", f"127.0.0.1:{service.port}"]
            command += ["--host", "127.0.0.1", "--port", str(deploy.free_port())]
            held.enter_context(deploy.guarded(command, home, f"{name}.log"))
        out = home / "seconds.json"
        job = {"clients": len(SITES), "messages": messages, "out": str(out)}
        (home / "job.toml").write_text(f"job = {json.dumps(json.dumps(job))}\n")
        run = [deploy.program("flwr"), "run", str(home / "app"), "ffgb", "--stream", "--run-config"]
        process = held.enter_context(deploy.guarded([*run, str(home / "job.toml")], home, "run.log"))
        process.wait(timeout=60.0 + 30.0 * messages)
        seconds: list[float] = json.loads(out.read_text())
        return seconds


def ours(rounds: int) -> list[float]:
    """Seconds of each round with three real sites."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as held:
        home, port = Path(folder), deploy.free_port()
        write_sites(home)
        (home / "run.toml").write_text(
            f'target = "digit"\nlearner = "linear"\ngeometry = "local"\nschedule = "constant"\nrounds = {rounds}\n'
        )
        arguments = ["--clients", "3", "--config", "run.toml", "--insecure", "--port", str(port), "--out", "run"]
        server = held.enter_context(started(home, "server", *arguments))
        for name in SITES:
            arguments = ["--server", f"127.0.0.1:{port}", "--data", f"{name}.csv", "--config", "run.toml"]
            held.enter_context(started(home, "client", *arguments, "--insecure", "--yes"))
        if server.wait(timeout=120.0 + 60.0 * rounds):
            raise SystemExit("the server failed")
        return [json.loads(line)["seconds"] for line in (home / "run" / "metrics.jsonl").read_text().splitlines()]


def write_sites(folder: Path) -> None:
    import numpy as np
    from sklearn.datasets import load_digits

    digits, header = load_digits(), ",".join([*(f"p{i}" for i in range(64)), "digit"])
    for k, name in enumerate(SITES):
        table = np.column_stack([digits.data, digits.target])[k::3]
        np.savetxt(folder / f"{name}.csv", table, "%d", ",", header=header, comments="")


@contextlib.contextmanager
def started(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "ffgb", *arguments], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def importing(code: str, times: int = 7) -> float:
    """The least of some seconds of the processor that Python takes to run this."""
    found = []
    for _ in range(times):
        before = os.times()
        subprocess.run([sys.executable, "-c", code], check=True)
        after = os.times()
        found.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=2)
    given = parser.parse_args()
    nothing, flower = importing("pass"), importing("import flwr.app, flwr.clientapp")
    app = importing("from ffgb.engines.node import client_app; client_app()")
    print(
        f"import of a node's app: {app - nothing:.2f} s; of it Flower's own part: {flower - nothing:.2f} s", flush=True
    )
    idle: list[float] = []
    real: list[float] = []
    for _ in range(given.repeats):
        idle += floor(2 * given.rounds)
        real += ours(given.rounds)
    message, a_round = statistics.fmean(idle), statistics.fmean(real)
    error = statistics.stdev(real) / len(real) ** 0.5 + 2.0 * statistics.stdev(idle) / len(idle) ** 0.5
    print(f"Flower's floor: {message:.2f} s a message, {2 * message:.2f} s for the two of a round")
    print(
        f"ours: {a_round:.2f} s a round; beyond the floor {a_round - 2 * message:+.2f} s ± {error:.2f} (standard error)"
    )
    print(f"ratio {a_round / (2 * message):.3f}")


if __name__ == "__main__":
    began = time.perf_counter()
    main()
    print(f"{time.perf_counter() - began:.0f} s")
