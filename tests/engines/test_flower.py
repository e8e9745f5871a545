"""Training over Flower's messages: who dies, comes late or lies, what travels, and what a site agrees to."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from ffgb.core.moments import MomentsOf
from ffgb.core.types import Array
from ffgb.core.weighting import Weighting
from ffgb.data.files import load_sites
from ffgb.data.sites import Schema, Site, hello, met
from ffgb.data.survey import without_counts
from ffgb.deployment.attendant import Attendant
from ffgb.deployment.board import ServerBoard
from ffgb.deployment.server import Service, Task, ended, federate
from ffgb.engines.flower import Counted, gather
from ffgb.errors import FFGBError
from ffgb.federation.server import Server
from ffgb.protocol.codec import Message as FFGBMessage
from ffgb.protocol.codec import encode
from ffgb.protocol.job import light
from ffgb.protocol.messages import Asked
from ffgb.runs.config import Config, load_data
from ffgb.runs.directory import Run
from ffgb.runs.holdings import make_holdings, make_parts
from ffgb.runs.learners import make_algorithm, make_learner
from ffgb.runs.model import Model
from ffgb.runs.resolve import make_loss
from ffgb.runs.training import train
from tests.engines.faults import Faulty
from tests.engines.sites import JOBS, SITES, Sites, over_flower, tables


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return tables(tmp_path)


@pytest.fixture
def sites(files: list[Path]) -> Sites:
    return Sites(files)


def without_north(files: list[Path], config: Config, rounds: set[int]) -> dict[str, Any]:
    """The model of one machine where north does not train in these rounds, counted from 1."""

    def absent(question: FFGBMessage, i: int, answer: bytes) -> bytes | None:
        return None if question.kind == "train" and i == 1 and question.round + 1 in rounds else answer

    config = dataclasses.replace(config, data=tuple(map(str, files)), target="kind")
    dataset = load_data(config)
    config = config.resolved(dataset)
    holdings, settings = make_holdings(config, dataset, make_parts(config, dataset))
    server = Server(Faulty(holdings, absent), **settings, minimum=2)
    state = server.start(make_algorithm(config), make_learner(config, dataset), make_loss(config, dataset))
    for after, _ in server.rounds(state, config.exchanges):
        state = after
    return light(state.result)


def same(model: Model, tensors: dict[str, Any]) -> None:
    for name, array in light(model.f).items():
        np.testing.assert_array_equal(array, tensors[name])


LINEAR = Config(data="sites", learner="linear", geometry="local", rounds=6, local_steps=1, schedule="constant")


def test_a_node_that_dies_is_left_out_and_comes_back_as_another(
    files: list[Path], sites: Sites, caplog: pytest.LogCaptureFixture
) -> None:
    grid = sites.grid
    rounds: list[int] = []

    def meanwhile(line: dict[str, Any]) -> None:
        rounds.append(line["participants"])
        if len(rounds) == 2:
            grid.contexts[777] = grid.contexts.pop(101)  # north has died ...
            north.append(grid.contexts.pop(777))
        if len(rounds) == 4:  # ... and is started again: another number, and nothing remembered
            sites.forget(101)
            grid.contexts[202] = north[0]

    north: list[Any] = []
    with caplog.at_level("WARNING", "ffgb"):
        there = over_flower(grid, LINEAR, deadline=0.5, on_round=meanwhile)
    assert rounds == [3, 3, 2, 2, 3, 3]
    assert "site north is gone" in caplog.text
    assert "site north is back" in caplog.text
    assert there.finished

    same(there.model, without_north(files, LINEAR, {3, 4}))


def test_the_server_may_die_and_go_on(files: list[Path], tmp_path: Path) -> None:
    lines: list[Any] = []
    sites = Sites(files)
    whole = over_flower(sites.grid, LINEAR, tmp_path / "whole")
    over_flower(sites.grid, LINEAR, tmp_path / "cut", on_round=lines.append, should_stop=lambda: len(lines) == 3)
    # another server, other nodes, whose state is gone
    rest = over_flower(Sites(files).grid, LINEAR, tmp_path / "cut", resume=True)
    assert rest.model.to_bytes() == whole.model.to_bytes()
    assert (tmp_path / "cut" / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize("job", ["shared", "local", "tree", "scaffold", "mime", "distill"])
def test_a_server_that_dies_before_it_has_written_a_round_down(
    job: str, files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sites live on and are a round ahead of it: they go back, and the model is that of an unbroken run."""
    config, sites = Config(data="sites", **JOBS[job]), Sites(files, settings=JOBS[job])
    save, saved = Run.save, list[int]()

    def dying(run: Run, state: Any, *more: Any) -> None:
        if state.t == 2 and not saved:
            saved.append(state.t)
            raise KeyboardInterrupt
        save(run, state, *more)

    monkeypatch.setattr(Run, "save", dying)
    with pytest.raises(KeyboardInterrupt):
        over_flower(sites.grid, config, tmp_path / "cut", minimum=3)
    rest = over_flower(sites.grid, config, tmp_path / "cut", minimum=3, resume=True)
    assert [line["participants"] for line in rest.metrics] == [3] * len(rest.metrics)
    here = train(Config(data=tuple(map(str, files)), target="kind", **JOBS[job]), workers=0)
    assert rest.model.to_bytes() == here.model.to_bytes()


def test_what_is_no_answer_is_left_out(files: list[Path], sites: Sites, caplog: pytest.LogCaptureFixture) -> None:
    from flwr.app import Error, Message, RecordDict

    grid, count = sites.grid, [0]

    def fault(question: Message, reply: Message) -> Message:
        count[0] += question.metadata.dst_node_id == 101
        if question.metadata.dst_node_id == 101 and count[0] in (12, 14):
            wrong = RecordDict() if count[0] == 12 else Error(7, "\x1b[1mno")
            return Message(wrong, reply_to=question)
        return reply

    grid.fault = fault
    with caplog.at_level("WARNING", "ffgb"):
        result = over_flower(grid, LINEAR)
    assert result.finished
    assert "site north sent what is refused: a Flower message is not one of ours" in caplog.text
    assert "site north failed: ?[1mno; it is left out until it is back" in caplog.text
    missed = {line["round"] for line in result.metrics if line["participants"] == 2}
    assert missed
    same(result.model, without_north(files, LINEAR, missed))


def test_answers_that_come_twice_or_late_count_once(files: list[Path], sites: Sites) -> None:
    plain = over_flower(sites.grid, LINEAR)
    others = Sites(files)
    others.grid.echoes = True
    echoed = over_flower(others.grid, LINEAR)
    assert echoed.model.to_bytes() == plain.model.to_bytes()
    assert [line["participants"] for line in echoed.metrics] == [3] * 6
    assert echoed.metrics[-1]["bytes_up"] == plain.metrics[-1]["bytes_up"]


@pytest.mark.parametrize("job", ["shared", "local", "linear", "tree", "mlp", "fedavg"])
@pytest.mark.parametrize("restarted", [False, True])
def test_the_bytes_that_travel_are_those_that_metrics_say(job: str, restarted: bool, sites: Sites) -> None:
    """All of them up to the last round: who is here, what was agreed on, reports of rows held out, what is sent anew,
    Flower's envelopes."""
    travelled = list[int]()

    def restart(line: dict[str, Any]) -> None:
        travelled.append(sites.grid.bytes)
        if restarted and line["round"] == 1:
            sites.forget(101)

    said = over_flower(sites.grid, Config(data="sites", **JOBS[job]), on_round=restart).metrics[-1]
    assert travelled[-1] == pytest.approx(3 * (said["wire_up"] + said["wire_down"]), rel=0.02)
    assert said["wire_up"] > said["bytes_up"]
    assert sites.grid.bytes > travelled[-1]  # scores of rows held out, once, when training has ended


@pytest.mark.parametrize("job", [{"learner": "mlp", "hidden": (200, 200), "oracle_steps": 2}, {"features": 400}])
def test_where_messages_are_large_they_are_what_a_method_costs(job: dict[str, Any], sites: Sites) -> None:
    said = over_flower(sites.grid, Config(data="sites", rounds=3, **job)).metrics[-1]
    assert said["wire_up"] + said["wire_down"] == pytest.approx(said["bytes_up"] + said["bytes_down"], rel=0.02)


def test_a_node_bears_the_name_of_its_key(sites: Sites, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level("WARNING", "ffgb"),
        pytest.raises(FFGBError, match=r"only 2 of 3 sites came .* \(east, west\)"),
    ):
        gather(Counted(sites.grid), 3, 0.5, met, keys=lambda: {100: "east", 101: "south", 102: "west"})
    assert "a node with the key of south says that it is site north; it is left out" in caplog.text


def test_a_site_keeps_a_log(sites: Sites, tmp_path: Path) -> None:
    log = tmp_path / "messages.jsonl"
    sites.attendants[101].log = log
    over_flower(sites.grid, Config(data="sites", learner="features", rounds=2))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {line["way"] for line in lines} == {"in", "out"}
    sent = [line for line in lines if line["way"] == "out"]
    assert sum("gram" in line.get("arrays", ()) for line in sent) == 1
    assert sum("covector" in line.get("arrays", ()) for line in sent) == 2
    assert sum("slopes" in line.get("arrays", ()) for line in sent) == 2
    assert {line["kind"] for line in sent if line.get("arrays")} == {"part"}
    parts = {"time", "way", "kind", "round", "client", "bytes", "arrays"}
    assert [line["kind"] for line in lines if set(line) != parts] == [
        "who is here", "needs what all sites agreed on", "what all sites agreed on",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "job",
    [
        {}, {"learner": "features"}, {"geometry": "local"}, {"learner": "mlp", "oracle_steps": 5},
        {"task": "regression"}, {"learner": "features", "task": "regression"}, {"learner": "trees"},
    ],
)  # fmt: skip
def test_consent_given_alone_holds_with_others(job: dict[str, Any], files: list[Path], caplog: Any) -> None:
    """A site that has two classes of three, or one, agrees to what it will be asked, though it cannot know of them."""
    task = job.get("task")
    if task:  # numbers that look like classes at one site, and like numbers at the others
        for i, path in enumerate(files):
            text = path.read_text()
            for j, kind in enumerate("abc"):
                text = text.replace(f",{kind}\n", f",{j if i == 0 else 1.5 * j}\n")
            path.write_text(text)
    else:
        head, *rows = files[1].read_text().splitlines()
        files[1].write_text("\n".join([head, *(row for row in rows if row.endswith("a"))]) + "\n")
    options = {k: v for k, v in job.items() if k != "task"}
    sites = Sites(files, settings={"rounds": 2, **options})
    with caplog.at_level("WARNING", "ffgb"):
        result = over_flower(sites.grid, Config(data="sites", rounds=2, **options))
    final = job.keys() <= {"task"}  # a blend's scores come in an exchange after the last round
    assert [line["participants"] for line in result.metrics] == [3, 3] + [3] * final
    assert "has not agreed" not in caplog.text
    assert ("the target is a number at north, west" in caplog.text) == bool(task)


@pytest.mark.parametrize("learner", ["auto", "trees"])
def test_consent_holds_for_a_site_with_an_empty_column(learner: str, files: list[Path], caplog: Any) -> None:
    """What it rehearses with the columns of all sites: all its rows are in the cell of missing values."""
    head, *rows = files[1].read_text().splitlines()
    rows = [",".join([*row.split(",")[:3], "", row[-1]]) for row in rows]
    files[1].write_text("\n".join([head, *rows]) + "\n")
    sites = Sites(files, settings={"learner": learner, "rounds": 2})
    with caplog.at_level("WARNING", "ffgb"):
        result = over_flower(sites.grid, Config(data="sites", learner=learner, rounds=2))
    assert all(line["participants"] == 3 for line in result.metrics)
    assert "has not agreed" not in caplog.text


def test_consent_to_a_blend_holds_for_columns_of_few_values(tmp_path: Path, caplog: Any) -> None:
    """A rehearsal has many values in each column, too many for an additive model; all sites together have few."""
    columns, files = 12, []
    for i, name in enumerate(SITES):
        x = np.random.default_rng(i).integers(0, 3, (100, columns))
        rows = [",".join([*map(str, row), "ab"[int(row[0] + row[1] > 2)]]) for row in x]
        files.append(tmp_path / f"{name}.csv")
        files[-1].write_text("\n".join([",".join([*(f"x{k}" for k in range(columns)), "kind"]), *rows]) + "\n")
    sites = Sites(files, settings={"rounds": 2})
    with caplog.at_level("WARNING", "ffgb"):
        result = over_flower(sites.grid, Config(data="sites", rounds=2))
    assert [line["participants"] for line in result.metrics] == [3, 3, 3]
    assert "share_additive" in result.metrics[-1]  # it had a part
    assert "has not agreed" not in caplog.text


def test_a_site_does_what_it_is_asked_and_no_more(files: list[Path]) -> None:
    said: list[str] = []
    attendant = Attendant(Site("east", files[0], "kind"), say=said.append)
    schema = Schema.of({"east": attendant.site.describe()}, "kind")
    text = schema.to_json().encode()
    common = {"training": "t", "schema": hashlib.sha256(text).hexdigest(), "seed": 0, "clients": [0]}
    points: dict[str, Array] = {"x": np.zeros((5, 4), np.float32), "y": np.zeros(5, np.int64)}
    other = encode(FFGBMessage("host", client=0, tensors=points))
    data, answered = attendant.answer({"message": other, "schema": text}, common)
    assert (data, list(answered)) == ({}, ["failed"])
    assert "is of the kind 'host'" in answered["failed"]
    assert attendant.resident is not None
    assert len(attendant.resident.host.clients[0].points) == schema.rows[0]
    # what goes wrong here is seen here: a traceback has paths in it, and may have values
    attendant.resident.host.clients[0].answer = lambda *_: 1 / 0  # type: ignore[method-assign,assignment]
    moments = MomentsOf(None, np.zeros(1), np.ones(1))
    question = encode(Asked(moments, Weighting(float(schema.rows[0]))).message())
    data, _ = attendant.answer({"message": question}, common)
    assert b"Traceback" not in data["0"]
    assert b"its owner sees more" in data["0"]
    assert any("Traceback" in text for text in said)


HELLOS: dict[str, dict[str, Any]] = {
    "too many rows": {"rows": 2**33}, "too many held out": {"test_rows": 2**39}, "outputs": {"outputs": 2**30},
    "classes": {"classes": (0.0, 1e300)}, "yes": {"rows": True}, "many classes": {"classes": tuple(range(10_001))},
    "a sum": {"total": 1.7e308}, "a name": {"name": "a\nb"}, "no name": {"name": ""}, "columns": {"columns": "all"},
    "kind": {"kind": 3}, "shape": {"shape": (2**20, 2**20, 2)},
}  # fmt: skip


@pytest.mark.parametrize("bad", HELLOS)
def test_what_a_site_says_of_itself_is_checked(bad: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x,y\n" + "".join(f"{i}.5,{i % 3}\n" for i in range(30)))
    described = dataclasses.asdict(without_counts(Site("a", path, "y").describe(), rows=True))
    described["columns"] = list(described["columns"].items())
    values = {"name": "a", "columns": described}
    change = HELLOS[bad]
    if "total" in change:
        described["columns"] = [(name, said | change) for name, said in described["columns"]]
    elif "name" in change:
        values |= change
    else:
        described |= change
    with pytest.raises(FFGBError, match=r"a site|its name is none"):
        met(encode(FFGBMessage("hello", values=values)))


def test_who_missed_a_deadline_has_time_to_come_back(sites: Sites, files: list[Path]) -> None:
    """Where everyone must answer, the next tries wait for who is away."""
    grid, began = sites.grid, time.monotonic()
    north: list[Any] = []

    def meanwhile(line: dict[str, Any]) -> None:
        if line["round"] == 2:
            north.append(grid.contexts.pop(101))
            threading.Timer(2.5, lambda: grid.contexts.__setitem__(101, north[0])).start()

    result = over_flower(grid, LINEAR, deadline=1.0, minimum=3, on_round=meanwhile)
    assert [line["participants"] for line in result.metrics] == [3] * 6
    assert time.monotonic() - began > 2.5
    same(result.model, without_north(files, LINEAR, set()))


def test_a_run_goes_on_with_its_own_sites_rows_and_options(files: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "run"
    options: dict[str, Any] = {"data": ["sites"], "secure": "off", "rounds": 2}
    options |= {"learner": "linear", "geometry": "local", "schedule": "constant"}

    def again(**changes: Any) -> None:
        service, task = Service(3, 1, "", 0, None, 5.0, 5.0), Task({**options, **changes}, "kind", None)
        board = ServerBoard(str(out), 3)
        federate(Counted(Sites(files).grid), service, task, out, board=board, say=lambda text: None)

    again()
    assert ended(out, options)
    assert ended(out, {k: v for k, v in options.items() if k != "rounds"})
    assert not ended(out, {**options, "rounds": 3})
    with pytest.raises(FFGBError, match='was begun with learner = "linear", not "mlp"; name another --out'):
        ended(out, {**options, "learner": "mlp"})
    with pytest.raises(FFGBError, match='was begun with geometry = "local", not its default'):
        ended(out, {k: v for k, v in options.items() if k != "geometry"})
    again(rounds=3)
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 3
    text = files[1].read_text()
    files[1].write_text(text + text.splitlines()[1] + "\n")
    with pytest.raises(FFGBError, match=r"site north had 50 rows when the run in .* began, and has 51"):
        again(rounds=4)
    files[1].write_text(text)
    files[1] = files[1].rename(files[1].with_name("south.csv"))
    with pytest.raises(FFGBError, match="begun with east, north, west, and here are east, south, west"):
        again(rounds=4)


def test_sites_that_do_not_fit_are_named(files: list[Path], sites: Sites, caplog: pytest.LogCaptureFixture) -> None:
    files[2].write_text(files[2].read_text().replace("p,q,r,s,kind", "p,q,r,z,kind"))
    found = gather(Counted(sites.grid), 3, 5.0, met)
    with caplog.at_level("WARNING", "ffgb"):
        schema = Schema.of({a.site.name: a.site.describe() for a in sites.attendants.values()}, "kind")
    assert list(schema.names) == sorted(found)
    assert schema.table is not None
    assert schema.table.names == ("p", "q", "r", "s", "s missing")
    assert "site west lacks the column 's'; its values count as missing there" in caplog.text
    assert "site west also has the column 'z', which is not used" in caplog.text
    with pytest.raises(FFGBError, match=r"only 3 of 4 sites came within 0\.1 s \(east, north, west\)"):
        gather(Counted(sites.grid), 4, 0.1, met)


def test_numbers_to_predict_are_not_told(tmp_path: Path) -> None:
    """What a site says about its file has classes in it, and no targets."""
    path = tmp_path / "a.csv"
    path.write_text("x,y\n" + "".join(f"{i},{i * 1.5 + 0.25}\n" for i in range(30)))
    said = Site("a", path, "y").describe()
    assert (said.kind, said.classes, said.rows, said.test_rows) == ("numbers", (), 24, 6)
    path.write_text("x,y\n" + "".join(f"{i},{i}\n" for i in range(30)))
    assert Site("a", path, "y").describe().classes == ()  # 30 different whole numbers are no classes
    path.write_text("x,y\n" + "".join(f"{i},{i % 3}\n" for i in range(30)))
    assert Site("a", path, "y").describe().classes == (0.0, 1.0, 2.0)
    said = Site("a", path, "y").describe()
    wrong: list[dict[str, Any]] = [
        *({"rows": -1}, {"kind": "rows"}, {"columns": {1: said.columns["x"]}}),
        *({"shape": (3,)}, {"classes": ("a",)}, {"columns": {}}),
    ]
    for bad in wrong:
        with pytest.raises(FFGBError, match="a site"):
            dataclasses.replace(said, **bad).check()


@pytest.mark.parametrize("regression", [False, True])
def test_what_sites_agree_on_is_what_one_machine_reads(regression: bool, tmp_path: Path) -> None:
    paths = []
    for i in range(3):
        rng = np.random.default_rng(i)
        y = rng.standard_normal(30) if regression else rng.integers(i, i + 3, 30)
        rows = [f"{a:.3f},{b:.3f},{t}" for (a, b), t in zip(rng.standard_normal((30, 2)), y, strict=True)]
        paths.append(tmp_path / f"{'cab'[i]}.csv")
        paths[-1].write_text("\n".join(["u,v,y", *rows]) + "\n")
    schema = Schema.of({path.stem: Site(path.stem, path, "y").describe() for path in paths}, "y")
    dataset = load_sites(sorted(paths), "y")
    assert schema.names == ("a", "b", "c")
    assert (schema.table, schema.classes, schema.task) == (dataset.table, dataset.classes, dataset.task)
    assert sum(schema.rows) == len(dataset.x)
    empty = schema.dataset()
    assert (empty.x.shape, empty.x_test.shape, empty.outputs) == (
        dataset.x.shape,
        dataset.x_test.shape,
        dataset.outputs,
    )
    assert Schema.from_json(schema.to_json()) == schema
    with pytest.raises(FFGBError, match="agreed on cannot be read"):
        Schema.from_json("{}")


def test_a_site_that_claims_a_hundred_million_rows_is_named_and_left_out(
    files: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And the model is that of the others."""
    four = [*files, files[0].with_name("south.csv")]
    four[3].write_text(files[0].read_text())
    sites = Sites(four)
    liar = sites.attendants[103]
    said = dataclasses.replace(liar.site.describe(), rows=10**8)
    liar._hello = hello(liar.site, said), said
    task = Task({"data": ["sites"], "learner": "features", "secure": "off", "rounds": 2}, "kind", None)
    board, out = ServerBoard("", 4), tmp_path / "run"
    with caplog.at_level("WARNING", "ffgb"):
        service = Service(4, 3, "", 0, None, 5.0, 5.0)
        found = federate(Counted(sites.grid), service, task, out, board=board, say=lambda text: None)
    assert "site south is left out of this training: it announces 1000000" in caplog.text
    here = train(Config(data=tuple(map(str, files)), target="kind", rounds=2, learner="features"), workers=0)
    assert found.model.to_bytes() == here.model.to_bytes()
    strict = Service(4, 4, "", 0, None, 5.0, 5.0)
    with pytest.raises(FFGBError, match="site south cannot take part"):
        federate(Counted(sites.grid), strict, task, tmp_path / "other", board=board, say=lambda text: None)
