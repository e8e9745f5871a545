"""An experiment and its parts: what was computed once is not computed again, and a run that was stopped goes on.

The parts of all experiments in a folder lie there side by side, for some share them.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

from ffgb._version import __version__
from ffgb.files import atomic_write

Results: TypeAlias = Mapping[str, Any]

SCALES = ("full", "reduced", "small")


@final
@dataclass(frozen=True)
class Recall:
    """Parts by name: their results, from the folder or computed now."""

    folder: Path
    say: Callable[[str], None]

    def __call__(self, part: str, compute: Callable[..., Results], **settings: Any) -> dict[str, Any]:
        """compute(**settings), with the settings."""
        file = self._file(part, settings)
        try:
            remembered: dict[str, Any] = json.loads(file.read_text())
        except (OSError, ValueError):  # not there, or cut off
            self.say(part)
            remembered = {"settings": dict(settings), **compute(**settings)}
            file.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(file, json.dumps(remembered, allow_nan=False).encode())
        return remembered

    def resumable(self, part: str, compute: Callable[..., Results], **settings: Any) -> dict[str, Any]:
        """The same for what takes long: compute is given a folder to go on from, and a way to say how far it is."""
        scratch = self._file(part, settings).with_suffix("")

        def go_on(**settings: Any) -> Results:
            return compute(scratch, lambda text: self.say(f"{part}, {text}"), **settings)

        result = self(part, go_on, **settings)
        shutil.rmtree(scratch, ignore_errors=True)
        return result

    def _file(self, part: str, settings: Mapping[str, Any]) -> Path:
        key = hashlib.sha256(json.dumps([__version__, settings], sort_keys=True).encode()).hexdigest()[:12]
        return self.folder / f"{part}-{key}.json"


@final
@dataclass(frozen=True)
class Experiment:
    """What it needs, how its results come about, and what is shown of them."""

    scales: tuple[str, ...]
    needs: Callable[[str], None]
    """Raises an FFGBError now, rather than after hours, if something is missing."""
    results: Callable[[str, Recall], Results]
    table: Callable[[Results], str]
    """In Markdown."""
    draw: Callable[[Results, Path], None]
