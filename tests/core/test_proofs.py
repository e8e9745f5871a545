"""Proofs of totals: right for what all clients added up, and for nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffgb.core.points import Points
from ffgb.core.proofs import PRIME, PROOFS, TAGS, Keyed, Proven, key_of, proof_of, proves
from ffgb.core.questions import Here
from ffgb.core.regression.design import Records
from ffgb.core.regression.sums import CellCounts
from ffgb.core.survey import FileCounts
from ffgb.errors import FFGBError

KEY = key_of(b"a secret of all", 3, b"question")
numbers = st.lists(st.integers(-(2**52), 2**52), min_size=5, max_size=5)


@given(st.lists(numbers, min_size=2, max_size=5))
def test_parts_add_up_to_a_proof_of_the_total(parts: list[list[int]]) -> None:
    arrays = [{"a": np.array(part[:2], float), "b": np.array(part[2:], float).reshape(3, 1)} for part in parts]
    proofs = sum(proof_of(KEY, part, leads=k == 0) for k, part in enumerate(arrays))
    total = {name: sum(np.rint(part[name]).astype(np.int64) for part in arrays) for name in ("a", "b")}
    assert proves(KEY, total, np.asarray(proofs))


@given(numbers, st.integers(0, 4), st.integers(1, 2**53))
def test_another_total_has_another_proof(values: list[int], place: int, by: int) -> None:
    total = {"a": np.array(values)}
    proof = proof_of(KEY, total, leads=True)
    if by % PRIME:
        other = total["a"].copy()
        other[place] += by
        assert not proves(KEY, {"a": other}, proof)
    for word in range(TAGS):
        assert not proves(KEY, total, proof + np.eye(TAGS)[word])
    assert not proves(KEY, total, proof[:1])
    assert not proves(KEY, total, proof_of(KEY, total, leads=False))


def test_the_key_is_of_one_secret_one_question_and_one_place() -> None:
    keys = {key_of(b"s", 1, b"q"), key_of(b"t", 1, b"q"), key_of(b"s", 2, b"q"), key_of(b"s", 1, b"r")}
    assert len(keys) == 4
    assert key_of(b"", 1, b"q") == b""
    assert proof_of(b"", {"a": np.ones(3)}, leads=True).tolist() == [0.0] * TAGS


def test_only_counts_are_proven_and_only_by_who_has_the_secret() -> None:
    points = Points(0, np.zeros((1, 1), np.float32), np.zeros(1))
    records = Records({}, {}, 7, 2)
    question = Proven(CellCounts(()), 0)
    found = question.part(Here(points, 1.0, said=Keyed(records, KEY, True)))
    assert found["rows"].tolist() == [7.0, 2.0]
    assert proves(KEY, {"rows": found["rows"], "cells": found["cells"]}, found[PROOFS])
    with pytest.raises(FFGBError, match="no secret with the others"):
        question.part(Here(points, 1.0, said=records))
    with pytest.raises(FFGBError, match="only whole numbers can be proven"):
        Proven(Proven(FileCounts(()), 0), 0).part(Here(points, 1.0, said=Keyed(records, KEY, True)))
    with pytest.raises(FFGBError, match="its proof is none"):
        question.check({**found, PROOFS: found[PROOFS] - PRIME}, 1)
