"""Totals of single sites in a folder: `ffgb glm --keep` writes them, and `ffgb withdraw` reads them.

`model.json` says what they are of.  Each site has a file of its own, and `total.json` has the sum of all.  A site's
file says as much about its rows as sums without masks do (docs/what-leaves.md).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from ffgb.core.regression.design import DesignColumn, Records, Variable
from ffgb.core.regression.glm import Roles
from ffgb.core.regression.stored import SiteTotals, Stored
from ffgb.errors import FFGBError, option
from ffgb.files import atomic_write

MODEL, TOTAL = "model.json", "total.json"


def refuse_keeping(folder: Path, family: str, errors: str) -> None:
    """Refuse to keep totals from which no other model follows, or in a folder that has others."""
    if family != "gaussian":
        raise FFGBError(
            f"{option('keep')} is for {option('family', 'gaussian')}: the sums of a {family} model are of one step of "
            "its coefficients, and without a site each step is another, for which all sites must be asked again"
        )
    if errors != "model":
        raise FFGBError(
            f"{option('keep')} is for {option('errors', 'model')}: robust errors need the residuals of a model in "
            "which all sites took part"
        )
    if folder.exists() and any(folder.iterdir()):
        raise FFGBError(f"{folder} has files already; name a new folder for {option('keep')}")


@final
@dataclass(frozen=True, eq=False)
class Kept:
    """A model, and the folder of its sites' totals."""

    formula: str
    level: float
    reference: Mapping[str, str]
    stored: Stored

    def write(self, folder: Path, records: Mapping[str, Records], roles: Roles, cells: Sequence[DesignColumn]) -> None:
        """A file a site, the total, and last what they are of."""
        folder.mkdir(parents=True, exist_ok=True)
        total: SiteTotals | None = None
        for k, (site, own) in enumerate(records.items()):
            totals = self.stored.totals(roles, own, cells)
            total = totals if total is None else total.plus(totals)
            _write(folder / f"site-{k}.json", {"site": site, **totals.to_json()})
        assert total is not None
        _write(folder / TOTAL, total.to_json())
        columns = [[c.name, [[v.name, v.level] for v in c.variables]] for c in self.stored.columns]
        model = {"formula": self.formula, "level": self.level, "reference": dict(self.reference), "columns": columns}
        model |= {"centre": self.stored.centre.tolist(), "least": self.stored.least, "sites": list(records)}
        _write(folder / MODEL, model)

    @staticmethod
    def read(folder: Path) -> tuple[Kept, list[str]]:
        """The model, and the names of its sites."""
        values = _read(folder / MODEL)
        try:
            columns = tuple(
                DesignColumn(str(name), tuple(Variable(str(v), None if at is None else str(at)) for v, at in variables))
                for name, variables in values["columns"]
            )
            centre = np.array(values["centre"], np.float64)
            if centre.shape != (len(columns) + 1,) or not np.isfinite(centre).all():
                raise ValueError("there is not a centre for each column")
            reference = {str(name): str(level) for name, level in values["reference"].items()}
            stored = Stored(columns, centre, int(values["least"]))
            kept = Kept(str(values["formula"]), float(values["level"]), reference, stored)
            return kept, [str(name) for name in values["sites"]]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FFGBError(f"{folder / MODEL} cannot be read ({error}); was it written by ffgb?") from error

    def totals_in(self, file: Path) -> SiteTotals:
        """The totals in a file, which must be of this model."""
        try:
            found = SiteTotals.from_json(_read(file))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FFGBError(f"{file} cannot be read ({error}); was it written by ffgb?") from error
        if len(found.orders) != len(self.stored.columns):
            raise FFGBError(f"{file} is of a model with other columns")
        return found


def site_of(file: Path) -> str:
    """Whose totals are in a file."""
    name = _read(file).get("site")
    if not isinstance(name, str):
        raise FFGBError(f"{file} has not the totals of one site; name a file like site-0.json")
    return name


def _write(file: Path, content: Mapping[str, Any]) -> None:
    atomic_write(file, (json.dumps(content, allow_nan=False) + "\n").encode(), 0o600)


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text())
    except FileNotFoundError as error:
        raise FFGBError(f"there is no {file}") from error
    except (OSError, ValueError) as error:
        raise FFGBError(f"{file} cannot be read ({error}); was it written by ffgb?") from error
    if not isinstance(content, dict):
        raise FFGBError(f"{file} was not written by ffgb")
    return content
