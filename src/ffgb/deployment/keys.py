"""Who is who between sites: the server's certificate, the sites' keys, and invitations that bring them together.

A site makes its own private key, which never leaves it.  The server's operator invites a site by one line of text: it
holds the server's address, the fingerprint of its certificate, and a secret that can be used once.  The site checks the
certificate by the fingerprint, shows the secret, and hands over its public key.  From then on each knows the other.

    keys/server.pem  keys/server.key     the server's certificate and its key
    keys/sites/NAME.pub                  public keys of the sites that may come in
    keys/invitations.json                open invitations: hashes of their secrets, and when they end
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import hmac
import importlib
import ipaddress
import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, final

from ffgb.engines.fleet import JOIN
from ffgb.engines.node import bounded, trusting
from ffgb.errors import FFGBError, missing_extra, option, printable
from ffgb.files import atomic_write

CERTIFICATE, KEY, AUTHORITY, SITES, INVITATIONS = "server.pem", "server.key", "ca.crt", "sites", "invitations.json"
DAYS = 3.0
"""That an invitation can be used, unless it says otherwise."""
REMEMBERED = 30 * 86400.0
"""Seconds that an invitation is known after its end: whoever comes with it is told what has become of it."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+):(\d{1,5})")
_LINE = re.compile(r"ffgb:(?P<name>[^@/\s]+)@(?P<address>[^@/\s]+)/(?P<certificate>[\w-]{43})/(?P<secret>[\w-]{27})")


class UnreachableError(FFGBError):
    """A server does not answer; it may later."""


def _crypto() -> tuple[Any, Any, Any, Any]:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise missing_extra("cryptography", "flower", "training between sites") from error
    return x509, hashes, serialization, ec


def check_name(name: str) -> str:
    """A site's name, if it can be one."""
    if not _NAME.fullmatch(name):
        raise FFGBError(f"{name!r} cannot be a site's name; use up to 64 letters, digits, - and _")
    return name


def check_address(address: str, what: str = option("server")) -> str:
    """HOST:PORT, if it is one; `what` names where it was given."""
    found = _ADDRESS.fullmatch(address)
    if found is None or not 0 < int(found[2]) < 65536:
        raise FFGBError(f"{what} is HOST:PORT, such as ffgb.example.org:9443, not {address!r}")
    return address


def is_loopback(host: str) -> bool:
    """Does this name or address stay on this machine?"""
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return False


def fingerprint(data: bytes) -> str:
    """The SHA-256 of a key or certificate, to be read out and compared: eight groups of four digits of it."""
    digest = hashlib.sha256(data).hexdigest()[:32]
    return ":".join(digest[i : i + 4] for i in range(0, 32, 4))


def der(pem: bytes, what: str) -> bytes:
    """The bytes of a certificate or public key in PEM."""
    x509, _, serialization, _ = _crypto()
    try:
        if b"CERTIFICATE" in pem:
            return bytes(x509.load_pem_x509_certificate(pem).public_bytes(serialization.Encoding.DER))
        key = serialization.load_pem_public_key(pem)
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        return bytes(key.public_bytes(serialization.Encoding.DER, form))
    except ValueError as error:
        raise FFGBError(f"{what} cannot be read ({error})") from error


# The server's folder


def server_files(folder: Path, hosts: Sequence[str]) -> tuple[Path, Path]:
    """The server's certificate and its key; they are made if the folder has none."""
    chain, key = folder / CERTIFICATE, folder / KEY
    with _locked(folder):
        if chain.exists() != key.exists():
            raise FFGBError(f"{folder} has only one of {CERTIFICATE} and {KEY}; bring both, or remove it")
        if not chain.exists():
            _make_certificate(folder, hosts)
    return chain, key


def _make_certificate(folder: Path, hosts: Sequence[str]) -> None:
    x509, hashes, s, ec = _crypto()
    private(folder)
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ffgb server")])
    names: list[Any] = []
    for host in dict.fromkeys([*(h.strip("[]") for h in hosts if h), "localhost", "127.0.0.1"]):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=3650))
        .add_extension(x509.BasicConstraints(False, None), True)
        .add_extension(x509.SubjectAlternativeName(names), False)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
    write_new(folder / KEY, secret, 0o600)
    write_new(folder / CERTIFICATE, certificate.public_bytes(s.Encoding.PEM), 0o644)


def registered(folder: Path) -> dict[str, bytes]:
    """The public keys (PEM) of the sites that may come in, by name."""
    found = {}
    for file in sorted((folder / SITES).glob("*.pub")):
        found[check_name(file.stem)] = public_pem(file.read_bytes(), str(file))
    return found


def public_pem(data: bytes, where: str) -> bytes:
    """A public key as PEM, from PEM or from the form that ssh-keygen writes."""
    _, _, s, ec = _crypto()
    if b"PRIVATE" in data:
        raise FFGBError(f"{where} is a private key; it belongs to its site alone: bring the public one (.pub)")
    try:
        key = s.load_ssh_public_key(data) if data.startswith(b"ecdsa-") else s.load_pem_public_key(data)
    except ValueError as error:
        raise FFGBError(f"{where} holds no public key ({error}); make one with: ssh-keygen -t ecdsa") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise FFGBError(f"{where} is no elliptic-curve key; make one with: ssh-keygen -t ecdsa")
    return bytes(key.public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo))


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The folder is changed by one process at a time."""
    private(folder)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _invitations(folder: Path) -> Iterator[dict[str, dict[str, Any]]]:
    """The invitations by name, to be changed: open ones, and those that ended or were used not long ago."""
    file = folder / INVITATIONS
    with _locked(folder):
        try:
            known: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}
        except ValueError as error:
            raise FFGBError(f"{file} is damaged ({error}); remove it, and invite again") from error
        now = {name: one for name, one in known.items() if one["ends"] > time.time() - REMEMBERED}
        yield now
        if now != known:
            atomic_write(file, json.dumps(now).encode(), 0o600)


@final
@dataclass(frozen=True)
class Invitation:
    """One line of text that lets one site in, once."""

    name: str
    address: str
    certificate: bytes
    """SHA-256 of the server's certificate."""
    secret: str

    def __str__(self) -> str:
        digest = base64.urlsafe_b64encode(self.certificate).decode().rstrip("=")
        return f"ffgb:{self.name}@{self.address}/{digest}/{self.secret}"

    @staticmethod
    def read(line: str) -> Invitation:
        found = _LINE.fullmatch(_without_marks(line))
        if found is None:
            raise FFGBError(f"{_what_it_is(line)}; an invitation is one line that begins with ffgb: and comes from the "
                            "server's operator")  # fmt: skip
        certificate = base64.urlsafe_b64decode(found["certificate"] + "=")
        name, address = check_name(found["name"]), check_address(found["address"], "the invitation's address")
        return Invitation(name, address, certificate, found["secret"])


def _without_marks(line: str) -> str:
    """An invitation as it was before a mail broke, quoted or indented it.

    >>> _without_marks('> "ffgb:east@127.0.0.1:9443/\\n> abc"')
    'ffgb:east@127.0.0.1:9443/abc'
    """
    return re.sub(r"[\s>\"'`<\u2018-\u201f]+", "", line)


def _what_it_is(line: str) -> str:
    """What someone gave in place of an invitation."""
    text = line.strip()
    if "PRIVATE KEY" in text:
        return "this is a private key, which no one else should see, and no invitation"
    if "PUBLIC KEY" in text or text.startswith(("ssh-", "ecdsa-")):
        return "this is a public key, and no invitation"
    if "CERTIFICATE" in text:
        return "this is a certificate, and no invitation"
    if re.fullmatch(r"([0-9a-f]{4}:)+[0-9a-f]{4}", text):
        return "this is the fingerprint of a key, and no invitation"
    if text.startswith("ffgb:"):
        return "this invitation is not whole: it may have lost its end, or a line break is in it"
    return "this is no invitation" if text else "the invitation is empty"


def invite(folder: Path, name: str, address: str, days: float = DAYS) -> Invitation:
    """Open an invitation; one that was open for this name ends."""
    check_name(name)
    host = check_address(address, option("address")).rpartition(":")[0]
    chain, _ = server_files(folder, [host])
    digest = hashlib.sha256(der(chain.read_bytes(), str(chain))).digest()
    secret = secrets.token_urlsafe(20)
    with _invitations(folder) as known:
        known[name] = {"secret": _hash(secret), "ends": time.time() + days * 86400.0}
    return Invitation(name, address, digest, secret)


def welcome(folder: Path, asked: Mapping[str, Any]) -> tuple[str, bytes]:
    """Whoever shows an open invitation's secret, and that it has the private key of its public one, is registered."""
    name, secret, key, proof = (str(asked[part]) for part in ("name", "secret", "key", "proof"))
    check_name(name)
    pem = public_pem(key.encode()[:4096], "the key")
    chain = folder / CERTIFICATE
    _, hashes, s, ec = _crypto()
    try:
        words = _words(name, der(chain.read_bytes(), str(chain)), pem)
        s.load_pem_public_key(pem).verify(bytes.fromhex(proof), words, ec.ECDSA(hashes.SHA256()))
    except Exception as error:  # InvalidSignature, or no signature at all
        raise FFGBError("the site did not show that it has the private key") from error
    with _invitations(folder) as known:
        file, one = folder / SITES / f"{name}.pub", known.get(name)
        invited = one is not None and hmac.compare_digest(str(one["secret"]), _hash(secret))
        if file.exists() and public_pem(file.read_bytes(), str(file)) == pem:
            if invited:
                known[name] = {**(one or {}), "used": time.time()}
            return name, pem  # it has joined before, and did not hear so
        if one is None or not invited:
            raise FFGBError("this invitation was never made here, or a newer one has replaced it; ask for a new one")
        if (used := one.get("used")) is not None:
            raise FFGBError(
                f"this invitation has been used ({_moment(used)}); if that was not this site, tell the operator that "
                "someone else has joined in its place, and ask for a new one"
            )
        if one["ends"] <= time.time():
            raise FFGBError(f"this invitation has ended ({_moment(one['ends'])}); ask for a new one")
        private(file.parent)
        atomic_write(file, pem, 0o644)
        known[name] = {**one, "used": time.time()}
    return name, pem


def _moment(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(when))


def _hash(secret: str) -> str:
    return hashlib.sha256(b"ffgb invitation " + secret.encode()).hexdigest()


def _words(name: str, certificate: bytes, pem: bytes) -> bytes:
    """What a site signs to show that a key is its own: here, and for this server alone."""
    return b"ffgb join " + name.encode() + hashlib.sha256(certificate).digest() + hashlib.sha256(pem).digest()


# The site's folder


def site_key(file: Path) -> Any:
    """A site's private key; it is made on first use, and read by its user alone."""
    _, _, s, ec = _crypto()
    if not file.exists():
        private(file.parent)
        key = ec.generate_private_key(ec.SECP256R1())
        write_new(file, key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption()), 0o600)
    data = file.read_bytes()
    if b"PRIVATE" not in data:
        raise FFGBError(f"{file} is a public key; {option('key')} is the private one, which only this site has")
    try:
        load = s.load_ssh_private_key if b"OPENSSH" in data else s.load_pem_private_key
        key = load(data, None)
    except (ValueError, TypeError) as error:
        raise FFGBError(f"{file} cannot be read as a private key without a password ({error})") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FFGBError(f"{file} is no elliptic-curve key; make one with: ssh-keygen -t ecdsa")
    return key


def own_public(key: Any) -> bytes:
    """A private key's public half, as PEM."""
    _, _, s, _ = _crypto()
    return bytes(key.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo))


def _httpx() -> Any:
    try:
        return importlib.import_module("httpx")
    except ImportError as error:
        raise missing_extra("httpx", "flower", "training between sites") from error


def join(invitation: Invitation, key: Any) -> bytes:
    """Hand the public key to the server of this invitation: its certificate (PEM), to be known by from now on."""
    httpx = _httpx()
    _, hashes, _, ec = _crypto()
    url = f"https://{invitation.address}"
    certificate, pem = _shown_by(url, invitation), own_public(key)
    words = _words(invitation.name, der(certificate, "the server's certificate"), pem)
    proof = key.sign(words, ec.ECDSA(hashes.SHA256())).hex()
    asked = {"name": invitation.name, "secret": invitation.secret, "key": pem.decode(), "proof": proof}
    try:
        hooks: Any = {"response": [bounded(lambda path: 65536)]}
        with httpx.Client(verify=trusting(certificate, pinned=True), timeout=30.0, event_hooks=hooks) as client:
            answer = client.post(url + JOIN, json=asked)
    except httpx.HTTPError as error:
        raise UnreachableError(f"the server at {invitation.address} does not answer ({_why(error)})") from error
    if answer.status_code != 200:
        try:
            why = str(answer.json()["detail"])
        except (ValueError, KeyError, TypeError):
            why = f"it answers with status {answer.status_code}"
        raise FFGBError(f"the server at {invitation.address} does not let this site in: {printable(why[:300])}")
    return certificate


def _why(error: Exception) -> str:
    """What the system says, without its numbers."""
    return re.sub(r"\[Errno -?\d+\] ", "", str(error)) or type(error).__name__


def _shown_by(url: str, invitation: Invitation) -> bytes:
    """The certificate of the server at this address, if it is the invitation's."""
    import ssl

    httpx = _httpx()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # what is shown is compared below
    try:
        with httpx.Client(verify=context, timeout=30.0) as client, client.stream("GET", url) as answer:
            shown = answer.extensions["network_stream"].get_extra_info("ssl_object").getpeercert(True)
    except httpx.HTTPError as error:
        raise UnreachableError(
            f"the server at {invitation.address} cannot be reached ({_why(error)}): is it running, and is its port "
            "open?"
        ) from error
    if not hmac.compare_digest(hashlib.sha256(shown).digest(), invitation.certificate):
        raise FFGBError(
            f"the certificate of the server at {invitation.address} is not the one in the invitation: somebody may be "
            "between this site and the server; nothing was sent"
        )
    return ssl.DER_cert_to_PEM_cert(shown).encode()


# Files


def private(folder: Path) -> None:
    """A folder that only its user can look into."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)


def write_new(path: Path, data: bytes, mode: int) -> None:
    """A file that was not there, with its permissions from the start."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError as error:
        raise FFGBError(f"{path} exists already, and keys are never overwritten") from error
