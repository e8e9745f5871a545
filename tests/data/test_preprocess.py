"""Raw columns to numbers: what sites say of them, what they agree on, and what becomes of rows that no one foresaw."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffgb.data.files import load_sites, read_points
from ffgb.data.preprocess import MOST_CATEGORIES, NONE, NUMBER, TEXT, Column, Said, Table, agree, describe, raw
from ffgb.data.sites import Schema, Site
from ffgb.errors import FFGBError
from ffgb.runs.config import Config
from ffgb.runs.model import Model
from ffgb.runs.training import train


def columns(frame: pd.DataFrame, **kinds: str) -> dict[str, Any]:
    return {str(name): raw(frame, str(name), "a.csv", kinds.get(str(name))) for name in frame.columns}


FRAME = pd.DataFrame(
    {
        "age": [30.0, np.nan, 50.0, 40.0],
        "job": ["nurse", "clerk", None, "nurse"],
        "old": [True, False, True, True],
        "code": [1, 2, 2, 1],
        "empty": [None, None, None, None],
    }
)


def test_what_a_site_says() -> None:
    said = describe(columns(FRAME))
    assert said["age"] == Said(NUMBER, 1, 3, 120.0, {})
    assert said["job"] == Said(TEXT, 1, 3, 0.0, {"nurse": 2, "clerk": 1})
    assert said["old"] == Said(NUMBER, 0, 4, 3.0, {})
    assert said["empty"] == Said(NONE, 4, 0, 0.0, {})
    assert describe(columns(FRAME, code=TEXT))["code"].categories == {"1": 2, "2": 2}


def test_what_becomes_of_rows() -> None:
    table, told = agree({"a": describe(columns(FRAME))}, rare=2, least=1)
    assert table.names == ("age", "job=nurse", "old", "code", "age missing")
    assert told == ["the column 'empty' is empty everywhere, and is not used"]
    dates = describe(columns(pd.DataFrame({"x": [1.0, 2.0], "when": ["1/2/20", "3/4/20"]})))
    assert agree({"a": dates})[1] == [
        "the column 'when' is read as text, and no value of it has 10 rows: it is not used (dates, and "
        "numbers with units, must be written as numbers)"
    ]
    expected = [[30, 1, 1, 1, 0], [40, 0, 0, 2, 1], [50, 0, 1, 2, 0], [40, 1, 1, 1, 0]]
    assert table(columns(FRAME)).tolist() == expected
    # unknown categories, and numbers that are missing where none was in training
    new = pd.DataFrame({"age": [1.0], "job": ["pilot"], "old": [np.nan], "code": [9.0]})
    assert table(columns(new, job=TEXT)).tolist() == [[1, 0, 0.75, 9, 0]]
    assert table.from_json(json.loads(json.dumps(table.to_json()))) == table


def test_sites_agree_on_the_union_of_what_they_name() -> None:
    a = {"job": Said(TEXT, 0, 30, 0.0, {"nurse": 20}), "age": Said(NUMBER, 0, 30, 900.0, {})}
    b = {"age": Said(NUMBER, 5, 10, 500.0, {}), "job": Said(TEXT, 0, 15, 0.0, {"clerk": 12})}
    c = {"age": Said(NONE, 20, 0, 0.0, {}), "job": Said(NONE, 20, 0, 0.0, {})}
    table, told = agree({"a": a, "b": b, "c": c})
    assert table == Table((Column("job", ("clerk", "nurse")), Column("age", None, 35.0, True)))
    assert told == ["site c has no value in the column 'job'", "site c has no value in the column 'age'"]
    with pytest.raises(FFGBError, match=r"column 'age' is text at c and numbers at a; .* --categories"):
        agree({"a": a, "b": b, "c": {**c, "age": Said(TEXT, 0, 20, 0.0, {"old": 20})}})


def test_rows_in_none_of_the_named_categories_are_none_or_enough() -> None:
    def named(missing: int, *rows: int, least: int = 10) -> tuple[str, ...] | None:
        said = Said(TEXT, missing, sum(rows), 0.0, dict(zip("abcdef", rows, strict=False)))
        table, _ = agree({"x": {"n": Said(NUMBER, 0, 9, 9.0, {}), "job": said}}, 1, least)
        return table.columns[-1].categories

    assert named(0, 40, 30, 20) == ("a", "b", "c")
    assert named(10, 40, 30, 20) == ("a", "b", "c")
    assert named(9, 40, 30, 20) == ("a", "b")  # the smallest joins those without
    assert named(1, 20, 30, 20) == ("a", "b")  # of two alike, the last
    assert named(0, 40, 30, 9) == ("a",)  # nine are not named, and then too few are in none
    assert named(0, 40, 30, 9, 1) == ("a", "b")
    assert named(1, 40) is None  # all but one row are alike: there is nothing to tell apart
    assert named(9, 40, 30, 9, least=1) == ("a", "b", "c")
    _, told = agree({"x": {"n": Said(NUMBER, 0, 9, 9.0, {}), "job": Said(TEXT, 1, 40, 0.0, {"a": 40})}})
    assert told == ["the column 'job' is the same in all rows, or in all but fewer than 10: it is not used"]


def test_a_flag_has_enough_rows_on_either_side() -> None:
    def flagged(*sites: tuple[int, int], least: int = 10) -> bool:
        said = {f"s{i}": {"age": Said(NUMBER, *site, 1.0, {})} for i, site in enumerate(sites)}
        return agree(said, 1, least)[0].columns[0].flagged

    assert not flagged((0, 40))
    assert not flagged((9, 40))
    assert flagged((10, 40))
    assert flagged((5, 40), (5, 40))  # in total
    assert not flagged((40, 4), (40, 5))
    assert flagged((40, 4), (40, 6))
    assert flagged((1, 40), least=1)


def test_rows_of_sites_without_a_column_count_as_missing() -> None:
    whole = {"age": Said(NUMBER, 0, 30, 1.0, {}), "job": Said(TEXT, 1, 30, 0.0, {"a": 16, "b": 14})}
    alone, _ = agree({"a": whole, "b": whole})
    assert [(c.flagged, c.categories) for c in alone.columns] == [(False, None), (False, ("a",))]
    beside, _ = agree({"a": whole, "b": whole, "c": {"old": Said(NUMBER, 0, 20, 1.0, {})}})
    assert [(c.flagged, c.categories) for c in beside.columns] == [(True, None), (False, ("a", "b"))]


def test_a_row_means_the_same_whatever_stands_beside_it(tmp_path: Path) -> None:
    """4.0 is the code 4, and 01 is not 1, in any file."""
    (tmp_path / "a.csv").write_text(
        "code,x,y\n" + "".join(f"{'01' if i % 2 else '4.0'},{i},{i % 2}\n" for i in range(60))
    )
    (tmp_path / "b.csv").write_text(
        "code,x,y\n" + "".join(f"{('A1', '4', '01')[i % 3]},{i},{i % 2}\n" for i in range(60))
    )
    dataset = load_sites([tmp_path / "a.csv", tmp_path / "b.csv"], "y", categories=["code"])
    assert dataset.table is not None
    assert dataset.table.columns[0].categories == ("01", "4", "A1")
    for name, rows in (("one", ["4.0,3"]), ("two", ["4.0,3", "zz,5"]), ("three", ["4,3", ",5"])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["code,x", *rows]) + "\n")
        assert read_points(tmp_path / f"{name}.csv", dataset.table)[0].tolist() == [0, 1, 0, 3]
    with pytest.raises(FFGBError, match=r"--categories names 'cod', which is no column .*code"):
        load_sites([tmp_path / "a.csv"], "y", categories=["cod"])
    coded = pd.DataFrame({"ward": pd.Categorical([3, 4, 4])})
    assert raw(coded, "ward", "a.parquet").tolist() == ["3", "4", "4"]  # whoever made it a category meant one


def test_an_id_is_no_class(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x,pid\n" + "".join(f"{i},p{i}\n" for i in range(40)))
    with pytest.raises(
        FFGBError, match=r"'pid' has 40 different values in 40 rows, too many for classes; is it .* an id"
    ):
        Site("a", path, "pid").describe()


def test_what_a_site_tells_of_its_rows_holds_later(tmp_path: Path) -> None:
    """As many rows to train with as it said, whatever the classes: rare ones, and numbers that others have more of."""
    for text, task in (
        ("abcdefgh" + "i" * 40 + "j" * 33, None),
        ("1" * 30 + "2" * 31 + "3", None),
        ("01" * 21 + "2", "regression"),
    ):
        path = tmp_path / "a.csv"
        path.write_text("x,y\n" + "".join(f"{i},{c}\n" for i, c in enumerate(text)))
        said = Site("a", path, "y").describe()
        dataset = load_sites([path], "y", task=task, seed=7)
        assert (len(dataset.x), len(dataset.x_test)) == (said.rows, said.test_rows)


def test_a_column_has_so_many_categories() -> None:
    frame = pd.DataFrame({"job": [f"j{i:03}" for i in range(150) for _ in range(10 + (i == 149))]})
    table, _ = agree({"a": describe(columns(frame))})
    assert len(table.names) == MOST_CATEGORIES
    assert "job=j149" in table.names


@pytest.mark.parametrize(
    "wrong",
    [{"kind": "rows"}, {"missing": -1}, {"count": 1}, {"total": math.nan}, {"total": 1.0}, {"categories": {"a": 20}}],
)
def test_what_comes_from_elsewhere_is_checked(wrong: dict[str, Any]) -> None:
    Said(NUMBER, 0, 0, 0.0, {}).check()
    with pytest.raises(FFGBError, match="a site"):
        replace(Said(NUMBER, 0, 0, 0.0, {}), **wrong).check()


CELLS = st.one_of(st.none(), st.sampled_from(["a", "b", "c"]))


@given(
    st.lists(st.lists(st.tuples(CELLS, st.one_of(st.none(), st.floats(-9, 9))), min_size=1, max_size=8), min_size=1,
             max_size=4)
)  # fmt: skip
def test_any_sites_make_finite_numbers_of_the_agreed_width(sites: list[list[tuple[Any, Any]]]) -> None:
    frames = [pd.DataFrame({"t": [t for t, _ in rows], "n": [n for _, n in rows]}, dtype=object) for rows in sites]
    values = [{"t": raw(f, "t", "x", TEXT), "n": raw(f, "n", "x", NUMBER)} for f in frames]
    said = {str(i): describe(v) for i, v in enumerate(values)}
    try:
        table, _ = agree(said, rare=2)
    except FFGBError:
        return  # nothing that can be used
    for v in values:
        x = table(v)
        assert x.shape == (len(v["t"]), len(table.names))
        assert np.isfinite(x).all()
    # a category is named only if all sites together have it often enough
    for c in table.columns:
        for category in c.categories or ():
            assert sum((v["t"] == category).sum() for v in values) >= 10


def mixed(path: Path, seed: int, rows: int = 80) -> Path:
    """A site's file: text, missing values, its columns in an order of its own."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, rows)
    job = np.where(rng.random(rows) < 0.3 + 0.4 * y, "nurse", "clerk").astype(object)
    job[rng.random(rows) < 0.1] = None
    age = rng.normal(40 + 10 * y, 5)
    age[rng.random(rows) < 0.2] = np.nan
    frame = pd.DataFrame({"job": job, "age": age, "code": rng.integers(1, 4, rows), "y": np.array(["no", "yes"])[y]})
    frame[list(rng.permutation(frame.columns))].to_csv(path, index=False)
    return path


def test_sites_that_see_only_their_own_file_read_what_one_machine_reads(tmp_path: Path) -> None:
    files = [mixed(tmp_path / f"{name}.csv", seed) for seed, name in enumerate("abc")]
    together = load_sites(files, "y", categories=("code",))
    sites = [Site(path.stem, path, "y", categories=("code",)) for path in files]
    schema = Schema.of({site.name: site.describe() for site in sites}, "y")
    assert Schema.from_json(schema.to_json()) == schema
    assert schema.table == together.table
    apart = np.concatenate([site.load(schema, 0).x for site in sites])
    np.testing.assert_array_equal(apart, together.x)
    assert schema.dataset().columns == together.columns
    assert [asdict(c)["name"] for c in together.table.columns] == [c.name for c in schema.table.columns]  # type: ignore[union-attr]


def test_the_model_reads_new_rows_by_itself(tmp_path: Path) -> None:
    files = [mixed(tmp_path / f"{name}.csv", seed) for seed, name in enumerate("abc")]
    config = Config(data=tuple(map(str, files)), target="y", rounds=3, categories=("code",))
    train(config, tmp_path / "run", workers=0)
    model = Model.load(tmp_path / "run")
    assert model.table == load_sites(files, "y", categories=("code",)).table
    new = tmp_path / "new.csv"
    new.write_text("code,job,age\n1,nurse,50\n7,astronaut,\n,,30\n")
    x = model.read(new)
    assert x.shape == (3, len(model.columns))
    assert np.isfinite(model.predict_proba(x)).all()
    np.testing.assert_array_equal(x, read_points(new, model.table))
