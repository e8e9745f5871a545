"""Alone, without each other, and together: the models are those of trainings on these rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ffgb.errors import FFGBError
from ffgb.report import page
from ffgb.runs.config import Config, load_data
from ffgb.runs.directory import Run
from ffgb.runs.training import train
from ffgb.runs.worth import worth
from tests.cli.commands import ffgb


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two sites with many rows of one law, and one with few."""
    path, rng = tmp_path_factory.mktemp("worth"), np.random.default_rng(0)
    slopes = rng.normal(size=8)
    for name, n in (("large", 1500), ("middle", 1000), ("small", 60)):
        x = rng.standard_normal((n, 8))
        y = np.where(rng.random(n) < 1 / (1 + np.exp(-x @ slopes)), "yes", "no")
        pd.DataFrame(x, columns=list("abcdefgh")).assign(y=y).to_csv(path / f"{name}.csv", index=False)
    files = tuple(str(path / f"{name}.csv") for name in ("large", "middle", "small"))
    train(Config(data=files, target="y", learner="linear", rounds=3, ridge=1e-3), path / "run", workers=0)
    return Run.open(path / "run")


def test_a_small_site_gains_and_the_others_do_not_need_it(run: Run, tmp_path: Path) -> None:
    found = json.loads(ffgb("worth", run.path, "--json").stdout)
    sites = {row["site"]: row for row in found["sites"]}
    small, large = sites["small"], sites["large"]
    assert small["alone"]["value"] > 0.1 > abs(large["alone"]["value"])
    assert abs(small["others"]["value"]) < 0.01
    assert small["rows"] == 12
    # the model of one site alone is that of a training on its file
    files = [file for file in run.config["data"] if "small" not in file]
    config = Config(data=tuple(files), target="y", learner="linear", rounds=3, ridge=1e-3)
    without, data = train(config, workers=0).model, load_data(Config.from_json(run.config))
    here = data.site_test == 2
    own = without.score(data.x_test[here], data.y_test[here])["loss"]
    assert small["without"]["value"] == pytest.approx(own - small["together"], abs=1e-6)
    assert "Is it worth training together?" in page([run.path])
    assert f"{small['alone']['value']:+.3g}" in page([run.path])


def test_what_has_no_sites_is_refused(tmp_path: Path) -> None:
    result = train(Config(data=("wine",), clients=2, rounds=1, learner="linear"), tmp_path / "run", workers=0)
    assert result.run is not None
    with pytest.raises(FFGBError, match="no sites of its own"):
        worth(result.run)
