"""Certificates, keys and invitations: who can join, and who cannot."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives import serialization as s
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from ffgb.cli.sites import _invitation, invite
from ffgb.deployment import keys
from ffgb.deployment.keys import Invitation, UnreachableError
from ffgb.deployment.site import Home
from ffgb.engines.fleet import Fleet
from ffgb.engines.node import trusting
from ffgb.errors import FFGBError
from tests.deployment.real import free_port


@contextmanager
def door(folder: Path) -> Iterator[tuple[Fleet, str]]:
    """A server that lets invited sites join."""
    port = free_port()
    fleet = Fleet(
        "127.0.0.1", port, keys.server_files(folder, ["127.0.0.1"]), join=lambda asked: keys.welcome(folder, asked)
    )
    with fleet.listening():
        yield fleet, f"127.0.0.1:{port}"


def test_a_site_joins_once_by_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder, stop = tmp_path / "keys", threading.Event()
    with door(folder) as (fleet, address):
        line = str(keys.invite(folder, "north", address))
        invitation, home = Invitation.read(line + "\n"), Home.of(address, "north")
        assert home.join(invitation, stop, print)
        assert not home.join(invitation, stop, print)  # it has
        key = home.folder / "key"
        assert key.stat().st_mode & 0o077 == 0
        assert home.folder.stat().st_mode & 0o077 == 0
        assert [guest.name for guest in fleet.guests.values()] == ["north"]
        assert keys.registered(folder) == {"north": keys.own_public(keys.site_key(key))}
        assert b"PRIVATE" not in (folder / "sites" / "north.pub").read_bytes()
        secret = invitation.secret.encode()
        assert not any(secret in path.read_bytes() for path in folder.rglob("*") if path.is_file())
        assert Home.known(address) == ["north"]
        # the same line in other hands
        with pytest.raises(FFGBError, match=r"has been used \(2.* UTC\); if that was not this site"):
            keys.join(invitation, keys.site_key(tmp_path / "thief"))
        # whoever has joined and did not hear so asks again
        assert keys.join(invitation, keys.site_key(key))


def test_an_invitation_ends_and_a_new_one_replaces_it(tmp_path: Path) -> None:
    folder, key = tmp_path / "keys", keys.site_key(tmp_path / "key")
    with door(folder) as (fleet, address):
        late = keys.invite(folder, "north", address, days=0.0)
        with pytest.raises(FFGBError, match=r"has ended \(2.* UTC\); ask for a new one"):
            keys.join(late, key)
        first, second = (keys.invite(folder, "north", address) for _ in range(2))
        with pytest.raises(FFGBError, match="a newer one has replaced it"):
            keys.join(first, key)
        keys.join(second, key)
        # a site that lost its key is invited anew: the old key is out
        keys.join(keys.invite(folder, "north", address), keys.site_key(tmp_path / "another"))
        assert [keys.own_public(keys.site_key(tmp_path / "another"))] == list(fleet.guests)


def test_a_server_that_is_another_gets_nothing(tmp_path: Path) -> None:
    """Somebody between a site and its server shows a certificate of their own."""
    asked: list[Any] = []
    port = free_port()
    address = f"127.0.0.1:{port}"
    invitation = keys.invite(tmp_path / "real", "north", address)

    def record(request: Any) -> tuple[str, bytes]:
        asked.append(request)
        raise FFGBError("no")

    fake = Fleet("127.0.0.1", port, keys.server_files(tmp_path / "fake", []), join=record)
    with fake.listening(), pytest.raises(FFGBError, match="is not the one in the invitation"):
        keys.join(invitation, keys.site_key(tmp_path / "key"))
    assert not asked
    with pytest.raises(UnreachableError, match="is it running"):
        keys.join(invitation, keys.site_key(tmp_path / "key"))


def test_joining_needs_the_private_key_and_the_secret(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    invitation = keys.invite(folder, "north", "127.0.0.1:1")
    mine, other = keys.site_key(tmp_path / "mine"), keys.site_key(tmp_path / "other")
    certificate = keys.der((folder / keys.CERTIFICATE).read_bytes(), "it")

    def ask(**changes: Any) -> dict[str, Any]:
        from cryptography.hazmat.primitives import hashes

        words = keys._words("north", certificate, keys.own_public(mine))
        proof = changes.pop("by", mine).sign(words, ec.ECDSA(hashes.SHA256())).hex()
        pem = keys.own_public(mine).decode()
        return {"name": "north", "secret": invitation.secret, "key": pem, "proof": proof, **changes}

    for bad, words in (
        (ask(by=other), "private key"),
        (ask(key=keys.own_public(other).decode()), "private key"),
        (ask(proof="00"), "private key"),
        (ask(name="south"), "private key"),
        (ask(secret="x" * 27), "was never made here"),
        (ask(name="../north"), "cannot be a site's name"),
        (ask(key="nothing"), "holds no public key"),
        (ask(key=(tmp_path / "mine").read_text()), "is a private key"),
    ):
        with pytest.raises(FFGBError, match=words):
            keys.welcome(folder, bad)
    with pytest.raises(KeyError):
        keys.welcome(folder, {"name": "north"})
    assert keys.registered(folder) == {}
    assert keys.welcome(folder, ask())[0] == "north"


@pytest.mark.parametrize(
    "line", ["", "ffgb:north", "ffgb:north@host/x/y", "ffgb:north@@h:1/" + "a" * 43 + "/" + "b" * 27,
             "ffgb:n@h:99999/" + "a" * 43 + "/" + "b" * 27, "ffgb:n@h/" + "a" * 43 + "/" + "b" * 27],
)  # fmt: skip
def test_what_is_no_invitation_is_said(line: str) -> None:
    with pytest.raises(FFGBError, match=r"no invitation|HOST:PORT|an invitation is one line"):
        Invitation.read(line)


def test_an_invitation_may_have_the_marks_of_a_mail() -> None:
    line = "ffgb:north@h:1/" + "A" * 43 + "/" + "b" * 27
    for text in (f" {line}\n", f'"{line}"', f"> {line}", f"> {line[:50]}\n> {line[50:]}\n"):
        assert str(Invitation.read(text)) == line
    for text in (line[:-1], line + "x", line + line):
        with pytest.raises(FFGBError, match="this invitation is not whole"):
            Invitation.read(text)


def test_a_package_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    invitation, key = keys.invite(tmp_path, "north", "127.0.0.1:1"), keys.site_key(tmp_path / "key")
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(FFGBError, match=r"needs httpx, which is not installed; run: pip install 'ffgb\[flower\]'"):
        keys.join(invitation, key)


def test_keys_of_ones_own(tmp_path: Path) -> None:
    """As ssh-keygen writes them; and what is no such key."""
    key = ec.generate_private_key(ec.SECP384R1())
    (tmp_path / "north").write_bytes(key.private_bytes(s.Encoding.PEM, s.PrivateFormat.OpenSSH, s.NoEncryption()))
    (tmp_path / "sites").mkdir()
    public = key.public_key().public_bytes(s.Encoding.OpenSSH, s.PublicFormat.OpenSSH)
    (tmp_path / "sites" / "north.pub").write_bytes(public + b" somebody@host\n")
    assert keys.own_public(keys.site_key(tmp_path / "north")) == keys.registered(tmp_path)["north"]
    (tmp_path / "sites" / "north.pub").write_bytes((tmp_path / "north").read_bytes())
    with pytest.raises(FFGBError, match="is a private key; it belongs to its site alone"):
        keys.registered(tmp_path)
    (tmp_path / "public").write_bytes(public)
    with pytest.raises(FFGBError, match="is a public key; --key is the private one"):
        keys.site_key(tmp_path / "public")
    other = ed25519.Ed25519PrivateKey.generate()
    (tmp_path / "ed").write_bytes(other.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption()))
    with pytest.raises(FFGBError, match="no elliptic-curve key"):
        keys.site_key(tmp_path / "ed")
    (tmp_path / "locked").write_bytes(
        key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.BestAvailableEncryption(b"x"))
    )
    with pytest.raises(FFGBError, match="without a password"):
        keys.site_key(tmp_path / "locked")


def test_files_are_private_and_made_once(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    made: list[Any] = []
    threads = [threading.Thread(target=lambda: made.append(keys.server_files(folder, ["h"]))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4
    assert len({chain.read_bytes() for chain, _ in made}) == 1
    assert (folder / keys.KEY).stat().st_mode & 0o077 == 0
    assert folder.stat().st_mode & 0o077 == 0
    keys.invite(folder, "north", "h:1")
    assert (folder / keys.INVITATIONS).stat().st_mode & 0o077 == 0
    known = json.loads((folder / keys.INVITATIONS).read_text())
    assert known["north"]["ends"] > time.time() + 2 * 86400
    with pytest.raises(FFGBError, match="never overwritten"):
        keys.write_new(folder / keys.KEY, b"x", 0o600)
    os.unlink(folder / keys.CERTIFICATE)  # noqa: PTH108
    with pytest.raises(FFGBError, match="only one of"):
        keys.server_files(folder, [])


def test_a_key_is_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    home = Home.of("h:1", "north")
    with home.alone(), pytest.raises(FFGBError, match="another ffgb client is site north"), home.alone():
        pass


@pytest.mark.parametrize(
    ("host", "near"), [("127.0.0.1", True), ("localhost", True), ("::1", True), ("[::1]", True), ("127.9.9.9", True),
                       ("0.0.0.0", False), ("10.0.0.1", False), ("example.org", False), ("::", False)],
)  # fmt: skip
def test_loopback(host: str, near: bool) -> None:
    assert keys.is_loopback(host) == near


def test_an_invitation_is_spent_by_whoever_uses_it(tmp_path: Path) -> None:
    """Also by a site whose key is known already: the line is no one else's afterwards."""
    folder, key = tmp_path / "keys", keys.site_key(tmp_path / "key")
    with door(folder) as (_, address):
        keys.join(keys.invite(folder, "north", address), key)
        again = keys.invite(folder, "north", address)
        keys.join(again, key)
        with pytest.raises(FFGBError, match="has been used"):
            keys.join(again, keys.site_key(tmp_path / "thief"))
    assert keys.registered(folder) == {"north": keys.own_public(key)}


def test_a_site_that_was_removed_or_lost_its_key_is_invited_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder, stop = tmp_path / "keys", threading.Event()
    with door(folder) as (_, address):
        home = Home.of(address, "north")
        assert home.join(keys.invite(folder, "north", address), stop, print)
        (home.folder / "key").unlink()
        assert home.join(keys.invite(folder, "north", address), stop, print)
        own = keys.own_public(keys.site_key(home.folder / "key"))
        assert keys.registered(folder) == {"north": own}
        (folder / "sites" / "north.pub").unlink()
        assert home.join(keys.invite(folder, "north", address), stop, print)
        assert keys.registered(folder) == {"north": own}


def request(key: str, **changes: Any) -> bytes:
    return json.dumps({"name": "north", "secret": "x", "key": key, "proof": "00", **changes}).encode()


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b"[" * 60_000, b'{"name": ' * 5_000, b"9" * 60_000, b"\xff\xfe", b'{"name": "north"}',
     request("\ud800"), request("y", name=1e9, secret=[], proof={}), request("ecdsa-sha2-nistp256 AAAA"),
     request("-----BEGIN PUBLIC KEY-----\nMA==\n-----END PUBLIC KEY-----"), request("y", name="../north")],
)  # fmt: skip
def test_what_a_stranger_writes_is_answered_in_words(body: bytes, asking: tuple[Any, str]) -> None:
    """And nobody is registered by it."""
    client, address = asking
    found = client.post(f"https://{address}/v1/ffgb/join", content=body)
    assert found.status_code in (400, 403)
    assert "detail" in found.json()


def test_a_long_request_to_join_is_not_read(asking: tuple[Any, str]) -> None:
    client, address = asking
    assert client.post(f"https://{address}/v1/ffgb/join", content=bytes(65_537)).status_code == 413


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, str]]:
    """Someone with the address of a server that has invited a site."""
    import httpx

    folder = tmp_path_factory.mktemp("keys")
    with pytest.MonkeyPatch.context() as patch, door(folder) as (fleet, address):
        patch.setattr("ffgb.engines.fleet.GUESSING", 0.0)
        keys.invite(folder, "north", address)
        context = trusting((folder / keys.CERTIFICATE).read_bytes(), pinned=True)
        with httpx.Client(verify=context, timeout=20.0) as client:
            yield client, address
        assert not fleet.guests
        assert not keys.registered(folder)


def test_an_invitation_may_come_as_a_file(tmp_path: Path) -> None:
    line = str(keys.invite(tmp_path / "keys", "north", "127.0.0.1:1"))
    file = tmp_path / "north.invitation"
    file.write_text(f"> {line[:40]}\n> {line[40:]}\n")
    for given in (line, str(file)):
        assert str(_invitation(given)) == line
    with pytest.raises(FFGBError, match="this is a certificate"):
        _invitation(str(tmp_path / "keys" / "server.pem"))
    with pytest.raises(FFGBError, match="this is no invitation"):
        _invitation(str(tmp_path / "gone"))


def test_a_second_invitation_for_a_site_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    invite("north", tls=tmp_path)
    assert "takes its place" not in capsys.readouterr().err
    sites = tmp_path / "sites"
    sites.mkdir(exist_ok=True)
    key = keys.site_key(tmp_path / "key")
    (sites / "north.pub").write_bytes(keys.own_public(key))
    invite("north", tls=tmp_path)
    assert "north has joined before: whoever uses this line takes its place" in capsys.readouterr().err
