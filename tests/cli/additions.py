"""A loss, a map, a learner and two algorithms, as someone would write them in one file each."""

from __future__ import annotations

LOSS = '''
"""log cosh(f − y): a square near the target, and a straight line far from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from ffgb.core.losses.base import Loss, as_columns, check_values


@final
@dataclass(frozen=True)
class LogCosh(Loss):
    """s² log cosh((f − y)/s)."""

    name = "log-cosh"
    outputs: int = 1
    softness: float = 1.0
    least = 0.0

    def value(self, f, y):
        error = np.abs(f - as_columns(y)) / self.softness
        return (self.softness**2 * (np.logaddexp(error, -error) - np.log(2.0))).sum(axis=1)

    def gradient(self, f, y):
        return self.softness * np.tanh((f - as_columns(y)) / self.softness)

    def curvature(self, f, y):
        return 1.0 - np.tanh((f - as_columns(y)) / self.softness) ** 2

    entry_bound = property(lambda self: self.softness)
    bound = property(lambda self: self.softness * np.sqrt(self.outputs))
    smoothness = property(lambda self: 1.0)

    def check(self, y):
        check_values(y, self.outputs)
'''
LOSS_SETTING = """

from ffgb.settings import METHOD, Setting

SETTINGS = (Setting("softness", "number", "Where log-cosh turns straight.", METHOD, 1.0, above=0.0),)
"""

MAP = '''
"""Squares of the standardised inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from ffgb.core.maps import After, FeatureMap


@final
@dataclass(frozen=True)
class Squares(After):
    """Each input, and its square."""

    inner: FeatureMap

    @property
    def dimension(self):
        return 2 * self.inner.dimension

    def after(self, z):
        return np.concatenate([z, z * z], axis=1).astype(np.float32)
'''
MAP_NAME = """

from ffgb.features.named import NamedMap

MAPS = (NamedMap("squares", lambda making, features: Squares(making.scaled), smooth=True),)
"""

LEARNER = '''
"""Steps along one column."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from ffgb.core.functions import OpenFamily
from ffgb.core.maps import FeatureMap
from ffgb.features.basic import Flatten


@final
@dataclass(frozen=True)
class Stump(OpenFamily):
    """Low up to a threshold of one column, and high above it."""

    name: ClassVar[str] = "stump"
    defaults: ClassVar[dict] = {"rounds": 4, "local_steps": 2, "schedule": "constant"}
    features: FeatureMap
    outputs: int

    @classmethod
    def configured(cls, config, inputs):
        return cls(Flatten(math.prod(inputs.shape)), inputs.outputs)

    @property
    def spec(self):
        return {"column": ((1,), "int32"), "threshold": ((1,), "float64"), "values": ((2, self.outputs), "float64")}

    def members(self, stack, z):
        above = z[:, stack["column"][:, 0]].T > stack["threshold"]
        return np.take_along_axis(stack["values"], above[:, :, None].astype(int), axis=1)

    def least_squares(self, z):
        cuts = np.median(z, axis=0)

        def fit(phi, rng):
            best = (np.inf, 0, np.zeros((2, self.outputs)))
            for column, cut in enumerate(cuts):
                above = z[:, column] > cut
                sides = [phi[side].mean(axis=0) if side.any() else 0.0 * phi[0] for side in (~above, above)]
                error = float(np.square(np.stack(sides)[above.astype(int)] - phi).sum())
                best = min(best, (error, column, np.stack(sides)), key=lambda b: b[0])
            _, column, values = best
            return {"column": np.array([column], np.int32), "threshold": cuts[[column]].astype(float), "values": values}

        return fit
'''

TOTALS = '''
"""A share of each step, in the geometry of all clients' points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from ffgb.algorithms import Step, Totals
from ffgb.core.gradients import GradientOf


@final
@dataclass(frozen=True)
class Damped(Totals):
    """f − s·h, h the oracle's answer to the gradient of all rows."""

    name: ClassVar[str] = "damped"
    damping: float = 0.9
    mu: ClassVar[float] = 0.0

    @classmethod
    def configured(cls, config):
        return cls(getattr(config, "damping", 0.9))

    def eta(self, k, t):
        return self.damping

    def round(self, t, f, geometry, loss, ask, *, stop=False):
        phi = ask(GradientOf(f.family, loss, 1.01 * geometry.scale, ask.gradient_bound(loss.bound)))
        h = f.family.member({"weight": -self.damping / loss.smoothness * geometry.solve(phi.covector)})
        return Step(h, 1.0, 1.0, False, {"gamma": None})
'''
TOTALS_SETTING = """

from ffgb.settings import METHOD, Setting

SETTINGS = (Setting("damping", "number", "The share of a step (damped).", METHOD, 0.9, above=0.0, users=("damped",)),)
"""

PARAMETERS = '''
"""Signs of gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from ffgb.algorithms.parametric import MODEL, Parametric


@final
@dataclass(frozen=True)
class SignAverage(Parametric):
    """K steps of size η·s along the signs of a client's gradients."""

    name: ClassVar[str] = "sign-average"
    phases: ClassVar[int] = 2
    shortness: float = 0.1

    def local(self, t, state, here):
        y = state[MODEL].copy()
        for rows in here.batches(self.steps(here)):
            y -= np.float32(self.step * self.shortness) * np.sign(here.gradient(y, rows))
        return {MODEL: y}
'''
PARAMETERS_SETTING = """

from ffgb.settings import METHOD, Setting

SETTINGS = (Setting("shortness", "number", "Of steps along signs.", METHOD, 0.1, above=0.0, users=("sign-average",)),)
"""
