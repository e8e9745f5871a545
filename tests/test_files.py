"""Writing files: whole or not at all, on the disk before their name is, and no leftover in the way."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ffgb import files
from ffgb.cli import _of_the_system
from ffgb.errors import FFGBError
from ffgb.files import atomic_write, is_leftover, others, remove_leftovers
from ffgb.runs import onnx as export
from ffgb.runs.config import Config
from ffgb.runs.directory import Run
from ffgb.studies.compare import _settled


@pytest.mark.parametrize("write", [atomic_write, Run._write, lambda path, data: export.write({path: data})])
def test_a_file_is_replaced_and_never_written_over(write: Callable[[Path, bytes], None], tmp_path: Path) -> None:
    path, old = tmp_path / "a.json", tmp_path / "old"
    path.write_bytes(b"before")
    os.link(path, old)
    write(path, b"after")
    assert (path.read_bytes(), old.read_bytes()) == (b"after", b"before")
    assert {p.name for p in tmp_path.iterdir()} == {"a.json", "old"}


def test_the_file_is_synced_before_it_is_renamed_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def synced(handle: int) -> None:
        name = Path(f"/proc/self/fd/{handle}").readlink()
        whole = name.is_dir() or name.read_bytes() == b"data"
        steps.append(f"sync {'folder' if name.is_dir() else 'file'}{'' if whole else ' too early'}")
        fsync(handle)

    def renamed(self: Path, target: Path) -> Path:
        steps.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    atomic_write(tmp_path / "a.json", b"data")
    assert steps == ["sync file", "rename", "sync folder"]


@pytest.mark.parametrize("fails", ["staged", "put"])
def test_what_cannot_be_written_leaves_what_was_there(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"before")

    def broken(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync" if fails == "staged" else "pathlib.Path.replace", broken)
    with pytest.raises(OSError, match="No space left") as caught:
        atomic_write(path, b"after")
    if fails == "staged":  # a disk that is full does not say where
        assert _of_the_system(caught.value) == (
            f"the disk is full ({path}); make room on it, and start the same command again"
        )
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"a.json": b"before"}


def test_a_file_system_that_cannot_sync_folders_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync = os.fsync

    def picky(handle: int) -> None:
        if Path(f"/proc/self/fd/{handle}").readlink().is_dir():
            raise OSError(22, "Invalid argument")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", picky)
    atomic_write(tmp_path / "a.json", b"data")
    assert (tmp_path / "a.json").read_bytes() == b"data"


def left_by_a_kill(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary file of a process that died before it could rename it."""
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", lambda self, missing_ok=False: None)
        patch.setattr(files, "put", lambda temporary, path: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            atomic_write(path, b"half of it")
    (left,) = (p for p in path.parent.iterdir() if p.name.startswith(path.name + "."))
    return left


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "job-000000.copy", "f-000001.safetensors"])
def test_leftovers_are_told_from_files_of_others(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = [tmp_path / n for n in ("notes.tmp", "config.json", "a.tmp.json")]
    for path in mine:
        path.write_text("mine")
    (tmp_path / "folder.json.tmp").mkdir()
    left = left_by_a_kill(tmp_path / name, monkeypatch)
    assert is_leftover(left)
    assert left not in set(others(tmp_path))
    remove_leftovers(tmp_path)
    assert set(tmp_path.iterdir()) == {*mine, tmp_path / "folder.json.tmp"}


def test_leftovers_do_not_keep_a_run_or_a_comparison_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, compared = tmp_path / "run", tmp_path / "compared"
    for folder, name in ((run, "config.json"), (compared, "settings.json")):
        folder.mkdir()
        left_by_a_kill(folder / name, monkeypatch)
    (run / "config.json.tmp").write_text("of an earlier version")
    with Run.create(run, {"rounds": 1}).locked():
        assert {p.name for p in run.iterdir()} == {"config.json", "checkpoint"}
    _settled(compared, Config(data="wine"), tuned=True)
    assert (compared / "settings.json").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.tmp").touch()
    with pytest.raises(FFGBError, match="not an empty directory"):
        Run.must_be_free(tmp_path / "mine")


def test_a_run_directory_is_its_owners_alone(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "runs" / "new", {"rounds": 1})
    modes = [path.stat().st_mode & 0o777 for path in (run.path, run.checkpoint)]
    assert modes == [0o700, 0o700]
    assert (tmp_path / "runs").stat().st_mode & 0o077  # the folder above is no run
    with Run(tmp_path / "race").locked():  # as the race of `ffgb tune` has it
        assert (tmp_path / "race").stat().st_mode & 0o777 == 0o700
    (tmp_path / "shared").mkdir(mode=0o755)
    Run.create(tmp_path / "shared", {"rounds": 1})
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o755
