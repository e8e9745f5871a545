"""Boosted trees and additive models between real sites: the model of one machine, to the bit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ffgb.core.draws import Draws
from ffgb.core.points import Points
from ffgb.deployment.attendant import DRAWS
from ffgb.deployment.identity import SiteIdentity
from ffgb.runs.config import Config
from ffgb.runs.model import Model
from ffgb.runs.training import train
from tests.deployment.real import NAMES, client, files, free_port, invite, server, until, write_sites

SETTINGS = {"learner": "trees", "leaves": 6, "bins": 16, "trees_a_round": 2, "levels": 3}
ADDITIVE = {"learner": "additive", "bins": 8}
POISSON = {**ADDITIVE, "task": "regression", "loss": "poisson"}
BLEND = {"learner": "blend", "task": "regression", "bins": 16, "trees_a_round": 2}
"""With as many leaves as suit the rows: a site's rehearsal has more rows than the training."""


@contextmanager
def federation(folder: Path) -> Iterator[None]:
    """A server and three sites that have trained; the sites are still there."""
    port = free_port()
    with ExitStack() as held:
        lines = invite(folder, port)
        process = held.enter_context(server(folder, port))
        for name in NAMES:
            held.enter_context(client(folder, name, lines[name]))
        logs = [folder / f"{name}.log" for name in ("server", *NAMES)]
        assert process.wait(timeout=120) == 0, "\n".join(log.read_text() for log in logs)
        yield


def know_secrets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients 0, 1 and 2 in this process draw their rows as the sites did."""
    training = json.loads((folder / "run" / "sites.json").read_text())["training"]
    homes = [next(path.parent for path in folder.glob(f"state/**/{name}*/**/secret")) for name in NAMES]
    secrets = [SiteIdentity.of(*pair).secret(DRAWS + training.encode()) for pair in zip(NAMES, homes, strict=True)]
    blind = Draws.left_out

    def seeing(draws: Draws, points: Points, t: int, trees: Sequence[int]) -> Any:
        points.secret = secrets[points.i]
        return blind(draws, points, t, trees)

    monkeypatch.setattr(Draws, "left_out", seeing)


@pytest.mark.parametrize("learner", ["additive"])
def test_three_sites_boost_times_until_an_event(learner: str, tmp_path: Path) -> None:
    """The Cox loss between real sites, under masks: the model and scores of one machine, and hazards stay at sites."""
    rng = np.random.default_rng(0)
    for name, baseline in zip(NAMES, (800, 400, 1500), strict=True):
        rows = pd.DataFrame({"age": rng.normal(60, 10, 90).round(), "treated": rng.integers(0, 2, 90)})
        days = rng.exponential(baseline * np.exp(-0.06 * (rows.age - 60) + 0.9 * rows.treated))
        rows.assign(days=np.minimum(days, 999).round() + 1, died=(days < 999).astype(int)).to_csv(
            tmp_path / f"{name}.csv", index=False
        )
    (tmp_path / "run.toml").write_text(f'target = "days,died"\nlearner = "{learner}"\nrounds = 2\n')
    with federation(tmp_path):
        until(lambda: len(list(tmp_path.glob("state/**/model-1/config.json"))) == 3, 20.0, "sites keep the model")
        kept = [json.loads(file.read_text()) for file in tmp_path.glob("state/**/model-1/scores.json")]
    together = Model.load(tmp_path / "run")
    here = train(Config(data=files(tmp_path), target="days,died", rounds=2, learner=learner), workers=0)
    alone = here.model.f.tensors()
    assert all(np.array_equal(together.f.tensors()[name], alone[name]) for name in alone)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["test_concordance"] == pytest.approx(here.summary["test_concordance"])
    assert len(kept) == 3
    assert all(0.0 < scores["held out"]["concordance"] < 1.0 for scores in kept)
    assert len(list(tmp_path.glob("state/**/model-1/baseline.json"))) == 3
    assert not (tmp_path / "run" / "baseline.json").exists()


@pytest.mark.parametrize(
    ("given", "secure"), [(SETTINGS, "off"), (SETTINGS, "on"), (ADDITIVE, "on"), (POISSON, "on"), (BLEND, "on")]
)
def test_three_sites_grow_the_trees_of_one_machine(
    given: dict[str, Any], secure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under masks each site draws rows by a secret of its own: one machine that has all secrets draws the same."""
    words = "".join(f"{name} = {value!r}\n" for name, value in {**given, "secure": secure}.items())
    write_sites(tmp_path, 2, f'target = "digit"\n{words}', classes=3, pixels=range(26, 32))
    with federation(tmp_path):
        pass
    together = Model.load(tmp_path / "run").f.tensors()
    drawn = given in (SETTINGS, BLEND)
    if secure == "on" and drawn:
        other = train(Config(data=files(tmp_path), target="digit", rounds=2, **given), workers=0).model.f.tensors()
        assert not all(np.array_equal(together[name], other[name]) for name in other)  # the server cannot draw
        know_secrets(tmp_path, monkeypatch)
    alone = train(Config(data=files(tmp_path), target="digit", rounds=2, **given), workers=0).model.f.tensors()
    assert together.keys() == alone.keys()
    assert all(np.array_equal(together[name], alone[name]) for name in alone)
