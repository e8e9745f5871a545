"""How different the clients' points are, by the paper's measures: total variation and Wasserstein distances, D and B.

Client i has the distribution α_i of its points, and α = (1/N) Σ α_i is the mixture of all.  The paper's radii of
convergence grow with ω, the mean over clients of TV(α, α_i) (Theorem 2) or of W₁(α, α_i) (Theorem 3).

Exact distances are those of the points at hand.  Samples of a continuous distribution have no point in common, so that
their exact TV is 1 and says nothing: then a classifier bounds the TV of what they were drawn from.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, final

import numpy as np
from scipy.linalg import eigh, solve_triangular
from scipy.spatial.distance import cdist
from scipy.special import gammaln, softmax
from threadpoolctl import threadpool_limits

from ffgb.core.seeds import stream
from ffgb.core.statistics import Moments
from ffgb.core.types import Array
from ffgb.errors import FFGBError, missing_extra, option
from ffgb.features.basic import Flatten, Standardize

METHODS = ("auto", "exact", "estimate")
AT_MOST = 1_000
"""Points of a client that distances are taken from."""
EXACT_POINTS = 4_000
"""Up to so many support points in all, exact transport takes seconds; its time grows with their square."""
EXACT_LIMIT = 20_000
"""With more it would take longer than anyone waits for."""
PROJECTIONS = 256
OUTER, MIDDLE = 8, 16
"""Points of each client that are looked at first for D."""

COMPONENTS = 32
"""Principal components that a classifier sees, where there are more columns."""
COMPONENTS_FROM = 5_000
"""Points that they are found from."""
TREES, LEAF, FOLDS, RIDGE = 100, 3, 5, 1e-2


@final
@dataclass(frozen=True, eq=False)
class Heterogeneity:
    """How far N clients are apart.  Distances are those of flattened images, or of columns with unit variance."""

    points: tuple[int, ...]
    """Of each client."""
    measured: tuple[int, ...]
    """How many of them the Wasserstein distances and D are taken from; more would be too slow."""
    tv: Array
    """TV(α, α_i), (N,)."""
    w1: Array
    """W₁(α, α_i), (N,)."""
    w2: Array | None
    """W₂(α, α_i), (N,), if distances are exact."""
    tv_pairs: Array
    """TV(α_i, α_j), (N, N)."""
    w1_pairs: Array
    """W₁(α_i, α_j), (N, N)."""
    w2_squared: float | None
    """(1/N²) Σ W₂²(α_i, α_j), of G in Theorem 3, if distances are exact."""
    D: float
    """Every point of a client has one of each other client within D (the paper's Assumption 3)."""
    B: float | None
    """The largest |y|, for regression (the same assumption)."""
    tv_method: str
    """"exact", or "classifier": a lower bound, up to noise."""
    w1_method: str
    """"exact", or "sliced": a lower bound, up to noise."""

    @property
    def omega_tv(self) -> float:
        """ω of Theorem 2."""
        return float(self.tv.mean())

    @property
    def omega_w1(self) -> float:
        """ω of Theorem 3."""
        return float(self.w1.mean())

    def to_json(self) -> dict[str, Any]:
        values = {"omega_tv": self.omega_tv, "omega_w1": self.omega_w1, **vars(self)}
        return {name: v.tolist() if isinstance(v, np.ndarray) else v for name, v in values.items()}


def measure(
    samples: Sequence[Array],
    labels: Sequence[Array] | None = None,
    method: str = "auto",
    at_most: int = AT_MOST,
    seed: int = 0,
) -> Heterogeneity:
    """All measures of clients' points, one array (n_i, ...) a client, with their labels for B.

    "auto" is exact where that takes seconds, for W₁ and W₂ if the package POT is there, and for TV if the points are of
    a finite support: half of them or more are repetitions.  Then they are all used, else at most so many a client.

    >>> found = measure([np.array([0.0, 1.0] * 8), np.array([1.0, 2.0] * 8)])
    >>> found.tv_method, found.omega_tv, round(found.D / found.omega_w1, 3)  # W₁ to all is half of that to the other
    ('exact', 0.25, 2.0)
    """
    rows = _checked_samples(samples, labels, method, at_most)
    points = tuple(map(len, rows))
    first, index = _distinct(rows)
    finite = 2 * len(first) <= sum(points)
    exact_tv = method == "exact" or (method == "auto" and finite)
    tv = _exact_tv(_mass(index, len(first))) if exact_tv else None
    if method == "estimate" or not finite or len(first) > EXACT_POINTS:
        rows = [_some(x, at_most, stream(seed, "heterogeneity", 0, i)) for i, x in enumerate(rows)]
        first, index = _distinct(rows)
    support = _common_units(samples, np.concatenate(rows)[first])
    exact_w = _transport_is_exact(support, len(rows), method)
    clouds = [support[part] for part in index]
    with threadpool_limits(limits=1):  # the same bits with any number of cores, and no waiting for each other
        if exact_w:
            w1, squared = _exact_costs(support, _mass(index, len(first)))
            w2, w2_squared = np.sqrt(squared[1]), float(squared[0].mean())
        else:
            w1, w2, w2_squared = sliced_w1(clouds, seed=seed), None, None
        tv = classifier_tv(clouds, seed) if tv is None else tv
        D = farthest([support[np.unique(part)] for part in index])
    return Heterogeneity(
        points=points,
        measured=tuple(map(len, rows)),
        tv=tv[1],
        w1=w1[1],
        w2=w2,
        tv_pairs=tv[0],
        w1_pairs=w1[0],
        w2_squared=w2_squared,
        D=D,
        B=_largest(labels),
        tv_method="exact" if exact_tv else "classifier",
        w1_method="exact" if exact_w else "sliced",
    )


def _checked_samples(
    samples: Sequence[Array], labels: Sequence[Array] | None, method: str, at_most: int
) -> list[Array]:
    """Clients' points as rows, if there is something to measure."""
    if method not in METHODS:
        raise FFGBError(f"there is no method {method!r}; choose one of {', '.join(METHODS)}")
    if at_most < 1:
        raise FFGBError(f"at most {at_most} points of a client leave nothing to measure; give 1 or more")
    rows = _checked([_flat(x) for x in samples])
    if labels is not None and [len(y) for y in labels] != [len(x) for x in rows]:
        raise FFGBError("labels and points differ in number; give one array of labels a client, one label a point")
    return rows


def _transport_is_exact(support: Array, clients: int, method: str) -> bool:
    """Are Wasserstein distances between these points to be exact?  Refused where that would take too long."""
    if support.shape[1] == 1:
        return method != "estimate"
    if method == "exact" and len(support) > EXACT_LIMIT:
        raise FFGBError(
            f"exact distances between {len(support):,} points would take too long; measure at most "
            f"{max(1, EXACT_LIMIT // clients)} points a client ({option('points')}), or choose the method auto"
        )
    return method == "exact" or (method == "auto" and len(support) <= EXACT_POINTS and find_spec("ot") is not None)


def total_variation(x: Array, y: Array, p: Array | None = None, q: Array | None = None) -> float:
    """sup_A |α(A) − β(A)| = ½ Σ |α − β| over the support, of weighted points; equal rows are the same point.

    >>> total_variation(np.array([0, 1]), np.array([1, 2, 1, 2]), p=np.array([3, 1]))
    0.75
    """
    x, y = _points([x, y])
    first, index = _distinct([x, y])
    return float(_exact_tv(_mass(index, len(first), [_weights(p, len(x)), _weights(q, len(y))]))[0][0, 1])


def wasserstein(x: Array, y: Array, order: int = 1, p: Array | None = None, q: Array | None = None) -> float:
    """W₁ or W₂ of weighted points in the Euclidean norm, exactly; beyond one dimension by POT's network simplex.

    >>> wasserstein(np.array([0.0, 1.0]), np.array([3.0]))
    2.5
    """
    if order not in (1, 2):
        raise FFGBError(f"the order of a Wasserstein distance is 1 or 2 here, not {order}")
    x, y = _points([x, y])
    cost = _transport_costs(x, y, _weights(p, len(x)), _weights(q, len(y)), [order])[0]
    return cost if order == 1 else math.sqrt(cost)


def sliced_w1(samples: Sequence[Array], projections: int = PROJECTIONS, seed: int = 0) -> tuple[Array, Array]:
    """Estimates of W₁(α_i, α_j), (N, N), and of W₁(α, α_i), (N,): means of W₁ along random directions θ, rescaled.

    With π the best plan, E W₁(θ'α_i, θ'α_j) ≤ E ∫ |θ'(x − y)| dπ = E|θ₁| W₁(α_i, α_j), so that dividing by E|θ₁| gives
    a lower bound.  It is W₁ itself for translations and for scalings of what looks the same from all sides.

    The difference δ of the means has E|θ'δ| = E|θ₁| ‖δ‖; where the sample mean of |θ'δ| is off by chance, so is that of
    W₁, and the one is subtracted from the other.  What is left of chance are a few percent of what is no translation.
    """
    if projections < 1:
        raise FFGBError(f"the number of projections is {projections}; give at least 1")
    samples = _points(samples)
    thetas = _directions(samples[0].shape[1], projections, stream(seed, "heterogeneity", 1))
    d = len(thetas)
    unit = math.exp(gammaln(d / 2) - gammaln((d + 1) / 2)) / math.sqrt(math.pi)  # E|θ₁|
    means = np.array([x.mean(axis=0, dtype=np.float64) for x in samples])
    shifts = means @ thetas
    lines = [np.sort((x @ thetas).T, axis=1) for x in samples]
    pairs = np.zeros((len(samples), len(samples)))
    for i in range(len(samples)):
        for j in range(i):
            beyond = _w1_on_lines(lines[i], lines[j]) - np.abs(shifts[i] - shifts[j])
            pairs[i, j] = pairs[j, i] = beyond.mean() / unit + np.linalg.norm(means[i] - means[j])
    beyond = _w1_to_mixture(lines) - np.abs(shifts - shifts.mean(axis=0))
    to_all = beyond.mean(axis=1) / unit + np.linalg.norm(means - means.mean(axis=0), axis=1)
    return np.maximum(pairs, 0.0), np.maximum(to_all, 0.0)


def classifier_tv(samples: Sequence[Array], seed: int = 0) -> tuple[Array, Array]:
    """Lower bounds of TV(α_i, α_j), (N, N), and of TV(α, α_i), (N,), up to noise of about 1/√n_i.

    A classifier tells from a point whose it is.  Where it finds client i likelier than j, if both had equally many, is
    a set A, and α_i(A) − α_j(A) is at most TV; it is measured at points that the classifier was not fitted to.  There
    are three, as clients may differ in mean, in shape or anyhow: Gaussians with one covariance, Gaussians with their
    own, and trees on random splits.  The largest of the lower bounds counts, on the average over clients.
    """
    samples = _points(samples)
    N = len(samples)
    if N == 1:
        return np.zeros((1, 1)), np.zeros(1)
    rng = stream(seed, "heterogeneity", 2)
    owner = np.repeat(np.arange(N), [len(x) for x in samples])
    z = _principal(samples)
    found = [_bounds(likely(z, owner, N, rng), owner) for likely in (_linear, _quadratic, _trees)]
    pairs, to_all = (max(kind, key=np.mean) for kind in zip(*found, strict=True))
    return pairs, to_all


def farthest(samples: Sequence[Array]) -> float:
    """D: the largest distance of a client's point to the nearest one of another client, over all pairs of clients.

    >>> farthest([np.array([0.0, 1.0]), np.array([1.0, 3.0])])
    2.0
    """
    samples = _points(samples)
    centre = np.mean([x.mean(axis=0) for x in samples], axis=0)
    clients = [x[np.argsort(np.linalg.norm(x, axis=1))] for x in (x - centre for x in samples)]
    # The farthest points are likely far out.  Once their distances are known, nearly all others are seen to be nearer
    # by a few points in the middle of each client.
    outer = np.concatenate([x[-OUTER:] for x in clients])
    owner = np.repeat(np.arange(len(clients)), [min(len(x), OUTER) for x in clients])
    largest = 0.0
    for j, y in enumerate(clients):
        largest = max(largest, float(_squares(outer[owner != j], y).min(axis=1).max(initial=0.0)))
    middle = np.concatenate([x[:MIDDLE] for x in clients])
    starts = np.cumsum([0, *(min(len(x), MIDDLE) for x in clients[:-1])])
    nearest = [np.minimum.reduceat(_squares(x, middle), starts, axis=1) for x in clients]
    for j, y in enumerate(clients):
        nearest[j][:, j] = 0.0
        left = [near[:, j] > largest for near in nearest]
        x = np.concatenate([x[rows] for x, rows in zip(clients, left, strict=True)])
        so_far = np.concatenate([near[rows, j] for near, rows in zip(nearest, left, strict=True)])
        rest = _squares(x, y[MIDDLE:]).min(axis=1, initial=np.inf)
        largest = max(largest, float(np.minimum(so_far, rest).max(initial=0.0)))
    return math.sqrt(largest)


def _squares(x: Array, y: Array) -> Array:
    """‖x − y‖² of all pairs."""
    sums = np.einsum("ij,ij->i", x, x)[:, None] + np.einsum("ij,ij->i", y, y)
    squares = sums - 2 * x @ y.T
    return np.where(squares < 64 * np.finfo(x.dtype).eps * sums, 0, squares)  # equal points, but for rounding


# Points and weights


def _flat(x: Array) -> Array:
    x = np.asarray(x)
    return x.reshape(len(x), math.prod(x.shape[1:]))


def _checked(samples: Sequence[Array]) -> list[Array]:
    """Points as rows of numbers."""
    rows = [np.asarray(x) for x in samples]
    rows = [x[:, None] if x.ndim == 1 else x for x in rows]
    if not rows or min(len(x) for x in rows) == 0:
        raise FFGBError("there is a client without points; every client needs at least one")
    if any(x.ndim != 2 or x.shape[1] != rows[0].shape[1] or x.dtype.kind not in "fiub" for x in rows):
        found = ", ".join(f"{x.dtype} {x.shape}" for x in rows[:4])
        raise FFGBError(f"the clients' points must be rows of numbers, all of one length, not arrays of {found}")
    if not all(np.isfinite(x).all() for x in rows):
        raise FFGBError("some points have missing or infinite values; fill them in or remove those rows")
    return rows


def _points(samples: Sequence[Array]) -> list[Array]:
    """Points as rows of floating-point numbers; float32 stays, to save memory."""
    return [x if x.dtype == np.float32 else x.astype(np.float64, copy=False) for x in _checked(samples)]


def _weights(p: Array | None, n: int) -> Array:
    """Weights that add up to 1; equal ones if none are given."""
    weights = np.ones(n) if p is None else np.asarray(p, np.float64)
    if weights.shape != (n,) or not np.isfinite(weights).all() or (weights < 0).any() or weights.sum() <= 0:
        raise FFGBError(f"the weights of {n} points are {n} numbers from 0 on, not all 0")
    share: Array = weights / weights.sum()
    return share


def _some(x: Array, at_most: int, rng: np.random.Generator) -> Array:
    return x if len(x) <= at_most else x[np.sort(rng.choice(len(x), at_most, replace=False))]


def _common_units(samples: Sequence[Array], rows: Array) -> Array:
    """Images as they are; columns of tables with unit variance, by the moments of all clients, as learners see them."""
    if np.ndim(samples[0]) <= 2:
        moments = Moments.of(np.concatenate([np.asarray(x, np.float64) for x in samples]))
        return Standardize.by(moments, Flatten(rows.shape[1]))(rows)
    return rows


def _distinct(samples: Sequence[Array]) -> tuple[Array, list[Array]]:
    """Where each distinct point of all samples stands first, and which of these each sample's points are.

    Points are compared by digests of 8 bytes: sorting whole images would take long, and gigabytes.
    """
    alike = (x.astype(np.float64) + 0.0 for x in samples)  # one type, and −0 is 0
    digests = [hashlib.blake2b(row.tobytes(), digest_size=8).digest() for x in alike for row in x]
    _, first, index = np.unique(np.frombuffer(b"".join(digests), np.uint64), return_index=True, return_inverse=True)
    return first, np.split(index, np.cumsum([len(x) for x in samples])[:-1])


def _mass(index: Sequence[Array], size: int, weights: Sequence[Array] | None = None) -> Array:
    """The mass of each of `size` distinct points in each sample, (N, size)."""
    weights = weights or [_weights(None, len(part)) for part in index]
    return np.array([np.bincount(part, p, minlength=size) for part, p in zip(index, weights, strict=True)])


def _largest(labels: Sequence[Array] | None) -> float | None:
    """B, of targets; classes have none."""
    if labels is None or any(np.issubdtype(y.dtype, np.integer) for y in labels):
        return None
    return max(float(np.linalg.norm(y.reshape(len(y), -1), axis=1).max()) for y in labels)


# Exact distances


def _exact_tv(mass: Array) -> tuple[Array, Array]:
    """TV of all pairs, and to the mixture, from masses (N, S)."""
    pairs = np.array([np.abs(mass - row).sum(axis=1) for row in mass])
    return 0.5 * pairs, 0.5 * np.abs(mass - mass.mean(axis=0)).sum(axis=1)


def _exact_costs(support: Array, mass: Array) -> list[tuple[Array, Array]]:
    """W₁, then W₂², each of all pairs (N, N) and to the mixture (N,)."""
    N, mixture = len(mass), mass.mean(axis=0)
    held = [row > 0 for row in mass]
    pairs, to_all = np.zeros((2, N, N)), np.zeros((2, N))
    for i in range(N):
        x, p = support[held[i]], mass[i, held[i]]
        to_all[:, i] = _transport_costs(x, support, p, mixture)
        for j in range(i):
            pairs[:, i, j] = pairs[:, j, i] = _transport_costs(x, support[held[j]], p, mass[j, held[j]])
    return list(zip(pairs, to_all, strict=True))


def _transport_costs(x: Array, y: Array, p: Array, q: Array, orders: Sequence[int] = (1, 2)) -> list[float]:
    """W₁ and W₂²: the least mean of ‖x − y‖ and of its square over all couplings."""
    if x.shape[1] == 1:
        shares, a, b = _quantiles(x[:, 0].astype(np.float64), y[:, 0].astype(np.float64), p, q)
        return [float(shares @ np.abs(a - b) ** order) for order in orders]
    try:
        from ot import emd2  # type: ignore[import-untyped]
    except ImportError as error:
        raise missing_extra("POT", "transport", "an exact Wasserstein distance") from error
    cost = cdist(x, y)  # in float64
    # The simplex ends by itself, at the optimum; POT's default number of steps would end it before.
    return [max(0.0, float(emd2(p, q, cost**order, numItermax=1_000_000_000))) for order in orders]


def _quantiles(x: Array, y: Array, p: Array, q: Array) -> tuple[Array, Array, Array]:
    """The best coupling on a line: pieces of [0, 1] on which both quantile functions are constant, and their values."""
    i, j = np.argsort(x), np.argsort(y)
    ends_x, ends_y = np.cumsum(p[i]), np.cumsum(q[j])
    ends_x[-1] = ends_y[-1] = 1.0
    ends = np.sort(np.concatenate([ends_x, ends_y])).clip(max=1.0)
    shares = np.diff(ends, prepend=0.0)
    return shares, x[i][np.searchsorted(ends_x, ends)], y[j][np.searchsorted(ends_y, ends)]


# Sliced distances


def _directions(d: int, count: int, rng: np.random.Generator) -> Array:
    """Random unit vectors (d, count), as many as there can be at right angles to each other: they repeat little."""
    if d == 1:
        return np.ones((1, 1))
    frames = [np.linalg.qr(rng.standard_normal((d, d)))[0] for _ in range(-(-count // d))]
    return np.concatenate(frames, axis=1)[:, :count]


def _w1_on_lines(a: Array, b: Array) -> Array:
    """W₁ along each direction, of sorted values (directions, n) and (directions, m)."""
    n, m = a.shape[1], b.shape[1]
    if n != m:
        # Quantile functions are constant between multiples of 1/n and 1/m: in units of 1/(nm), whole numbers.
        ends = np.union1d(m * np.arange(1, n + 1), n * np.arange(1, m + 1))
        a, b = a[:, (ends - 1) // m], b[:, (ends - 1) // n]
        shares = np.diff(ends, prepend=0) / (n * m)
        return np.asarray(np.abs(a - b) @ shares)
    return np.asarray(np.abs(a - b).mean(axis=1))


def _w1_to_mixture(lines: Sequence[Array]) -> Array:
    """W₁ of each sample's values to the mixture of all, along each direction, (N, directions).

    A sample's quantile function is a on (u₋, u]; the integral there of |a − Q|, Q the mixture's quantile function, is
    that of a − Q up to where Q reaches a, and that of Q − a beyond.
    """
    sizes = np.array([a.shape[1] for a in lines])
    owner = np.repeat(np.arange(len(lines)), sizes)
    weights = 1.0 / (len(lines) * sizes[owner])
    rank = np.concatenate([np.arange(n) for n in sizes])
    lower, upper = rank / sizes[owner], (rank + 1) / sizes[owner]
    found = np.empty((len(lines), len(lines[0])))
    for k, a in enumerate(np.concatenate(lines, axis=1)):
        order = np.argsort(a, kind="stable")
        z, w = a[order], weights[order]
        ends = np.concatenate([[0.0], np.cumsum(w)])
        area = np.concatenate([[0.0], np.cumsum(w * z)])  # ∫ Q from 0
        reached = ends[np.searchsorted(z, a, side="right")].clip(lower, upper)
        below, middle, above = (np.interp(u, ends, area) for u in (lower, reached, upper))
        found[:, k] = np.bincount(owner, a * (2.0 * reached - lower - upper) + below + above - 2.0 * middle)
    return found


# Classifiers


def _principal(samples: Sequence[Array]) -> Array:
    """All points, in few dimensions: those of their largest variance."""
    mean = np.mean([x.mean(axis=0, dtype=np.float64) for x in samples], axis=0)
    d, step = len(mean), -(-sum(map(len, samples)) // COMPONENTS_FROM)
    if d <= COMPONENTS:
        return np.concatenate([x - mean for x in samples])
    some = np.concatenate([x[::step] for x in samples]) - mean
    axes = eigh(some.T @ some, subset_by_index=[d - COMPONENTS, d - 1])[1]
    return np.concatenate([(x - mean) @ axes for x in samples])


def _linear(z: Array, owner: Array, N: int, rng: np.random.Generator) -> Array:
    return _gaussians(z, owner, N, rng, own=False)


def _quadratic(z: Array, owner: Array, N: int, rng: np.random.Generator) -> Array:
    return _gaussians(z, owner, N, rng, own=True)


def _gaussians(z: Array, owner: Array, N: int, rng: np.random.Generator, *, own: bool) -> Array:
    """How likely each client is at each point, (n, N), by Gaussians that are fitted to the other folds.

    They have one covariance, or each its own, drawn towards that of all as if there were 10 points a dimension more.
    """
    (n, d), fold = z.shape, rng.permutation(len(z)) % FOLDS
    scores = np.full((n, N), -np.inf)
    for k in range(FOLDS):
        test, whose = fold == k, owner[fold != k]
        count = np.bincount(whose, minlength=N)
        sums = np.array([np.bincount(whose, column, minlength=N) for column in z[~test].T]).T
        means = sums / np.maximum(count, 1)[:, None]
        within = z[~test] - means[whose]
        common = within.T @ within / len(within)
        common.flat[:: d + 1] += RIDGE * np.trace(common) / d + 1e-12
        white = np.linalg.inv(np.linalg.cholesky(common)).T
        x, within, means = z[test] @ white, within @ white, means @ white
        if not own:
            scores[test] = np.where(count > 0, -0.5 * _squares(x, means), -np.inf)
            continue
        for i in np.flatnonzero(count):
            mine = within[whose == i]
            root = np.linalg.cholesky((mine.T @ mine + 10 * d * np.eye(d)) / (len(mine) + 10 * d))
            far = solve_triangular(root, (x - means[i]).T, lower=True)
            scores[test, i] = -0.5 * np.einsum("ij,ij->j", far, far) - np.log(np.diag(root)).sum()
    return np.asarray(softmax(scores, axis=1))


def _trees(z: Array, owner: Array, N: int, rng: np.random.Generator) -> Array:
    """How likely each client is at each point, (n, N), if all had equally many, by the trees that did not see it."""
    from sklearn.ensemble import ExtraTreesClassifier

    seed = int(rng.integers(2**31))
    forest = ExtraTreesClassifier(
        TREES, min_samples_leaf=LEAF, bootstrap=True, oob_score=True, random_state=seed, n_jobs=-1
    )
    return np.asarray(forest.fit(z, owner).oob_decision_function_ / np.bincount(owner, minlength=N))


def _bounds(likely: Array, owner: Array) -> tuple[Array, Array]:
    """α_i(A) − α_j(A) for all pairs, and α_i(A) − α(A), from how likely clients are; ties are in A with chance ½."""
    N = likely.shape[1]
    wins, above = np.empty((N, N)), np.empty((N, N))
    for i in range(N):
        mine = likely[owner == i]
        wins[i] = np.sign(mine[:, [i]] - mine).mean(axis=0)
        above[i] = np.sign(mine - mine.mean(axis=1, keepdims=True)).mean(axis=0)
    pairs = 0.5 * (wins + wins.T)
    to_all = 0.5 * (np.diag(above) - above.mean(axis=0))
    return pairs.clip(0.0, 1.0), to_all.clip(0.0, 1.0)
