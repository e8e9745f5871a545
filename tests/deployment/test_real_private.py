"""Private trainings between real sites, over TLS: each site has its own ledger, and no budget is spent twice."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
pytest.importorskip("cryptography")

from ffgb.runs.model import Model
from tests.deployment.real import NAMES, client, free_port, invite, run, server, write_sites

PIXELS = range(26, 38)
EPSILON = 8.0
CONFIG = f'target = "digit"\nlearner = "additive"\nepsilon = {EPSILON}\nschema = "schema.toml"\n'
SCHEMA = "\n".join(
    [
        'target = "digit"',
        *(f"[columns.p{i}]\nbounds = [0, 16]" for i in PIXELS),
        '[columns.digit]\ntype = "category"\ncategories = ["0", "1", "2"]\n',
    ]
)


def training(folder: Path, port: int, invitations: dict[str, str], out: str) -> tuple[int, dict[str, str]]:
    """A training of three processes and a server: how it ended, and what everyone said."""
    with ExitStack() as held:
        process = held.enter_context(server(folder, port, "--out", out, log=f"{out}.log"))
        for name in NAMES:
            held.enter_context(client(folder, name, invitations[name]))
        code = process.wait(timeout=120)
    return code, {name: (folder / f"{name}.log").read_text() for name in (out, *NAMES)}


def spent(folder: Path, name: str) -> list[dict[str, Any]]:
    """The ledger of a site's file, as its owner sees it."""
    done = run(folder, "client", "ledger", "--data", f"{name}.csv", "--json")
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def test_three_sites_train_with_noise_and_refuse_what_is_beyond_their_budgets(tmp_path: Path) -> None:
    write_sites(tmp_path, 1, CONFIG, classes=3, pixels=PIXELS)
    (tmp_path / "schema.toml").write_text(SCHEMA)
    port = free_port()
    invitations = invite(tmp_path, port)
    code, said = training(tmp_path, port, invitations, "run")
    assert code == 0, "\n".join(said.values())
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["privacy"]["epsilon"] == EPSILON
    assert "complete without 1 of 3 clients" in summary["privacy"]["noise"]
    assert "test_accuracy" not in summary
    assert Model.load(tmp_path / "run").classes == ("0", "1", "2")
    before = {name: spent(tmp_path, name) for name in NAMES}
    for lines in before.values():
        assert lines[0]["what"] == "budget: ε = 8, δ = 1e-05"
        assert [line["what"] for line in lines[1:]] == ["sums of residuals with noise"] * 4
        assert float(lines[-1]["ε so far"]) == pytest.approx(EPSILON, rel=1e-3)

    # other questions about the same files: nothing is left for them
    (tmp_path / "run.toml").write_text(f"{CONFIG}noise_seed = 5\nrounds = 1\n")
    code, said = training(tmp_path, port, invitations, "again")
    assert code != 0
    # the first refusal ends the training: another site may not have been asked by then
    assert any("would cost more than is left of this site's privacy budget" in said[name] for name in NAMES)
    assert {name: spent(tmp_path, name) for name in NAMES} == before
