"""The ledger: a budget is never exceeded, nothing is paid twice, and changes are found out."""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from pathlib import Path

import pytest

from ffgb.errors import FFGBError
from ffgb.privacy.accountant import epsilon_of, mu_of
from ffgb.privacy.ledger import Budget, Ledger, in_rows


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    found = Ledger(tmp_path / "privacy" / "file.jsonl", "file")
    found.allow(Budget(1.0, 1e-5))
    return found


def test_spends_up_to_the_budget_and_no_further(ledger: Ledger) -> None:
    part = mu_of(1.0, 1e-5) / 2
    for k in range(4):
        ledger.spend(f"question {k}", bytes([k]), part)
    assert epsilon_of(ledger.spent(), 1e-5) == pytest.approx(1.0)
    with pytest.raises(FFGBError, match=r"one more would cost more than is left.*ε = 1 of 1 is spent"):
        ledger.spend("one more", b"more", 0.01)
    assert len(ledger.entries()) == 5


def test_the_same_answer_is_paid_once_also_by_another_process(ledger: Ledger) -> None:
    for _ in range(3):
        ledger.spend("a", b"q", 0.2)
    Ledger(ledger.file, "file").spend("a", b"q", 0.2)
    assert ledger.spent() == pytest.approx(0.2)


def test_a_training_has_its_own_bound(ledger: Ledger) -> None:
    ledger.training, ledger.most = "first", 0.15
    ledger.spend("a", b"1", 0.1)
    with pytest.raises(FFGBError, match="agreed to for one training"):
        ledger.spend("b", b"2", 0.12)
    ledger.training = "second"
    ledger.spend("b", b"2", 0.12)


def test_trainings_by_row_and_by_unit_have_one_account(tmp_path: Path) -> None:
    """What was paid for one row costs a patient with three rows three times as much, and the other way round."""
    found = Ledger(tmp_path / "x.jsonl", "x")
    found.allow(Budget(1.0, 1e-5))
    found.spend("by row", b"1", 0.06)
    assert found.spent() == pytest.approx(0.06)
    found.allow(Budget(1.0, 1e-5, 3))
    assert found.spent() == pytest.approx(0.18)
    found.spend("by unit", b"2", 0.18, 3)
    assert found.spent() == pytest.approx(0.18 * math.sqrt(2))
    with pytest.raises(FFGBError, match="by row again would cost more than is left"):
        found.spend("by row again", b"3", 0.06)
    found.spend("by row again", b"3", 0.02)
    assert Ledger(found.file, "x").spent() == found.spent()
    assert "3 rows together" in in_rows(found)[2]["what"]


def test_a_training_by_unit_has_its_own_bound(tmp_path: Path) -> None:
    found = Ledger(tmp_path / "x.jsonl", "x")
    found.allow(Budget(8.0, 1e-5, 2))
    found.training, found.most, found.rows = "one", 0.3, 2
    found.spend("a", b"1", 0.3, 2)
    with pytest.raises(FFGBError, match="agreed to for one training"):
        found.spend("b", b"2", 0.05, 2)
    found.training, found.most, found.rows = "two", 0.3, 1  # by row: for two rows it may cost twice as much
    found.spend("b", b"2", 0.3, 1)


def test_lines_of_an_earlier_version_are_for_one_row(tmp_path: Path) -> None:
    found = Ledger(tmp_path / "x.jsonl", "x")
    head = json.dumps({"before": "", "data": "x", "ledger": 1}, sort_keys=True)
    line = {"budget": [1.0, 1e-5], "mu": 0.0, "question": "", "time": 0.0, "training": "", "what": "budget"}
    digest = hashlib.sha256(head.encode()).hexdigest()
    found.file.write_text(head + "\n" + json.dumps({**line, "before": digest}, sort_keys=True) + "\n")
    assert found.budget() == Budget(1.0, 1e-5, 1)


def test_without_a_budget_nothing_leaves(tmp_path: Path) -> None:
    with pytest.raises(FFGBError, match="no privacy budget"):
        Ledger(tmp_path / "x.jsonl", "x").spend("a", b"q", 0.1)


@pytest.mark.parametrize("line", [0, 1, 2])
def test_changes_are_found_out(ledger: Ledger, line: int) -> None:
    for k in range(2):
        ledger.spend("a", bytes([k]), 0.1)
    lines = ledger.file.read_text().splitlines()
    ledger.file.write_text("\n".join(lines[:line] + lines[line + 1 :]) + "\n")
    with pytest.raises(FFGBError, match="damaged in line"):
        ledger.spend("b", b"b", 0.01)


def test_a_cheaper_line_is_found_out(ledger: Ledger) -> None:
    for k in range(2):
        ledger.spend("a", bytes([k]), 0.1)
    lines = ledger.file.read_text().splitlines()
    cheap = json.dumps({**json.loads(lines[2]), "mu": 0.001}, sort_keys=True)
    ledger.file.write_text("\n".join([*lines[:2], cheap, *lines[3:]]) + "\n")
    with pytest.raises(FFGBError, match="damaged in line 4"):
        ledger.entries()


def test_a_line_that_a_power_cut_has_shortened_does_not_count(ledger: Ledger) -> None:
    ledger.spend("a", b"1", 0.1)
    whole = ledger.file.read_text()
    ledger.file.write_text(whole + '{"what": "half a li')
    ledger.spend("b", b"2", 0.1)
    assert [entry.what for entry in ledger.entries()] == ["budget", "a", "b"]
    assert ledger.spent() == pytest.approx(0.1 * math.sqrt(2))


def test_another_files_ledger_is_refused(ledger: Ledger) -> None:
    with pytest.raises(FFGBError, match="another data file"):
        Ledger(ledger.file, "other").spend("a", b"1", 0.1)


def test_rows_say_what_was_spent_on_what(ledger: Ledger) -> None:
    ledger.spend("counts", b"1", 0.1)
    budget, counts = in_rows(ledger)
    assert budget["what"] == "budget: ε = 1, δ = 1e-05"
    assert counts["what"] == "counts"
    assert float(counts["ε so far"]) == pytest.approx(epsilon_of(0.1, 1e-5), rel=1e-3)


def test_what_is_spent_is_on_the_disk_and_seen_by_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut, too: each line, and a new file's name in its folder."""
    settled = list[str]()
    real = os.fsync

    def fsync(handle: int) -> None:
        settled.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    own = Ledger(tmp_path / "new" / "file.jsonl", "file")
    own.allow(Budget(1.0, 1e-5))
    assert settled == ["file", "folder", "file"]
    own.spend("a", b"1", 0.1)
    assert settled == ["file", "folder", "file", "file"]
    own.spend("a", b"1", 0.1)  # paid already
    assert len(settled) == 4
    assert stat.S_IMODE(own.file.stat().st_mode) == 0o600
    assert stat.S_IMODE(own.file.parent.stat().st_mode) == 0o700
