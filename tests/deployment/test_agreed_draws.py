"""A server cannot have trees drawn otherwise than the site's owner agreed to."""

from __future__ import annotations

import numpy as np
import pytest

from ffgb.core.draws import Draws
from ffgb.core.histograms import HistogramsOf, Units
from ffgb.core.splits import Splits
from ffgb.deployment.agreement import difference, form
from ffgb.protocol.describe import describe


def asked(draws: Draws | None) -> object:
    """The form of a question about two trees."""
    units, none = Units(np.ones(1), np.ones(1), 64), Splits.of([], [], [], 1)
    cells, columns = np.full(3, 4, np.int16), np.tile(np.arange(3, dtype=np.int32), (2, 1))
    trees, roots = np.zeros(2, np.int32), np.array([(0, 0), (1, 0)], np.int32)
    question = HistogramsOf(units, cells, trees, columns, np.zeros(0, np.int16), none, roots, draws=draws)
    return form(*describe(question))


@pytest.mark.parametrize(
    "draws", [None, Draws(0, 1000), Draws(0, 999), Draws(1, 700), Draws(0, 700, first=True)], ids=str
)
def test_other_draws_than_agreed_are_refused(draws: Draws | None) -> None:
    agreed = asked(Draws(0, 700))
    assert difference(asked(Draws(0, 700)), agreed) is None
    assert difference(asked(draws), agreed)
