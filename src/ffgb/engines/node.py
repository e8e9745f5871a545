"""A Flower node's side of a real site, as light as can be: Flower starts it anew for every message.

It hands what comes to the process of `ffgb client`, which holds the site (sites.py), over a socket in that process's
own folder, and hands back what that answers.  So a message costs what Flower costs, and nothing that a site knows is
lost when its node dies.  This file and flower.py, the server's side, are the only ones that use flwr.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from multiprocessing.connection import Client, Connection
from typing import TYPE_CHECKING, Any

from ffgb.errors import FFGBError, missing_extra

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
"""What Flower does unless it is told not to: telemetry, a look for updates, and installing packages at run time."""

KIND = "train.ffgb"
"""Flower's name for all our messages."""
BYTES = "ffgb.bytes"
"""How our arrays are serialised, to Flower: not at all."""


def flwr() -> Any:
    """Flower's own module, with all that is switched off by the environment switched off before it looks."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import flwr.app
    except ImportError as error:
        raise missing_extra("flwr", "flower", "training between sites") from error
    return flwr.app


def pack(data: Mapping[str, bytes], said: Mapping[str, Any]) -> Any:
    """Bytes by name, and a few words, as Flower carries them: an array of bytes is what it is quickest with."""
    flower = flwr()
    arrays = {name: flower.Array(dtype="uint8", shape=(len(b),), stype=BYTES, data=b) for name, b in data.items()}
    content = flower.RecordDict({"said": flower.ConfigRecord(dict(said))})
    if arrays:
        content["data"] = flower.ArrayRecord(arrays)
    return content


def unpack(content: Any) -> tuple[dict[str, bytes], dict[str, Any]]:
    """The inverse; an FFGBError if it is something else."""
    try:
        said = dict(content["said"])
        data = {str(name): array.data for name, array in content["data"].items()} if "data" in content else {}
    except (KeyError, AttributeError, TypeError) as error:
        raise FFGBError("a Flower message is not one of ours") from error
    if not all(isinstance(b, bytes) for b in data.values()):
        raise FFGBError("a Flower message is not one of ours")
    return data, said


def weight(message: Message) -> int:
    """Bytes of a message as Flower serialises it, envelope and all."""
    from flwr.common.serde import message_to_proto

    return int(message_to_proto(message).ByteSize())


def client_app() -> ClientApp:
    """The app that every node of real sites runs."""
    flower = flwr()
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train("ffgb")
    def answer(message: Message, context: Context) -> Message:
        data, said = unpack(message.content)
        with Client(str(context.node_config["socket"]), "AF_UNIX") as site:
            send(site, data, {**said, "run": context.run_id})
            data, said = receive(site)
        if "failed" in said:
            raise RuntimeError(said["failed"])
        return flower.Message(pack(data, said), reply_to=message)  # type: ignore[no-any-return]

    return app


def send(socket: Connection, data: Mapping[str, bytes], said: Mapping[str, Any]) -> None:
    """Bytes by name, and a few words, to the other end of a socket.  Nothing is pickled."""
    socket.send_bytes(json.dumps({"said": said, "names": list(data)}).encode())
    for part in data.values():
        socket.send_bytes(part)


def receive(socket: Connection) -> tuple[dict[str, bytes], dict[str, Any]]:
    """What the other end sent."""
    first = json.loads(socket.recv_bytes())
    return {name: socket.recv_bytes() for name in first["names"]}, first["said"]
