"""What keeps a machine from training, or from reaching its server, with a remedy for each."""

from __future__ import annotations

import hashlib
import http.client
import importlib.util
import os
import platform
import shutil
import socket
import ssl
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, final

from ffgb._version import __version__
from ffgb.deployment.keys import CERTIFICATE, check_address
from ffgb.deployment.site import PINNED, Home, state_folder
from ffgb.errors import FFGBError
from ffgb.hardware import available, cores

OK, NOTE, BAD = "ok", "note", "bad"
EXTRAS: Final[Mapping[str, tuple[str, str, str]]] = {
    "flower": ("flwr", "flwr", "training between sites"),
    "secure": ("cryptography", "cryptography", "totals under masks"),
    "excel": ("openpyxl", "openpyxl", "Excel workbooks"),
    "onnx": ("onnxruntime", "onnxruntime", "files for production"),
    "fast": ("numba", "numba", "faster trees"),
    "sql": ("duckdb", "duckdb", "queries of DuckDB"),
    "plots": ("matplotlib", "matplotlib", "pictures"),
    "neural": ("torch", "torch", "--learner cnn"),
}
"""Of each extra: the module, its package, and what needs it."""
MEMORY, DISK, DAYS, SKEW = 10**9, 10**9, 30.0, 300.0
"""Bytes that should be free, days that a certificate should be valid, and seconds that clocks may differ."""
WAIT = 5.0
"""Seconds that a server has to answer."""


@final
@dataclass(frozen=True)
class Finding:
    """What was looked at, how it is, and what to do if it should be otherwise."""

    what: str
    status: str
    says: str
    remedy: str = ""


def examine(tls: Path, port: int, server: str | None = None) -> list[Finding]:
    """All findings about this machine; with a server's address also about the way to it."""
    found = [_python(), *_extras(), _cores(), _memory(), *_disks([Path.cwd(), state_folder()]), _port(port)]
    found += _certificate("the server's certificate", tls / CERTIFICATE)
    return [*found, *(_way_to(check_address(server)) if server is not None else ())]


def _python() -> Finding:
    return Finding("version", OK, f"ffgb {__version__}, Python {platform.python_version()} ({sys.platform})")


def _extras() -> Iterator[Finding]:
    for extra, (module, package, use) in EXTRAS.items():
        if importlib.util.find_spec(module) is None:
            yield Finding(
                f"extra {extra}", NOTE, f"not installed: {use}", f"pip install 'ffgb[{extra}]', if you need it"
            )
            continue
        try:
            yield Finding(f"extra {extra}", OK, f"{package} {version(package)}")
        except PackageNotFoundError:
            yield Finding(f"extra {extra}", OK, package)


def _cores() -> Finding:
    return Finding("cores", OK, f"{cores()}")


def _memory() -> Finding:
    free = available()
    said = f"{free / 1e9:.1f} GB free"
    if free < MEMORY:
        return Finding("memory", BAD, said, "end other programs, or take a machine with more")
    return Finding("memory", OK, said)


def _disks(folders: Sequence[Path]) -> Iterator[Finding]:
    for folder in folders:
        there = next(path for path in (folder, *folder.parents) if path.exists())
        free = shutil.disk_usage(there).free
        said = f"{free / 1e9:.1f} GB free in {folder}"
        if not os.access(there, os.W_OK):
            yield Finding("disk", BAD, f"{there} cannot be written to", "use another folder, or change its owner")
        elif free < DISK:
            yield Finding("disk", BAD, said, "remove files, or use another folder")
        else:
            yield Finding("disk", OK, said)


def _port(port: int) -> Finding:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError as error:
            says = f"{port} cannot be listened on ({error.strerror})"
            return Finding("port", NOTE, says, "if this is the server's machine: end the other process, or use --port")
    return Finding("port", OK, f"{port} is free")


def _certificate(what: str, file: Path) -> Iterator[Finding]:
    """Until when a certificate is valid, if there is one."""
    if not file.exists():
        return
    try:
        from cryptography import x509

        until = x509.load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc
    except (ImportError, ValueError) as error:
        yield Finding(what, BAD, f"{file} cannot be read ({error})", "restore it from a backup, or make a new one")
        return
    days = (until - datetime.now(UTC)).total_seconds() / 86400
    if days < DAYS:
        yield Finding(
            what, BAD, f"valid until {until:%Y-%m-%d}", f"remove {file}, start the server, and invite all again"
        )
    else:
        yield Finding(what, OK, f"valid until {until:%Y-%m-%d}")


def _way_to(address: str) -> Iterator[Finding]:
    """Whether the server is reached, shows the certificate that this site trusts, and has the same time."""
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is compared by all of its bytes
    connection = http.client.HTTPSConnection(host.strip("[]"), int(port), timeout=WAIT, context=context)
    try:
        connection.connect()
        assert isinstance(connection.sock, ssl.SSLSocket)
        shown = connection.sock.getpeercert(binary_form=True) or b""
        yield Finding("server", OK, f"{address} is reached")
        yield from _known(address, shown)
        connection.request("GET", "/")
        yield from _clock(connection.getresponse().headers.get("Date"))
    except socket.gaierror:
        yield Finding("server", BAD, f"the name {host} is not known", "check the address with the server's operator")
    except ssl.SSLError as error:
        yield Finding("server", BAD, f"{address} answers without TLS ({error.reason})", "ask its operator for the port")
    except ConnectionRefusedError:
        yield Finding("server", BAD, f"nothing listens at {address}", "ask its operator whether it is started")
    except OSError as error:
        yield Finding(
            "server", BAD, f"{address} does not answer ({error})", "ask your network's operator to open the port"
        )
    except http.client.HTTPException:
        yield Finding("server", NOTE, f"{address} speaks no HTTP", "check the address with the server's operator")
    finally:
        connection.close()


def _known(address: str, shown: bytes) -> Iterator[Finding]:
    names = Home.known(address)
    if not names:
        yield Finding(
            "invitation", NOTE, f"this machine has not joined {address}", "ffgb client --join LINE --data FILE"
        )
    for name in names:
        file = Home.of(address, name).folder / PINNED
        pinned = ssl.PEM_cert_to_DER_cert(file.read_text())
        if hashlib.sha256(pinned).digest() == hashlib.sha256(shown).digest():
            yield Finding(f"certificate for {name}", OK, "the server shows the one in the invitation")
        else:
            yield Finding(
                f"certificate for {name}", BAD, "the server's certificate is not the one in the invitation",
                "it may be another server; ask its operator for a new invitation",
            )  # fmt: skip


def _clock(date: str | None) -> Iterator[Finding]:
    if date is None:
        return
    try:
        skew = time.time() - parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return
    if abs(skew) > SKEW:
        yield Finding(
            "clock", BAD, f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the server", "switch NTP on"
        )
    else:
        yield Finding("clock", OK, "as the server's, to five minutes")


def refuse(found: Sequence[Finding]) -> None:
    """Raise an FFGBError if something is bad."""
    if bad := [one.what for one in found if one.status == BAD]:
        raise FFGBError(f"{', '.join(bad)}: see the remedies above")
