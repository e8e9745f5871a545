"""What a curious server computes about rows from all that one client has sent, and a malicious one asks for.

A client's answers are read as if they were in the open: under masks the same arithmetic is done with masked numbers.
The server is given more than it has: how many rows each client holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import rankdata

from ffgb.algorithms.ffgb_shared import FFGBShared
from ffgb.core.geometry import unpack
from ffgb.core.gradients import GradientOf
from ffgb.core.grams import GramOf
from ffgb.core.losses import Loss
from ffgb.core.maps import FeatureMap
from ffgb.core.questions import Question
from ffgb.core.schedules import Constant
from ffgb.core.weighting import Weighting
from ffgb.data import Dataset
from ffgb.engines.local import InProcess
from ffgb.features.basic import Clip, Concatenate, Flatten, Standardize
from ffgb.features.tables import Columns, Histogram, Steps
from ffgb.federation.parts import means_of
from ffgb.federation.server import Server
from ffgb.federation.state import State
from ffgb.learners.linear import Linear
from ffgb.protocol.codec import Message, decode
from ffgb.protocol.engine import Engine
from ffgb.protocol.job import Job
from ffgb.protocol.messages import Asked, Setup, read, what_leaves
from ffgb.runs.config import Config, load_data
from ffgb.runs.holdings import make_holdings, make_parts
from ffgb.runs.learners import make_algorithm, make_learner
from ffgb.runs.resolve import make_loss

Array = np.ndarray
CLOSE = 0.02
"""Standard deviations, of each column, up to which a row counts as read."""


class Recording(Engine):
    """All that is sent, both ways."""

    def __init__(self, inner: Engine) -> None:
        self.inner = inner
        self.log: list[tuple[bytes, dict[int, bytes]]] = []

    def exchange(self, data: bytes, clients: Sequence[int]) -> dict[int, bytes]:
        answers = self.inner.exchange(data, clients)
        self.log.append((data, dict(answers)))
        return answers

    def close(self, *, at_once: bool = False) -> None:
        self.inner.close(at_once=at_once)


@dataclass
class Seen:
    """A training as its server has seen it, and the rows that it is to find out."""

    config: Config
    dataset: Dataset
    parts: list[Array]
    log: list[tuple[bytes, dict[int, bytes]]]
    state: State
    loss: Loss

    @property
    def x(self) -> Array:
        return np.asarray(self.dataset.x, np.float64).reshape(len(self.dataset.x), -1)

    @property
    def clipped(self) -> Array:
        """The rows as features have them: a row is read if nothing but what is clipped is missing."""
        maps: list[FeatureMap] = [self.state.job.family.features]
        for features in maps:  # all that they are made of
            if isinstance(features, Clip):
                return features(self.dataset.x).astype(np.float64)
            maps += getattr(features, "parts", ()) or ([features.inner] if hasattr(features, "inner") else [])
        return self.x

    @property
    def scale(self) -> Array:
        """The standard deviation of each column."""
        deviation = self.x.std(axis=0)
        return np.where(deviation > 0, deviation, 1.0)

    def answers(self, kind: type) -> Iterator[tuple[Asked, dict[int, Message]]]:
        """Questions of a kind, and what each client has answered."""
        together: dict[bytes, dict[int, bytes]] = {}
        for data, answers in self.log:
            together.setdefault(data, {}).update(answers)  # some clients are asked at a time
        for data, answers in together.items():
            message = decode(data)
            if what_leaves(message) == f"question {kind.__name__}":
                asked = read(message, self.state.job)
                assert isinstance(asked, Asked)
                yield asked, {i: decode(a) for i, a in answers.items()}

    def own(self, asked: Asked, answer: Message, i: int) -> dict[str, Array] | None:
        """A client's numbers, as means over its own rows; None if it has sent none."""
        sums = asked.question.sums
        if answer.kind not in ("part", "masked") or not answer.tensors.keys() >= sums.keys():
            return None
        whole = {name: answer.tensors[name] for name in sums}
        return means_of(whole, sums, asked.weighting.part(float(len(self.parts[i]))))


def trained(rounds: int = 1, minimum: int | None = None, **settings: Any) -> Seen:
    """A training of features in a shared geometry with these settings, seen by its server."""
    config = Config(**{"learner": "features", **settings})
    dataset = load_data(config)
    config = config.resolved(dataset)
    parts = make_parts(config, dataset)
    clients, options = make_holdings(config, dataset, parts)
    loss = make_loss(config, dataset)
    with Recording(InProcess(clients)) as engine:
        server = Server(engine, **options, minimum=minimum)
        learner = make_learner(config, dataset)
        state = server.start(make_algorithm(config), learner, loss, scale_target=not loss.classification)
        for after, _ in server.rounds(state, rounds):
            state = after
    return Seen(config, dataset, parts, engine.log, state, loss)


def _with_steps(features: FeatureMap) -> tuple[Standardize, float, Steps, float] | None:
    """The inputs and the steps of a map, with their factors, if they are its first parts."""
    if not isinstance(features, Concatenate):
        return None
    first, second, *_ = features.parts
    if not isinstance(first, Standardize) or not isinstance(second, Steps):
        return None
    return first, features.factors[0], second, features.factors[1] * second._height


@dataclass
class Row:
    """A row that a server believes to have read."""

    values: Array
    gradient: Array
    """Of the loss at f⁰: it tells the label."""


def curious(seen: Seen, i: int) -> list[Row]:
    """Rows of client i, from its Gram and its first covector.

    Two neighbouring steps of a column differ by the indicator of one interval.  A column of second moments minus its
    neighbour is therefore the sum over the rows in that interval: if there is one, it is that row.
    """
    gram = next(((asked, a[i]) for asked, a in seen.answers(GramOf) if i in a), None)
    covector = next(((asked, a[i]) for asked, a in seen.answers(GradientOf) if i in a), None)
    if gram is None or covector is None:
        return []
    own, first = seen.own(*gram, i), seen.own(*covector, i)
    question = gram[0].question
    assert isinstance(question, GramOf)
    layout = _with_steps(question.features)
    if own is None or first is None or layout is None:
        return []
    scaled, factor, steps, height = layout
    n, d, D = len(seen.parts[i]), scaled.dimension, question.features.dimension
    centre = question.centre.astype(np.float32).astype(np.float64)
    mean, half = own["mean"] + centre, unpack(own["gram"], D)
    about = half + np.tril(half, -1).T
    moments = about + np.outer(centre, mean) + np.outer(mean, centre) - np.outer(centre, centre)
    column, threshold = steps._tests
    with np.errstate(all="ignore"):
        above = np.rint(np.nan_to_num(mean[d : d + len(column)] / height * n))
    varies = np.isfinite(scaled.scale)
    found: dict[tuple[float, ...], Row] = {}
    for j in range(d):
        at = np.flatnonzero(column == j)
        at = at[np.argsort(threshold[at])]
        if not len(at):
            continue
        sums = [mean[:d], *(moments[:d, d + k] / height for k in at), np.zeros(d)]
        gradients = [first["covector"][-1], *(first["covector"][d + k] / height for k in at)]
        gradients.append(np.zeros_like(gradients[0]))
        counts = np.array([n, *above[at], 0.0])
        for k in np.flatnonzero(counts[:-1] - counts[1:] == 1.0):
            z = n * (sums[k] - sums[k + 1]) / factor
            values = np.where(varies, z * np.where(varies, scaled.scale, 0.0) + scaled.mean, np.nan)
            row = Row(values, n * (gradients[k] - gradients[k + 1]))
            found.setdefault(tuple(np.round(values[varies], 2)), row)
    return list(found.values())


@dataclass
class Verdict:
    """How many rows of a client were read, and of how many of these the label."""

    rows: int
    read: int
    labels: int
    worst: float


def judged(seen: Seen, i: int, found: Sequence[Row]) -> Verdict:
    """Compare with the truth: a row is read if every column is right."""
    x, clipped, y = (values[seen.parts[i]] for values in (seen.x, seen.clipped, seen.dataset.y))
    read, labels, worst, scale = set[int](), 0, 0.0, seen.scale
    for row in found:
        use = np.flatnonzero(np.isfinite(row.values))
        near, distance = np.arange(len(x)), np.zeros(len(x))
        for columns in np.array_split(use, max(1, len(use) // 3)):  # a row that is off in three columns is off
            off = np.minimum(*(np.abs(truth[near][:, columns] - row.values[columns]) for truth in (x, clipped)))
            distance = np.maximum(distance[: len(near)], (off / scale[columns]).max(axis=1, initial=0.0))
            near, distance = near[distance < CLOSE], distance[distance < CLOSE]
        if not len(near) or (r := int(near[np.argmin(distance)])) in read:
            continue
        read.add(r)
        worst = max(worst, float(distance.min()))
        if seen.loss.classification:
            label = int(row.gradient[0] < 0) if len(row.gradient) == 1 else int(np.argmin(row.gradient))
            labels += label == int(y[r])
    return Verdict(len(x), len(read), labels, worst)


def read_by_the_curious(seen: Seen) -> Verdict:
    """Of all clients together."""
    each = [judged(seen, i, curious(seen, i)) for i in range(len(seen.parts))]
    return Verdict(
        sum(v.rows for v in each), sum(v.read for v in each), sum(v.labels for v in each), max(v.worst for v in each)
    )


def auc(members: Array, others: Array) -> float:
    """The chance that a member has the larger score."""
    ranks = rankdata(np.concatenate([members, others]))
    n, m = len(members), len(others)
    return float((ranks[:n].sum() - n * (n + 1) / 2) / (n * m))


class Reference:
    """What a server knows of people in general: rows of the same kind, which are no one's."""

    def __init__(self, features: FeatureMap, x: Array, y: Array, classes: Sequence[Any]) -> None:
        z = features(x).astype(np.float64)
        self.means = {c: (z if c is None else z[y == c]).mean(axis=0) for c in classes}
        centred = z - z.mean(axis=0)
        self.rows, self.ridge = centred, 0.1 * float(np.square(centred).mean())
        self._inner = np.linalg.inv(centred @ centred.T + len(z) * self.ridge * np.eye(len(z)))

    def whitened(self, v: Array) -> Array:
        """(Σ + λI)⁻¹ v, Σ the covariance of the reference rows."""
        found: Array = (v - self.rows.T @ (self._inner @ (self.rows @ v))) / self.ridge
        return found


def membership(
    seen: Seen, rows_a_class: tuple[int, int] = (1, 10**9), rounds: int = 1, clients: int = 10**9
) -> list[float]:
    """How well a server tells a client's rows from others of the same class: AUCs, one for each client and class with
    so many rows, and each round.

    The first covector and the mean of the features give the sum over a client's rows of a class.  A row that is in the
    sum has a larger inner product with it, both taken from what is usual and in units of the usual spread.
    """
    data, rng, found = seen.dataset, np.random.default_rng(0), list[float]()
    held = np.zeros(len(data.y), np.intp)
    for i, rows in enumerate(seen.parts):
        held[rows] = i
    classes = list(np.unique(data.y)) if seen.loss.classification else [None]
    some = rng.permutation(len(data.x_test))[:300]
    gram = next(seen.answers(GramOf))
    assert isinstance(gram[0].question, GramOf)
    features = gram[0].question.features
    reference = Reference(features, data.x_test[some], data.y_test[some], classes)
    means = {i: seen.own(gram[0], answer, i) for i, answer in gram[1].items()}
    z = features(data.x).astype(np.float64)
    for asked, answers in seen.answers(GradientOf):
        if asked.round >= rounds:
            continue
        for i in sorted(i for i in answers if i < len(seen.parts)):
            first, mean = seen.own(asked, answers[i], i), means[i]
            if first is None or mean is None:
                continue
            sums = _sums_of_classes(first["covector"][:-1], mean["mean"] + gram[0].question.centre, classes)
            for c in classes:
                alike = np.arange(len(data.y)) if c is None else np.flatnonzero(data.y == c)
                inside = alike[held[alike] == i]
                outside = rng.permutation(alike[held[alike] != i])[:300]
                if not rows_a_class[0] <= len(inside) <= rows_a_class[1] or len(outside) < 20:
                    continue
                share = len(inside) / len(seen.parts[i])
                direction = reference.whitened(sums[c] / share - reference.means[c])
                scores = [z[rows] @ direction for rows in (inside[:300], outside)]
                found.append(auc(scores[0], scores[1]))
    return found


def _sums_of_classes(covector: Array, mean: Array, classes: Sequence[Any]) -> dict[Any, Array]:
    """The sums of features over the rows of each class, a row of the client: φ is p − y at f = 0."""
    if classes == [None]:
        return {None: mean}
    if covector.shape[1] == 1:
        ones = 0.5 * mean - covector[:, 0]
        return {classes[0]: mean - ones, classes[1]: ones}
    return {c: mean / len(classes) - covector[:, k] for k, c in enumerate(classes)}


class Malicious:
    """A server that asks one client what it likes, in questions of the kinds that an honest training has."""

    def __init__(self, exchange: Callable[[Message], Message], rows: int, columns: int, loss: Loss) -> None:
        self.exchange, self.n, self.d, self.loss = exchange, rows, columns, loss
        self.asked, self.refused = 0, list[str]()

    def ask(self, question: Question, round: int = -1) -> dict[str, Array] | None:
        """The client's own sums; None if it refuses."""
        asked = Asked(question, Weighting(float(self.n)), round)
        answer = self._said(asked.message())
        if answer is None or not answer.tensors.keys() >= question.sums.keys():
            return None
        return means_of({name: answer.tensors[name] for name in question.sums}, question.sums, 1.0)

    def _said(self, message: Message) -> Message | None:
        self.asked += 1
        answer = self.exchange(message)
        if answer.kind != "error":
            return answer
        self.refused.append(str(answer.values["text"]))
        return None

    def rows(self) -> list[Row]:
        """Every row that is alone in a narrow interval of one column."""
        grid = np.geomspace(1e-4, 1e5, 8000)
        edges = np.tile(np.concatenate([-grid[::-1], [0.0], grid]).astype(np.float32), (self.d, 1))
        histogram = self.ask(Histogram(edges))
        if histogram is None:
            return []
        counts = histogram["counts"]
        j = int(np.argmax((counts == 1).sum(axis=1)))
        occupied = np.flatnonzero(counts[j, :-1] > 0)[:400]
        if not len(occupied):
            return []
        cuts = np.unique(np.concatenate([edges[j, np.maximum(occupied - 1, 0)], edges[j, occupied]]))
        table = np.full((self.d, len(cuts)), np.inf, np.float32)
        table[j] = cuts
        steps = Steps(Columns(table, tuple(range(self.d))), len(cuts))
        features = Concatenate((Flatten(self.d), steps), (1.0, 1.0))
        D, largest = features.dimension, np.abs(np.where(counts[:, :-1] > 0, edges, 0.0)).max(axis=1)
        size = np.append(np.maximum(2.0 * largest, 1e-3), np.full(len(cuts), 1.0))
        gram = self.ask(GramOf(features, (D,), 1, np.zeros(D), size))
        job = Job(FFGBShared(Constant(1.0)), Linear(features, self.loss.outputs), self.loss, None, 0)
        self._said(Setup(job).message())
        gradient = self.ask(GradientOf(job.family, self.loss, np.append(size, 1.0)), 0)
        if gram is None or gradient is None:
            return []
        moments, height = unpack(gram["gram"], D), steps._height
        above = np.array([self.n, *(gram["mean"][self.d :] / height * self.n), 0.0])
        sums = [gram["mean"][: self.d], *(moments[self.d :, : self.d] / height), np.zeros(self.d)]
        covector = gradient["covector"]
        labels = [covector[-1], *(covector[self.d : -1] / height), 0.0 * covector[-1]]
        alone = np.flatnonzero(np.rint(above[:-1] - above[1:]) == 1.0)
        return [Row(self.n * (sums[k] - sums[k + 1]), self.n * (labels[k] - labels[k + 1])) for k in alone]
