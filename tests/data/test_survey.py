"""What sites agree on from sums alone is what they would agree on if each told its own."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffgb.core.limbs import exact_sum, from_limbs, to_limbs
from ffgb.core.points import Points
from ffgb.core.questions import Ask, Here, Question
from ffgb.core.survey import (
    ALL_BITS,
    FIRST_BITS,
    LETTERS,
    MORE_BITS,
    FileCounts,
    FileSums,
    NameCounts,
    NamesIn,
    Surveyed,
    fits,
    hashed,
    read_out,
    spelled,
)
from ffgb.core.weighting import Weighting
from ffgb.data.files import Columns, load_sites
from ffgb.data.preprocess import NUMBER, TEXT, describe
from ffgb.data.preprocess import raw as raw_column
from ffgb.data.sites import Schema, Site
from ffgb.data.survey import Counts, Respondent, Wanted, names_of, survey, surveyed, without_counts
from ffgb.errors import FFGBError
from ffgb.files import content_hash
from ffgb.privacy.integers import add, from_integers, to_integers
from ffgb.protocol.messages import Asked, Report


def adding(sites: list[Surveyed], asked: list[Question] | None = None) -> Ask:
    """An `ask` that sees nothing but sums, as integers."""

    def ask(question: Question) -> Any:
        if asked is not None:
            asked.append(question)
        here = [Here(Points(i, np.zeros((1, 1)), np.zeros(1)), 1.0, said=said) for i, said in enumerate(sites)]
        whole = add((to_integers(question.part(each), question.sums) for each in here), question.sums)
        return question.total(from_integers(whole, question.sums))

    return ask


def named(names: dict[str, dict[str, int]], salt: bytes = b"") -> Surveyed:
    return Surveyed((1, 0), {}, names, salt)


def spelled_out(asked: list[Question], sites: list[Surveyed]) -> set[str]:
    """The names that sites have spelled out, in sums of letters."""
    found = set()
    for question in asked:
        if isinstance(question, NamesIn):
            for column, depth, head, mark in zip(*(getattr(question, n) for n in PLACES), strict=True):
                for own in (site.hashed[column] for site in sites if column in site.hashed):
                    inside = own.within(depth, head) & (own.marks == mark)
                    found |= {own.names[k] for k in np.flatnonzero(inside)}
    return found


PLACES = ("columns", "depths", "heads", "marks")
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
counts = st.dictionaries(texts, st.one_of(st.integers(1, 12), st.integers(10, 10**6)), max_size=30)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(counts, min_size=1, max_size=5),
    st.sampled_from([1, 10]),
    st.sampled_from([None, 1, 4]),
    st.binary(max_size=32),
)
def test_names_come_out_of_sums(sites: list[dict[str, int]], least: int, most: int | None, salt: bytes) -> None:
    """All that have enough rows at all sites together, whichever site has them; no other is spelled out."""
    known, asked = [named({"c": names}, salt) for names in sites], list[Question]()
    known[0] = replace(known[0], leads=True, fewest={"c": least})
    found = names_of(adding(known, asked), {"c": Wanted(least, most)})["c"]
    expected = Counter[str]()
    for names in sites:
        expected.update(names)
    enough = {name: rows for name, rows in expected.items() if rows >= least}
    cut = sorted(enough.values(), reverse=True)[most - 1] if most is not None and len(enough) > most else 0
    assert found.items() >= {name: rows for name, rows in enough.items() if rows >= cut}.items()
    assert found.items() <= enough.items()
    assert spelled_out(asked, known) == found.keys()


def sharing(name: str, number: int) -> list[str]:
    """Names that are counted in the same bucket at first."""
    place, found, k = hashed("c", {name: 1}).places[0] >> (ALL_BITS - FIRST_BITS), [name], 0
    while len(found) < number:
        k += 1
        if hashed("c", {f"name {k}": 1}).places[0] >> (ALL_BITS - FIRST_BITS) == place:
            found.append(f"name {k}")
    return found


def test_a_rare_name_is_not_spelled_out_beside_a_common_one() -> None:
    """Nor are rare names that have enough rows together."""
    common, *rare = sharing("common", 4)
    for rows in ({common: 30, rare[0]: 9, rare[1]: 1}, dict.fromkeys(rare, 9)):
        asked: list[Question] = []
        sites = [named({"c": rows}), named({"c": {"elsewhere": 20}})]
        expected = {name: n for name, n in {**rows, "elsewhere": 20}.items() if n >= 10}
        assert names_of(adding(sites, asked), {"c": Wanted(10)})["c"] == expected
        assert spelled_out(asked, sites) == expected.keys()
        assert any(isinstance(question, NameCounts) and question.bits == MORE_BITS for question in asked)


def test_names_that_share_a_bucket_are_told_apart() -> None:
    names = sharing("first", 4)
    sites = [named({"c": {name: 10 + i for i, name in enumerate(names[j:])}}) for j in range(3)]
    found = names_of(adding(sites), {"c": Wanted()})["c"]
    assert found == {names[0]: 10, names[1]: 21, names[2]: 33, names[3]: 36}


def test_many_names_and_a_column_of_ids() -> None:
    """Of 3,000 common names the ones with the most rows are asked for; of 40,000 ids none, though buckets are full."""
    names = {f"category {k}": 10 + k for k in range(3000)}
    ids = {f"patient {k}": 1 for k in range(40_000)} | {"unknown": 12}
    asked: list[Question] = []
    sites = [named({"c": names, "id": ids}), named({"c": names})]
    found = names_of(adding(sites, asked), {"c": Wanted(10, 100), "id": Wanted(10, 100)})
    assert found["id"] == {"unknown": 12}
    top = {f"category {k}": 2 * (10 + k) for k in range(2900, 3000)}
    assert found["c"].items() >= top.items()
    assert spelled_out(asked, sites) == {*found["c"], "unknown"}
    assert len(found["c"]) < 200
    assert len(asked) < 40


def test_a_name_with_too_few_rows_is_refused_where_all_are_wanted() -> None:
    asked: list[Question] = []
    sites = [named({"c": {"a": 30, "b": 4}}), named({"c": {"a": 1, "b": 5}})]
    with pytest.raises(FFGBError, match="c has 9 of 10"):
        names_of(
            adding(sites, asked), {"c": Wanted(10, refuse=lambda *what: FFGBError("{} has {} of {}".format(*what)))}
        )
    assert not any(isinstance(question, NamesIn) for question in asked)


def test_where_a_name_is_counted_is_a_secret_of_those_who_know_the_salt() -> None:
    names = {f"name {k}": 1 for k in range(500)}
    one, other = (hashed("c", names, salt) for salt in (b"", b"salt"))
    assert (one.places == other.places).sum() == (one.marks == other.marks).sum() == 0


def test_rows_of_a_name_are_proved_to_sites_with_a_secret() -> None:
    """A server that shows other rows than it got, or asks for the name of too few, does not get the name."""
    sites = [named({"c": {"a": 30, "b": 4}}, b"salt"), named({"c": {"a": 1, "b": 5}}, b"salt")]
    sites = [replace(site, leads=k == 0, fewest={"": 10}) for k, site in enumerate(sites)]
    asked: list[Question] = []
    ask = adding(sites, asked)
    assert names_of(ask, {"c": Wanted(10)}) == {"c": {"a": 31}}
    (good,) = (question for question in asked if isinstance(question, NamesIn))
    sums, own = ask(NameCounts(("c",), (0,), (0,), FIRST_BITS)), hashed("c", {"b": 9}, b"salt")
    place, mark = int(own.places[0] >> (ALL_BITS - FIRST_BITS)), int(own.marks[0])
    assert sums["counts"][0, place] == 9
    proof = int(sums["proofs"][0, place])
    rare = NamesIn(("c",), (FIRST_BITS,), (place,), (mark,), (9,), (proof,))
    here = Here(Points(0, np.zeros((1, 1)), np.zeros(1)), 1.0, said=sites[1])
    assert good.part(here)["letters"].sum() > 0
    for question, words in (
        (rare, "too few rows at all sites"),
        (replace(rare, rows=(10,)), "other rows of a category"),
        (replace(rare, rows=(18,), proofs=(2 * proof,)), "other rows of a category"),
        (replace(rare, rows=good.rows, proofs=good.proofs), "other rows of a category"),
        (replace(good, proofs=(good.proofs[0] + 1,)), "other rows of a category"),
        (replace(good, depths=(3,), heads=(0,)), "buckets that there are not"),
        (NamesIn(*(getattr(good, field.name) * 2 for field in fields(good))), "asks for a bucket twice"),
    ):
        with pytest.raises(FFGBError, match=words):
            question.part(here)


def test_a_question_about_buckets_that_there_are_not_is_refused() -> None:
    here = Here(Points(0, np.zeros((1, 1)), np.zeros(1)), 1.0, said=named({"c": {"a": 1}}))
    for depths, heads, bits in (((0,), (-1,), 11), ((0,), (0,), 0), ((50,), (0,), 4), ((0, 0), (0,), 4), ((), (), 4)):
        with pytest.raises(FFGBError, match="a question about names"):
            NameCounts(("c",) if heads else (), depths, heads, bits).part(here)
    assert NameCounts(("other",), (0,), (0,), 4).part(here)["counts"].sum() == 0


def test_a_name_that_has_no_bytes_or_too_many_is_not_told() -> None:
    assert fits("x" * LETTERS)
    assert not fits("x" * (LETTERS + 1))
    assert not fits("ü" * (LETTERS // 2 + 1))
    assert not fits("\ud800")


def test_a_sum_of_different_names_is_none() -> None:
    assert read_out(3 * spelled("Bonn")) == "Bonn"
    assert read_out(spelled("Bonn") + spelled("Ulm")) is None
    assert read_out(spelled("ab") + spelled("ba")) is None
    assert read_out(0 * spelled("a")) is None
    assert read_out(2 * spelled("")) == ""
    assert read_out(spelled("ü" * (LETTERS // 2))) == "ü" * (LETTERS // 2)


@given(st.lists(st.floats(-1e18, 1e18), max_size=20), st.integers(0, 20))
def test_a_sum_is_the_same_however_numbers_are_dealt_out(values: list[float], k: int) -> None:
    from fractions import Fraction

    whole = exact_sum(np.array(values))
    assert exact_sum(np.array(values[:k])) + exact_sum(np.array(values[k:])) == whole
    assert whole == sum((Fraction(round(Fraction(v) * 2**60), 2**60) for v in values), Fraction(0))


@settings(max_examples=60)
@given(st.lists(st.floats(-1e25, 1e25), min_size=1, max_size=8))
def test_limbs_add_up_exactly(values: list[float]) -> None:
    from fractions import Fraction

    total = sum(to_limbs([v]) for v in values)
    rounded = [Fraction(round(Fraction(v) * 2**60), 2**60) for v in values]
    assert from_limbs(np.asarray(total)).tolist() == [float(sum(rounded, Fraction(0)))]


def tables(folder: Path, seed: int) -> list[Path]:
    rng, files = np.random.default_rng(seed), []
    for i in range(4):
        n = int(rng.integers(15, 120))
        frame = pd.DataFrame(
            {
                "a": np.where(rng.random(n) < 0.2, np.nan, rng.normal(1e6, 1.0, n)),
                "b": rng.integers(0, 5, n),
                "town": np.array(["Ulm", "Bonn", "Kiel ü", "Jena", "x" * 300])[rng.integers(0, 5, n)],
                "y": np.array(["no", "yes"])[rng.integers(0, 2, n)],
            }
        )
        if i == 3:
            frame = frame.drop(columns="b").assign(extra=1.0)
        files.append(folder / f"s{i}.csv")
        frame.to_csv(files[-1], index=False)
    return files


def in_total(sites: dict[str, Site], rare: int = 10, least: int = 1) -> tuple[Schema, Counts]:
    """What sites agree on, of whose files nothing but sums is known."""
    told = {name: site.describe() for name, site in sites.items()}
    ask = adding([site.surveyed(told[name]) for name, site in sites.items()])
    private = {name: without_counts(said) for name, said in told.items()}
    described, counts = survey(ask, private, list(sites), rare, least)
    return Schema.of(described, "y", None, rare, least).with_counts(counts), counts


@pytest.mark.parametrize("seed", range(4))
def test_the_table_is_that_of_one_machine(seed: int, tmp_path: Path) -> None:
    sites = {path.stem: Site(path.stem, path, "y") for path in tables(tmp_path, seed)}
    plain = Schema.of({name: site.describe() for name, site in sites.items()}, "y", None, 10, 1)
    found, _ = in_total(sites)
    assert (found.table, found.classes, found.task, found.told) == (plain.table, plain.classes, plain.task, plain.told)
    here = load_sites([site.path for site in sites.values()], "y", least=1)
    assert (found.table, found.told) == (here.table, here.told)
    assert (sum(found.rows), sum(found.test_rows)) == (sum(plain.rows), sum(plain.test_rows))
    assert not found.counted
    assert max(found.rows) - min(found.rows) <= 1
    assert Schema.from_json(found.to_json()) == found


cells = st.tuples(
    st.sampled_from([None, "a", "b", "ü ", "d"]), st.one_of(st.none(), st.floats(-9, 9)), st.sampled_from(["no", "yes"])
)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(cells, st.integers(0, 2), st.integers(0, 2)), min_size=12, max_size=40),
    st.sampled_from([1, 3]),
)
def test_rows_that_move_between_sites_change_no_table(rows: list[Any], least: int) -> None:
    """In the open on one machine, and from sums alone: the same columns, categories, means and flags."""
    found = []
    for where in (1, 2):
        described: dict[str, Columns] = {}
        surveyed_sites = []
        for k in range(3):
            # of each kind a row that stays: a site says of which kind its columns are
            mine = [("d", 0.5, "no"), ("d", 0.5, "yes")] + [row[0] for row in rows if row[where] == k]
            frame = pd.DataFrame(mine, columns=["t", "n", "y"])
            raw = {"t": raw_column(frame, "t", "x", TEXT), "n": raw_column(frame, "n", "x", NUMBER)}
            labels = dict(Counter(y for _, _, y in mine))
            said = Columns(len(mine), 0, (), describe(raw), "text", tuple(sorted(labels)), 1)
            described[str(k)] = said
            surveyed_sites.append(surveyed(said, labels, 4, least))
        private = {name: without_counts(said) for name, said in described.items()}
        summed, _ = survey(adding(surveyed_sites), private, list(private), 4, least)
        for known in (described, summed):
            schema = Schema.of(known, "y", None, 4, least)
            found.append((schema.table, schema.classes, schema.told))
    assert all(each == found[0] for each in found[1:])


def test_classes_of_numbers_and_of_few_rows(tmp_path: Path) -> None:
    for k in range(3):
        rows = "".join(f"{i * 0.5},{(i + k) % 2}\n" for i in range(40))
        (tmp_path / f"s{k}.csv").write_text("x,y\n" + rows + ("1.0,7\n" if k == 0 else ""))
    sites = {f"s{k}": Site(f"s{k}", tmp_path / f"s{k}.csv", "y") for k in range(3)}
    private = {name: without_counts(site.describe()) for name, site in sites.items()}
    ask = adding([site.surveyed() for site in sites.values()])
    described, _ = survey(ask, private, list(sites), 10, 1)
    assert Schema.of(described, "y").classes == ("0", "1", "7")
    with pytest.raises(FFGBError, match="a class has 1 rows at all sites together"):
        survey(ask, private, list(sites), 10, 10)


def test_a_respondent_answers_questions_about_its_file_alone() -> None:
    respondent = Respondent(0, named({}))
    with pytest.raises(FFGBError, match="questions about their files alone"):
        respondent.answer(Report(0))
    answer = respondent.answer(Asked(FileCounts(("a",)), Weighting(3.0)))
    assert answer.tensors["rows"].tolist() == [1, 0]
    here = Here(Points(0, np.zeros((1, 1)), np.zeros(1)), 1.0)
    with pytest.raises(FFGBError, match="asked of a client that has none"):
        FileSums(("a",)).part(here)


def test_a_file_that_has_changed_since_its_owner_agreed_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "east.csv"
    file.write_text("a,y\n" + "".join(f"{i},{i % 2}\n" for i in range(40)))
    site = Site("east", file, "y", content=content_hash(file))
    schema = Schema.of({"east": site.describe(), "west": site.describe()})
    assert len(site.load(schema, 0).x) == 32
    site.surveyed()
    file.write_text(file.read_text() + "7,1\n")
    for answer in (lambda: site.load(schema, 0), site.surveyed):
        with pytest.raises(FFGBError, match=r"east\.csv has changed since its owner agreed; start ffgb client again"):
            answer()
    assert len(Site("east", file, "y").load(schema, 0).x) == 33


def test_counts_of_names_that_cannot_be_are_refused() -> None:
    question = NameCounts(("c",), (0,), (0,), 1)
    sums = {name: (each.shape, each.bound, each.bits, each.kind) for name, each in question.sums.items()}
    assert sums["counts"] == ((1, 2), 2.0**31 - 1, 32, "count")
    assert sums["marks"] == sums["proofs"] == ((1, 2), 2.0**53, 64, "count")
    fine = {"counts": np.array([[2.0, 1.0]]), "marks": np.array([[2.0 * (2**22 - 1), 5.0]]), "proofs": np.zeros((1, 2))}
    question.check(fine, 3)
    with pytest.raises(FFGBError, match="marks of categories are larger"):
        question.check({**fine, "marks": fine["marks"] + [[1.0, 0.0]]}, 3)
    for name in fine:
        with pytest.raises(FFGBError, match="are negative"):
            question.check({**fine, name: np.array([[1.0, -1.0]])}, 3)


def test_where_a_name_is_counted_is_agreed_between_versions() -> None:
    """51 bits of a keyed hash, and a mark of the 22 first bits of its second half."""
    secret, plain = hashed("colour", {"red": 3, "Kiel ü": 1}, b"salt"), hashed("colour", {"red": 3})
    assert secret.places.tolist() == [1991966877503231, 1211744315482683]
    assert secret.marks.tolist() == [1270414, 2981043]
    assert secret.rows.tolist() == [3, 1]
    assert (plain.places.tolist(), plain.marks.tolist()) == ([53306655546806], [3112756])
    assert secret.within(4, 1991966877503231 >> 47).tolist() == [True, False]
