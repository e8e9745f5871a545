"""A linear model, Cox's model and survival curves between real sites over TLS: the numbers of one machine."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
pytest.importorskip("cryptography")

from ffgb.runs.cox import Cox
from ffgb.runs.glm import GLM
from ffgb.runs.kaplan_meier import SurvivalCurves
from ffgb.runs.statistics import Analysis, analysed
from tests.conftest import ROOT
from tests.deployment.real import free_port, run, started, until
from tests.deployment.test_analyses import numbers

PAGE = (ROOT / "docs" / "statistics.md").read_text()
MADE = "Time until an event", "Survival curves"
"""Where the page makes the files of these sites, and shows what survival curves look like."""
NAMES = ("north", "south", "west")


def printed(section: str) -> str:
    """What the page says that an analysis prints."""
    return str(re.findall(r"```text\n(.*?)```", PAGE[PAGE.index(f"## {section}") :], re.DOTALL)[0])


def commands() -> list[list[str]]:
    """Of docs/statistics.md, those between real sites."""
    lines = [line for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
    return [shlex.split(line)[1:] for line in lines]


def between_sites(folder: Path, port: int, k: int, asked: list[str], joins: list[list[str]]) -> dict[str, Any]:
    """The result of the k-th analysis, which the server and all sites have; in the first one a site is killed."""

    def site(words: list[str]) -> Any:
        given, name = folder / words[-1], words[-1].partition(".")[0]
        words = [*words[: words.index("<")], "--yes", "--no-page"]
        return held.enter_context(started(folder, f"{name}{k}.log", *words, stdin=str(given)))

    def was_asked() -> bool:
        return "analysis: how many rows" in (folder / "north0.log").read_text()

    def kept() -> list[Path]:
        return sorted(folder.glob(f"state/ffgb/servers/*/*/analysis-{k + 1}/result.json"))

    with ExitStack() as held:
        words = (*asked, "--port", port, "--no-page")
        server = held.enter_context(started(folder, f"server{k}.log", *words))
        north, *_ = [site(words) for words in joins]
        if k == 0:
            until(was_asked, 120, "the site was asked nothing")
            os.kill(north.pid, signal.SIGKILL)
            north.wait()
            site(joins[0])
        assert server.wait(timeout=120) == 0, (folder / f"server{k}.log").read_text()
        until(lambda: len(kept()) == 3, 20, "sites keep the result")
    found: dict[str, Any] = json.loads((folder / "runs" / asked[1] / "result.json").read_text())
    assert all(numbers(json.loads(file.read_text())) == numbers(found) for file in kept())
    return found


def test_three_sites_and_three_analyses_as_the_page_says(tmp_path: Path) -> None:
    port, words = free_port(), commands()
    subprocess.run([sys.executable, "-c", PAGE.split("```python\n")[3].split("```")[0]], cwd=tmp_path, check=True)
    for *invited, _, file in words[:3]:
        done = run(tmp_path, *invited, "--address", f"127.0.0.1:{port}")
        (tmp_path / file).write_text(done.stdout)
    joins = [line for line in words if line[0] == "client"]
    files = [tmp_path / f"{name}.csv" for name in NAMES]
    analyses: list[tuple[Analysis[Any], str]] = [
        (Cox("age + treated", "days", "died", errors="robust"), printed(MADE[0])),
        (GLM("died ~ age + treated", family="binomial", errors="hc1"), ""),
        (SurvivalCurves("days", "died", "treated", (100.0, 200.0, 400.0, 600.0, 800.0)), printed(MADE[1])),
    ]
    for k, (analysis, text) in enumerate(analyses):
        asked = next(line for line in words if line[:2] == ["server", analysis.name])
        there = between_sites(tmp_path, port, k, asked, joins)
        assert there["secure"]
        here = analysed(analysis, files, secure=False).to_json()
        assert numbers(there, "c_index_by_site") == numbers(here, "c_index_by_site")
        assert (tmp_path / "runs" / analysis.name / "result.txt").read_text().startswith(text)
    again = run(tmp_path, *next(line for line in words if line[:2] == ["server", "glm"]))
    assert again.returncode == 0
    assert "has ended" in again.stderr
    assert again.stdout == (tmp_path / "runs" / "glm" / "result.txt").read_text()
    other = run(tmp_path, "server", "glm", "--clients", 3, "--formula", "died ~ age")
    assert other.returncode == 2
    assert "runs/glm has the result of another analysis; name another --out" in other.stderr
