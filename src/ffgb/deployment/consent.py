"""What a site's owner is asked to agree to, in plain words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ffgb.data.files import Columns
from ffgb.deployment.agreement import Agreement
from ffgb.deployment.course import Course
from ffgb.deployment.policy import Policy
from ffgb.deployment.words import called
from ffgb.protocol.codec import Sent, shown
from ffgb.runs.statistics import Analysis


def in_words(
    said: Columns,
    agreement: Agreement,
    once: Sequence[Sent],
    each: Sequence[Sent],
    policy: Policy,
    last: Sequence[Sent] = (),
) -> list[str]:
    """Sentences for someone who must allow it, and does not write programs."""
    alone = any(one.what.startswith("increment") for one in (*once, *each))
    told = "It tells the server the names of its columns, whether they hold numbers or text"
    counts = (
        "its numbers of rows and of missing values, its sums of columns, and the rows of its classes and categories"
    )
    if policy.secure:
        sums = (
            "Rows never leave this site.  Sums over its rows do.  All sums leave it under masks: random numbers that "
            "cancel when the sums of all sites are added.  The server learns the sums over the rows of all sites "
            "together, and not those of this site alone, unless other sites help it."
        )
        if alone:
            sums = (
                "A model of this site alone is no sum, and masks cannot hide it.  This site will refuse to send it: "
                "its rules want masks (secure = true)."
            )
        first = (
            f"{told}, and whether it holds out rows; nothing that is counted over its rows.  Under masks it adds "
            f"{counts}.  It adds the name of a category only if enough rows of all sites together have it."
        )
    else:
        sums = (
            "The file stays here, and sums over its rows leave this site.  Sums leave it WITHOUT masks: the server "
            "sees the sums of this site alone, and can compute rows from them (docs/what-leaves.md)."
        )
        first = f"{told}, {counts}.  It tells the name of a category only if enough rows of all sites together have it."
    before, rounds = _listed(once), _listed(each)
    feature = "feature" in before + rounds
    return [
        sums,
        f"This site trains with {said.rows:,} rows, and holds out {said.test_rows:,} more to measure with.",
        first,
        f"Before training it sends {before}.",
        f"In each of up to {agreement.exchanges} rounds it sends {rounds}.",
        *([f"When training has ended it sends, once: {_listed(last)}."] if last else []),
        *(["A feature is a number that is computed from the columns of a row."] if feature else []),
        f"That is about {agreement.bytes / 1e6:,.1f} million bytes in all.  With the columns and classes of all sites "
        "together it may be more.",
        "All sites and the server get the trained model.  It says something about the rows it was trained on, as every "
        "model does.",
    ]


def analysis_in_words(analysis: Analysis[Any]) -> list[str]:
    """An analysis as sentences, for whoever must allow it."""
    columns = ", ".join(shown(name) for name in analysis.columns_used)
    return [
        shown(analysis.in_words()),
        f"It uses the columns {columns}, and no others.",
        f"It stops if a category, or a cell of categories, has fewer than {analysis.least} rows at all sites together.",
    ]


def course_in_words(course: Course, policy: Policy) -> list[str]:
    """What leaves a site in an analysis, as sentences."""
    sent, size = course.rehearsed()
    records = course.records
    missing = f"  {records.left_out:,} more have a missing value, and are left out." if records.left_out else ""
    sums = (
        "Rows never leave this site.  Sums over its rows do.  All sums leave it under masks: random numbers that "
        "cancel when the sums of all sites are added.  The server learns the sums over the rows of all sites "
        "together, and not those of this site alone, unless other sites help it."
        if policy.secure
        else "The file stays here, and sums over its rows leave this site.  Sums leave it WITHOUT masks: the server "
        "sees the sums of this site alone, and can compute rows from them (docs/what-leaves.md)."
    )
    proof = (
        "The totals come with a proof, which the server cannot make by itself."
        if policy.secure
        else "Without masks the server can show totals that it has made up."
    )
    return [
        sums,
        f"This site takes part with {records.rows:,} rows.{missing}",
        "It tells the server the names of these columns, and whether they hold numbers or text.",
        f"It sends {_listed(sent)}.",
        "It answers only what this analysis asks next.  To know that, it computes what the server computes, from the "
        f"totals that the server shows.  {proof}",
        f"That is about {size / 1e6:,.1f} million bytes in all.",
        "All sites and the server get the result.  It says something about the rows that it was computed from, as "
        "every statistic does.",
    ]


def _listed(sent: Sequence[Sent]) -> str:
    kinds = dict.fromkeys(one.what.partition(",")[0] for one in sent if not one.what.startswith("ready"))
    words = [called(kind) for kind in kinds]
    if not words:
        return "nothing"
    return "; ".join(words)


def private_in_words(said: Columns, settings: Mapping[str, Any], rules: Policy) -> list[str]:
    """What leaves a site in a private training, as sentences."""
    unit = settings.get("unit")
    whose = "a row" if unit is None else f"all rows of one {shown(unit)} (up to {settings.get('unit_rows')})"
    budget = f"{rules.epsilon:g}, by the rules of this site" if rules.epsilon else "that of the first private training"
    return [
        f"This site trains with {said.rows:,} rows, and holds out {said.test_rows:,} more.",
        "It tells the server the names of its columns, whether they hold numbers or text, and whether it holds out "
        "rows.  Under masks it adds its number of rows.",
        f"All else has noise: differential privacy for {whose}, with ε = {settings['epsilon']:g} in this training.  "
        f"The budget of this file in all trainings is {budget}.  This site bounds what a row can say, adds its share "
        "of the noise, and keeps the account itself: ffgb client ledger.",
        "Bounds, categories and classes are those of the schema file at this site.  They are public.",
        "All sums leave it under masks.  Rows never leave it.",
        "The trained model is known to all.  The noise covers it.",
    ]
