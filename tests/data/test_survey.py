"""What sites agree on from sums alone is what they would agree on if each told its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffgb.core.limbs import from_limbs, to_limbs
from ffgb.core.points import Points
from ffgb.core.questions import Ask, Here, Question
from ffgb.core.survey import BUCKETS, LETTERS, Surveyed, bucket, read_out, spelled
from ffgb.core.weighting import Weighting
from ffgb.data.sites import Schema, Site
from ffgb.data.survey import Respondent, names_of, survey, without_counts
from ffgb.errors import FFGBError
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


def named(names: dict[str, dict[str, int]]) -> Surveyed:
    return Surveyed((1, 0), {}, names)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.dictionaries(texts, st.integers(10, 10**6), max_size=30), min_size=1, max_size=5))
def test_names_come_out_of_sums(sites: list[dict[str, int]]) -> None:
    found = names_of(adding([named({"c": names}) for names in sites]), ["c"])
    expected: dict[str, int] = {}
    for names in sites:
        for name, rows in names.items():
            expected[name] = expected.get(name, 0) + rows
    assert found == {"c": expected}


def test_names_that_share_a_bucket_are_told_apart() -> None:
    names, seen = ["first"], bucket("c", "first", 0)
    k = 0
    while len(names) < 4:
        k += 1
        if bucket("c", f"name {k}", 0) == seen:
            names.append(f"name {k}")
    asked: list[Question] = []
    sites = [named({"c": {name: 10 + i for i, name in enumerate(names[j:])}}) for j in range(3)]
    found = names_of(adding(sites, asked), ["c"])
    assert found["c"].keys() == set(names)
    assert found["c"]["first"] == 10
    assert len(asked) > 2  # another hash was needed


def test_many_names() -> None:
    names = {f"category {k}": 10 + k for k in range(BUCKETS // 2)}
    assert names_of(adding([named({"c": names}), named({"c": names})]), ["c"])["c"] == {
        n: 2 * k for n, k in names.items()
    }


def test_a_sum_of_different_names_is_none() -> None:
    assert read_out(3 * spelled("Bonn")) == "Bonn"
    assert read_out(spelled("Bonn") + spelled("Ulm")) is None
    assert read_out(spelled("ab") + spelled("ba")) is None
    assert read_out(0 * spelled("a")) is None
    assert read_out(2 * spelled("")) == ""
    assert read_out(spelled("ü" * (LETTERS // 2))) == "ü" * (LETTERS // 2)


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


@pytest.mark.parametrize("seed", range(4))
def test_the_table_is_that_of_sites_that_tell_everything(seed: int, tmp_path: Path) -> None:
    sites = {path.stem: Site(path.stem, path, "y") for path in tables(tmp_path, seed)}
    told = {name: site.describe() for name, site in sites.items()}
    plain = Schema.of(told, "y")
    ask = adding([site.surveyed(told[name]) for name, site in sites.items()])
    described, counts = survey(ask, {name: without_counts(said) for name, said in told.items()}, list(sites), 1)
    found = Schema.of(described, "y").with_counts(counts)
    assert (found.table, found.classes, found.task, found.told) == (plain.table, plain.classes, plain.task, plain.told)
    assert (sum(found.rows), sum(found.test_rows)) == (sum(plain.rows), sum(plain.test_rows))
    assert not found.counted
    assert max(found.rows) - min(found.rows) <= 1
    assert Schema.from_json(found.to_json()) == found


def test_classes_of_numbers_and_of_few_rows(tmp_path: Path) -> None:
    for k in range(3):
        rows = "".join(f"{i * 0.5},{(i + k) % 2}\n" for i in range(40))
        (tmp_path / f"s{k}.csv").write_text("x,y\n" + rows + ("1.0,7\n" if k == 0 else ""))
    sites = {f"s{k}": Site(f"s{k}", tmp_path / f"s{k}.csv", "y") for k in range(3)}
    private = {name: without_counts(site.describe()) for name, site in sites.items()}
    ask = adding([site.surveyed() for site in sites.values()])
    described, _ = survey(ask, private, list(sites), 1)
    assert Schema.of(described, "y").classes == ("0", "1", "7")
    with pytest.raises(FFGBError, match="a class has 1 rows at all sites together"):
        survey(ask, private, list(sites), 10)


def test_a_respondent_answers_questions_about_its_file_alone() -> None:
    respondent = Respondent(0, named({}))
    with pytest.raises(FFGBError, match="questions about their files alone"):
        respondent.answer(Report(0))
    from ffgb.core.survey import FileSums

    answer = respondent.answer(Asked(FileSums(("a",)), Weighting(3.0)))
    assert answer.tensors["rows"].tolist() == [1, 0]
    here = Here(Points(0, np.zeros((1, 1)), np.zeros(1)), 1.0)
    with pytest.raises(FFGBError, match="asked of a client that has none"):
        FileSums(("a",)).part(here)
