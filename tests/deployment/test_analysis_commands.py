"""What `ffgb server glm …` and `ffgb client` say of an analysis before anyone is asked, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("flwr")
pytest.importorskip("cryptography")

from tests.deployment.real import free_port, run, started, until
from tests.deployment.test_analyses import tables

GLM = 'analysis = "glm"\nformula = "died ~ age + sex"\nfamily = "binomial"\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tables(tmp_path)
    return tmp_path


def rehearsal(folder: Path, job: str, *more: object) -> tuple[int, str]:
    """The exit code of a rehearsal at a site, and what it says."""
    (folder / "job.toml").write_text(job)
    done = run(folder, "client", "--data", "east.csv", "--dry-run", "--config", "job.toml", *more)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def test_a_site_is_shown_the_analysis_in_words(folder: Path) -> None:
    code, said = rehearsal(folder, GLM)
    assert code == 0
    rows = pd.read_csv(folder / "east.csv")
    whole = len(rows.dropna())
    for words in (
        "It fits a generalised linear model (binomial family): how the column 'died' depends on age and sex.",
        "It uses the columns died, age, sex, and no others.",
        f"This site takes part with {whole} rows. {len(rows) - whole} more have a missing value, and are left out.",
        "All sums leave it under masks",
        "how many rows have each class and category, by hashes of their names",
        "sums of errors, of columns times errors, and of products of two columns",
        "It answers only what this analysis asks next.",
        "Sums leave this site only under masks: the server learns sums over at least 3 sites.",
    ):
        assert words in said
    code, said = rehearsal(folder, GLM, "--technical")
    assert code == 0
    assert "question RowSums" in said
    assert "grams int64[1, 6, 3, 3]" in said
    code, said = rehearsal(folder, GLM + 'secure = "off"\n', "--secure", "off")
    assert code == 0
    assert "Sums leave it WITHOUT masks" in said
    assert "can show totals that it has made up" in said


@pytest.mark.parametrize(
    ("job", "more", "words"),
    [
        (GLM.replace("age", "agee"), (), "has no column 'agee' (did you mean 'age'?)"),
        (GLM.replace("died ~", "days ~"), (), "the outcome has values that are not 0 or 1"),
        ('analysis = "cox"\nformula = "sex"\ntime = "age"\nevent = "days"', (), "has values other than 0 and 1"),
        (GLM + "least = 5\n", (), "with 5 rows of all sites (least), and the rules of this site want 10"),
        (GLM, ("--least-rows", 500), "a site needs 500 (--least-rows)"),
        (GLM + 'secure = "off"\n', (), "agree to that with --secure off"),
        (GLM, ("--target", "died"), "leave --target and --task out"),
        (GLM, ("--policy", "budget.toml"), "an analysis adds no noise"),
        (GLM + 'code = "a.py"\n', (), "'code', which this site does not know"),
    ],
)
def test_a_site_says_at_once_what_is_wrong(job: str, more: tuple[object, ...], words: str, folder: Path) -> None:
    (folder / "budget.toml").write_text("epsilon = 1.0\n")
    code, said = rehearsal(folder, job, *more)
    assert code == 2
    assert words in said


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("glm", "--formula", "died ~ age"), "say how many sites take part: --clients N"),
        (("glm", "--clients", 3), "give --formula, for example"),
        (("glm", "--clients", 3, "--formula", "died ~ age", "--family", "normal"), "there is no --family normal"),
        (("glm", "--clients", 3, "--formula", "y ~ x", "--secure", "no"), "--secure is on or off, not 'no'"),
        (("glm", "--clients", 3, "--formula", "y ~ x", "--insecure", "--host", "0.0.0.0"), "for this machine alone"),
        (("glm", "--clients", 3, "--formula", "y ~ x", "--out", "full"), "full is not empty, and has no analysis"),
        (("glm", "--clients", 3, "--formula", "y ~ x", "--reference", "x"), "is not column=category"),
        (("cox", "--clients", 3, "--time", "t", "--event", "e", "--columns", "t"), "cannot explain it"),
        (("cox", "--clients", 3, "--time", "t", "--columns", "x"), "Missing option '--event'"),
        (("survival", "--clients", 3, "--time", "t", "--event", "e", "--times", "soon"), "is not a list of numbers"),
        (("survival", "--clients", 3, "--time", "t", "--event", "e", "--leave-out"), "No such option: --leave-out"),
    ],
)
def test_a_server_says_at_once_what_is_wrong(command: tuple[object, ...], words: str, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    done = run(tmp_path, "server", *command)
    assert done.returncode == 2
    assert words in " ".join(done.stderr.replace("│", " ").split())
    assert not (tmp_path / "runs").exists()


def test_the_server_hears_that_a_file_does_not_fit(folder: Path) -> None:
    """And not why, but for columns that it has named itself; the site ends, and the server waits for it."""
    port = free_port()
    line = run(folder, "server", "invite", "east", "--address", f"127.0.0.1:{port}").stdout.strip()
    for k, (formula, heard) in enumerate(
        [("died ~ agee", "its file has no column 'agee'"), ("days ~ age", "its file does not fit; its owner sees why")]
    ):
        asked = ("--clients", 3, "--formula", formula, "--family", "binomial", "--out", f"run{k}", "--port", port)
        with started(folder, f"server{k}.log", "server", "glm", *asked, "--no-page"):
            done = run(folder, "client", "--join", line, "--data", "east.csv", "--yes", "--no-page")
            assert done.returncode == 2
            assert "has no column 'agee'" in done.stderr or "values that are not 0 or 1" in done.stderr
            log, said = folder / f"server{k}.log", f"east is left out: {heard}"

            def is_told(log: Path = log, said: str = said) -> bool:
                return said in log.read_text()

            until(is_told, 60, "nothing is said")


def test_a_server_that_is_stopped_says_how_to_go_on(tmp_path: Path) -> None:
    """And with other words it begins another analysis, because there is no result yet."""
    for k, formula in enumerate(("y ~ x", "y ~ z")):
        command = ("server", "glm", "--clients", 3, "--formula", formula, "--port", free_port(), "--no-page")
        file = tmp_path / f"server{k}.log"
        with started(tmp_path, file.name, *command) as server:

            def listens(file: Path = file) -> bool:
                return "0 of 3 sites" in file.read_text()

            until(listens, 60, "it does not listen")
            server.send_signal(2)
            assert server.wait(timeout=60) == 130
        assert "the same command goes on from what is in runs/glm" in file.read_text()
