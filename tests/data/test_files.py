from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffgb.data import Dataset, load_sites, partition, read_points
from ffgb.data.files import site_names
from ffgb.data.preprocess import Column, Table
from ffgb.errors import FFGBError

Write = Callable[[str, str], Path]

TWO = "a,b,y\n1,2,0\n3,4,1\n5,6,0\n7,8,1\n9,10,0\n"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return file


def table(n: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame({"a": rng.normal(size=n), "b": rng.integers(0, 9, n), "y": rng.integers(0, 2, n)})


def refused(message: str, *paths: Path, target: str | None = "y", **options: object) -> None:
    with pytest.raises(FFGBError, match=f"^{re.escape(message)}$"):
        load_sites(paths, target, **options)  # type: ignore[arg-type]


def numbers(*names: str) -> Table:
    """A table of numbers only."""
    return Table(tuple(Column(name) for name in names))


def all_rows(data: Dataset) -> np.ndarray:
    return np.concatenate([data.x, data.x_test])


def test_two_sites(tmp_path: Path) -> None:
    for name, n in (("north", 50), ("south", 30)):
        table(n, n).to_csv(tmp_path / f"{name}.csv", index=False)
    data = load_sites([tmp_path / "north.csv", tmp_path / "south.csv"], "y", seed=0)
    assert data.task == "classification"
    assert data.classes == ("0", "1")
    assert data.columns == ("a", "b")
    assert data.sites == ("north", "south")
    assert data.site is not None
    assert data.site_test is not None
    assert data.x.dtype == np.float32
    assert data.y.dtype == np.int64
    assert np.bincount(data.site).tolist() == [40, 24]
    assert np.bincount(data.site_test).tolist() == [10, 6]
    assert [len(part) for part in partition(data, "natural")] == [40, 24]
    for i, n in enumerate((50, 30)):
        ones = table(n, n)["y"].sum()
        assert abs(data.y_test[data.site_test == i].sum() - 0.2 * ones) <= 1


def test_what_a_site_holds_out_does_not_depend_on_the_others(tmp_path: Path) -> None:
    for name, n in (("north", 50), ("south", 30)):
        table(n, n).to_csv(tmp_path / f"{name}.csv", index=False)
    both = load_sites([tmp_path / "north.csv", tmp_path / "south.csv"], "y", seed=5)
    alone = load_sites([tmp_path / "south.csv"], "y", seed=5)
    np.testing.assert_array_equal(both.x_test[both.site_test == 1], alone.x_test)
    other = load_sites([tmp_path / "south.csv"], "y", seed=6)
    assert not np.array_equal(alone.x_test, other.x_test)


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
def test_the_three_kinds_agree(tmp_path: Path, kind: str) -> None:
    frame = table(40)
    path = tmp_path / f"site.{kind}"
    if kind == "csv":
        frame.to_csv(path, index=False)
    elif kind == "parquet":
        frame.to_parquet(path)
    else:
        np.savez(path, x=frame[["a", "b"]].to_numpy(), y=frame["y"].to_numpy(), columns=np.array(["a", "b"]))
    data = load_sites([path], None if kind == "npz" else "y", seed=0)
    frame.to_csv(tmp_path / "reference.csv", index=False)
    reference = load_sites([tmp_path / "reference.csv"], "y", seed=0)
    np.testing.assert_array_equal(data.x, reference.x)
    np.testing.assert_array_equal(data.y, reference.y)
    np.testing.assert_array_equal(data.x_test, reference.x_test)
    assert (data.columns, data.classes) == (("a", "b"), ("0", "1"))


def test_columns_in_another_order_are_put_in_the_first_files(write: Write) -> None:
    one = write("one.csv", TWO)
    two = write("two.csv", "y,b,a\n1,20,10\n0,40,30\n")
    data = load_sites([one, two], "y", seed=0)
    assert data.columns == ("a", "b")
    assert data.site is not None
    assert data.x[data.site == 1].tolist() == [[10, 20], [30, 40]]


def test_a_small_file_holds_out_nothing(write: Write) -> None:
    four = write("four.csv", "a,y\n1,0\n2,1\n3,0\n4,1\n")
    five = write("five.csv", "a,y\n1,0\n2,0\n3,0\n4,0\n5,0\n")
    data = load_sites([four, five], "y", seed=0)
    assert data.site_test is not None
    assert data.site_test.tolist() == [1]
    assert load_sites([five, four], "y", seed=0, holdout=0.0).x_test.shape == (0, 1)


@pytest.mark.parametrize(
    ("values", "task", "classes"),
    [
        (["no", "yes", "no"], "classification", ("no", "yes")),
        (["True", "False", "true"], "classification", ("False", "True")),
        (["2", "10", "-1"], "classification", ("-1", "2", "10")),
        (["2.0", "10.0", "2.0"], "classification", ("2", "10")),
        (["0.5", "1", "2"], "regression", ()),
        ([str(i) for i in range(20)], "classification", tuple(str(i) for i in range(20))),
        ([str(i) for i in range(21)], "regression", ()),
    ],
)
def test_the_task_is_inferred(write: Write, values: list[str], task: str, classes: tuple[str, ...]) -> None:
    path = write("a.csv", "x,y\n" + "".join(f"{i},{value}\n" for i, value in enumerate(values)))
    data = load_sites([path], "y", seed=0, holdout=0.0)
    assert (data.task, data.classes) == (task, classes)


def test_the_task_can_be_said(write: Write) -> None:
    path = write("a.csv", TWO)
    data = load_sites([path], "y", seed=0, task="regression")
    assert data.task == "regression"
    assert data.y.dtype == np.float64
    numbers = write("b.csv", "x,y\n" + "".join(f"{i},{i}\n" for i in range(30)))
    assert len(load_sites([numbers], "y", seed=0, task="classification").classes) == 30


def test_classes_are_fixed_over_all_files(write: Write) -> None:
    one = write("one.csv", "a,y\n1,cat\n2,cat\n")
    two = write("two.csv", "a,y\n1,dog\n2,ant\n")
    data = load_sites([one, two], "y", seed=0)
    assert data.classes == ("ant", "cat", "dog")
    assert data.y.tolist() == [1, 1, 2, 0]


def test_integers_and_whole_floats_are_the_same_classes(write: Write) -> None:
    one = write("one.csv", "a,y\n1,0\n2,1\n")
    two = write("two.csv", "a,y\n1,1.0\n2,0.0\n")
    data = load_sites([one, two], "y", seed=0)
    assert data.classes == ("0", "1")
    assert data.y.tolist() == [0, 1, 1, 0]


def test_a_site_that_knows_what_was_agreed(write: Write) -> None:
    """In a deployment a site has its own file only; columns and classes come from the federation."""
    path = write("a.csv", "b,a,y\n2,1,1\n4,3,1\n")
    data = load_sites([path], "y", seed=0, table=numbers("a", "b"), classes=("0", "1", "2"))
    assert data.x.tolist() == [[1, 2], [3, 4]]
    assert data.y.tolist() == [1, 1]
    assert data.classes == ("0", "1", "2")
    refused(
        f"{path}: the target 'y' is '1' in row 1, which is not one of the classes agreed on, '0', '2'; "
        "correct it or agree "
        "on the classes again",
        path,
        classes=("0", "2"),
    )
    agreed = Table((Column("a"), Column("c", fill=7.0, flagged=True)))
    lacking = load_sites([path], "y", seed=0, table=agreed, classes=("0", "1"))
    assert lacking.x.tolist() == [[1, 7, 1], [3, 7, 1]]


def test_booleans_missing_types_and_odd_columns_of_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pd.DataFrame(
        {
            "flag": [True, False, True],
            "whole": pd.array([1, 2, 3], dtype="Int64"),
            "price": [Decimal("1.5"), Decimal(2), Decimal(3)],
            "y": pd.Categorical(["u", "v", "u"]),
        },
        index=pd.Index([7, 8, 9], name="row"),
    ).to_parquet(path)
    data = load_sites([path], "y", seed=0)
    assert data.columns == ("flag", "whole", "price")
    assert data.x.tolist() == [[1, 1, 1.5], [0, 2, 2], [1, 3, 3]]
    assert data.classes == ("u", "v")


def test_spaces_byte_order_marks_and_quotes(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('\ufeff"a", b , y\n1, 2, "yes"\n3, 4, no\n', encoding="utf-8")
    data = load_sites([path], "y", seed=0)
    assert data.columns == ("a", "b")
    assert data.classes == ("no", "yes")


def test_images_and_several_targets_in_npz(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (20, 3, 8, 8), np.uint8)
    pixels[0, 0, 0, :2] = 0, 255
    np.savez(tmp_path / "a.npz", x=pixels, y=np.arange(20) % 2)
    data = load_sites([tmp_path / "a.npz"], seed=0)
    assert data.image
    assert data.columns == ()
    assert (all_rows(data).min(), all_rows(data).max()) == (-1, 1)
    np.testing.assert_array_equal(read_points(tmp_path / "a.npz", None).shape, (20, 3, 8, 8))
    np.savez(tmp_path / "b.npz", x=rng.normal(size=(20, 4)), y=rng.normal(size=(20, 3)))
    several = load_sites([tmp_path / "b.npz"], seed=0)
    assert (several.task, several.outputs) == ("regression", 3)
    assert several.columns == ("x0", "x1", "x2", "x3")
    np.savez(tmp_path / "c.npz", x=np.zeros((5, 3, 9, 9)), y=np.arange(5) % 2)
    refused(
        "c has images of shape (3, 9, 9) and a has images of shape (3, 8, 8); give all sites the same",
        tmp_path / "a.npz",
        tmp_path / "c.npz",
    )
    np.savez(tmp_path / "d.npz", x=rng.normal(size=(20, 4)), y=rng.normal(size=20))
    refused(
        f"the target 'y' has another shape in {tmp_path / 'd.npz'} than in {tmp_path / 'b.npz'}; "
        "give all sites the same",
        tmp_path / "b.npz",
        tmp_path / "d.npz",
    )


def test_site_names() -> None:
    assert site_names([Path("x/north.csv"), Path("x/south.csv")]) == ("north", "south")
    assert site_names([Path("a/data.csv"), Path("b/data.csv")]) == ("a/data", "b/data")
    assert site_names([Path("a/data.csv"), Path("a/data.npz")]) == ("a/data.csv", "a/data.npz")


@given(n=st.integers(5, 60), holdout=st.floats(0, 0.9), seed=st.integers(0, 99))
def test_no_row_is_lost(tmp_path_factory: pytest.TempPathFactory, n: int, holdout: float, seed: int) -> None:
    path = tmp_path_factory.mktemp("sites") / "a.npz"
    np.savez(path, x=np.arange(float(n))[:, None], y=np.arange(n) % 3)
    data = load_sites([path], seed=seed, holdout=holdout)
    assert sorted(all_rows(data)[:, 0]) == list(range(n))
    assert (data.y == data.x[:, 0] % 3).all()
    assert (data.y_test == data.x_test[:, 0] % 3).all()


# What can go wrong


def test_no_such_file(tmp_path: Path) -> None:
    refused(f"{tmp_path / 'a.csv'} does not exist; check the path", tmp_path / "a.csv")
    refused(f"{tmp_path} is a folder; name the files in it, one a client", tmp_path)
    refused("no site files were given; name one file a client")


def test_unknown_kind_and_empty_files(write: Write) -> None:
    odd = write("a.doc", "x")
    refused(f"{odd} is of an unknown kind; give a .csv, .tsv, .xlsx, .parquet, .npz or .sql file", odd)
    for kind in ("csv", "parquet", "npz"):
        empty = write(f"empty.{kind}", "")
        refused(f"{empty} is empty; give a file with rows in it", empty)
    blank = write("blank.csv", "\n\n  \n")
    refused(f"{blank} is empty; give a file with rows in it", blank)
    header = write("header.csv", "a,y\n")
    refused(f"{header} has a header but no rows; give a file with rows in it", header)


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
def test_rubbish(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"rubbish.{kind}"
    for content in (b"\x89PNG\r\n\x1a\n\0\0\0", bytes(range(256)) * 20, b"PK\x03\x04" + bytes(range(100))):
        path.write_bytes(content)
        name = {"csv": "CSV", "parquet": "Parquet", "npz": "NPZ"}[kind]
        with pytest.raises(
            FFGBError,
            match=rf"rubbish\.{kind} (cannot be read as {name} \(.*\); save it again as {name}|is no text but an .*|"
            rf"is not text in UTF-8; .* --encoding|is no {name} file but .*)$",
        ):
            load_sites([path], "y")


def test_a_truncated_parquet_and_npz(tmp_path: Path) -> None:
    frame = table(500)
    frame.to_parquet(tmp_path / "a.parquet")
    np.savez_compressed(tmp_path / "a.npz", x=frame[["a"]].to_numpy(), y=frame["y"].to_numpy())
    for path in (tmp_path / "a.parquet", tmp_path / "a.npz"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        with pytest.raises(FFGBError, match=f"{path.name} cannot be read as"):
            load_sites([path], "y")


def test_a_damaged_member_of_an_npz(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.ones((500, 2)), y=np.arange(500) % 2)
    content = bytearray(path.read_bytes())
    content[1000] ^= 255
    path.write_bytes(content)
    with pytest.raises(FFGBError, match=r"a\.npz cannot be read as NPZ \(Bad CRC-32"):
        load_sites([path])


def test_pickles_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.array([{}, {}], object), y=np.array([0, 1]))
    with pytest.raises(FFGBError, match=r"a\.npz cannot be read as NPZ \(Object arrays cannot be loaded"):
        load_sites([path])
    np.save(tmp_path / "b.npy", np.ones(3))
    (tmp_path / "b.npy").rename(tmp_path / "b.npz")
    refused(
        f"{tmp_path / 'b.npz'} cannot be read as NPZ (it holds a single array); save it again as NPZ",
        tmp_path / "b.npz",
    )


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": [0, 1]}, " has no array x; save it with numpy.savez(file, x=points, y=targets)"),
        ({"x": [[1.0], [2.0]]}, " has no array y; save it with numpy.savez(file, x=points, y=targets)"),
        (
            {"x": [1.0, 2.0], "y": [0, 1]},
            ": the array x has shape (2,); "
            "give it shape (rows, columns), or (rows, channels, height, width) for images",
        ),
        ({"x": [["a"], ["b"]], "y": [0, 1]}, ": the array x holds <U1 values where numbers belong; save it as numbers"),
        ({"x": np.zeros((0, 2)), "y": []}, " has no rows; give a file with rows in it"),
        (
            {"x": [[1.0], [2.0]], "y": [0, 1, 0]},
            ": the array y has shape (3,) where x has 2 rows; give one target a row",
        ),
        (
            {"x": [[1.0, 2], [2.0, -np.inf]], "y": [0, 1]},
            ": column 'x1' has an infinite value in row 2; correct it",
        ),
        (
            {"x": [[1.0, 1e300], [2.0, 0]], "y": [0, 1]},
            ": column 'x1' has an infinite value in row 1; correct it",
        ),
        (
            {"x": np.full((2, 1, 2, 2), np.nan), "y": [0, 1]},
            ": the array x has 2 missing or infinite values, the first in row 1; fill them in or remove those rows",
        ),
        (
            {"x": [[1.0], [2.0]], "y": [0, 1], "columns": ["a", "b"]},
            ": the array columns names 2 distinct columns where x has 1; give one name a column",
        ),
        (
            {"x": [[1.0], [2.0]], "y": np.array(["2020-01-01", "2020-01-02"], "M8[D]")},
            ": the array y holds datetime64[D] values; save it as numbers or as text",
        ),
        (
            {"x": [[1.0], [2.0]], "y": [[0.5, np.inf], [1, 2]]},
            ": the target 'y' has 1 missing or infinite value, the first in row 1; fill them in or remove those rows",
        ),
    ],
)
def test_npz_arrays(tmp_path: Path, arrays: dict[str, object], message: str) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, **{name: np.asarray(value) for name, value in arrays.items()})  # type: ignore[arg-type]
    refused(f"{path}{message}", path, target=None)


def test_the_target_is_missing(write: Write) -> None:
    path = write("a.csv", "age,weight,Outcome\n1,2,0\n3,4,1\n")
    refused(
        f"{path} has no column 'outcome' to be the target (did you mean 'Outcome'?); it has 'age', 'weight', 'Outcome'",
        path,
        target="outcome",
    )
    refused(f"{path} has no column 'zz' to be the target; it has 'age', 'weight', 'Outcome'", path, target="zz")
    refused(f"{path} is a table, and no target is named; name the column to predict with --target", path, target=None)
    wide = write("wide.csv", ",".join(f"c{i}" for i in range(50)) + "\n" + ",".join(["1"] * 50) + "\n")
    with pytest.raises(FFGBError, match=r"'c11' and 38 more$"):
        load_sites([wide], "zz")


def test_no_feature_columns(write: Write) -> None:
    path = write("a.csv", "y\n0\n1\n")
    refused(f"{path} has no feature columns, only the target 'y'; add columns to predict it from", path)


def test_text_where_numbers_belong(write: Write) -> None:
    path = write("a.csv", "a,b,y\n1,2,0\n3,high,1\n5,6,0\n")
    refused(
        f"{path}: column 'b' has text where numbers belong, 'high' in row 2; write numbers there, leave it empty, "
        "name what stands for unknown with --missing, or name the column with --categories",
        path,
    )
    comma = write("b.csv", 'a,y\n"2,0",0\n"1,5",1\n')
    refused(
        f"{comma}: column 'a' has text where numbers belong, '2,0' in row 1; write numbers with a decimal point",
        comma,
    )
    target = write("c.csv", "a,y\n1,low\n2,high\n")
    refused(
        f"{target}: the target 'y' has text where numbers belong, 'low' in row 1; write numbers there, or leave out "
        "--task and --loss if these are classes",
        target,
        task="regression",
    )
    slip = write("d.csv", "a,y\n" + "".join(f"{i},{i}.5\n" for i in range(30)) + "1,n.b.\n")
    refused(
        f"{slip}: the target 'y' has text among its numbers, 'n.b.' in row 31; "
        "write a number there, or say that the task "
        "is classification",
        slip,
    )
    assert len(load_sites([slip], "y", seed=0, task="classification").classes) == 31


def test_missing_and_infinite_values(write: Write) -> None:
    path = write("a.csv", "a,b,y\n1,2,0\n3,,1\n4,NA,1\n5,?,0\n")
    data = load_sites([path], "y", seed=0, rare=1, least=1)
    assert data.columns == ("a", "b", "b missing")
    assert data.x.tolist() == [[1, 2, 0], [3, 2, 1], [4, 2, 1], [5, 2, 1]]
    infinite = write("b.csv", "a,b,y\n1,2,0\n-inf,3,1\n")
    refused(f"{infinite}: column 'a' has the infinite or too large value -inf in row 2; correct it", infinite)
    huge = write("c.csv", "a,y\n1,0\n1e39,1\n")
    refused(f"{huge}: column 'a' has the infinite or too large value 1e+39 in row 2; correct it", huge)
    target = write("d.csv", "a,y\n1,\n2,1\n3,None\n")
    refused(
        f"{target}: the target 'y' has 2 missing values, the first in row 1 (empty cells, NA, None and null count as "
        "missing); fill them in or remove those rows",
        target,
    )
    infinite_target = write("e.csv", "a,y\n1,0.5\n2,inf\n")
    refused(
        f"{infinite_target}: the target 'y' has 1 missing or infinite value, the first in row 2; "
        "fill them in or remove "
        "those rows",
        infinite_target,
    )


def test_dates_and_lists(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pd.DataFrame({"day": [datetime.datetime(2020, 1, 1)] * 2, "y": [0, 1]}).to_parquet(path)
    found = load_sites([path], "y", holdout=0.0, least=1)
    assert found.columns == ("day: years since 2000", "day: season (cosine)", "day: season (sine)")
    pd.DataFrame({"list": [[1], [2]], "y": [0, 1]}).to_parquet(path)
    with pytest.raises(FFGBError, match=r"column 'list' h"):
        load_sites([path], "y")


def test_different_columns(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    one = write("one.csv", TWO)
    two = write("two.csv", "a,c,d,y\n1,2,3,0\n")
    with caplog.at_level("WARNING", "ffgb"):
        assert load_sites([one, two], "y").columns == ("a",)
    assert "site one also has the column 'b', which is not used" in caplog.text
    three = write("three.csv", "a,b,c,y\n1,2,3,0\n")
    with caplog.at_level("WARNING", "ffgb"):
        assert load_sites([one, two, three], "y").columns == ("a", "b", "c")  # as too few are missing for a flag
        flagged = load_sites([one, two, three], "y", rare=1, least=1).columns
        assert flagged == ("a", "b", "c", "b missing", "c missing")
    assert "site two lacks the column 'b'; its values count as missing there" in caplog.text
    assert "site two also has the column 'd', which is not used" in caplog.text
    strange = write("strange.csv", "e,y\n1,0\n")
    refused("the sites have no column in common that can be used; give all sites the same columns", one, strange)


def test_one_class(write: Write) -> None:
    one, two = write("one.csv", "a,y\n1,sick\n"), write("two.csv", "a,y\n1,sick\n2,sick\n")
    refused("the target 'y' is 'sick' in every row of all files; a classifier needs at least two classes", one, two)


def test_a_file_given_twice(write: Write) -> None:
    path = write("a.csv", TWO)
    again = path.parent / "." / ".." / path.parent.name / "a.csv"
    refused(f"{again} is given twice; every client needs a file of its own", path, again)
    link = path.parent / "link.csv"
    link.symlink_to(path)
    refused(f"{link} is given twice; every client needs a file of its own", path, link)
    refused(f"{path} is given twice; every client needs a file of its own", path, path)


def test_mixed_targets(write: Write) -> None:
    one, two = write("one.csv", "a,y\n1,0\n2,1\n"), write("two.csv", "a,y\n1,no\n2,yes\n")
    message = (
        f"the target 'y' is text in {two} ('no' in row 1) and a number in {one}; write it the same way in all files"
    )
    refused(message, one, two)
    refused(message, two, one)
    refused(message, two, one, task="classification")


def test_fractions_are_no_classes(write: Write) -> None:
    path = write("a.csv", "a,y\n1,0\n2,0.25\n")
    refused(
        f"{path}: the target 'y' is to be a class and has the fraction 0.25 in row 2; "
        "number the classes, or say that the "
        "task is regression",
        path,
        task="classification",
    )


def test_bad_headers(write: Write) -> None:
    twice = write("twice.csv", "a,a,y\n1,2,0\n")
    refused(f"{twice} has two columns called 'a'; rename or remove one", twice)
    index = write("index.csv", ",a,y\n0,1,0\n1,2,1\n")
    refused(
        f"{index}: column 1 has no name (is it a row index, or is the first line no header?); name it or remove it",
        index,
    )
    semicolons = write("semicolons.csv", "a;b;y\n1,5;2;0\n")
    refused("the target 'y' is '0' in every row of all files; a classifier needs at least two classes", semicolons)
    longer = write("longer.csv", "a,y\n1,2,0\n3,4,1\n")
    refused(
        f"{longer} has 3 values in row 1 and 2 names in its header; give every column a name, or quote the values that "
        "contain commas",
        longer,
    )
    ragged = write("ragged.csv", "a,y\n1,0\n1,2,3,4\n")
    with pytest.raises(FFGBError, match=r"ragged\.csv has 4 values in row 2 and 2 names in its header"):
        load_sites([ragged], "y")


def test_bad_arguments(write: Write) -> None:
    path = write("a.csv", TWO)
    refused("there is no task 'rank'; choose classification or regression", path, task="rank")
    refused("the share of rows held out is 1.0; give a number from 0 up to, not including, 1", path, holdout=1.0)
    refused("the seed is -1; give a whole number from 0 on", path, seed=-1)


# Points to predict at


def test_read_points(write: Write) -> None:
    path = write("new.csv", "id,b,a,y\nk1,2,1,0\nk2,4,3,\n")
    points = read_points(path, numbers("a", "b"))
    assert points.dtype == np.float32
    assert points.tolist() == [[1, 2], [3, 4]]
    index = write("index.csv", ",a,\n0,1,5\n1,2,6\n")
    assert read_points(index, numbers("a")).tolist() == [[1], [2]]


def test_read_points_of_npz(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=[[1.0, 2.0], [3.0, 4.0]])
    assert read_points(path, numbers("x1", "x0")).tolist() == [[2, 1], [4, 3]]
    with pytest.raises(FFGBError, match=r"a\.npz lacks the columns 'a', 'b'; it needs all columns"):
        read_points(path, numbers("a", "x0", "b"))


def test_read_points_refuses(write: Write) -> None:
    path = write("new.csv", "Age,b\n1,x\n")
    for columns, message in (
        (
            numbers("age", "c"),
            " lacks the columns 'age', 'c' (did you mean 'Age'?); it needs all columns that the model was trained on, "
            "if only with empty cells",
        ),
        (
            numbers("b"),
            ": column 'b' has text where numbers belong, 'x' in row 1; write numbers there, or leave it empty",
        ),
        (None, " is a table, and the model needs images; give an NPZ file with an array x"),
    ):
        with pytest.raises(FFGBError, match=f"^{re.escape(str(path) + message)}$"):
            read_points(path, columns)
    with pytest.raises(FFGBError, match="does not exist; check the path"):
        read_points(path.with_name("gone.csv"), numbers("a"))
    with pytest.raises(FFGBError, match="has a header but no rows"):
        read_points(write("empty.csv", "a\n"), numbers("a"))
