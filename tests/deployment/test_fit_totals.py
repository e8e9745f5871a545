"""Scores of rows that stay at real sites: the totals of one machine, who may ask for them, and how often."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("cryptography")

from ffgb.data.sites import Site
from ffgb.deployment.agreement import OF_RESULT
from ffgb.deployment.attendant import rehearse
from ffgb.deployment.consent import in_words
from ffgb.deployment.policy import QUESTIONS, Policy
from ffgb.engines.local import local_engine
from ffgb.federation.host import Holding
from ffgb.federation.server import Server
from ffgb.protocol.codec import decode
from ffgb.protocol.messages import what_leaves
from ffgb.runs.card import card
from ffgb.runs.config import Config, load_data
from ffgb.runs.directory import Run
from ffgb.runs.fit_totals import fit_by_totals
from ffgb.runs.held_out import HeldOut
from ffgb.runs.holdings import make_parts, server_options
from ffgb.runs.learners import make_algorithm, make_learner
from ffgb.runs.model import Model
from ffgb.runs.resolve import make_loss
from ffgb.runs.training import rounds_of
from tests.deployment.test_secure import NAMES, Federation

JOB: dict[str, Any] = {"rounds": 1, "learner": "linear"}


def tables(folder: Path, rows: int = 150, *, number: bool = False, sites: int = 3) -> list[Path]:
    """Some sites whose rows are alike, with two classes or a number to predict."""
    paths = []
    for i, name in enumerate(NAMES[:sites]):
        rng = np.random.default_rng(i)
        x = rng.standard_normal((rows + 11 * i, 3))
        z = x[:, 0] - 0.7 * x[:, 1] + 0.3 * i - 0.5
        ill = np.where(rng.random(len(x)) < 1 / (1 + np.exp(-1.5 * z)), "yes", "no")
        y = [f"{v:.4f}" for v in z + rng.standard_normal(len(x))] if number else ill.tolist()
        lines = [",".join([*(f"{v:.4f}" for v in row), str(k)]) for row, k in zip(x, y, strict=True)]
        paths.append(folder / f"{name}.csv")
        paths[-1].write_text("\n".join(["a,b,c,kind", *lines]) + "\n")
    return paths


def here(files: list[Path], **job: Any) -> tuple[dict[str, Any], HeldOut]:
    """The same totals of the same sites on one machine, in the open; and the rows that they are of."""
    config = Config(data=tuple(map(str, files)), target="kind", **{**JOB, **job})
    data = load_data(config)
    config = config.resolved(data)
    assert data.site_test is not None
    clients = [Holding(data.x, data.y, rows) for rows in make_parts(config, data)]
    tests = [Holding(data.x_test, data.y_test, np.flatnonzero(data.site_test == k)) for k in range(len(files))]
    points = [len(c) for c in clients]
    with local_engine([*clients, *tests], 0) as engine:
        server = Server(engine, points, len(tests), **server_options(config))
        loss = make_loss(config, data)
        scale = not loss.classification
        state = server.start(make_algorithm(config), make_learner(config, data), loss, scale_target=scale)
        *_, (state, line) = rounds_of(server, state, config)
        ask = server.asking_held_out(state, len(data.y_test))
        found = fit_by_totals(ask, state.job, data.classes, line)
    return found, HeldOut(data.x_test, data.y_test, data.sites, data.site_test)


def test_scores_are_the_totals_of_one_machine_and_leave_under_masks(tmp_path: Path) -> None:
    """And the headline, the page and the card show them, as those of a simulated run."""
    files = tables(tmp_path)
    federation = Federation(tmp_path, files, JOB)
    there = federation.train(tmp_path / "run")
    assert {message.kind for _, message in federation.sent} == {"hello", "key", "ready", "tied", "masked"}
    run = Run.open(tmp_path / "run")
    simulated, rows = here(files)
    found = run.fit
    assert found == json.loads(json.dumps(simulated))  # to the bit
    assert found is not None
    model, scores = Model.load(run.path), found["parts"]["all"]["scores"]
    for name, value in model.score(rows.x, rows.y).items():
        off = {"auc": found["auc_error_at_most"], "average_precision": 0.02}.get(name, 1e-5)
        assert scores[name]["value"] == pytest.approx(value, abs=off), name
    assert {"test_auc", "test_brier", "test_calibration_slope"} <= there.summary.keys()
    assert there.summary == run.summary
    assert f"AUC {there.summary['test_auc']:.4f}" in repr(there)
    assert "guessing the most frequent class" in repr(there)
    page, text = (run.path / "report.html").read_text(), card(run, model)
    for words in ("ROC curve", "Precision by recall", "Net benefit by threshold", "Rows stayed at their sites"):
        assert words in page
    assert "only sums of loss and score left them" not in page
    auc = scores["auc"]
    assert f"| AUC | {auc['value']:.4f} | {auc['low']:.4f} to {auc['high']:.4f} |" in text
    assert "once | question ChanceSums" in text
    federation.train(run.path)  # it is over: nothing is asked again
    assert (run.fit, run.summary["test_auc"]) == (found, there.summary["test_auc"])


def test_scores_of_numbers_are_the_totals_of_one_machine(tmp_path: Path) -> None:
    files = tables(tmp_path, number=True)
    there = Federation(tmp_path, files, JOB).train(tmp_path / "run")
    found, rows = here(files)
    assert Run.open(tmp_path / "run").fit == json.loads(json.dumps(found))
    rmse = there.model.score(rows.x, rows.y)["rmse"]
    assert found["parts"]["all"]["scores"]["rmse"]["value"] == pytest.approx(rmse, abs=1e-6)
    assert {"test_rmse_of_mean", "test_r2", "test_rmse_low"} <= there.summary.keys()
    assert "Errors (predicted − observed)" in (tmp_path / "run" / "report.html").read_text()


def test_a_site_may_refuse_and_training_ends_all_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    federation = Federation(tmp_path, tables(tmp_path), JOB)
    federation.attendants[101].refused = frozenset({"ChanceSums"})
    with caplog.at_level(logging.WARNING, "ffgb"):
        there = federation.train(tmp_path / "run")
    assert there.finished
    assert not (tmp_path / "run" / "fit.json").exists()
    assert "test_auc" not in there.summary
    assert "no scores but loss and accuracy: not all sites that hold out rows have answered" in caplog.text
    assert {"ChanceRows", "ChanceSums", "CalibrationSums", "ErrorRows", "ErrorSums"} <= set(QUESTIONS)


def test_a_total_without_a_site_is_not_taken_for_that_of_all(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where sites may be missing in a total."""
    federation = Federation(tmp_path, tables(tmp_path, sites=4), JOB, Policy(missing_sites=True))
    federation.attendants[103].refused = frozenset({"ChanceSums"})
    with caplog.at_level(logging.WARNING, "ffgb"):
        there = federation.train(tmp_path / "run", minimum=3)
    assert there.finished
    assert not (tmp_path / "run" / "fit.json").exists()
    assert "not all sites that hold out rows have answered" in caplog.text


def test_they_are_asked_once_in_a_training(tmp_path: Path) -> None:
    """After more rounds, other counts of the same rows could be compared with those before."""
    federation = Federation(tmp_path, tables(tmp_path), {**JOB, "rounds": 2})
    federation.train(tmp_path / "run", rounds=1)
    assert (tmp_path / "run" / "fit.json").exists()
    there = federation.train(tmp_path / "run", rounds=2)
    assert there.finished
    assert not (tmp_path / "run" / "fit.json").exists()
    assert any("has not agreed to another question ChanceRows" in text for text in federation.said)
    answered = [q for a in federation.attendants.values() for t in a.ledger.trainings for q in OF_RESULT
                if a.ledger.known(t, q)]  # fmt: skip
    assert len(answered) == 3 * 3  # at each site: rows, sums, and the steps for calibration


def test_in_the_open_they_are_the_same_and_rows_to_train_with_do_not_answer_them(tmp_path: Path) -> None:
    files = tables(tmp_path)
    federation = Federation(tmp_path, files, {**JOB, "secure": "off"}, Policy(secure=False))
    federation.train(tmp_path / "run")
    assert Run.open(tmp_path / "run").fit == json.loads(json.dumps(here(files)[0]))
    questions = [data["message"] for _, data, _ in federation.asked if "message" in data]
    (question, *_) = (q for q in questions if what_leaves(decode(q)) == "question ChanceRows")
    attendant, said = federation.attendants[100], [s for name, _, s in federation.asked if name == "east"][-2]
    assert attendant.schema is not None
    attendant.resident = attendant.site.move_in(attendant.schema, int(said["seed"]))
    answers, _ = attendant.answer({"message": question}, {**said, "clients": [0]})
    answer = decode(answers["0"])
    assert answer.kind == "error"
    assert "rows to train with answer no question about the result" in str(answer.values["text"])


@pytest.mark.parametrize("learner", ["linear", "trees", "blend"])
def test_what_is_agreed_to_does_not_depend_on_rows(learner: str, tmp_path: Path) -> None:
    """One class alone at a site, few rows, a large least count: all questions are rehearsed."""
    lines = tables(tmp_path)[0].read_text().splitlines()
    few = tmp_path / "few.csv"
    few.write_text("\n".join([lines[0], *[line for line in lines[1:] if line.endswith("yes")][:30]]) + "\n")
    job = {"rounds": 1, "learner": learner, "data": ["sites"], "least": 12}
    rehearsal, agreement = rehearse(Site("few", few, "kind"), job)
    asked = ("ChanceRows", "ChanceSums", "CalibrationSums")
    assert [agreement.times(f"question {name}") for name in asked] == [1, 1, 3]
    assert [sent.what.removeprefix("question ") for sent in rehearsal.last] == [*asked, *["CalibrationSums"] * 2]


def test_an_owner_is_told(tmp_path: Path) -> None:
    site = Site("east", tables(tmp_path)[0], "kind")
    rehearsal, agreement = rehearse(site, {**JOB, "data": ["sites"]})
    told = in_words(site.describe(), agreement, rehearsal.once, rehearsal.each, Policy(), rehearsal.last)
    (text,) = (line for line in told if line.startswith("When training has ended it sends, once:"))
    assert "how many rows that it holds out have each class" in text
    assert not any("holds out have" in line for line in told if line.startswith("In each"))
