"""`ffgb doctor`: what keeps this machine from training, with a remedy a line."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from ffgb.cli.common import JSON, app, say
from ffgb.cli.sites import KEYS, PORT


@app.command()
def doctor(
    server: Annotated[str | None, typer.Option(help="HOST:PORT of a server: look at the way to it, too.")] = None,
    port: Annotated[int, typer.Option(help="The port that a server here would listen on.", min=1, max=65535)] = PORT,
    tls: Annotated[Path, typer.Option(help="The folder with a server's certificate.")] = KEYS,
    as_json: JSON = False,
) -> None:
    """Look at this machine (version, extras, memory, disk, port, certificate, clock), with a remedy for what is bad."""
    from ffgb.deployment.doctor import examine, refuse

    found = examine(tls, port, server)
    if as_json:
        print(json.dumps([dataclasses.asdict(one) for one in found]))
    else:
        for one in found:
            say(f"{one.status:5} {one.what}: {one.says}" + (f" → {one.remedy}" if one.remedy else ""))
    refuse(found)
