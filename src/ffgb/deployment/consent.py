"""What a site's owner is asked to agree to, in plain words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ffgb.data.files import Columns
from ffgb.deployment.agreement import Agreement
from ffgb.deployment.policy import Policy
from ffgb.protocol.codec import Sent, shown

WORDS: Mapping[str, str] = {
    "question MagnitudeOf": "how large the numbers of each column are, to a factor of 256",
    "question MomentsOf": "averages and spreads of columns",
    "question Histogram": "how many rows lie in each interval of a column",
    "question LeafCounts": "how many rows lie in each leaf of random trees",
    "question BelowEdges": "how many targets lie below some values",
    "question GramOf": "sums of products of two features",
    "question SketchOf": "random sums of products of two features",
    "question PatchMoments": "averages and products of small pieces of images",
    "question NearestSums": "sums of similar small pieces of images",
    "question SteepnessOf": "how steeply targets change between rows",
    "question GradientOf": "sums of features times prediction errors",
    "question SlopesOf": "how the sum of all errors changes along a step",
    "report": "sums of error and score",
    "increment": "a model that was fitted to the rows of this site alone",
}
"""What leaves a site, as people say it."""


def in_words(
    said: Columns, agreement: Agreement, once: Sequence[Sent], each: Sequence[Sent], policy: Policy
) -> list[str]:
    """Sentences for someone who must allow it, and does not write programs."""
    rows = f"This site trains with {said.rows:,} rows, and holds out {said.test_rows:,} more to measure with."
    if policy.secure:
        first = (
            "It tells the server the names of its columns, and whether they hold numbers or text; nothing that is "
            "counted over its rows."
        )
        sums = (
            "All sums leave it under masks.  The server learns the sums over the rows of all sites together; nobody "
            "sees those of this site alone.  Rows never leave it."
        )
    else:
        first = (
            "It tells the server the names of its columns, its number of rows, its classes, and the categories that "
            "enough of its rows have."
        )
        sums = (
            "Sums leave it WITHOUT masks: the server sees the sums of this site alone, and can compute rows from them "
            "(docs/what-leaves.md)."
        )
    return [
        rows,
        first,
        f"Before training it sends {_listed(once)}.",
        f"In each of up to {agreement.exchanges} rounds it sends {_listed(each)}.",
        sums,
        f"That is about {agreement.bytes / 1e6:,.1f} million bytes in all.  With the columns and classes of all sites "
        "together it may be more.",
        "The trained model is known to all, and says something about the rows it was trained on, as every model does.",
    ]


def _listed(sent: Sequence[Sent]) -> str:
    kinds = dict.fromkeys(one.what.partition(",")[0] for one in sent if not one.what.startswith("ready"))
    words = [WORDS.get(kind, shown(kind)) for kind in kinds]
    if not words:
        return "nothing"
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
