"""A job is done, and what it came to is looked at from outside: arrays in a file, predictions, a line of metrics."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from safetensors.numpy import load
from threadpoolctl import threadpool_limits

from tests.deployment import real
from tests.golden import files
from tests.golden.jobs import AS_PROCESSES, ESTIMATORS, JOBS, ON_LOOPBACK, Job

SCORES = ("round", "train_loss", "train_accuracy", "train_rmse", "test_loss", "test_accuracy", "test_rmse")
COSTS = ("parameters_up", "parameters_down", "models_up", "models_down", "bytes_up", "bytes_down")
COSTLY = ("parameters", "models", "bytes", "communication", "seconds", "setup")
"""How the names of costs and of times begin."""
LONG = 12
"""Of lists of this length every second entry is looked at, of longer ones fewer."""
SECONDS = 120.0
"""That sites on loopback may take."""


def perform(name: str, base: Path) -> dict[str, Any]:
    """What a job comes to; it is done in a folder of its own under `base`."""
    if not (base / "files").exists():
        files.write(base / "files")
    with threadpool_limits(limits=1):
        return _estimated(name) if name in ESTIMATORS else _run(JOBS[name], base)


def ffgb(*words: str) -> str:
    """What a command prints; it runs in this process."""
    from ffgb.cli import main

    out = io.StringIO()
    with mock.patch.object(sys, "argv", ["ffgb", *words]), contextlib.redirect_stdout(out):
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise RuntimeError(f"ffgb {' '.join(words)}: exit code {end.code}") from end
    return out.getvalue()


def predicted(model: str, points: str) -> list[list[float]]:
    """The numbers of `ffgb predict`, a row a point: probabilities of classes, or values."""
    rows = list(csv.reader(io.StringIO(ffgb("predict", model, points, *_own(model)))))
    numbers = [j for j, column in enumerate(rows[0]) if column.startswith("probability_")] or range(len(rows[0]))
    return [[float(row[j]) for j in numbers] for row in rows[1:]]


def fingerprint(data: bytes) -> str:
    """Of all arrays in a file of safetensors; not of what is said about them."""
    found = hashlib.sha256()
    for name, array in sorted(load(data).items()):
        found.update(f"{name} {array.dtype} {array.shape}\n".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def _run(job: Job, base: Path) -> dict[str, Any]:
    folder = base / job.name
    folder.mkdir()
    with contextlib.chdir(folder):
        if job.where == ON_LOOPBACK:
            _on_loopback(folder, job.commands[0])
        for words in [] if job.where == ON_LOOPBACK else job.words:
            if job.where == AS_PROCESSES:
                done = real.run_alone(folder, *words)
                assert done.returncode == 0, done.stderr
            else:
                ffgb(*words)
        points = f"../files/{job.points}"
        data = Path(job.model, "model.safetensors") if job.model == "run" else Path(job.model)
        onnx = job.model.endswith(".onnx")
        return {
            "totals": json.loads(Path("run/config.json").read_text())["geometry"] == "shared",
            "sha256": None if onnx else fingerprint(data.read_bytes()),
            "predictions": _by_onnxruntime(data, points) if onnx else predicted(job.model, points),
            "metrics": _measured(json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])),
            "told": _told(Path("run")),
        }


def _estimated(name: str) -> dict[str, Any]:
    from ffgb import FFGBError

    fitted, x = ESTIMATORS[name]()
    found = fitted.predict_proba(x) if hasattr(fitted, "predict_proba") else fitted.predict(x)
    try:
        marked = fingerprint(fitted.model_.to_bytes())
    except FFGBError:  # scikit-learn's own estimators are not written down
        marked = None
    return {
        "totals": fitted.config_.geometry == "shared",
        "sha256": marked,
        "predictions": np.asarray(found, np.float64).reshape(len(x), -1).tolist(),
        "metrics": _measured(fitted.history_[-1]),
        "told": numbers(fitted.history_),
    }


def numbers(tree: Any, place: str = "") -> dict[str, float]:
    """All numbers in a tree of JSON by their places, but for those of costs and of time; of long lists some."""
    match tree:
        case bool() | str() | None:
            return {}
        case int() | float():
            return {place: float(tree)}
        case dict():
            return {
                name: number
                for key, each in tree.items()
                if not key.startswith(COSTLY)
                for name, number in numbers(each, f"{place}/{key}").items()
            }
    some = list(enumerate(tree))[:: 1 + len(tree) // LONG]
    return {name: number for k, each in some for name, number in numbers(each, f"{place}/{k}").items()}


def _told(run: Path) -> dict[str, float]:
    """What a run says of its rounds, clients and scores."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = numbers(lines, "lines")
    for name in ("clients", "fit", "conformal"):
        if (file := run / f"{name}.json").exists():
            found |= numbers(json.loads(file.read_text()), name)
    return found


def _measured(line: Mapping[str, Any]) -> dict[str, float]:
    return {name: line[name] for name in (*SCORES, *COSTS) if name in line}


def _own(model: str) -> list[str]:
    """Code that a run needs is named again where it is used."""
    config = json.loads(Path("run/config.json").read_text()) if model.startswith("run") else {}
    return [
        word for flag in ("learner", "map") if ":" in (config.get(flag) or "") for word in (f"--{flag}", config[flag])
    ]


def _by_onnxruntime(model: Path, points: str) -> list[list[float]]:
    import onnxruntime

    session = onnxruntime.InferenceSession(model.read_bytes(), providers=["CPUExecutionProvider"])
    with Path(points).open() as file:
        rows = list(csv.DictReader(file))
    given = {}
    for i in session.get_inputs():
        names, text = [i.name] if i.name in rows[0] else list(rows[0]), i.type == "tensor(string)"
        cells = [[row[name] if text else float(row[name] or "nan") for name in names] for row in rows]
        given[i.name] = np.array(cells, object if text else np.float32)
    found: list[list[float]] = np.asarray(session.run(["probabilities"], given)[0], np.float64).tolist()
    return found


def _on_loopback(folder: Path, options: str) -> None:
    """A server, and a site for each file: without keys, on this machine alone."""
    (folder / "run.toml").write_text(options)
    port = real.free_port()
    common = ("--config", "run.toml", "--insecure", "--no-page")
    with ExitStack() as held:
        words: tuple[str, ...] = ("server", "--clients", "3", "--port", str(port), "--out", "run", *common)
        server = held.enter_context(real.started(folder, "server.log", *words))
        for site in files.SITES:
            data = f"../files/{site}.csv"
            words = ("client", "--data", data, "--server", f"127.0.0.1:{port}", "--name", site, "--yes", *common)
            held.enter_context(real.started(folder, f"{site}.log", *words))
        assert server.wait(timeout=SECONDS) == 0, (folder / "server.log").read_text()
