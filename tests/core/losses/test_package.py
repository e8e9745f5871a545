"""The package finds its losses: each file is one, and a file more is all that another loss takes."""

from __future__ import annotations

import inspect
import os
import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ffgb
from ffgb.core import losses
from ffgb.core.losses import ALL_LOSSES, LOSSES, Loss
from ffgb.protocol.describe import KINDS

EXPECTILE = '''
"""Asymmetric squares, for expectiles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from ffgb.core.losses.base import Loss, as_columns, check_values
from ffgb.core.types import Array


@final
@dataclass(frozen=True)
class Expectile(Loss):
    """Squares that weigh q where f < y, and 1 − q elsewhere."""

    name = "expectile"
    outputs: int = 1
    level: float = 0.5

    def value(self, f: Array, y: Array) -> Array:
        return (0.5 * self.curvature(f, y) * (f - as_columns(y)) ** 2).sum(axis=1)

    def gradient(self, f: Array, y: Array) -> Array:
        return self.curvature(f, y) * (f - as_columns(y))

    def curvature(self, f: Array, y: Array) -> Array:
        return np.where(f < as_columns(y), self.level, 1.0 - self.level)

    bound = entry_bound = property(lambda self: math.inf)
    smoothness = property(lambda self: max(self.level, 1.0 - self.level))

    def check(self, y: Array) -> None:
        check_values(y, self.outputs)
'''

USE = """
import numpy as np
from ffgb.core.losses import LOSSES, Expectile, Square
from ffgb.core.moments import Moments
from ffgb.protocol.describe import build, describe

loss = LOSSES["expectile"].of(classes=0, outputs=1, level=0.9)
assert loss == Expectile(1, 0.9)
assert build(*describe(loss)) == loss
y = np.array([1.0, 2.0, 4.0])
mean, scale = loss.scaling(Moments.of(y))
f = np.zeros((3, 1))
assert loss.unscaled(f, mean, scale).shape == (3, 1)
assert loss.scores(f, (y - mean) / scale, mean, scale) == Square().scores(f, (y - mean) / scale, mean, scale)
print("used")
"""


def test_each_file_is_one_loss() -> None:
    files = {file.name for file in pkgutil.iter_modules(losses.__path__)} - {"base", "links"}
    assert sorted(files) == sorted(kind.__module__.rpartition(".")[2] for kind in ALL_LOSSES)
    tests = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")}
    assert files <= tests


def test_names_of_the_command_line() -> None:
    assert set(LOSSES) >= {"cross-entropy", "logistic", "square", "huber", "poisson", "gamma", "quantile"}
    assert all(LOSSES[name].name == name for name in LOSSES)
    assert {kind.__name__ for kind in ALL_LOSSES if not kind.name} == {"Soft"}


@pytest.mark.parametrize("kind", ALL_LOSSES, ids=lambda kind: kind.__name__)
def test_every_loss_is_exported_final_frozen_and_described(kind: type[Loss]) -> None:
    assert getattr(losses, kind.__name__) is kind
    assert KINDS[kind.__name__] is kind
    assert not inspect.isabstract(kind)
    assert vars(kind)["__final__"] is True
    assert vars(kind)["__dataclass_params__"].frozen
    assert kind.__doc__


def test_two_losses_of_one_name_are_refused() -> None:
    class Other(losses.Square):  # type: ignore[misc]
        pass

    with pytest.raises(TypeError, match="Other and Square have the same name 'square'"):
        losses._by_name((losses.Square, Other))


def test_a_file_more_is_all_that_another_loss_takes(tmp_path: Path) -> None:
    package = tmp_path / "ffgb"
    shutil.copytree(Path(ffgb.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "core" / "losses" / "expectile.py").write_text(EXPECTILE)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", USE], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "used\n", done.stderr
