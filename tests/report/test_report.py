"""The page of a run: its numbers are the run's, it loads nothing, and nothing from outside becomes markup."""

from __future__ import annotations

import dataclasses
import html
import json
import math
import re
import shutil
import subprocess
from collections.abc import Sequence
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffgb.core.probability_cells import ProbabilityCells
from ffgb.errors import FFGBError
from ffgb.report import page, write
from ffgb.report.axes import axis_for
from ffgb.report.curves import _spread
from ffgb.report.past import _drawn, read, run_names
from ffgb.report.words import KINDS
from ffgb.runs.config import Config
from ffgb.runs.training import train

HOSTILE = "<script>alert(1)</script>\"'&\u202e\x00\ud800"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def made(
    path: Path,
    *,
    rounds: int = 5,
    clients: int = 3,
    classes: Sequence[str] = ("no", "yes"),
    summary: bool = True,
    told: bool = True,
    judged: bool = False,
    names: str = "site {}",
    scores: tuple[float, float] = (0.5, 0.9),
    more: dict[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """A run directory as `ffgb train` would leave it, without any training."""
    path.mkdir(parents=True)
    measure = "accuracy" if classes else "rmse"
    config = dataclasses.asdict(
        Config(data=("wine",), learner="features", clients=clients, rounds=rounds, split="natural")
    )
    config |= {"participation": clients, "versions": {"ffgb": "0.1.0", "numpy": "2.0"}, **settings}
    lines = []
    for t in range(1, rounds + 1):
        line: dict[str, Any] = {"round": t, "train_loss": 0.9 / t, "test_loss": 1.1 / t**0.5}
        line |= {f"train_{measure}": 1 - 0.5 / t, f"test_{measure}": 1 - 0.6 / t}
        for name, each in (("parameters", 1000.0), ("models", 10.0), ("bytes", 4000.0)):
            line |= {f"{name}_up": each * (t + 3), f"{name}_down": 2 * each * t}
        line |= {"gamma_min": 0.1 + 0.2 / t, "gamma_median": 0.3 + 0.2 / t, "participants": clients}
        lines.append(line | (more or {}) | {"seconds": 0.5, "setup_seconds": 2.0})
    (path / "config.json").write_text(json.dumps(config))
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if summary:
        total = {"rounds": rounds, "seconds_total": 2.0 + 0.5 * rounds + 0.25}
        (path / "summary.json").write_text(json.dumps(lines[-1] | total))
    if told:
        held = []
        for i in range(clients):
            score = {"loss": 0.5, measure: scores[1] - (scores[1] - scores[0]) * i / clients}
            target = None if classes else {"mean": 5.0 + i, "std": 1.0 + i}
            labels = [(i + j) % 7 for j in range(len(classes))] if classes else None
            held.append(
                {
                    "name": names.format(i),
                    "points": 100 + i,
                    "train": score,
                    "test": {"points": 1200, **score},
                    "labels": labels,
                    "target": target,
                }
            )
        sent = [{"what": "question GramOf", "words": names.format("sums"), "once": True, "arrays": [], "bytes": 900}]
        known = {"classes": list(classes), "clients": held, "sent": sent}
        (path / "clients.json").write_text(json.dumps(known))
    if judged:
        (path / "fit.json").write_text(json.dumps(judgement(names, ("no", names.format("case")))))
    return path


def judgement(names: str, classes: tuple[str, str]) -> dict[str, Any]:
    """What `fit.json` says of a made-up model of two classes with sites and a subgroup."""
    rng = np.random.default_rng(0)
    p = rng.random(300)
    y = (rng.random(300) < p).astype(np.int64)
    score = {"value": 0.8, "low": 0.7, "high": 0.9}
    named = ("auc", "accuracy", "base_rate", "expected", "brier", "loss", "calibration_intercept", "calibration_slope")
    part = {"rows": 300, "scores": dict.fromkeys(named, score)}
    counts = {"true_positives": 120, "false_positives": 30, "false_negatives": 40, "true_negatives": 110}
    shares = dict.fromkeys(("sensitivity", "specificity"), score)
    return {
        "classes": classes, "level": 0.95, "least": 10,
        "parts": {"all": part, names.format("a"): part, names.format("b"): part},
        "confusion": {"threshold": 0.5, "parts": {"all": counts | shares}},
        "subgroups": [{"column": names.format("sex"), "groups": [{"group": names.format("f"), **part}]}],
        "curves": ProbabilityCells.of(p, y, least=10).to_json(),
        "left_out": [names.format("too few")],
    }  # fmt: skip


def parsed(text: str) -> ElementTree.Element:
    """The page as XML: every tag is closed, every attribute quoted, every text escaped."""
    assert text.startswith("<!DOCTYPE html>")
    return ElementTree.fromstring(text.partition("\n")[2])


def words(element: ElementTree.Element) -> str:
    """What a reader sees of it."""
    return re.sub(r"\s+", " ", " ".join(element.itertext()))


def plots(root: ElementTree.Element) -> list[ElementTree.Element]:
    return [svg for svg in root.iter("svg") if svg.get("class") == "plot"]


def table(root: ElementTree.Element, run: int = 0) -> list[dict[str, str]]:
    """The rounds in numbers."""
    (found,) = (t for t in root.iter("table") if t.get("id") == f"rounds{run}")
    head = ["".join(cell.itertext()) for cell in found.iter("th") if cell.get("scope") == "col"]
    return [dict(zip(head, ("".join(c.itertext()) for c in row), strict=True)) for row in found.find("tbody") or ()]


def test_the_numbers_are_those_of_the_run(tmp_path: Path) -> None:
    config = Config(data=("wine",), clients=4, rounds=4, learner="mlp", oracle_steps=20, seed=3)
    summary = train(config, tmp_path / "a run", workers=0).summary
    write([tmp_path / "a run"], tmp_path / "report.html")
    assert not list(tmp_path.glob("*.tmp"))
    root = parsed((tmp_path / "report.html").read_text())
    text = words(root)
    score = f"{100 * summary['test_accuracy']:.2f}"
    assert f"Test accuracy {score} % after 4 rounds with 4 clients" in text
    models, traffic = summary["communication_models"], summary["bytes_up"] + summary["bytes_down"]
    assert f"{models:,.1f} models ({traffic / 1000:.1f} kB) in all" in text
    if summary["seconds_total"] >= 0.1:  # less is told in ms
        assert f"the run took {summary['seconds_total']:.1f} s" in text
    assert f"{summary['parameters_up']:,.0f} {summary['parameters_down']:,.0f}" in text
    rows = table(root)
    assert [row["round"] for row in rows] == ["1", "2", "3", "4"]
    assert rows[-1]["test accuracy"] == f"{score}\N{NO-BREAK SPACE}%"
    assert float(rows[-1]["least γ"]) == pytest.approx(summary["gamma_min"], abs=5e-4)
    assert "learner mlp" in text  # not as by default
    assert "a run" in text
    assert "numpy" in text


def test_curves_are_where_their_values_are(tmp_path: Path) -> None:
    root = parsed(page([made(tmp_path / "a", rounds=8)]))
    first = plots(root)[0]
    line = next(path for path in first.iter("path") if path.get("class") == "line test")
    numbers = [float(n) for n in re.findall(r"[\d.]+", line.get("d") or "")]
    x, y = numbers[::2], numbers[1::2]
    assert len(x) == 8
    assert x == sorted(x)
    assert y == sorted(y, reverse=True)  # the score grows, and so do heights
    ticks = {t.text: float(t.get("y") or 0) - 3.5 for t in first.iter("text") if (t.text or "").endswith("%")}
    low, high = ticks["40\N{NO-BREAK SPACE}%"], ticks["80\N{NO-BREAK SPACE}%"]
    for t, height in enumerate(y, 1):
        assert height == pytest.approx(low + (high - low) * ((1 - 0.6 / t) - 0.4) / 0.4, abs=0.11)


def test_costs_by_hand(tmp_path: Path) -> None:
    run = made(tmp_path / "a", rounds=5)
    past = read(run, "a", 100)
    assert past.last("bytes") == 4000 * 8 + 8000 * 5
    assert past.model == 100
    assert past.setup("bytes_up") == 4000 * 3  # (t + 3) a round: three rounds' worth before the first
    assert past.setup("bytes_down") == 0
    assert past.columns["seconds"] == [2.5, 3.0, 3.5, 4.0, 4.5]
    text = words(parsed(page([run])))
    assert "One model has 100 parameters." in text
    assert "12.0 kB (38 %)" in text


def test_nothing_comes_from_elsewhere(tmp_path: Path) -> None:
    text = page([made(tmp_path / "a"), made(tmp_path / "b", classes=())])
    assert not re.search(r"https?:|//[a-z]|@import|url\(", text)
    root = parsed(text)
    used = {name for element in root.iter() for name in element.attrib if name in ("src", "href", "srcset", "action")}
    assert used == {"href"}
    assert [e.get("href") for e in root.iter() if e.get("href")] == ["data:,"]  # no icon is asked for
    (policy,) = (e.get("content") or "" for e in root.iter("meta") if e.get("http-equiv"))
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy


@pytest.mark.parametrize("classes", [(HOSTILE, "yes"), ()])
def test_what_comes_from_outside_is_text(classes: Sequence[str], tmp_path: Path) -> None:
    settings: dict[str, Any] = {"target": HOSTILE, "by": HOSTILE, "split": "similarity", "learner": HOSTILE}
    settings |= {"data": [HOSTILE, HOSTILE], "versions": {HOSTILE: HOSTILE}, "similarity": HOSTILE, HOSTILE: HOSTILE}
    runs = [
        made(
            tmp_path / f"{i}<b>&\"'",
            classes=classes,
            judged=True,
            names=HOSTILE + "{}",
            more={HOSTILE: 1.5},
            **settings,
        )
        for i in range(2)
    ]
    for some in (runs[:1], runs):
        text = page(some)
        text.encode()  # half a character would not be written
        root = parsed(text)
        assert len(list(root.iter("script"))) == 1
        assert "<script>alert" not in text
        assert "<b>&" not in text  # of the folders' names
        assert "\u202e" not in text
        assert "\x00" not in text
        assert "alert(1)" in words(root)  # it is shown

        class Tags(HTMLParser):
            def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
                assert not any(name.startswith("on") for name, _ in attrs)
                assert tag != "script" or not attrs

        Tags().feed(text)


@pytest.mark.parametrize("classes", [[f"class {j}" for j in range(100)], [str(j) for j in range(10)], []])
def test_pages_stay_small(classes: list[str], tmp_path: Path) -> None:
    run = made(tmp_path / "a", rounds=1000, clients=10_000, classes=classes, names="a hospital of some name, no. {}")
    text = page([run])
    assert len(text.encode()) < 300_000
    root = parsed(text)
    rows = table(root)
    assert rows[0]["round"] == "1"
    assert rows[-1]["round"] == "1,000"
    said = words(root)
    assert "Shown are 60 of 10,000 clients" in said
    assert "the worst 20 of 10,000" in said
    assert ("Columns are the 39 most frequent of 100 classes" in said) == (len(classes) == 100)


def test_no_extreme_is_thinned_out() -> None:
    column = [1.0] * 5000
    column[1234], column[4321] = 9.0, -9.0
    drawn = _drawn({"round": [float(t) for t in range(5000)], "test_loss": column}, 160)
    assert {0, 1, 2, 1234, 4321, 4999} <= set(drawn)
    assert len(drawn) < 200


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    text = words(parsed(page([made(tmp_path / "a", rounds=3, summary=False, told=False)])))
    assert "This run has not ended: it has 3 of 3 rounds" in text
    assert "it has no clients.json" in text
    assert "Score by client" not in text
    going = made(tmp_path / "b", rounds=3)
    (going / "summary.json").write_text(json.dumps({"rounds": 2, "seconds_total": 1.0}))  # more were asked for since
    assert "has not ended" in words(parsed(page([going])))
    stopped = made(tmp_path / "c", rounds=3, stop=True)
    config = json.loads((stopped / "config.json").read_text())
    (stopped / "config.json").write_text(json.dumps(config | {"rounds": 10}))
    assert "It ended of itself after 3 of 10 rounds" in words(parsed(page([stopped])))


def test_little_is_enough(tmp_path: Path) -> None:
    """One round, values that are no numbers, keys that are not there."""
    run = made(tmp_path / "a", rounds=1)
    lines = [{"round": 1, "train_loss": 0.0}, {"round": 2, "train_loss": None}, {"train_loss": "x", "noise": math.inf}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    empty = {"name": "", "points": None, "train": None, "test": None, "labels": None, "target": None}
    (run / "clients.json").write_text(json.dumps({"classes": [], "clients": [empty, empty]}))
    (run / "config.json").write_text("{}")
    parsed(page([run]))
    parsed(page([run, made(tmp_path / "b"), run]))
    lines = [{"round": t, "train_accuracy": 0.5, "train_loss": None} for t in (1, 2, 3)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert len(plots(parsed(page([run])))) == 2  # accuracy by rounds and by time


@pytest.mark.parametrize("rounds", [1, 2])
def test_few_rounds_are_in_a_table(rounds: int, tmp_path: Path) -> None:
    run = made(tmp_path / "a", rounds=rounds, more={"ensemble_test_loss": 0.25})
    root = parsed(page([run]))
    assert plots(root) == []
    text = words(root)
    assert "there is no curve to draw" in text
    heads = "after the only round" if rounds == 1 else "after round 1 after round 2"
    assert f"{heads} test accuracy 40.00 % {'70.00 % ' * (rounds == 2)}train accuracy" in text
    assert f"ensemble test loss {'0.25 ' * rounds}" in text
    assert f"γ of the weak learners: least 0.300 {'0.200 ' * (rounds == 2)}" in text
    assert "γ says how well weak learners fit" in text
    assert "no curves to draw" in words(parsed(page([run, run])))
    assert plots(parsed(page([run, made(tmp_path / "b", rounds=3)])))


def test_what_clients_hold(tmp_path: Path) -> None:
    run = made(tmp_path / "a", classes=(), clients=1)
    text = words(parsed(page([run])))
    assert "their mean, one standard deviation to either side" in text
    assert "1 client" in text
    assert "1 clients" not in text
    assert "Columns that differ" not in text
    content = json.loads((run / "clients.json").read_text())
    told = ["site west lacks the column 's'; its values count as missing there", HOSTILE]
    (run / "clients.json").write_text(json.dumps(content | {"told": told}))
    root = parsed(page([run]))
    (differ,) = (s for s in root.iter("section") if words(s).strip().startswith("Columns that differ"))
    assert [words(item)[:20] for item in differ.iter("li")] == [told[0][:20], HOSTILE[:20]]
    assert words(root).index("Who holds what") < words(root).index("Columns that differ")
    (run / "clients.json").write_text(json.dumps(content | {"told": told * 100}))
    assert "… (200 in all)" in words(parsed(page([run])))


def test_the_first_screen_and_the_fit_are_those_of_the_file(tmp_path: Path) -> None:
    run = made(tmp_path / "run", judged=True, target="sick", least=10)
    root = parsed(page([run]))
    text, content = words(root), json.loads((run / "fit.json").read_text())
    assert "sick: tells ‘site case’ from ‘no’, and is right for 80 % of 300 held-out rows" in text
    assert "right for 80 % of 300 rows (95 % interval 70 % to 90 %). Always naming the more frequent class" in text
    assert "The rows do not show that the model does better" in text  # the base rate is as high
    assert "3 sites took part" in text
    assert "slope 0.80, 0.70 to 0.90; 1 is right" in text
    captions = [words(figure)[:16].strip() for figure in root.iter("figcaption")]
    assert captions[:4] == ["ROC curve", "Precision by rec", "Observed by pred", "Net benefit by t"]
    (roc,) = (t for t in root.iter("div") if t.get("aria-label") == "ROC curve")
    shown = [[words(cell) for cell in row] for row in roc.iter("tr")][1:]
    expected = content["curves"]["roc"]
    assert [row[2] for row in shown] == [f"{v:.4g}" for v in expected["true_positive_rate"]]
    (calls,) = (t for t in root.iter("div") if (t.get("aria-label") or "").startswith("Calls of site case"))
    assert "120 30 40 110" in words(calls)
    (left,) = (s for s in root.iter("section") if words(s).strip().startswith("What left each site"))
    assert "site sums once" in words(left)
    assert "all rows were on one machine" in words(left)
    assert "hold 10 rows of all sites together" in words(left)
    secure = json.loads((run / "clients.json").read_text()) | {"secure": "Parts were masked."}
    (run / "clients.json").write_text(json.dumps(secure))
    assert "Parts were masked. The parts of a single site were noise" in words(parsed(page([run])))
    (run / "fit.json").write_text(json.dumps(content | {"parts": {"all": {"rows": 3, "scores": {"auc": "high"}}}}))
    with pytest.raises(FFGBError, match=r"fit\.json cannot be read"):
        page([run])


def test_predictions_below_0_are_drawn(tmp_path: Path) -> None:
    """On an axis that is not logarithmic, though values differ by far."""
    run = made(tmp_path / "run", judged=True, target="sick", least=10)
    content = json.loads((run / "fit.json").read_text())
    groups = [(-2.0, -1.9), (0.04, 0.05), (3.0, 2.8)]
    calibration = [
        {"rows": 20, "predicted": p, "observed": {"value": y, "low": y - 0.1, "high": y + 0.1}} for p, y in groups
    ]
    scores = {"rmse": {"value": 1.0, "low": 0.9, "high": 1.1}}
    number = {"task": "number", "classes": [], "parts": {"all": {"rows": 60, "scores": scores}}}
    (run / "fit.json").write_text(
        json.dumps({**content, **number, "curves": {"calibration": calibration}, "confusion": None, "subgroups": []})
    )
    text = words(parsed(page([run])))
    assert "Observed by predicted" in text
    assert "cut at" not in text


def test_between_sites_the_page_says_why_there_are_no_curves(tmp_path: Path) -> None:
    text = words(parsed(page([made(tmp_path / "run", data=["sites"])])))
    assert "Test accuracy 88.00 %, over all held-out rows of all sites. The mean loss there is 0.4919" in text
    assert "3 sites took part, with 303 rows to train on: site 0, site 1, site 2." in text
    assert "Rows that were held out are at the sites, and only sums of loss and score left them" in text
    assert "There were none: the server saw the sums of each site, and can compute rows from them" in text


def test_no_folder_of_this_machine_is_shown(tmp_path: Path) -> None:
    files = [f"/srv/someone/place {j}/rows.csv" for j in range(5)]
    runs = [
        made(tmp_path / f"{i}", data=some, sha256={file: f"{i}{file[-10]}" * 32 for file in some})
        for i, some in enumerate((files, files, files[:3]))
    ]
    for some in (runs[:1], runs):
        assert "someone" not in page(some)
    assert words(parsed(page(runs[:1]))).count("rows.csv 0") == 5  # a hash each, though their names are the same
    root = parsed(page(runs))
    text = words(root)
    assert "FFGB with features on 5 files" in text
    assert "FFGB with features on 3 files" in text
    (differs,) = (s for s in root.iter("section") if words(s).strip().startswith("What differs"))
    assert "files of the same names with other rows" in words(differs)
    assert "sha256" not in words(differs)


def test_the_same_rows_are_known_by_their_hash_whatever_files_are_called(tmp_path: Path) -> None:
    def run(name: str, files: dict[str, str], **more: Any) -> Path:
        return made(tmp_path / name, data=list(files), sha256={**files, "schema.toml": name}, **more)

    first = run("a", {"/x/a.csv": "1" * 64, "/x/b.csv": "2" * 64}, target="sick")
    renamed = run("b", {"/y/second.csv": "2" * 64, "/y/first.csv": "1" * 64}, target="sick")
    others = run("c", {"/x/a.csv": "1" * 64, "/x/b.csv": "3" * 64}, target="sick")
    another = run("d", {"/x/a.csv": "1" * 64, "/x/b.csv": "2" * 64}, target="age")
    text = words(parsed(page([first, renamed])))
    assert "Best of 2 runs" in text
    assert "the same rows, as second.csv, first.csv" in text
    for different in (others, another):
        text = words(parsed(page([first, different])))
        assert "They are not of the same data" in text, different


def test_rounds_that_changed_nothing_do_not_count_in_the_headline(tmp_path: Path) -> None:
    run = made(tmp_path / "run")
    before = words(parsed(page([run])))
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "rounds_used": 1}))
    assert "after 1 round with" not in before
    assert "after 1 round with" in words(parsed(page([run])))


def test_how_clients_differ_is_drawn(tmp_path: Path) -> None:
    """The columns whose means differ most, a dot a client; never of a client with a single row."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((61, 3)) + np.repeat([0.0, 4.0], [30, 31])[:, None] * [0.0, 1.0, 0.2]
    for name, rows in (("a", slice(30)), ("b", slice(30, 60)), ("c", slice(60, 61))):
        lines = [",".join(f"{v:.3f}" for v in (*row, row.sum())) for row in x[rows]]
        (tmp_path / f"{name}.csv").write_text("\n".join(["p,q,<r>,y", *lines]) + "\n")
    files = tuple(str(tmp_path / f"{name}.csv") for name in "abc")
    train(Config(data=files, target="y", rounds=1), tmp_path / "run", workers=0)
    written = json.loads((tmp_path / "run" / "clients.json").read_text())
    assert written["columns"][0]["name"] == "q"
    assert all(column["means"][2] is None for column in written["columns"])
    assert written["columns"][0]["means"][1] > 0.7
    root = parsed(page([tmp_path / "run"]))
    assert "How clients differ" in words(root)
    assert sum("fill-opacity" in dot.attrib for dot in root.iter("circle")) == 6


def test_what_rounds_note_is_shown(tmp_path: Path) -> None:
    none = {"clipped": 0.0, "clipped_residual": 0.0, "uncovered": 0.0}
    text = words(parsed(page([made(tmp_path / "a", more=none)])))
    assert "No value at a client's own points was clipped" in text
    assert "Every call of the oracle contracted" in text
    assert "Clients that took part" not in text  # all, always
    some = {"clipped": 3.0, "uncovered": 1.0, "explained": 0.5, "noise": 0.1, "gamma_lip": 0.2, "something_new": 7.0}
    root = parsed(page([made(tmp_path / "b", more=some)]))
    captions = [words(caption).strip() for caption in root.iter("figcaption")]
    for caption in ("Clipped values", "Calls that did not contract", "What a step explains", "something new"):
        assert caption in captions
    assert "The larger, the weaker the learners" not in words(root)
    left = words(parsed(page([made(tmp_path / "d", more={"explained": 0.5, "noise": None, "residual": 1.25})])))
    assert "Residual that is left" in left
    assert "The larger, the weaker the learners" in left
    assert "How much of the gradient lies along the step. " in left
    assert "how much of pure noise would" not in left  # none was drawn
    parametric = {"gamma_min": None, "gamma_median": None}
    assert "γ of the weak learners" not in words(parsed(page([made(tmp_path / "c", more=parametric)])))


def test_runs_side_by_side(tmp_path: Path) -> None:
    runs = [made(tmp_path / name / "0", rounds=rounds, learner="mlp") for name, rounds in (("x", 5), ("y", 9))]
    runs.append(made(tmp_path / "z" / "0", rounds=7, learner="tree", summary=False))
    root = parsed(page(runs))
    text = words(root)
    assert f"Best of 3 runs: y/0, test accuracy {100 * (1 - 0.6 / 9):.2f} %" in text
    assert "1 run has not ended" in text
    (differs,) = (s for s in root.iter("section") if words(s).strip().startswith("What differs"))
    rows = [words(row).split() for row in differs.iter("tr")]
    assert [row[0] for row in rows] == ["setting", "rounds", "learner"]
    assert rows[2] == ["learner", "mlp", "mlp", "tree"]
    assert [mark.text for mark in differs.iter("mark")] == ["9", "7", "tree"]
    for plot in plots(root):
        looks = {path.get("class") for path in plot.iter("path") if (path.get("class") or "").startswith("line")}
        assert looks == {"line k0 d0", "line k1 d1", "line k2 d2"}
    assert [len(table(root, run)) for run in range(3)] == [5, 9, 7]


def test_the_score_comes_first_and_the_worst_client_says_of_what(tmp_path: Path) -> None:
    runs = [made(tmp_path / name) for name in ("a", "b")]

    def heads() -> list[str]:
        results = next(t for t in parsed(page(runs)).iter("table"))
        return [words(cell).strip() for cell in results.iter("th") if cell.get("scope") == "col"]

    def forget_tests(run: Path) -> None:
        content = json.loads((run / "clients.json").read_text())
        content["clients"] = [client | {"test": None} for client in content["clients"]]
        (run / "clients.json").write_text(json.dumps(content))

    assert heads()[:4] == ["run", "test accuracy", "method", "test loss"]
    assert "worst client, test" in heads()
    forget_tests(runs[0])
    assert "worst client" in heads()
    text = words(parsed(page(runs)))
    assert "(site 2, training)" in text
    assert "(site 2, test)" in text
    forget_tests(runs[1])
    assert "worst client, training" in heads()


def test_runs_that_do_not_compare(tmp_path: Path) -> None:
    text = words(parsed(page([made(tmp_path / "a"), made(tmp_path / "b", classes=(), loss="square")])))
    assert "2 runs side by side" in text
    assert "none is called the best" in text
    assert "The runs minimise different losses" in text


def test_names_of_runs_are_different(tmp_path: Path) -> None:
    assert run_names([tmp_path / "a" / "0", tmp_path / "b" / "1"]) == ["0", "1"]
    assert run_names([tmp_path / "a" / "0", tmp_path / "b" / "0"]) == ["a/0", "b/0"]
    assert run_names([tmp_path / "a", tmp_path / "a"]) == ["a", "a (2)"]


def test_models_of_different_sizes_are_counted_in_one_unit(tmp_path: Path) -> None:
    a, b = made(tmp_path / "a"), made(tmp_path / "b")
    assert "a model is 100 parameters: one weak learner of these runs" in words(parsed(page([a, b])))
    text = (b / "metrics.jsonl").read_text()
    larger = [json.loads(line) for line in text.splitlines()]
    for line in larger:
        line["models_up"], line["models_down"] = line["models_up"] / 3, line["models_down"] / 3
    (b / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in larger))
    assert "a model is 26,506 parameters: the paper's MLP" in words(parsed(page([a, b])))


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FFGBError, match="holds no run"):
        page([tmp_path])
    with pytest.raises(FFGBError, match="no run to report on"):
        page([])
    run = made(tmp_path / "a")
    with pytest.raises(FFGBError, match=r"cannot be written .* name a file in a folder that is there"):
        write([run], tmp_path / "nowhere" / "report.html")
    (run / "clients.json").write_text('{"clients": 3}')
    with pytest.raises(FFGBError, match=r"clients\.json cannot be read"):
        page([run])
    (run / "metrics.jsonl").write_text("{")
    with pytest.raises(FFGBError, match=r"metrics\.jsonl cannot be read"):
        page([run])
    (run / "metrics.jsonl").unlink()
    with pytest.raises(FFGBError, match="has no finished round"):
        page([run])


@given(st.sampled_from(sorted(KINDS)), st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=6), st.booleans())
def test_axes_hold_their_values(kind: str, values: list[float], widen: bool) -> None:
    values = [min(max(v, KINDS[kind].limits[0]), KINDS[kind].limits[1]) for v in values]
    axis = axis_for(KINDS[kind], values, widen=widen)
    assert axis.low < axis.high
    assert len(axis.ticks) <= 12
    slack = 1e-6 * (axis.high - axis.low)
    for tick in axis.ticks:
        assert axis.low - slack <= tick <= axis.high + slack
    places = [axis.at(v) for v in sorted(values)]
    assert all(0.0 <= p <= 1.0 for p in places)
    assert places == sorted(places)
    if not axis.cut:
        assert all(axis.low - slack <= v <= axis.high + slack for v in values)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=9))
def test_names_beside_curves_do_not_overlap(places: list[float]) -> None:
    found = _spread(places, 11.0, 0.0, 100.0)
    order = sorted(found)
    assert all(-1e-6 <= p <= 100 + 1e-6 for p in order)
    assert all(b - a >= 11.0 - 1e-6 for a, b in pairwise(order))
    for i, a in enumerate(places):  # who is above stays above
        assert all(found[i] < found[j] for j, b in enumerate(places) if a < b)


MEASURE = """<script>
for (const folded of document.querySelectorAll("details")) folded.open = true;
const drawn = [...document.querySelectorAll("svg.plot")].map(svg =>
  Math.max(...[...svg.querySelectorAll("path.line, path.fill")].map(path => path.getTotalLength())));
const learned = document.querySelector("path[data-k]").closest("svg"), plot = learned.getBoundingClientRect();
learned.dispatchEvent(new PointerEvent("pointermove",
  {clientX: plot.left + plot.width / 2, clientY: plot.top + plot.height / 2}));
const tip = document.getElementById("tip"), colours = getComputedStyle(document.body);
const sticksOut = (inner, outer) => inner.left + 0.5 < outer.left || inner.right > outer.right + 0.5;
const cut = [];
for (const element of document.querySelectorAll("main *")) {
  const box = element.parentElement.closest(".scroll"), rows = element.closest("svg.rows");
  const room = element.matches("svg.rows text:not(.turned)") ? rows.getBoundingClientRect() :
    {left: 0, right: innerWidth};
  if (!box || element.tagName === "text")
    if (sticksOut(element.getBoundingClientRect(), room)) cut.push(element.textContent);
}
const rgb = name => colours[name].match(/[0-9]+/g).map(Number);
parent.postMessage({width: innerWidth, wide: document.documentElement.scrollWidth, drawn, cut,
  plots: document.querySelectorAll("svg.plot").length, dots: document.querySelectorAll("circle.dot").length,
  paper: Math.max(...rgb("backgroundColor")), ink: Math.max(...rgb("color")),
  boxes: [...document.querySelectorAll(".scroll")].map(box =>
    [box.getAttribute("aria-label"), box.scrollWidth - box.clientWidth]),
  tip: tip.hidden ? "" : tip.textContent}, "*");
</script></body>"""
FRAMES = """<!DOCTYPE html><meta name="color-scheme" content="light dark">
<script>const found = []; onmessage = event => { found.push(event.data); document.title = JSON.stringify(found); };
</script><iframe src="report.html" width="400" height="900"></iframe>
<iframe src="measured.html" width="400" height="900" style="border: 0"></iframe>
<iframe src="measured.html" width="1400" height="900" style="border: 0"></iframe>"""
"""The page as it is, and twice measured.  A window of Chromium's is no narrower than 500 pixels; a frame can be."""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here to open the page in")
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_a_browser_shows_it(count: int, dark: bool, tmp_path: Path) -> None:
    files = [f"/somewhere/hospital number {j}.csv" for j in range(20)]
    runs = [
        made(
            tmp_path / f"run{i}",
            rounds=4 + i,
            clients=30,
            judged=True,
            names="a name of some length {}",
            scores=(0.98, 1.0),  # long bars leave little room for what is written after them
            data=files[i:],
            sha256=dict.fromkeys(files[i:], "0" * 64),
        )
        for i in range(count)
    ]
    write(runs, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    measured = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text).replace("</body>", MEASURE)
    (tmp_path / "measured.html").write_text(measured)
    (tmp_path / "frames.html").write_text(FRAMES)
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    options += ["--disable-background-networking", f"--user-data-dir={tmp_path / 'profile'}"]
    options += [f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--virtual-time-budget=5000"]
    options += ["--enable-logging=stderr", "--v=0", "--dump-dom"]
    command = [str(CHROMIUM), *options, (tmp_path / "frames.html").as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in shown.stderr
    title = re.search(r"<title>(\[.*?\])</title>", shown.stdout)
    assert title is not None
    pages = sorted(json.loads(html.unescape(title[1])), key=lambda found: found["width"])
    assert [found["width"] for found in pages] == [400, 1400]
    for found in pages:
        assert found["wide"] <= found["width"]  # nothing is wider but what scrolls in a box of its own
        assert found["cut"] == []
        assert (found["paper"] < 60 < 200 < found["ink"]) if dark else (found["ink"] < 60 < 200 < found["paper"])
        assert len(found["drawn"]) == found["plots"] >= 8
        assert min(found["drawn"]) > 20
        assert found["dots"] >= 8  # the same round in every plot
        assert "test accuracy" in found["tip"]
    assert [name for name, more in pages[1]["boxes"] if more > 0] == []  # on a wide screen nothing has to scroll


def test_every_picture_of_a_run_has_its_numbers_beside_it(tmp_path: Path) -> None:
    root = parsed(page([made(tmp_path / "run", judged=True, target="sick", least=10)]))
    pictured = 0
    for part in root.iter("section"):
        if next(part.iter("svg"), None) is not None:
            pictured += 1
            assert next(part.iter("table"), None) is not None, words(part)[:40]
    assert pictured >= 5
    (held,) = (t for t in root.iter("div") if t.get("aria-label") == "Points by class")
    shown = [[words(cell).strip() for cell in row] for row in held.iter("tr")][1:]
    clients = json.loads((tmp_path / "run" / "clients.json").read_text())["clients"]
    assert [row[0] for row in shown] == [c["name"] for c in clients]
    assert [[int(cell) for cell in row[2:]] for row in shown] == [c["labels"] for c in clients]
