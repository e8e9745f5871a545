"""Options: those there are, and wrong ones: one sentence, exit code 2, nothing half-written."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ffgb import Model
from tests.cli.commands import QUICK, ffgb


def test_version() -> None:
    assert re.fullmatch(r"ffgb \d+\.\d+\.\d+\n", ffgb("--version").stdout)


def test_help_names_every_option_that_scripts_rely_on() -> None:
    text = ffgb("train", "--help-all").stdout
    for option in (
        *("--data", "--target", "--clients", "--split", "--similarity", "--alpha", "--algorithm", "--learner"),
        *("--rounds", "--local-steps", "--step-size", "--mu", "--participation", "--no-residual", "--seed"),
        *("--out", "--resume", "--json"),
    ):
        assert option in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data", "digitz"], "digitz.*digits"),
        (["--data", "nowhere.csv", "--target", "y"], "nowhere.csv does not exist"),
        (["--learner", "forest"], "no learner 'forest'"),
        (["--learner", "nobody.knows:net"], "nobody"),
        (["--algorithm", "sgd"], "--algorithm is .*ffgb or .*, not 'sgd'"),
        (["--split", "magic"], "--split is similarity or .*, not 'magic'"),
        (["--split", "natural"], "no natural sites"),
        (["--loss", "square"], "does not fit classification"),
        (["--loss", "hinge"], "--loss is auto or .*, not 'hinge'"),
        (["--schedule", "theorem1"], "μ > 0"),
        (["--schedule", "magic"], "--schedule is search or .*, not 'magic'"),
        (["--step-size", "-1"], "above 0"),
        (["--similarity", "1.5"], "1.5"),
        (["--clients", "100000"], "100,?000"),
        (["--participation", "21"], "--participation 21"),
        (["--participation", "1.5"], "--participation 1.5"),
        (["--participation", "some"], "--participation is a number such as 5.*, not 'some'"),
        (["--data", "heart", "--clients", "6"], "4 natural sites, not 6"),
        (["--data", "wine", "--data", "digits"], "wine is a set of its own"),
        (["--target", "y"], "--target is for files"),
        (["--task", "regression"], "digits is classification"),
        (["--learner", "cnn"], "from 16×16 pixels"),
        (["--learner", "math:pi"], "'math:pi' cannot be built"),
        (["--ridge", "nan"], "--ridge (must be|is)"),
        (["--ridge", "inf"], "--ridge (must be|is)"),
        (["--learning-rate", "0"], "--learning-rate is a number above 0"),
        (["--mu", "inf"], "--mu must be a finite number"),
        (["--step-power", "-1"], "--step-power is a number from 0"),
        (["--step-offset", "2"], "t or t\\+1"),
        (["--out", "/proc/nowhere"], "/proc"),
        (["--client-weights", "heavy"], "heavy"),
        (["--hidden", "a,b"], "--hidden"),
        (["--learner", "tree", "--depth", "40"], "depth 1 … 12"),
        (["--algorithm", "ffgb-c", "--gamma", "0"], "γ lies in"),
        (["--algorithm", "ffgb-c", "--gamma", "-0.5"], "γ lies in"),
        (["--algorithm", "ffgb-c", "--mu", "0"], "set --mu"),
        (["--algorithm", "ffgb-c", "--bound", "-1"], "--bound is a number above 0"),
        (["--algorithm", "ffgb-c", "--geometry", "shared"], "--geometry local"),
        (["--algorithm", "ffgb-c", "--schedule", "search"], "cannot be combined with --schedule search"),
        (["--algorithm", "ffgb-c", "--data", "diabetes", "--loss", "square"], "use huber"),
        (["--algorithm", "ffgb-c", "--one-round"], "is for ffgb-l"),
        (["--algorithm", "fedavg", "--learner", "tree"], "trees have none"),
        (["--algorithm", "fedavg", "--mu", "0.1"], "--mu is for ffgb"),
        (["--algorithm", "fedavg", "--geometry", "shared"], "--geometry local"),
        (["--algorithm", "fedavg", "--schedule", "power"], "constant steps"),
        (["--algorithm", "scaffold", "--learner", "mlp", "--step-size", "30"], "diverged|infinite"),
        (["--momentum", "0.9"], "--momentum is for fedavg and fedprox and mime"),
        (["--algorithm", "scaffold", "--momentum", "0.9"], "--momentum is for fedavg and fedprox and mime"),
        (["--algorithm", "fedavg", "--momentum", "1.5"], "--momentum is a number from 0"),
        (["--algorithm", "fedavg", "--prox", "3"], "--prox is for fedprox"),
        (["--algorithm", "fedavg", "--batch", "1.0"], "all points or one"),
        (["--local-epochs", "2"], "--local-epochs is for fedavg"),
        (["--augment"], "--augment is for fedavg"),
        (["--algorithm", "fedavg", "--learner", "mlp", "--augment"], "images for --learner cnn"),
        (["--batch", "much"], "--batch is a number such as 5.*, not 'much'"),
        (["--distill", "clients"], "is one array"),
        (["--distill", "friends", "--learner", "mlp"], "--distill is clients"),
        (["--gamma", "0.5"], "--gamma is for ffgb-c"),
        (["--gamma", "nan"], "--gamma must be a finite number"),
        (["--lipschitz", "3"], "--lipschitz is for ffgb-l"),
        (["--bound", "3"], "--bound is for ffgb-c and ffgb-l"),
        (["--algorithm", "ffgb-l"], "has classes; use ffgb-c"),
        (
            ["--algorithm", "ffgb-l", "--data", "diabetes", "--clients", "3", "--lipschitz", "0.001"],
            "too small: .* pairs of points",
        ),
        (["--algorithm", "ffgb-l", "--data", "diabetes", "--clients", "3", "--lipschitz", "-1"], "positive number"),
        (
            ["--algorithm", "ffgb-l", "--data", "diabetes", "--clients", "3", "--lipschitz", "steep"],
            "auto, max or a number",
        ),
        (
            ["--algorithm", "ffgb-l", "--data", "diabetes", "--clients", "3", "--extension", "upper"],
            "mcshane or middle",
        ),
        (["--algorithm", "ffgb-l", "--data", "diabetes", "--clients", "3", "--bound", "100"], "beyond --bound 100"),
        (["--algorithm", "ffgb-l", "--data", "diabetes", "--clients", "3", "--mu", "0.5"], "μ = 1"),
        (["--algorithm", "ffgb-l", "--data", "diabetes", "--clients", "3", "--learner", "tree"], "trees jump"),
        (["--algorithm", "ffgb-l", "--data", "diabetes", "--clients", "3", "--map", "steps"], "without jumps"),
        (["--algorithm", "ffgb-l", "--data", "diabetes", "--clients", "3", "--validation", "0.2"], "leave it out"),
        (
            ["--algorithm", "ffgb-l", "--data", "diabetes", "--clients", "3", "--participation", "2", "--one-round"],
            "no rounds to sample",
        ),
        (["--largest-weight", "1.5"], "--largest-weight is a number above 0 to 1, not 1.5"),
        (["--largest-weight", "0.01"], r"less than an equal share of 20 clients; choose 0\.05 or more"),
        (["--largest-weight", "0.5", "--client-weights", "uniform"], "add --client-weights size"),
        (["--resume"], "add --out"),
        (["--resume", "--out", "nothing-there"], "holds no run"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_a_wrong_option_is_refused_with_what_to_do(
    arguments: list[str], words: str, tmp_path: Path, refused: Callable[..., str], request: pytest.FixtureRequest
) -> None:
    if "heart" in arguments:
        request.getfixturevalue("real_data")
    if "math:pi" in arguments:
        pytest.importorskip("torch")
    assert re.search(words, refused("train", *arguments))
    assert list(tmp_path.iterdir()) == []


def test_options_that_typer_checks_also_exit_with_2(tmp_path: Path) -> None:
    for arguments in (["--rounds", "many"], ["--nonsense"], ["--local-steps", "0"]):
        result = ffgb("train", *arguments, cwd=tmp_path)
        assert result.returncode == 2
        assert "Traceback" not in result.stderr


def test_what_cannot_be_written_is_said_in_a_sentence(quick: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    np.savez(tmp_path / "new.npz", x=np.zeros((2, 13)))
    (tmp_path / "afile").write_text("")
    assert "afile" in refused("train", *QUICK, "--out", "afile/sub")
    assert "'alcohol'" in refused("predict", "run", "new.npz")
    header = ",".join(Model.load(quick).columns)
    (tmp_path / "new.csv").write_text(header + "\n" + ",".join(["1"] * 13) + "\n")
    assert "nowhere" in refused("predict", "run", "new.csv", "-o", "nowhere/p.csv")
    assert "not a model" in refused("predict", "new.csv", "run")


def test_a_checkpoint_of_another_configuration_is_refused(quick: Path, refused: Callable[..., str]) -> None:
    before = {p: p.read_bytes() for p in quick.rglob("*") if p.is_file()}
    error = refused("train", *QUICK, "--seed", "3", "--out", "run", "--resume")
    assert "was started with --seed 0, not 3" in error
    assert "already holds a run" in refused("train", *QUICK, "--out", "run")
    assert before == {p: p.read_bytes() for p in quick.rglob("*") if p.is_file()}
