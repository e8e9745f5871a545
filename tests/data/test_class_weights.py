"""Rows of a class weigh what the user says, in training alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.utils.class_weight import compute_class_weight

from ffgb import Config, FFGBClassifier, FFGBError, FFGBRegressor, train
from ffgb.data.class_weights import weights_of
from tests.cli.commands import ffgb

NAMES = ("a", "b", "c")
Y = np.array([0, 0, 0, 1, 2, 2])


def test_weights_are_those_of_scikit_learn() -> None:
    theirs = compute_class_weight("balanced", classes=np.arange(3), y=Y)
    np.testing.assert_allclose(weights_of("balanced", NAMES, Y), theirs)
    assert weights_of("b=2.5, a = 1e-3", NAMES, Y).tolist() == [0.001, 2.5, 1.0]
    assert weights_of("balanced", NAMES, Y[Y != 1]).tolist()[::2] == [5 / 6, 1.25]  # a class that no one has here


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("d=1", r"names the class 'd'; the classes are 'a', 'b', 'c'"),
        ("a=0", "is balanced, or classes with positive weights such as sick=3,well=1, not 'a=0'"),
        ("a=nan", "not 'a=nan'"),
        ("a", "not 'a'"),
        ("=3", "not '=3'"),
    ],
)
def test_other_weights_are_refused(wrong: str, words: str) -> None:
    with pytest.raises(FFGBError, match=words):
        weights_of(wrong, NAMES, Y)


def test_an_estimator_with_class_weights_is_one_with_these_sample_weights() -> None:
    x, y = load_wine(return_X_y=True)
    named = np.array(["low", "mid", "top"])[y]
    weights = np.array([1.0, 2.5, 0.5])[y]
    by_rows = FFGBClassifier(rounds=2).fit(x, named, clients=y, sample_weight=weights).predict_proba(x)
    for given in ({"mid": 2.5, "top": 0.5}, "mid=2.5,top=0.5"):
        by_class = FFGBClassifier(rounds=2, class_weight=given).fit(x, named, clients=y).predict_proba(x)
        np.testing.assert_array_equal(by_class, by_rows)
    numbered = FFGBClassifier(rounds=2, class_weight={1: 2.5, 2: 0.5}).fit(x, y, clients=y).predict_proba(x)
    np.testing.assert_array_equal(numbered, by_rows)
    plain = FFGBClassifier(rounds=2).fit(x, y, clients=y).predict_proba(x)
    assert not np.array_equal(plain, by_rows)
    with pytest.raises(ValueError, match="class_weight is for classes"):
        FFGBRegressor(class_weight="balanced").fit(x, y.astype(float))
    with pytest.raises(ValueError, match="cannot name the class 'a,b'"):
        FFGBClassifier(class_weight={"a,b": 1.0}).fit(x, named)


def test_as_a_setting_it_changes_training_and_not_how_rows_are_scored(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal(400)
    sick = np.where(a + rng.standard_normal(400) > 1.8, "sick", "well")
    for name, rows in (("north", slice(None, 200)), ("south", slice(200, None))):
        lines = [f"{v:.4f},{s}" for v, s in zip(a[rows], sick[rows], strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,outcome", *lines, ""]))
    files = tuple(str(tmp_path / f"{name}.csv") for name in ("north", "south"))

    def found(weight: str | None) -> tuple[int, float]:
        config = Config(data=files, target="outcome", learner="linear", class_weight=weight)
        result = train(config, workers=0)
        called = result.model.predict(a[:, None].astype(np.float32)) == "sick"
        return int(called.sum()), result.summary["test_base_rate"]

    (plain, rate), (balanced, same) = found(None), found("balanced")
    assert balanced > 2 * plain
    assert same == rate
    (tmp_path / "run.toml").write_text('class_weight = "sick=4"\ntarget = "outcome"\nlearner = "linear"\n')
    done = ffgb("train", "--config", "run.toml", "--data", files[0], "--data", files[1], "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["test_accuracy"] > 0.5
    wrong = ffgb("train", "--data", files[0], "--target", "outcome", "--class-weight", "ill=4", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "--class-weight names the class 'ill'; the classes are 'sick', 'well'" in " ".join(wrong.stderr.split())
