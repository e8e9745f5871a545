"""`ffgb reproduce`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.commands import ffgb


def test_reproduce_writes_numbers_a_table_and_a_picture(tmp_path: Path, refused: Callable[..., str]) -> None:
    pytest.importorskip("matplotlib")
    result = ffgb("reproduce", "theory", "--scale", "small", "--out", tmp_path / "small")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("| what | promised | found |")
    assert result.stdout == (tmp_path / "small" / "theory.md").read_text()
    assert (tmp_path / "small" / "theory.png").stat().st_size < 200_000
    results = json.loads((tmp_path / "small" / "theory.json").read_text())
    assert results["rates"]["rooted"]["slope"] < -0.8
    assert results["floor_c"]["exponent"] == pytest.approx(1.0, abs=0.1)
    assert max(results["floor_c"]["shared"]) < 1e-6 < min(results["floor_c"]["zero"])
    before = (tmp_path / "small" / "theory.json").stat().st_mtime_ns
    began = time.perf_counter()
    assert ffgb("reproduce", "theory", "--scale", "small", "--out", tmp_path / "small").stdout == result.stdout
    assert time.perf_counter() - began < 60  # what is there is not computed again
    assert before
    assert "no experiment 'fig9'" in refused("reproduce", "fig9")
    assert "full or small" in refused("reproduce", "theory", "--scale", "tiny")
