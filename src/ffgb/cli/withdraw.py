"""`ffgb withdraw`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ffgb.cli.common import JSON, app, say
from ffgb.cli.statistics import show


@app.command()
def withdraw(
    folder: Annotated[Path, typer.Argument(help="The folder that ffgb glm --keep has written.")],
    site: Annotated[list[str] | None, typer.Option(help="Who withdraws: repeat it.", show_default=False)] = None,
    part: Annotated[
        Path | None, typer.Option(help="A site's own file, which is subtracted from the total of all.")
    ] = None,
    as_json: JSON = False,
) -> None:
    """Compute the model as if a site had never taken part, from totals that were kept; no one is asked again."""
    from ffgb.runs.withdraw import withdraw as without

    found = without(folder, site or (), part)
    if as_json:
        print(json.dumps(found.to_json(), allow_nan=False))
        return
    say(f"without {', '.join(site or [])}" if site else f"without the site of {part}")
    show(found)
