"""Adult from raw files: as good as from the prepared set, whatever twenty sites do to their tables."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ffgb.data import load, partition
from ffgb.data.tables import _ADULT
from ffgb.runs.model import Model


def test_twenty_raw_files(tmp_path: Path, real_data: Path) -> None:
    names = [*_ADULT, "income"]

    def raw(file: str) -> pd.DataFrame:
        table = pd.read_csv(
            real_data / "adult" / file,
            names=names,
            skipinitialspace=True,
            comment="|",
            dtype=str,
            keep_default_na=False,
        )
        table["income"] = table["income"].str.removesuffix(".")
        return table

    train, test = raw("adult.data"), raw("adult.test")
    rng, files = np.random.default_rng(0), []
    for i, rows in enumerate(partition(load("adult"), "similarity", 20, similarity=0.1, seed=0)):
        part = train.iloc[rows]
        files.append(tmp_path / f"site{i + 1}.csv")
        part[list(rng.permutation(part.columns))].to_csv(files[-1], index=False)  # "?" is missing, as it stands there
    command = [sys.executable, "-m", "ffgb", "train", "--json", "--target", "income", "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [*command, *(word for file in files for word in ("--data", str(file)))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["test_accuracy"] >= 0.860  # on a fifth of each site's rows
    # on the set's own test rows, of four fifths of the training rows: as prepared, where all rows train
    test.to_csv(tmp_path / "test.csv", index=False)
    model = Model.load(tmp_path / "run")
    accuracy = float((model.predict(model.read(tmp_path / "test.csv")) == test["income"].to_numpy()).mean())
    assert accuracy == pytest.approx(0.874, abs=0.003)
