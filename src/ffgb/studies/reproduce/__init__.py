"""Experiments that anyone can repeat: `ffgb reproduce NAME` runs one and writes its numbers, a table and a picture.

Each is made of parts, such as one run with one seed (experiment.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from ffgb.errors import FFGBError, option
from ffgb.files import atomic_write
from ffgb.studies.reproduce import ablations, attackers, distillation, figures, niid, precision, privacy, theory
from ffgb.studies.reproduce.experiment import SCALES as SCALES
from ffgb.studies.reproduce.experiment import Experiment as Experiment
from ffgb.studies.reproduce.experiment import Recall as Recall
from ffgb.studies.reproduce.experiment import Results as Results


def experiments() -> dict[str, Experiment]:
    """All of them, by name."""
    return {
        "theory": theory.EXPERIMENT,
        **figures.EXPERIMENTS,
        "distillation": distillation.EXPERIMENT,
        "ablations": ablations.EXPERIMENT,
        "niid": niid.EXPERIMENT,
        "attackers": attackers.EXPERIMENT,
        "precision": precision.EXPERIMENT,
        "privacy": privacy.EXPERIMENT,
    }


def reproduce(name: str, scale: str, out: Path, say: Callable[[str], None] = lambda what: None) -> str:
    """Run an experiment; its table, as text.  The folder has NAME.json, NAME.md and NAME.png then."""
    known = experiments()
    if name not in known:
        raise FFGBError(f"there is no experiment {name!r} to reproduce; choose {', '.join(known)}, or all")
    experiment = known[name]
    if scale not in experiment.scales:
        raise FFGBError(f"{option('scale')} of {name} is {' or '.join(experiment.scales)}, not {scale!r}")
    experiment.needs(scale)
    out.mkdir(parents=True, exist_ok=True)
    results = {"experiment": name, "scale": scale, **experiment.results(scale, Recall(out / "parts", say))}
    atomic_write(out / f"{name}.json", (json.dumps(results, indent=1, allow_nan=False) + "\n").encode())
    table = experiment.table(results)
    atomic_write(out / f"{name}.md", table.encode())
    experiment.draw(results, out / f"{name}.png")
    return table
