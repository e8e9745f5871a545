"""The last two checkpoints: a run goes on to the same bits whatever was damaged, and wherever it was cut."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from ffgb.errors import FFGBError
from ffgb.runs.config import Config
from ffgb.runs.directory import Run
from ffgb.runs.postprocess import distill_run
from ffgb.runs.training import train
from tests.runs.test_directory import same

JOBS: dict[str, dict[str, Any]] = {
    "shared": {"learner": "linear"},
    "closed": {"learner": "linear", "geometry": "local"},
    "open": {"learner": "tree"},
    "memory": {"algorithm": "scaffold", "learner": "mlp", "participation": 2},
    "distilled": {"learner": "mlp", "oracle_steps": 5, "distill": "rounds", "distill_rounds": 2},
}


def config_of(job: str) -> Config:
    return Config(**{"data": ("wine",), "clients": 3, "rounds": 4, **JOBS[job]})


@pytest.fixture(scope="module", params=JOBS)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    path = tmp_path_factory.mktemp(request.param) / "run"
    train(config_of(request.param), path, workers=0)
    return request.param, path


def damaged(data: bytes, how: str) -> bytes:
    if how == "flipped":
        middle = len(data) // 2
        return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    return b"" if how == "empty" else data[:-7]


@pytest.mark.parametrize("how", ["cut", "empty", "flipped"])
def test_any_one_damaged_file_is_made_up_for(
    how: str, whole: tuple[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job, path = whole
    files = [Path("metrics.jsonl"), *(f.relative_to(path) for f in sorted((path / "checkpoint").iterdir()))]
    files = [file for file in files if file.name != "lock"]
    assert len(files) >= 7
    for number, file in enumerate(files):
        broken = tmp_path / str(number)
        shutil.copytree(path, broken)
        (broken / file).write_bytes(damaged((path / file).read_bytes(), how))
        for name in ("model.safetensors", "summary.json"):  # else it is over, and nothing is done
            (broken / name).unlink()
        caplog.clear()
        with caplog.at_level(logging.WARNING, "ffgb"):
            train(config_of(job), broken, resume=True, workers=0)
        same(path, broken)
        state = json.loads((path / "checkpoint" / "state.json").read_text())
        newest = {f"f-{state['t']:06d}.safetensors", f"round-{state['t']:06d}.safetensors", "state.json"}
        if file.name in newest or file == Path("metrics.jsonl"):
            assert "the newest checkpoint" in caplog.text, file
            assert "goes on from the one of round 3" in caplog.text, file


def test_the_last_two_checkpoints_are_kept_and_no_more(whole: tuple[str, Path]) -> None:
    job, path = whole
    names = {file.name for file in (path / "checkpoint").iterdir()}
    states = {name for name in names if name.startswith("state")}
    open_sum = {"state-000001.json", "state-000002.json"} if job == "open" else set()
    assert states == {"state.json", "state-000003.json"} | open_sum
    sums = {name for name in names if name.startswith("f-")}
    assert sums == (set() if job in ("open", "distilled") else {"f-000003.safetensors", "f-000004.safetensors"})
    jobs = {"job-000003", "job-000004"} if job == "distilled" else {"job-000000"}
    assert {name for name in names if name.startswith("job")} == {
        j + end for j in jobs for end in (".safetensors", ".copy")
    }
    for file in (path / "checkpoint").glob("memory-*"):
        kept = [json.loads((path / "checkpoint" / name).read_text())["memory"] for name in states]
        _, client, since = file.stem.split("-")
        assert any(memory.get(str(int(client))) == int(since) for memory in kept)


def test_where_both_are_damaged_a_run_is_refused(whole: tuple[str, Path], tmp_path: Path) -> None:
    job, path = whole
    shutil.copytree(path, tmp_path / "broken")
    for file in (tmp_path / "broken" / "checkpoint").glob("state*.json"):
        file.write_bytes(b"{")
    with pytest.raises(FFGBError, match=r"checkpoint in .* is damaged .*, and so is the one before; start again"):
        train(config_of(job), tmp_path / "broken", resume=True, workers=0)


def test_an_open_sum_goes_back_as_far_as_it_must(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = config_of("open")
    train(config, tmp_path / "whole", workers=0)
    shutil.copytree(tmp_path / "whole", tmp_path / "broken")
    (tmp_path / "broken" / "checkpoint" / "round-000002.safetensors").write_bytes(b"")
    rounds: list[int] = []
    train(config, tmp_path / "broken", resume=True, workers=0, on_round=lambda line: rounds.append(line["round"]))
    assert "goes on from the one of round 1" in caplog.text
    assert rounds == [2, 3, 4]
    same(tmp_path / "whole", tmp_path / "broken")


def test_after_a_step_back_nothing_of_later_rounds_counts(tmp_path: Path) -> None:
    """Real sites may answer otherwise the second time: rounds of two tries must not be mixed."""
    config, out = config_of("open"), tmp_path / "run"
    train(config, out, workers=0)
    (out / "checkpoint" / "round-000002.safetensors").write_bytes(b"")
    stopped = train(config, out, resume=True, workers=0, should_stop=lambda: len(states(out)) == 2)
    assert not stopped.finished
    assert states(out) == ["state-000001.json", "state.json"]
    found = Run.open(out).load()
    assert found is not None
    assert found[0].t == 2


def states(out: Path) -> list[str]:
    return sorted(file.name for file in (out / "checkpoint").glob("state*.json"))


@pytest.mark.parametrize("job", JOBS)
def test_a_run_cut_between_any_two_writes_goes_on(job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, write = config_of(job), Run._write
    train(config, tmp_path / "whole", workers=0)
    for last in range(1, 100):
        broken, count = tmp_path / str(last), 0

        def dying(path: Path, data: bytes, last: int = last) -> None:
            nonlocal count
            count += 1
            if count == last:
                path.with_name(path.name + ".0123abcd.tmp").write_bytes(data[: len(data) // 2])
                raise KeyboardInterrupt
            write(path, data)

        with monkeypatch.context() as patch:
            patch.setattr(Run, "_write", staticmethod(dying))
            try:
                train(config, broken, workers=0)
            except KeyboardInterrupt:
                pass
            else:
                break
        train(config, broken, resume=(broken / "config.json").exists(), workers=0)
        same(tmp_path / "whole", broken)
        assert not list(broken.rglob("*.tmp"))
        shutil.rmtree(broken)
    assert last > 15


def test_a_model_is_not_distilled_from_a_checkpoint_of_another(tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(Config(data=("wine",), clients=3, rounds=3, learner="mlp", oracle_steps=5), out, workers=0)
    (out / "checkpoint" / "round-000003.safetensors").write_bytes(b"")
    with pytest.raises(FFGBError, match="is newer than its last whole checkpoint; first repair that with: ffgb train"):
        distill_run(Run.open(out), out / "distilled.safetensors", by="clients", rounds=1)
