"""Tuning: the rule is the same for all, and it finds the step size that trains best."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ffgb.engines.local import InProcess
from ffgb.errors import FFGBError
from ffgb.federation.client import Client
from ffgb.federation.conversation import Conversation
from ffgb.federation.host import Holding
from ffgb.federation.server import Server
from ffgb.protocol.codec import Message
from ffgb.protocol.messages import Setup, Turn
from ffgb.protocol.sending import Sending
from ffgb.runs.choose_ridge import set_aside
from ffgb.runs.config import Config, load_data
from ffgb.runs.holdings import make_parts, server_options
from ffgb.runs.learners import make_algorithm, make_learner
from ffgb.runs.resolve import make_loss
from ffgb.studies.tuning import FACTORS, SHARE, tune
from tests.forks import command


def best_of(rung: dict[float, tuple[float, float]]) -> tuple[float, float]:
    """The best score, negated, and its standard error on the rows that wine's three clients set aside."""
    best = min(bad for bad, _ in rung.values())
    return best, math.sqrt(-best * (1 + best) / 28)


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "mime", "ffgb"])
def test_successive_halving(algorithm: str) -> None:
    config = Config(data="wine", clients=3, algorithm=algorithm, learner="mlp", oracle_steps=20)
    found = tune(config, 2, workers=0)
    by_rung: dict[int, dict[float, tuple[float, float]]] = {}
    for score in found.scores:
        bad = (math.inf, math.inf) if score["loss"] is None else (-score["score"], score["loss"])
        by_rung.setdefault(score["rounds"], {})[score["step_size"]] = bad
    rungs = list(by_rung.values())
    assert list(by_rung) == [2 * 2**j for j in range(len(by_rung))]
    assert len(rungs[0]) == len(FACTORS) == 9
    for before, after in pairwise(rungs):
        best, error = best_of(before)
        alive = [
            (bad[0] > best + error, bad[0] if bad[0] > best + error else 0.0, bad[1], step)
            for step, bad in before.items()
            if bad[1] < math.inf
        ]
        assert {step for *_, step in sorted(alive)[: -(-len(before) // 2)]} == set(after)  # the better half goes on
    best, error = best_of(rungs[-1])
    good = [step for step, bad in rungs[-1].items() if bad[0] <= best + error]
    assert found.step_size == min(good, key=lambda step: rungs[-1][step][1])
    again = tune(config, 2, workers=0)
    assert again == found


def test_candidates_go_on_as_if_nobody_had_trained_between() -> None:
    # the winner's scores are those of a run of its own, and do not depend on workers
    config = Config(data="wine", clients=3, algorithm="scaffold", learner="mlp")
    found = tune(config, 2, workers=2)
    scores = {s["rounds"]: s["loss"] for s in found.scores if s["step_size"] == found.step_size}
    assert len(scores) >= 3
    dataset = load_data(config)
    chosen = replace(config, step_size=found.step_size).resolved(dataset)
    kept, aside = set_aside(chosen, SHARE, dataset, make_parts(chosen, dataset))
    engine = InProcess([Holding(dataset.x, dataset.y, rows) for rows in (*kept, *aside)])
    server = Server(engine, [len(rows) for rows in kept], len(aside), **server_options(chosen))
    state = server.start(make_algorithm(chosen), make_learner(chosen, dataset), make_loss(chosen, dataset))
    alone = {line["round"]: line["test_loss"] for _, line in server.rounds(state, max(scores))}
    assert scores == {rounds: alone[rounds] for rounds in scores}


@pytest.mark.parametrize("algorithm", ["ffgb", "mime", "scaffold"])
@pytest.mark.parametrize("participation", [1, 3])
def test_no_ensemble_is_evaluated_again(algorithm: str, participation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # clients keep where they are in each candidate's training: none has to be sent all of its learners when it goes on
    config = Config(
        data="wine", clients=3, algorithm=algorithm, learner="mlp", oracle_steps=20, participation=participation
    )
    found = tune(config, 1, workers=0)
    with monkeypatch.context() as without:
        without.setattr(Conversation, "restore", None)
        assert tune(config, 1, workers=0) == found
    answer = Client.answer

    def forgetful(self: Client, sending: Sending) -> Message:
        return answer(self, Setup(sending.job) if isinstance(sending, Turn) else sending)

    monkeypatch.setattr(Client, "answer", forgetful)
    assert tune(config, 1, workers=0) == found  # and it makes no difference


@pytest.mark.parametrize("algorithm", ["ffgb", "mime", "scaffold"])
def test_a_race_that_was_stopped_goes_on(algorithm: str, tmp_path: Path) -> None:
    config = Config(data="wine", clients=3, algorithm=algorithm, learner="mlp", oracle_steps=20)
    whole = tune(config, 2, workers=0)
    half, again = list[dict[str, Any]](), list[dict[str, Any]]()

    def stop(score: dict[str, Any]) -> None:
        half.append(score)
        if len(half) == 11:  # in the second rung
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(config, 2, workers=0, out=tmp_path, on_score=stop)
    trained = {f: f.stat().st_mtime_ns for f in tmp_path.glob("*/metrics.jsonl")}
    assert tune(config, 2, workers=0, out=tmp_path, on_score=again.append) == whole
    assert again[:11] == half
    dropped = [f for f, when in trained.items() if f.stat().st_mtime_ns == when]
    assert dropped  # those of the worse half that did not diverge had no more rounds
    with pytest.raises(FFGBError, match="other settings"):
        tune(replace(config, similarity=0.2), 2, workers=0, out=tmp_path)


def test_an_ensemble_that_is_distilled_in_training_is_so_in_the_race(tmp_path: Path) -> None:
    config = Config(data="wine", clients=3, learner="mlp", oracle_steps=5, distill="rounds", distill_rounds=1)
    tune(config, 1, workers=0, out=tmp_path)
    files = list(tmp_path.glob("*/metrics.jsonl"))
    assert len(files) == len(FACTORS)
    for file in files:
        assert all("ensemble_test_accuracy" in line for line in file.read_text().splitlines())


def test_what_has_no_step_size_is_refused() -> None:
    with pytest.raises(FFGBError, match="no step size to tune"):
        tune(Config(data="wine", clients=3, learner="features"), workers=0)


def test_the_command_prints_the_best() -> None:
    words = ["tune", "--data", "wine", "--clients", "3", "--rounds", "1"]
    result = command([*words, "--json"])
    found = json.loads(result.stdout)
    plain = command(words)
    assert f"best: --step-size {found['step_size']:g}" in plain.stdout


def test_any_option_of_training_may_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('data = "wine"\nclients = 5\nlocal_epochs = 2\nbatch = 16\nparticipation = 2\n')
    words = ["tune", "--config", "job.toml", "--clients", "3", "--rounds", "1"]
    result = command([*words, "--out", "t", "--json"], tmp_path)
    assert result.returncode == 0, result.stderr
    tried = [json.loads(file.read_text()) for file in (tmp_path / "t").glob("*/config.json")]
    assert tried
    for config in tried:
        assert (config["data"], config["clients"], config["participation"]) == (["wine"], 3, 2)
        assert (config["local_epochs"], config["batch"], config["algorithm"]) == (2, 16, "fedavg")
