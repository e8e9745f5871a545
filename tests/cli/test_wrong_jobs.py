"""Configuration files whose settings are right one by one, and wrong together or for the data: one sentence each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import ffgb

WINE, TABLE = 'data = "wine"\n', 'data = ["east.csv"]\ntarget = "y"\n'


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ("data = []\n", "--data is empty; name a set, or files, one a client"),
        ('data = ""\n', "--data is empty"),
        ('data = "mnst"\n', "there is no data set called 'mnst' (did you mean mnist?)"),
        ('data = ["wine", "digits"]\n', "wine is a set of its own; name one set, or files"),
        ('data = "run.toml"\n', "is of an unknown kind; give a .csv"),
        (TABLE.replace("]", ', "nort.csv"]'), "nort.csv does not exist; check the path"),
        (WINE + 'target = "alcohol"\n', "--target is for files of your own; wine has its own target"),
        (WINE + 'task = "regression"\n', "wine is classification, not regression"),
        (WINE + "clients = 1000\n", "1000 clients cannot share 142 training rows; give at most 142"),
        (WINE + "participation = 30\n", "--participation 30 is neither a share up to 1.0 nor a number from 1 to 20"),
        (WINE + 'loss = "poisson"\n', "the loss poisson does not fit classification"),
        (WINE + 'learner = "resnet"\n', "there is no learner 'resnet'; choose auto, features, linear"),
        (WINE + 'learner = "tree"\ngeometry = "shared"\n', "tree has none to share"),
        (WINE + 'algorithm = "ffgb-l"\n', "ffgb-l is for regression, and wine has classes"),
        (WINE + 'map = "patches"\n', "patches are for images"),
        (WINE + 'split = "labels"\nlabels = 50\n', "give --labels from 1 to 3"),
        (WINE + 'secure = "on"\nclients = 2\n', "with 2 sites each knows the other's part"),
        (
            WINE + 'learner = "features"\nmonotone = "alcohol+"\n',
            "features would not keep to it",
        ),
        (WINE + "features = 100000000\n", "GB of memory"),
        (TABLE.replace('"y"', '"why"'), "has no column 'why' to be the target"),
        (TABLE + 'drop = ["y"]\n', "--drop names the target 'y'; leave it out there"),
        (TABLE + 'categories = ["p99"]\n', "--categories names 'p99', which is no column to predict from"),
        (TABLE + 'group = "patient"\n', "has no column 'patient', which --group names"),
        (TABLE + 'encoding = "utf-99"\n', "--encoding is a name such as utf-8"),
    ],
)
def test_a_job_that_cannot_be_is_told_in_a_sentence(job: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(job)
    (tmp_path / "east.csv").write_text("a,y\n" + "".join(f"{i % 7},{'yn'[i % 2]}\n" for i in range(40)))
    done = ffgb("train", "--config", "run.toml", "--workers", "0", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()
