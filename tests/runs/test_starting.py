"""f⁰: training that begins with a function that is there, in memory or in a model file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ffgb import FFGB
from ffgb.algorithms.fedavg import FedAvg
from ffgb.algorithms.ffgb_c import FFGBC
from ffgb.algorithms.ffgb_shared import FFGBShared
from ffgb.core.functions import ClosedSum, OpenSum
from ffgb.core.grams import share_geometry
from ffgb.core.losses import Logistic, Square
from ffgb.core.schedules import Constant
from ffgb.errors import FFGBError
from ffgb.features.basic import Flatten
from ffgb.learners.linear import Linear
from ffgb.learners.mlp import MLP
from ffgb.runs.config import Config
from ffgb.runs.model import Model
from ffgb.runs.training import federate, train

rng = np.random.default_rng(5)
CLIENTS = [(x, (x[:, 0] + 0.3 * x[:, 1] > 0).astype(int)) for x in rng.standard_normal((3, 50, 2))]
LINEAR = Linear(Flatten(2), outputs=1)
X = rng.standard_normal((40, 2))


@pytest.mark.parametrize("mu", [0.0, 0.1])
def test_rounds_from_f0_are_the_rounds_that_come_next(mu: float) -> None:
    """2 + 3 rounds of Algorithm 1 are 5: f⁰ decays with μ like all else that f is."""
    algorithm = FFGB(Constant(1.0), K=2, mu=mu)
    whole, lines = federate(CLIENTS, LINEAR, Logistic(), algorithm, rounds=5)
    first, _ = federate(CLIENTS, LINEAR, Logistic(), algorithm, rounds=2)
    then, after = federate(CLIENTS, LINEAR, Logistic(), algorithm, rounds=3, f0=first.f)
    assert np.abs(whole.f(X)).max() > 0.5
    np.testing.assert_allclose(then.f(X), whole.f(X), rtol=0, atol=1e-6)
    assert after[-1]["train_loss"] == pytest.approx(lines[-1]["train_loss"], abs=1e-7)


def test_totals_go_on_from_f0() -> None:
    algorithm = FFGBShared(Constant(1.0), search=True)

    def learner(ask: object) -> tuple[Linear, object]:
        return LINEAR, share_geometry(ask, LINEAR.features, "exact", 1e-3)  # type: ignore[arg-type]

    whole, _ = federate(CLIENTS, learner, Logistic(), algorithm, rounds=3)  # type: ignore[arg-type]
    first, _ = federate(CLIENTS, learner, Logistic(), algorithm, rounds=2)  # type: ignore[arg-type]
    then, _ = federate(CLIENTS, learner, Logistic(), algorithm, rounds=1, f0=first.f)  # type: ignore[arg-type]
    apart, _ = federate(CLIENTS, learner, Logistic(), algorithm, rounds=1)  # type: ignore[arg-type]
    assert np.abs(apart.f(X) - whole.f(X)).max() > 1e-2
    np.testing.assert_allclose(then.f(X), whole.f(X), rtol=0, atol=1e-5)


def test_clients_and_server_have_the_same_f0_wherever_they_are() -> None:
    """An ensemble as f⁰, in worker processes too, when clients are sampled: the same bits."""
    family = MLP(Flatten(2), 1, (4,), steps=30)
    first, _ = federate(CLIENTS, family, Logistic(), FFGB(Constant(2.0), K=1), rounds=2)
    assert first.f.terms == 6
    found = [
        federate(CLIENTS, family, Logistic(), FFGB(Constant(2.0), K=1), 3, f0=first.f, workers=w, participation=2)
        for w in (0, 2)
    ]
    (here, lines), (there, _) = found
    assert here.f.terms == 6 + 3 * 2
    assert here.f(X).tobytes() == there.f(X).tobytes()
    assert lines[0]["train_loss"] < 0.6  # it did not begin with 0, where the loss is log 2


def test_one_learner_begins_a_method_on_parameters_and_a_sum_does_not() -> None:
    family = MLP(Flatten(2), 1, (4,), steps=30)
    net, before = federate(CLIENTS, family, Logistic(), FedAvg(0.5, 10), rounds=4)
    again, after = federate(CLIENTS, family, Logistic(), FedAvg(0.5, 10), rounds=1, f0=net.result)
    assert after[0]["train_loss"] < before[-1]["train_loss"] < before[0]["train_loss"]
    boosted, _ = federate(CLIENTS, family, Logistic(), FFGB(Constant(1.0)), rounds=1, f0=again.result)
    assert isinstance(boosted.f, OpenSum)
    assert boosted.f.terms == 4
    with pytest.raises(FFGBError, match="begins with one learner, and the model is a weighted sum of 4"):
        federate(CLIENTS, family, Logistic(), FedAvg(0.5, 10), rounds=1, f0=boosted.f)


def test_a_sum_that_was_clipped_at_the_end_goes_on_from_the_sum() -> None:
    algorithm = FFGBC(Constant(0.5), 1, mu=0.1, gamma=0.5, B=0.3)
    whole, _ = federate(CLIENTS, LINEAR, Logistic(), algorithm, rounds=3)
    first, _ = federate(CLIENTS, LINEAR, Logistic(), algorithm, rounds=2)
    then, _ = federate(CLIENTS, LINEAR, Logistic(), algorithm, rounds=1, f0=first.result)
    np.testing.assert_allclose(then.result(X), whole.result(X), rtol=0, atol=1e-6)


def test_a_sum_of_linear_terms_becomes_one_array_unless_it_is_clipped() -> None:
    members = [LINEAR.member({"weight": np.full((3, 1), float(k + 1))}) for k in range(2)]
    opened = OpenSum(LINEAR, ()) + members[0] * 0.5 + members[1]
    assert isinstance(opened, OpenSum)
    one = opened.collapsed()
    assert isinstance(one, ClosedSum)
    np.testing.assert_array_equal(one.parameters["weight"], np.full((3, 1), 2.5))
    clipped = opened + members[0].clip(0.1)
    assert isinstance(clipped, OpenSum)
    with pytest.raises(FFGBError, match="cannot be one array"):
        clipped.collapsed()


def write_sites(folder: Path) -> list[str]:
    """Regression tables: the second lacks a category and has another scale of targets."""
    draw = np.random.default_rng(0)
    for name, kinds, shift in (("a", "xyz", 0.0), ("b", "xy", 50.0)):
        x = draw.standard_normal((120, 2))
        kind = draw.choice(list(kinds), 120)
        y = 3 * x[:, 0] + 5 * (kind == "y") + shift + draw.standard_normal(120)
        pd.DataFrame({"u": x[:, 0], "v": x[:, 1], "kind": kind, "y": y}).to_csv(folder / f"{name}.csv", index=False)
    return [str(folder / f"{name}.csv") for name in "ab"]


def test_a_model_from_elsewhere_keeps_its_columns_and_its_unit(tmp_path: Path) -> None:
    """A run that starts from a model has its features, categories and scaling, and scores better than from nothing."""
    a, b = write_sites(tmp_path)
    train(Config(data=(a,), target="y", rounds=2), tmp_path / "first", workers=0)
    first = Model.load(tmp_path / "first")
    config = Config(data=(b,), target="y", rounds=1, start=str(tmp_path / "first"))
    result = train(config, tmp_path / "second", workers=0)
    then = result.model
    assert then.columns == first.columns
    assert then.table == first.table
    assert first.job.target is not None
    assert then.job.target is not None
    np.testing.assert_array_equal(then.job.target.mean, first.job.target.mean)
    assert result.summary["test_rmse"] < 2.0
    written = (tmp_path / "second" / "model.safetensors").read_bytes()
    again = train(config, tmp_path / "second", workers=0, resume=True)
    assert again.model.to_bytes() == written


def test_a_run_that_was_stopped_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    first = train(
        Config(data="wine", clients=4, rounds=1, learner="mlp", oracle_steps=20), tmp_path / "first", workers=0
    )
    assert first.finished
    config = Config(data="wine", clients=4, rounds=3, start=str(tmp_path / "first"), oracle_steps=20, participation=2)
    whole = train(config, tmp_path / "whole", workers=0)
    assert whole.summary["learner"] == "mlp"
    part = train(config, tmp_path / "part", workers=0, should_stop=iter([False, True]).__next__)
    assert not part.finished
    rest = train(config, tmp_path / "part", workers=0, resume=True)
    assert rest.model.to_bytes() == whole.model.to_bytes()
    (tmp_path / "first" / "model.safetensors").write_bytes(whole.model.to_bytes())
    assert rest.run is not None
    with pytest.raises(FFGBError, match="has changed since the run was started"):
        Config.from_json(rest.run.config)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"learner": "mlp"}, "is a model of --learner features"),
        ({"map": "fourier"}, "--map shapes learners"),
        ({"validation": 0.2}, "--validation tries settings from f⁰ = 0"),
        ({"data": "digits"}, "points of shape"),
        ({"data": "breast_cancer"}, "points of shape"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(given: dict[str, object], words: str, tmp_path: Path) -> None:
    train(Config(data="wine", clients=4, rounds=1, learner="features"), tmp_path / "first", workers=0)
    with pytest.raises(FFGBError) as error:
        train(Config(**{"data": "wine", "clients": 4, "start": str(tmp_path / "first"), **given}), workers=0)
    assert words in str(error.value)


def test_another_loss_is_refused(tmp_path: Path) -> None:
    a, _ = write_sites(tmp_path)
    train(Config(data=(a,), target="y", rounds=1), tmp_path / "first", workers=0)
    with pytest.raises(FFGBError, match="trained with the loss Square, and not Huber"):
        train(Config(data=(a,), target="y", loss="huber", start=str(tmp_path / "first")), workers=0)
    assert isinstance(Model.load(tmp_path / "first").job.loss, Square)
