"""Statistical analyses between sites in one process: the numbers of one machine, and servers that ask for more."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr")
pytest.importorskip("cryptography")

from ffgb.core.exact_sums import TargetOrders
from ffgb.core.proofs import PROOFS, Proven
from ffgb.core.questions import Question
from ffgb.core.regression.cox import ConcordantPairs, CoxSums
from ffgb.core.regression.kaplan_meier import TimeCounts
from ffgb.core.regression.sums import ColumnSums, RowOrders, RowSums
from ffgb.core.survey import FileCounts
from ffgb.data.records import columns_of, read_columns
from ffgb.data.sites import Site, met
from ffgb.deployment.agreement import REPEATS, Agreement, Ledger
from ffgb.deployment.analysis_server import Sites
from ffgb.deployment.attendant import FAILURES, Attendant
from ffgb.deployment.board import ServerBoard
from ffgb.deployment.course import MOST_QUESTIONS, AnalysisKeepsake, Course
from ffgb.deployment.identity import SiteIdentity
from ffgb.deployment.policy import Policy
from ffgb.deployment.server import Door, Service
from ffgb.engines.flower import Counted
from ffgb.engines.node import Node
from ffgb.errors import FFGBError
from ffgb.federation.shown import framed, parts_of
from ffgb.privacy.hidden import Hidden
from ffgb.protocol.codec import Message, decode, encode
from ffgb.protocol.masking import Masking
from ffgb.protocol.messages import Asked
from ffgb.runs.cox import Cox
from ffgb.runs.glm import GLM
from ffgb.runs.kaplan_meier import SurvivalCurves
from ffgb.runs.statistics import Analysis, analysed
from tests.engines.grid import InProcessGrid

NAMES = ("east", "north", "west")
EAST = 100
LOGIT = GLM("died ~ age + sex * treated", errors="hc1", family="binomial")
COX = Cox("age + treated", "days", "died", errors="robust")


def tables(folder: Path, names: tuple[str, ...] = NAMES) -> list[Path]:
    """Sites' tables of times until an event, with numbers that are missing, and a category that one site lacks."""
    paths = []
    for k, name in enumerate(names):
        rng = np.random.default_rng(k)
        n = 80 + 10 * k
        rows = pd.DataFrame({"age": rng.normal(60, 10, n).round(), "treated": rng.integers(0, 2, n)})
        rows["sex"] = rng.choice(["female", "male"], n)
        rows["ward"] = rng.choice(["A", "B", "C"][: 3 if k else 2], n)
        days = rng.exponential(700.0 / (k + 1) * np.exp(-0.05 * (rows.age - 60) + 0.7 * rows.treated))
        rows["days"], rows["died"] = np.minimum(days, 1000).round() + 1, (days < 1000).astype(int)
        rows["visits"] = rng.poisson(np.exp(0.02 * (rows.age - 60)))
        rows.loc[rng.random(n) < 0.1, "age"] = np.nan
        rows.to_csv(folder / f"{name}.csv", index=False)
        paths.append(folder / f"{name}.csv")
    return paths


Meddle: TypeAlias = Callable[[str, Mapping[str, bytes], dict[str, Any]], Mapping[str, bytes]]
"""What a server says to a site in place of what it should: of the message, and of the words beside it."""


@final
class Federation:
    """Real sites on a Flower grid in one process, and everything that they have sent."""

    def __init__(self, folder: Path, files: list[Path], analysis: Analysis[Any], policy: Policy | None = None) -> None:
        self.folder, self.files, self.analysis, self.policy = folder, files, analysis, policy or Policy()
        self.said: list[str] = []
        self.sent: list[tuple[str, Message]] = []
        self.attendants: dict[int, Attendant] = {}
        self.meddle: Meddle = lambda site, data, said: data
        """What a server says in place of what it should."""
        self.meanwhile: Callable[[str], None] = lambda text: None
        for k in range(len(files)):
            self.start(EAST + k)
        self.grid = InProcessGrid(self.answer, {node: {} for node in self.attendants})  # type: ignore[arg-type]

    def start(self, node: int) -> None:
        """As `ffgb client` does."""
        file = self.files[node - EAST]
        home = self.folder / "homes" / file.stem
        home.mkdir(parents=True, exist_ok=True)
        columns = read_columns(file, file.stem, self.analysis.columns_used, self.analysis.columns_of_text)
        course = Course(self.analysis, columns, secure=self.policy.secure)
        self.attendants[node] = Attendant(
            *(Site(file.stem, file), None, course.agreement(self.policy.trainings), Ledger(home / "ledger.jsonl")),
            policy=self.policy,
            refused=frozenset(self.policy.refuse),
            identity=SiteIdentity.of(file.stem, home, None, self.policy),
            say=self.said.append,
            keepsake=AnalysisKeepsake(home, b"", lambda found: "a table"),
            course=course,
        )

    def answer(self, message: Any, context: Any) -> Any:
        attendant = self.attendants[context.node_id]

        def watched(data: Mapping[str, bytes], said: Mapping[str, Any]) -> tuple[dict[str, bytes], dict[str, Any]]:
            said = dict(said)
            data = self.meddle(attendant.site.name, data, said)
            answers, words = self.attendants[context.node_id].answer(data, said)
            self.sent += [(attendant.site.name, decode(a)) for a in answers.values()]
            return answers, words

        return Node._reply(message, watched)

    def run(self, *, secure: bool = True, training: str = "one") -> Any:
        service = Service(len(self.attendants), len(self.attendants), "", 0, None, 5.0, 5.0)
        door = Door(Counted(self.grid), lambda: None, dict, self.hear)
        sites = Sites(door, service, training, ServerBoard("", 3), lambda: False)
        return sites.asked(self.analysis, secure=secure)

    def hear(self, text: str) -> None:
        self.said.append(text)
        self.meanwhile(text)

    def kept(self, name: str) -> dict[str, Any]:
        """The result at a site."""
        found: dict[str, Any] = json.loads((self.folder / "homes" / name / "analysis-1" / "result.json").read_text())
        return found


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return tables(tmp_path)


def numbers(found: Mapping[str, Any], *but: str) -> dict[str, Any]:
    """A result without what depends on how it was come by."""
    return {name: value for name, value in found.items() if name not in ("secure", "bytes_up", "bytes_down", *but)}


CASES: dict[str, Analysis[Any]] = {
    "logit": LOGIT,
    "poisson": GLM("visits ~ age + ward", family="poisson", errors="site", reference={"ward": "B"}),
    "gaussian": GLM("days ~ age + C(treated)", weights="days", errors="hc0"),
    "cox": replace(COX, strata=("ward",), penalty=0.01),
    "survival": SurvivalCurves("days", "died", by="sex"),
    "times": SurvivalCurves("days", "died", times=(100.0, 300.0, 900.0)),
}


@pytest.mark.parametrize("case", CASES)
def test_the_numbers_of_one_machine_and_only_masked_ones_leave(case: str, files: list[Path], tmp_path: Path) -> None:
    federation = Federation(tmp_path, files, CASES[case])
    there = federation.run().to_json()
    here = analysed(CASES[case], files, secure=False).to_json()
    assert numbers(there, "c_index_by_site") == numbers(here, "c_index_by_site")
    assert there.get("c_index_by_site", {}) == {}
    assert there["secure"]
    assert all(numbers(federation.kept(name)) == numbers(there) for name in NAMES)
    kinds = {message.kind for _, message in federation.sent}
    assert kinds == {"hello", "key", "ready", "tied", "masked"}
    for _, message in federation.sent:
        if message.kind == "hello":
            _, said = met(encode(message))
            assert set(said.columns.columns) == set(CASES[case].columns_used)
            assert said.columns.rows == 1


def test_without_masks_two_sites_are_enough_and_the_site_is_a_term(tmp_path: Path) -> None:
    files = tables(tmp_path, ("east", "north"))
    analyses: tuple[Analysis[Any], ...] = (GLM("died ~ age + site", family="binomial"), COX)
    for analysis in analyses:
        federation = Federation(tmp_path, files, analysis, Policy(secure=False))
        there = federation.run(secure=False, training=analysis.name).to_json()
        assert numbers(there) == numbers(analysed(analysis, files, secure=False).to_json())
    assert set(there["c_index_by_site"]) == {"east", "north"}


def test_a_site_that_starts_again_changes_nothing(files: list[Path], tmp_path: Path) -> None:
    federation, steps = Federation(tmp_path, files, LOGIT), list[str]()

    def again(text: str) -> None:
        if "step" in text:
            steps.append(text)
            federation.start(EAST)

    federation.meanwhile = again
    assert numbers(federation.run().to_json()) == numbers(analysed(LOGIT, files, secure=False).to_json())
    assert len(steps) > 3
    assert federation.kept("north") == federation.kept("east")


def test_a_server_that_starts_again_asks_the_same(files: list[Path], tmp_path: Path) -> None:
    federation = Federation(tmp_path, files, LOGIT)

    def stop(text: str) -> None:
        if text.startswith("step 2"):
            raise KeyboardInterrupt

    federation.meanwhile = stop
    for _ in range(REPEATS + 1):  # each time with other masks, and other proofs
        with pytest.raises(KeyboardInterrupt):
            federation.run()
    federation.meanwhile = lambda text: None
    assert numbers(federation.run().to_json()) == numbers(analysed(LOGIT, files, secure=False).to_json())


# A server that asks for more


def changed(kind: type[Question], change: Callable[[Any], Question], number: int = 0) -> Meddle:
    """A server that puts another question to one site in place of those of a kind; its number is moved."""

    def meddle(site: str, data: Mapping[str, bytes], said: dict[str, Any]) -> Mapping[str, bytes]:
        message = decode(data["message"]) if "message" in data else None
        if site != "east" or message is None or message.kind != "question":
            return data
        asked, masks = Asked.read(message, None), Masking.of(message)
        assert isinstance(asked.question, Proven)
        if not isinstance(asked.question.question, kind):
            return data
        other = Proven(change(asked.question.question), asked.question.number + number)
        assert masks is not None
        return {**data, "message": encode(Hidden(replace(asked, question=other), masks).message())}

    return meddle


def saturated(question: RowSums) -> RowSums:
    """Coefficients at which few rows have any weight."""
    return replace(question, beta=question.beta + 500.0)


def moved_a_little(question: RowSums) -> RowSums:
    """A column is centred elsewhere: by little beside the largest column, and by much beside itself."""
    design = question.model.design
    centre = design.centre + np.where(design.centre == 0.0, 1e-6 * np.abs(design.centre).max(), 0.0)
    return replace(question, model=replace(question.model, design=replace(design, centre=centre)))


def refused(federation: Federation, words: str) -> None:
    with pytest.raises(FFGBError, match=r"client east did not answer a question"):
        federation.run()
    assert any(words in text for text in federation.said), federation.said[-5:]


@pytest.mark.parametrize(
    ("analysis", "meddle", "words"),
    [
        (LOGIT, changed(RowSums, saturated), "asks it with other numbers"),
        (LOGIT, changed(RowSums, lambda q: replace(q, beta=q.beta + 1e-4)), "asks it with other numbers"),
        (LOGIT, changed(RowSums, lambda q: replace(q, grams=("observed",))), "asks it with other numbers"),
        (LOGIT, changed(RowSums, moved_a_little), "asks it with other numbers"),
        (LOGIT, changed(RowOrders, lambda q: replace(q, names=("score",))), "asks it with other numbers"),
        (LOGIT, changed(RowSums, lambda q: q, number=1), "out of the order"),
        (LOGIT, changed(RowSums, lambda q: ColumnSums(q.model.design.columns, np.ones(5))), "this ColumnSums"),
        (LOGIT, changed(RowSums, lambda q: TimeCounts(COX.survival, (), np.ones(1))), "no part of its analysis"),
        (LOGIT, changed(RowSums, lambda q: TargetOrders(np.zeros(1))), "no part of its analysis"),
        (LOGIT, changed(RowSums, lambda q: FileCounts(("age",))), "no part of its analysis"),
        (COX, changed(CoxSums, lambda q: replace(q, beta=q.beta + 90.0)), "asks it with other numbers"),
        (COX, changed(ConcordantPairs, lambda q: replace(q, sites=3)), "asks it with other numbers"),
        (
            SurvivalCurves("days", "died"),
            changed(TimeCounts, lambda q: replace(q, edges=np.sort(np.random.default_rng(0).random(1024)))),
            "asks it with other numbers",
        ),
    ],
)
def test_another_question_is_refused(
    analysis: Analysis[Any], meddle: Any, words: str, files: list[Path], tmp_path: Path
) -> None:
    federation = Federation(tmp_path, files, analysis)
    federation.meddle = meddle
    refused(federation, words)


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: {**tensors, "rows": tensors["rows"] + np.array([1, 0])},
        lambda tensors: {**tensors, "rows": tensors["rows"][::-1].copy()},
        lambda tensors: {**tensors, PROOFS: tensors[PROOFS] + 1},
        lambda tensors: {name: array for name, array in tensors.items() if name != PROOFS},
    ],
)
def test_a_total_that_the_server_makes_up_is_found_out(change: Any, files: list[Path], tmp_path: Path) -> None:
    federation, shown = Federation(tmp_path, files, LOGIT), [b""]

    def meddle(site: str, data: Mapping[str, bytes], said: dict[str, Any]) -> Mapping[str, bytes]:
        if site != "east" or "schema" not in said:
            return data
        whole = data.get("schema", shown[-1] + data.get("more", b""))
        if hashlib.sha256(whole).hexdigest() == said["schema"]:
            shown.append(whole)
        elif not shown[-1]:
            return data  # the site asks for all of it
        parts = [decode(part) for part in parts_of(shown[-1])]
        made_up = [replace(m, tensors=change(m.tensors)) if "cells" in m.tensors else m for m in parts]
        text = b"".join(framed(encode(part)) for part in made_up)
        said["schema"] = hashlib.sha256(text).hexdigest()
        return {**data, "schema": text}

    federation.meddle = meddle
    refused(federation, "is not what all sites added up (its proof is wrong)")


def test_other_categories_or_sites_are_refused(files: list[Path], tmp_path: Path) -> None:
    for word, value, why in (
        ("coded", ["sex", "treated"], "other columns are categories"),
        ("names", ["north", "west"], "does not have east once"),
        ("names", "east", "is not understood"),
        ("own_site", True, "other columns are categories"),
    ):
        course = Federation(tmp_path, files, LOGIT).attendants[EAST].course
        assert course is not None
        said = {"names": list(NAMES), "coded": ["sex"], "own_site": False}
        with pytest.raises(FFGBError, match=why):
            course._begin(framed(encode(Message("analysis", values={**said, word: value}))))
        with pytest.raises(FFGBError, match="more than an analysis has"):
            course._begin(b"".join([framed(b"")] * (MOST_QUESTIONS + 2)))


@given(st.binary(max_size=60) | st.lists(st.binary(max_size=20)).map(lambda parts: b"".join(map(framed, parts))))
def test_what_the_server_shows_may_be_anything(data: bytes) -> None:
    columns = columns_of(pd.DataFrame({"days": [1.0, 2.0], "died": [0, 1]}), "east", "east", ("days", "died"), ())
    course = Course(SurvivalCurves("days", "died"), columns, secure=True)
    with suppress(FFGBError):
        course.takes({"schema": data}, hashlib.sha256(data).hexdigest())
    with pytest.raises(FFGBError):
        course.result(b"a secret")


def test_questions_that_are_refused_again_and_again_end_it(files: list[Path], tmp_path: Path) -> None:
    federation = Federation(tmp_path, files, LOGIT)
    for k in range(FAILURES + 2):

        def moved(question: RowSums, k: int = k) -> RowSums:
            return replace(question, beta=question.beta + 1.0 + k)

        federation.meddle = changed(RowSums, moved)
        with pytest.raises(FFGBError, match="did not answer"):
            federation.run()
    assert any("in which it could not answer so many questions" in text for text in federation.said)


# The rules of a site


def test_the_policy_of_a_site_holds(files: list[Path], tmp_path: Path) -> None:
    federation = Federation(tmp_path, files, LOGIT, Policy(refuse=("RowSums",)))
    with pytest.raises(FFGBError):
        federation.run()
    assert any("question RowSums: refuse in its policy" in text for text in federation.said)
    four = tables(tmp_path, (*NAMES, "xanadu"))
    with pytest.raises(FFGBError):
        Federation(tmp_path, four[:3], LOGIT, Policy(least_sites=4)).run()
    open_one = Federation(tmp_path / "open", files, LOGIT)
    with pytest.raises(FFGBError, match="takes part in secure totals alone"):
        open_one.run(secure=False)


def test_an_analysis_is_one_of_the_trainings_agreed_to(files: list[Path], tmp_path: Path) -> None:
    federation = Federation(tmp_path, files, SurvivalCurves("days", "died"), Policy(trainings=1))
    federation.run()
    federation.run()
    with pytest.raises(FFGBError):
        federation.run(training="two")
    assert any("has agreed to 1 trainings with this server" in text for text in federation.said)


def test_consent_to_one_analysis_is_none_to_another(files: list[Path]) -> None:
    def agreement(analysis: Analysis[Any], secure: bool = True) -> Agreement:
        columns = read_columns(files[0], "east", analysis.columns_used, analysis.columns_of_text)
        return Course(analysis, columns, secure=secure).agreement(3)

    known = agreement(LOGIT)
    assert known.covers(agreement(LOGIT))
    assert Agreement.from_json(json.loads(json.dumps(known.to_json()))).covers(agreement(LOGIT))
    others = (replace(LOGIT, formula="died ~ age + sex"), replace(LOGIT, least=9), replace(LOGIT, errors="model"), COX)
    assert not any(known.covers(agreement(other)) for other in others)
    assert not known.covers(agreement(LOGIT, secure=False))


# What goes wrong


def test_what_is_wrong_is_said_in_a_sentence(files: list[Path], tmp_path: Path) -> None:
    for analysis, words in (
        (GLM("died ~ perfect", family="binomial"), "separates the outcome perfectly"),
        (GLM("died ~ age + site", family="binomial"), "which masks are to hide"),
        (Cox("age", "days", "none"), "no row of any site has an event"),
        (GLM("days ~ rare"), "has a category with"),
    ):
        for file in files:
            frame = pd.read_csv(file)
            rare = np.where(np.arange(len(frame)) < 2, "few", "many")
            frame.assign(perfect=frame.died * 2 - 1, none=0, rare=rare).to_csv(file, index=False)
        folder = tmp_path / analysis.columns_used[-1]
        folder.mkdir()
        federation = Federation(folder, files, analysis)
        with pytest.raises(FFGBError, match=words):
            federation.run()
        told = [text for text in federation.said if "ended without a result" in text]
        assert len(told) == (0 if "masks" in words else 3)
        assert all(words in text for text in told)


def test_files_that_do_not_fit_are_named(tmp_path: Path) -> None:
    files = tables(tmp_path)
    pd.read_csv(files[1]).assign(treated="yes").to_csv(files[1], index=False)
    with pytest.raises(FFGBError, match="'treated' is text at north and numbers at "):
        Federation(tmp_path, files, COX).run()
