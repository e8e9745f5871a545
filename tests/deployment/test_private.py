"""Real sites in private trainings: they pay from their own ledgers, and no server gets answers with less noise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("cryptography")

from ffgb.core.points import Points
from ffgb.core.private_question import PrivateQuestion
from ffgb.core.private_sums import PairCounts
from ffgb.core.questions import Question
from ffgb.core.survey import FileCounts
from ffgb.core.weighting import Weighting
from ffgb.data.files import Bounded
from ffgb.data.reading import Reading
from ffgb.data.schema_file import SchemaFile
from ffgb.data.sites import Site
from ffgb.deployment.agreement import Ledger
from ffgb.deployment.attendant import Attendant, rehearse
from ffgb.deployment.identity import SiteIdentity
from ffgb.deployment.policy import Policy
from ffgb.errors import FFGBError
from ffgb.features.tables import Histogram
from ffgb.privacy.accountant import epsilon_of
from ffgb.privacy.ledger import Budget
from ffgb.privacy.ledger import Ledger as Purse
from ffgb.privacy.release import check_question, with_noise, without_noise
from ffgb.protocol.messages import Asked, Report, Setup
from tests.core.test_private_sums import BINS, column_counts, residual_sums
from tests.deployment import test_secure as secure
from tests.engines.grid import InProcessGrid

SCHEMA = """target = "kind"
[columns.p]
bounds = [-4, 6]
[columns.q]
bounds = [-4, 6]
[columns.town]
type = "category"
categories = ["Ulm", "Bonn", "Kiel ü", "Jena"]
[columns.kind]
type = "category"
categories = ["a", "b", "c"]
"""
BUDGET = Budget(4.0, 1e-5)


class _Sites:
    """Four private sites on a grid in one process."""

    def __init__(self, folder: Path, schema: str = SCHEMA, budget: Budget = BUDGET) -> None:
        (folder / "schema.toml").write_text(SCHEMA)
        self.folder, self.schema, self.budget = folder, schema, budget
        self.inner = secure.Federation.__new__(secure.Federation)
        settings = {"epsilon": 4.0, "schema": str(folder / "schema.toml")}
        self.inner.folder, self.inner.settings, self.inner.policy = folder, settings, Policy()
        self.inner.attendants, self.inner.said, self.inner.sent, self.inner.asked = {}, [], [], []
        self.inner.deadline, self.inner.farewell = 5.0, True
        self.inner.meanwhile, self.inner.meddle = lambda text: None, lambda site, data: data
        for i, path in enumerate(secure.tables(folder)):
            self.start(100 + i, path)
        grid: Any = InProcessGrid(self.inner.answer, {node: {} for node in self.inner.attendants})  # type: ignore[arg-type]
        self.inner.grid = grid

    def purse(self, name: str) -> Purse:
        return Purse(self.folder / f"{name}.jsonl", name)

    def start(self, node: int, path: Path) -> None:
        schema = self.folder / "own.toml"
        schema.write_text(self.schema)
        site = Site(path.stem, path, "kind", reading=Reading(schema=SchemaFile.read(schema)), bounded=Bounded())
        home = self.folder / "homes" / site.name
        home.mkdir(parents=True, exist_ok=True)
        job, purse = {"data": ["sites"], **self.inner.settings}, self.purse(site.name)
        purse.allow(self.budget)
        purse.most = Budget(4.0, 1e-5).mu
        self.inner.attendants[node] = Attendant(
            *(site, job, rehearse(site, job)[1], Ledger(home / "ledger.jsonl")),
            policy=Policy(),
            identity=SiteIdentity.of(site.name, home, None, Policy(), purse=purse),
            say=self.inner.said.append,
        )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[_Sites, Any]:
    sites = _Sites(tmp_path_factory.mktemp("private sites"))
    return sites, sites.inner.train(sites.folder / "run")


def test_sites_pay_the_promised_epsilon(trained: tuple[_Sites, Any]) -> None:
    sites, result = trained
    assert result.finished
    assert result.summary["privacy"]["epsilon"] == 4.0
    assert "test_accuracy" not in result.summary
    for name in secure.NAMES:
        entries = sites.purse(name).entries()
        assert epsilon_of(sites.purse(name).spent(), 1e-5) == pytest.approx(4.0, rel=1e-6)
        assert len({entry.training for entry in entries if entry.budget is None}) == 1


def test_the_ledger_agrees_with_privacy_loss_distributions(trained: tuple[_Sites, Any]) -> None:
    accounting, pld = pytest.importorskip("dp_accounting"), pytest.importorskip("dp_accounting.pld")
    accountant = pld.PLDAccountant()
    for entry in trained[0].purse("east").entries():
        if entry.budget is None:
            accountant.compose(accounting.GaussianDpEvent(1.0 / entry.mu))
    assert accountant.get_epsilon(1e-5) == pytest.approx(4.0, rel=2e-3)


def test_nothing_but_noise_left_the_sites(trained: tuple[_Sites, Any]) -> None:
    """Besides masked answers to questions with noise there were keys, and the number of all rows."""
    sites, _ = trained
    kinds = {message.kind for _, message in sites.inner.sent}
    assert kinds <= {"hello", "key", "tied", "ready", "masked", "resync"}
    masked = [message for _, message in sites.inner.sent if message.kind == "masked"]
    assert {name for message in masked for name in message.tensors} <= {
        *("residual", "curvature", "rows", "counts", "totals", "#share", "#rows"),
    }


def test_another_training_is_refused_when_the_budget_is_spent(trained: tuple[_Sites, Any]) -> None:
    sites, _ = trained
    sites.inner.settings = {**sites.inner.settings, "noise_seed": 5}
    with pytest.raises(FFGBError):
        sites.inner.train(sites.folder / "again")
    assert any("would cost more than is left of this site's privacy budget" in text for text in sites.inner.said)
    assert epsilon_of(sites.purse("east").spent(), 1e-5) == pytest.approx(4.0, rel=1e-6)


def test_a_server_that_dies_and_goes_on_pays_nothing_twice(tmp_path: Path) -> None:
    """Also if it has forgotten the last totals: sites answer the same questions with the same noise."""
    sites, asked = _Sites(tmp_path), list[str]()

    def crash(text: str) -> None:
        asked.append(text)
        if sum("sums of residuals with noise" in each for each in asked) == 3:
            raise KeyboardInterrupt

    sites.inner.meanwhile = crash
    with pytest.raises(KeyboardInterrupt):
        sites.inner.train(tmp_path / "run")
    spent = sites.purse("east").spent()
    assert 0.0 < spent < BUDGET.mu
    sites.inner.meanwhile = lambda text: None
    for kept in (tmp_path / "run").glob("setup*"):
        kept.unlink()
    first = sites.inner.train(tmp_path / "run")
    assert first.finished
    assert epsilon_of(sites.purse("east").spent(), 1e-5) == pytest.approx(4.0, rel=1e-6)
    assert len(sites.purse("east").entries()) == 1 + 4


def test_another_schema_at_a_site_is_refused(tmp_path: Path) -> None:
    sites = _Sites(tmp_path, schema=SCHEMA.replace("[-4, 6]", "[-5, 6]"))
    with pytest.raises(FFGBError):
        sites.inner.train(tmp_path / "run")
    assert any("the same schema file everywhere" in text for text in sites.inner.said)
    assert sites.purse("east").spent() == 0.0


# What a client answers, whatever a server says


def identity(tmp_path: Path, name: str = "east", budget: float = 4.0) -> SiteIdentity:
    purse = Purse(tmp_path / f"{name}.jsonl", name)
    purse.allow(Budget(budget, 1e-5))
    return SiteIdentity.of(name, tmp_path / name, None, Policy(), purse=purse)


def points() -> Points:
    return Points(0, np.tile(np.array([[50, 1, 0, 0.2, 0]], np.float32), (20, 1)), np.zeros(20, int))


def part(question: PrivateQuestion) -> dict[str, Any]:
    return {name: np.zeros(shape, np.int64) for name, shape in question.shapes.items()}


def test_too_little_noise_is_refused(tmp_path: Path) -> None:
    own = identity(tmp_path)
    check_question(replace(residual_sums("binary"), shares=3), points(), 4, own)
    with pytest.raises(FFGBError, match="needs all sites in each total"):
        check_question(residual_sums("binary"), points(), 0, own)
    for shares, answering in ((4, 4), (3, 3), (2, 1), (10**6, 4)):
        with pytest.raises(FFGBError, match="noise that is complete with the shares"):
            check_question(replace(residual_sums("binary"), shares=shares), points(), answering, own)
    with pytest.raises(FFGBError, match="too fine a unit"):
        check_question(replace(residual_sums("binary"), unit=2.0**-30), points(), 4, own)
    with pytest.raises(FFGBError, match="rows of a unit"):
        check_question(residual_sums("binary"), points(), 4, replace(own, rows_of_a_unit=2))
    weighted = Points(0, points().x, points().y, np.full(20, 9.0))
    with pytest.raises(FFGBError, match="weights"):
        check_question(residual_sums("binary"), weighted, 4, own)


def test_questions_that_a_row_could_fail_in_are_refused(tmp_path: Path) -> None:
    own, question = identity(tmp_path), residual_sums("binary")
    short = replace(question.blocks, groups=question.blocks.groups[:-1])
    beyond = replace(question.blocks, columns=question.blocks.columns + 5)
    terms = question.terms[:, 1:]
    for wrong in (replace(question, blocks=short), replace(question, model=beyond), replace(question, terms=terms)):
        with pytest.raises(FFGBError, match="cannot be"):
            check_question(wrong, points(), 4, own)
    cuts = replace(BINS, cuts=BINS.cuts[:-2], first_cut=np.array([0, 3, 3, 4], np.int32))
    with pytest.raises(FFGBError, match="cannot be"):
        check_question(PairCounts(cuts, question.blocks, 2.0**-8, 0.2, 3, 1, 0), points(), 4, own)


def test_a_replay_repeats_the_noise_and_costs_nothing(tmp_path: Path) -> None:
    own, question = identity(tmp_path), column_counts()
    first, again = (with_noise(question, part(question), points(), own) for _ in range(2))
    assert all((first[name] == again[name]).all() for name in first)
    assert own.purse is not None
    assert own.purse.spent() == pytest.approx(question.mu)
    # another price, another share, another seed and other rows are other answers, with other noise and their own price
    for other in (replace(question, mu=0.3), replace(question, shares=2), replace(question, seed=1)):
        found = with_noise(other, part(other), points(), own)
        assert (found["missing"] != first["missing"]).any()
    fewer = Points(0, points().x[1:], points().y[1:])
    assert (with_noise(question, part(question), fewer, own)["missing"] != first["missing"]).any()
    assert own.purse.spent() == pytest.approx((4 * 0.2**2 + 0.3**2) ** 0.5)


def test_a_site_that_joins_another_server_pays_again(tmp_path: Path) -> None:
    """Its secret is another there, so its noise is, too."""
    own, question = identity(tmp_path), column_counts()
    elsewhere = replace(own, folder=tmp_path / "another server")
    first, second = (with_noise(question, part(question), points(), each) for each in (own, elsewhere))
    assert (first["missing"] != second["missing"]).any()
    assert own.purse is not None
    assert own.purse.spent() == pytest.approx(question.mu * 2**0.5)


def test_a_price_beyond_the_budget_is_refused_before_anything_leaves(tmp_path: Path) -> None:
    own, question = identity(tmp_path, budget=1.0), replace(column_counts(), mu=0.5)
    with pytest.raises(FFGBError, match="counts with noise would cost more"):
        with_noise(question, part(question), points(), own)


def test_what_has_no_noise_is_known_by_name() -> None:
    weighting = Weighting(1.0, True)

    def asked(question: Question) -> Asked:
        return Asked(question, weighting)

    assert without_noise(asked(column_counts())) is None
    assert without_noise(asked(FileCounts(()))) is None
    assert without_noise(asked(FileCounts(("age",)))) == "rows and missing values"
    assert without_noise(asked(Histogram(np.zeros((1, 3))))) == "counts"
    assert without_noise(Report(1)) == "report"
    assert without_noise(Setup.__new__(Setup)) is None
