"""Code of one's own, package.module:Name: in worker processes, in `compare`, in the estimators, and not at sites."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli import additions
from tests.cli.commands import ffgb, site

OWN = "\n".join(
    text.replace("from __future__ import annotations\n", "")
    for text in (additions.LOSS, additions.MAP, additions.LEARNER, additions.TOTALS, additions.PARAMETERS)
)
ENCODER = "\n\ndef halves(x):\n    return 0.5 * x.reshape(len(x), -1).astype(np.float64)\n"
JOBS: dict[str, list[str]] = {
    "loss": ["--data", "diabetes", "--loss", "own:LogCosh"],
    "map": ["--data", "wine", "--map", "own:halves+inputs"],
    "learner": ["--data", "wine", "--learner", "own:Stump"],
    "algorithm of totals": ["--data", "wine", "--algorithm", "own:Damped"],
    "algorithm on parameters": ["--data", "wine", "--algorithm", "own:SignAverage", "--learner", "linear"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text("from __future__ import annotations\n" + OWN + ENCODER)
    return tmp_path


def trained(folder: Path, *options: str) -> dict[str, Any]:
    done = ffgb("train", *options, "--clients", "3", "--rounds", "3", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


@pytest.mark.parametrize("job", JOBS)
def test_workers_import_it_and_the_model_is_that_of_one_process(job: str, folder: Path) -> None:
    for workers in ("0", "2"):
        trained(folder, *JOBS[job], "--workers", workers, "--out", f"with-{workers}")
    models = [(folder / f"with-{workers}" / "model.safetensors").read_bytes() for workers in ("0", "2")]
    assert models[0] == models[1]
    lines = (folder / "with-0" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == (6 if "parameters" in job else 3)


def test_it_is_compared_with_ours(folder: Path) -> None:
    methods = ("ffgb", "own:Damped", "own:SignAverage:linear", "ffgb:own:Stump")
    how = ["--data", "wine", "--clients", "3", "--budget", "rounds=2", "--seeds", "1", "--no-tune", "--out", "c"]
    done = ffgb("compare", *methods, *how, cwd=folder)
    assert done.returncode == 0, done.stderr
    compared = json.loads((folder / "c" / "compare.json").read_text())
    text = json.dumps(compared)
    assert all(name in text for name in ("own:Damped", "own:SignAverage", "own:Stump"))


ESTIMATORS = """
from sklearn.datasets import load_diabetes, load_wine
from ffgb import FFGBClassifier, FFGBRegressor
import numpy as np

x, y = load_wine(return_X_y=True)
clients = np.arange(len(y)) % 3
for settings in ({"algorithm": "own:Damped"}, {"learner": "own:Stump"}, {"map": "own:halves+inputs"},
                 {"algorithm": "own:SignAverage", "learner": "linear"}):
    score = FFGBClassifier(rounds=3, **settings).fit(x, y, clients=clients).score(x, y)
    assert score > 0.6, (settings, score)
x, y = load_diabetes(return_X_y=True)
assert FFGBRegressor(rounds=3, loss="own:LogCosh").fit(x, y, clients=np.arange(len(y)) % 3).score(x, y) > 0.3
print("used")
"""


def test_estimators_use_it(folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", ESTIMATORS], cwd=folder, capture_output=True, text=True, check=False)
    assert done.stdout == "used\n", done.stderr


@pytest.mark.parametrize("line", ['algorithm = "own:Damped"', 'loss = "own:LogCosh"', 'map = "own:halves"',
                                  'learner = "own:Stump"'])  # fmt: skip
def test_real_sites_refuse_code_and_say_so(line: str, folder: Path) -> None:
    site(folder / "east.csv")
    (folder / "own.py").write_text("raise SystemExit('it ran')\n")
    (folder / "run.toml").write_text(f'target = "outcome"\nrounds = 2\n{line}\n')
    done = ffgb("client", "--data", "east.csv", "--config", "run.toml", "--dry-run", cwd=folder)
    assert done.returncode == 2, done.stdout
    assert "names code of your own, own:" in done.stderr
    assert "it ran" not in done.stderr
    done = ffgb("server", "--clients", "3", "--config", "run.toml", "--out", "run", "--port", "9", cwd=folder)
    assert done.returncode == 2, done.stdout
    assert "names code of your own, own:" in done.stderr
    assert "it ran" not in done.stderr
