"""Real processes: a SuperLink and three SuperNodes on loopback, with TLS and keys; and what the commands refuse."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from sklearn.datasets import load_digits

from ffgb.config import Config
from ffgb.deploy import make_keys
from ffgb.errors import FFGBError
from ffgb.runs import Run
from ffgb.training import train

FFGB = [sys.executable, "-m", "ffgb"]
NAMES = ("east", "north", "west")
CONFIG = 'learner = "linear"\ngeometry = "local"\nrounds = 3\nschedule = "constant"\n'


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    """Digits, dealt out to three files."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    for k, name in enumerate(NAMES):
        rows = order[k::3]
        table = np.column_stack([digits.data[rows], digits.target[rows]]).astype(int)
        header = ",".join([*(f"p{i}" for i in range(64)), "digit"])
        np.savetxt(tmp_path / f"{name}.csv", table, "%d", ",", header=header, comments="")
    (tmp_path / "run.toml").write_text(CONFIG)
    return tmp_path


def free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


@contextmanager
def started(folder: Path, log: str, *arguments: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A command under way; it and all that it started are gone afterwards."""
    with (folder / log).open("wb") as file:
        command = [*FFGB, *map(str, arguments)]
        process = subprocess.Popen(command, cwd=folder, stdout=file, stderr=file, stdin=subprocess.DEVNULL)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def client(folder: Path, port: int, name: str, *more: Any) -> Any:
    security = ("--tls", "keys", "--key", f"keys/sites/{name}")
    arguments = ("--server", f"127.0.0.1:{port}", "--data", f"{name}.csv", "--target", "digit", "--config", "run.toml")
    return started(folder, f"{name}.log", "client", *arguments, *(more or security), "--yes")


def test_three_sites_over_tls_train_the_model_of_one_machine(sites: Path) -> None:
    make_keys(sites / "keys", "127.0.0.1", NAMES)
    make_keys(sites / "others", "127.0.0.1", ["west"])  # a key that no one registered
    port = free_port()
    options = ("--clients", 3, "--config", "run.toml", "--target", "digit", "--tls", "keys", "--port", port)
    began = time.monotonic()
    with (
        started(sites, "server.log", "server", *options, "--minimum", 3, "--deadline", 120, "--out", "run") as server,
        client(sites, port, "east"),
        client(sites, port, "north"),
        client(sites, port, "west", "--tls", "keys", "--key", "others/sites/west", "--name", "impostor"),
        started(sites, "real.log", "client", "--server", f"127.0.0.1:{port}", "--data", "west.csv", "--target", "digit",
                "--config", "run.toml", "--tls", "keys", "--key", "keys/sites/west", "--yes"),
    ):  # fmt: skip
        code = server.wait(timeout=230)
    seconds = time.monotonic() - began
    text = (sites / "server.log").read_text()
    assert code == 0, text
    assert seconds < 240
    assert "round 3 of 3" in text
    assert "the node ended" in (sites / "west.log").read_text()  # the impostor never came in
    files = tuple(str(sites / f"{name}.csv") for name in NAMES)
    here = Config(data=files, target="digit", learner="linear", geometry="local", rounds=3, schedule="constant")
    train(here, sites / "here", workers=0)
    assert (sites / "run" / "model.safetensors").read_bytes() == (sites / "here" / "model.safetensors").read_bytes()
    assert Run.open(sites / "run").summary["participants"] == 3
    left = subprocess.run(["pgrep", "-f", f"127.0.0.1:{port}"], capture_output=True, text=True, check=False)
    assert left.stdout == ""


def test_keys_are_made_once_and_private(tmp_path: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    written = make_keys(tmp_path / "keys", "ffgb.example.org", ["a", "b-1"])
    assert {str(path.relative_to(tmp_path / "keys")) for path in written} == {
        "ca.crt", "server.pem", "server.key", "sites/a", "sites/a.pub", "sites/b-1", "sites/b-1.pub",
    }  # fmt: skip
    for secret in ("server.key", "sites/a"):
        assert (tmp_path / "keys" / secret).stat().st_mode & 0o077 == 0
    authority, server = (
        x509.load_pem_x509_certificate((tmp_path / "keys" / name).read_bytes()) for name in ("ca.crt", "server.pem")
    )
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "ffgb.example.org" in names.get_values_for_type(x509.DNSName)
    load_ssh_private_key((tmp_path / "keys" / "sites" / "a").read_bytes(), None)
    with pytest.raises(FFGBError, match="is not empty"):
        make_keys(tmp_path / "keys", "x", ["a"])
    for bad in ([], ["a", "a"], ["../a"], [""]):
        with pytest.raises(FFGBError, match="a name of its own"):
            make_keys(tmp_path / "more", "x", bad)
    assert not (tmp_path / "more").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("server", "--clients", 3), "give --tls DIR"),
        (("server", "--clients", 3, "--insecure", "--tls", "keys"), "give --tls DIR"),
        (("server", "--clients", 3, "--tls", "nowhere"), "ffgb tls init"),
        (("server", "--clients", 3, "--insecure", "--config", "none.toml"), "cannot be read as TOML"),
        (("server", "--clients", 3, "--insecure", "--config", "odd.toml"), "'colour', which is no option"),
        (("client", "--server", "x:1", "--data", "east.csv"), "give --tls DIR"),
        (("client", "--server", "x:1", "--data", "east.csv", "--tls", "."), "needs its own --key"),
        (("client", "--server", "x:1", "--data", "east.csv", "--tls", ".", "--key", "k"), "k is not there"),
        (("client", "--server", "x:1", "--data", "far.csv", "--insecure"), "far.csv"),
        (("client", "--server", "x:1", "--data", "east.csv", "--target", "digit", "--insecure"), "nothing was sent"),
    ],
)
def test_mistakes_are_told_in_a_sentence(sites: Path, arguments: tuple[Any, ...], words: str) -> None:
    (sites / "odd.toml").write_text("colour = 3\n")
    done = subprocess.run(
        [*FFGB, *map(str, arguments)], cwd=sites, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
        env={**os.environ, "XDG_STATE_HOME": str(sites / "state")},
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not (sites / "runs").exists()


def test_a_dry_run_shows_forms_and_never_values(sites: Path) -> None:
    arguments = ("client", "--server", "x:1", "--data", "east.csv", "--target", "digit", "--dry-run")
    done = subprocess.run([*FFGB, *arguments], cwd=sites, capture_output=True, text=True, check=True)
    assert "gram float32[" in " ".join(done.stdout.split())
    assert "increment" in done.stdout
    refused = subprocess.run(
        [*FFGB, *arguments, "--config", "run.toml"], cwd=sites, capture_output=True, text=True, check=True
    )
    assert "gram" not in refused.stdout
