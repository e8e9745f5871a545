"""What is compared in tests of comparisons, and what its runs have written."""

from __future__ import annotations

from pathlib import Path

from ffgb.runs.config import Config

BASE = Config(data="wine", clients=3, learner="features")


def metrics(folder: Path, name: str, seed: int) -> list[str]:
    return (folder / name.replace(":", "-") / str(seed) / "metrics.jsonl").read_text().splitlines()
