"""CONTRIBUTING is held to its word: a loss, a map, a learner, an algorithm and a setting are one new file each."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import ffgb
from tests.cli import additions
from tests.cli.commands import in_a_new_process as run

FILES = {
    "core/losses/log_cosh.py": additions.LOSS + additions.LOSS_SETTING,
    "features/squares.py": additions.MAP + additions.MAP_NAME,
    "learners/stump.py": additions.LEARNER,
    "algorithms/damped.py": additions.TOTALS + additions.TOTALS_SETTING,
    "algorithms/sign_average.py": additions.PARAMETERS + additions.PARAMETERS_SETTING,
}
JOBS: dict[str, list[str]] = {
    "loss": ["--data", "diabetes", "--loss", "log-cosh", "--softness", "0.5"],
    "map": ["--data", "wine", "--map", "squares+inputs"],
    "learner": ["--data", "wine", "--learner", "stump"],
    "algorithm of totals": ["--data", "wine", "--algorithm", "damped", "--damping", "0.8"],
    "algorithm on parameters": [
        "--data", "wine", "--algorithm", "sign-average", "--learner", "linear", "--shortness", "0.2",
        "--local-epochs", "2",
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with these files more, and no other change."""
    folder = tmp_path_factory.mktemp("added")
    there = folder / "ffgb"
    shutil.copytree(Path(ffgb.__file__).parent, there, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in FILES.items():
        assert not (there / name).exists()
        (there / name).write_text(text)
    return folder


def trained(package: Path, out: Path, *options: str) -> dict[str, Any]:
    common = ["--clients", "3", "--rounds", "3", "--workers", "2", "--json", "--out", str(out)]
    done = run("train", *options, *common, cwd=package, env={"PYTHONPATH": str(package)})
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


@pytest.mark.parametrize("job", JOBS)
def test_a_file_more_is_all_that_it_takes(job: str, package: Path, tmp_path: Path) -> None:
    """The command line offers it, it trains in worker processes, and its setting has an effect."""
    summary = trained(package, tmp_path / "run", *JOBS[job])
    score = summary["test_rmse"] < 74.0 if "diabetes" in JOBS[job] else summary["test_accuracy"] > 0.6
    assert score, summary
    if job == "algorithm on parameters":
        assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 6  # two exchanges a round
    number = next((word for word in JOBS[job] if word.replace(".", "").isdigit() and "." in word), None)
    if number is not None:
        other = [word if word != number else "0.01" for word in JOBS[job]]
        assert trained(package, tmp_path / "other", *other)["train_loss"] != summary["train_loss"]


def test_they_are_offered_and_checked(package: Path) -> None:
    def command(*words: str) -> tuple[int, str]:
        done = run(*words, cwd=package, env={"PYTHONPATH": str(package), "COLUMNS": "300"})
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    _, shown = command("train", "--help-all")
    for word in ("log-cosh", "squares", "stump", "--damping", "--softness", "--shortness"):
        assert word in shown
    assert command("train", "--damping", "0.5") == (2, "ffgb: --damping is for damped, not for ffgb")
    assert command("train", "--algorithm", "damped", "--damping", "0")[0] == 2
    code, shown = command("train", "--algorithm", "damped", "--geometry", "local")
    assert (code, shown) == (2, "ffgb: damped fits in norms of all clients' points together; use --geometry shared")
    code, shown = command("train", "--algorithm", "damped", "--learner", "tree")
    assert (code, shown.endswith("use --geometry shared and --learner features")) == (2, True)
    code, shown = command("train", "--algorithm", "sign-average", "--mu", "0.1")
    assert (code, shown) == (2, "ffgb: --mu is for ffgb; sign-average has no use for it")
