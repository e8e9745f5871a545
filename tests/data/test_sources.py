from __future__ import annotations

import gzip
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pandas as pd
import pytest
import sklearn.datasets
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import Bunch

from ffgb.data import SOURCES, Dataset, available, listing, load, partition, verify
from ffgb.data.sources import VARIABLE
from ffgb.errors import FFGBError

Need = Callable[[str], str]
IDX = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def as_registered(data: Dataset) -> None:
    """What the registry says about a set is what loading it gives."""
    source = SOURCES[data.name]
    assert data.task == source.task
    assert len(data.x) + len(data.x_test) == source.rows
    assert data.x[0].size == source.columns
    assert len(data.classes) == source.classes
    assert len(data.sites) == source.sites
    for x, y in ((data.x, data.y), (data.x_test, data.y_test)):
        assert x.dtype == np.float32
        assert x.flags.c_contiguous
        assert np.isfinite(x).all()
        assert y.dtype == (np.int64 if data.classes else np.float64)
        assert not data.classes or np.array_equal(np.unique(y), np.arange(len(data.classes)))


@pytest.mark.parametrize("name", ["digits", "breast_cancer", "wine", "diabetes"])
def test_scikit_learn_sets(name: str) -> None:
    data = load(name)
    as_registered(data)
    assert data.image == (name == "digits")
    assert data.image or len(data.columns) == data.x.shape[1]
    assert abs(len(data.x_test) - 0.2 * SOURCES[name].rows) <= 1
    assert available(name)
    assert verify(name) == []


def test_the_held_out_rows_follow_the_seed() -> None:
    one, same, other = (load("wine", seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.x_test, same.x_test)
    np.testing.assert_array_equal(one.x, same.x)
    assert not np.array_equal(one.x_test, other.x_test)
    # No row is in both parts.
    assert not {row.tobytes() for row in one.x} & {row.tobytes() for row in one.x_test}


def test_digits_are_pictures_in_0_1() -> None:
    data = load("digits")
    assert data.image
    assert data.x.shape[1:] == (1, 8, 8)
    assert (data.x.min(), data.x.max()) == (0, 1)
    counts = np.bincount(data.y_test)
    np.testing.assert_allclose(counts, 0.2 * (np.bincount(data.y) + counts), atol=1)
    assert data.classes == tuple("0123456789")


def test_diabetes_is_left_in_its_units() -> None:
    data = load("diabetes")
    assert 19 <= data.x[:, 0].min() <= data.x[:, 0].max() <= 79  # ages in years, not centred with the test rows
    assert data.outputs == 1


def test_mnist(published: Need) -> None:
    data = load(published("mnist"))
    as_registered(data)
    assert data.x.shape == (60_000, 1, 28, 28)
    assert data.image
    assert np.bincount(data.y).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(data.y_test).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    # The published mean and deviation of the training pixels.
    assert data.x.mean(dtype=np.float64) == pytest.approx(0.1307, abs=1e-4)
    assert data.x.std(dtype=np.float64) == pytest.approx(0.3081, abs=1e-4)
    assert (data.x.min(), data.x.max()) == (0.0, 1.0)
    parts = partition(data, "similarity", 56, similarity=0.0)
    assert sum(map(len, parts)) == 60_000
    assert max(len(np.unique(data.y[part])) for part in parts) <= 2


def test_fashion_mnist(published: Need) -> None:
    data = load(published("fashion-mnist"))
    as_registered(data)
    assert data.x.shape == (60_000, 1, 28, 28)
    assert set(np.bincount(data.y)) == {6000}
    assert data.x.mean(dtype=np.float64) == pytest.approx(0.2860, abs=1e-4)
    assert data.x.std(dtype=np.float64) == pytest.approx(0.3530, abs=1e-4)
    assert data.classes[9] == "Ankle boot"


def test_cifar10(published: Need) -> None:
    data = load(published("cifar10"))
    as_registered(data)
    assert data.x.shape == (50_000, 3, 32, 32)
    assert set(np.bincount(data.y)) == {5000}
    assert set(np.bincount(data.y_test)) == {1000}
    assert (data.x.min(), data.x.max()) == (-1, 1)
    assert data.classes[data.y[0]] == "frog"


def test_adult(published: Need) -> None:
    data = load(published("adult"))
    as_registered(data)
    assert data.x.shape == (32_561, 105)
    assert np.bincount(data.y).tolist() == [24_720, 7_841]
    assert np.bincount(data.y_test).tolist() == [12_435, 3_846]
    first = dict(zip(data.columns, data.x[0].tolist(), strict=True))
    assert (first["age"], first["education-num"], first["capital-gain"]) == (39, 13, 2174)
    assert [name for name, value in first.items() if "=" in name and value] == [
        "workclass=State-gov",
        "education=Bachelors",
        "marital-status=Never-married",
        "occupation=Adm-clerical",
        "relationship=Not-in-family",
        "race=White",
        "sex=Male",
        "native-country=United-States",
    ]
    work = data.x[:, [name.startswith("workclass=") for name in data.columns]].sum(axis=1)
    assert int((work == 0).sum()) == 1_836  # "?" in adult.data
    assert set(work.tolist()) == {0.0, 1.0}


def test_heart(published: Need) -> None:
    data = load(published("heart"))
    as_registered(data)
    assert data.sites == ("cleveland", "hungarian", "switzerland", "va")
    assert data.site is not None
    assert data.site_test is not None
    total = np.bincount(data.site) + np.bincount(data.site_test)
    assert total.tolist() == [303, 294, 123, 200]
    np.testing.assert_allclose(np.bincount(data.site_test) / total, 0.2, atol=0.01)
    # UCI's class counts of each hospital, num = 0 and num > 0.
    for i, absent in enumerate((164, 188, 8, 51)):
        assert (data.y[data.site == i] == 0).sum() + (data.y_test[data.site_test == i] == 0).sum() == absent
        assert {0, 1} == set(data.y_test[data.site_test == i])
    column = {name: data.x[:, j] for j, name in enumerate(data.columns)}
    assert column["chol missing"][data.site == 2].all()  # Switzerland recorded none
    assert set(column["chol"][data.site == 2]) == {200.0}
    assert column["ca missing"][data.site == 1].mean() > 0.9
    assert not column["chol missing"][data.site == 0].any()
    assert column["chol"].min() > 50
    parts = partition(data, "natural")
    assert [len(part) for part in parts] == np.bincount(data.site).tolist()


def test_heart_can_be_learnt_from(published: Need) -> None:
    data = load(published("heart"))
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(data.x, data.y)
    assert model.score(data.x_test, data.y_test) > 0.75


def test_cal_housing(published: Need) -> None:
    data = load(published("cal_housing"))
    as_registered(data)
    assert data.x.shape == (16_512, 8)
    assert data.y.max() == pytest.approx(5.00001)
    everything = np.concatenate([data.x, data.x_test])
    block = everything[(everything[:, 0] == np.float32(8.3252)) & (everything[:, 1] == 41)]
    # The first row of scikit-learn's own California housing.
    np.testing.assert_allclose(
        block[0], [8.3252, 41, 6.98412698, 1.02380952, 322, 2.55555556, 37.88, -122.23], rtol=1e-6
    )


@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if source.files])
def test_published_files_are_whole(published: Need, name: str) -> None:
    checked = verify(published(name))
    assert [path.name for path, _ in checked] == [file.name for file in SOURCES[name].files]
    assert {status for _, status in checked} == {"ok"}


# What can go wrong


def test_unknown_names() -> None:
    known = ", ".join(SOURCES)
    with pytest.raises(
        FFGBError, match=re.escape(f"there is no data set called 'minst' (did you mean mnist?); known are {known} and")
    ):
        load("minst")
    with pytest.raises(FFGBError, match=r"'Fashion_MNIST' \(did you mean fashion-mnist\?\)"):
        load("Fashion_MNIST")
    with pytest.raises(FFGBError, match=r"'breast-cancer' \(did you mean breast_cancer\?\)"):
        load("breast-cancer")
    with pytest.raises(FFGBError, match="there is no data set called 'qqqq'; known are"):
        load("qqqq")
    for function in (available, verify):
        with pytest.raises(FFGBError, match="there is no data set called"):
            function("qqqq")


def test_the_variable_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    message = (
        "adult is read from files, and FFGB_DATA is not set; get adult.data, adult.test from UCI Adult (census "
        "income), https://archive.ics.uci.edu/dataset/2/adult, put them into a folder FOLDER/adult, and run: "
        "export FFGB_DATA=FOLDER"
    )
    with pytest.raises(FFGBError, match=f"^{re.escape(message)}$"):
        load("adult")
    assert not available("adult")
    assert verify("adult") == [(Path("adult/adult.data"), "missing"), (Path("adult/adult.test"), "missing")]


def test_a_file_is_missing(tmp_path: Path) -> None:
    (tmp_path / "adult").mkdir()
    (tmp_path / "adult" / "adult.data").write_text("39, State-gov")
    with pytest.raises(
        FFGBError, match=re.escape(f"adult lacks adult.test in {tmp_path / 'adult'}; get it from UCI Adult")
    ):
        load("adult", root=tmp_path)
    assert not available("adult", root=tmp_path)
    assert [status for _, status in verify("adult", root=tmp_path)] == ["corrupt", "missing"]
    with pytest.raises(FFGBError, match=r"heart lacks processed\.cleveland\.data, processed\.hungarian\.data"):
        load("heart", root=tmp_path)


def test_several_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, published: Need) -> None:
    """FFGB_DATA may list folders like PATH; the first that has all files is read."""
    here = verify(published("heart"))[0][0].parents[1]
    (tmp_path / "heart").mkdir()
    monkeypatch.setenv(VARIABLE, f"{tmp_path}:{here}")
    assert available("heart")
    assert len(load("heart").x) > 0
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert not available("heart")


def mnist(root: Path, **contents: bytes) -> Path:
    """A folder with MNIST's four files; their content is given, or nothing."""
    (root / "mnist").mkdir()
    for name in IDX:
        (root / "mnist" / name).write_bytes(contents.get(name.split("-")[1], b""))
    return root


def test_a_truncated_gzip(tmp_path: Path) -> None:
    packed = gzip.compress(np.random.default_rng(0).bytes(10_000))
    root = mnist(tmp_path, images=packed[:5000])
    path = root / "mnist" / IDX[0]
    with pytest.raises(
        FFGBError, match=rf"{re.escape(str(path))} is damaged \(not a whole gzip file: .*fetch it again$"
    ):
        load("mnist", root=root)
    assert {status for _, status in verify("mnist", root=root)} == {"corrupt"}


def test_a_header_that_promises_more_than_there_is(tmp_path: Path) -> None:
    content = b"\0\0\x08\x03" + (60_000).to_bytes(4, "big") + (28).to_bytes(4, "big") * 2 + bytes(784)
    root = mnist(tmp_path, images=gzip.compress(content))
    with pytest.raises(
        FFGBError, match=r"800 bytes of content where 47,040,016 are expected\); delete it and fetch it"
    ):
        load("mnist", root=root)


def test_a_wrong_magic_number(tmp_path: Path) -> None:
    root = mnist(tmp_path, images=gzip.compress(b"\0\0\x0d\x03" + bytes(47_040_012), 1))
    with pytest.raises(
        FFGBError, match=r"train-images.*is damaged \(its sha256 sum differs.*delete it and fetch it again"
    ):
        load("mnist", root=root)


def test_a_flipped_byte(tmp_path: Path, published: Need) -> None:
    for path, _ in verify(published("heart")):
        (tmp_path / "heart").mkdir(exist_ok=True)
        shutil.copyfile(path, tmp_path / "heart" / path.name)
    load("heart", root=tmp_path)
    bad = tmp_path / "heart" / "processed.va.data"
    content = bytearray(bad.read_bytes())
    content[100] ^= 1
    bad.write_bytes(content)
    with pytest.raises(
        FFGBError, match=r"processed\.va\.data is damaged \(its sha256 sum differs from the published one"
    ):
        load("heart", root=tmp_path)
    assert [status for _, status in verify("heart", root=tmp_path)] == ["ok", "ok", "ok", "corrupt"]


def test_listing(tmp_path: Path) -> None:
    rows = listing(root=tmp_path)
    assert [row.name for row in rows] == list(SOURCES)
    assert {row.name for row in rows if row.present} == {"digits", "breast_cancer", "wine", "diabetes"}
    assert all(row.origin and row.licence for row in rows)


# OpenML, without a network


def frame() -> tuple[pd.DataFrame, pd.Series]:
    rng = np.random.default_rng(0)
    data = pd.DataFrame(
        {
            "size": rng.normal(size=40),
            "count": pd.array([None, *range(39)], dtype="Int64"),
            "colour": pd.Categorical(["red", "blue", None, "red"] * 10, categories=["blue", "green", "red"]),
            "note": ["free text"] * 40,
        }
    )
    return data, pd.Series(pd.Categorical(["yes", "no", "yes", None] * 10))


def test_openml_table(monkeypatch: pytest.MonkeyPatch) -> None:
    data, target = frame()
    asked: dict[str, object] = {}

    def fetch(**options: object) -> Bunch:
        asked.update(options)
        return Bunch(data=data, target=target)

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
    loaded = load("openml:toy@3")
    assert (asked["name"], asked["version"]) == ("toy", 3)
    assert loaded.columns == ("size", "count", "count missing", "colour=blue", "colour=green", "colour=red")
    assert loaded.classes == ("no", "yes")
    assert len(loaded.x) + len(loaded.x_test) == 30  # ten rows have no target
    x = np.concatenate([loaded.x, loaded.x_test])
    assert x[:, 2].sum() == 1
    assert (x[:, 3:].sum(axis=1) == 0).sum() == 10
    assert np.isfinite(x).all()
    load("openml:61")
    assert asked["data_id"] == 61


def test_openml_regression_and_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    data, _ = frame()
    answer = Bunch(data=data, target=pd.Series(np.linspace(0, 1, 40)))
    monkeypatch.setattr(sklearn.datasets, "fetch_openml", lambda **_: answer)
    assert load("openml:toy").task == "regression"
    answer.target = None
    with pytest.raises(FFGBError, match="openml:toy has no single target column; save the set as a CSV file"):
        load("openml:toy")
    answer.target = pd.Series(["only"] * 40)
    with pytest.raises(FFGBError, match="openml:toy has only one class, only; choose another set"):
        load("openml:toy")
    answer.data, answer.target = data[["note"]], pd.Series(np.arange(40) % 2)
    with pytest.raises(FFGBError, match="openml:toy has no rows with a target and numeric or categorical columns"):
        load("openml:toy")
    for bad in ("openml:", "openml:toy@new"):
        with pytest.raises(FFGBError, match="names no OpenML set; write openml:NAME, openml:NAME@VERSION or openml:ID"):
            load(bad)


@pytest.mark.parametrize("error", [URLError("no route"), TimeoutError("timed out"), socket.gaierror(-2, "unknown")])
def test_openml_without_a_network(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fetch(**_: object) -> Bunch:
        raise error

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
    with pytest.raises(FFGBError, match=r"openml:toy could not be downloaded \(.*\); check the network connection"):
        load("openml:toy")


def test_openml_without_such_a_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(**_: object) -> Bunch:
        raise ValueError("Dataset toy with version 1 not found.")

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
    with pytest.raises(FFGBError, match=r"OpenML has no table 'toy' that can be read \(Dataset toy with"):
        load("openml:toy")
