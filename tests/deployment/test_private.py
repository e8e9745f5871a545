"""Real sites in private trainings: they pay from their own ledgers, and no server gets answers with less noise."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("cryptography")

from ffgb.cli import sites as sites_commands
from ffgb.core.points import Points
from ffgb.core.private_question import PrivateQuestion
from ffgb.core.private_sums import PairCounts
from ffgb.core.questions import Question
from ffgb.core.survey import FileCounts
from ffgb.core.weighting import Weighting
from ffgb.data.files import Bounded
from ffgb.data.reading import Reading
from ffgb.data.schema_file import SchemaFile
from ffgb.data.sites import Site, hello
from ffgb.deployment.agreement import Ledger
from ffgb.deployment.attendant import Attendant, rehearse
from ffgb.deployment.identity import SiteIdentity
from ffgb.deployment.keepsake import Keepsake
from ffgb.deployment.policy import Policy
from ffgb.errors import FFGBError
from ffgb.features.tables import Histogram
from ffgb.federation import host
from ffgb.federation.host import Holding, Resident
from ffgb.files import content_hash
from ffgb.privacy import release
from ffgb.privacy.accountant import epsilon_of
from ffgb.privacy.ledger import Budget
from ffgb.privacy.ledger import Ledger as Purse
from ffgb.privacy.noise import noise_of
from ffgb.privacy.release import check_question, with_noise, without_noise
from ffgb.protocol.codec import decode
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

    def __init__(
        self,
        folder: Path,
        schema: str = SCHEMA,
        budget: Budget = BUDGET,
        edit: Callable[[str], str] = lambda row: row,
    ) -> None:
        """`edit` changes the rows of the files."""
        (folder / "schema.toml").write_text(SCHEMA)
        self.folder, self.schema, self.budget = folder, schema, budget
        self.inner = secure.Federation.__new__(secure.Federation)
        settings = {"epsilon": 4.0, "schema": str(folder / "schema.toml")}
        self.inner.folder, self.inner.settings, self.inner.policy = folder, settings, Policy()
        self.inner.attendants, self.inner.said, self.inner.sent, self.inner.asked = {}, [], [], []
        self.inner.deadline, self.inner.farewell = 5.0, True
        self.inner.meanwhile, self.inner.meddle = lambda text: None, lambda site, data: data
        for i, path in enumerate(secure.tables(folder)):
            head, *rows = path.read_text().splitlines()
            path.write_text("\n".join([head, *map(edit, rows)]) + "\n")
            self.start(100 + i, path)
        grid: Any = InProcessGrid(self.inner.answer, {node: {} for node in self.inner.attendants})  # type: ignore[arg-type]
        self.inner.grid = grid

    def purse(self, name: str) -> Purse:
        return Purse(self.folder / f"{name}.jsonl", content_hash(self.folder / f"{name}.csv"))

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


def test_a_file_that_changes_while_its_client_runs_is_not_used(tmp_path: Path) -> None:
    """The ledger is that of the file as it was: what is spent on new rows would be written down for others."""
    sites = _Sites(tmp_path)
    with (tmp_path / "east.csv").open("a") as file:
        file.write("1.0,1.0,Ulm,a\n")
    with pytest.raises(FFGBError):
        sites.inner.train(tmp_path / "run")
    assert any("east.csv has changed since this client was started" in text for text in sites.inner.said)
    assert sites.purse("west").spent() == 0.0


def test_a_category_may_be_rare_at_a_site(tmp_path: Path) -> None:
    """It is public, as the schema is: a refusal would tell that a site has few rows of it."""
    number = count()
    sites = _Sites(
        tmp_path, edit=lambda row: row if "Jena" not in row or next(number) % 8 == 0 else row.replace("Jena", "Ulm")
    )
    assert 0 < (tmp_path / "east.csv").read_text().count("Jena") < 10
    assert sites.inner.train(tmp_path / "run").finished


def test_what_a_site_says_of_itself_does_not_follow_from_its_rows(tmp_path: Path) -> None:
    schema = SchemaFile.read(_written(tmp_path / "schema.toml", SCHEMA + "[columns.score]\nbounds = [0, 9]\n"))
    for target in ("kind", "score"):
        said = []
        for k, rows in enumerate(("1,2,Ulm,a,3\n2,3,Bonn,b,4\n" * 20, ",2,Ulm,a,3.5\n,3,Ulm,a,4\n" * 20)):
            path = _written(tmp_path / f"{k}" / "east.csv", "p,q,town,kind,score\n" + rows)
            said.append(hello(Site("east", path, target, reading=Reading(schema=schema), bounded=Bounded())))
        assert said[0] == said[1]


def _written(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_all_that_a_server_has_follows_from_noisy_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that know nothing of rows, and then other rows: the run, and all that came in the open, are the same."""

    def blind(question: PrivateQuestion, part: Any, points: Points, own: SiteIdentity, among: bytes) -> dict[str, Any]:
        name = release.name_of(question, b"", own.name.encode())
        return noise_of(b"k" * 32, name, question.deviation, question.shapes)

    monkeypatch.setattr(host, "with_noise", blind)
    edits: list[Callable[[str], str]] = [str, lambda row: f"6,-4,Jena,{row[-1]}", lambda row: ",,Ulm,a"]
    found = []
    for k, edit in enumerate(edits):
        (tmp_path / f"{k}").mkdir()
        sites = _Sites(tmp_path / f"{k}", edit=edit)
        result = sites.inner.train(tmp_path / f"{k}" / "run")
        # seconds, and bytes with signatures in them
        summary = {
            n: value for n, value in result.summary.items() if not any(w in n for w in ("seconds", "wire", "down"))
        }
        clients = json.loads((tmp_path / f"{k}" / "run" / "clients.json").read_text())
        bare = [(name, m) for name, m in sites.inner.sent if m.kind not in ("key", "tied", "masked")]
        said = [(name, m.kind, {**m.values, "key": ""}, dict(m.tensors)) for name, m in bare]
        found.append((result.model.to_bytes(), summary, clients, said))
    assert found[0] == found[1] == found[2]


def test_a_site_thanks_for_any_model(tmp_path: Path) -> None:
    """Whether a model that a server has made can be tried on a site's rows, or fails, would tell of a row."""
    sites = _Sites(tmp_path)
    sites.inner.farewell = False
    sites.inner.train(tmp_path / "run")
    attendant = sites.inner.attendants[100]
    attendant.keepsake = Keepsake(tmp_path / "kept", sites.inner.settings)
    ended = {"ended": True, "training": attendant.training, "seed": 0}
    assert attendant.answer({"model": b"none", "summary": b"{}"}, ended) == ({}, {"thanks": True})
    assert any("not a model" in text for text in sites.inner.said)
    assert "failed" in attendant.answer({"model": b"none", "summary": b"{}"}, ended)[1]  # there is one end


# What a client answers, whatever a server says


def test_no_job_and_no_model_is_tried_on_the_rows(trained: tuple[_Sites, Any], tmp_path: Path) -> None:
    """Whether labels fit a loss, or rows a model, would be told by what a client says of the next message."""
    messages = [data["message"] for name, data, _ in trained[0].inner.asked if name == "east" and "message" in data]
    told = [data for data in messages if decode(data).kind in ("setup", "update")]
    assert {decode(data).kind for data in told} == {"setup", "update"}
    x, own, said = np.zeros((20, 8), np.float32), identity(tmp_path), []
    for label in (0, 99):  # a class, and none
        resident = Resident({0: Holding(x, np.full(20, label))}, lambda i: own)
        # after a restart it has no job
        said.append([resident.answer(data, [0]) for data in (told[-1], *told, *told[1:])])
    assert said[0] == said[1]
    assert [decode(answers[0]).kind for answers in said[0]] == ["resync", *["ready"] * (2 * len(told) - 1)]


def test_totals_over_other_clients_have_other_noise(tmp_path: Path) -> None:
    """With the same, the difference of two totals would have the noise of one client alone."""
    own, question = identity(tmp_path), column_counts()
    first, second, again = (with_noise(question, part(question), points(), own, among) for among in (b"a", b"b", b"a"))
    assert (first["missing"] != second["missing"]).any()
    assert (first["missing"] == again["missing"]).all()
    assert own.purse is not None
    assert own.purse.spent() == pytest.approx(question.mu * 2**0.5)


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


def test_sums_over_very_many_rows_are_refused_where_they_might_be_rounded(tmp_path: Path) -> None:
    class Many:
        weights = None

        def __init__(self, rows: int) -> None:
            self.rows = rows

        def __len__(self) -> int:
            return self.rows

    question = replace(residual_sums("binary"), unit=2.0**-24, mu=90.0)
    few: Any = Many(10**6)
    check_question(question, few, 4, identity(tmp_path))
    many: Any = Many(2**53 // math.isqrt(question.square))
    with pytest.raises(FFGBError, match="too fine a unit for"):
        check_question(question, many, 4, identity(tmp_path))


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


def test_a_site_with_another_ledger_gives_the_same_answer_and_pays_from_that_one(tmp_path: Path) -> None:
    own, question = identity(tmp_path), column_counts()
    first = with_noise(question, part(question), points(), own)
    other = Purse(tmp_path / "other.jsonl", "east")
    with pytest.raises(FFGBError, match="no privacy budget"):
        with_noise(question, part(question), points(), replace(own, purse=other))
    other.allow(Budget(4.0, 1e-5))
    again = with_noise(question, part(question), points(), replace(own, purse=other))
    assert all((first[name] == again[name]).all() for name in first)
    assert other.spent() == pytest.approx(question.mu)


def test_a_crash_between_the_ledger_and_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written down may leave later: the same answer, for nothing."""
    own, question = identity(tmp_path), column_counts()
    with monkeypatch.context() as patched:
        patched.setattr(release, "noise_of", _killed)
        with pytest.raises(KeyboardInterrupt):
            with_noise(question, part(question), points(), own)
    assert own.purse is not None
    assert own.purse.spent() == pytest.approx(question.mu)
    restarted = identity(tmp_path)
    first, again = (with_noise(question, part(question), points(), restarted) for _ in range(2))
    assert all((first[name] == again[name]).all() for name in first)
    assert Purse(own.purse.file, "east").spent() == pytest.approx(question.mu)


def _killed(*args: Any) -> Any:
    raise KeyboardInterrupt


def test_a_site_with_a_budget_refuses_trainings_without_noise(tmp_path: Path) -> None:
    """And what it allows is its policy's, or the first job's, also if a later job wants more."""
    path = secure.tables(tmp_path)[0]
    with pytest.raises(FFGBError, match="this training adds no noise"):
        sites_commands._private({}, Policy(epsilon=2.0), path)
    assert sites_commands._private({}, Policy(), path) == (None, None)
    with pytest.raises(FFGBError, match="needs secure totals"):
        sites_commands._private({"epsilon": 1.0}, Policy(secure=False), path)
    purse = Purse(tmp_path / "x.jsonl", "x")
    for job, rules, allowed in (
        ({"epsilon": 1.0}, Policy(), Budget(1.0, 1e-5)),
        ({"epsilon": 8.0}, Policy(), Budget(1.0, 1e-5)),
        ({"epsilon": 1.0, "unit": "patient", "unit_rows": 3}, Policy(), Budget(1.0, 1e-5, 3)),
        ({"epsilon": 1.0}, Policy(epsilon=2.0, delta=1e-6), Budget(2.0, 1e-6, 3)),
    ):
        sites_commands._allow(purse, job, rules)
        assert purse.budget() == allowed
        assert purse.most == Budget(job["epsilon"], 1e-5).mu  # type: ignore[arg-type]


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
