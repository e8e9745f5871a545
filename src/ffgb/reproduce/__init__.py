"""Experiments that anyone can repeat: `ffgb reproduce NAME` runs one and writes its numbers, a table and pictures.

Each is a file here with parts that are computed one after the other; what is there already is not computed again, so
a run that was stopped goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ffgb._version import __version__
from ffgb.errors import FFGBError

SCALES = ("full", "small")


def reproduce(name: str, scale: str, out: Path, on_part: Callable[[str], None] = lambda what: None) -> str:
    """Run an experiment; its table, as text.  The folder has results.json, table.md and the pictures then."""
    from ffgb.reproduce import theory

    experiments = {"theory": theory}
    if name not in experiments:
        raise FFGBError(f"there is no experiment {name!r} to reproduce; choose {', '.join(experiments)}")
    if scale not in SCALES:
        raise FFGBError(f"--scale is {' or '.join(SCALES)}, not {scale!r}")
    experiment = experiments[name]
    experiment.needs()
    out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"experiment": name, "scale": scale}
    for part, (compute, settings) in experiment.PARTS[scale].items():
        on_part(part)
        results[part] = _remembered(out / "parts", part, compute, settings)
    _write(out / "results.json", json.dumps(results, indent=1, allow_nan=False) + "\n")
    table: str = experiment.table(results)
    _write(out / "table.md", table)
    experiment.draw(results, out)
    return table


def _remembered(folder: Path, part: str, compute: Callable[..., Any], settings: Mapping[str, Any]) -> Any:
    """What a part gave when it was computed with these settings, or its result now."""
    key = hashlib.sha256(json.dumps([__version__, settings], sort_keys=True).encode()).hexdigest()[:12]
    file = folder / f"{part}-{key}.json"
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError):  # not there, or cut off
        folder.mkdir(exist_ok=True)
        result = {"settings": dict(settings), **compute(**settings)}
        _write(file, json.dumps(result, allow_nan=False))
        return result


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text)
    temporary.replace(path)
