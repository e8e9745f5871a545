"""A page as text, and as a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ffgb.errors import FFGBError
from ffgb.files import atomic_write
from ffgb.report.one import one_run
from ffgb.report.past import POINTS, POINTS_OF_ALL, read, run_names
from ffgb.report.several import several_runs


def write(runs: Sequence[Path], out: Path) -> None:
    """The page of a run, or of several side by side, in a file."""
    content = page(runs).encode()
    try:
        atomic_write(out, content)
    except OSError as error:
        raise FFGBError(f"{out} cannot be written ({error.strerror}); name a file in a folder that is there") from error


def page(runs: Sequence[Path]) -> str:
    """The page as HTML."""
    if not runs:
        raise FFGBError("there is no run to report on; name one run directory, or several to compare")
    most = POINTS if len(runs) == 1 else max(30, POINTS_OF_ALL // len(runs))
    pasts = [read(path, name, most) for path, name in zip(runs, run_names(runs), strict=True)]
    return one_run(pasts[0]) if len(pasts) == 1 else several_runs(pasts)
