"""`ffgb glm`, `ffgb cox` and `ffgb survival` on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf

from tests.cli.commands import ffgb


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Three sites' files."""
    rng = np.random.default_rng(0)
    words = []
    for name in ("north", "south", "west"):
        frame = pd.DataFrame({"age": rng.normal(60, 10, 80).round(1), "sex": rng.choice(["F", "M"], 80)})
        frame["events"] = rng.poisson(np.exp(0.02 * (frame.age - 60) + 0.5 * (frame.sex == "M")))
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
        words += ["--data", f"{name}.csv"]
    return words


def test_a_table_in_the_terminal(files: list[str], tmp_path: Path) -> None:
    done = ffgb("glm", *files, "--formula", "events ~ age * sex", "--family", "poisson", cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["events ~ age * sex", "poisson, log link; 240 rows at 3 sites"]
    assert [line.split()[0] for line in lines[3:7]] == ["Intercept", "age", "sex[T.M]", "age:sex[T.M]"]
    assert "reference: sex = F" in lines
    assert max(map(len, lines)) <= 80


def test_json_is_what_statsmodels_finds(files: list[str], tmp_path: Path) -> None:
    words = ["--target", "events", "--columns", "age,sex", "--family", "poisson", "--errors", "hc0", "--secure", "on"]
    found = json.loads(ffgb("glm", *files, *words, "--reference", "sex=M", "--json", cwd=tmp_path).stdout)
    frame = pd.concat([pd.read_csv(file) for file in sorted(tmp_path.glob("*.csv"))])
    family = sm.families.Poisson()
    expected = smf.glm("events ~ age + C(sex, Treatment('M'))", frame, family=family).fit(cov_type="HC0", tol=1e-13)
    columns = [[row[word] for row in found["coefficients"]] for word in ("coefficient", "standard_error", "p_value")]
    order = [expected.params.index.get_loc(k) for k in ("Intercept", "age", "C(sex, Treatment('M'))[T.F]")]
    for ours, theirs in zip(columns, (expected.params, expected.bse, expected.pvalues), strict=True):
        np.testing.assert_allclose(ours, theirs.to_numpy()[order], rtol=1e-6, atol=1e-12)
    assert found["reference"] == {"sex": "M"}
    assert found["secure"]


def test_hazard_ratios_in_the_terminal(files: list[str], tmp_path: Path) -> None:
    for file in tmp_path.glob("*.csv"):
        frame = pd.read_csv(file)
        rng = np.random.default_rng(len(file.name))
        frame["days"], frame["died"] = rng.exponential(100, len(frame)).round() + 1, (rng.random(len(frame)) < 0.7) * 1
        frame.to_csv(file, index=False)
    words = ["--formula", "age + sex", "--time", "days", "--event", "died", "--errors", "robust"]
    lines = ffgb("cox", *files, *words, cwd=tmp_path).stdout.splitlines()
    assert lines[1].startswith("Cox model, a baseline a site, efron ties; 240 rows")
    assert [line.split()[0] for line in lines[3:5]] == ["age", "sex[T.M]"]
    assert any(line.startswith("by site: north 0.") and "west 0." in line for line in lines)
    assert max(map(len, lines)) <= 80
    found = json.loads(ffgb("cox", *files, *words, "--secure", "on", "--json", cwd=tmp_path).stdout)
    assert f"{found['coefficients'][0]['coefficient']:.5g}" in lines[3]
    assert found["c_index_by_site"] == {}
    words = ["--time", "days", "--event", "died", "--by", "sex"]
    lines = ffgb("survival", *files, *words, "--times", "50,100,200", "--least", "1", cwd=tmp_path).stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:7]] == [[g, t] for g in "FM" for t in ("50", "100", "200")]
    assert lines[-1].startswith("log-rank test: chi2")
    found = json.loads(ffgb("survival", *files, *words, "--json", cwd=tmp_path).stdout)
    assert [group["group"] for group in found["groups"]] == ["F", "M"]


def test_mistakes_are_said(files: list[str], refused: Callable[..., str]) -> None:
    assert "did you mean 'events'" in refused("glm", *files, "--formula", "event ~ age")
    assert "give --formula" in refused("glm", *files)
    assert "leave --target" in refused("glm", *files, "--formula", "events ~ age", "--target", "events")
    assert "for example sex=F" in refused("glm", *files, "--formula", "events ~ sex", "--reference", "sex")
    assert "on or off" in refused("glm", *files, "--formula", "events ~ sex", "--secure", "maybe")
    given = ("--time", "age", "--event", "sex", "--columns", "events")
    assert "'sex' is a column of text" in refused("cox", *files, *given)
    assert "efron or breslow" in refused("cox", *files, *given, "--ties", "none")
    assert "not a list of numbers" in refused("survival", *files, *given[:4], "--times", "a,b")
    assert "does not exist" in refused("glm", "--data", "east.csv", "--formula", "events ~ sex")


def test_a_model_without_each_site(files: list[str], tmp_path: Path) -> None:
    """As if a site had never taken part: the model of the pooled rows of the others."""
    words = ["--formula", "events ~ age + sex", "--family", "poisson", "--leave-out"]
    found = json.loads(ffgb("glm", *files, *words, "--json", cwd=tmp_path).stdout)["without"]
    tables = {file.stem: pd.read_csv(file) for file in tmp_path.glob("*.csv")}
    assert set(found) == set(tables)
    for name, without in found.items():
        frame = pd.concat([table for other, table in tables.items() if other != name])
        expected = smf.glm("events ~ age + sex", frame, family=sm.families.Poisson()).fit(tol=1e-13)
        ours = {row["name"]: row["coefficient"] for row in without["coefficients"]}
        np.testing.assert_allclose(ours["age"], expected.params["age"], rtol=1e-6)
        assert name not in without["sites"]
    done = ffgb("glm", *files, *words, cwd=tmp_path).stdout
    assert "coefficients (standard errors) without" in done
    one = ffgb("glm", *files[:2], *words, cwd=tmp_path)
    assert one.returncode == 2
    assert "one site alone cannot be left out" in one.stderr
