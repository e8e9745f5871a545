"""What a server reads from a client's messages: rows and labels in the open, and nothing under masks.

`python -m tests.privacy.measured` measures the same with all features, rows and sites.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffgb import Config, train
from ffgb.core.types import Array
from ffgb.errors import FFGBError

pytest.importorskip("cryptography", reason="the extra `secure` is not installed")

from ffgb.engines.local import InProcess
from ffgb.federation.host import Holding, Host
from ffgb.privacy.integers import ROWS
from ffgb.protocol.codec import Message, decode, encode
from ffgb.protocol.messages import KINDS
from tests.privacy import attacks
from tests.privacy.attacks import Malicious, Seen, judged, membership, read_by_the_curious, trained

FEW: dict[str, Any] = {"features": 48}
"""Fewer features than by default: it is quicker."""
JOBS: dict[str, tuple[dict[str, Any], float]] = {
    "heart": ({"data": ("heart",)}, 0.25),
    "wine": ({"data": ("wine",), "clients": 5}, 0.95),
    "breast_cancer": ({"data": ("breast_cancer",), "clients": 20, **FEW}, 0.5),
    "Adult": ({"data": ("adult",), "clients": 20, **FEW}, 0.002),
    "cal_housing": ({"data": ("cal_housing",), "clients": 20, **FEW}, 0.002),
}
"""And the share of rows that a server reads in the open, at least."""


def in_the_open(seen: Seen) -> bool:
    """Does any answer of a client that trains carry numbers that are not masked?"""
    for _, answers in seen.log:
        for i, data in answers.items():
            answer = decode(data)
            if i < len(seen.parts) and (answer.kind in ("part", "report", "answer") or "points" in answer.values):
                return True
    return False


@pytest.mark.parametrize("name", JOBS)
def test_a_curious_server_reads_rows_in_the_open_and_none_under_masks(name: str, real_data: Any) -> None:
    settings, least = JOBS[name]
    settings = {**settings, "least": 1}  # the most that a server can read
    plain = trained(**settings)
    verdict = read_by_the_curious(plain)
    assert in_the_open(plain)
    assert verdict.read >= least * verdict.rows
    assert verdict.worst < attacks.CLOSE
    if plain.loss.classification:
        assert verdict.labels >= 0.99 * verdict.read  # every label of a row that was read
    secure = trained(**settings, secure="on")
    assert read_by_the_curious(secure).read == 0
    assert not in_the_open(secure)


@pytest.fixture(scope="module")
def hundred(data_folder: Path) -> Seen:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FFGB_DATA", str(data_folder))
        return trained(data=("adult",), clients=100, secure="on", rounds=3, **FEW)


def test_a_hundred_sites(hundred: Seen) -> None:
    assert read_by_the_curious(hundred).read == 0
    assert not in_the_open(hundred)


@pytest.mark.parametrize("minimum", [3, 4])
def test_with_dropouts_allowed_nothing_is_read_either(minimum: int) -> None:
    secure = trained(data=("wine",), clients=5, secure="on", minimum=minimum)
    assert read_by_the_curious(secure).read == 0
    assert not in_the_open(secure)


def test_membership_is_told_in_the_open_and_not_under_masks(hundred: Seen, real_data: Any) -> None:
    """From what a site has sent: with few rows of a class, nearly always; under masks by chance alone."""
    few = membership(trained(data=("breast_cancer",), clients=20), (1, 9))
    assert len(few) > 10
    assert np.mean(few) > 0.98
    assert np.mean(membership(trained(data=("adult",), clients=100, **FEW), (2, 39))) > 0.8
    under = membership(hundred, rounds=3)
    assert len(under) == 600
    assert abs(np.mean(under) - 0.5) < 0.02


# A malicious server


@pytest.fixture(scope="module")
def hospital() -> Seen:
    return trained(data=("breast_cancer",), clients=4, split="iid", secure="on")


def malicious(seen: Seen, engine: InProcess, masks: list[Any] | None = None) -> Malicious:
    def exchange(message: Message) -> Message:
        if masks is not None and KINDS[message.kind].kind == "question":
            masks[1] += 1
            message = replace(message, values={**message.values, "masks": list(masks)})
        return decode(engine.exchange(encode(message), [0])[0])

    return Malicious(exchange, len(seen.parts[0]), seen.x.shape[1], seen.loss)


def clients(seen: Seen) -> InProcess:
    return InProcess([Holding(seen.dataset.x, seen.dataset.y, rows) for rows in seen.parts])


def test_a_malicious_server_reads_nearly_all_rows_in_the_open(hospital: Seen) -> None:
    server = malicious(hospital, clients(hospital))
    verdict = judged(hospital, 0, server.rows())
    assert server.asked == 4
    assert verdict.read > 0.85 * verdict.rows
    assert verdict.labels == verdict.read


def test_a_malicious_server_reads_no_row_under_masks(hospital: Seen) -> None:
    """Once a client is in a secure training, questions without masks are refused, and those with masks say nothing."""
    engine, run = clients(hospital), ""
    for data, _ in hospital.log:
        message = decode(data)
        if message.kind in ("introduction", "roster"):
            engine.exchange(data, range(4))
            run = message.values["run"]
    without = malicious(hospital, engine)
    assert without.rows() == []
    assert len(without.refused) == 1  # the first question is its last
    assert "only under masks" in without.refused[0]
    bare = malicious(hospital, engine, [run, 100, [0], []])
    assert bare.rows() == []
    assert "only under masks" in bare.refused[0]
    under = malicious(hospital, engine, [run, 200, [], []])
    verdict = judged(hospital, 0, under.rows())
    assert verdict.read == 0


# Lies


@pytest.mark.parametrize("rows", [10**8, -(10**8), 2**62])
@pytest.mark.parametrize("client", [0, 3])
def test_rows_that_a_site_has_not_are_noticed(rows: int, client: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site that claims a hundred million rows: counts of all sites do not add up to that."""
    honest = Host._part

    def part(self: Host, i: int, sending: Any, answer: Message) -> dict[str, Array]:
        found = honest(self, i, sending, answer)
        return {**found, ROWS: found[ROWS] + rows} if i == client and ROWS in found else found

    monkeypatch.setattr(Host, "_part", part)
    with pytest.raises(FFGBError, match="is impossible"):
        train(Config(data=("wine",), clients=5, rounds=1, secure="on", map="inputs+steps", features=32), workers=0)
