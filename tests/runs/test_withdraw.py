"""A site withdraws from kept totals: the model is that of a new fit without it; what cannot be is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from sklearn.datasets import load_diabetes

import ffgb
from ffgb import withdraw
from ffgb.errors import FFGBError
from ffgb.runs.glm import GLMResult
from tests.cli.commands import ffgb as command


def dealt(frame: pd.DataFrame, split: str, sites: int = 4) -> dict[str, pd.DataFrame]:
    """Rows dealt out evenly, sorted, or unevenly."""
    n = len(frame)
    place = np.arange(n) % sites
    if split == "sorted":
        frame, place = frame.sort_values(str(frame.columns[0]), kind="stable"), np.arange(n) * sites // n
    if split == "uneven":
        place = np.searchsorted([0.05, 0.15, 0.4], np.random.default_rng(0).random(n))
    return {f"site {k}": frame[place == k].reset_index(drop=True) for k in range(sites)}


def same(one: GLMResult, other: GLMResult) -> None:
    """Everything, to 1e-9 of its size (of errors of coefficients)."""
    assert (one.names, one.rows, one.left_out, one.sites) == (other.names, other.rows, other.left_out, other.sites)
    errors = other.standard_errors
    assert np.abs(one.coefficients - other.coefficients).max() <= 1e-9 * max(np.abs(other.coefficients).max(), 1.0)
    assert (np.abs(one.coefficients - other.coefficients) <= 1e-8 * errors).all()
    scale = np.outer(errors, errors)
    assert np.abs((one.covariance - other.covariance) / scale).max() <= 1e-8
    for name in ("dispersion", "deviance", "pearson", "loglik"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-9), name
    assert dict(one.reference) == dict(other.reference)


SETS: Mapping[str, tuple[Any, str, dict[str, Any]]] = {
    "diabetes": (lambda: load_diabetes(as_frame=True, scaled=False).frame, "target ~ age + C(sex) * bmi + bp * s5", {}),
    "anes96": (lambda: sm.datasets.anes96.load_pandas().data, "TVnews ~ age + C(PID) + income", {}),
    "longley, years": (
        lambda: pd.concat([sm.datasets.longley.load_pandas().data] * 5, ignore_index=True).assign(
            TOTEMP=lambda t: t.TOTEMP + np.random.default_rng(0).normal(0, 900, len(t))
        ),
        "TOTEMP ~ YEAR + UNEMP + ARMED",
        {},
    ),
    "fair, weights and an offset": (
        lambda: sm.datasets.fair.load_pandas().data.assign(w=lambda t: 1 + t.children, o=lambda t: t.age / 10),
        "rate_marriage ~ age + religious - 1",
        {"weights": "w", "offset": "o"},
    ),
}


@pytest.mark.parametrize("split", ["even", "sorted", "uneven"])
@pytest.mark.parametrize("name", SETS)
def test_the_model_is_that_of_a_new_fit(name: str, split: str, tmp_path: Path) -> None:
    make, formula, more = SETS[name]
    tables = dealt(make(), split)
    ffgb.glm(tables, formula, family="gaussian", keep=tmp_path / "kept", **more)
    for gone in (["site 1"], ["site 0", "site 3"]):
        found = withdraw(tmp_path / "kept", gone)
        rest = {site: table for site, table in tables.items() if site not in gone}
        same(found, ffgb.glm(rest, formula, family="gaussian", **more))
    one = withdraw(tmp_path / "kept", part=tmp_path / "kept" / "site-1.json")
    same(one, ffgb.glm({n: t for n, t in tables.items() if n != "site 1"}, formula, family="gaussian", **more))


COLUMNS = [
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal"),
    "num",
]
"""Of the files of the heart set."""


@pytest.mark.parametrize("formula", ["thalach ~ age + sex + C(cp)", "trestbps ~ age * sex + thalach"])
def test_each_hospital_may_withdraw(formula: str, tmp_path: Path) -> None:
    files = [f for d in os.environ.get("FFGB_DATA", "").split(":") for f in Path(d, "heart").glob("processed.*.data")]
    if not files:
        pytest.skip("the heart set is not here")
    tables = {file.name.split(".")[1]: pd.read_csv(file, names=COLUMNS, na_values="?") for file in sorted(files)}
    ffgb.glm(tables, formula, keep=tmp_path / "kept")
    assert len(tables) == 4
    for gone in tables:
        same(
            withdraw(tmp_path / "kept", [gone]),
            ffgb.glm({name: table for name, table in tables.items() if name != gone}, formula),
        )


def rows(n: int = 60, seed: int = 0, towns: str = "abc") -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    town = rng.choice(list(towns), n)
    x = rng.normal(size=n)
    return pd.DataFrame({"x": x, "town": town, "y": x + (town == "b") + rng.normal(size=n)})


def test_a_category_that_only_the_site_has_goes_with_it(tmp_path: Path) -> None:
    tables = {"a": rows(80, 0, "uv"), "b": rows(80, 1, "uv"), "c": rows(80, 2, "uvw")}
    ffgb.glm(tables, "y ~ x * town", keep=tmp_path / "kept")
    found = withdraw(tmp_path / "kept", ["c"])
    same(found, ffgb.glm({"a": tables["a"], "b": tables["b"]}, "y ~ x * town"))
    assert "town[T.w]" not in found.names


def test_what_a_new_fit_would_refuse_is_refused(tmp_path: Path) -> None:
    few = rows(80, 1, "uv")
    few.loc[:4, "town"] = "w"
    tables = {"a": rows(80, 0, "uv"), "b": few, "c": rows(80, 2, "uvw"), "d": rows(80, 3, "tu")}
    ffgb.glm(tables, "y ~ x + town", keep=tmp_path / "kept")
    with pytest.raises(FFGBError, match=r"only 5 rows would be left with town = w"):
        withdraw(tmp_path / "kept", ["c"])
    with pytest.raises(FFGBError, match=r"no row is left with town = t, which other categories are compared with"):
        withdraw(tmp_path / "kept", ["d"])
    tables = {"a": rows(40, 0, "u"), "b": rows(40, 1, "uv"), "c": rows(40, 2, "uv")}
    ffgb.glm(tables, "y ~ x + town", keep=tmp_path / "two")
    with pytest.raises(FFGBError, match=r"all rows that are left have town = u"):
        withdraw(tmp_path / "two", ["b", "c"])
    flags = {"a": rows(60, 0).assign(z=0.0), "b": rows(60, 1).assign(z=0.0), "c": rows(60, 2).assign(z=0.0)}
    flags["a"].loc[:3, "z"], flags["c"].loc[:20, "z"] = 1.0, 1.0
    ffgb.glm(flags, "y ~ x + z", keep=tmp_path / "flags")
    with pytest.raises(FFGBError, match="the column 'z' tells 4 rows from all others"):
        withdraw(tmp_path / "flags", ["c"])
    constant = rows(40, 0).assign(z=1.0)
    tables = {"a": constant, "b": constant, "c": rows(40, 3).assign(z=lambda t: t.x**2)}
    ffgb.glm(tables, "y ~ x + z", keep=tmp_path / "constant")
    with pytest.raises(FFGBError, match="'z'"):
        withdraw(tmp_path / "constant", ["c"])


def test_bad_folders_and_names(tmp_path: Path) -> None:
    tables = {"a": rows(40, 0), "b": rows(40, 1), "c": rows(40, 2)}
    kept = tmp_path / "kept"
    ffgb.glm(tables, "y ~ x", keep=kept)
    with pytest.raises(FFGBError, match="has files already"):
        ffgb.glm(tables, "y ~ x", keep=kept)
    with pytest.raises(FFGBError, match="no site 'd' took part; there are a, b, c"):
        withdraw(kept, ["d"])
    with pytest.raises(FFGBError, match="say who withdraws"):
        withdraw(kept)
    with pytest.raises(FFGBError, match="none would be left"):
        withdraw(kept, ["a", "b", "c"])
    with pytest.raises(FFGBError, match="not both"):
        withdraw(kept, ["a"], kept / "site-0.json")
    with pytest.raises(FFGBError, match="has not the totals of one site"):
        withdraw(kept, part=kept / "total.json")
    with pytest.raises(FFGBError, match="there is no"):
        withdraw(kept, part=kept / "site-9.json")
    with pytest.raises(FFGBError, match="has no totals of sites; ffgb glm --family gaussian --keep FOLDER keeps them"):
        withdraw(tmp_path, ["a"])
    ffgb.glm(tables, "y ~ x + town", keep=tmp_path / "other")
    with pytest.raises(FFGBError, match="is of a model with other columns"):
        withdraw(kept, part=tmp_path / "other" / "site-0.json")
    twice = json.loads((kept / "site-0.json").read_text())
    (kept / "large.json").write_text(json.dumps(twice | {"rows": 1000}))
    with pytest.raises(FFGBError, match="not of the same model"):
        withdraw(kept, part=kept / "large.json")
    cases: list[dict[str, Any]] = [{}, twice | {"products": [[1.0]]}, twice | {"rows": "many"}, twice | {"levels": 3}]
    for broken in cases:
        (kept / "site-1.json").write_text(json.dumps(broken))
        with pytest.raises(FFGBError, match="cannot be read"):
            withdraw(kept, ["a"])
    (kept / "model.json").write_text(json.dumps({"formula": "y ~ x"}))
    with pytest.raises(FFGBError, match=r"model\.json cannot be read"):
        withdraw(kept, ["a"])
    with pytest.raises(FFGBError, match="is for --family gaussian"):
        ffgb.glm(tables, "y ~ x", family="poisson", keep=tmp_path / "poisson")
    with pytest.raises(FFGBError, match="is for --errors model"):
        ffgb.glm(tables, "y ~ x", errors="hc1", keep=tmp_path / "robust")


@pytest.mark.parametrize(
    ("learner", "why"),
    [("trees", "gradients of a model in which the site took part"), ("linear", "thresholds at which columns are cut")],
)
def test_from_a_run_a_site_cannot_withdraw(learner: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"learner": learner}))
    with pytest.raises(FFGBError, match=why):
        withdraw(tmp_path, ["a"])


def test_the_commands(tmp_path: Path) -> None:
    for k, name in enumerate("abc"):
        rows(50, k).to_csv(tmp_path / f"{name}.csv", index=False)
    files = [word for name in "abc" for word in ("--data", f"{name}.csv")]
    done = command("glm", *files, "--formula", "y ~ x + town", "--keep", "kept", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = command("withdraw", "kept", "--site", "b", "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    exact = ffgb.glm([tmp_path / "a.csv", tmp_path / "c.csv"], "y ~ x + town")
    assert [c["coefficient"] for c in found["coefficients"]] == pytest.approx(exact.coefficients.tolist(), rel=1e-9)
    assert found["sites"] == ["a", "c"]
    done = command("withdraw", "kept", "--site", "b", cwd=tmp_path)
    assert done.stdout.startswith("without b\n")
    done = command("withdraw", "kept", "--site", "nobody", cwd=tmp_path)
    assert (done.returncode, "no site 'nobody' took part" in done.stderr) == (2, True)
    assert oct((tmp_path / "kept" / "site-0.json").stat().st_mode & 0o777) == "0o600"
