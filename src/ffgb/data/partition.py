"""Dealing the rows of a data set out to clients: pure functions from labels and randomness to index arrays.

Integer labels are classes; floating-point labels are regression targets.  Every row goes to exactly one client, no
client is empty, and each client's indices ascend.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ffgb.core.seeds import stream
from ffgb.core.types import Array
from ffgb.data.dataset import Dataset
from ffgb.errors import FFGBError, option
from ffgb.settings import DATA, Setting

SPLITS = ("similarity", "dirichlet", "labels", "iid", "natural")

# A regression target has no classes; its deciles stand in for them.
BINS = 10


def similarity(y: Array, clients: int, s: float, rng: np.random.Generator) -> list[Array]:
    """The paper's split (section 4.1): a random share s of the rows is dealt out evenly, the rest in order of label.

    At s = 1 clients are alike; at s = 0 a client sees one or two classes.  Sizes differ by at most one: where a client
    falls short in the even part, it gets one more of the sorted part.
    """
    n = len(y)
    _check_clients(n, clients)
    if not 0 <= s <= 1:
        raise FFGBError(f"the similarity is {s}; give a number from 0 (sorted by label) to 1 (all clients alike)")
    order = rng.permutation(n)
    shared, rest = order[: round(s * n)], order[round(s * n) :]
    # The rows were shuffled first, so a stable sort leaves ties in random order, not in that of the file.
    rest = rest[np.argsort(_sort_key(y)[rest], kind="stable")]
    even = _even_sizes(len(shared), clients)
    return _join(_cut(shared, even), _cut(rest, _even_sizes(n, clients) - even))


def dirichlet(y: Array, clients: int, alpha: float, rng: np.random.Generator) -> list[Array]:
    """For each class, its shares over the clients are drawn from Dirichlet(α, …, α); small α, very different clients.

    A client left without rows takes one from whichever client has most, until none is empty: it ends for every α, where
    drawing again might not.  Regression targets are treated as classes by tenths of their range of ranks.
    """
    n = len(y)
    _check_clients(n, clients)
    if not (alpha > 0 and math.isfinite(alpha)):
        raise FFGBError(f"alpha is {alpha}; give a positive number, such as 0.5")
    parts: list[list[Array]] = [[] for _ in range(clients)]
    for rows in _strata(y, rng):
        shares = rng.dirichlet(np.full(clients, alpha))
        ends = np.floor(np.cumsum(shares) * len(rows) + 0.5).astype(np.int64)[:-1]
        for part, piece in zip(parts, np.split(rows, np.clip(ends, 0, len(rows))), strict=True):
            part.append(piece)
    return _none_empty(parts, rng)


def labels(y: Array, clients: int, k: int, rng: np.random.Generator) -> list[Array]:
    """Each client has rows of k classes only: client i of class i mod C, and of k − 1 others at random.

    A class's rows are dealt out evenly to the clients that have it.  It is the split "#C = k" of Li, Diao, Chen & He,
    "Federated learning on non-IID data silos" (NIID-Bench), ICDE 2022.  Regression targets count as ten classes.
    """
    _check_clients(len(y), clients)
    strata = _strata(y, rng)
    C = len(strata)
    if not 1 <= k <= C:
        raise FFGBError(f"a client cannot have {k} of {C} classes; give {option('labels')} from 1 to {C}")
    if clients < C:
        raise FFGBError(f"with {clients} clients some of the {C} classes would have none; give at least {C} clients")
    holders: list[list[int]] = [[] for _ in strata]
    for i in range(clients):
        others = rng.permutation(np.delete(np.arange(C), i % C))[: k - 1]
        for c in (i % C, *others):
            holders[c].append(i)
    parts: list[list[Array]] = [[] for _ in range(clients)]
    for rows, held in zip(strata, holders, strict=True):
        for i, piece in zip(held, _cut(rows, _even_sizes(len(rows), len(held))), strict=True):
            parts[i].append(piece)
    return _none_empty(parts, rng)


def iid(n: int, clients: int, rng: np.random.Generator) -> list[Array]:
    """All rows, shuffled and dealt out evenly."""
    _check_clients(n, clients)
    return [np.sort(rows) for rows in _cut(rng.permutation(n), _even_sizes(n, clients))]


def natural(site: Array) -> list[Array]:
    """Each site is a client."""
    return [np.flatnonzero(site == i) for i in range(int(site.max()) + 1)]


def partition(
    dataset: Dataset,
    split: str,
    clients: int | None = None,
    *,
    similarity: float = 0.1,
    alpha: float = 0.5,
    labels: int = 2,
    by: str | None = None,
    seed: int = 0,
) -> list[Array]:
    """Indices of training rows, one array a client.  A natural split has the set's own sites as clients.

    Where rows are sorted by label they may be sorted by a column instead: clients then differ in what they see.
    """
    if split not in SPLITS:
        raise FFGBError(f"there is no split {split!r}; choose one of {', '.join(SPLITS)}")
    if split == "natural":
        if dataset.site is None:
            raise FFGBError(
                f"{dataset.name} has no natural sites: only heart and your own files, one a site, have them; "
                "choose the split similarity, dirichlet or iid"
            )
        if clients is not None and clients != len(dataset.sites):
            raise FFGBError(
                f"{dataset.name} has {len(dataset.sites)} natural sites, not {clients}; "
                "leave the number of clients out or choose another split"
            )
        return natural(dataset.site)
    if clients is None:
        raise FFGBError(f"the split {split} needs a number of clients")
    rng = stream(seed, "partition")
    if by is not None and (split != "similarity" or by not in dataset.columns):
        known = ", ".join(dataset.columns[:8]) or "none"
        raise FFGBError(
            f"{option('by', by)} is for the similarity split and a column of {dataset.name} (it has {known}, …)"
        )
    if split == "similarity":
        key = dataset.y if by is None else dataset.x[:, dataset.columns.index(by)]
        return _similarity(key, clients, similarity, rng)
    if split == "dirichlet":
        return dirichlet(dataset.y, clients, alpha, rng)
    if split == "labels":
        return _labels(dataset.y, clients, labels, rng)
    return iid(len(dataset.y), clients, rng)


_similarity, _labels = similarity, labels  # inside `partition` these names mean the numbers


def _none_empty(parts: Sequence[Sequence[Array]], rng: np.random.Generator) -> list[Array]:
    """Each client's pieces in one; a client without rows takes one from whichever client has most."""
    dealt = [np.concatenate([*part, np.empty(0, np.int64)]).astype(np.int64) for part in parts]
    for i in range(len(dealt)):
        if len(dealt[i]) == 0:
            most = max(range(len(dealt)), key=lambda j: len(dealt[j]))
            taken = int(rng.integers(len(dealt[most])))
            dealt[i] = dealt[most][taken : taken + 1]
            dealt[most] = np.delete(dealt[most], taken)
    return [np.sort(rows) for rows in dealt]


def _check_clients(n: int, clients: int) -> None:
    if clients < 1:
        raise FFGBError(f"the number of clients is {clients}; give at least 1")
    if clients > n:
        raise FFGBError(f"{clients} clients cannot share {n} training rows; give at most {n} clients")


def _sort_key(y: Array) -> Array:
    """What rows are sorted by: the class, the target, or the first of several targets."""
    return y if y.ndim == 1 else y[:, 0]


def _strata(y: Array, rng: np.random.Generator) -> list[Array]:
    """The rows of each class, or of each tenth of the targets; shuffled within."""
    order = rng.permutation(len(y))
    key = _sort_key(y)
    order = order[np.argsort(key[order], kind="stable")]
    if np.issubdtype(y.dtype, np.integer):
        return np.split(order, np.flatnonzero(np.diff(key[order])) + 1)
    # Cut by rank, so that the bins are equal even where many targets are.
    return [rng.permutation(rows) for rows in np.array_split(order, min(BINS, len(y)))]


def _even_sizes(n: int, clients: int) -> Array:
    """n as a sum of whole numbers that differ by at most one, the larger ones first."""
    return n // clients + (np.arange(clients) < n % clients).astype(np.int64)


def _cut(rows: Array, sizes: Array) -> list[Array]:
    return np.split(rows, np.cumsum(sizes)[:-1])


def _join(first: Sequence[Array], second: Sequence[Array]) -> list[Array]:
    return [np.sort(np.concatenate(pair)) for pair in zip(first, second, strict=True)]


SETTINGS = (
    Setting("clients", "whole", "Number of clients N.", DATA, unset="20, or the natural sites", common=True, least=1),
    Setting(
        "split",
        "text",
        "How rows are dealt out to clients.",
        DATA,
        unset="natural if there are sites, else similarity",
        common=True,
        choices=SPLITS,
    ),
    Setting("similarity", "number", "Share of the rows dealt out evenly; the rest goes by label.", DATA, 0.1),
    Setting("alpha", "number", "Concentration of the dirichlet split.", DATA, 0.5, above=0.0),
    Setting("labels", "whole", "Classes that a client has, in the labels split.", DATA, 2, least=1),
    Setting("by", "text", "Sort rows by this column instead of the label.", DATA, unset="the label"),
)
