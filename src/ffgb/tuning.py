"""Step sizes by one rule for every method: successive halving, by the score on rows that clients set aside.

Nine step sizes, each twice the one before, around the method's default.  All train for some rounds; the worse half is
dropped, the others go on for as many rounds again as they have had, until one is left.  Clients report sums of score
and loss over a share of their own rows that they did not train on; between scores that cannot be told apart on so many
rows the loss decides.  Jamieson & Talwalkar, "Non-stochastic best arm
identification and hyperparameter optimization", AISTATS 2016.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

from ffgb.config import Config, load_data, make_algorithm, make_learner, make_loss
from ffgb.data import Dataset
from ffgb.engines.local import Holding, local_engine
from ffgb.errors import DivergedError, FFGBError
from ffgb.server import Server, State
from ffgb.training import make_parts
from ffgb.validation import set_aside

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


def tune(
    config: Config,
    rounds: int = 4,
    *,
    dataset: Dataset | None = None,
    workers: int | None = None,
    on_score: Callable[[dict[str, Any]], None] = lambda score: None,
) -> Tuned:
    """The best step size for a configuration; the first rung has so many rounds.

    With nine candidates that is 9 + 5 + 2·3 + 4·2 + … rounds' worth: the same number for every method.
    """
    dataset = dataset or load_data(config)
    config = replace(config, rounds=rounds).resolved(dataset)
    if config.schedule in ("search", "theorem1", "theorem2") or config.step_size is None:
        raise FFGBError(f"--schedule {config.schedule} has no step size to tune; choose power or constant")
    kept, aside = set_aside(config, SHARE, dataset, make_parts(config, dataset))
    holdings = [Holding(dataset.x, dataset.y, rows) for rows in (*kept, *aside)]
    loss, scores, total = make_loss(config, dataset), list[dict[str, Any]](), 0
    with local_engine(holdings, workers, config.code) as engine:
        server = Server(
            *(engine, [len(rows) for rows in kept], len(aside)),
            seed=config.seed,
            participation=int(config.participation or len(kept)),
            by_size=config.client_weights == "size",
        )
        known: dict[str, Any] = {}
        racing: dict[float, State] = {}
        for factor in FACTORS:
            tried = replace(config, step_size=config.step_size * factor)
            racing[tried.step_size or 0.0] = server.start(
                *(make_algorithm(tried), make_learner(tried, dataset), loss),
                scale_target=not loss.classification,
                known=known,
            )
        phases = next(iter(racing.values())).job.algorithm.phases
        until = rounds
        while True:
            results: dict[float, tuple[float, float]] = {}
            for step, state in racing.items():
                server.take_up(state)
                results[step] = math.inf, math.inf
                try:
                    for after, line in server.rounds(state, until * phases):
                        racing[step], results[step], total = after, _badness(line), total + 1
                except DivergedError:
                    results[step] = math.inf, math.inf
                bad, value = results[step]
                ended = not math.isfinite(value)
                said = {"score": None if ended else abs(bad), "loss": None if ended else value}
                scores.append({"step_size": step, "rounds": until, **said})
                on_score(scores[-1])
            if not any(math.isfinite(value) for _, value in results.values()):
                raise FFGBError(
                    "every step size that was tried diverged; give a much smaller --step-size to start from"
                )
            ranked = rank(results, sum(map(len, aside)) if loss.classification else None)
            racing = {step: racing[step] for step in ranked[: -(-len(ranked) // 2)] if math.isfinite(results[step][1])}
            if len(racing) == 1:
                break
            until *= 2
    (best,) = racing
    steps = [config.step_size * factor for factor in FACTORS]
    return Tuned(best, tuple(scores), total, best in (steps[0], steps[-1]))


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
    accuracy = line.get("test_accuracy")
    return (float(line["test_rmse"]) if accuracy is None else -float(accuracy)), float(line["test_loss"])
