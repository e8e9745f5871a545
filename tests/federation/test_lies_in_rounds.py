"""A lie in a round is named, and its client left out of that round; and lies about patches."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tests.federation.lies import (
    HUGE,
    ROUND_LIES,
    Array,
    asked_about,
    honest,
    lying,
    noise,
    nothing_is_left,
    tensors,
    times,
    trained,
    warnings,
)


@pytest.mark.parametrize("lie", ROUND_LIES)
def test_a_lie_in_a_round_is_named_and_left_out_of_it(lie: str, caplog: pytest.LogCaptureFixture) -> None:
    kind, change, words = ROUND_LIES[lie]
    state, lines = trained(lying(kind, change), "breast_cancer", 10)
    said = warnings(caplog)
    assert said
    for text in said:
        assert text.startswith("client 0 is left out of this round: it ")
        assert re.search(words, text)
    nothing_is_left(state, lines, "breast_cancer", 10, kind)
    absences = [{name: line[name] for name in line if name.startswith(("absent", "setup"))} for line in lines]
    if kind == "report":  # a client that does not say that it has f^t is not asked to go on from there
        assert absences == [{}, *[{"absent": ["0"]}] * (len(lines) - 1)]
    else:
        assert absences == [{"absent": ["0"]}] * len(lines)


@pytest.mark.parametrize(
    ("kind", "names", "change", "words"),
    [
        ("PatchMoments", ("mean", "products"), times(8.0), "larger variance than patches of any image"),
        ("PatchMoments", ("products",), times(8.0), "larger variance than patches of any image"),
        ("PatchMoments", ("products",), times(-1.0), "the moments of any patches"),
        ("NearestSums", ("sums",), noise, "longer than those of"),
        ("NearestSums", ("sums",), times(-1.0), "point away from their centres"),
    ],
    ids=["patch moments", "products alone", "negative", "nearest sums", "of other signs"],
)
def test_a_lie_about_patches(
    kind: str,
    names: Sequence[str],
    change: Callable[[Array], Array],
    words: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    state, lines = trained(asked_about(kind, tensors(**dict.fromkeys(names, change))), "digits", 20)
    (said,) = warnings(caplog)
    assert said.startswith("client 0 is left out of the run: ")
    assert words in said
    nothing_is_left(state, lines, "digits", 20, kind)


def test_a_square_that_no_loss_bounds_is_compared_with_the_others(caplog: pytest.LogCaptureFixture) -> None:
    _, plain = trained(honest, "diabetes", 10)
    assert warnings(caplog) == []
    _, lines = trained(asked_about("GradientOf", tensors(square=np.array([HUGE]))), "diabetes", 10)
    words = r"client 0 is left out of this round: it sent a square of [\d.]+e\+10, absurdly"
    assert all(re.match(words, said) for said in warnings(caplog))
    assert lines[0]["absent"] == ["0"]
    assert lines[-1]["test_rmse"] < 1.05 * plain[-1]["test_rmse"]


def test_a_large_mean_square_of_the_increment_is_compared_with_the_others(caplog: pytest.LogCaptureFixture) -> None:
    lie = asked_about("SlopesOf", tensors(square=np.array([HUGE])))
    _, lines = trained(lie, "breast_cancer", 10)
    assert "absurdly larger than the other clients'" in warnings(caplog)[0]
    assert lines[0]["absent"] == ["0"]
