"""`ffgb doctor`: findings with remedies; and the recipes of docs/install.md, checked without building anything."""

from __future__ import annotations

import configparser
import re
import shlex
import socket
import time
from email.utils import formatdate
from pathlib import Path

import pytest
from typer.main import get_command

pytest.importorskip("cryptography")

import ffgb.cli.doctor  # noqa: F401  (its command)
from ffgb.cli.common import app
from ffgb.deployment import doctor
from ffgb.deployment.doctor import BAD, NOTE, OK, Finding, examine
from ffgb.deployment.keys import Invitation, server_files
from ffgb.errors import FFGBError
from tests.conftest import ROOT


def finding(found: list[Finding], what: str) -> Finding:
    return next(one for one in found if one.what == what)


def test_a_machine_that_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    server_files(tmp_path / "keys", ["127.0.0.1"])
    found = examine(tmp_path / "keys", 9443)
    assert finding(found, "extra secure").status == OK
    assert finding(found, "the server's certificate").status == OK
    assert all(one.remedy for one in found if one.status != OK)


def test_what_is_bad_has_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "available", lambda: 10**8)
    monkeypatch.setattr(doctor, "DISK", 2**70)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (tmp_path / "server.pem").write_text("no certificate")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        found = examine(tmp_path, taken.getsockname()[1])
    assert finding(found, "memory") == Finding(
        "memory", BAD, "0.1 GB free", "end other programs, or take a machine with more"
    )
    assert finding(found, "port").status == NOTE
    assert finding(found, "disk").remedy == "remove files, or use another folder"
    assert finding(found, "extra excel").remedy == "pip install 'ffgb[excel]', if you need it"
    assert "cannot be read" in finding(found, "the server's certificate").says
    with pytest.raises(FFGBError, match="memory, disk, disk, the server's certificate: see the remedies above"):
        doctor.refuse(found)


def test_the_way_to_a_server(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    found = finding(examine(tmp_path, 9443, f"127.0.0.1:{port}"), "server")
    assert (found.status, found.says) == (BAD, f"nothing listens at 127.0.0.1:{port}")
    assert [one.status for one in doctor._clock(formatdate(time.time() + 10))] == [OK]
    (late,) = doctor._clock(formatdate(time.time() + 3600))
    assert late.says == "3600 s behind the server" or late.says == "3599 s behind the server"
    assert late.remedy == "switch NTP on"
    assert list(doctor._clock("yesterday")) == list(doctor._clock(None)) == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("-----BEGIN PUBLIC KEY-----", "this is a public key, and no invitation"),
        ("ecdsa-sha2-nistp384 AAAA", "this is a public key"),
        ("-----BEGIN EC PRIVATE KEY-----", "a private key, which no one else should see"),
        ("-----BEGIN CERTIFICATE-----", "this is a certificate"),
        ("4e4a:2ff5:d1eb:7784:15b9:d97b:b61c:70db", "this is the fingerprint of a key"),
        ("ffgb:north@127.0.0.1:9443/abc", "this invitation is not whole"),
        ("", "the invitation is empty"),
        ("hello", "this is no invitation"),
    ],
)
def test_what_is_given_in_place_of_an_invitation(line: str, words: str) -> None:
    with pytest.raises(FFGBError, match=words):
        Invitation.read(line)


def test_the_container_recipe() -> None:
    text = (ROOT / "deploy" / "Containerfile").read_text().replace("\\\n", " ")
    steps = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    words = [step for step, _ in steps]
    assert words[0] == "FROM"
    known = {"FROM", "ARG", "COPY", "RUN", "USER", "WORKDIR", "ENV", "VOLUME", "EXPOSE", "ENTRYPOINT", "CMD"}
    assert set(words) <= known
    content = dict(steps)
    assert re.fullmatch(r"python:3\.\d+-slim", content["FROM"])  # a version, and no host
    assert content["USER"] not in ("root", "0")
    assert words.index("USER") > max(i for i, word in enumerate(words) if word == "RUN")
    assert "--no-cache-dir" in content["RUN"]
    assert not re.search(r"(?i)password|secret|token|private", " ".join(what for _, what in steps))
    assert content["EXPOSE"] == "9443"


def commands() -> list[list[str]]:
    """Of units and containers in docs/install.md: the words after ffgb."""
    text = (ROOT / "docs" / "install.md").read_text()
    found = []
    for block in re.findall(r"```ini\n(.*?)```", text, re.DOTALL):
        unit = configparser.ConfigParser()
        unit.optionxform = str  # type: ignore[assignment, method-assign]
        unit.read_string(block)
        assert unit["Service"]["User"] != "root"
        assert unit["Service"]["NoNewPrivileges"] == "true"
        found.append(shlex.split(unit["Service"]["ExecStart"])[1:])
    found += [shlex.split(line.partition(" ffgb ")[2]) for line in text.splitlines() if line.startswith("podman run")]
    return found


def test_the_commands_of_units_and_containers_exist() -> None:
    assert len(commands()) == 4
    root = get_command(app)
    for name, *words in commands():
        command = root.get_command(None, name)  # type: ignore[attr-defined]
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known
