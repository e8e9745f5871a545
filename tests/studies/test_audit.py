"""The audit of private trainings: it proves no more than is claimed, and it notices a training without clips."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cryptography")

from ffgb.privacy.accountant import epsilon_of
from ffgb.studies.reproduce.privacy import CASES, least_epsilon, least_of_guesses, membership, one_run, table


def test_a_training_with_clips_passes() -> None:
    found = membership(kind="binary", rows=100, epsilon=4.0, clips=True, runs=15)
    assert found["proven"] < 4.0
    assert one_run(kind="binary", rows=100, epsilon=4.0, clips=True, canaries=20)["proven"] < 4.0


def test_a_training_without_clips_is_noticed() -> None:
    found = membership(kind="numbers", rows=60, epsilon=4.0, clips=False, runs=20)
    assert found["right"] > 0.95
    assert found["proven"] > 4.0


def test_errors_of_the_best_attack_prove_nearly_all_of_a_gaussians_epsilon() -> None:
    rng, mu = np.random.default_rng(0), 1.5
    inside, outside = (mu * rng.standard_normal(100_000) + sign * mu**2 / 2 for sign in (1, -1))
    assert 0.95 * epsilon_of(mu, 1e-5) < least_epsilon(inside, outside) < epsilon_of(mu, 1e-5)
    assert least_epsilon(outside, inside) == 0.0


def test_guesses_prove_more_the_more_of_them_are_right() -> None:
    found = [least_of_guesses(1000, 400, right) for right in (200, 260, 320, 390)]
    assert found[0] == 0.0
    assert found == sorted(found)
    # randomised response with ε = 2 is right with probability 0.88
    assert 1.5 < least_of_guesses(1000, 1000, 881) < 2.0


def test_the_table_has_a_row_for_each_case() -> None:
    some = {"right": 0.5, "proven": 0.1}
    rows = [{"case": case, "claimed": 1.0, "membership": some, "one_run": some} for case in CASES]
    text = table({"delta": 1e-5, "runs": 3, "canaries": 4, "rows": rows})
    assert all(f"| {case} | 1 | 50.0% | 0.10 | 50.0% | 0.10 |" in text for case in CASES)
