"""Private trainings from settings: shares under masks, what is told of them, and what is refused."""

from __future__ import annotations

import json
import math
import secrets
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("cryptography")

from scipy import stats

from ffgb import FFGBClassifier, FFGBRegressor
from ffgb.algorithms.additive_private import AdditiveReleased
from ffgb.core.points import Points
from ffgb.core.private_question import PrivateQuestion
from ffgb.core.private_sums import ColumnCounts, PairCounts, ResidualSums
from ffgb.core.questions import Here
from ffgb.core.seeds import stream
from ffgb.data.dataset import HOLDOUT, hold_out_groups
from ffgb.errors import FFGBError, SettingError
from ffgb.federation import host
from ffgb.privacy.accountant import mu_of
from ffgb.privacy.identity import Simulated
from ffgb.privacy.noise import noise_of
from ffgb.privacy.release import name_of
from ffgb.runs.card import card
from ffgb.runs.config import Config, load_data
from ffgb.runs.directory import Run
from ffgb.runs.evaluate import held_out, trained_on
from ffgb.runs.model import Model
from ffgb.runs.onnx import to_onnx
from ffgb.runs.training import Result, train
from tests.cli.commands import ffgb

SCHEMA = """target = "sick"
[columns.age]
bounds = [0, 100]
[columns.job]
type = "category"
categories = ["nurse", "clerk", "smith"]
[columns.sick]
type = "category"
categories = ["no", "yes"]
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sites' tables, with a column of patients, and their schema."""
    folder, rng = tmp_path_factory.mktemp("private"), np.random.default_rng(0)
    for name in ("east", "north", "west"):
        age = rng.uniform(0, 100, 400)
        job = np.array(["nurse", "clerk", "smith"])[rng.integers(0, 3, 400)]
        sick = np.where(rng.random(400) < 1 / (1 + np.exp(-(age - 50) / 12)), "yes", "no")
        lines = [
            f"{'' if i % 20 == 0 else f'{a:.1f}'},{j},p{i // 2},{s}"
            for i, (a, j, s) in enumerate(zip(age, job, sick, strict=True))
        ]
        (folder / f"{name}.csv").write_text("\n".join(["age,job,patient,sick", *lines]) + "\n")
        (folder / f"{name}-bare.csv").write_text(
            "\n".join(["age,job,sick", *(",".join(line.split(",")[k] for k in (0, 1, 3)) for line in lines)]) + "\n"
        )
    (folder / "schema.toml").write_text(SCHEMA)
    (folder / "units.toml").write_text(SCHEMA + '[columns.patient]\ntype = "category"\n')
    return folder


def config(files: Path, **settings: Any) -> Any:
    data = tuple(str(files / f"{name}-bare.csv") for name in ("east", "north", "west"))
    values = {"data": data, "target": "sick", "epsilon": 8.0, "schema": str(files / "schema.toml"), "noise_seed": 0}
    return Config(**{**values, **settings})


@pytest.fixture(scope="module")
def result(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    return train(config(files), tmp_path_factory.mktemp("runs") / "run", workers=0)


def test_it_learns_and_says_what_it_promises(result: Result) -> None:
    summary = result.summary
    assert summary["test_auc"] > 0.8
    assert summary["learner"] == "additive"
    assert summary["train_loss"] is None
    promise = summary["privacy"]
    assert (promise["epsilon"], promise["delta"], promise["adjacency"]) == (
        8.0,
        1e-5,
        "one row is replaced by an empty one",
    )
    assert "complete without 1 of 3 clients" in promise["noise"]
    assert "bounds and categories of the schema" in promise["public"]
    assert "for experiments alone" in promise["warning"]


def test_the_promise_is_in_the_files_of_the_run(result: Result) -> None:
    assert result.run is not None
    folder = result.run.path
    assert json.loads((folder / "summary.json").read_text())["privacy"]["epsilon"] == 8.0
    algorithm = Model.load(folder / "model.safetensors").job.algorithm
    assert isinstance(algorithm, AdditiveReleased)
    assert json.loads(algorithm.promise)["delta"] == 1e-5
    text = (folder / "report.html").read_text()
    assert "ε = 8" in text
    clients = json.loads((folder / "clients.json").read_text())
    assert all(client["train"] is client["test"] is client["labels"] is None for client in clients["clients"])
    assert clients["columns"] == []


def test_totals_under_masks_are_those_of_one_curator(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each question: the exact sum of all rows, and noise of the deviation S/μ, times N/(N − c) in its variance.

    S is the norm of a row in the mechanism's own units, from the table of docs/privacy.md.
    """
    told = list[tuple[PrivateQuestion, Any]]()
    for kind in (ColumnCounts, PairCounts, ResidualSums):

        def total(self: Any, sums: Any, own: Any = kind.total) -> Any:
            told.append((self, {name: array.copy() for name, array in sums.items()}))
            return own(self, sums)

        monkeypatch.setattr(kind, "total", total)
    train(config(files), workers=0)
    dataset, mu, d = load_data(config(files)), mu_of(8.0, 1e-5), 2
    points = Points(0, dataset.x, dataset.y)
    names = [type(question).__name__ for question, _ in told]
    assert names == ["ColumnCounts", "PairCounts", *["ResidualSums"] * 12]
    assert sum(question.mu**2 for question, _ in told) == pytest.approx(mu**2, rel=1e-12)
    norms = [math.sqrt(d), math.sqrt(d * (d - 1) / 2), math.sqrt(d / 2), *[math.sqrt(d)] * 11]
    found = []
    for (question, sums), norm in zip(told, norms, strict=True):
        unit = question.unit if isinstance(question, ResidualSums) else 1.0 / question.weight  # type: ignore[attr-defined]
        assert math.sqrt(question.square) * unit == pytest.approx(norm, rel=1e-3)
        exact = question.part(Here(points, 1.0))
        central = norm / unit / question.mu * math.sqrt(3 / 2)
        found.append(np.concatenate([(sums[name] - exact[name]).ravel() / central for name in exact]))
    for noise in (found[0], np.concatenate(found[1:])):
        assert abs(noise.mean()) < 4 / math.sqrt(len(noise))
        assert abs(noise.var() - 1.0) < 4 * math.sqrt(2 / len(noise)) + 2e-3
        assert stats.kstest(noise, "norm").pvalue > 1e-3


def test_the_promise_is_in_exported_files(result: Result) -> None:
    onnx = pytest.importorskip("onnx")
    assert result.run is not None
    made = onnx.load_from_string(to_onnx(result.model))
    promise = json.loads({entry.key: entry.value for entry in made.metadata_props}["privacy"])
    text = card(Run.open(result.run.path), result.model)
    page = (result.run.path / "report.html").read_text()
    assert (promise["epsilon"], promise["delta"]) == (8.0, 1e-5)
    assert "ε = 8, δ = 1e-05" in text
    assert "ε = 8, δ = 1e-05" in page
    for said in (promise["adjacency"], *promise["public"]):
        assert said in text
        assert said in page


def test_rows_that_were_trained_on_are_known_without_hashes(files: Path, result: Result) -> None:
    """By the names of files: what is scored are the rows that were held out, by their places."""
    assert result.run is not None
    run, own = Run.open(result.run.path), files / "east-bare.csv"
    assert set(run.config["sha256"]) == {str(files / "schema.toml")}
    assert trained_on(run, [own]) == {own}
    assert trained_on(run, [files / "east.csv"]) == set()
    rows = held_out(run, result.model, [str(own)])
    dataset = load_data(config(files))
    assert (rows.x == dataset.x_test[dataset.site_test == 0]).all()
    assert (rows.y == dataset.y_test[dataset.site_test == 0]).all()


def test_all_that_is_written_follows_from_noisy_answers(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers that know nothing of rows, and then other rows to train with: not one byte changes, also of the report.

    The hashes of files were there once: whoever knows all rows but one can try what that one is.
    """
    monkeypatch.setattr(host, "with_noise", blind)
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    kept, _ = hold_out_groups(np.arange(400), HOLDOUT, stream(0, "holdout"))
    written = []
    for k in range(2):
        folder = tmp_path / str(k)
        folder.mkdir()
        for name in ("east", "north", "west"):
            head, *rows = (files / f"{name}-bare.csv").read_text().splitlines()
            for i in kept if k else ():
                rows[i] = "99,smith,no"
            (folder / f"{name}-bare.csv").write_text("\n".join([head, *rows]) + "\n")
        (folder / "schema.toml").write_text(SCHEMA)
        train(config(folder), folder / "run", workers=0)
        paths = [path for path in (folder / "run").rglob("*") if path.is_file()]
        text = str(folder).encode()
        written.append({str(path.relative_to(folder)): path.read_bytes().replace(text, b"") for path in paths})
    assert written[0] == written[1]
    assert {"run/report.html", "run/summary.json", "run/model.safetensors", "run/config.json"} <= written[0].keys()


def blind(
    question: PrivateQuestion, part: Any, points: Points, identity: Simulated, among: bytes = b""
) -> dict[str, Any]:
    """Noise alone, in place of an answer with noise."""
    name = name_of(question, b"", identity.name.encode(), among)
    return noise_of(b"k" * 32, name, question.deviation, question.shapes)


def test_an_estimator_has_nothing_but_what_follows_from_noisy_answers(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "with_noise", blind)
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    found = []
    for k in range(2):
        rng = np.random.default_rng(k)
        x = pd.DataFrame({"age": rng.uniform(0, 100, 300), "job": rng.choice(["nurse", "clerk", "smith"], 300)})
        model = FFGBClassifier(epsilon=4.0, schema=str(files / "schema.toml"), noise_seed=0, warm_start=True)
        model.fit(x, np.array(["no", "yes"])[np.arange(300) % 2], clients=np.arange(300) % 3)
        state = {name: value for name, value in vars(model).items() if name not in ("model_", "_progress", "_stages")}
        found.append((model.model_.to_bytes(), repr(sorted(state.items())), vars(model)["_progress"].rows))
    assert found[0] == found[1]


def test_the_same_noise_seed_gives_the_same_model_and_another_another(files: Path, result: Result) -> None:
    again, other = (train(config(files, noise_seed=seed), workers=0).model.to_bytes() for seed in (0, 1))
    assert again == result.model.to_bytes()
    assert other != again


def test_without_a_noise_seed_noise_is_secret(files: Path) -> None:
    first, second = (train(config(files, noise_seed=None), workers=0) for _ in range(2))
    assert "warning" not in first.summary["privacy"]
    assert first.model.to_bytes() != second.model.to_bytes()


def test_the_secret_number_of_a_simulation_is_written_nowhere(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who knew it could take the noise off."""
    number = 3**75
    monkeypatch.setattr(secrets, "randbits", lambda bits: number)
    train(config(files, noise_seed=None), tmp_path / "run", workers=0)
    written = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    for text in (str(number), f"{number:x}", f"{number:X}"):
        assert text.encode() not in written
    assert number.to_bytes(15, "big") not in written
    assert number.to_bytes(15, "little") not in written


def test_without_masks_each_client_adds_all_the_noise(files: Path) -> None:
    found = train(config(files, secure="off"), workers=0).summary
    assert found["privacy"]["noise"] == "discrete Gaussian at each client: there are no masks"


def test_a_patient_with_several_rows_costs_more(files: Path) -> None:
    data = tuple(str(files / f"{name}.csv") for name in ("east", "north", "west"))
    with pytest.raises(FFGBError, match="how many rows one unit has"):
        train(config(files, data=data, schema=str(files / "units.toml"), unit="patient"), workers=0)
    one, two = (
        train(config(files, data=data, schema=str(files / "units.toml"), unit="patient", unit_rows=k), workers=0)
        for k in (1, 2)
    )
    assert two.summary["privacy"]["adjacency"] == "all rows of one patient (up to 2) are replaced by empty ones"
    # of each patient with two rows the second is left out
    rows = [json.loads(each.model.job.algorithm.promise)["rows"] for each in (one, two)]  # type: ignore[attr-defined]
    assert 2 * rows[0] == rows[1]
    with pytest.raises(FFGBError, match="no column 'patient'"):
        train(config(files, unit="patient", unit_rows=2), workers=0)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"delta": 0.5}, "delta"),
        ({"schema": None}, "public bounds and categories"),
        ({"learner": "trees"}, "trees has no private form.*additive"),
        ({"learner": "linear"}, "linear has no private form.*additive"),
        ({"algorithm": "fedavg"}, "fedavg has no private form.*additive"),
        ({"validation": 0.2}, "validation.*cannot be combined with"),
        ({"stop": True}, "scores"),
        ({"class_weight": "balanced"}, "class.weight.*a row counts at most once"),
        ({"group": "job"}, "group.*must not depend on others"),
        ({"rounds": 7}, "leave.*rounds.*out"),
    ],
)
def test_what_cannot_be_private_is_refused(files: Path, settings: dict[str, Any], why: str) -> None:
    with pytest.raises((FFGBError, SettingError), match=why):
        train(config(files, **settings), workers=0)


def test_units_are_refused_where_no_one_counts_their_rows(files: Path) -> None:
    """The noise would be that of a row, and the promise that of a patient."""
    with pytest.raises(FFGBError, match=r"unit.*named sets"):
        train(config(files, data="digits", target=None, unit="patient", unit_rows=2), workers=0)


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("bounds = [0, 100]", "", "public bounds of the column 'age'"),
        ('categories = ["nurse", "clerk", "smith"]', "", "public categories of the column 'job'"),
        ('"nurse", "clerk", "smith"', '"nurse", "clerk"', "'smith' in row"),
        ("[0, 100]", "[0, 50]", "the schema allows numbers from 0 to 50"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(files: Path, tmp_path: Path, before: str, after: str, why: str) -> None:
    (tmp_path / "schema.toml").write_text(SCHEMA.replace(before, after))
    with pytest.raises(FFGBError, match=why):
        train(config(files, schema=str(tmp_path / "schema.toml")), workers=0)


def test_estimators_are_private(files: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = pd.DataFrame({"age": rng.uniform(0, 100, 3000), "job": rng.choice(["nurse", "clerk", "smith"], 3000)})
    y = x["age"].to_numpy() / 10 + (x["job"] == "smith") * 3
    schema = tmp_path / "numbers.toml"
    schema.write_text(
        SCHEMA.partition("[columns.sick]")[0].replace("sick", "dose") + "[columns.dose]\nbounds = [0, 15]\n"
    )
    known = {"epsilon": 4.0, "delta": 1e-6, "noise_seed": 0}
    numbers = FFGBRegressor(schema=str(schema), **known).fit(x, y, clients=np.arange(3000) % 4)
    assert numbers.score(x, y) > 0.9
    classes = FFGBClassifier(schema=str(files / "schema.toml"), **known).fit(x, y > 6, clients=np.arange(3000) % 4)
    assert classes.score(x, y > 6) > 0.9
    for model in (numbers, classes):
        algorithm = model.model_.job.algorithm
        assert isinstance(algorithm, AdditiveReleased)
        promise = json.loads(algorithm.promise)
        assert (promise["epsilon"], promise["delta"]) == (4.0, 1e-6)
    with pytest.raises(ValueError, match="weight"):
        FFGBClassifier(schema=str(files / "schema.toml"), **known).fit(x, y > 6, sample_weight=np.arange(3000.0))
    with pytest.raises(ValueError, match="schema"):
        FFGBClassifier(**known).fit(x, y > 6)


def test_the_command_line_trains_with_noise(files: Path, tmp_path: Path) -> None:
    data = [word for name in ("east", "north", "west") for word in ("--data", files / f"{name}-bare.csv")]
    words = ["train", *data, "--target", "sick", "--schema", files / "schema.toml", "--out", tmp_path / "run", "--json"]
    done = ffgb(*words, "--epsilon", "2", "--delta", "1e-6", "--workers", "0")
    assert done.returncode == 0, done.stderr
    promise = json.loads(done.stdout)["privacy"]
    assert (promise["epsilon"], promise["delta"]) == (2.0, 1e-6)
    for epsilon in ("0", "-1", "nan", "1000"):
        refused = ffgb(*words, "--epsilon", epsilon)
        assert refused.returncode == 2, refused.stderr
        assert "epsilon" in refused.stderr


def test_settings_of_private_trainings_need_a_budget(files: Path) -> None:
    with pytest.raises(FFGBError, match="for private trainings"):
        train(config(files, epsilon=None, noise_seed=None, pairs=2), workers=0)
