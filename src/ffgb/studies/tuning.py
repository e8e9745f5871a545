"""Step sizes by one rule for every method: successive halving, by the score on rows that clients set aside.

Nine step sizes, each twice the one before, around the method's default.  All train for some rounds; the worse half is
dropped, the others go on for as many rounds again as they have had, until one is left.  Clients report sums of score
and loss over a share of their own rows that they did not train on; between scores that cannot be told apart on so many
rows the loss decides.  Jamieson & Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization",
AISTATS 2016.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from ffgb.data import Dataset
from ffgb.engines.local import local_engine
from ffgb.errors import DivergedError, FFGBError, option
from ffgb.federation.host import Holding
from ffgb.federation.server import Server
from ffgb.federation.state import State
from ffgb.runs.choose_ridge import set_aside
from ffgb.runs.config import Config, load_data
from ffgb.runs.directory import Run
from ffgb.runs.holdings import make_parts, server_options
from ffgb.runs.learners import make_algorithm, make_learner
from ffgb.runs.resolve import make_loss
from ffgb.runs.training import rounds_of

FACTORS = tuple(2.0**j for j in range(-4, 5))
SHARE = 0.2


@final
@dataclass(frozen=True)
class Tuned:
    """The step size that was best, and every score on the way to it."""

    step_size: float
    scores: tuple[dict[str, Any], ...]
    rounds: int
    """Of training, all candidates together."""
    edge: bool
    """It is the smallest or largest that was tried: a wider search may find better."""


@final
class _Candidate:
    """A step size in the race: how far its training is, and the folder that it goes on from."""

    def __init__(self, config: Config, folder: Path | None, start: Callable[[Config], State]) -> None:
        self.config, self.folder = config, folder
        self.metrics: list[dict[str, Any]] = []
        saved = None
        if folder is not None and (folder / "config.json").exists():
            run = Run.open(folder)
            if Config.from_json(run.config) != config:
                raise FFGBError(f"{folder.parent} holds a race with other settings; choose another {option('out')}")
            saved = run.load()
        if saved is None:
            self.state = start(config)
        else:
            self.state, self.metrics, _ = saved

    @property
    def phases(self) -> int:
        """Exchanges of a round."""
        return self.state.job.algorithm.phases

    @property
    def rounds(self) -> int:
        """How many it has been trained for."""
        return self.state.t // self.phases

    def train(self, server: Server, rounds: int) -> tuple[float, float]:
        """On to so many rounds, or from where it is if that is further: what is to be small then."""
        T = rounds * self.phases
        try:
            if self.state.t < T:
                server.take_up(self.state)
            so_far = replace(self.config, rounds=T // self.config.phases)
            for state, line in rounds_of(server, self.state, so_far):
                self.state = state
                self.metrics.append(line)
                if self.folder is not None:
                    there = (self.folder / "config.json").exists()
                    run = Run.open(self.folder) if there else Run.create(self.folder, self.config.to_json())
                    run.save(state, self.metrics, 0.0)
        except DivergedError:
            return math.inf, math.inf
        return _badness(self.metrics[T - 1])


def tune(
    config: Config,
    rounds: int = 4,
    *,
    out: Path | None = None,
    dataset: Dataset | None = None,
    workers: int | None = None,
    on_score: Callable[[dict[str, Any]], None] = lambda score: None,
) -> Tuned:
    """The best step size for a configuration; the first rung has so many rounds.

    With nine candidates that is 9 + 5 + 2·3 + 4·2 + … rounds' worth: the same number for every method.  With `out`,
    every candidate is kept there as a run of its own, and the race goes on where it was stopped.
    """
    dataset = dataset or load_data(config)
    config = replace(config, rounds=rounds).resolved(dataset)
    steps = _candidates(config)
    if out is not None and (out / "config.json").exists():
        raise FFGBError(f"{out} holds a run; choose another {option('out')}")
    kept, aside = set_aside(config, SHARE, dataset, make_parts(config, dataset))
    holdings = [Holding(dataset.x, dataset.y, rows) for rows in (*kept, *aside)]
    loss = make_loss(config, dataset)
    with (
        nullcontext() if out is None else Run(out).locked(),
        local_engine(holdings, workers, config.code) as engine,
    ):
        server = Server(engine, [len(rows) for rows in kept], len(aside), **server_options(config))
        known: dict[str, Any] = {}

        def start(tried: Config) -> State:
            return server.start(
                *(make_algorithm(tried), make_learner(tried, dataset), loss),
                scale_target=not loss.classification,
                known=known,
            )

        everyone = {
            step: _Candidate(replace(config, step_size=step), None if out is None else out / f"{step:g}", start)
            for step in steps
        }
        rows = sum(map(len, aside)) if loss.classification else None
        best, scores = _race(everyone, server, rounds, rows, on_score)
    total = sum(candidate.rounds for candidate in everyone.values())
    return Tuned(best, tuple(scores), total, best in (steps[0], steps[-1]))


def _candidates(config: Config) -> list[float]:
    """The step sizes to try: multiples of the configuration's own."""
    if config.schedule in ("search", "theorem1", "theorem2") or config.step_size is None:
        raise FFGBError(
            f"the schedule {config.schedule} has no step size to tune; choose power or constant (ffgb tune takes it "
            f"from a file: {option('config')})"
        )
    if not 0 < config.step_size < math.inf:
        raise FFGBError(f"{option('step_size')} is a positive number, not {config.step_size:g}")
    return [config.step_size * factor for factor in FACTORS]


def _race(
    everyone: Mapping[float, _Candidate],
    server: Server,
    rounds: int,
    rows: int | None,
    on_score: Callable[[dict[str, Any]], None],
) -> tuple[float, list[dict[str, Any]]]:
    """The best step size, and every score: on each rung the better half goes on, to twice as many rounds."""
    racing, until, scores = list(everyone), rounds, list[dict[str, Any]]()
    while True:
        results: dict[float, tuple[float, float]] = {}
        for step in racing:
            results[step] = bad, value = everyone[step].train(server, until)
            ended = not math.isfinite(value)
            said = {"score": None if ended else abs(bad), "loss": None if ended else value}
            scores.append({"step_size": step, "rounds": until, **said})
            on_score(scores[-1])
        if not any(math.isfinite(value) for _, value in results.values()):
            raise FFGBError(
                f"every step size that was tried diverged; give a much smaller {option('step_size')} to start from"
            )
        ranked = rank(results, rows)
        racing = [step for step in ranked[: -(-len(ranked) // 2)] if math.isfinite(results[step][1])]
        if len(racing) == 1:
            return racing[0], scores
        until *= 2


def rank(results: Mapping[float, tuple[float, float]], rows: int | None) -> list[float]:
    """Step sizes from the best to the worst, given what is to be small of each: the score, and the loss.

    Accuracies that are within one standard error of the best, on so many rows, are the same; then the loss decides.
    After FFGB's first round all step sizes have about the same accuracy: they scale one function.

    >>> rank({1.0: (-0.886, 1.9), 2.0: (-0.885, 0.4), 4.0: (-0.95, 0.6), 8.0: (-0.949, 0.5)}, 12_000)
    [8.0, 4.0, 1.0, 2.0]
    """
    best = min(bad for bad, _ in results.values())
    margin = 0.0 if rows is None or not -1.0 <= best <= 0.0 else math.sqrt(-best * (1.0 + best) / rows)
    return sorted(results, key=lambda step: (max(results[step][0], best + margin), results[step][1], step))


def _badness(line: dict[str, Any]) -> tuple[float, float]:
    """What is to be small: the score that results are told in, and the loss where that is the same.

    By the loss alone FFGB on MNIST with 56 clients takes steps eight times the paper's, and ends three points below it.
    """
    right = line.get("test_accuracy", line.get("test_concordance"))
    return (float(line["test_rmse"]) if right is None else -float(right)), float(line["test_loss"])
