"""How a run that did not end goes on: the remedy that messages about it name."""

from __future__ import annotations

import json
from pathlib import Path

from ffgb.errors import command


def going_on(folder: Path) -> str:
    """What to do: a run between real sites is the server's."""
    try:
        elsewhere = json.loads((folder / "config.json").read_text())["data"] == ["sites"]
    except (OSError, ValueError, KeyError, TypeError):
        elsewhere = False
    if elsewhere:
        return "it goes on when the same ffgb server is started again"
    return f"continue it with: {command('train', resume=True, out=folder)}"
