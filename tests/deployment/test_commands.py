"""`ffgb server` and `ffgb client` before anything is sent: what they show, and what they refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

pytest.importorskip("flwr")

from tests.deployment.real import run, write_sites


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    write_sites(tmp_path, 3)
    (tmp_path / "features.toml").write_text('learner = "features"\n')
    return tmp_path


CLIENT = ("client", "--data", "east.csv", "--target", "digit")
FEATURES = ("--config", "features.toml")
OWN = (*CLIENT, "--config", "run.toml", "--secure", "off")
"""With options of its own: the server is not asked for its job."""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("server",), "--clients N"),
        (("server", "--clients", 2, "--insecure"), "with 2 sites each knows the other's part from the total; bring 3"),
        (("server", "--clients", 3, "--insecure", "--config", "mlp.toml"), "which are no sums"),
        (("server", "--clients", 3, "--insecure", "--host", "0.0.0.0"), "0.0.0.0 can be reached from others"),
        (("server", "--clients", 3, "--insecure", "--minimum", 4), "--minimum is 4, but only 3 sites take part"),
        (("server", "--clients", 3, "--insecure", "--config", "none.toml"), "cannot be read as TOML"),
        (("server", "--clients", 3, "--insecure", "--config", "odd.toml"), "'colour', which is no option"),
        (("server", "invite", "../x"), "cannot be a site's name"),
        (("server", "invite", "north", "--address", "a b"), "--address is HOST:PORT"),
        (("server", "sites"), "no site has joined"),
        (("tls", "init"), "ffgb server invite NAME"),
        ((*CLIENT, "--server", "x"), "--server is HOST:PORT"),
        ((*CLIENT, "--server", "x:1"), "this site has not joined x:1"),
        ((*CLIENT, "--join", "hello"), "this is no invitation"),
        ((*CLIENT, "--join", "run.toml"), "this is no invitation"),
        ((*CLIENT, "--join", "-"), "the invitation is empty"),
        (
            (*CLIENT, "--server", "joined.org:1", "--name", "south"),
            "as north, and not as south",
        ),
        (("evaluate", "begun"), "did not end; it goes on when the same ffgb server is started again"),
        (("predict", "begun", "east.csv"), "it goes on when the same ffgb server is started again"),
        ((*CLIENT, "--join", "ffgb:n@h:1/" + "a" * 43 + "/" + "b" * 27, "--insecure"), "leave out --server, --tls"),
        ((*CLIENT, "--server", "example.org:1", "--insecure"), "example.org:1 is elsewhere"),
        ((*CLIENT, "--server", "x:1", "--tls", "."), "needs its own --key"),
        ((*CLIENT, "--server", "x:1", "--tls", ".", "--key", "k", "--yes"), "ca.crt is not there"),
        (("client", "--server", "127.0.0.1:1", "--data", "far.csv", "--insecure"), "far.csv"),
        ((*OWN, "--server", "127.0.0.1:1", "--insecure"), "nothing was sent"),
        ((*OWN, "--server", "127.0.0.1:1", "--insecure", "--least-rows", 5000), "a site needs 5000"),
        ((*OWN, "--server", "127.0.0.1:1", "--insecure", "--least-class", 5000), "the class 0 has"),
    ],
)
def test_mistakes_are_told_in_a_sentence(sites: Path, arguments: tuple[Any, ...], words: str) -> None:
    (sites / "odd.toml").write_text("colour = 3\n")
    (sites / "mlp.toml").write_text('learner = "mlp"\n')
    (sites / "begun").mkdir()
    (sites / "begun" / "config.json").write_text('{"data": ["sites"]}')
    home = sites / "state" / "ffgb" / "servers" / "joined.org_1" / "north"
    home.mkdir(parents=True)
    (home / "server.pem").touch()
    done = run(sites, *arguments)
    assert done.returncode == 2, done.stderr
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not (sites / "runs").exists()


def test_a_dry_run_shows_forms_and_never_values(sites: Path) -> None:
    arguments = (*CLIENT, "--dry-run", "--technical")
    features = (*arguments, *FEATURES)
    done = run(sites, *features)
    assert "gram int32[" in " ".join(done.stdout.split())
    assert "question GradientOf" in done.stdout
    assert "10 rounds" in done.stderr
    local = run(sites, *arguments, "--config", "run.toml").stdout
    assert "GramOf" not in local
    assert "increment" in local
    kept = run(sites, *features, "--no-shared-geometry")
    assert "gram int32[" not in " ".join(kept.stdout.split())
    assert {"refused:", "--no-shared-geometry"} <= set(kept.stdout.split())  # a narrow table breaks lines
    assert not (sites / "state").exists()


def test_a_site_with_one_class_says_what_it_would_send(sites: Path) -> None:
    head, *rows = (sites / "east.csv").read_text().splitlines()
    (sites / "east.csv").write_text("\n".join([head, *(row for row in rows if row.endswith(",3"))]) + "\n")
    show = (*CLIENT, "--dry-run", "--technical")
    assert "question GradientOf" in run(sites, *show, *FEATURES).stdout
    said = run(sites, *show).stdout
    assert said.count("question MergedHistograms") > 1  # its trees grow, as those of all sites will


def words_of(sites: Path, *more: Any, data: str = "east.csv") -> str:
    """What an owner is shown, without the ends of lines."""
    return " ".join(run(sites, "client", "--data", data, "--target", "digit", "--dry-run", *more).stderr.split())


def few(sites: Path) -> str:
    """A file with few columns and classes: the learner by default is soon rehearsed."""
    table = pd.read_csv(sites / "east.csv")
    table.loc[table["digit"] < 2, ["p20", "p30", "p43", "digit"]].to_csv(sites / "few.csv", index=False)
    return "few.csv"


def test_an_owner_is_told_in_words_what_leaves(sites: Path) -> None:
    said = words_of(sites, data=few(sites))
    assert "sums of prediction errors over the rows in wider intervals of a column" in said
    assert "sums of products of two features" not in said
    said = words_of(sites, *FEATURES)
    assert "Under masks it adds its numbers of rows and of missing values" in said
    assert "sums of products of two features" in said
    assert "Rows never leave this site." in said
    assert "All sums leave it under masks: random numbers that cancel" in said
    assert "Every site must be in every total." in said
    assert "The other participants are shown with the fingerprints of their keys." in said
    assert "question" not in said
    said = words_of(sites, *FEATURES, "--secure", "off")
    assert "Sums leave it WITHOUT masks" in said
    assert "its numbers of rows and of missing values" in said
    assert "the name of a category only if enough rows of all sites together have it" in said
    assert "participants" not in said


def test_an_owner_is_told_that_a_model_is_no_sum(sites: Path) -> None:
    (sites / "open.toml").write_text('learner = "tree"\nrounds = 2\n')
    assert "This site will refuse to send it" in words_of(sites, "--config", "open.toml")
    assert "refuse" not in words_of(sites, "--config", "open.toml", "--secure", "off")


def test_the_rules_of_a_policy_are_told(sites: Path) -> None:
    rules = 'least_sites = 3\nmissing_sites = true\ntrainings = 1\nrefuse = ["GramOf"]\n'
    mark = ":".join(["0c1d"] * 8)
    rules += f'[participants]\nnorth = "{mark}"\nwest = "{mark}"\n'
    (sites / "policy.toml").write_text(rules)
    said = words_of(sites, "--policy", "policy.toml", data=few(sites))
    assert "sums over at least 3 sites" in said
    assert "may only be north, west, with the keys in the policy" in said
    assert "The server is not trusted: more than two thirds must be in it." in said
    assert "It takes part in up to 1 training with" in said
    assert "It never answers GramOf." in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("least_rows = 0\n", "least_rows is at least 1, not 0"),
        ('secure = "yes"\n', "secure is true or false, not 'yes'"),
        ("colour = 3\n", "has 'colour', which is no rule"),
        ("least_sites = 2\n", "of two sites each knows the other's part"),
        ("refuse = [3]\n", "refuse has 3, which is no kind of question; kinds are"),
        ("trainings = 1.5\n", "trainings is a whole number, not 1.5"),
        ("secure = \n", "cannot be read as TOML"),
    ],
)
def test_a_policy_that_is_none(text: str, words: str, sites: Path) -> None:
    (sites / "policy.toml").write_text(text)
    done = run(sites, *CLIENT, "--dry-run", "--policy", "policy.toml")
    assert done.returncode == 2
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_a_policy_that_wants_masks_and_options_that_do_not(sites: Path) -> None:
    (sites / "policy.toml").write_text("secure = true\n")
    done = run(sites, *CLIENT, "--dry-run", "--policy", "policy.toml", "--secure", "off")
    assert done.returncode == 2
    assert "wants secure totals" in " ".join(done.stderr.split())
