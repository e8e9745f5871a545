"""`ffgb withdraw`: the model as if a site had never taken part, from totals that were kept, without asking anyone.

It is exact where a model is a function of sums that do not depend on the model: least squares (`ffgb glm --family
gaussian --keep FOLDER`).  Elsewhere each round's sums are of a model in which the site took part, and the reason is
told.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ffgb.core.regression.families import GaussianFamily
from ffgb.core.regression.stored import SiteTotals
from ffgb.errors import FFGBError, command, option
from ffgb.runs.glm import GLMResult
from ffgb.runs.site_totals import MODEL, TOTAL, Kept, site_of

AGAIN = "the others must train again without it"


def withdraw(folder: Path, sites: Sequence[str] = (), part: Path | None = None) -> GLMResult:
    """The Gaussian model without some sites.

    Parameters
    ----------
    folder
        What `glm(…, keep=folder)` wrote.
    sites
        Names of those that withdraw: the totals of the others are added up.
    part
        A site's own file in place of names: it is subtracted from the total, and no other site's file is read.
    """
    if not (folder / MODEL).exists():
        raise _no_totals(folder)
    kept, names = Kept.read(folder)
    if part is not None:
        if sites:
            raise FFGBError(f"give {option('site')} or {option('part')}, not both")
        gone = [site_of(part)]
    else:
        gone = list(dict.fromkeys(sites))
    for name in gone:
        if name not in names:
            raise FFGBError(f"no site {name!r} took part; there are {', '.join(names)}")
    left = [name for name in names if name not in gone]
    if not gone or not left:
        what = "who withdraws" if not gone else "fewer sites: none would be left"
        raise FFGBError(f"say {what}, with {option('site')}, or with {option('part')} and a site's own file")
    totals = _summed(kept, folder, names, left) if part is None else _less(kept, folder, part)
    columns, reference = kept.stored.without_gone(totals, kept.reference)
    found, family = kept.stored.fit(totals, columns), GaussianFamily()
    return GLMResult(
        kept.formula,
        family.name,
        family.link,
        None,
        tuple(kept.stored.columns[k].name for k in columns),
        found.coefficients,
        found.covariance,
        kept.level,
        "model",
        totals.rows,
        totals.left_out,
        tuple(left),
        found.dispersion,
        found.deviance,
        found.pearson,
        found.loglik,
        found.steps,
        reference,
        masked=False,
        bytes_up=0.0,
        bytes_down=0.0,
    )


def _summed(kept: Kept, folder: Path, names: Sequence[str], left: Sequence[str]) -> SiteTotals:
    """The totals of those that stay."""
    total: SiteTotals | None = None
    for k, name in enumerate(names):
        if name in left:
            own = kept.totals_in(folder / f"site-{k}.json")
            total = own if total is None else total.plus(own)
    assert total is not None
    return total


def _less(kept: Kept, folder: Path, part: Path) -> SiteTotals:
    """The total without a site's own part."""
    return kept.totals_in(folder / TOTAL).plus(kept.totals_in(part), -1)


def _no_totals(folder: Path) -> FFGBError:
    """Why a site cannot withdraw from what is there."""
    file = folder / "config.json"
    if not file.exists():
        return FFGBError(
            f"{folder} has no totals of sites; {command('glm', family='gaussian', keep='FOLDER')} keeps them"
        )
    try:
        config = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        return FFGBError(f"{file} cannot be read ({error}); was it written by ffgb?")
    learner = str(config.get("learner"))
    why = {
        "linear": "the site's rows are in the thresholds at which columns are cut off, in the ridge, and in each "
        f"round's sums; {command('glm', family='gaussian', keep='FOLDER')} keeps totals from which it can",
        "features": "the site's rows are in the thresholds and scales of the features, and in each round's sums",
    }.get(learner, "each round's sums are of gradients of a model in which the site took part")
    return FFGBError(
        f"from a model of the learner {learner} a site cannot withdraw by totals: {why}.  {AGAIN.capitalize()}; "
        f"{command('worth', 'RUN')} compares what that costs"
    )
