"""Training over Flower's messages: the same model as on one machine, to the bit."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest

pytest.importorskip("flwr")

from ffgb.config import Config, load_data
from ffgb.data.files import load_sites
from ffgb.deploy import at_the_door, rehearse
from ffgb.engines import flower
from ffgb.engines.flower import FlowerEngine, gather
from ffgb.engines.node import client_app as node_app
from ffgb.errors import FFGBError
from ffgb.sites import Attendant, Schema, Site
from ffgb.training import Elsewhere, Result, train
from tests.engines.grid import InProcessGrid

SITES = ("east", "north", "west")


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Three sites' tables; one lacks a class that the others have."""
    paths = []
    centres = np.random.default_rng(9).standard_normal((3, 4)) * 2
    for i, name in enumerate(SITES):
        rng = np.random.default_rng(i)
        y = rng.integers(0, 3 if i else 2, 40 + 10 * i)
        x = centres[y] + rng.standard_normal((len(y), 4))
        rows = [",".join([*(f"{v:.4f}" for v in row), "abc"[c]]) for row, c in zip(x, y, strict=True)]
        path = tmp_path / f"{name}.csv"
        path.write_text("\n".join(["p,q,r,s,kind", *rows]) + "\n")
        paths.append(path)
    return paths


@final
class Sites:
    """A grid of three real sites: what `ffgb client` holds behind its socket, and what Flower runs in front of it."""

    def __init__(self, files: list[Path]) -> None:
        self.held = ExitStack()
        self.attendants = {100 + i: Attendant(Site(path.stem, path, "kind")) for i, path in enumerate(files)}
        nodes = {}
        for node, attendant in self.attendants.items():
            home = Path(self.held.enter_context(tempfile.TemporaryDirectory()))
            nodes[node] = {"socket": str(self.held.enter_context(at_the_door(attendant, home)))}
        self.grid = InProcessGrid(node_app(), nodes)

    def forget(self, node: int) -> None:
        """As if its `ffgb client` had been started anew."""
        attendant = self.attendants[node]
        attendant.run, attendant.schema, attendant.resident = None, b"", None


@pytest.fixture
def sites(files: list[Path]) -> Iterator[Sites]:
    made = Sites(files)
    with made.held:
        yield made


def over_flower(
    grid: InProcessGrid, config: Config, out: Path | None = None, deadline: float = 5.0, **more: Any
) -> Result:
    found = gather(grid, len(SITES), 5.0)
    schema = Schema.of({name: columns for name, (_, columns) in found.items()}, "kind")
    nodes = {name: node for name, (node, _) in found.items()}
    engine = FlowerEngine.of_sites(grid, nodes, schema, config.seed, deadline)
    return train(config, out, elsewhere=Elsewhere(engine, schema, 1), **more)


JOBS: dict[str, dict[str, Any]] = {
    "shared": {"rounds": 3},
    "local": {"rounds": 3, "geometry": "local"},
    "linear": {"rounds": 3, "learner": "linear"},
    "nystrom": {"rounds": 3, "gram": "nystrom", "rank": 8},
    "steps": {"rounds": 3, "map": "steps", "features": 32},
    "mlp": {"rounds": 3, "learner": "mlp", "oracle_steps": 20},
    "tree": {"rounds": 3, "learner": "tree"},
    "ffgb-c": {"rounds": 2, "algorithm": "ffgb-c", "learner": "mlp", "oracle_steps": 20},
    "fedavg": {"rounds": 3, "algorithm": "fedavg", "learner": "mlp"},
    "scaffold": {"rounds": 4, "algorithm": "scaffold", "learner": "mlp"},
    "mime": {"rounds": 2, "algorithm": "mime", "learner": "mlp"},
    "distill": {"rounds": 2, "learner": "mlp", "oracle_steps": 20, "distill": "rounds", "distill_rounds": 3},
    "int8": {"rounds": 3, "learner": "mlp", "oracle_steps": 20, "precision": "int8"},
    "some": {"rounds": 4, "participation": 2, "learner": "mlp", "oracle_steps": 20},
}


@pytest.mark.parametrize("job", JOBS)
def test_the_model_is_that_of_one_machine_to_the_bit(job: str, files: list[Path]) -> None:
    config = Config(data=tuple(map(str, files)), target="kind", **JOBS[job])
    here = train(config, workers=0)
    with (sites := Sites(files)).held:
        there = over_flower(sites.grid, Config(data="sites", **JOBS[job]))
    assert there.model.to_bytes() == here.model.to_bytes()
    assert there.metrics[-1]["test_accuracy"] == here.metrics[-1]["test_accuracy"]
    assert there.metrics[-1]["bytes_up"] == here.metrics[-1]["bytes_up"]
    with (sites := Sites(files)).held:  # a site's `ffgb client` is started anew, and has forgotten everything

        def restart(line: dict[str, Any]) -> None:
            sites.forget(101)

        again = over_flower(sites.grid, Config(data="sites", **JOBS[job]), on_round=restart)
    assert again.model.to_bytes() == here.model.to_bytes()
    # Flower's simulation: the same clients at nodes that any process may be asked for
    resolved = json.dumps(config.resolved(load_data(config)).to_json())
    clients = len(SITES) + 1  # and the test rows
    for forgetful in (True, False):
        grid = InProcessGrid(flower.client_app(resolved), {7 + i: {"partition-id": i} for i in range(clients)})
        grid.before = flower._residents.clear if forgetful else grid.before
        engine = FlowerEngine(grid, {str(i): 7 + i for i in range(clients)}, {i: str(i) for i in range(clients)}, 60.0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(flower, "simulation", lambda *_, engine=engine: nullcontext(engine))
            simulated = train(config, engine="flower")
        assert simulated.model.to_bytes() == here.model.to_bytes()


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
    assert "site north did not answer within 0.5 s" in caplog.text
    assert "site north is back" in caplog.text
    assert there.finished

    # The same as where north was simply not reached in those rounds.
    absent = (others := Sites(files)).grid
    seen: list[int] = []

    def away(line: dict[str, Any]) -> None:
        seen.append(line["participants"])
        if len(seen) == 2:
            hidden.append(absent.contexts.pop(101))
        if len(seen) == 4:
            absent.contexts[101] = hidden[0]

    hidden: list[Any] = []
    with others.held:
        other = over_flower(absent, LINEAR, deadline=0.5, on_round=away)
    assert seen[:4] == rounds[:4]
    if seen == rounds:  # the same node may be found again a round later
        assert other.model.to_bytes() == there.model.to_bytes()


def test_the_server_may_die_and_go_on(files: list[Path], tmp_path: Path) -> None:
    lines: list[Any] = []
    with (sites := Sites(files)).held:
        whole = over_flower(sites.grid, LINEAR, tmp_path / "whole")
        over_flower(sites.grid, LINEAR, tmp_path / "cut", on_round=lines.append, should_stop=lambda: len(lines) == 3)
    # another server, other nodes, whose state is gone
    with (sites := Sites(files)).held:
        rest = over_flower(sites.grid, LINEAR, tmp_path / "cut", resume=True)
    assert rest.model.to_bytes() == whole.model.to_bytes()
    assert (tmp_path / "cut" / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "model.safetensors"
    ).read_bytes()


def test_answers_that_are_late_double_or_garbage_change_nothing(
    files: list[Path], sites: Sites, caplog: pytest.LogCaptureFixture
) -> None:
    from flwr.app import Error, Message, RecordDict

    with (others := Sites(files)).held:
        plain = over_flower(others.grid, LINEAR)
    grid, count = sites.grid, [0]

    def fault(question: Message, reply: Message) -> Message:
        count[0] += question.metadata.dst_node_id == 101
        if question.metadata.dst_node_id == 101 and count[0] in (8, 10):
            wrong = RecordDict() if count[0] == 8 else Error(7, "\x1b[1mno")
            return Message(wrong, reply_to=question)
        return reply

    grid.fault = fault
    with caplog.at_level("WARNING", "ffgb"):
        result = over_flower(grid, LINEAR)
    assert result.finished
    assert "site north sent what is refused: a Flower message is not one of ours" in caplog.text
    assert "site north failed, and is left out until it answers again: ?[1mno" in caplog.text
    assert [line["participants"] for line in result.metrics] != [line["participants"] for line in plain.metrics]


def test_answers_that_come_twice_or_late_count_once(files: list[Path], sites: Sites) -> None:
    plain = over_flower(sites.grid, LINEAR)
    with (others := Sites(files)).held:
        others.grid.echoes = True
        echoed = over_flower(others.grid, LINEAR)
    assert echoed.model.to_bytes() == plain.model.to_bytes()
    assert [line["participants"] for line in echoed.metrics] == [3] * 6
    assert echoed.metrics[-1]["bytes_up"] == plain.metrics[-1]["bytes_up"]


@pytest.mark.parametrize("job", [{"learner": "mlp", "hidden": (200, 200), "oracle_steps": 2}, {"features": 400}])
def test_the_bytes_that_travel_are_those_that_metrics_say(job: dict[str, Any], sites: Sites) -> None:
    """Within two parts in a hundred: Flower wraps what we send, and rows that are held out are reported of, too."""
    result = over_flower(sites.grid, Config(data="sites", rounds=3, **job))
    said = result.metrics[-1]
    assert sites.grid.bytes == pytest.approx(3 * (said["bytes_up"] + said["bytes_down"]), rel=0.02)


def test_a_node_bears_the_name_of_its_key(sites: Sites, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level("WARNING", "ffgb"),
        pytest.raises(FFGBError, match=r"only 2 of 3 sites came .* \(east, west\)"),
    ):
        gather(sites.grid, 3, 0.5, keys={100: "east", 101: "south", 102: "west"})
    assert "a node with the key of south says that it is site north; it is left out" in caplog.text


def test_a_site_sends_only_what_it_agreed_to_and_keeps_a_log(files: list[Path], sites: Sites, tmp_path: Path) -> None:
    log = tmp_path / "messages.jsonl"
    sites.attendants[101].log = log
    over_flower(sites.grid, Config(data="sites", rounds=2))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {line["way"] for line in lines} == {"in", "out"}
    sent = [line for line in lines if line["way"] == "out"]
    assert sum("gram" in line["arrays"] for line in sent) == 1
    assert sum(line["kind"] == "answer" for line in sent) == 2
    assert all(set(line) == {"time", "way", "kind", "round", "client", "bytes", "arrays"} for line in lines)

    site = Site("north", files[1], "kind")
    kinds = rehearse(site, {"data": ["sites"]}, "kind", None).kinds
    assert "GramOf" in kinds
    sites.attendants[101].agreed = frozenset(kinds - {"GramOf"})
    with pytest.raises(FFGBError, match="north did not answer a question that everyone must"):
        over_flower(sites.grid, Config(data="sites", rounds=2))
    sites.attendants[101].agreed = frozenset(kinds)
    assert over_flower(sites.grid, Config(data="sites", rounds=2)).finished


def test_sites_that_do_not_fit_are_named(files: list[Path], sites: Sites, caplog: pytest.LogCaptureFixture) -> None:
    files[2].write_text(files[2].read_text().replace("p,q,r,s,kind", "p,q,r,z,kind"))
    found = gather(sites.grid, 3, 5.0)
    with caplog.at_level("WARNING", "ffgb"):
        schema = Schema.of({name: columns for name, (_, columns) in found.items()}, "kind")
    assert schema.table is not None
    assert schema.table.names == ("p", "q", "r", "s", "s missing")
    assert "site west lacks the column 's'; its values count as missing there" in caplog.text
    assert "site west also has the column 'z', which is not used" in caplog.text
    with pytest.raises(FFGBError, match=r"only 3 of 4 sites came within 0\.1 s \(east, north, west\)"):
        gather(sites.grid, 4, 0.1)


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
    for bad in ({"rows": -1}, {"kind": "rows"}, {"columns": {1: said.columns["x"]}}, {"shape": (3,)},
                {"classes": ("a",)}, {"columns": {}}):  # fmt: skip
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
