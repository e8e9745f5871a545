"""A linear model, Cox's model and survival curves between real sites over TLS: the numbers of one machine."""

from __future__ import annotations

import json
import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
pytest.importorskip("cryptography")

from ffgb.runs.kaplan_meier import SurvivalCurves
from ffgb.runs.statistics import Analysis, analysed
from tests.deployment.real import NAMES, free_port, invite, run, started, until
from tests.deployment.test_analyses import COX, LOGIT, numbers, tables

ANALYSES: list[tuple[Analysis[Any], tuple[str, ...]]] = [
    (LOGIT, ("--formula", "died ~ age + sex * treated", "--family", "binomial", "--errors", "hc1")),
    (COX, ("--formula", "age + treated", "--time", "days", "--event", "died", "--errors", "robust")),
    (SurvivalCurves("days", "died", by="sex"), ("--time", "days", "--event", "died", "--by", "sex")),
]


def between_sites(folder: Path, port: int, lines: dict[str, str], k: int, *words: object) -> dict[str, Any]:
    """The result of the k-th analysis, which the server and all sites have; in the first one a site is killed."""

    def site(name: str) -> Any:
        given = ("--join", lines[name], "--data", f"{name}.csv", "--yes", "--no-page")
        return held.enter_context(started(folder, f"{name}{k}.log", "client", *given))

    def asked() -> bool:
        return "analysis: how many rows" in (folder / "north0.log").read_text()

    def kept() -> list[Path]:
        return sorted(folder.glob(f"state/ffgb/servers/*/*/analysis-{k + 1}/result.json"))

    with ExitStack() as held:
        begun = ("server", words[0], "--clients", 3, *words[1:], "--port", port, "--out", f"run{k}", "--no-page")
        server = held.enter_context(started(folder, f"server{k}.log", *begun))
        sites = {name: site(name) for name in NAMES}
        if k == 0:
            until(asked, 120, "the site was asked nothing")
            os.kill(sites["north"].pid, signal.SIGKILL)
            sites["north"].wait()
            site("north")
        assert server.wait(timeout=120) == 0, (folder / f"server{k}.log").read_text()
        until(lambda: len(kept()) == 3, 20, "sites keep the result")
    found: dict[str, Any] = json.loads((folder / f"run{k}" / "result.json").read_text())
    assert all(numbers(json.loads(file.read_text())) == numbers(found) for file in kept())
    return found


def test_three_sites_and_three_analyses(tmp_path: Path) -> None:
    files, port = tables(tmp_path), free_port()
    lines = invite(tmp_path, port)
    for k, (analysis, words) in enumerate(ANALYSES):
        there = between_sites(tmp_path, port, lines, k, analysis.name, *words)
        here = analysed(analysis, files, secure=False).to_json()
        assert there["secure"]
        assert numbers(there, "c_index_by_site") == numbers(here, "c_index_by_site")
    again = run(tmp_path, "server", "glm", "--clients", 3, *ANALYSES[0][1], "--out", "run0")
    assert again.returncode == 0
    assert "has ended" in again.stderr
    assert again.stdout == (tmp_path / "run0" / "result.txt").read_text()
    other = run(tmp_path, "server", "glm", "--clients", 3, "--formula", "died ~ age", "--out", "run0")
    assert other.returncode == 2
    assert "another analysis" in other.stderr
