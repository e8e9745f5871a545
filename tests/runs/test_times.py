"""Boosting times until an event, `--target days,died`: every learner of totals, under masks, and what is refused."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import ffgb
from ffgb.cli.common import app
from ffgb.core.concordance import c_index, concordance
from ffgb.core.losses.cox import times_of
from ffgb.core.types import Array
from ffgb.errors import FFGBError
from ffgb.runs.config import Config, load_data
from ffgb.runs.directory import Run
from ffgb.runs.evaluate import evaluate, held_out
from ffgb.runs.fit import fit
from ffgb.runs.fit_times import load
from ffgb.runs.model import Model
from ffgb.runs.onnx import export
from ffgb.runs.training import train

NAMES = ("north", "south", "west")


def table(rng: np.random.Generator, n: int, baseline: float) -> pd.DataFrame:
    rows = pd.DataFrame({"age": rng.normal(60, 10, n).round(), "treated": rng.integers(0, 2, n)})
    days = rng.exponential(baseline * np.exp(-0.06 * (rows.age - 60) + 0.9 * rows.treated))
    return rows.assign(days=np.minimum(days, 1000).round() + 1, died=(days < 1000).astype(int))


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, ...]:
    rng = np.random.default_rng(0)
    for name, baseline in zip(NAMES, (800, 400, 1500), strict=True):
        table(rng, 150, baseline).to_csv(tmp_path / f"{name}.csv", index=False)
    return tuple(str(tmp_path / f"{name}.csv") for name in NAMES)


def coefficients(model: Model, x: Array) -> Array:
    """Of f, as a line in the columns."""
    design = np.column_stack([np.ones(len(x)), x])
    found: Array = np.linalg.lstsq(design, model.decision(x)[:, 0], rcond=None)[0][1:]
    return found


@pytest.mark.parametrize("learner", ["linear", "additive"])
def test_a_line_is_that_of_coxs_model(learner: str, files: tuple[str, ...]) -> None:
    """Up to the shrinkage that the evidence asks for."""
    model = train(Config(data=files, target="days,died", learner=learner), workers=0).model
    known = ffgb.cox(files, "age + treated", time="days", event="died", ties="breslow")
    x = np.concatenate([pd.read_csv(file)[["age", "treated"]].to_numpy(np.float32) for file in files])
    assert np.abs(coefficients(model, x) - known.coefficients).max() < 0.15 * np.abs(known.coefficients).max()
    assert np.all(np.abs(coefficients(model, x) - known.coefficients) < 3.0 * known.standard_errors)


@pytest.mark.parametrize("learner", ["auto", "trees", "linear", "features"])
def test_new_rows_are_ordered_and_masks_change_no_bit(learner: str, files: tuple[str, ...]) -> None:
    config = {"data": files, "target": "days,died", "learner": learner, "rounds": 3}
    result = train(Config(**config), workers=0)
    hidden = train(Config(**config, secure="on"), workers=0)
    ours, theirs = result.model.f.tensors(), hidden.model.f.tensors()
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    new = table(np.random.default_rng(1), 500, 600)
    f = result.model.predict(new[["age", "treated"]].to_numpy(np.float32))
    found = c_index(concordance(new.days.to_numpy(), new.died.to_numpy() > 0, f))
    assert found is not None
    assert found > 0.62  # 0.68 for the truth
    assert result.summary["test_concordance"] > 0.5
    assert "test_rmse" not in result.summary


def test_no_sum_of_times_is_asked_for(files: tuple[str, ...]) -> None:
    """Only gradients depend on them: doubling all times changes nothing."""
    twice = []
    for file in files:
        pd.read_csv(file).assign(days=lambda rows: rows.days * 2).to_csv(f"{file}.2.csv", index=False)
        twice.append(f"{file}.2.csv")
    one, two = (train(Config(data=tuple(some), target="days,died", rounds=2), workers=0) for some in (files, twice))
    assert one.summary["learner"] == "additive"
    assert [line["train_loss"] for line in one.metrics] == [line["train_loss"] for line in two.metrics]
    tensors = one.model.f.tensors()
    assert all(np.array_equal(tensors[name], array) for name, array in two.model.f.tensors().items())


def test_a_run_is_evaluated_by_site(files: tuple[str, ...], tmp_path: Path) -> None:
    result = train(Config(data=files, target="days,died", rounds=2), tmp_path / "run", workers=0)
    found = evaluate(Run.open(tmp_path / "run"))
    assert set(found) == {"all", *NAMES}
    rows = sum(found[name]["rows"] for name in NAMES)
    mean = sum(found[name]["rows"] * found[name]["concordance"] for name in NAMES) / rows
    assert result.summary["test_concordance"] == pytest.approx(mean)
    clients = Run.open(tmp_path / "run").clients
    assert clients is not None
    held = [row["test"]["concordance"] for row in clients["clients"]]
    assert held == pytest.approx([found[name]["concordance"] for name in NAMES])


def test_events_are_held_out_in_proportion(files: tuple[str, ...]) -> None:
    dataset = load_data(Config(data=files, target="days,died"))
    shares = [times_of(y)[1].mean() for y in (dataset.y, dataset.y_test)]
    assert shares[0] == pytest.approx(shares[1], abs=0.01)


@pytest.mark.parametrize(
    ("change", "given", "words"),
    [
        ({}, {"target": "days,dead"}, "no column 'dead'"),
        ({}, {"target": "days,died,age"}, "neither one column nor"),
        ({"died": 2}, {}, "values other than 0 and 1"),
        ({"days": -1.0}, {}, "count times from the start"),
        ({"died": 0}, {"data": "first"}, "no row has an event"),
        ({}, {"loss": "square"}, "knows of no events"),
        ({}, {"learner": "blend"}, "a blend sets rows aside"),
        ({}, {"weights": "age"}, "cannot be combined with"),
        ({}, {"task": "classification"}, "no class"),
    ],
)
def test_what_cannot_be_is_said(
    change: dict[str, float], given: dict[str, str], words: str, files: tuple[str, ...]
) -> None:
    pd.read_csv(files[0]).assign(**change).to_csv(files[0], index=False)
    some = {"data": files[:1]} if "data" in given else {}
    with pytest.raises(FFGBError, match=words):
        train(Config(**{"data": files, "target": "days,died", "rounds": 1, **given, **some}), workers=0)


@pytest.fixture
def run(files: tuple[str, ...], tmp_path: Path) -> Run:
    train(Config(data=files, target="days,died"), tmp_path / "run", workers=0)
    return Run.open(tmp_path / "run")


def test_the_fit_is_told_by_site_and_no_group_is_small(run: Run) -> None:
    found = run.fit
    assert found is not None
    assert found["task"] == "times"
    assert set(found["parts"]) >= {"all"}
    for part in found["parts"].values():
        assert part["events"] >= 10
        assert part["rows"] - part["events"] >= 10
        low, value, high = (part["scores"]["c_index"][word] for word in ("low", "value", "high"))
        assert low < value < high
        assert 0 < part["scores"]["integrated_brier"]["value"] < 0.25
        assert [at["time"] for at in part["horizons"]] == sorted({at["time"] for at in part["horizons"]})
    whole = found["parts"]["all"]["horizons"]
    assert all(at["observed"]["low"] - 0.05 < at["expected"] < at["observed"]["high"] + 0.05 for at in whole)
    assert found["parts"]["all"]["scores"]["brier_gain"]["value"] > 0
    rows = held_out(run, Model.load(run.path))
    by = fit(Model.load(run.path), rows, by=["treated"])["subgroups"]
    assert [group["group"] for group in by[0]["groups"]] == ["0", "1"]
    tiny = fit(Model.load(run.path), rows, least=len(rows.y))
    assert set(tiny["parts"]) == {"all"}
    assert any("no two groups of sites" in sentence for sentence in tiny["left_out"])


def test_commands_show_it(run: Run, files: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, ["evaluate", str(run.path)])
    assert done.exit_code == 0, done.output
    assert "events by a time, expected and come" in done.output
    done = CliRunner().invoke(app, ["predict", str(run.path), files[0], "--times", "100,300,1e6", "--site", "south"])
    assert done.exit_code == 0, done.output
    table = pd.read_csv(io.StringIO(done.stdout))
    chances = table[["survival_100", "survival_300", "survival_1e+06"]].to_numpy()
    assert (np.diff(chances, axis=1) <= 0).all()
    assert ((chances > 0) & (chances <= 1)).all()
    order = np.argsort(table["prediction"])
    assert (np.diff(chances[order, 1]) <= 1e-12).all()  # a higher risk survives less
    done = CliRunner().invoke(app, ["explain", str(run.path)])
    assert "rise of the loss" in done.output
    page = (run.path / "report.html").read_text()
    assert "Says who has the event earlier" in page
    assert "Events by a time" in page


def test_hazards_are_asked_of_runs_that_have_them(run: Run) -> None:
    (run.path / "baseline.json").unlink()
    with pytest.raises(FFGBError, match=r"has no baseline\.json"):
        load(run.path)
    found = fit(Model.load(run.path), held_out(run, Model.load(run.path)))
    assert set(found["parts"]["all"]["scores"]) == {"c_index"}
    assert any("too few events for hazards" in sentence for sentence in found["left_out"])


def test_an_exported_model_says_the_same(run: Run, tmp_path: Path) -> None:
    model = Model.load(run.path)
    assert export(model, tmp_path / "model.onnx") < 1e-5


def test_a_site_without_events_takes_part_and_changes_nothing(files: tuple[str, ...], tmp_path: Path) -> None:
    """All rows of a stratum without events have no gradient; ties count by Breslow's method."""
    rows = pd.read_csv(files[0])
    rows.assign(died=0).to_csv(tmp_path / "calm.csv", index=False)
    rows.assign(days=(rows.days // 200 + 1) * 200).to_csv(tmp_path / "tied.csv", index=False)
    some = (str(tmp_path / "tied.csv"), *files[1:])
    config = {"target": "days,died", "learner": "linear", "rounds": 4}
    with_it = train(Config(data=(*some, str(tmp_path / "calm.csv")), **config), workers=0).model
    known = ffgb.cox(some, "age + treated", time="days", event="died", ties="breslow")
    x = np.concatenate([pd.read_csv(file)[["age", "treated"]].to_numpy(np.float32) for file in some])
    assert np.all(np.abs(coefficients(with_it, x) - known.coefficients) < 3.0 * known.standard_errors)


def test_a_site_goes_on_by_itself(run: Run, files: tuple[str, ...]) -> None:
    """A local refinement: some steps from the common model, with the site's own rows."""
    config = Config(data=files[:1], target="days,died", start=str(run.path), rounds=2)
    own = train(config, workers=0).model
    assert own.job.loss == Model.load(run.path).job.loss
    data = load_data(Config(data=files[:1], target="days,died"))
    losses = [model.score(data.x, data.y)["loss"] for model in (Model.load(run.path), own)]
    assert losses[1] < losses[0]


def test_a_schema_names_both_columns(files: tuple[str, ...], tmp_path: Path) -> None:
    schema = str(tmp_path / "schema.toml")
    done = CliRunner().invoke(app, ["data", "describe", files[0], "--target", "days,died", "-o", schema])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(app, ["data", "check", files[0], "--schema", schema])
    assert done.exit_code == 0, done.output
    config = Config(data=files[:1], target="days,died", schema=schema, rounds=1)
    assert train(config, workers=0).summary["train_concordance"] > 0.5


def test_the_estimators_take_times_with_a_sign(files: tuple[str, ...]) -> None:
    rows = pd.concat([pd.read_csv(file) for file in files], ignore_index=True)
    x, y = rows[["age", "treated"]], np.where(rows.died > 0, rows.days, -rows.days)
    clients = np.repeat(NAMES, 150)
    model = ffgb.FFGBRegressor(loss="cox", learner="linear").fit(x, y, clients=clients)
    found = c_index(concordance(rows.days.to_numpy(), rows.died.to_numpy() > 0, model.predict(x)))
    assert model.score(x, y) == pytest.approx(found)
    assert model.score(x, y) > 0.6
    with pytest.raises(FFGBError, match="takes no weights of rows"):
        ffgb.FFGBRegressor(loss="cox", learner="linear").fit(x, y, clients=clients, sample_weight=np.ones(450))
