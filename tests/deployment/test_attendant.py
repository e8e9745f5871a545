"""A malicious server against the site's own code: what was tried on version 0.1, and what is refused now, by name."""

from __future__ import annotations

import contextlib
import csv
import errno
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from ffgb.algorithms.ffgb_shared import FFGBShared
from ffgb.core.gradients import LENGTHS, GradientOf, SlopesOf
from ffgb.core.grams import GramOf
from ffgb.core.losses import Logistic
from ffgb.core.moments import MomentsOf
from ffgb.core.questions import Question
from ffgb.core.schedules import Constant
from ffgb.core.weighting import Weighting
from ffgb.data.preprocess import Column, Table
from ffgb.data.sites import Schema, Site, met
from ffgb.deployment.agreement import Agreement, Ledger, difference, form, merged
from ffgb.deployment.attendant import Attendant, Least, rehearse
from ffgb.errors import FFGBError
from ffgb.features.basic import Concatenate, Flatten
from ffgb.features.encoder import Encoder
from ffgb.features.tables import Columns, Histogram, Steps
from ffgb.learners.linear import Linear
from ffgb.protocol.codec import Message, decode, encode
from ffgb.protocol.describe import build
from ffgb.protocol.job import Job, Update
from ffgb.protocol.messages import Along, Asked, Setup, what_leaves

SETTINGS = {"data": ["sites"], "learner": "features"}
WORDS = "this site has not agreed to"


@final
class Server:
    """A server that asks whatever it likes."""

    def __init__(self, site: Site, settings: dict[str, Any] | None = None, **more: Any) -> None:
        self.site, job = site, {**SETTINGS, **(settings or {})}
        _, self.agreement = rehearse(site, job)
        self.said: list[str] = []
        self.attendant = Attendant(site, job, self.agreement, say=self.said.append, **more)
        data, _ = self.attendant.answer({}, {"hello": True})
        self.name, _ = met(data["hello"])
        self.columns = site.describe()
        self.schema = Schema.of({self.name: self.columns}, site.target, site.task)
        self.training, self.seed = "t", 0

    def ask(self, message: Message, clients: list[int] | None = None) -> dict[int, Message]:
        """Each client's answer; an FFGBError if the site answers nothing at all."""
        text = self.schema.to_json().encode()
        said = {
            "training": self.training, "schema": hashlib.sha256(text).hexdigest(), "seed": self.seed,
            "clients": clients or [0],
        }  # fmt: skip
        data, answered = self.attendant.answer({"message": encode(message), "schema": text}, said)
        if "failed" in answered:
            raise FFGBError(answered["failed"])
        return {int(i): decode(answer) for i, answer in data.items()}

    def question(self, thing: Question, clients: list[int] | None = None, **more: Any) -> dict[int, Message]:
        return self.ask(Asked(thing, Weighting(float(self.columns.rows)), **more).message(), clients)

    @property
    def job(self) -> Job:
        """That of the site."""
        assert self.attendant.resident is not None
        job = self.attendant.resident.host.job
        assert job is not None
        return job


def moments_of(features: Any, **more: Any) -> MomentsOf:
    """As an honest server asks for them."""
    return MomentsOf(features, np.zeros(features.dimension), np.full(features.dimension, 1e4), **more)


def refused(answers: dict[int, Message], words: str) -> None:
    for answer in answers.values():
        assert answer.kind == "error"
        assert words in str(answer.values["text"]), answer.values["text"]
        assert not answer.tensors


@pytest.fixture
def hospital(tmp_path: Path) -> Site:
    cancer, path = load_breast_cancer(), tmp_path / "hospital.csv"
    with path.open("w") as file:
        writer = csv.writer(file)
        writer.writerow([*(name.replace(" ", "_") for name in cancer.feature_names), "diagnosis"])
        for row, target in zip(cancer.data, cancer.target, strict=True):
            writer.writerow([*row, ("mal", "ben")[target]])
    return Site("hospital", path, "diagnosis")


def test_own_thresholds_are_refused(hospital: Site) -> None:
    """Version 0.1 gave 519 of 569 rows with labels in seven such questions, all of agreed kinds."""
    server = Server(hospital)
    d = server.schema.shape[0]
    edges = np.tile(np.linspace(-1e3, 1e3, 34_000, dtype=np.float32), (d, 1))
    refused(server.question(Histogram(edges)), f"{WORDS} question Histogram with an array of [30, 34000] in place of")
    cuts = np.full((d, 900), np.inf, np.float32)
    cuts[3] = np.linspace(0, 3000, 900)
    steps = Steps(Columns(cuts, tuple(range(d))), 900)
    features = Concatenate((Flatten(d), steps), (1.0, 1.0))
    d2 = features.dimension
    refused(server.question(GramOf(features, (d2,), 1, np.zeros(d2), np.ones(d2))), f"{WORDS} question GramOf with")
    job = Job(FFGBShared(Constant(1.0)), Linear(features, 1), Logistic(), None, 0)
    refused(server.ask(Setup(job).message()), f"{WORDS} setup with")
    refused(server.ask(Message("turn", values={"recipe": {}, "name": "x"})), f"{WORDS} the message turn")
    assert any("34000" in text for text in server.said)  # the owner sees it, too


def test_repeated_questions_under_agreed_kinds_are_refused(hospital: Site) -> None:
    server = Server(hospital)
    d = server.schema.shape[0]
    assert server.agreement.times("question Histogram") == 4

    def histogram(k: int) -> Histogram:
        return Histogram(np.tile(np.linspace(k, k + 1.0, 128, dtype=np.float32), (d, 1)))

    for k in range(4):
        assert server.question(histogram(k))[0].kind == "part"
    refused(server.question(histogram(5)), "another question Histogram: 4 different ones have left it")
    assert server.question(histogram(2))[0].kind == "part"  # the same again tells nothing new
    # another run of the server, or a restarted site, does not begin at nothing
    again = Attendant(hospital, SETTINGS, server.agreement, server.attendant.ledger)
    server.attendant = again
    refused(server.question(histogram(6)), "another question Histogram")


def test_functions_of_the_servers_own_choice_are_counted(hospital: Site) -> None:
    """Without a Gram: f = x_l for each column in turn, and the gradient at each row's interval."""
    server = Server(hospital, {"learner": "linear", "geometry": "local", "map": "inputs", "rounds": 3})
    kind = next(found for name, found in server.agreement.questions if name == "setup")
    assert kind["family"]["kind"] == "Linear"
    train_until_setup(server)
    job = server.job
    (name,), (spec,) = job.family.spec.keys(), job.family.spec.values()
    kinds = []
    for k in range(6):
        weight = np.zeros(spec[0], spec[1])
        weight[k] = 0.01
        server.ask(Setup(job).message(), [0, 1])
        server.ask(Update(1, 0.0, job.family.member({name: weight})).message(), [0, 1])
        kinds.append(server.ask(Message("train", 1))[0].kind)
    assert kinds == ["answer"] * 3 + ["error"] * 3
    refused(server.ask(Message("train", 7)), f"{WORDS} round 8 of 3")
    assert len(server.attendant.ledger.known("t", "report 1")) == 3
    assert len(server.attendant.ledger.known("t", "report 1, rows held out")) == 3


def test_a_number_that_is_an_array_is_refused(hospital: Site) -> None:
    """A factor of a map that is an array, a weight for each row, would make sums of single rows."""
    server = Server(hospital)
    recipe, arrays = next(described(server, "GramOf"))
    rows = server.columns.rows
    arrays["w"] = np.eye(1, rows, 5, dtype=np.float32).T
    for odd in ({"number": "1.0", "array": "w"}, {"array": "w"}, {"number": 1.0}, {"number": "1.0", "kind": "Flatten"}):
        asked, weighting = recipe
        twisted = [{**asked, "features": {**asked["features"], "factors": [odd, 1.0, 1.0]}}, weighting]
        question = Message("question", -1, values={"recipe": twisted}, tensors=arrays)
        with contextlib.suppress(FFGBError):  # it is refused as a whole
            refused(server.ask(question), WORDS)
        with pytest.raises(FFGBError, match=r"wrong type|does not know|has the fields"):
            build(twisted, arrays)


def described(server: Server, kind: str) -> Any:
    """The recipes of the honest questions of this kind."""
    from ffgb.protocol.engine import Engine
    from ffgb.runs.config import Config
    from ffgb.runs.training import Elsewhere, train

    found: list[Any] = []

    class Listening(Engine):
        def exchange(self, data: bytes, clients: Any) -> dict[int, bytes]:
            question = decode(data)
            if question.kind == "question" and question.round >= 0:
                raise KeyboardInterrupt
            if what_leaves(question) == f"question {kind}":
                found.append((question.values["recipe"], dict(question.tensors)))
            return {i: encode(m) for i, m in server.ask(question, list(clients)).items()}

        def close(self, *, at_once: bool = False) -> None:
            pass

    with pytest.raises(KeyboardInterrupt):
        train(
            Config(data="sites", learner="features", secure="off"), elsewhere=Elsewhere(Listening(), server.schema, 1)
        )
    return iter(found)


def test_lengths_are_numbers(hospital: Site) -> None:
    """A length for each row would tell the slopes of single rows."""
    server = Server(hospital)
    train_until_setup(server)
    message = Asked(SlopesOf(server.job.loss, 1.0, 0.0), Weighting(1.0), 0, along(server.job)).message()
    slopes, weighting = message.values["recipe"]
    assert len(slopes["lengths"]) == len(LENGTHS)
    per_row = [[0.0] * server.columns.rows] * len(LENGTHS)
    arrays = {**message.tensors, "recipe.w": np.zeros(server.columns.rows)}
    numbers: tuple[Any, ...] = ([True] * len(LENGTHS), [None] * len(LENGTHS), [{"array": "recipe.w"}] * len(LENGTHS))
    for odd in (per_row, [0.0] * server.columns.rows, "0.0", *numbers, {"0": 1.0}, {"array": "recipe.w"}):
        values = {**message.values, "recipe": [{**slopes, "lengths": odd}, weighting]}
        try:
            answers = server.ask(replace(message, values=values, tensors=arrays))
        except FFGBError:  # it is refused as a whole
            continue
        refused(answers, f"{WORDS} question SlopesOf with")


def along(job: Job) -> Any:
    """A function to look at."""
    return job.family.member({"weight": np.ones(job.family.spec["weight"][0], np.float32)})


def test_one_training_has_one_schema(hospital: Site) -> None:
    """The same question about columns in another order is another question."""
    server = Server(hospital)
    moments = moments_of(Flatten(server.schema.shape[0]))
    assert server.question(moments)[0].kind == "part"
    assert server.schema.table is not None
    server.schema = replace(server.schema, table=Table(server.schema.table.columns[::-1]))
    with pytest.raises(FFGBError, match="other columns or classes than before in this training"):
        server.question(moments)
    server.attendant = Attendant(hospital, SETTINGS, server.agreement, server.attendant.ledger)  # it was restarted
    with pytest.raises(FFGBError, match="other columns or classes than before in this training"):
        server.question(moments)


def test_what_is_wrong_with_a_file_stays_at_the_site(tmp_path: Path) -> None:
    """Of a number to predict no value is told: not as classes, and not in the words of an error."""
    path = tmp_path / "reg.csv"
    path.write_text("a,income\n" + "".join(f"{i},{39412 + 7 * i}\n" for i in range(40)))
    server = Server(Site("s", path, "income"), {"map": "inputs"})
    moments = moments_of(Flatten(1))
    server.schema = replace(server.schema, classes=("1", "2"), task="classification")
    with pytest.raises(FFGBError, match="this site has a number to predict"):
        server.question(moments)
    server.schema = replace(server.schema, classes=(), task="classification")
    with pytest.raises(FFGBError, match="its task and its classes do not fit"):
        server.question(moments)
    server.schema = replace(server.schema, task="regression")
    path.write_text("a,income\n" + "".join(f"{i},{'secret' if i == 3 else i}\n" for i in range(40)))
    with pytest.raises(FFGBError, match="its owner sees more") as told:
        server.question(moments)
    assert "secret" not in str(told.value)
    assert str(tmp_path) not in str(told.value)
    assert any("secret" in text for text in server.said)


def train_until_setup(server: Server) -> None:
    """Put the honest questions of the set-up to a site, as its rehearsal heard them."""
    from ffgb.protocol.engine import Engine
    from ffgb.runs.config import Config
    from ffgb.runs.training import Elsewhere, train

    class Asking(Engine):
        def exchange(self, data: bytes, clients: Any) -> dict[int, bytes]:
            question = decode(data)
            if question.kind != "setup" and not (question.kind == "question" and question.round < 0):
                raise KeyboardInterrupt
            return {i: encode(m) for i, m in server.ask(question, list(clients)).items()}

        def close(self, *, at_once: bool = False) -> None:
            pass

    settings = {k: tuple(v) if isinstance(v, list) else v for k, v in (server.attendant.settings or {}).items()}
    with pytest.raises(KeyboardInterrupt):
        train(Config(**{**settings, "secure": "off"}), elsewhere=Elsewhere(Asking(), server.schema, 1))


def test_held_out_rows_answer_reports_only(hospital: Site) -> None:
    server = Server(hospital)
    moments = moments_of(Flatten(server.schema.shape[0]))
    answers = server.question(moments, [0, 1])
    assert answers[0].kind == "part"
    refused({1: answers[1]}, "rows that are held out answer reports only")
    train_until_setup(server)
    job, weighting = server.job, Weighting(float(server.columns.rows))
    scale = np.ones(job.family.features.dimension + 1)
    answers = server.question(GradientOf(job.family, job.loss, scale), [0, 1], round=0)
    assert answers[0].kind == "part"
    refused({1: answers[1]}, "rows that are held out answer reports only")
    refused(server.ask(Message("train", 0), [1]), "rows that are held out answer reports only")
    refused(server.ask(Message("memory", 1), [1]), "rows that are held out answer reports only")
    slopes = SlopesOf(job.loss, 1.0, 0.0)
    answers = server.question(slopes, [0, 1], round=0, shown=along(job), looking=(1,))
    assert np.any(answers[0].tensors["slopes"])
    assert (answers[1].kind, dict(answers[1].tensors)) == ("ready", {})  # of rows held out none are told
    report = server.ask(Along(1, 1.0, 0.1).message(), [1])[1]
    assert report.kind == "report"
    refused(
        server.question(replace(slopes, lengths=(0.1,) * 500), round=0, shown=along(job)),
        f"question SlopesOf with 500 parts in place of {len(LENGTHS)}",
    )
    # who is said to look only, at nothing, or in words that are none
    for asked in (moments, GradientOf(job.family, job.loss, scale)):
        message = Asked(asked, weighting, -1 if asked is moments else 1).message()
        for looking in ([1], (1,), {"1": 1}, "1", 1, None, [True], [[1]]):
            answers = server.ask(replace(message, values={**message.values, "looking": looking}), [1])
            assert answers[1].kind == "error"
            assert not answers[1].tensors
    # a question of the set-up in a round, and the other way round
    for asked, t in ((moments, 1), (GradientOf(job.family, job.loss, scale), -1)):
        assert server.ask(Asked(asked, weighting, t).message())[0].kind == "error"


def test_another_split_is_refused(hospital: Site) -> None:
    """Another seed, another split: the difference of two sums over held-out rows would be few rows' sum."""
    server = Server(hospital)
    server.seed = 1
    with pytest.raises(FFGBError, match=r"names the seed 1 .* this site splits by its own, 0"):
        server.question(moments_of(Flatten(server.schema.shape[0])))


def test_trainings_are_counted(hospital: Site, tmp_path: Path) -> None:
    file = tmp_path / "state" / "ledger.jsonl"
    server = Server(hospital, ledger=Ledger(file))
    moments = moments_of(Flatten(server.schema.shape[0]))
    for training in "abc":
        server.training = training
        assert server.question(moments)[0].kind == "part"
    server.training = "d"
    with pytest.raises(FFGBError, match="agreed to 3 trainings with this server, and this is another"):
        server.question(moments)
    server.training = "b"
    assert server.question(moments)[0].kind == "part"
    with file.open("a") as cut:
        cut.write('{"training": "x", "que')  # the machine stopped while it was written
    kept = Ledger(file)
    assert kept.trainings == ["a", "b", "c"]
    assert kept.sent("a") > 0


@pytest.fixture
def people(tmp_path: Path) -> Site:
    rng, path = np.random.default_rng(0), tmp_path / "people.csv"
    names = ["Ada Byron", "Bob Ross", "Carl Gauss", "Dora Maar"] + [f"Person {i}" for i in range(196)]
    with path.open("w") as file:
        writer = csv.writer(file)
        writer.writerow(["name", "age", "sex", "hiv"])
        for i, name in enumerate(names):
            positive = i in (1, 7, 30) or rng.random() < 0.1
            writer.writerow([name, int(rng.integers(20, 90)), "mf"[i % 2], "pos" if positive else "neg"])
    return Site("s", path, "hiv")


def test_a_category_that_the_site_did_not_name_tells_nothing(people: Site) -> None:
    """Version 0.1 told how many rows are Ada Byron's, and their label.  Now nothing is, and the owner is told."""
    server = Server(people, {"map": "inputs"})
    names = Column("name", ("Ada Byron", "Bob Ross", "Nobody Here", "Person 77"))
    table = Table((names, Column("age"), Column("sex", ("f", "m"))))
    server.schema = replace(server.schema, table=table, shape=(7,))
    with pytest.raises(FFGBError, match="a category that it has not asked this site for"):
        server.question(moments_of(Flatten(7)))
    assert any("names the category name=Ada Byron, and has not asked for it" in text for text in server.said)
    table = Table((replace(names, categories=("Nobody Here",)), Column("age"), Column("sex", ("f", "m"))))
    server.schema = replace(server.schema, table=table, shape=(4,))  # of which this site has no row, or enough
    assert server.question(moments_of(Flatten(4)))[0].kind == "part"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"table": Table((Column("age", ("47", "48")), Column("sex", ("f", "m")))), "shape": (4,)},
            "'age' is a number",
        ),
        ({"table": Table((Column("age"), Column("sex"))), "shape": (2,)}, "'sex' is text here, and not there"),
        ({"table": Table((Column("age"), Column("age"))), "shape": (2,)}, "'age' is there twice"),
        ({"shape": (9,)}, "do not have the columns of its table"),
        ({"rows": (3,)}, "other numbers of rows"),
        ({"test_rows": (0,)}, "other rows held out"),
        ({"names": ("other",)}, "s is not there once"),
        ({"classes": ("neg",)}, "the class pos is missing"),
        ({"outputs": 3}, "another number of outputs"),
        ({"table": None, "shape": (1, 28, 28)}, "this site has a table"),
    ],
)
def test_what_all_sites_agreed_on_is_checked(change: dict[str, Any], words: str, people: Site) -> None:
    server = Server(people, {"map": "inputs"})
    server.schema = replace(server.schema, **change)
    with pytest.raises(FFGBError, match=words):
        server.question(moments_of(Flatten(server.schema.shape[0])))


def test_a_category_with_few_rows_at_a_site_is_known_there(tmp_path: Path) -> None:
    """Two sites; "x" is common at one and rare at the other, and "z" has enough rows at both together alone."""
    from ffgb.data.files import load_sites

    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for path, rows in zip(
        files, (["x"] * 20 + ["y"] * 20 + ["z"] * 5, ["x"] * 3 + ["y"] * 30 + ["z"] * 5), strict=True
    ):
        lines = [f"{value},{i},{i % 2}" for i, value in enumerate(rows)]
        path.write_text("\n".join(["c,u,t", *lines]) + "\n")
    dataset = load_sites(files, "t", least=1)
    x = np.concatenate([dataset.x, dataset.x_test])
    site = np.concatenate([dataset.site, dataset.site_test])
    found = {name: [int(x[site == k, dataset.columns.index(f"c={name}")].sum()) for k in (0, 1)] for name in "xyz"}
    assert found == {"x": [20, 3], "y": [20, 30], "z": [5, 5]}
    assert "c=z" not in load_sites(files, "t", least=1, rare=11).columns
    assert "c=z" not in load_sites(files, "t", least=11, rare=1).columns


def onnx_encoder(folder: Path, external: str | None = None) -> Encoder:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 30]) for n in "xy")
    weights = []
    nodes = [helper.make_node("Tanh", ["x"], ["y"])]
    if external is not None:
        tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
        for key, value in (("location", external), ("offset", "0"), ("length", "4")):
            entry = tensor.external_data.add()
            entry.key, entry.value = key, value
        weights, nodes = [tensor], [helper.make_node("Add", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    path = folder / "encoder.onnx"
    path.write_bytes(model.SerializeToString())
    return Encoder("encoder.onnx", (30,), 30, np.frombuffer(path.read_bytes(), np.uint8))


def test_an_encoder_is_agreed_to_by_its_bytes(hospital: Site, tmp_path: Path) -> None:
    good = onnx_encoder(tmp_path)
    server = Server(hospital, {"map": str(tmp_path / "encoder.onnx")})
    assert server.question(moments_of(good, alike=True))[0].kind == "part"
    other = replace(good, onnx=np.append(good.onnx, np.uint8(0)))
    refused(server.question(moments_of(other, alike=True)), "another file for Encoder.onnx: its SHA-256 is")
    (tmp_path / "evil").mkdir()
    evil = onnx_encoder(tmp_path / "evil", external="hospital.csv")
    refused(
        server.question(moments_of(replace(evil, name="encoder.onnx"), alike=True)),
        f"{WORDS} question MomentsOf with",
    )


def test_the_hash_names_the_file() -> None:
    one, two = ({"kind": "Encoder", "onnx": form({"array": "a"}, {"a": np.full(4, k, np.uint8)})} for k in (1, 2))
    words = difference(two, one)
    assert words is not None
    assert "another file for Encoder.onnx: its SHA-256 is" in words


@pytest.mark.parametrize(
    ("asked", "agreed", "words"),
    [
        ({"kind": "A", "n": 3}, {"kind": "A", "n": 3}, None),
        ({"kind": "B"}, {"kind": "A"}, "B in place of A"),
        ({"kind": "A", "n": 4}, {"kind": "A", "n": 3}, "4 in place of 3 for A.n"),
        ({"kind": "A"}, {"kind": "A", "n": 3}, "other fields"),
        ({"kind": "A", "n": True}, {"kind": "A", "n": 1}, "True in place of 1"),
        ({"kind": "Steps", "most": 128}, {"kind": "Steps", "most": 9}, None),
        ({"kind": "Steps", "most": 129}, {"kind": "Steps", "most": 9}, "129, more than 128"),
        ({"kind": "Steps", "most": -1}, {"kind": "Steps", "most": 9}, "-1, more than 128"),
        ([1, 2], [1], "2 parts in place of 1"),
        ({"kind": "\x1b[1mA"}, {"kind": "A"}, "?[1mA in place of A"),
    ],
)
def test_forms_are_compared(asked: Any, agreed: Any, words: str | None) -> None:
    found = difference(asked, agreed)
    assert (found is None) == (words is None)
    assert words is None or words in str(found)


def test_an_agreement_covers_what_asks_for_no_more(hospital: Site) -> None:
    _, one = rehearse(hospital, {**SETTINGS, "rounds": 5})
    _, fewer = rehearse(hospital, {**SETTINGS, "rounds": 3})
    _, other = rehearse(hospital, {**SETTINGS, "rounds": 5, "learner": "linear"})
    assert one.covers(fewer)
    assert not fewer.covers(one)
    assert not one.covers(other)
    assert not one.covers(replace(one, seed=1))
    assert not one.covers(replace(one, trainings=9))
    assert Agreement.from_json(one.to_json()) == one


def test_too_few_rows_do_not_take_part(people: Site, tmp_path: Path) -> None:
    said = people.describe()
    Least().check(said, people.labels())
    with pytest.raises(FFGBError, match="a site needs 1000"):
        Least(rows=1000).check(said, {})
    with pytest.raises(FFGBError, match="the class pos has"):
        Least(label=100).check(said, people.labels())


def test_cells_with_few_rows_join_others(people: Site) -> None:
    server = Server(people, least=Least(cell=7))
    d = server.schema.shape[0]
    edges = np.tile(np.linspace(0.0, 100.0, 128, dtype=np.float32), (d, 1))
    counts = server.question(Histogram(edges))[0].tensors["counts"]
    assert counts.sum(axis=1).tolist() == [server.columns.rows] * d
    assert np.all((counts == 0) | (counts >= 7))
    rng = np.random.default_rng(0)
    for least in (2, 5, 50):
        raw = rng.integers(0, 4, (3, 20)).astype(np.float32)
        found = merged(raw, least)
        np.testing.assert_array_equal(found.sum(axis=1), raw.sum(axis=1))
        assert np.all((found == 0) | (found >= least) | (found == found.sum(axis=1, keepdims=True)))


def test_more_bytes_than_agreed_are_not_sent(hospital: Site) -> None:
    server = Server(hospital)
    server.attendant.agreement = replace(server.agreement, bytes=10)
    refused(server.question(moments_of(Flatten(server.schema.shape[0]))), "far beyond what was agreed to")


def test_a_full_disk_is_the_owners_to_mend(hospital: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Site) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "hospital/ledger.jsonl")

    told: list[str] = []
    attendant = Attendant(hospital, SETTINGS, None, say=told.append)
    monkeypatch.setattr(Site, "describe", full)
    data, said = attendant.answer({}, {"hello": True})
    assert data == {}
    assert said == {"failed": "this site cannot read or write its own files; its owner sees which"}
    assert "No space left on device (hospital/ledger.jsonl); put that right: the server asks again" in told
