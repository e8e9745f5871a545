"""Recipes: objects come back as they were, and nothing but known classes is ever built."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest

from ffgb.algorithms.ffgb import FFGB
from ffgb.core.losses import CrossEntropy, Gamma, Huber, Logistic, Poisson, Quantile, Square
from ffgb.core.schedules import Constant, Power, Theorem
from ffgb.core.statistics import Moments
from ffgb.errors import FFGBError
from ffgb.features.basic import Flatten, Standardize
from ffgb.features.fourier import RandomFourier
from ffgb.learners.linear import Linear
from ffgb.learners.mlp import MLP
from ffgb.learners.nets import Net
from ffgb.learners.trees import Tree
from ffgb.protocol.describe import KINDS, build, describe, register
from ffgb.protocol.job import Job, Target

x = np.random.default_rng(0).standard_normal((20, 3)) * [1, 1, 0]
scaled = Standardize.by(Moments.of(x), Flatten(3))


@pytest.mark.parametrize(
    "thing",
    [
        FFGB(Power(2.0, 0.5, "t+1"), K=3, mu=0.1, residual=False),
        Job(FFGB(Theorem(0.1)), Linear(RandomFourier(scaled, 8, 0.5, 3), 2), Square(2), Target.unchanged(2), 7),
        Job(FFGB(Constant(1.0)), MLP(Flatten(3), 4, (5, 6)), CrossEntropy(4), None, 7),
        *(Net((3, 32, 32), 10), Tree(Flatten(3), 2, depth=3), Logistic(), Huber(2, math.inf)),
        *(Poisson(2), Gamma(), Quantile(1, 0.9)),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_what_is_described_is_built_again(thing: object) -> None:
    recipe, arrays = describe(thing)
    again = build(json.loads(json.dumps(recipe)), arrays)
    assert type(again) is type(thing)
    recipe_again, arrays_again = describe(again)
    assert recipe_again == recipe
    assert arrays_again.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(arrays_again[name], array)


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ({"kind": "Popen", "args": ["ls"]}, "'Popen', which this version"),
        ({"kind": ["list"]}, "which this version"),
        ({}, "which this version"),
        ({"kind": "Flatten"}, "has the fields"),
        ({"kind": "Quantile", "level": "0.9"}, "a level of the wrong type"),
        ({"kind": "Quantile", "level": 1.5}, "between 0 and 1"),
        ({"kind": "Flatten", "inputs": 3, "__class__": 1}, "has the fields"),
        ({"kind": "Target", "mean": {"array": "m"}, "scale": {"array": "s"}}, "'m', which is not there"),
        (
            {
                "kind": "FFGB",
                "schedule": None,
                "K": "two",
                "mu": 0.0,
                "residual": True,
                "search": False,
                "distill": False,
            },
            "wrong type",
        ),
        (
            {
                "kind": "FFGB",
                "schedule": {"kind": "Constant", "eta": 1.0},
                "K": 0,
                "mu": 0.0,
                "residual": True,
                "search": False,
                "distill": False,
            },
            "at least one local step",
        ),
    ],
)
def test_other_recipes_are_refused(recipe: object, words: str) -> None:
    with pytest.raises(FFGBError, match=words):
        build(recipe, {})


def test_a_class_of_ones_own_can_be_registered_once() -> None:
    @dataclass(frozen=True)
    class Mine:
        a: int

    try:
        assert register(Mine) is Mine
        assert build(describe(Mine(3))[0], {}) == Mine(3)
        with pytest.raises(FFGBError, match="choose another name"):
            register(type("FFGB", (), {}))
    finally:
        del KINDS["Mine"]
