"""The Adult job between three real sites over TLS: a server and three sites, four processes on this machine.

    python experiments/table_sites.py trees            # another learner: its name; adds a result to tables/sites.json

Seconds run from the start of the server, when three invited sites are waiting to join, to its end.  Totals are secure.
The same job in one process is timed in the same run: only the ratio of the two does not depend on the machine's load.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from table_list import TABLES

NAMES = ("east", "north", "west")
FFGB = (sys.executable, "-m", "ffgb")
FILE = Path(__file__).parent / "tables" / "sites.json"


def _write(folder: Path, learner: str) -> None:
    """Three files with a third of Adult's published training rows each, and the job."""
    table = next(entry for entry in TABLES if entry.name == "adult").frame().iloc[:32561]
    order = np.random.default_rng(0).permutation(len(table))
    for k, name in enumerate(NAMES):
        table.iloc[order[k::3]].to_csv(folder / f"{name}.csv", index=False)
    (folder / "run.toml").write_text(f'target = "target"\nlearner = "{learner}"\n')


def _free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


def between_sites(folder: Path) -> float:
    """Seconds that the server and its sites take."""
    port = _free_port()
    how: dict[str, Any] = {"cwd": folder, "env": {**os.environ, "XDG_STATE_HOME": str(folder / "state")}}
    invitations = [
        subprocess.run(
            [*FFGB, "server", "invite", name, "--address", f"127.0.0.1:{port}"],
            capture_output=True,
            text=True,
            check=True,
            **how,
        ).stdout.strip()
        for name in NAMES
    ]
    common = ["--config", "run.toml", "--no-page"]
    with ExitStack() as held:
        begins = time.perf_counter()
        log = held.enter_context((folder / "server.log").open("wb"))
        words = [*FFGB, "server", "--clients", "3", "--port", str(port), "--out", "run", *common]
        server = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, **how)
        sites = [
            subprocess.Popen(
                [*FFGB, "client", "--join", line, "--data", f"{name}.csv", "--yes", *common],
                stdout=held.enter_context((folder / f"{name}.log").open("wb")),
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                **how,
            )
            for name, line in zip(NAMES, invitations, strict=True)
        ]
        try:
            if server.wait(timeout=1200) != 0:
                raise SystemExit("\n".join((folder / f"{n}.log").read_text() for n in ("server", *NAMES)))
            return time.perf_counter() - begins
        finally:
            for process in (server, *sites):
                if process.poll() is None:
                    process.terminate()
                    process.wait()


def main(learner: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write(folder, learner)
        apart = between_sites(folder)
        begins = time.perf_counter()
        data = [word for site in NAMES for word in ("--data", f"{site}.csv")]
        words = [*FFGB, "train", "--config", "run.toml", *data, "--workers", "1", "--out", "here"]
        subprocess.run(words, cwd=folder, check=True, capture_output=True)
        together = time.perf_counter() - begins
        models = [(folder / run / "model.safetensors").read_bytes() for run in ("run", "here")]
        lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
        rounds = sum(json.loads(line)["seconds"] for line in lines)
        result = {
            "learner": learner,
            "seconds": round(apart, 1),
            "seconds_of_rounds": round(rounds, 1),
            "seconds_in_one_process": round(together, 1),
            "same_bits": models[0] == models[1],
            "load": os.getloadavg()[0],
            "cores": os.cpu_count(),
        }
        found = json.loads(FILE.read_text()) if FILE.exists() else []
        FILE.write_text(json.dumps([*found, result], indent=1) + "\n")
        print(result)


if __name__ == "__main__":
    main(*sys.argv[1:2])
