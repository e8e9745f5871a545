"""Who takes part: clients and their names, what they weigh, whom the server does without."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from ffgb.core.outliers import too_large
from ffgb.core.seeds import stream
from ffgb.core.weighting import Weighting
from ffgb.errors import DivergedError, FFGBError, SettingError, command
from ffgb.privacy.integers import share_of
from ffgb.settings import DATA, Setting

log = logging.getLogger("ffgb")

GO_ON = f"go on from the last round: {command('train', resume=True)}, or the same ffgb server again"


class Participants:
    """Clients 0 … N−1 train; those after them hold a part of the test set each, and only report."""

    def __init__(
        self,
        points: Sequence[int],
        tests: int = 0,
        *,
        sizes: Sequence[float] | None = None,
        participation: int | None = None,
        by_size: bool = False,
        minimum: int | None = None,
        largest_weight: float | None = None,
        names: Sequence[str] = (),
        owners: Sequence[int] = (),
        counted: bool = True,
    ) -> None:
        """`points` are the rows of each client, and `sizes` what they weigh, if rows have weights.

        With a minimum, questions and rounds go on without those who do not answer, or answer what is refused, if that
        many do; without one everyone must answer.  With a largest weight no client weighs more than that share.
        `owners` are the clients that the parts of the test set belong to: one that is refused takes its part along.
        Not `counted`, only the sum of the points is known, and they are dealt out evenly.
        """
        self.points = list(points)
        self.sizes = [float(n) for n in (points if sizes is None else sizes)]
        self.N = len(self.points)
        self.m = self.N if participation is None else participation
        if not 1 <= self.m <= self.N:
            raise FFGBError(f"{self.m} of {self.N} clients cannot take part in a round; choose 1 … {self.N}")
        if minimum is not None and not 1 <= minimum <= self.m:
            raise SettingError("minimum", f"is {minimum}, but only {self.m} clients take part in a round")
        self.minimum, self.by_size, self.largest_weight = minimum, by_size, largest_weight
        self.counted = counted
        self.called = [str(name) for name in names or range(self.N)]
        self.parts = range(self.N, self.N + tests)
        self.owners = dict(zip(self.parts, owners, strict=False))
        self.refused: dict[int, str] = {}
        """Clients whose answer to a question of the set-up was refused, and why: they are not asked any more."""
        self.in_geometry: set[int] | None = None
        """Clients whose points the geometry was made of; None: all."""

    def name(self, i: int) -> str:
        return f"client {self.called[i]}" if i < self.N else "the test set"

    @property
    def everyone(self) -> list[int]:
        """All clients but those that were refused."""
        return [i for i in range(self.N) if i not in self.refused]

    @property
    def tests(self) -> list[int]:
        """The parts of the test set, but for those that belong to clients that were refused."""
        return [i for i in self.parts if self.owners.get(i) not in self.refused]

    def sample(self, seed: int, t: int) -> list[int]:
        """S^t: m of those that are there without replacement, in increasing order, by the seed and t alone."""
        everyone = self.everyone
        return [everyone[k] for k in sample(seed, t, len(everyone), self.m)]

    def weighting(self, clients: Sequence[int], *, by_rows: bool = False, rows: int = 0) -> Weighting:
        """What these clients weigh among themselves; by rows, whatever is set, if every row is to count the same.

        If no one knows the rows of single clients, those of all of these must be told.
        """
        if not self.counted and len(clients) < self.N:
            by_size = by_rows or self.by_size
            return Weighting(float(rows) if by_size else float(len(clients)), by_size)
        sizes = [self.sizes[i] for i in clients]
        if by_rows:
            return Weighting.of(sizes)
        return Weighting.of(sizes, by_size=self.by_size, largest_share=self.largest_weight)

    def weights(self, clients: Sequence[int]) -> list[float]:
        """The same, as numbers."""
        weighting = self.weighting(clients)
        return [weighting.weight(self.sizes[i]) for i in clients]

    def part_of(self, weighting: Weighting, asked: Sequence[int], came: Sequence[int]) -> float:
        """The share of a mean over those who were asked that those who answered make up."""
        if len(came) == len(asked):
            return 1.0
        return share_of(weighting.part(self.sizes[i]) for i in came)

    def share(self, clients: Sequence[int]) -> float:
        """The share of all clients' weight that these have."""
        if len(clients) == self.N:
            return 1.0
        own = self.sizes if self.by_size else [1.0] * self.N
        return sum(own[i] for i in clients) / sum(own)

    def enough(self, clients: Sequence[int], what: str) -> None:
        if len(clients) < (fewest := self.minimum or 1):
            raise FFGBError(
                f"only {len(clients)} of {self.m} clients {what}, and a round needs {fewest}{self.those_refused()}; "
                f"when they are back, {GO_ON}"
            )

    def leave_out(self, i: int, error: FFGBError) -> None:
        """Go on without a client's answer; or do not, if everyone must answer."""
        if self.minimum is None:
            kind = DivergedError if isinstance(error, DivergedError) else FFGBError
            raise kind(f"{self.name(i)} {error.raw}") from error
        if i < self.N:  # a part of the test set that is missing is a part of a measurement
            log.warning("%s is left out of this round: it %s", self.name(i), error)

    def refuse(self, i: int, why: str, error: Exception | None = None) -> None:
        """Go on without a client to the end of the run; or do not, if everyone must answer, or too few are left."""
        if self.minimum is None:
            raise FFGBError(f"{self.name(i)} {why}") from error
        self.refused[i] = why
        log.warning("%s is left out of the run: it %s", self.name(i), FFGBError(why))
        if len(self.everyone) < self.minimum:
            raise FFGBError(
                f"only {len(self.everyone)} of {self.N} clients are left, and {self.minimum} must answer"
                f"{self.those_refused()}; start another run without these"
            )

    def those_refused(self) -> str:
        said = "; ".join(f"{self.name(i)} {why}" for i, why in self.refused.items())
        return f"; refused: {said}" if said else ""

    def comparable(self, values: dict[int, tuple[float, float]], what: str) -> list[int]:
        """The clients whose share of a mean of non-negative numbers is not absurdly large; the others are left out.

        Up to its second number a client's first is nothing strange, however small the others' are.
        """
        clients, said = list(values), [value for value, _ in values.values()]
        weights = self.weights(clients) if clients else []
        shares = [weight / math.fsum(weights) for weight in weights]
        floor = max((floor for _, floor in values.values()), default=0.0)
        strange = {clients[k] for k in too_large(said, shares, floor)}
        for i in clients:
            if i in strange:
                why = f"sent a {what} of {values[i][0]:g}, absurdly larger than the other clients'"
                self.leave_out(i, FFGBError(why))
        return [i for i in clients if i not in strange]


def sample(seed: int, t: int, clients: int, m: int) -> list[int]:
    """S^t: m of N clients without replacement, in increasing order; it depends on nothing but the seed and t."""
    if m >= clients:
        return list(range(clients))
    chosen = stream(seed, "sampling", t).choice(clients, size=m, replace=False)
    return sorted(int(i) for i in chosen)


SETTINGS = (
    Setting(
        "participation",
        "share",
        "Clients sampled a round: a number such as 5, or a share such as 0.5.",
        DATA,
        unset="all",
    ),
    Setting(
        "client_weights",
        "text",
        "uniform, as in the paper, or size.",
        DATA,
        unset="size in a shared geometry, or by fedavg …",
        choices=("uniform", "size"),
    ),
    Setting(
        "largest_weight",
        "number",
        "No client weighs more than this share of the sum of all weights (by size).",
        DATA,
        unset="no limit",
        above=0.0,
        most=1.0,
    ),
)
