"""Real sites with secure totals: the server sees sums over all, the same model comes out, and cheats are refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("cryptography")

from cryptography.hazmat.primitives.asymmetric import ec

from ffgb.core.survey import read_out
from ffgb.data.sites import Site, hello, met
from ffgb.deployment.agreement import Ledger
from ffgb.deployment.attendant import Attendant, rehearse
from ffgb.deployment.board import ServerBoard
from ffgb.deployment.identity import SiteIdentity
from ffgb.deployment.keys import fingerprint
from ffgb.deployment.policy import Policy
from ffgb.deployment.server import Service, Task, federate
from ffgb.engines.flower import Counted
from ffgb.engines.node import Node, pack, unpack
from ffgb.errors import FFGBError
from ffgb.federation.masked import Masked
from ffgb.privacy.identity import Participant
from ffgb.protocol.codec import Message, decode, encode
from ffgb.runs.config import Config
from ffgb.runs.training import Result, train
from tests.engines.grid import InProcessGrid

NAMES = ("east", "north", "south", "west")
JOB: dict[str, Any] = {"rounds": 3, "features": 24}


def tables(folder: Path, rows: int = 80) -> list[Path]:
    """Four sites' tables with numbers that are missing, categories, and a class that one site lacks."""
    paths = []
    for i, name in enumerate(NAMES):
        rng = np.random.default_rng(i)
        n = rows + 10 * i
        y = rng.integers(0, 3 if i else 2, n)
        x = rng.standard_normal((n, 2)) + y[:, None]
        town = np.array(["Ulm", "Bonn", "Kiel ü", "Jena"])[rng.integers(0, 4, n)]
        lines = []
        for (p, q), c, t in zip(x, y, town, strict=True):
            missing = rng.random() < 0.2
            lines.append(f"{'' if missing else f'{p:.4f}'},{q:.4f},{t},{'abc'[c]}")
        path = folder / f"{name}.csv"
        path.write_text("\n".join(["p,q,town,kind", *lines]) + "\n")
        paths.append(path)
    return paths


@final
class Federation:
    """Real sites on a Flower grid in one process, and everything that they have sent."""

    def __init__(
        self, folder: Path, files: list[Path], settings: Mapping[str, Any], policy: Policy | None = None
    ) -> None:
        self.folder, self.settings, self.policy = folder, settings, policy or Policy()
        self.attendants: dict[int, Attendant] = {}
        self.said: list[str] = []
        self.deadline = 5.0
        self.meanwhile: Callable[[str], None] = lambda text: None
        """What happens when the server says something."""
        self.sent: list[tuple[str, Message]] = []
        self.asked: list[tuple[str, Mapping[str, bytes], Mapping[str, Any]]] = []
        """All that sites were asked."""
        self.meddle: Callable[[str, Mapping[str, bytes]], Mapping[str, bytes]] = lambda site, data: data
        """What a server asks in place of what it should."""
        self.farewell = True
        """Sites hear that a training is over."""
        for i, path in enumerate(files):
            self.start(100 + i, Site(path.stem, path, "kind"))
        self.grid = InProcessGrid(self.answer, {node: {} for node in self.attendants})  # type: ignore[arg-type]

    def start(self, node: int, site: Site) -> None:
        """As `ffgb client` does."""
        home = self.folder / "homes" / site.name
        home.mkdir(parents=True, exist_ok=True)
        job = {"data": ["sites"], **self.settings}
        before = self.attendants.get(node)
        agreement = rehearse(site, job)[1] if before is None else before.agreement
        identity = SiteIdentity.of(site.name, home, None, self.policy)
        self.attendants[node] = Attendant(
            *(site, job, agreement, Ledger(home / "ledger.jsonl")),
            policy=self.policy,
            identity=identity,
            say=self.said.append,
        )

    def answer(self, message: Any, context: Any) -> Any:
        attendant = self.attendants[context.node_id]

        def watched(data: Mapping[str, bytes], said: Mapping[str, Any]) -> tuple[dict[str, bytes], dict[str, Any]]:
            if said.get("ended") and not self.farewell:
                return {}, {}
            data = self.meddle(attendant.site.name, data)
            self.asked.append((attendant.site.name, data, said))
            answers, words = attendant.answer(data, said)
            self.sent += [(attendant.site.name, decode(a)) for name, a in answers.items()]
            return answers, words

        return Node._reply(message, watched)

    def train(self, out: Path, minimum: int | None = None, **settings: Any) -> Result:
        service = Service(len(self.attendants), minimum or len(self.attendants), "", 0, None, self.deadline, 5.0)
        task = Task({"data": ["sites"], **self.settings, **settings}, "kind", None)
        return federate(Counted(self.grid), service, task, out, board=ServerBoard("", 4), say=self.hear)

    def hear(self, text: str) -> None:
        self.said.append(text)
        self.meanwhile(text)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return tables(tmp_path)


def here(files: list[Path], **job: Any) -> Result:
    return train(Config(data=tuple(map(str, files)), target="kind", **{**JOB, **job}), workers=0)


def test_the_model_is_that_of_one_machine_and_only_masked_numbers_leave(files: list[Path], tmp_path: Path) -> None:
    federation = Federation(tmp_path, files, JOB)
    there = federation.train(tmp_path / "run")
    assert there.model.to_bytes() == here(files).model.to_bytes()
    assert there.metrics[-1]["test_accuracy"] == pytest.approx(here(files).metrics[-1]["test_accuracy"], abs=1e-12)
    kinds = {message.kind for _, message in federation.sent}
    assert kinds == {"hello", "key", "ready", "tied", "masked"}
    assert all("points" not in m.values for _, m in federation.sent if m.kind != "hello")
    for _, message in federation.sent:
        if message.kind == "hello":
            said = met(encode(message))[1]
            assert (said.columns.rows, said.columns.classes, said.private) == (1, (), True)
            assert all(
                (c.missing, c.count, c.total, dict(c.categories)) == (0, 0, 0.0, {})
                for c in said.columns.columns.values()
            )
    known = json.loads((tmp_path / "run" / "clients.json").read_text())
    assert known["rows"] == sum(len(path.read_text().splitlines()) - 1 for path in files) * 4 // 5
    assert all(c["points"] is None and c["train"] is None and c["test"] is None for c in known["clients"])
    assert "only totals over 4 clients" in known["secure"]
    assert "only totals over 4 clients" in (tmp_path / "run" / "report.html").read_text()


def test_categories_are_those_of_one_machine_and_only_common_ones_are_named(files: list[Path], tmp_path: Path) -> None:
    """In the open and under masks.  A town has 3 rows at each site, 12 in all; a village has 2 at each, 8 in all."""
    for path in files:
        lines = path.read_text().splitlines()
        few = ["Town"] * 3 + ["Village"] * 2 + [f"only at {path.stem}"]
        changed = [",".join([*line.split(",")[:2], name, line[-1]]) for line, name in zip(lines[1:], few, strict=False)]
        path.write_text("\n".join([lines[0], *changed, *lines[1 + len(few) :]]) + "\n")
    alone = here(files, learner="linear", rounds=1)
    table = alone.model.table
    assert table is not None
    assert table.columns[-1].categories == ("Bonn", "Jena", "Kiel ü", "Town", "Ulm")
    job = {**JOB, "learner": "linear", "rounds": 1}
    masked = Federation(tmp_path / "a", files, job)
    bare = Federation(tmp_path / "b", files, {**job, "secure": "off"}, Policy(secure=False))
    for federation in (masked, bare):
        there = federation.train(tmp_path / f"run {len(federation.policy.in_words())}")
        assert there.model.to_bytes() == alone.model.to_bytes()
        for _, message in federation.sent:
            assert not any(name in str(message.values) for name in ("Town", "Village", "only at"))
    assert {message.kind for _, message in bare.sent} >= {"hello", "part"}
    names = [m.tensors["letters"] for _, m in bare.sent if "letters" in m.tensors]
    read = {read_out(row) for array in names for row in array if row[0] == 1}
    assert read == {"Bonn", "Jena", "Kiel ü", "Town", "Ulm", "a", "b", "c"}


def test_names_are_counted_under_masks_only_with_a_common_secret(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Masked, "share_secret", lambda self: self._introduce())
    federation = Federation(tmp_path, files, JOB)
    with pytest.raises(FFGBError, match="counts of categories"):
        federation.train(tmp_path / "run")
    assert any("only with a secret that all sites share" in text for text in federation.said)


def test_with_dropouts_allowed_it_is_the_same_model(files: list[Path], tmp_path: Path) -> None:
    federation = Federation(tmp_path, files, JOB, Policy(missing_sites=True))
    there = federation.train(tmp_path / "run", minimum=3)
    assert there.model.to_bytes() == here(files).model.to_bytes()
    assert {"prepared", "shares"} <= {message.kind for _, message in federation.sent}


def test_a_site_that_starts_anew_goes_on_with_its_keys(files: list[Path], tmp_path: Path) -> None:
    federation, count = Federation(tmp_path, files, JOB), 0

    def restart() -> None:
        nonlocal count
        count += 1
        if count % 23 == 0:
            federation.start(101, federation.attendants[101].site)

    federation.grid.before = restart
    assert federation.train(tmp_path / "run").model.to_bytes() == here(files).model.to_bytes()
    assert count > 3 * 23


def without_west(federation: Federation, out: Path) -> Result:
    """A training in which a site is away in rounds 3 and 4, and then comes back."""
    away: list[Any] = []

    def meanwhile(text: str) -> None:
        if text == "round 2 of 6":
            away.append(federation.grid.contexts.pop(103))
        if text == "round 4 of 6":
            federation.grid.contexts[103] = away.pop()

    federation.deadline, federation.meanwhile = 0.5, meanwhile
    return federation.train(out, minimum=3)


def test_without_a_site_for_some_rounds_it_is_as_without_masks(files: list[Path], tmp_path: Path) -> None:
    job = {**JOB, "rounds": 6, "stop": False}
    allowed = Policy(missing_sites=True)
    secure = without_west(Federation(tmp_path / "a", files, job, allowed), tmp_path / "run a")
    bare = Federation(tmp_path / "b", files, {**job, "secure": "off"}, Policy(secure=False))
    plain = without_west(bare, tmp_path / "run b")
    absent = [line.get("absent") for line in secure.metrics]
    assert absent == [line.get("absent") for line in plain.metrics]
    assert ["west"] in absent
    assert absent[-1] is None
    assert secure.model.to_bytes() == plain.model.to_bytes()
    assert secure.model.to_bytes() != here(files, rounds=6, stop=False).model.to_bytes()


def test_a_server_that_starts_anew_goes_on(files: list[Path], tmp_path: Path) -> None:
    federation = Federation(tmp_path, files, {**JOB, "rounds": 2})
    federation.train(tmp_path / "run", rounds=1)
    again = federation.train(tmp_path / "run", rounds=2)
    assert again.model.to_bytes() == here(files, rounds=2).model.to_bytes()


def test_a_site_shows_its_own_scores_to_its_owner_alone(files: list[Path], tmp_path: Path) -> None:
    federation = Federation(tmp_path, files, JOB)
    model = federation.train(tmp_path / "run").model
    own = json.loads((tmp_path / "homes" / "east" / "scores.json").read_text())
    site = federation.attendants[100]
    assert site.schema is not None
    dataset = site.site.load(site.schema, 0)
    assert own["held out"]["rows"] == len(dataset.y_test)
    assert own["held out"]["accuracy"] == pytest.approx(model.score(dataset.x_test, dataset.y_test)["accuracy"])
    assert own == site.board.snapshot()["own"]


# What sites refuse


def test_a_site_answers_nothing_without_masks(files: list[Path], tmp_path: Path) -> None:
    federation = Federation(tmp_path, files, JOB)
    with pytest.raises(FFGBError, match=r"site east takes part in secure totals alone, and this training is without"):
        federation.train(tmp_path / "run", secure="off")


def test_two_sites_hide_nothing(files: list[Path], tmp_path: Path) -> None:
    federation = Federation(tmp_path, files[:2], JOB)
    with pytest.raises(FFGBError, match="with 2 sites each knows the other's part"):
        federation.train(tmp_path / "run")


def test_a_minimum_that_a_lying_server_could_use_is_refused(files: list[Path], tmp_path: Path) -> None:
    more = tables_of_five(tmp_path, files)
    for policy, words in (
        (Policy(), "wants all in it (missing_sites is false)"),
        (Policy(missing_sites=True), "wants 4 (honest_server is false)"),
    ):
        federation = Federation(tmp_path / words[6:9], more, JOB, policy)
        with pytest.raises(FFGBError, match="sent no key"):
            federation.train(tmp_path / "run", minimum=3)
        assert any("with 3 of 5 sites, and the policy of" in text and words in text for text in federation.said)
    trusting = Federation(tmp_path / "other", more, JOB, Policy(missing_sites=True, honest_server=True))
    assert trusting.train(tmp_path / "run2", minimum=3).finished


def tables_of_five(folder: Path, files: list[Path]) -> list[Path]:
    path = folder / "zenith.csv"
    path.write_text(files[1].read_text())
    return [*files, path]


def test_a_participant_with_another_key_is_refused(files: list[Path], tmp_path: Path) -> None:
    federation = Federation(tmp_path, files, JOB)
    federation.train(tmp_path / "run")
    (tmp_path / "homes" / "north" / "key").unlink()
    federation.start(101, federation.attendants[101].site)
    with pytest.raises(FFGBError, match="sent no key"):
        federation.train(tmp_path / "run2")
    assert any("north has another key than this site knows" in text for text in federation.said)


def test_a_policy_names_who_may_take_part(files: list[Path], tmp_path: Path) -> None:
    stranger = fingerprint(b"someone else's key")
    federation = Federation(tmp_path, files, JOB, Policy(participants=dict.fromkeys(NAMES, stranger)))
    with pytest.raises(FFGBError, match="sent no key"):
        federation.train(tmp_path / "run")
    assert any("has another key than this site knows" in text for text in federation.said)


def test_a_server_cannot_put_in_a_key_of_its_own(files: list[Path], tmp_path: Path) -> None:
    """The server in the middle: it hands the sites a mask key that it knows, in place of a site's."""
    from ffgb.privacy.ciphers import new_key, public_of

    federation, forged = Federation(tmp_path, files, JOB), np.frombuffer(public_of(new_key()), np.uint8)

    def forge(question: Any, reply: Any) -> Any:
        data, said = unpack(reply.content)
        for name, answer in data.items():
            if name != "hello" and (message := decode(answer)).kind == "key" and question.metadata.dst_node_id == 102:
                data[name] = encode(replace(message, tensors={"key": forged}))
        return type(reply)(pack(data, said), reply_to=question)

    federation.grid.fault = forge
    with pytest.raises(FFGBError, match="does not take the keys of the other clients"):
        federation.train(tmp_path / "run")
    assert any("the signature of south is wrong" in text for text in federation.said + wordings(federation))


def wordings(federation: Federation) -> list[str]:
    return [str(message.values.get("text")) for _, message in federation.sent]


def test_too_many_parameters_for_the_rows_are_refused(files: list[Path], tmp_path: Path) -> None:
    federation = Federation(tmp_path, files, JOB, Policy(parameters_per_row=1))
    with pytest.raises(FFGBError):
        federation.train(tmp_path / "run", features=200)
    federation = Federation(tmp_path / "2", files, {**JOB, "features": 400}, Policy(parameters_per_row=1))
    with pytest.raises(FFGBError, match=r"client east, .* did not answer question GradientOf"):
        federation.train(tmp_path / "run3")
    assert any("allows 1 a row (parameters_per_row)" in text for text in federation.said)


def test_a_class_with_few_rows_in_all_is_not_named(files: list[Path], tmp_path: Path) -> None:
    text = files[0].read_text()
    files[0].write_text(text + text.splitlines()[1].rsplit(",", 1)[0] + ",rare\n")
    federation = Federation(tmp_path, files, JOB)
    with pytest.raises(FFGBError, match="a class has 1 rows at all sites together"):
        federation.train(tmp_path / "run")


def test_a_shorter_list_of_participants_is_refused(files: list[Path], tmp_path: Path) -> None:
    """The difference of two totals would be the part of the site that is left out."""
    federation = Federation(tmp_path, files, JOB)
    federation.train(tmp_path / "run")
    federation.grid.contexts.pop(103)
    del federation.attendants[103]
    with pytest.raises(FFGBError, match="sent no key"):
        federation.train(tmp_path / "run2")
    assert any("west took part before, and is not in the list" in text for text in federation.said)
    for name in NAMES:
        (tmp_path / "homes" / name / "participants.json").unlink()
    assert federation.train(tmp_path / "run3").finished


# A site's identity


def identities(folder: Path, names: tuple[str, ...] = NAMES, **more: Any) -> dict[str, SiteIdentity]:
    return {name: SiteIdentity.of(name, folder / name, None, Policy(**more)) for name in names}


def test_an_identity_keeps_its_secret_and_its_list(tmp_path: Path) -> None:
    known = identities(tmp_path)
    east, keys = known["east"], {name: one.registered for name, one in known.items()}
    assert east.secret(b"a") == identities(tmp_path)["east"].secret(b"a") != east.secret(b"b")
    assert (tmp_path / "east" / "secret").stat().st_mode & 0o777 == 0o600
    east.check(keys, 0)
    identities(tmp_path, missing_sites=True)["east"].check(keys, 3)
    with pytest.raises(FFGBError, match="wants all in it"):
        east.check(keys, 3)
    assert set(east.met()) == set(NAMES) - {"east"}
    for wrong, words in (
        ({**keys, "east": keys["west"]}, "does not have east with its own key"),
        ({**keys, "west": keys["south"]}, "two participants have the same key"),
        ({**keys, "zoe": identities(tmp_path, ("zoe",))["zoe"].registered}, "zoe is not among the participants"),
        ({name: keys[name] for name in ("east", "west")}, "the policy of east wants at least 3"),
        ({name: keys[name] for name in ("east", "north", "west")}, "south took part before"),
    ):
        with pytest.raises(FFGBError, match=words):
            east.check(wrong, 0)
    with pytest.raises(FFGBError, match="wants 3"):
        identities(tmp_path, missing_sites=True)["east"].check(keys, 2)
    signature = known["west"].sign(b"words")
    east.verify(Participant("west", keys["west"]), signature, b"words")
    for registered, signed in ((keys["west"], b"other"), (keys["south"], b"words"), (b"no key", b"words")):
        with pytest.raises(FFGBError, match="the signature of west is wrong"):
            east.verify(Participant("west", registered), signature, signed)


def test_an_owner_may_say_no(tmp_path: Path) -> None:
    known = identities(tmp_path)
    asked: list[Mapping[str, str]] = []

    def confirm(others: Mapping[str, str]) -> bool:
        asked.append(others)
        return False

    careful = SiteIdentity.of("east", tmp_path / "east", None, Policy(), confirm)
    with pytest.raises(FFGBError, match="has not agreed to these participants"):
        careful.check({name: one.registered for name, one in known.items()}, 0)
    assert asked == [{name: fingerprint(known[name].registered) for name in NAMES if name != "east"}]
    assert not careful.met()


def test_a_key_on_another_curve_signs_too(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization as s

    key = ec.generate_private_key(ec.SECP384R1())
    (tmp_path / "own").write_bytes(key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption()))
    site = SiteIdentity.of("east", tmp_path, tmp_path / "own")
    site.verify(Participant("east", site.registered), site.sign(b"w"), b"w")


def test_hello_has_no_counts_but_of_rows_in_the_open(files: list[Path]) -> None:
    site = Site("east", files[0], "kind")
    said = site.describe()
    for private, rows in ((True, (1, 1)), (False, (said.rows, said.test_rows))):
        values = decode(hello(site, private=private)).values
        assert "Ulm" in str(said)
        assert "Ulm" not in str(values)
        assert (values["columns"]["rows"], values["columns"]["test_rows"]) == rows
        _, told = met(hello(site, private=private))
        assert {(each.missing, each.count, each.total) for each in told.columns.columns.values()} == {(0, 0, 0.0)}
        assert told.columns.classes == ()
        assert told.labelled
