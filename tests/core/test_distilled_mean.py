"""The server's distillation between rounds: N increments become one learner, at points of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ffgb import FFGB
from ffgb.core.distilled_mean import DistilledMean
from ffgb.core.functions import average
from ffgb.core.losses import Logistic
from ffgb.core.schedules import Constant
from ffgb.engines.local import local_engine
from ffgb.errors import FFGBError
from ffgb.features.basic import Flatten
from ffgb.federation.host import Holding
from ffgb.federation.server import Server
from ffgb.learners.mlp import MLP
from ffgb.learners.trees import Tree
from ffgb.runs.config import Config
from ffgb.runs.training import train

rng = np.random.default_rng(3)
CLIENTS = [(x, (x[:, 0] * x[:, 1] > 0).astype(int)) for x in rng.standard_normal((4, 60, 2))]
OWN = rng.standard_normal((300, 2))


def test_one_tree_says_what_the_mean_of_trees_says_where_it_can() -> None:
    """Stumps on the same threshold: their mean is a stump, and least squares finds it exactly."""
    family = Tree(Flatten(2), 1, depth=1)
    stumps = [
        family.member({"feature": np.zeros(1, np.int32), "threshold": np.zeros(1), "value": np.array([[-a], [a]])})
        for a in (1.0, 3.0)
    ]
    one, measured = DistilledMean(OWN).of_round(0, stumps, [1.0, 1.0], stumps[0])
    assert one.terms == 1
    np.testing.assert_allclose(one(OWN), average(stumps, [1.0, 1.0])(OWN), atol=1e-12)
    assert measured["gamma_distilled"] == pytest.approx(1.0)


def boosted(aggregate: DistilledMean | None, rounds: int = 4) -> tuple[Server, list[dict[str, float]], object]:
    family = MLP(Flatten(2), 1, (8,), steps=150)
    with local_engine([Holding(x, y) for x, y in CLIENTS], 0) as engine:
        server = Server(engine, [60] * 4, aggregate=aggregate)
        state = server.start(FFGB(Constant(4.0), K=1), lambda ask: (family, None), Logistic())
        lines = []
        for after, line in server.rounds(state, rounds):
            state = after
            lines.append(line)
    return server, lines, state


def test_f_grows_by_one_learner_a_round_and_one_travels_down() -> None:
    _, plain, whole = boosted(None)
    _, lines, state = boosted(DistilledMean(OWN, seed=1))
    assert whole.f.terms == 16  # type: ignore[attr-defined]
    assert state.f.terms == 4  # type: ignore[attr-defined]
    assert [line["models_down"] for line in lines] == pytest.approx([1.0, 2.0, 3.0, 4.0])
    assert plain[-1]["models_down"] == pytest.approx(12.0)  # a client is not charged for its own
    assert all(0.3 < line["gamma_distilled"] <= 1.0 for line in lines)
    assert lines[-1]["train_loss"] < 0.8 * lines[0]["train_loss"]
    assert lines[-1]["train_accuracy"] > plain[-1]["train_accuracy"] - 0.05
    _, again, _ = boosted(DistilledMean(OWN, seed=1))
    assert [line["train_loss"] for line in again] == [line["train_loss"] for line in lines]
    _, other, _ = boosted(DistilledMean(OWN, seed=2))
    assert other[-1]["train_loss"] != lines[-1]["train_loss"]


def test_rounds_draw_numbers_of_their_own() -> None:
    family = MLP(Flatten(2), 1, (8,), steps=20)
    answers = [family.member(family.initial(np.random.default_rng(k))) for k in range(3)]
    first, second = (DistilledMean(OWN).of_round(t, answers, [1.0] * 3, answers[0])[0](OWN) for t in (0, 1))
    assert np.abs(first - second).max() > 1e-6


def test_a_server_without_points_is_refused() -> None:
    with pytest.raises(FFGBError, match="no points"):
        DistilledMean(OWN[:0])


def test_by_settings(tmp_path: Path) -> None:
    """From files, resumed to the same bits; the server's points need no target."""
    draw = np.random.default_rng(0)
    for name in "abs":
        x = draw.standard_normal((100, 2))
        table = pd.DataFrame({"u": x[:, 0], "v": x[:, 1]})
        if name != "s":
            table["y"] = np.where(x[:, 0] > 0, "yes", "no")
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    data = tuple(str(tmp_path / f"{name}.csv") for name in "ab")
    config = Config(
        data=data, target="y", learner="tree", rounds=3, distill="server", distill_data=str(tmp_path / "s.csv")
    )
    whole = train(config, tmp_path / "whole", workers=0)
    assert whole.model.f.terms == 3
    assert whole.summary["test_accuracy"] > 0.9
    assert "gamma_distilled" in whole.summary
    train(config, tmp_path / "part", workers=0, should_stop=iter([False, True]).__next__)
    assert train(config, tmp_path / "part", workers=0, resume=True).model.to_bytes() == whole.model.to_bytes()
    for given in ({"distill": "server"}, {"distill_data": data[0]}):
        with pytest.raises(FFGBError, match="needs points of the server's own"):
            train(Config(data=data, target="y", learner="tree", **given), workers=0)
