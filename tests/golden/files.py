"""The files that jobs read, made of scikit-learn's own tables without any random number, so that they stay the same.

`write` fills a folder: points of each data set to predict at, sites' tables with missing values and categories, images,
two targets, an encoder, and options in TOML.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn import datasets

SITES = ("east", "north", "west")
COLOURS = ("red", "green", "blue", "grey, dark")
TABLES = ("wine", "breast_cancer", "diabetes")
SCHEMA = """target = "kind"
[columns.alcohol]
bounds = [10, 15]
[columns.malic_acid]
bounds = [0, 6]
[columns.ash]
bounds = [1, 4]
[columns.alcalinity_of_ash]
bounds = [10, 30]
[columns.magnesium]
bounds = [70, 170]
[columns.total_phenols]
bounds = [0, 4]
[columns.colour]
type = "category"
categories = ["red", "green", "blue", "grey, dark", "a colour that no one has seen"]
[columns.grade]
bounds = [0, 5]
[columns.kind]
type = "category"
categories = ["kind 0", "kind 1", "kind 2"]
"""
POINTS = 8
OF_MANY = 5
"""Points where there are ten classes."""


def write(folder: Path) -> None:
    """All of them."""
    folder.mkdir(parents=True, exist_ok=True)
    write_points(folder)
    _images(folder)
    _clinics(folder)
    _shops(folder)
    _counts(folder)
    _several(folder)
    _encoder(folder / "encoder.onnx")
    options = 'data = ["breast_cancer"]\nclients = 4\nsplit = "iid"\nlearner = "tree"\nrounds = 2\ndepth = 2\n'
    (folder / "run.toml").write_text(options)
    (folder / "clinics.toml").write_text(SCHEMA)


def write_points(folder: Path) -> None:
    """Some rows of each table."""
    for name in TABLES:
        x, _, columns = table(name)
        pd.DataFrame(x, columns=columns)[:: len(x) // POINTS][:POINTS].to_csv(folder / f"{name}.csv", index=False)


def table(name: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Points, targets and names of columns, in their own units."""
    bunch: Any = getattr(datasets, f"load_{name}")(**({"scaled": False} if name == "diabetes" else {}))
    return bunch.data, bunch.target, [str(column) for column in bunch.feature_names]


def digits() -> tuple[np.ndarray, np.ndarray]:
    bunch: Any = datasets.load_digits()
    return (bunch.data.reshape(-1, 1, 8, 8) / 16).astype(np.float32), bunch.target.astype(np.int64)


def rows() -> pd.DataFrame:
    """Wines with two columns of text; a value in eleven is missing."""
    x, y, columns = table("wine")
    frame = pd.DataFrame(x[:, :6], columns=columns[:6])
    i = np.arange(len(frame))
    # which is as the colour is, but not always
    frame["colour"] = [COLOURS[(int(c) + (k * k) % 7 // 5 + k % 13 // 12) % 4] for k, c in zip(i, y, strict=True)]
    frame["grade"] = (i * 5 + 3 * y) % 4 + 1
    for j, name in enumerate(columns[:6]):
        frame.loc[(i * 7 + j * 3) % 11 == 0, name] = np.nan
    frame.loc[i % 17 == 5, "colour"] = None
    frame["kind"] = [f"kind {c}" for c in y]
    return frame


def _images(folder: Path) -> None:
    x, y = digits()
    np.savez(folder / "digits.npz", x=x[:: len(x) // OF_MANY][:OF_MANY])
    # small photographs: the digits twice as large, in three colours
    large = (x[:240].repeat(2, axis=2).repeat(2, axis=3) * np.array([255, 128, 64]).reshape(1, 3, 1, 1)).astype(
        np.uint8
    )
    for k, name in enumerate(SITES):
        np.savez(folder / f"photos-{name}.npz", x=large[k::3], y=y[:240][k::3] % 3)
    np.savez(folder / "photos.npz", x=large[: 8 * POINTS : 8])


def _clinics(folder: Path) -> None:
    """Tables with text and missing values at three sites, of different sizes and order of columns."""
    frame = rows()
    who = np.array([0, 1, 1, 2, 2, 2])[np.arange(len(frame)) % 6]
    for k, name in enumerate(SITES):
        part = frame[who == k]
        (part[part.columns[::-1]] if k else part).to_csv(folder / f"clinic-{name}.csv", index=False)
    points = frame[::20].drop(columns="kind").copy()
    points.loc[points.index[1], "colour"] = "a colour that no one has seen"
    points.to_csv(folder / "clinics.csv", index=False)


def _shops(folder: Path) -> None:
    """A number to predict, in Parquet."""
    x, y, columns = table("diabetes")
    frame = pd.DataFrame(x, columns=columns)
    i = np.arange(len(frame))
    frame["sex"] = np.where(frame["sex"] == 1, "f", "m")
    frame.loc[i % 9 == 4, "bmi"] = np.nan
    frame["progress"] = y
    for k, name in enumerate(SITES):
        frame[i % 3 == k].to_parquet(folder / f"shop-{name}.parquet", index=False)
    frame[::60].drop(columns="progress").to_parquet(folder / "shops.parquet", index=False)


def _counts(folder: Path) -> None:
    """Digits as numbers in a table, for sites on a network."""
    x, y = digits()
    frame = pd.DataFrame((x[:600].reshape(600, 64) * 16).astype(int), columns=[f"p{i}" for i in range(64)])
    frame["digit"] = y[:600]
    for k, name in enumerate(SITES):
        frame[k::3].to_csv(folder / f"{name}.csv", index=False)
    frame[:: 600 // OF_MANY].drop(columns="digit").to_csv(folder / "sites.csv", index=False)


def _several(folder: Path) -> None:
    """Two targets."""
    x, y, _ = table("diabetes")
    for k, name in enumerate(SITES):
        np.savez(folder / f"several-{name}.npz", x=x[k::3], y=np.stack([y, x[:, 2] * x[:, 3] / 64], axis=1)[k::3])
    np.savez(folder / "several.npz", x=x[::60])


def _encoder(path: Path) -> None:
    """13 numbers to 10: tanh(xW), of weights that are whole numbers over 4096."""
    from onnx import TensorProto, helper, numpy_helper

    i, j = np.meshgrid(np.arange(13), np.arange(10), indexing="ij")
    weights = (((i * 29 + j * 17 + i * j * 5) % 31 - 15) / 4096).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["xw"]), helper.make_node("Tanh", ["xw"], ["z"])],
        "encoder",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 13])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n", 10])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
