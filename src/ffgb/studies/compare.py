"""Methods side by side: one split, one budget, several seeds, each tuned by the same rule.

A method is an algorithm and a learner, `fedavg:mlp`.  Every method and seed is a run of its own, in a process and a
directory of its own, as `ffgb train` would leave it: what is there already goes on, or is not run again.  Only rounds
that fit the budget count; set-up counts too, in bytes and seconds.  The first round that does not fit ends the run.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from ffgb.algorithms.catalogue import ALGORITHMS
from ffgb.algorithms.parametric import Parametric
from ffgb.data import Dataset
from ffgb.errors import DivergedError, FFGBError, option
from ffgb.files import atomic_write, others
from ffgb.hardware import cores
from ffgb.protocol.costs import UNITS
from ffgb.runs.config import Config, load_data
from ffgb.runs.directory import Run
from ffgb.runs.holdings import make_parts
from ffgb.runs.learners import make_algorithm, make_learner
from ffgb.runs.resolve import algorithm_class, make_loss
from ffgb.runs.training import train
from ffgb.studies.processes import Processes, serve
from ffgb.studies.tuning import tune
from ffgb.user_code import must_be_named

BUDGETS = ("rounds", "models", "bytes", "seconds")
MOST_ROUNDS = 10_000
"""Rounds of a method whose budget is something else."""
HALVINGS = 8
"""Of a tuned step size that diverges, before it is told as that."""

SCORES = ("test_accuracy", "test_rmse", "test_concordance", "test_loss", "train_loss")
"""What is written down of each round."""


@final
@dataclass(frozen=True)
class Budget:
    """How much of what a method may use: rounds, models and bytes a client sends and receives, or seconds."""

    kind: str
    amount: float

    @staticmethod
    def read(text: str) -> Budget:
        """
        >>> Budget.read("models=2000")
        Budget(kind='models', amount=2000.0)
        """
        kind, _, amount = text.partition("=")
        try:
            value = float(amount)
        except ValueError:
            value = 0.0
        if kind not in BUDGETS or not 0 < value < float("inf") or (kind == "rounds" and not value.is_integer()):
            raise FFGBError(f"{option('budget')} {text!r} is not one of {', '.join(f'{k}=NUMBER' for k in BUDGETS)}")
        return Budget(kind, value)

    def allows(self, cost: Mapping[str, float]) -> bool:
        return cost[self.kind] <= self.amount


@final
@dataclass(frozen=True)
class Method:
    """An algorithm and its learner."""

    algorithm: str
    learner: str

    @staticmethod
    def read(text: str) -> Method:
        """`ffgb` is with features, parametric methods with an mlp, unless a learner is named.

        >>> Method.read("scaffold").name, Method.read("ffgb:tree").name
        ('scaffold:mlp', 'ffgb:tree')
        >>> Method.read("ffgb:mine:Stump")
        Method(algorithm='ffgb', learner='mine:Stump')
        """
        parts = text.split(":")
        own = 1 if parts[0] in ALGORITHMS else 2  # package.module:Name, of the user's own
        algorithm, learner = ":".join(parts[:own]), ":".join(parts[own:])
        if algorithm not in ALGORITHMS and len(parts) < 2:
            raise FFGBError(
                f"there is no algorithm {algorithm!r}; a method is one of {', '.join(ALGORITHMS)}, or such as ffgb:mlp "
                "or package.module:Name of your own"
            )
        return Method(
            algorithm, learner or ("mlp" if issubclass(algorithm_class(algorithm), Parametric) else "features")
        )

    @property
    def name(self) -> str:
        return f"{self.algorithm}:{self.learner}"


def costs(line: Mapping[str, Any], seconds: float, unit: int, phases: int = 1) -> dict[str, float]:
    """What a client has spent after an exchange, of so many in a round, both ways, set-up included."""
    return {
        "rounds": line["round"] / phases,
        "models": (line["parameters_up"] + line["parameters_down"]) / unit,
        "bytes": line["bytes_up"] + line["bytes_down"],
        "seconds": seconds,
    }


def compare(
    methods: Sequence[Method],
    base: Config,
    budget: Budget,
    out: Path,
    *,
    seeds: int = 3,
    tuned: bool = True,
    unit: int = UNITS["mlp"],
    jobs: int | None = None,
    on_news: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Run all methods, and say how good each is within the budget."""
    if len(set(methods)) < len(methods):
        raise FFGBError("a method is named twice")
    if base.files:  # as absolute paths, so that runs can be evaluated from anywhere
        base = replace(base, data=tuple(str(Path(file).absolute()) for file in base.data))
    dataset = load_data(base)
    if not len(dataset.y_test):
        raise FFGBError(f"{dataset.name} has too few rows to hold some out for testing, so methods cannot be compared")
    configs = {method: _config(method, base, budget, dataset) for method in methods}
    _settled(out, base, tuned)
    races = {m: _tuned(m, c, dataset, out, on_news) if tuned else None for m, c in configs.items()}
    runs = _run_all(configs, races, range(base.seed, base.seed + seeds), out, budget, unit, jobs, on_news)
    first = configs[methods[0]].resolved(dataset)
    score = f"test_{make_loss(first, dataset).measure.name}"
    results = [_summary(method, races[method], runs[method], score) for method in methods]
    found = {
        "data": list(base.data),
        "settings": {k: v for k, v in dataclasses.asdict(base).items() if v != getattr(Config, k, None)},
        "budget": dataclasses.asdict(budget),
        "unit": unit,
        "seeds": seeds,
        "tuned": tuned,
        "methods": results,
    }
    _write(out / "compare.json", found)
    return found


def _config(method: Method, base: Config, budget: Budget, dataset: Dataset) -> Config:
    """A method's configuration; what does not fit is said before any work."""
    # all of them minimise the same: by the rows, as they are scored
    weights = base.client_weights or "size"
    config = replace(base, algorithm=method.algorithm, learner=method.learner, client_weights=weights)
    if budget.kind == "rounds":
        config = replace(config, rounds=int(budget.amount))
    elif base.rounds is None and method.algorithm != "ffgb-l":  # whose one exchange is of so many rounds
        config = replace(config, rounds=MOST_ROUNDS, stop=False)
    resolved = config.resolved(dataset)
    make_parts(resolved, dataset)
    make_algorithm(resolved)
    make_learner(resolved, dataset)
    return config


def _run_all(
    configs: Mapping[Method, Config],
    races: Mapping[Method, dict[str, Any] | None],
    seeds: Sequence[int],
    out: Path,
    budget: Budget,
    unit: int,
    jobs: int | None,
    on_news: Callable[[str], None],
) -> dict[Method, list[dict[str, Any]]]:
    """Each method with each seed, several at a time; a tuned step that diverges is halved, with all its runs anew."""
    runs: dict[Method, list[dict[str, Any]]] = {}

    def run(item: tuple[Method, int]) -> dict[str, Any]:
        (method, seed), settings = item, dict[str, Any]()
        if (race := races[method]) is not None:
            settings = {"step_size": race["step_size"] / 2 ** race["halved"]}
        config = replace(configs[method], seed=seed, **settings)
        return _run(method, config, _folder(out, method) / str(seed), budget, unit, on_news, processes)

    with Processes("ffgb.studies.compare") as processes, ThreadPoolExecutor(jobs or cores()) as pool:
        try:
            todo = list(configs)
            while todo:
                work = [(method, seed) for method in todo for seed in seeds]
                ran = list(pool.map(run, work))
                runs |= {method: [r for (m, _), r in zip(work, ran, strict=True) if m == method] for method in todo}
                # what is best for some rounds may be too long for more, or for another seed
                todo = [m for m in todo if any(r["diverged"] for r in runs[m]) and _halve(out, m, races[m])]
        except BaseException:  # Ctrl-C, or a run that failed: no others are to begin, and those under way end
            pool.shutdown(wait=False, cancel_futures=True)
            processes.terminate()  # at any moment: what a run has written is whole
            raise
    return runs


def _write(file: Path, content: Mapping[str, Any]) -> None:
    """All of it or nothing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(file, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())


def _settled(out: Path, base: Config, tuned: bool) -> None:
    """The folder is of these settings from now on; methods, more seeds and budgets may be added.

    What lies there is told as the result of the settings of today, so it must not be that of others.
    """
    # as JSON has it, so that what was read is like what is said; rounds are each run's own
    settings = {**base.to_json(), "rounds": None, "tuned": tuned}
    now: dict[str, Any] = json.loads(json.dumps(settings))
    file = out / "settings.json"
    if not out.is_dir() or all(path == file for path in others(out)):
        _write(file, now)
        return
    if not file.exists():
        raise FFGBError(f"{out} holds something else than a comparison; choose another {option('out')}")
    before: dict[str, Any] = json.loads(file.read_text())
    for name in (*now, *before):
        if name != "versions" and before.get(name) != now.get(name):
            raise FFGBError(
                f"{out} holds a comparison with {name} {before.get(name)}, not {now.get(name)}; choose another "
                f"{option('out')}"
            )


def _tuned(
    method: Method, config: Config, dataset: Dataset, out: Path, on_news: Callable[[str], None]
) -> dict[str, Any] | None:
    """How the step size of a method was found by the rule, remembered in the folder; None if it has none to tune."""
    resolved = config.resolved(dataset)
    if resolved.schedule in ("search", "theorem1", "theorem2"):
        return None
    file = _folder(out, method) / "tuned.json"
    if not file.exists():
        on_news(f"tuning {method.name}")
        race = file.with_suffix("")
        found = tune(replace(config, rounds=None), dataset=dataset, out=race)
        _write(file, {**dataclasses.asdict(found), "halved": 0})
        shutil.rmtree(race, ignore_errors=True)
    remembered: dict[str, Any] = json.loads(file.read_text())
    return remembered


def _halve(out: Path, method: Method, race: dict[str, Any] | None) -> bool:
    """Take half the step, with every seed: what was run is no result of it.  Not if the step was given, or for ever."""
    if race is None or race["halved"] == HALVINGS:
        return False
    race["halved"] += 1
    for run in _folder(out, method).glob("[0-9]*"):
        shutil.rmtree(run)
    _write(_folder(out, method) / "tuned.json", race)  # last: a step is never said of the runs of another
    return True


def _folder(out: Path, method: Method) -> Path:
    return out / method.name.replace(":", "-")


def _run(
    method: Method,
    config: Config,
    out: Path,
    budget: Budget,
    unit: int,
    on_news: Callable[[str], None],
    processes: Processes,
) -> dict[str, Any]:
    """One run within the budget, in a process of its own: a line an exchange, and whether it diverged."""
    on_news(f"{method.name}, seed {config.seed}")
    if (out / "config.json").exists():
        code = Config.from_json(Run.open(out).config).code
        must_be_named(code, config.code, out, f"it is no run of this comparison: choose another {option('out')}")
    diverged = False
    if _left(config, out, budget, unit) is not None:
        job = {"config": dataclasses.asdict(config), "out": str(out), "budget": dataclasses.asdict(budget)}
        try:
            diverged = processes.do({**job, "unit": unit, "parent": os.getpid()})
        except FFGBError as error:
            raise FFGBError(f"{method.name}, seed {config.seed}: {error}") from error
    lines, seconds, within = list[dict[str, Any]](), 0.0, True
    for line in metrics_of(out):
        seconds += line["seconds"] + (line["setup_seconds"] if not lines else 0.0)
        spent = costs(line, seconds, unit, config.phases)
        within = budget.allows(spent)
        if not within:
            break
        score: dict[str, Any] = {
            k: line[k]
            for k in ("test_accuracy", "test_rmse", "test_concordance", "test_loss", "train_loss")
            if k in line
        }
        lines.append({**spent, **score})
    del lines[len(lines) // config.phases * config.phases :]  # a round that is not over
    diverged = diverged and within  # beyond the budget is none of our business
    if not lines and not diverged:
        raise FFGBError(f"{method.name} has no round within {budget.kind}={budget.amount:g}; raise {option('budget')}")
    return {"seed": config.seed, "rounds": lines, "diverged": diverged}


def metrics_of(out: Path) -> list[dict[str, Any]]:
    """The lines of a run directory; none if the run was stopped in its first round."""
    file = out / "metrics.jsonl"
    return [json.loads(text) for text in file.read_text().splitlines()] if file.exists() else []


def _summary(method: Method, race: Mapping[str, Any] | None, runs: list[dict[str, Any]], score: str) -> dict[str, Any]:
    """Mean and spread of the last rounds within the budget; none, if a run diverged: that is the result then."""
    found: dict[str, Any] = {"method": method.name, "step_size": None, "halved": 0, "edge": None, "tuning_rounds": 0}
    if race is not None:
        halved = race["halved"]
        found |= {"step_size": race["step_size"] / 2**halved, "halved": halved, "edge": race["edge"] and not halved}
        found |= {"tuning_rounds": race["rounds"]}
    found |= {"score": score}
    diverged = sum(run["diverged"] for run in runs)
    if diverged:
        return found | {"diverged": diverged, "capped": False, "mean": None, "spread": None, "runs": runs}
    last = [run["rounds"][-1] for run in runs]
    capped = any(line["rounds"] >= MOST_ROUNDS for line in last)
    mean = {key: statistics.fmean(line[key] for line in last) for key in last[0]}
    spread = statistics.stdev(line[score] for line in last) if len(last) > 1 else None
    return found | {"diverged": 0, "capped": capped, "mean": mean, "spread": spread, "runs": runs}


@final
@dataclass(frozen=True)
class _Left:
    """What a run still has to do."""

    config: Config
    resume: bool
    seen: list[dict[str, Any]]
    """The lines of the rounds that are done."""
    seconds: float
    """That they took, with the set-up."""


def _left(config: Config, out: Path, budget: Budget, unit: int) -> _Left | None:
    """None if the run is done, or the budget spent.  What is there and does not fit is taken away."""
    seen = metrics_of(out)
    resume, done = (out / "config.json").exists(), (out / "summary.json").exists()
    if resume:
        there = Config.from_json(json.loads((out / "config.json").read_text()))
        if there.one_round and config.rounds not in (None, there.rounds):  # one exchange, of another number of rounds
            shutil.rmtree(out)
            resume, done, seen = False, False, []
        elif (config.rounds or 0) > (there.rounds or 0):
            config, done = replace(there, rounds=config.rounds), False
        else:
            config = there
    seconds = sum(line["seconds"] for line in seen) + seen[0]["setup_seconds"] if seen else 0.0
    over = bool(seen) and not budget.allows(costs(seen[-1], seconds, unit, config.phases))
    return None if done or over else _Left(config, resume, seen, seconds)


def _do(job: Mapping[str, Any]) -> bool:
    """A run, as the parent process describes it: whether it diverged."""
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in job["config"].items()}
    out, budget, unit = Path(job["out"]), Budget(**job["budget"]), int(job["unit"])
    left = _left(Config(**values), out, budget, unit)
    if left is None:
        return False
    config, seen, spent = left.config, left.seen, [left.seconds]

    def over() -> bool:
        return bool(seen) and not budget.allows(costs(seen[-1], spent[0], unit, config.phases))

    def alone() -> bool:
        return os.getppid() != int(job["parent"])

    def note(line: dict[str, Any]) -> None:
        spent[0] += line["seconds"] + (0.0 if seen else line["setup_seconds"])
        seen.append(line)

    try:
        train(config, out, resume=left.resume, workers=0, on_round=note, enough=over, should_stop=alone)
    except DivergedError:
        return True
    return False


if __name__ == "__main__":
    serve(_do)
