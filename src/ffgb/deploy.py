"""Real sites: the commands `ffgb server`, `ffgb client` and `ffgb tls`, over Flower's SuperLink and SuperNode.

They start Flower's own programs with its telemetry, update check and installing at run time switched off, watch over
them, and end them.  What is trained is the app in engines/flower.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any, final

from ffgb.config import Config
from ffgb.data.dataset import REGRESSION
from ffgb.engines.node import ENVIRONMENT, receive, send
from ffgb.errors import FFGBError, missing_extra
from ffgb.guard import __file__ as guard_file
from ffgb.runs import Run
from ffgb.sites import SITES_FILE, Attendant, Rehearsal, Schema, Site
from ffgb.training import Elsewhere, train

CA, CERTIFICATE, KEY, SITES = "ca.crt", "server.pem", "server.key", "sites"
REFUSED = "Exit Code: 305"
"""What a SuperNode says when its key is not registered, or its last node is still counted as present."""
APP = {
    "pyproject.toml": """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "ffgb-app"
version = "1.0.0"
description = "ffgb between sites"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41.0"]

[tool.flwr.app]
publisher = "ffgb"
fab-format-version = 1
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "ffgb_app.server:app"
clientapp = "ffgb_app.client:app"

[tool.flwr.app.config]
job = ""
""",
    "LICENSE": "Apache-2.0\n",
    "ffgb_app/__init__.py": "",
    "ffgb_app/client.py": "from ffgb.engines.node import client_app\n\napp = client_app()\n",
    "ffgb_app/server.py": "from ffgb.engines.flower import server_app\n\napp = server_app()\n",
}
"""The bundle that Flower hands to all: it holds no code, but the names of ours."""


@final
@dataclass(frozen=True)
class Service:
    """What a server needs to know besides the training itself."""

    clients: int
    minimum: int
    host: str
    port: int
    tls: Path | None
    deadline: float
    patience: float

    @property
    def near(self) -> str:
        """Where it is reached from this machine."""
        return "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host  # noqa: S104

    @property
    def called(self) -> str:
        """The same, by a name that its certificate has: Flower's own programs on this machine check it, too."""
        return self.near if self.tls is None else name_in(self.tls / CERTIFICATE, self.near, self.port)


def environment(home: Path) -> dict[str, str]:
    """Of Flower's programs."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, **ENVIRONMENT, "FLWR_HOME": str(home), "PATH": path}


def ended(out: Path, settings: Mapping[str, Any]) -> bool:
    """Is the run there over?  An FFGBError if it was begun with other options; more rounds may be asked for."""
    run, asked = Run.open(out), json.loads(json.dumps(dict(settings)))
    begun = json.loads((out / SITES_FILE).read_text())["settings"] if (out / SITES_FILE).exists() else asked
    rounds = asked.pop("rounds", None)
    if asked != {name: value for name, value in begun.items() if name != "rounds"}:
        name = next(n for n in sorted({*asked, *begun}) if asked.get(n) != begun.get(n))
        then, now = (json.dumps(options.get(name)) for options in (begun, asked))
        raise FFGBError(f"the run in {out} was begun with {name} = {then}, not {now}; name another --out")
    return (out / "summary.json").exists() and rounds in (None, run.config.get("rounds"))


def serve(
    service: Service,
    config: Mapping[str, Any],
    out: Path,
    target: str | None,
    task: str | None,
    say: Callable[[str], None],
    warn: Callable[[str], None],
) -> None:
    """Run a server until its training is over; an FFGBError says what went wrong."""
    with tempfile.TemporaryDirectory(prefix="ffgb-server-") as folder, contextlib.ExitStack() as held:
        home = Path(folder)
        link = held.enter_context(superlink(service, home))
        say(f"listening on {service.host}:{service.port}")
        write_app(home / "app")
        write_connection(service, home)
        keys = None if service.tls is None else _register(home, service.tls / SITES)
        progress, trouble, warnings = (home / name for name in ("progress", "trouble", "warnings"))
        job = {
            "clients": service.clients, "minimum": service.minimum, "deadline": service.deadline,
            "patience": service.patience, "target": target, "task": task, "out": str(out.absolute()),
            "progress": str(progress), "trouble": str(trouble), "warnings": str(warnings),
            "config": dict(config), "keys": keys,
        }  # fmt: skip
        (home / "job.toml").write_text(f"job = {json.dumps(json.dumps(job))}\n")
        command = [
            program("flwr"),
            "run",
            str(home / "app"),
            "ffgb",
            "--stream",
            "--run-config",
            str(home / "job.toml"),
        ]
        summary = out / "summary.json"
        before = summary.stat().st_mtime_ns if summary.exists() else 0
        process = held.enter_context(guarded(command, home, "run.log"))
        said, warned = "", 0
        while True:
            over = process.poll() is not None
            for line in warnings.read_text().splitlines()[warned:] if warnings.exists() else ():
                warn(line)
                warned += 1
            if progress.exists() and (text := progress.read_text()) != said:
                said = text
                say(said)
            if over:
                break
            if link.poll() is not None:
                raise FFGBError(f"Flower's SuperLink ended: {_tail(home / 'superlink.log')}")
            time.sleep(0.2)
        if trouble.exists():
            raise FFGBError(trouble.read_text())
        if not summary.exists() or summary.stat().st_mtime_ns == before:
            raise FFGBError(f"the training ended without a result: {_tail(home / 'run.log')}")


def attend(
    server: str,
    attendant: Attendant,
    tls: Path | None,
    key: Path | None,
    say: Callable[[str], None],
    stop: Callable[[], bool],
) -> None:
    """Be a site until told to stop: a node that ends is started again."""
    with tempfile.TemporaryDirectory(prefix="ffgb-client-") as folder, contextlib.ExitStack() as held:
        home = Path(folder)
        socket = held.enter_context(at_the_door(attendant, home))
        security = ["--insecure"] if tls is None else ["--root-certificates", str(tls / CA)]
        if key is not None:
            security += ["--auth-supernode-private-key", str(key)]
        wait = 1.0
        while not stop():
            command = [program("flower-supernode"), *security, "--superlink", server]
            command += ["--node-config", f"socket={json.dumps(str(socket))}"]
            command += ["--host", "127.0.0.1", "--port", str(free_port())]
            with guarded(command, home, "supernode.log") as process:
                say(f"connecting to {server}")
                began = time.monotonic()
                while process.poll() is None and not stop():
                    time.sleep(0.2)
            if stop():
                return
            why = _tail(home / "supernode.log")
            if REFUSED in (home / "supernode.log").read_text(errors="replace"):
                why = "the server does not know its key, or still waits for this site's last node: that takes a minute"
            wait = 1.0 if time.monotonic() - began > 60.0 else min(2.0 * wait, 30.0)
            say(f"the node ended ({why}); starting it again in {wait:.0f} s")
            again = time.monotonic() + wait
            while time.monotonic() < again and not stop():
                time.sleep(0.2)


@contextlib.contextmanager
def at_the_door(attendant: Attendant, home: Path) -> Iterator[Path]:
    """Answer what nodes hand in at a socket, one after the other, in a thread of its own."""
    socket = home / "socket"
    try:
        listener = Listener(str(socket), "AF_UNIX")
    except OSError as error:
        raise FFGBError(f"no socket can be made in {home} ({error}); set TMPDIR to a shorter path") from error

    def answer() -> None:
        while True:
            try:
                connection = listener.accept()
            except OSError:
                return  # it was closed
            # a node may die in the middle of a message, or send something else: the next one comes
            with connection, contextlib.suppress(OSError, EOFError, ValueError, KeyError, TypeError):
                send(connection, *attendant.answer(*receive(connection)))

    threading.Thread(target=answer, daemon=True).start()
    try:
        yield socket
    finally:
        listener.close()


def rehearse(site: Site, config: Mapping[str, Any], target: str | None, task: str | None) -> Rehearsal:
    """What would leave a site in a training with these settings: it plays one round of it with itself."""
    said = site.describe()
    if len(said.classes) == 1 and task != REGRESSION:  # others have others, or there would be nothing to learn
        (only,) = said.classes
        said = replace(said, classes=(only, f"not {only}") if isinstance(only, str) else (only, only + 1))
    schema = Schema.of({site.name: said}, target, task, site.rare)
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in config.items()}
    chosen = Config(**{**values, "rounds": 1, "participation": None})
    rehearsal = Rehearsal(site.move_in(schema, chosen.seed))
    train(chosen, elsewhere=Elsewhere(rehearsal, schema, 1))
    return rehearsal


def make_keys(folder: Path, host: str, sites: Sequence[str]) -> list[Path]:
    """A trial's certificates and keys: an authority, the server's certificate, and a key for each site."""
    try:
        import ipaddress
        from datetime import UTC, datetime, timedelta

        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives import serialization as s
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError as error:
        raise missing_extra("cryptography", "flower", "certificates") from error

    if folder.exists() and any(folder.iterdir()):
        raise FFGBError(f"{folder} is not empty; name a new folder, for keys are never overwritten")
    if (
        not sites
        or len(set(sites)) < len(sites)
        or not all(name.replace("-", "").replace("_", "").isalnum() for name in sites)
    ):
        raise FFGBError("give each site a name of its own, of letters, digits, - and _")
    (folder / SITES).mkdir(parents=True)
    written = []

    def write(name: str, data: bytes, *, secret: bool = False) -> None:
        path = folder / name
        path.touch(mode=0o600 if secret else 0o644)
        path.write_bytes(data)
        written.append(path)

    def certificate(
        subject: str, key: Any, issuer: Any, issuer_key: Any, extensions: Sequence[tuple[Any, bool]]
    ) -> Any:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer.subject if issuer else name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(days=365))
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(issuer_key, hashes.SHA256())

    pem = (s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
    authority_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    authority = certificate(
        "ffgb trial authority", authority_key, None, authority_key, [(x509.BasicConstraints(True, 0), True)]
    )
    try:
        place: Any = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        place = x509.DNSName(host)
    names = [place, x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    unique = [name for j, name in enumerate(names) if name not in names[:j]]
    server = certificate(host, server_key, authority, authority_key, [(x509.SubjectAlternativeName(unique), False)])
    write(CA, authority.public_bytes(s.Encoding.PEM))
    write(CERTIFICATE, server.public_bytes(s.Encoding.PEM))
    write(KEY, server_key.private_bytes(*pem), secret=True)
    for name in sites:
        key = ec.generate_private_key(ec.SECP384R1())
        private = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.OpenSSH, s.NoEncryption())
        write(f"{SITES}/{name}", private, secret=True)
        write(f"{SITES}/{name}.pub", key.public_key().public_bytes(s.Encoding.OpenSSH, s.PublicFormat.OpenSSH))
    return written


# Flower's programs


@contextlib.contextmanager
def superlink(service: Service, home: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [program("flower-superlink"), "--host", service.host, "--port", str(service.port)]
    if service.tls is None:
        command += ["--insecure"]
    else:
        files = {"--ssl-ca-certfile": CA, "--ssl-certfile": CERTIFICATE, "--ssl-keyfile": KEY}
        for option, name in files.items():
            if not (service.tls / name).exists():
                raise FFGBError(
                    f"{service.tls / name} is not there; make certificates with: ffgb tls init {service.tls}"
                )
            command += [option, str(service.tls / name)]
        command += ["--enable-supernode-auth"]
    command += ["--disable-runtime-dependency-installation"]
    if _listens(service.near, service.port):
        raise FFGBError(f"port {service.port} is taken; end what uses it, or choose another --port")
    with guarded(command, home, "superlink.log") as process:
        until = time.monotonic() + 60.0
        while not _listens(service.near, service.port):
            if process.poll() is not None or time.monotonic() > until:
                raise FFGBError(f"Flower's SuperLink did not start: {_tail(home / 'superlink.log')}")
            time.sleep(0.1)
        yield process


def write_app(folder: Path, files: Mapping[str, str] = APP) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def write_connection(service: Service, home: Path) -> None:
    """How `flwr` reaches the SuperLink that was just started."""
    secure = (
        "insecure = true"
        if service.tls is None
        else f"root-certificates = {json.dumps(str(service.tls.absolute() / CA))}"
    )
    text = f'[superlink]\ndefault = "ffgb"\n\n[superlink.ffgb]\naddress = "{service.called}:{service.port}"\n{secure}\n'
    (home / "config.toml").write_text(text)


def _register(home: Path, folder: Path) -> dict[int, str]:
    """Let the sites of these keys in: by the number of its node, the name of each key."""
    found = {}
    for key in sorted(folder.glob("*.pub")):
        command = [program("flwr"), "supernode", "register", str(key), "ffgb", "--format", "json"]
        done = subprocess.run(command, env=environment(home), capture_output=True, text=True, check=False)
        try:
            found[int(json.loads(done.stdout)["node-id"])] = key.stem
        except (ValueError, KeyError, TypeError) as error:
            raise FFGBError(f"{key} could not be registered: {(done.stderr or done.stdout).strip()[-500:]}") from error
    return found


def program(name: str) -> str:
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise missing_extra("flwr", "flower", "training between sites")
    return found


def name_in(certificate: Path, near: str, port: int) -> str:
    """A name in a server's certificate by which this machine reaches it."""
    from cryptography import x509

    try:
        loaded = x509.load_pem_x509_certificate(certificate.read_bytes())
        found = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound) as error:
        raise FFGBError(f"{certificate} is no certificate with subject alternative names ({error})") from error
    names = [*map(str, found.get_values_for_type(x509.IPAddress)), *found.get_values_for_type(x509.DNSName)]
    for name in sorted(names, key=lambda name: name != near):
        if _listens(name, port):
            return name
    raise FFGBError(
        f"{certificate} is for {', '.join(names)}, and this server is not reached by that name from its own machine; "
        f"add {near} to the certificate's subject alternative names, or the name to this machine's hosts"
    )


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=0.5):
            return True
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


@contextlib.contextmanager
def guarded(command: Sequence[str], home: Path, log: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program under way.  It ends here, or with this process, even if that is killed (guard.py)."""
    guard = [sys.executable, "-P", guard_file, *command]
    with (home / log).open("wb") as file:
        process = subprocess.Popen(
            guard, env=environment(home), stdin=subprocess.PIPE, stdout=file, stderr=file, process_group=0
        )
    assert process.stdin is not None
    try:
        yield process
    finally:
        process.stdin.close()
        process.wait()


def _tail(path: Path) -> str:
    """The last line that says something."""
    try:
        lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in path.read_text(errors="replace").splitlines()]
    except OSError:
        lines = []
    said = [line for line in lines if line and not line.startswith("INFO")]
    return said[-1][-300:] if said else "it said nothing"
