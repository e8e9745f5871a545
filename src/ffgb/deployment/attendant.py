"""A site that answers a server: its clients, what its owner agreed to, its log.  The site decides, not the server."""

from __future__ import annotations

import hashlib
import json
import math
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from ffgb.data.dataset import REGRESSION
from ffgb.data.files import Columns
from ffgb.data.preprocess import Table
from ffgb.data.sites import Schema, Site, hello
from ffgb.data.survey import Respondent, survey_bytes
from ffgb.data.targets import time_and_event
from ffgb.deployment.agreement import (
    HELD_OUT,
    MASKING,
    OF_RESULT,
    REPEATS,
    SILENT,
    SLACK,
    SURVEY,
    Agreement,
    Ledger,
    check_schema,
    digest_of,
    form,
    merged,
)
from ffgb.deployment.board import SiteBoard
from ffgb.deployment.course import AnalysisKeepsake, Course
from ffgb.deployment.identity import SiteIdentity
from ffgb.deployment.keepsake import Keepsake
from ffgb.deployment.policy import Policy
from ffgb.deployment.words import called
from ffgb.errors import FFGBError, command, option
from ffgb.features.tables import LEAST
from ffgb.federation.host import Holding, Host, Resident
from ffgb.files import content_hash
from ffgb.hardware import one_blas_thread
from ffgb.learners.blend import Blend
from ffgb.learners.catalogue import FAMILIES
from ffgb.privacy.identity import Identity
from ffgb.protocol.codec import Message, Sent, decode, encode, shown
from ffgb.protocol.engine import Engine
from ffgb.protocol.masking import Introduce, Roll, Ties
from ffgb.protocol.messages import QUESTIONS, what_leaves
from ffgb.runs.choose_learner import AUTO
from ffgb.runs.config import Config
from ffgb.runs.headline import in_bytes
from ffgb.runs.private import private_classes, private_table
from ffgb.runs.training import Elsewhere, train

DEFECT = "an error at the site; its owner sees more"
REHEARSAL_ROWS = 1000
"""Rows that a rehearsal has at least: with few, columns have fewer different values than all sites' together."""
DRAWS = b"ffgb draws "
"""What the secret is for by which a site draws rows, before the name of the training."""
FAILED, FAILURES = "questions that failed", 3
"""In the ledger: questions under masks that a site could not answer, and after how many it answers no more."""
FAILING = "a training in which it could not answer so many questions: each failure says something about its rows"
MASKED = ("masked", "shares")
"""Answers of a site that answers under masks alone, besides those that say nothing of the rows."""
CELL_SUMS = "question CellSums"
ADDITIVE = (CELL_SUMS, "question CurvatureAlong", "question SlopesAlong")
"""What a blend asks for if columns have few values, and not if they have many: no site knows those of all."""
FEW_CELLS = 2_000
"""Of all columns of a rehearsal with few values."""
PRIVATE_NUMBERS = 100_000
"""That an answer of a private training has at most, roughly."""
SCHEMA = "what all sites agreed on"
"""In the ledger: a training has one."""
NAMED = "names of categories that it was asked for"
"""In the ledger, as hashes."""
TRAININGS = 3
"""That an owner agrees to, unless told otherwise: one, and another if it must be done again."""


@final
@dataclass(frozen=True)
class Least:
    """Fewest rows that a site answers for."""

    rows: int = 10
    """To train with: a site with fewer does not take part."""
    label: int = 1
    """Of each class."""
    cell: int = 1
    """In a cell of a histogram: cells with fewer join the next one."""

    def check(self, said: Columns, labels: Mapping[str, int]) -> None:
        """Raise an FFGBError that names what falls short."""
        if said.rows < self.rows:
            raise FFGBError(
                f"the file has {said.rows} rows to train with, and sums over so few say too much about each; "
                f"a site needs {self.rows} ({option('least_rows')})"
            )
        few = sorted(name for name, rows in labels.items() if rows < self.label)
        if few:
            raise FFGBError(
                f"the class {shown(few[0])} has {labels[few[0]]} rows here, fewer than {self.label} "
                f"({option('least_class')}); leave its rows out, or join it with another class"
            )


# Before anything is sent


def public_form(site: Site) -> tuple[Table, tuple[str, ...]]:
    """The table and the classes of a private training, from the site's own schema file."""
    if site.reading.schema is None:
        raise FFGBError(
            f"a private training needs public bounds and categories: give the schema of all sites with "
            f"{option('schema', 'FILE')}"
        )
    schema, unit = site.reading.schema, None if site.bounded is None else site.bounded.unit
    return private_table(schema, site.target, unit), private_classes(schema, site.target, site.task) or ()


@final
class Rehearsal(Engine):
    """A site alone with itself: it answers its own questions, and writes down what would have left it."""

    def __init__(self, resident: Resident, survey: int = 0) -> None:
        """`survey` are the bytes of questions about the file, before there is a table."""
        self.resident, self.survey = resident, survey
        self.once: list[Sent] = []
        self.each: list[Sent] = []
        self.last: list[Sent] = []
        """When training has ended."""
        self.asked: list[tuple[str, Any]] = []

    def exchange(self, data: bytes, clients: Sequence[int]) -> dict[int, bytes]:
        question = decode(data)
        if question.kind in ("question", "setup"):
            name = what_leaves(question) if question.kind == "question" else "setup"
            self.asked.append((name, form(question.values["recipe"], question.tensors)))
        with one_blas_thread():
            answers = self.resident.answer(data, clients)
        for i, answer in answers.items():
            once = question.kind in ("setup", "turn", "memory") or question.round < 0
            if what_leaves(question) in OF_RESULT:
                self.last.append(Sent.of(what_leaves(question), decode(answer), once=True))
                continue
            sent = Sent.of(what_leaves(question), decode(answer), once=once, held_out=i > 0)
            (self.once if sent.once else self.each).append(sent)
        return answers

    def close(self, *, at_once: bool = False) -> None:
        pass

    def asks(self, name: str) -> bool:
        return any(known == name for known, _ in self.asked)

    def extend(self, other: Rehearsal, name: str) -> None:
        """What another rehearsal was asked by this name may be asked, too."""
        self.asked += [(known, asked) for known, asked in other.asked if known == name]
        self.each += [sent for sent in other.each if sent.what.partition(",")[0] == name]

    def agreement(self, config: Config, trainings: int, schema: Schema) -> Agreement:
        """To answer this, and no more, in a training of as many rounds as the configuration says."""
        distills = config.distill == "rounds"
        exchanges = max(config.exchanges, config.distill_rounds if distills else 0)
        size = self.survey + sum(s.bytes for s in (*self.once, *self.last))
        size += exchanges * sum(s.bytes for s in self.each)
        return Agreement(
            tuple(self.asked),
            exchanges,
            size,
            config.seed,
            trainings,
            lessons=config.exchanges if distills else 1,
            columns=() if schema.table is None else schema.table.names,
            classes=len(schema.classes),
        )


def rehearse(
    site: Site, settings: Mapping[str, Any], schema: Schema | None = None, *, trainings: int = TRAININGS
) -> tuple[Rehearsal, Agreement]:
    """What would leave a site in a training with these settings: it plays one round of it with itself.

    Before the sites have agreed on anything, the schema is that of a training with this site alone.
    """
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()}
    if time_and_event(site.target) is not None:  # by which the loss is chosen
        values["target"] = site.target
    if site.bounded is not None:
        table, classes = public_form(site)
        size = 16 * PRIVATE_NUMBERS
        columns = table.names
        rehearsal = Rehearsal(Resident({}))
        return rehearsal, Agreement(
            (), 1, size, int(values.get("seed", 0)), trainings, lessons=1, columns=columns, classes=len(classes)
        )
    said = site.describe()
    survey = survey_bytes(said)
    if schema is None:
        if len(said.classes) == 1 and site.task != REGRESSION:  # others have others, or there is nothing to learn
            (only,) = said.classes
            said = replace(said, classes=(only, f"not {only}") if isinstance(only, str) else (only, only + 1))
        least = int(values.get("least", LEAST))
        schema = Schema.of({site.name: said}, site.target, site.task, site.rare, least)
    # alone with itself a site has no one to share masks with; what is under them is the same
    whole = replace(Config(**values), participation=None, secure="off")
    dataset = site.load(schema, whole.seed)
    learner = Blend.name if whole.learner == AUTO else whole.learner
    many = max(
        (int(getattr(kind, "rehearsed", REHEARSAL_ROWS)) for kind in FAMILIES.get(learner, ())), default=REHEARSAL_ROWS
    )
    x, y, tested = dataset.x, dataset.y, (dataset.x_test, dataset.y_test)
    if schema.table is not None:
        x, y = _spread(x, y, many, len(schema.classes))
    if len(dataset.x_test):  # enough that the questions about them are all asked
        enough = max(REHEARSAL_ROWS, 2 * int(values.get("least", LEAST)))
        times = -(-enough // len(dataset.x_test))
        tested = np.concatenate([dataset.x_test] * times), np.concatenate([dataset.y_test] * times)
    rows, tests = (len(x),), (len(tested[0]),)
    own = replace(schema, names=(site.name,), rows=rows, test_rows=tests, told=(), counted=True)
    resolved = whole.resolved(own.dataset())
    # the second round of distillation starts from what the first has left; one exchange may hold all rounds
    rounds = resolved.rounds if resolved.one_round else 2 if whole.distill == "rounds" else 1

    def played(x: Any) -> Rehearsal:
        clients = {0: Holding(x, y)}
        if len(dataset.x_test):
            clients[1] = Holding(*tested)
        rehearsal = Rehearsal(Resident(clients), survey)
        with one_blas_thread():  # several sites may rehearse on one machine
            train(replace(whole, rounds=rounds), elsewhere=Elsewhere(rehearsal, own, 1))
        return rehearsal

    rehearsal = played(x)
    if resolved.learner == Blend.name and not rehearsal.asks(CELL_SUMS) and schema.table is not None:
        coarse = played(_coarse(x))
        for kind in ADDITIVE:
            rehearsal.extend(coarse, kind)
    return rehearsal, rehearsal.agreement(resolved, trainings, own)


def _spread(x: Any, y: Any, many_rows: int = REHEARSAL_ROWS, classes: int = 0) -> tuple[Any, Any]:
    """A few rows as if they were many: again and again, with values of columns of numbers moved a little.

    If all are alike in what is predicted, those that are added are not: trees that have nothing to tell apart do not
    grow, and with other sites' rows they do.
    """
    times = -(-many_rows // len(x))
    if times == 1:
        return x, y
    rng = np.random.default_rng(0)
    many, labels = np.tile(x, (times, 1)), np.concatenate([y] * times)
    if classes and len(np.unique(y)) < classes:
        labels[len(x) :] = rng.integers(0, classes, len(labels) - len(x))
    elif not classes and np.all(y == y[0]):
        labels[len(x) :] += rng.standard_normal(labels[len(x) :].shape).astype(labels.dtype)
    numbers = np.array([len(np.unique(column[:200])) > 2 for column in x.T])
    many[len(x) :, numbers] += (
        rng.standard_normal((len(many) - len(x), int(numbers.sum()))) * (0.1 * x[:, numbers].std(axis=0) + 1e-6)
    ).astype(x.dtype)
    return many, labels


def _coarse(x: Any) -> Any:
    """Rows whose columns have few different values."""
    levels = max(2, FEW_CELLS // x.shape[1] - 2)
    found = x.copy()
    for k, column in enumerate(x.T):
        values = np.unique(column)
        if len(values) > levels:
            kept = values[np.linspace(0, len(values) - 1, levels).astype(np.int64)]
            found[:, k] = kept[np.searchsorted(kept, column, "right") - 1]
    return found


# While a server asks


@final
class Attendant:
    """Answers the messages of a server, as far as its owner agreed to them.

    Clients live as long as a training: what they know of another would be wrong in this one.
    """

    def __init__(
        self,
        site: Site,
        settings: Mapping[str, Any] | None = None,
        agreement: Agreement | None = None,
        ledger: Ledger | None = None,
        *,
        refused: frozenset[str] = frozenset(),
        least: Least | None = None,
        policy: Policy | None = None,
        identity: SiteIdentity | None = None,
        log: Path | None = None,
        board: SiteBoard | None = None,
        say: Callable[[str], None] = lambda text: None,
        keepsake: Keepsake | AnalysisKeepsake | None = None,
        job: bytes | None = None,
        course: Course | None = None,
    ) -> None:
        """`keepsake` keeps the model when a training ends; `job` is what the owner agreed to, if the server sent it;
        `course` is the analysis that it is, if it is no training.

        Without an agreement everything is answered.  `refused` are statistics that its owner never answers;
        `say` is told of every message.  With an identity and a policy that says so, it answers under masks alone.
        """
        self.policy, self.identity = policy or Policy(secure=False, parameters_per_row=math.inf), identity
        self.secure = self.policy.secure and identity is not None
        self._surveyor: Host | None = None
        self._broken: str | None = None
        """The rule of this site that the training breaks: nothing more is answered in it."""
        self.own: dict[str, dict[str, Any]] = {}
        """This site's own scores, by its rows to train with and those held out."""
        self._contents: dict[str, str] = {}
        """What was asked under which number of masks: a question's own content, by the hash of its message."""
        self.site, self.settings, self.agreement, self.ledger = site, settings, agreement, ledger or Ledger()
        self.refused, self.least, self.log, self.say = refused, least or Least(rows=1), log, say
        self.board = board or SiteBoard(site.name, "")
        self.keepsake, self.job, self.announce, self.course = keepsake, job, say, course
        self.training: str | None = None
        self.private = None if identity is None or identity.purse is None else public_form(site)
        """The table and the classes of the schema file, if nothing leaves this site without noise."""
        self.schema: Schema | None = None
        self.schema_hash = ""
        self.terms = agreement
        """What was agreed to, as it is with the columns and classes of all sites."""
        self.resident: Resident | None = None
        self.ended = False
        """Whether a training has ended, and no other one has begun."""
        self._hello: tuple[bytes, Columns] | None = None
        self._last: tuple[Any, dict[int, bytes]] | None = None

    def answer(self, data: Mapping[str, bytes], said: Mapping[str, Any]) -> tuple[dict[str, bytes], dict[str, Any]]:
        """What to say to a message of a server's: who this is, what it lacks to answer, or its clients' answers."""
        try:
            return self._answer(data, said)
        except FFGBError as error:
            why = str(error)
            self.say(f"refused: {why}")
        except OSError as error:  # its disk is full, or not its own: the owner sees which file
            where = "" if error.filename is None else f" ({error.filename})"
            self.say(f"{error.strerror or error}{where}; put that right: the server asks again")
            why = "this site cannot read or write its own files; its owner sees which"
        except Exception:  # a defect: the owner sees where, the server that there was one
            self.say(traceback.format_exc())
            why = DEFECT
        self.board.refused("a message", why)
        self._log([_line("out", "failed", text=why)])
        return {}, {"failed": why}

    def kept(self) -> tuple[dict[str, bytes], dict[str, Any]]:
        """What another process needs to go on as this site: for apps that Flower starts anew for every message."""
        snapshot = {} if self.resident is None else self.resident.snapshot()
        words = {"training": self.training or "", "moved_in": self.resident is not None, "surveyed": -1}
        if self._surveyor is not None and self.resident is None:
            snapshot = {f"survey {kind}": data for kind, data in self._surveyor.rolls.items()}
            words["surveyed"] = next(iter(self._surveyor.clients))
        return {"schema": b"" if self.schema is None else self.schema.to_json().encode(), **snapshot}, words

    def go_on(self, data: Mapping[str, bytes], words: Mapping[str, Any]) -> None:
        """Be as the process that kept this."""
        self.training = str(words["training"]) or None
        if data["schema"]:
            self._take(data["schema"])
        if words["moved_in"]:
            assert self.schema is not None
            seed = 0 if self.agreement is None else self.agreement.seed
            self.resident, self.ended = self._moved_in(self.schema, seed), False
            self.resident.restore(data)
        if (i := int(words.get("surveyed", -1))) >= 0:
            host = self._surveying(i)
            for kind in (Introduce.kind, Roll.kind, Ties.kind):
                if f"survey {kind}" in data:  # what follows from it follows again
                    list(host.answers(data[f"survey {kind}"], [i]))

    def described(self) -> tuple[bytes, Columns]:
        """What this site says of itself, and the same as it travels."""
        if self._hello is None:
            with self._in_private():
                said = self.site.describe() if self.course is None else self.course.said
            key = "" if self.identity is None else self.identity.registered.hex()
            hidden = self.secure or self.private is not None
            self._hello = hello(self.site, said, private=hidden, key=key), said
        return self._hello

    @contextmanager
    def _in_private(self) -> Iterator[None]:
        """What is wrong with a file is for its owner: the words may have values, rows and paths in them."""
        try:
            yield
        except FFGBError as error:
            self.say(str(error))
            raise FFGBError("this site's file does not fit what the server says; its owner sees more") from error

    def _answer(self, data: Mapping[str, bytes], said: Mapping[str, Any]) -> tuple[dict[str, bytes], dict[str, Any]]:
        if said.get("hello"):
            self.say("the server asks who is here")
            if self.job is not None and data.get("job", self.job) != self.job:
                raise FFGBError("the server has another job now; start ffgb client again to read it, and agree to it")
            told, _ = self.described()
            self._log([_line("in", "who is here"), written_down(told, "out")])
            self.board.left("who is here", "before training", (), len(told))
            return {"hello": told}, {}
        if said.get("ended"):
            return self._end(data, said) if self.course is None else self._concluded(self.course, data, said)
        self._admit(said)
        if self.course is not None:
            return self._follow(self.course, data, said)
        if said.get("survey"):
            return self._survey(data["message"], [int(i) for i in said["clients"]])
        if "schema" in data:
            self._log([_line("in", "what all sites agreed on", bytes=len(data["schema"]))])
            self._take(data["schema"])
        if self.schema is None or self.schema_hash != said["schema"]:
            self._log([_line("out", "needs what all sites agreed on")])
            return {}, {"needs": "schema"}
        if self.resident is None:
            with self._in_private():
                self._check_file()
                self.resident, self.ended = self._moved_in(self.schema, int(said["seed"])), False
        clients = [int(i) for i in said["clients"]]
        question = decode(data["message"], QUESTIONS)
        self.board.asked(what_leaves(question), _when(question), len(data["message"]))
        key = (data["message"], tuple(clients))
        if self._last is None or self._last[0] != key or question.kind == "report":
            self._last = key, self._answers(question, data["message"], clients)
        answers = self._last[1]
        self._log([written_down(data["message"], "in"), *(written_down(a, "out") for a in answers.values())])
        self.say(f"{_when(question)}: {called(what_leaves(question))}, {_sent(answers)}")
        return {str(i): answer for i, answer in answers.items()}, {}

    def _check_file(self) -> None:
        """Raise an FFGBError if the privacy ledger is not that of the file as it is now."""
        purse = None if self.identity is None else self.identity.purse
        if purse is not None and purse.data != content_hash(self.site.path):
            raise FFGBError(
                f"{self.site.path} has changed since this client was started, and its privacy ledger is that of the "
                "file as it was; start ffgb client again"
            )

    def _end(self, data: Mapping[str, bytes], said: Mapping[str, Any]) -> tuple[dict[str, bytes], dict[str, Any]]:
        """The training is over: the model is kept, if this site took part in it."""
        if self.schema is None or said.get("training") != self.training or self.resident is None:
            raise FFGBError("the server says that a training has ended in which this site has no part")
        self._log([_line("in", "training has ended", bytes=sum(map(len, data.values())))])
        try:
            self._keep(data, int(said["seed"]))
        except Exception:
            if self.private is None:
                raise
            # whether a model that the server has made can be tried on these rows would tell of one
            self.say(traceback.format_exc())
        self.resident, self._last, self.ended = None, None, True
        self.say("waiting for another training; Ctrl-C ends")
        return {}, {"thanks": True}

    def _keep(self, data: Mapping[str, bytes], seed: int) -> None:
        """Keep the model, and tell the owner."""
        if not isinstance(self.keepsake, Keepsake):
            return
        assert self.schema is not None
        with self._in_private():
            seen = self.board.snapshot()
            texts = self.keepsake.keep(self.site, self.schema, seed, self.own, data, seen)
        for text in texts:
            self.announce(text)

    def _identity(self) -> Callable[[int], Identity] | None:
        """Who this site's clients are to the others."""
        known = self.identity
        return None if known is None else lambda i: known

    def _moved_in(self, schema: Schema, seed: int) -> Resident:
        """This site's clients in a training: which rows a tree is grown from follows from a secret of the site."""
        draws = b"" if self.identity is None else self.identity.secret(DRAWS + (self.training or "").encode())
        return self.site.move_in(schema, seed, self._identity(), draws)

    def _follow(
        self, course: Course, data: Mapping[str, bytes], said: Mapping[str, Any]
    ) -> tuple[dict[str, bytes], dict[str, Any]]:
        """Answers in an analysis: with the totals that the server shows it is known which question is the next one."""
        if decode(data["message"], QUESTIONS).kind not in MASKING and not course.takes(data, str(said["schema"])):
            self._log([_line("out", "needs the totals of the analysis")])
            return {}, {"needs": "schema"}
        return self._survey(data["message"], [int(i) for i in said["clients"]])

    def _concluded(
        self, course: Course, data: Mapping[str, bytes], said: Mapping[str, Any]
    ) -> tuple[dict[str, bytes], dict[str, Any]]:
        """The analysis is over: the result that the totals lead to is kept."""
        if said.get("training") != self.training or self._surveyor is None:
            raise FFGBError("the server says that an analysis has ended in which this site has no part")
        if not course.takes(data, str(said["schema"])):
            raise FFGBError("the server does not show all totals of the analysis that has ended")
        self._log([_line("in", "analysis has ended", bytes=sum(map(len, data.values())))])
        secret, _ = self._secret(self._surveyor, next(iter(self._surveyor.clients)))
        try:
            found = course.result(secret)
        except FFGBError as error:
            self.announce(f"the analysis has ended without a result: {error}")
        else:
            for text in self.keepsake.keep(found) if isinstance(self.keepsake, AnalysisKeepsake) else ():
                self.announce(text)
        self._surveyor, self.ended = None, True
        self.say("waiting for another analysis or training; Ctrl-C ends")
        return {}, {"thanks": True}

    def _survey(self, data: bytes, clients: Sequence[int]) -> tuple[dict[str, bytes], dict[str, Any]]:
        """Answers about the file, before sites agree on a table, or in an analysis."""
        question = decode(data, QUESTIONS)
        what, when = what_leaves(question), "before training" if self.course is None else "analysis"
        self.board.asked(what, when, len(data))
        self._may_ask(question, what)
        host, answers = self._surveying(clients[0]), dict[str, bytes]()
        respondent = host.clients.get(clients[0])
        with one_blas_thread():
            found = list(host.answers(data, [i for i in clients if i in host.clients]))
        for i, answer in found:
            message = decode(self._as_sent(question, answer))
            self._tell_of(question, message)
            why = self._bare(message) or self._about_masks(question, message, host)
            if why is None and message.kind in ("masked", "part") and self.agreement is not None:
                why = self._one_more(question, host, i, message, answer)
            if why is None and isinstance(respondent, Respondent):
                for column, name in sorted(respondent.named):
                    self.ledger.note(self.training or "", NAMED, _named(column, name), 0)
                respondent.named.clear()
            answers[str(i)] = encode(message) if why is None else self._refuse(question, i, why)
            self.board.left(what, when, (), len(answers[str(i)]))
        self._log([written_down(data, "in"), *(written_down(a, "out") for a in answers.values())])
        self.say(f"{when}: {called(what)}, {_sent(answers)}")
        return answers, {}

    def _may_ask(self, question: Message, what: str) -> None:
        """Raise an FFGBError if such a question is not answered about a file."""
        if self.identity is None and question.kind in MASKING:
            raise FFGBError("this site takes part in no secure training: it has no identity")
        if question.kind in MASKING:
            return
        if self.course is None and what not in SURVEY:
            raise FFGBError(f"before sites agree on a table, {shown(what)} is not answered")
        if self.course is not None and what not in self.course.kinds:
            raise FFGBError(f"this site has not agreed to {shown(what)}, which is no part of its analysis")
        if self.course is not None and what.removeprefix("question ") in self.refused:
            raise FFGBError(f"this site has not agreed to {what}: refuse in its policy")
        if self._failing:
            raise FFGBError(f"this site has not agreed to {FAILING}")

    def _one_more(self, question: Message, host: Host, i: int, message: Message, answer: bytes) -> str | None:
        """Why an answer about the file does not leave, if there were too many; if it leaves, that is written down."""
        what, training = what_leaves(question), self.training or ""
        if self.course is not None:
            # an answer follows from its question: the file is read once, and the site's masks are never used twice
            # names are asked for by hashes that are others in each run of the server
            entry, most = f"{what} {_number(question)}", SURVEY.get(what, REPEATS)
            digest = digest_of(_content(question))
        else:
            entry, most = f"{what} of its file", SURVEY[what]
            digest = self._digest(question, host, i) if message.kind == "masked" else digest_of(answer)
        if digest not in (known := self.ledger.known(training, entry)) and len(known) >= most:
            return f"this site has answered {len(known)} different {shown(what)}, and answers no more"
        self.ledger.note(training, entry, digest, len(answer))
        return None

    def _surveying(self, i: int) -> Host:
        """The client that answers questions about the file."""
        if self._surveyor is None and self.course is not None:
            host = self._surveyor = Host(self._identity())
            host.clients = {i: self.course.respondent(i, lambda: self._secret(host, i))}
        if self._surveyor is None:
            with self._in_private():
                _, said = self.described()
                least = int((self.settings or {}).get("least") or LEAST)
                respondent = self.site.surveyed(said, least)
            host = self._surveyor = Host(self._identity())
            host.clients = {i: Respondent(i, respondent, lambda: self._secret(host, i))}
        return self._surveyor

    def _secret(self, host: Host, i: int) -> tuple[bytes, bool]:
        """What names are hashed with: under masks a secret of all sites, so that the server cannot look for names."""
        if i not in host.secured or not host.secured[i].hides:
            return b"", False  # in the open; where a site wants masks, this answer does not leave it
        common = host.secured[i].common
        if common is None:
            raise FFGBError("under masks, names are counted only with a secret that all sites share")
        return common

    def _tell_of(self, question: Message, message: Message) -> None:
        """If a client could not answer, its owner sees why."""
        if message.kind == "error":
            text = str(message.values["text"])
            self.say(f"not answered: {shown(text)}")
            self.board.refused(what_leaves(question), text)

    def _bare(self, message: Message) -> str | None:
        """Why an answer does not leave, if it should be under masks and is not."""
        if self.secure and message.kind not in (*SILENT, *MASKED):
            return (
                "this site answers under masks alone (secure totals, by its policy), and the server asks without them"
            )
        return None

    def _admit(self, said: Mapping[str, Any]) -> None:
        """A training that goes on, or one more, if there is one more that the owner agreed to."""
        training = str(said["training"])
        if training != self.training:
            self.training, self.resident, self._last, self._surveyor = training, None, None, None
            self._broken = None
        if self.identity is not None and self.identity.purse is not None:
            self.identity.purse.training = training
        if self.agreement is None:
            return
        before = self.ledger.trainings
        if training not in before and len(before) >= self.agreement.trainings:
            raise FFGBError(
                f"this site has agreed to {self.agreement.trainings} trainings with this server, and this is another; "
                f"its owner agrees to more with {command('client', trainings=True)}"
            )
        if int(said["seed"]) != self.agreement.seed:
            raise FFGBError(
                f"the server names the seed {shown(said['seed'])} for the split into training and held-out rows; this "
                f"site splits by its own, {self.agreement.seed}"
            )

    def _take(self, text: bytes) -> None:
        """What all sites agreed on, if it fits what this site said of itself."""
        digest, training = hashlib.sha256(text).hexdigest(), self.training or ""
        if self.schema is not None and digest == self.schema_hash:
            return
        if self.agreement is not None and self.ledger.known(training, SCHEMA) - {digest}:
            raise FFGBError("the server names other columns or classes than before in this training")
        schema = Schema.from_json(text.decode())
        _, said = self.described()
        check_schema(schema, self.site.name, said)
        if self.private is not None and (schema.table, schema.classes) != self.private:
            raise FFGBError(
                "the server's schema has other columns, bounds, categories or classes than this site's: a private "
                "training needs the same schema file everywhere"
            )
        self._check_names(schema, said)
        self.terms = self.agreement
        if self.agreement is not None and self.private is None and not self.agreement.is_of(schema):
            assert self.settings is not None
            with self._in_private():
                _, self.terms = rehearse(self.site, self.settings, schema, trainings=self.agreement.trainings)
        if self.agreement is not None:
            self.ledger.note(training, SCHEMA, digest, 0)
        self.schema, self.schema_hash, self.resident, self._last = schema, digest, None, None

    def _check_names(self, schema: Schema, said: Columns) -> None:
        """Raise an FFGBError if the server names a category with few rows here that this site was not asked for.

        It would guess names: how many rows have one, and how they are labelled, would be in later sums.
        """
        if self.agreement is None or schema.table is None:
            return
        asked = self.ledger.known(self.training or "", NAMED)
        for column in schema.table.columns:
            own = said.columns.get(column.name)
            for name in column.categories or ():
                rows = 0 if own is None else own.categories.get(name, 0)
                if 0 < rows < self._fewest and _named(column.name, name) not in asked:
                    self.say(
                        f"the server names the category {shown(column.name)}={shown(name)}, and has not asked for it"
                    )
                    self.board.refused("categories that this site was not asked for", shown(name))
                    raise FFGBError("the server names a category that it has not asked this site for")

    @property
    def _fewest(self) -> int:
        """Rows of all sites that a category must have before it is named."""
        return max(self.site.rare, int((self.settings or {}).get("least") or LEAST))

    def _answers(self, question: Message, data: bytes, clients: Sequence[int]) -> dict[int, bytes]:
        """Each client's answer, or its refusal; what leaves is written down first."""
        assert self.resident is not None
        assert self.schema is not None
        if (why := self._refusal(question)) is not None:
            look = command("client", dry_run=True)
            text = f"this site has not agreed to {why}; its owner sees what is asked for: {look}"
            return {i: self._refuse(question, i, text) for i in clients}
        held_out = {i for i in clients if i >= len(self.schema.names)}
        looking = question.values.get("looking")  # at a function, and answering nothing
        looking = looking if isinstance(looking, list) else []
        of_result = what_leaves(question) in OF_RESULT
        asked = [i for i in clients if i not in held_out or question.kind in HELD_OUT or i in looking]
        if of_result:
            asked = [i for i in clients if i in held_out]
        with one_blas_thread():
            found = self.resident.answer(data, asked)
        answers = self._released(question, found, held_out)
        self._show_own()
        for i in set(clients) - answers.keys():
            text = "rows that are held out answer reports only: no statistics, and no training"
            if of_result:
                text = "rows to train with answer no question about the result"
            answers[i] = self._refuse(question, i, text)
        for answer in answers.values():
            sent = Sent.of(what_leaves(question), decode(answer), once=False)
            self.board.left(sent.what, _when(question), sent.arrays, len(answer))
        return answers

    def _show_own(self) -> None:
        """This site's own scores, which under masks no one else knows: shown to its owner, and kept."""
        assert self.resident is not None
        assert self.schema is not None
        host, N = self.resident.host, len(self.schema.names)
        if host.job is None or not host.reports:
            return
        measure = host.job.loss.measure
        lines = {}
        for i, report in host.reports.items():
            score = float(report["score"]) / float(report["weight"])
            lines["held out" if i >= N else "to train with"] = {
                "round": report["round"],
                "rows": report["points"],
                "loss": float(report["loss"]) / float(report["weight"]),
                measure.name: measure.of(score),
            }
        if lines != self.own:
            self.own = lines
            self.board.own(lines)
            if self.identity is not None:
                self.identity.keep_scores(lines)

    def _released(self, question: Message, found: Mapping[int, bytes], held_out: Set[int]) -> dict[int, bytes]:
        """The answers that may leave, as they do, and refusals in place of others; rows held out may have none."""
        assert self.resident is not None
        answers = {}
        for i, answer in found.items():
            answer = self._as_sent(question, answer)
            message = decode(answer)
            answering = question.kind in HELD_OUT or what_leaves(question) in OF_RESULT
            if i in held_out and not answering and message.kind not in SILENT:
                continue
            self._tell_of(question, message)
            why = self._bare(message) or self._against_policy(question)
            why = why or self._about_masks(question, message, self.resident.host, held_out=i in held_out)
            why = why or self._unheard_of(question, message, answer, i, held_out=i in held_out)
            answers[i] = answer if why is None else self._refuse(question, i, why)
        return answers

    def _refusal(self, question: Message) -> str | None:
        if self._broken is not None:
            return f"a training that breaks its rules: {self._broken}"
        if self._failing and question.kind not in MASKING:
            return FAILING
        if what_leaves(question).removeprefix("question ") in self.refused:
            return f"{what_leaves(question)}: --no-shared-geometry, or refuse in its policy"
        if self.private is not None:
            return None  # nothing leaves without noise (federation/host.py), and what noise costs is in the ledger
        return None if self.terms is None else self.terms.refuses(question)

    def _about_masks(self, question: Message, message: Message, host: Host, *, held_out: bool = False) -> str | None:
        """Why an answer about masks does not leave, or one that failed: a server must not learn from these."""
        if self.agreement is None:
            return None
        training = self.training or ""
        match message.kind:
            case "shares":
                return self._one_list(training, question, held_out=held_out)
            case "seeds":
                return self._one_reopened(training, question)
            case "error" if "masks" in question.values:
                return self._failed(training, question)
        return None

    def _one_reopened(self, training: str, question: Message) -> str | None:
        """Why masks are not given away: of one question in a training they are, whatever runs it has."""
        digest = self._contents.get(str(question.values["question"]), str(question.values["question"]))
        if self.ledger.known(training, "reopen") - {digest}:
            return "this site has given away the masks of a question of this training, and gives away no others"
        self.ledger.note(training, "reopen", digest, 0)
        return None

    @property
    def _failing(self) -> bool:
        return len(self.ledger.known(self.training or "", FAILED)) > FAILURES

    def _failed(self, training: str, question: Message) -> str | None:
        """Count questions that this site could not answer.

        Whether a number of this site is beyond a bound that the server chose says something about the site alone.
        """
        self.ledger.note(training, FAILED, digest_of(_content(question)), 0)
        return None

    def _digest(self, question: Message, host: Host, i: int) -> str:
        """Of a masked answer: the same part, under other masks after a restart, tells nothing new."""
        content = digest_of(_content(question))
        self._contents[hashlib.sha256(encode(question)).hexdigest()] = content
        return digest_of(content.encode() + host.secured[i].sent)

    def _unheard_of(self, question: Message, message: Message, answer: bytes, i: int, *, held_out: bool) -> str | None:
        """Why an answer does not leave, if it is one more than was agreed to; if it leaves, that is written down."""
        if self.agreement is None or self.terms is None or message.kind in (*SILENT, "shares"):
            return None
        if self.private is not None and self.site.bounded is not None:
            self.ledger.note(self.training or "", "answers with noise", digest_of(answer), len(answer))
            return None
        assert self.resident is not None
        training, digest = self.training or "", digest_of(answer)
        if message.kind == "masked":
            digest = self._digest(question, self.resident.host, i)
        name = what_leaves(question) if question.round < 0 else f"{what_leaves(question)} {question.round}"
        entry = f"{name}, rows held out" if held_out else name
        if what_leaves(question) in OF_RESULT:  # two of different rounds could be compared
            entry = what_leaves(question)
        known, most = self.ledger.known(training, entry), self.terms.most(question)
        if digest not in known and len(known) >= most:
            return (
                f"this site has not agreed to another {shown(entry)}: {len(known)} different ones have left it, and it "
                f"has agreed to {most}"
            )
        limit = SLACK * REPEATS * self.agreement.bytes
        if digest not in known and self.ledger.sent(training) + len(answer) > limit:
            return f"this training has sent more than {limit:,} bytes, far beyond what was agreed to"
        self.ledger.note(training, entry, digest, len(answer))
        return None

    def _one_list(self, training: str, unmask: Message, *, held_out: bool) -> str | None:
        """Why shares do not leave: whose parts of a question have arrived is said once, also after a restart."""
        content = self._contents.get(str(unmask.values["question"]), str(unmask.values["question"]))
        entry = f"unmask {content}" + (", rows held out" if held_out else "")
        arrived = digest_of(json.dumps(unmask.values["arrived"]).encode())
        if self.ledger.known(training, entry) - {arrived}:
            return "the server says in two ways whose parts of a question have arrived; their difference would tell one"
        self.ledger.note(training, entry, arrived, 0)
        return None

    def _against_policy(self, question: Message) -> str | None:
        """Why the job is against this site's rules, in words; None if it is not."""
        if question.kind != "setup" or self.resident is None or self.resident.host.job is None:
            return None
        assert self.schema is not None
        size, rows = self.resident.host.job.family.size, sum(self.schema.rows)
        if size > self.policy.parameters_per_row * rows:
            self._broken = (
                f"the model has {size:,} numbers for {rows:,} rows of all sites, and the policy of this site allows "
                f"{self.policy.parameters_per_row:g} a row (parameters_per_row)"
            )
        return self._broken

    def _refuse(self, question: Message, i: int, text: str) -> bytes:
        self.say(f"refused: {text}")
        self.board.refused(what_leaves(question), text)
        return encode(Message("error", question.round, i, {"text": text}))

    def _as_sent(self, question: Message, answer: bytes) -> bytes:
        """An answer as it leaves.

        A defect's traceback is for the owner: it has paths in it, and may have values.  Cells of a histogram with too
        few rows join others.
        """
        message = decode(answer)
        if message.kind == "error" and message.values.get("defect"):
            self.say(str(message.values["text"]))
            return encode(replace(message, values={"text": DEFECT}))
        if what_leaves(question) == "question Histogram" and message.kind == "part" and self.least.cell > 1:
            counts = merged(message.tensors["counts"], self.least.cell)
            return encode(replace(message, tensors={"counts": counts}))
        return answer

    def _log(self, lines: Iterable[str]) -> None:
        if self.log is not None:
            with self.log.open("a") as file:
                file.writelines(lines)


def _number(question: Message) -> int:
    """The place of a question in an analysis."""
    recipe = question.values["recipe"]
    return int(recipe[0]["number"])


def _named(column: str, name: str) -> str:
    return digest_of(f"{len(column)}/{column}/{name}".encode())


def _content(question: Message) -> bytes:
    """What a question asks, whatever masks its answers have."""
    return encode(replace(question, values={name: v for name, v in question.values.items() if name != "masks"}))


def _sent(answers: Mapping[Any, bytes]) -> str:
    return f"{in_bytes(sum(map(len, answers.values())))} sent"


def _when(question: Message) -> str:
    if what_leaves(question) in OF_RESULT:
        return "after training"
    training = question.kind in ("train", "question")  # of round t it is asked when t rounds are over
    return f"round {question.round + training}" if question.round + training > 0 else "set up"


def written_down(data: bytes, way: str) -> str:
    """A line of a site's own log: which message came or went, and its form; never a value."""
    message = decode(data)
    arrays = {name: [str(a.dtype), list(a.shape)] for name, a in sorted(message.tensors.items())}
    return _line(way, message.kind, round=message.round, client=message.client, bytes=len(data), arrays=arrays)


def _line(way: str, kind: str, **more: Any) -> str:
    return json.dumps({"time": time.time(), "way": way, "kind": kind, **more}) + "\n"
