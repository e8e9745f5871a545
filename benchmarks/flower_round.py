"""What a round between sites costs beyond Flower itself: real SuperLinks and SuperNodes on this machine, in turn.

Flower's floor is an app whose clients answer at once with nothing, asked as often and polled as often as ours.  Ours is
`ffgb server` and `ffgb client` on a closed family: two messages to each site in a round, one for its increment and one
for f^{t+1} and what it thinks of it.  Also: how long a node's app takes to import, beside Flower's own part of that.

    python benchmarks/flower_round.py [--rounds 6] [--repeats 2]
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
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


def own_part(rounds: int = 20) -> float:
    """Seconds of a round that are ours: at the server and the sites, one after the other, without Flower's transport.

    The same server, node's app, socket and site as above; what is left out is how Flower carries a message.
    """
    from flwr.app import Context, Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    from ffgb.config import Config
    from ffgb.engines import Engine
    from ffgb.engines.node import KIND, client_app, pack, unpack
    from ffgb.sites import Attendant, Schema, Site
    from ffgb.training import Elsewhere, train

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    app = client_app()

    class Direct(Engine):
        def exchange(self, data: bytes, clients: Sequence[int]) -> dict[int, bytes]:
            answers: dict[int, bytes] = {}
            for k, context in enumerate(contexts):
                mine = [i for i in clients if i % len(SITES) == k]
                said = {"schema": hashlib.sha256(text).hexdigest(), "seed": 0, "clients": mine}
                message = Message(pack({"message": data, "schema": text}, said), k + 2, KIND)
                message.metadata.__dict__["_message_id"] = "m"
                found, _ = unpack(app(message, context).content)
                answers |= {int(i): answer for i, answer in found.items()}
            return answers

        def close(self, *, at_once: bool = False) -> None:
            pass

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as held:
        home = Path(folder)
        write_sites(home)
        sites = [Site(name, home / f"{name}.csv", "digit") for name in SITES]
        schema = Schema.of({site.name: site.describe() for site in sites}, "digit")
        text, contexts = schema.to_json().encode(), []
        for k, site in enumerate(sites):
            (home / site.name).mkdir()
            door = held.enter_context(deploy.at_the_door(Attendant(site), home / site.name))
            contexts.append(Context(1, k + 2, {"socket": str(door)}, RecordDict(), {}))
        config = Config(data=("sites",), learner="linear", geometry="local", schedule="constant", rounds=rounds)
        result = train(config, elsewhere=Elsewhere(Direct(), schema, len(SITES)))
        return float(statistics.median(line["seconds"] for line in result.metrics[1:]))


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
    print(f"our own part of a round, server and three sites one after the other: {own_part():.3f} s", flush=True)
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
