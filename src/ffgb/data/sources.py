"""Data sets by name: where each comes from, whether it is here and whole, and how it is made ready.

Images are scaled by published constants, tables are left in their own units, and a set without a test part of its own
has a fifth of its rows held out by a seeded shuffle.  Files are looked for under the folders in the environment
variable `FFGB_DATA`, in a folder named like the set.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

import numpy as np

from ffgb.core.seeds import stream
from ffgb.core.types import Array
from ffgb.data import tables
from ffgb.data.dataset import CLASSIFICATION, HOLDOUT, REGRESSION, Dataset, hold_out
from ffgb.data.formats import File, damaged, parse_cifar, parse_idx, read, scaled_pixels
from ffgb.data.openml import PREFIX as OPENML
from ffgb.data.openml import load_openml
from ffgb.errors import FFGBError

VARIABLE = "FFGB_DATA"

Status: TypeAlias = Literal["ok", "missing", "corrupt"]


@final
@dataclass(frozen=True)
class Source:
    """What is known about a set without opening it."""

    name: str
    task: str
    rows: int
    columns: int
    """Features as the loaders give them (pixels of an image)."""
    classes: int
    """0 for regression."""
    origin: str
    licence: str
    load: Callable[[Source, Path | None, int], Dataset] = field(repr=False)
    files: tuple[File, ...] = ()
    sites: int = 0
    folder: str | None = None
    """Where a system package puts it: the place to look when FFGB_DATA has none."""


@final
@dataclass(frozen=True)
class Listing:
    """A row of `ffgb data list`."""

    name: str
    task: str
    rows: int
    columns: int
    classes: int
    sites: int
    origin: str
    licence: str
    present: bool


def load(name: str, *, seed: int = 0, root: Path | None = None) -> Dataset:
    """The set of that name, ready to train on.

    Its files are read from `root`/name, or if `root` is not given from the folders that FFGB_DATA lists, and checked
    against their published sums.  `openml:NAME` (or `openml:NAME@VERSION`) downloads.  The seed decides which rows are
    held out where the set has no test part of its own.
    """
    if name.startswith(OPENML):
        return load_openml(name, seed)
    source = _source(name)
    return source.load(source, root, seed)


def available(name: str, *, root: Path | None = None) -> bool:
    """Whether `load` would find all files, without a download; their content is not checked."""
    if name.startswith(OPENML):
        return False
    source = _source(name)
    return not source.files or any(_complete(source, folder) for folder in _folders(source, root))


def verify(name: str, *, root: Path | None = None) -> list[tuple[Path, Status]]:
    """Each file of a set and whether it is what was published; empty for a set that needs no files."""
    if name.startswith(OPENML):
        return []
    source = _source(name)
    if not source.files:
        return []
    folder = _folder(source, root) or Path(source.name)
    return [(folder / file.name, _status(folder / file.name, file)) for file in source.files]


def listing(*, root: Path | None = None) -> list[Listing]:
    """What there is, in the order of the registry."""
    return [
        Listing(
            s.name, s.task, s.rows, s.columns, s.classes, s.sites, s.origin, s.licence, available(s.name, root=root)
        )
        for s in SOURCES.values()
    ]


def _source(name: str) -> Source:
    if name in SOURCES:
        return SOURCES[name]
    close = difflib.get_close_matches(name.lower().replace("_", "-"), SOURCES, n=1) or difflib.get_close_matches(
        name.lower(), SOURCES, n=1
    )
    hint = f" (did you mean {close[0]}?)" if close else ""
    raise FFGBError(f"there is no data set called {name!r}{hint}; known are {', '.join(SOURCES)} and openml:NAME")


# Where files are


def _folders(source: Source, root: Path | None) -> list[Path]:
    """Places that may hold the set's files, the preferred one first."""
    if root is not None:
        return [Path(root) / source.name]
    listed = [
        Path(entry).expanduser() / source.name for entry in os.environ.get(VARIABLE, "").split(os.pathsep) if entry
    ]
    return listed + ([Path(source.folder)] if source.folder else [])


def _complete(source: Source, folder: Path) -> bool:
    return all((folder / file.name).is_file() for file in source.files)


def _folder(source: Source, root: Path | None) -> Path | None:
    """The first folder that holds all files, else the first that exists, else the first; None if none is set."""
    folders = _folders(source, root)
    candidates = [
        *(folder for folder in folders if _complete(source, folder)),
        *(folder for folder in folders if folder.is_dir()),
        *(folders if root is not None or os.environ.get(VARIABLE) else []),
    ]
    return candidates[0] if candidates else None


def _status(path: Path, file: File) -> Status:
    if not path.is_file():
        return "missing"
    try:
        read(path, file)
    except FFGBError:
        return "corrupt"
    return "ok"


def _contents(source: Source, root: Path | None) -> Callable[[str], tuple[bytes, Path]]:
    """A function from the name of a file to its checked content; all files are there when it is returned."""
    folder = _folder(source, root)
    if folder is None:
        names = ", ".join(file.name for file in source.files)
        raise FFGBError(
            f"{source.name} is read from files, and {VARIABLE} is not set; get {names} from {source.origin}, "
            f"put them into a folder FOLDER/{source.name}, and run: export {VARIABLE}=FOLDER"
        )
    missing = [file.name for file in source.files if not (folder / file.name).is_file()]
    if missing:
        raise FFGBError(
            f"{source.name} lacks {', '.join(missing)} in {folder}; get it from {source.origin} and put it there, or "
            f"set {VARIABLE} to the folder that holds {source.name}/"
        )
    files = {file.name: file for file in source.files}
    return lambda name: (read(folder / name, files[name]), folder / name)


# The sets


def _from_sklearn(source: Source, root: Path | None, seed: int) -> Dataset:
    from sklearn import datasets

    # The raw diabetes table: the scaled one was centred with all rows, the test rows among them.
    options: dict[str, Any] = {"scaled": False} if source.name == "diabetes" else {}
    bunch = getattr(datasets, f"load_{source.name}")(**options)
    x = np.asarray(bunch.data, np.float64)
    image = source.name == "digits"
    if image:
        x = x.reshape(-1, 1, 8, 8) / 16  # counts of ink from 0 to 16
    classification = source.task == CLASSIFICATION
    return _held_out(
        source,
        x.astype(np.float32),
        np.asarray(bunch.target, np.int64 if classification else np.float64),
        seed,
        classes=tuple(str(name) for name in bunch.target_names) if classification else (),
        columns=() if image else tuple(str(name) for name in bunch.feature_names),
        image=image,
    )


def _held_out(
    source: Source,
    x: Array,
    y: Array,
    seed: int,
    *,
    classes: tuple[str, ...] = (),
    columns: tuple[str, ...],
    image: bool = False,
) -> Dataset:
    train, test = hold_out(y, HOLDOUT, stream(seed, "holdout"))
    return Dataset(source.name, source.task, x[train], y[train], x[test], y[test], classes, columns, image)


def _idx(classes: tuple[str, ...]) -> Callable[[Source, Path | None, int], Dataset]:
    def load_idx(source: Source, root: Path | None, seed: int) -> Dataset:
        content = _contents(source, root)
        parts: list[Array] = []
        for part in ("train", "t10k"):
            raw, path = content(f"{part}-images-idx3-ubyte.gz")
            images = parse_idx(raw, path)
            raw, path = content(f"{part}-labels-idx1-ubyte.gz")
            labels = parse_idx(raw, path)
            if images.ndim != 3 or labels.shape != images.shape[:1] or labels.max() >= len(classes):
                raise damaged(path, f"its labels do not belong to images of shape {images.shape}")
            parts += [scaled_pixels(images[:, None]), labels.astype(np.int64)]
        x, y, x_test, y_test = parts
        return Dataset(source.name, source.task, x, y, x_test, y_test, classes, image=True)

    return load_idx


_CIFAR_TRAIN = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
_CIFAR_TEST = "test_batch.bin"


def _cifar10(source: Source, root: Path | None, seed: int) -> Dataset:
    content = _contents(source, root)
    batches = [parse_cifar(*content(name)) for name in (*_CIFAR_TRAIN, _CIFAR_TEST)]
    pixels = np.concatenate([images for images, _ in batches[:-1]])
    y = np.concatenate([labels for _, labels in batches[:-1]]).astype(np.int64)
    test_pixels, test_labels = batches[-1]
    x, x_test = scaled_pixels(pixels), scaled_pixels(test_pixels)
    return Dataset(source.name, source.task, x, y, x_test, test_labels.astype(np.int64), _CIFAR_CLASSES, image=True)


def _adult(source: Source, root: Path | None, seed: int) -> Dataset:
    content = _contents(source, root)
    x, y = tables.parse_adult(*content("adult.data"))
    x_test, y_test = tables.parse_adult(*content("adult.test"))
    return Dataset(source.name, source.task, x, y, x_test, y_test, tables.ADULT_CLASSES, tables.ADULT_COLUMNS)


_HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


def _heart(source: Source, root: Path | None, seed: int) -> Dataset:
    content = _contents(source, root)
    parts: dict[str, list[Array]] = {"x": [], "y": [], "x_test": [], "y_test": [], "site": [], "site_test": []}
    for i, hospital in enumerate(_HOSPITALS):
        x, y = tables.parse_heart(*content(f"processed.{hospital}.data"))
        # Each hospital holds out a fifth of its own patients; it needs no one else for that.
        train, test = hold_out(y, HOLDOUT, stream(seed, "holdout"))
        rows = (x[train], y[train], x[test], y[test], np.full(len(train), i), np.full(len(test), i))
        for part, values in zip(parts.values(), rows, strict=True):
            part.append(values)
    arrays = {name: np.concatenate(values) for name, values in parts.items()}
    return Dataset(
        source.name,
        source.task,
        arrays["x"],
        arrays["y"],
        arrays["x_test"],
        arrays["y_test"],
        tables.HEART_CLASSES,
        tables.HEART_COLUMNS,
        sites=_HOSPITALS,
        site=arrays["site"],
        site_test=arrays["site_test"],
    )


def _cal_housing(source: Source, root: Path | None, seed: int) -> Dataset:
    x, y = tables.parse_housing(*_contents(source, root)("cal_housing.data"))
    return _held_out(source, x, y, seed, columns=tables.HOUSING_COLUMNS)


_DIGITS = tuple("0123456789")
_FASHION = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_UCI = "CC BY 4.0"

_REGISTRY = (
    Source(
        "digits",
        CLASSIFICATION,
        rows=1797,
        columns=64,
        classes=10,
        origin="scikit-learn (UCI Optical Recognition of Handwritten Digits)",
        licence=_UCI,
        load=_from_sklearn,
    ),
    Source(
        "breast_cancer",
        CLASSIFICATION,
        rows=569,
        columns=30,
        classes=2,
        origin="scikit-learn (UCI Breast Cancer Wisconsin, Diagnostic)",
        licence=_UCI,
        load=_from_sklearn,
    ),
    Source(
        "wine",
        CLASSIFICATION,
        rows=178,
        columns=13,
        classes=3,
        origin="scikit-learn (UCI Wine)",
        licence=_UCI,
        load=_from_sklearn,
    ),
    Source(
        "diabetes",
        REGRESSION,
        rows=442,
        columns=10,
        classes=0,
        origin="scikit-learn (Efron, Hastie, Johnstone and Tibshirani, 2004)",
        licence="not stated",
        load=_from_sklearn,
    ),
    Source(
        "mnist",
        CLASSIFICATION,
        rows=70_000,
        columns=784,
        classes=10,
        origin="LeCun, Cortes and Burges, http://yann.lecun.com/exdb/mnist",
        licence="CC BY-SA 3.0",
        load=_idx(_DIGITS),
        files=(
            File(
                "train-images-idx3-ubyte.gz",
                47_040_016,
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            ),
            File(
                "train-labels-idx1-ubyte.gz",
                60_008,
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            ),
            File(
                "t10k-images-idx3-ubyte.gz",
                7_840_016,
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            ),
            File(
                "t10k-labels-idx1-ubyte.gz",
                10_008,
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
        ),
    ),
    Source(
        "fashion-mnist",
        CLASSIFICATION,
        rows=70_000,
        columns=784,
        classes=10,
        origin="Zalando Research, https://github.com/zalandoresearch/fashion-mnist (Debian: dataset-fashion-mnist)",
        licence="MIT",
        load=_idx(_FASHION),
        files=(
            File(
                "train-images-idx3-ubyte.gz",
                47_040_016,
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            ),
            File(
                "train-labels-idx1-ubyte.gz",
                60_008,
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            ),
            File(
                "t10k-images-idx3-ubyte.gz",
                7_840_016,
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            ),
            File(
                "t10k-labels-idx1-ubyte.gz",
                10_008,
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
        ),
        folder="/usr/share/datasets/fashion-mnist",
    ),
    Source(
        "cifar10",
        CLASSIFICATION,
        rows=60_000,
        columns=3_072,
        classes=10,
        origin="Krizhevsky, https://www.cs.toronto.edu/~kriz/cifar.html (binary version)",
        licence="not stated",
        load=_cifar10,
        files=(
            File("data_batch_1.bin", 30_730_000, "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
            File("data_batch_2.bin", 30_730_000, "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
            File("data_batch_3.bin", 30_730_000, "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
            File("data_batch_4.bin", 30_730_000, "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
            File("data_batch_5.bin", 30_730_000, "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
            File("test_batch.bin", 30_730_000, "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
        ),
    ),
    Source(
        "adult",
        CLASSIFICATION,
        rows=48_842,
        columns=len(tables.ADULT_COLUMNS),
        classes=2,
        origin="UCI Adult (census income), https://archive.ics.uci.edu/dataset/2/adult",
        licence=_UCI,
        load=_adult,
        files=(
            File("adult.data", 3_974_305, "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"),
            File("adult.test", 2_003_153, "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05"),
        ),
    ),
    Source(
        "heart",
        CLASSIFICATION,
        rows=920,
        columns=len(tables.HEART_COLUMNS),
        classes=2,
        origin="UCI Heart Disease (four hospitals), https://archive.ics.uci.edu/dataset/45/heart+disease",
        licence=_UCI,
        load=_heart,
        files=(
            File(
                "processed.cleveland.data", 18_461, "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8"
            ),
            File(
                "processed.hungarian.data", 10_263, "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796"
            ),
            File(
                "processed.switzerland.data", 4_109, "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314"
            ),
            File("processed.va.data", 6_737, "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f"),
        ),
        sites=len(_HOSPITALS),
    ),
    Source(
        "cal_housing",
        REGRESSION,
        rows=20_640,
        columns=len(tables.HOUSING_COLUMNS),
        classes=0,
        origin="Pace and Barry, 1997, https://www.dcc.fc.up.pt/~ltorgo/Regression/cal_housing.html (from StatLib)",
        licence="not stated",
        load=_cal_housing,
        files=(
            File("cal_housing.data", 2_071_484, "a2b44dcc7e1c9091b43c4f458b25cbd1f7e8068d08edd26bc4703108d3fa6214"),
        ),
    ),
)

SOURCES: Mapping[str, Source] = {source.name: source for source in _REGISTRY}
