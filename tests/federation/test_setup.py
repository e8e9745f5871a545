"""A server with sites elsewhere that is killed in set-up goes on from the last question, to the same bits."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffgb.core.exact_sums import TargetOrders, TargetSums
from ffgb.core.grams import GramOf, SketchOf
from ffgb.core.histograms import ClassWeights, RowCounts, WeightOrders
from ffgb.core.moments import MagnitudeOf, MomentsOf
from ffgb.core.points import Points
from ffgb.core.quantiles import BelowEdges
from ffgb.core.questions import Here, Question, RoundQuestion
from ffgb.core.steepness import SteepnessOf
from ffgb.core.survey import FileCounts, FileSums, NameCounts, NamesIn
from ffgb.data.sites import Schema, Site
from ffgb.errors import FFGBError
from ffgb.features.basic import Flatten
from ffgb.features.bins import CategoryCounts, KeyCounts
from ffgb.features.patches import Grid, NearestSums, PatchMoments
from ffgb.features.tables import Columns, Histogram, LeavesOf, ObliviousTrees
from ffgb.federation.totals import total_of
from ffgb.privacy.integers import add, to_integers
from ffgb.protocol.codec import decode, encode
from ffgb.protocol.describe import KINDS, describe
from ffgb.protocol.engine import Engine
from ffgb.runs.config import Config
from ffgb.runs.directory import Run
from ffgb.runs.training import Elsewhere, Result, train
from tests.engines.faults import Fault, in_set_up, is_about, with_tensors
from tests.runs.test_directory import lines, same

SITES = ("east", "north", "south", "west")


class Killed(BaseException):
    """What ends a server."""


class Network(Engine):
    """Sites that outlive servers, a fault between them, and a list of what was asked; a server may ask some questions,
    and is killed with the next."""

    def __init__(self, residents: Sequence[Any], fault: Fault, allowed: int = 100) -> None:
        self.residents, self.fault, self.allowed = residents, fault, allowed
        self.asked: list[bytes] = []

    def exchange(self, data: bytes, clients: Sequence[int]) -> dict[int, bytes]:
        question = decode(data)
        if in_set_up(question) and data not in self.asked:
            if len(self.asked) == self.allowed:
                raise Killed
            self.asked.append(data)
        answers = {i: a for r in self.residents for i, a in r.answer(data, clients).items()}
        found = {i: self.fault(question, i, a) for i, a in answers.items()}
        return {i: a for i, a in found.items() if a is not None}

    def close(self, *, at_once: bool = False) -> None:
        pass


def honest(question: Any, i: int, answer: bytes) -> bytes:
    return answer


def lying_and_silent(question: Any, i: int, answer: bytes) -> bytes | None:
    """Site 1 lies about its counts, and site 3 does not answer questions about moments."""
    if is_about(question, "MomentsOf") and i == 3:
        return None
    if is_about(question, "Histogram") and i == 1:
        return encode(with_tensors(decode(answer), counts=lambda c: c + 1))
    return answer


@pytest.fixture
def sites(tmp_path: Path) -> list[Site]:
    found = []
    for k, name in enumerate(SITES):
        rng = np.random.default_rng(k)
        x = rng.standard_normal((40 + 5 * k, 3))
        with (tmp_path / f"{name}.csv").open("w") as file:
            rows = csv.writer(file)
            rows.writerow(["a", "b", "c", "y"])
            rows.writerows([*row, "yes" if row[0] + 0.3 * rng.standard_normal() > 0 else "no"] for row in x)
        found.append(Site(name, tmp_path / f"{name}.csv", "y"))
    return found


def schema(sites: Sequence[Site]) -> Schema:
    return Schema.of({site.name: site.describe() for site in sites}, "y")


CONFIGS: dict[str, Config] = {
    "shared": Config(data="sites", learner="features", secure="off", rounds=3, features=40),
    "blocks": Config(data="sites", secure="off", rounds=2, features=40, gram="blocks"),
    "nystrom": Config(data="sites", secure="off", rounds=2, features=40, gram="nystrom", rank=8),
}


def serve(network: Network, sites: Sequence[Site], config: Config, out: Path, *, minimum: int = 4) -> Result:
    """What a server does that is started with an --out: it goes on if there is a run."""
    resume = (out / "config.json").exists()
    config = Config.from_json(Run.open(out).config) if resume else config
    return train(config, out, resume=resume, elsewhere=Elsewhere(network, schema(sites), minimum))


def residents(sites: Sequence[Site], config: Config) -> list[Any]:
    return [site.move_in(schema(sites), config.seed) for site in sites]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(("fault", "minimum"), [(honest, 4), (lying_and_silent, 2)], ids=["honest", "lying"])
def test_no_question_is_asked_twice(config: str, fault: Fault, minimum: int, sites: list[Site], tmp_path: Path) -> None:
    """Killed after every question of the set-up: the run ends as if it had not been, and costs the same."""
    chosen = CONFIGS[config]
    whole = Network(residents(sites, chosen), fault)
    assert serve(whole, sites, chosen, tmp_path / "whole", minimum=minimum).finished
    assert len(whole.asked) > 5
    kept, asked, ended, out = residents(sites, chosen), list[bytes](), False, tmp_path / "broken"
    while not ended:
        network = Network(kept, fault, allowed=1)
        try:
            ended = serve(network, sites, chosen, out, minimum=minimum).finished
        except Killed:
            assert Run.open(out).load() is None
        asked += network.asked
    assert asked == whole.asked
    same(tmp_path / "whole", out)
    assert list((out / "checkpoint").glob("total-*")) == []  # of no more use
    first = lines(out)[0]
    if fault is honest:
        assert not {"absent", "setup_absent"} & first.keys()
        return
    assert first["absent"] == ["north"]
    absent = first["setup_absent"]
    assert absent["2 MomentsOf"] == ["west"]
    assert absent["3 Histogram"] == ["north"]  # west answers these


def test_who_was_refused_stays_refused_when_the_run_goes_on(sites: list[Site], tmp_path: Path) -> None:
    config, seen = CONFIGS["shared"], list[Any]()
    whole = Network(residents(sites, config), lying_and_silent)
    serve(whole, sites, config, tmp_path / "whole", minimum=2)
    kept, out = residents(sites, config), tmp_path / "broken"
    elsewhere = Elsewhere(Network(kept, lying_and_silent), schema(sites), 2)
    train(config, out, elsewhere=elsewhere, on_round=seen.append, should_stop=lambda: len(seen) == 1)
    assert len(lines(out)) == 1
    asked: set[int] = set()

    def fault(question: Any, i: int, answer: bytes) -> bytes | None:
        asked.add(i)
        return lying_and_silent(question, i, answer)

    network = Network(kept, fault)
    serve(network, sites, config, out, minimum=2)
    assert network.asked == []
    assert asked == {0, 2, 3, 4, 6, 7}  # north is 1, and what it holds out is 5
    same(tmp_path / "whole", out)


def test_a_set_up_goes_on_with_the_same_sites_only(sites: list[Site], tmp_path: Path) -> None:
    config, out = CONFIGS["shared"], tmp_path / "run"
    with pytest.raises(Killed):
        serve(Network(residents(sites, config), honest, allowed=2), sites, config, out)
    others = [Site("elsewhere", sites[0].path, "y"), *sites[1:]]
    with pytest.raises(FFGBError, match="begun with other clients, or other rows; start another run"):
        serve(Network(residents(others, config), honest), others, config, out)


def test_a_damaged_set_up_is_told(sites: list[Site], tmp_path: Path) -> None:
    config, out = CONFIGS["shared"], tmp_path / "run"
    with pytest.raises(Killed):
        serve(Network(residents(sites, config), honest, allowed=2), sites, config, out)
    assert json.loads((out / "checkpoint" / "setup.json").read_text())["clients"].keys() == set(SITES)
    (out / "checkpoint" / "total-000001.safetensors").write_bytes(b"nothing")
    with pytest.raises(FFGBError, match=r"the set-up in .* is damaged"):
        serve(Network(residents(sites, config), honest), sites, config, out)


def totals() -> dict[str, Any]:
    """Of every question of a set-up, for two clients with images."""
    rng = np.random.default_rng(0)
    clients = [Points(i, rng.random((9 + i, 1, 8, 8)).astype(np.float32), rng.standard_normal(9 + i)) for i in (0, 1)]
    flat, grid = Flatten(64), Grid((1, 8, 8), 3, 0.1)
    centres = rng.standard_normal((4, 9)).astype(np.float32)
    centre, spread = np.full(64, 0.5, np.float32).astype(np.float64), np.ones(64)
    questions: list[Question] = [
        MagnitudeOf(flat, centre),
        MomentsOf(flat, centre, spread),
        MomentsOf(None, np.zeros(1), np.full(1, 100.0)),
        GramOf(flat, (64,), 1, centre, spread),
        GramOf(flat, (16,), 4, centre, spread[:16]),
        SketchOf(flat, 5, 0, centre, spread),
        Histogram(np.sort(rng.random((64, 7)), axis=1).astype(np.float32)),
        LeavesOf(ObliviousTrees(Columns(np.full((64, 1), 0.5, np.float32), tuple(range(64))), 3, 2, 0)),
        PatchMoments(grid, 2, 0),
        NearestSums(grid, np.zeros(9), np.eye(9, dtype=np.float32), centres, 2, 0),
        SteepnessOf(flat, np.zeros(1), np.ones(1), 100.0),
        BelowEdges(np.linspace(-2.0, 2.0, 9)[None]),
    ]
    asked = {type(question) for question in questions}
    others = {FileCounts, FileSums, NameCounts, NamesIn, KeyCounts, CategoryCounts, TargetOrders, TargetSums}
    others |= {RowCounts, WeightOrders, ClassWeights}  # their totals are arrays
    setup = {kind for kind in KINDS.values() if issubclass(kind, Question) and not issubclass(kind, RoundQuestion)}
    of_records = {kind for kind in setup if kind.__module__.startswith(("ffgb.core.regression.", "ffgb.core.proofs"))}
    private = {kind for kind in setup if kind.__module__.startswith("ffgb.core.private_")}  # paid for once, by a ledger
    assert asked == setup - others - of_records - private
    rows = sum(map(len, clients))
    found = {}
    for k, question in enumerate(questions):
        parts = [to_integers(question.part(Here(c, 1.0 / rows)), question.sums) for c in clients]
        found[str(k)] = total_of(question, add(parts, question.sums), 1.0)
    return found


def test_every_total_comes_back_as_it_was(tmp_path: Path) -> None:
    run, known = Run.create(tmp_path / "run", {}), dict[str, Any]()
    for key, total in totals().items():
        known[key] = total
        run.save_setup(known, {"refused": {}})
    again, noted = run.load_setup()
    assert noted == {"refused": {}, "totals": list(known)}
    assert list(again) == list(known)
    for key, total in known.items():
        (recipe, arrays), (same_recipe, same_arrays) = describe(total), describe(again[key])
        assert recipe == same_recipe
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, same_arrays[name])
            assert array.dtype == same_arrays[name].dtype
            assert array.flags.c_contiguous  # or products with it would be rounded in another way


def test_a_local_run_leaves_nothing_of_a_set_up_that_failed(tmp_path: Path) -> None:
    def stop(what: str, done: int, clients: int) -> None:
        raise Killed

    with pytest.raises(Killed):
        train(Config(data="wine", clients=4, rounds=2, learner="features"), tmp_path / "run", workers=0, on_setup=stop)
    assert not (tmp_path / "run").exists()
    train(Config(data="wine", clients=4, rounds=2, learner="features"), tmp_path / "run", workers=0)
    assert not (tmp_path / "run" / "checkpoint" / "setup.json").exists()
