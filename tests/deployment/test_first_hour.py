"""A site's first hour with real processes: an invitation and a file, the job from the server, a model at the end."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from ffgb.runs.model import Model
from tests.deployment.real import NAMES, end, free_port, invite, run, server, started, until, write_sites

JOB = 'target = "digit"\nlearner = "linear"\n'


def site(folder: Path, name: str, line: str, *more: str) -> ExitStack:
    held = ExitStack()
    words = ("--join", line, "--data", f"{name}.csv", "--no-page", *more)
    held.enter_context(started(folder, f"{name}.log", "client", *words))
    return held


def log(folder: Path, name: str) -> str:
    file = folder / f"{name}.log"
    return " ".join(file.read_text().split()) if file.exists() else ""


def says(folder: Path, name: str, words: str) -> None:
    """Wait until a process says this."""
    until(lambda: words in log(folder, name), 120, f"{name} does not say {words!r}")


def test_an_invitation_and_a_file_are_all_that_a_site_needs(tmp_path: Path) -> None:
    write_sites(tmp_path, 2, JOB)
    # one of them has it as its hospital exports it
    table = (tmp_path / "west.csv").read_text().replace(",", ";")
    (tmp_path / "west.csv").write_bytes(table.encode("utf-16"))
    port = free_port()
    lines = invite(tmp_path, port)
    with ExitStack() as held:
        process = held.enter_context(server(tmp_path, port))
        for name in NAMES:
            held.enter_context(site(tmp_path, name, lines[name], "--yes"))
        assert process.wait(timeout=180) == 0, log(tmp_path, "server")
        until(lambda: all("to predict new rows" in log(tmp_path, n) for n in NAMES), 30, log(tmp_path, "east"))
    said = log(tmp_path, "west")
    assert "west.csv is read with semicolons between values, encoding utf-16" in said
    assert "It trains a model that predicts the column 'digit'" in said
    assert 'target = "digit"' in said
    assert "training has ended after 2 rounds; the model is in" in said
    assert "on its own rows held out: accuracy" in said
    assert "sites have the model" in log(tmp_path, "server")
    home = tmp_path / "state" / "ffgb" / "servers" / f"127.0.0.1_{port}" / "east"
    assert (home / "job.toml").read_text() == 'target = "digit"\nlearner = "linear"\nrounds = 2\n'
    kept = home / "model-1"
    assert Model.load(kept).to_bytes() == Model.load(tmp_path / "run").to_bytes()
    done = run(tmp_path, "evaluate", kept, "--data", "east.csv", "--json")
    scores = json.loads((kept / "scores.json").read_text())
    assert "was trained on east: only its 120 rows that were held out are scored" in done.stderr
    found = json.loads(done.stdout)["all"]  # it says more: how sure these are, and how good probabilities
    assert {"rows", "accuracy"} <= scores["held out"].keys()
    assert {name: found[name] for name in scores["held out"]} == scores["held out"]
    assert "fit" in found
    assert "on this site's own rows" in (kept / "report.html").read_text()
    done = run(tmp_path, "report", kept)
    assert done.returncode == 2
    assert f"its report is {kept / 'report.html'}" in " ".join(done.stderr.split())
    assert run(tmp_path, "predict", kept, "north.csv", "-o", "new.csv").returncode == 0
    assert len((tmp_path / "new.csv").read_text().splitlines()) == 600


def test_a_site_that_does_not_agree_sends_nothing(tmp_path: Path) -> None:
    write_sites(tmp_path, 2, JOB + 'secure = "off"\n')
    port = free_port()
    lines = invite(tmp_path, port)
    with server(tmp_path, port):
        with site(tmp_path, "east", lines["east"], "--yes"):
            says(tmp_path, "east", "agree to that with --secure off")
        with site(tmp_path, "east", lines["east"], "--secure", "off"):
            says(tmp_path, "east", "nothing was sent; agree with --yes")
        with site(tmp_path, "north", lines["north"], "--target", "p1"):
            words = "the server's job has target = 'digit', and here it is 'p1'"
            says(tmp_path, "north", words)
        assert "Sums leave it WITHOUT masks" in log(tmp_path, "east")
        assert "east: its owner reads the job" in log(tmp_path, "server")
        assert "1 of 3 sites are here" not in log(tmp_path, "server")


def test_a_change_of_the_job_asks_again(tmp_path: Path) -> None:
    write_sites(tmp_path, 2, JOB)
    port = free_port()
    lines = invite(tmp_path, port)
    with ExitStack() as held:
        process = held.enter_context(server(tmp_path, port))
        with site(tmp_path, "east", lines["east"], "--yes"):
            says(tmp_path, "server", "1 of 3 sites are here")
        end(process)
    (tmp_path / "run.toml").write_text(JOB + "rounds = 7\n")
    with server(tmp_path, port, log="second.log"):
        with site(tmp_path, "east", lines["east"]):
            says(tmp_path, "east", "nothing was sent; agree with --yes")
        assert "up to 7 rounds" in log(tmp_path, "east")
        assert "1 of 3 sites are here" not in log(tmp_path, "second")
