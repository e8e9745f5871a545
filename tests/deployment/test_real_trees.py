"""Boosted trees and additive models between real sites: the model of one machine, to the bit."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffgb.runs.config import Config
from ffgb.runs.model import Model
from ffgb.runs.training import train
from tests.deployment.real import NAMES, client, files, free_port, invite, server, write_sites

SETTINGS = {"learner": "trees", "leaves": 6, "bins": 16, "trees_a_round": 2, "levels": 3}
ADDITIVE = {"learner": "additive", "bins": 8}
POISSON = {**ADDITIVE, "task": "regression", "loss": "poisson"}
BLEND = {"learner": "blend", "task": "regression", "bins": 16, "trees_a_round": 2}
"""With as many leaves as suit the rows: a site's rehearsal has more rows than the training."""


@pytest.mark.parametrize(
    ("given", "secure"), [(SETTINGS, "off"), (SETTINGS, "on"), (ADDITIVE, "on"), (POISSON, "on"), (BLEND, "on")]
)
def test_three_sites_grow_the_trees_of_one_machine(given: dict[str, Any], secure: str, tmp_path: Path) -> None:
    words = "".join(f"{name} = {value!r}\n" for name, value in {**given, "secure": secure}.items())
    write_sites(tmp_path, 2, f'target = "digit"\n{words}', classes=3, pixels=range(26, 32))
    port = free_port()
    with ExitStack() as held:
        lines = invite(tmp_path, port)
        process = held.enter_context(server(tmp_path, port))
        for name in NAMES:
            held.enter_context(client(tmp_path, name, lines[name]))
        logs = [tmp_path / f"{name}.log" for name in ("server", *NAMES)]
        assert process.wait(timeout=120) == 0, "\n".join(log.read_text() for log in logs)
    together = Model.load(tmp_path / "run").f.tensors()
    alone = train(Config(data=files(tmp_path), target="digit", rounds=2, **given), workers=0).model.f.tensors()
    assert together.keys() == alone.keys()
    assert all(np.array_equal(together[name], alone[name]) for name in alone)
