"""A suite of public tables: ours, central libraries on the pooled rows, each site alone, and other federated methods.

    python experiments/tables.py list
    python experiments/tables.py run linear sklearn lightgbm-es ffgb-trees --tables heart adult --seed 0 --rows 20000
    python experiments/tables.py summary --ours ffgb-auto ffgb-auto-pooled

A result is a line of `tables/METHOD.jsonl`.  A result that is there is not computed again, so a run that was stopped
goes on; `--again` computes it anew.  With `--code NAME` results have this name of the code that they come from, and
those of other code are computed anew: such a run goes on, too.  Small tables come first.  A table is skipped, with the
reason, if its package (`tables/packages.txt`) is not installed, or if FFGB_DATA lacks its files.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from table_central import BAGGED, CENTRAL, alone, bagged
from table_list import TABLES, Entry, UnavailableError
from table_ours import ours
from table_pooled import pooled
from table_rows import Rows, rows_of
from table_scores import scores
from table_summary import standing_in, summarise

FOLDER = Path(__file__).parent / "tables"
ROWS = 20_000
"""A larger table is represented by so many of its rows, drawn by the seed."""

OURS: dict[str, dict[str, Any]] = {
    **{f"ffgb-{learner}": {"learner": learner} for learner in ("features", "linear", "trees")},
    "ffgb-auto": {},
    "ffgb-fedavg": {"algorithm": "fedavg", "learner": "mlp"},
    # every category is named at every site: at sites sorted by label, one that is unknown at a site tells the label
    **{f"ffgb-{learner}-named": {"learner": learner, "rare": 1} for learner in ("trees", "additive", "blend")},
}
"""The settings that are not the defaults."""
POOLED = "ffgb-auto-pooled"
"""The model of `ffgb-auto`, computed by one client with all rows (table_pooled.py)."""
METHODS = (*CENTRAL, "alone", *BAGGED, *OURS, POOLED)


class Chosen(NamedTuple):
    """How results are computed."""

    seed: int = 0
    most: int = ROWS
    """Rows of a table."""
    again: bool = False
    """What is there is computed anew."""
    code: str | None = None
    """A name of the code; results of other code are computed anew."""


def measured(method: str, rows: Rows) -> dict[str, Any]:
    """The scores of a method on a table's test rows, and what it cost."""
    begins, spent = time.perf_counter(), time.process_time()
    task, truth = rows.entry.task, rows.truth()
    cost: dict[str, Any] = {}
    if method in CENTRAL:
        found = scores(task, CENTRAL[method](rows), truth)
    elif method == "alone":
        each = [(n, scores(task, predicted, truth)) for n, predicted in alone(rows)]
        found = {name: _mean([(n, line.get(name)) for n, line in each]) for name in each[0][1]}
    else:
        if method in BAGGED:
            rounds, scaled = BAGGED[method]
            predicted, cost = bagged(rows, rounds, 0.1 / rows.sites if scaled else 0.1)
        else:
            predicted, cost = pooled(rows) if method == POOLED else ours(rows, **OURS[method])
        found = scores(task, predicted, truth)
    seconds = {"seconds": time.perf_counter() - begins, "processor_seconds": time.process_time() - spent}
    return {**found, **cost, **{name: round(value, 2) for name, value in seconds.items()}}


def _mean(values: Sequence[tuple[int, float | None]]) -> float | None:
    """A score of the sites' models, each weighted by its rows; none if a model has none."""
    known = [(n, value) for n, value in values if value is not None]
    return float(np.average([v for _, v in known], weights=[n for n, _ in known])) if known else None


def results(folder: Path = FOLDER) -> dict[tuple[str, str, int, int], dict[str, Any]]:
    """All results by method, table, seed and number of rows; a later line counts."""
    found = {}
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text().splitlines():
            result = json.loads(line)
            found[result["method"], result["table"], result["seed"], result["most"]] = result
    return found


def _rounded(result: dict[str, Any]) -> dict[str, Any]:
    return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in result.items()}


def missing_results(
    found: Mapping[tuple[str, str, int, int], dict[str, Any]], methods: Sequence[str], table: str, chosen: Chosen
) -> list[str]:
    """The methods that have no result for a table, or one of other code if this run has a name for its own."""
    lines = {m: found.get((m, table, chosen.seed, chosen.most)) for m in methods}
    return [
        m for m, line in lines.items() if chosen.again or line is None or chosen.code not in (None, line.get("code"))
    ]


def small_first(entries: Sequence[Entry], folder: Path) -> list[Entry]:
    """By rows times columns times outputs, as results tell them; tables without any result come last."""
    cells = {
        line["table"]: line["rows"] * line["columns"] * (line["classes"] if line["classes"] > 2 else 1)
        for line in results(folder).values()
    }
    return sorted(entries, key=lambda entry: cells.get(entry.name, math.inf))


def run(methods: Sequence[str], entries: Sequence[Entry], chosen: Chosen, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    done, seed, most = results(folder), chosen.seed, chosen.most
    for entry in small_first(entries, folder):
        missing = missing_results(done, methods, entry.name, chosen)
        if not missing:
            continue
        try:
            rows = rows_of(entry, seed, most)
        except UnavailableError as error:
            print(f"{entry.name}: skipped, {error}", flush=True)
            continue
        about = {
            "task": entry.task,
            "held_back": entry.held_back,
            "rows": len(rows.y),
            "rows_published": rows.rows_published,
            "columns": rows.x.shape[1],
            "sites": rows.sites,
            "test_rows": int(rows.test.sum()),
            "classes": len(rows.classes),
            **({} if chosen.code is None else {"code": chosen.code}),
        }
        for method in missing:
            try:
                line = measured(method, rows)
            except UnavailableError as error:
                print(f"{entry.name} {method}: skipped, {error}", flush=True)
                continue
            except Exception as error:  # a method that fails on a table is a result, too
                line = {"failed": f"{type(error).__name__}: {error}"[:300]}
            result = {"method": method, "table": entry.name, "seed": seed, "most": most, **about, **line}
            with (folder / f"{method}.jsonl").open("a") as file:
                file.write(json.dumps(_rounded(result)) + "\n")
            print(
                entry.name,
                method,
                {k: v for k, v in _rounded(line).items() if k not in ("base_rate", "r2")},
                flush=True,
            )


def _listed() -> None:
    for entry in TABLES:
        try:
            frame = entry.frame()
        except UnavailableError as error:
            print(f"{entry.name:20} skipped: {error}")
            continue
        text = sum(frame[name].dtype != np.float64 for name in frame.columns if name not in ("target", "site"))
        mark = "held back" if entry.held_back else "tuned on"
        shape = f"{len(frame):>7} x {frame.shape[1] - 1 - (entry.sites is not None):<4}"
        print(f"{entry.name:20} {entry.task:11} {mark:10} {shape} {text:3} text  {entry.origin}")


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the tables, and which are held back")
    running = commands.add_parser("run", help="compute what is missing")
    running.add_argument("methods", nargs="+", choices=METHODS)
    running.add_argument("--tables", nargs="*", help="only these; also: tuned, held, binary, classes, regression")
    running.add_argument("--seed", type=int, default=0)
    running.add_argument("--again", action="store_true", help="compute anew what is there")
    running.add_argument("--code", metavar="NAME", help="a name of the code, such as its commit: see above")
    telling = commands.add_parser("summary", help="the lines that decide, for tables to tune on and held back ones")
    telling.add_argument(
        "--ours",
        nargs="+",
        default=["ffgb-auto", POOLED],
        help="the method that is compared with all others; where it has no result, the next one that is named",
    )
    telling.add_argument("--tables", nargs="*")
    telling.add_argument("--each", action="store_true", help="a line for each table, too")
    for each in (running, telling):
        each.add_argument("--rows", type=int, default=ROWS)
        each.add_argument("--folder", type=Path, default=FOLDER)
    return parser.parse_args(words)


def _chosen(words: Sequence[str] | None) -> list[Entry]:
    kinds: dict[str, Callable[[Entry], bool]] = {
        "held": lambda entry: entry.held_back,
        "tuned": lambda entry: not entry.held_back,
        **{task: (lambda entry, task=task: entry.task == task) for task in ("binary", "classes", "regression")},  # type: ignore[misc]
    }
    names = {entry.name for entry in TABLES}
    for word in words or ():
        if word not in names and word not in kinds:
            raise SystemExit(f"there is no table {word!r}; see: python experiments/tables.py list")
    return [
        e for e in TABLES if not words or e.name in words or any(k in words and test(e) for k, test in kinds.items())
    ]


def main(words: Sequence[str]) -> None:
    warnings.simplefilter("ignore")
    chosen = _arguments(words)
    if chosen.command == "list":
        _listed()
    elif chosen.command == "run":
        with threadpool_limits(1):
            how = Chosen(chosen.seed, chosen.rows, chosen.again, chosen.code)
            run(chosen.methods, _chosen(chosen.tables), how, chosen.folder)
    else:
        names = {entry.name for entry in _chosen(chosen.tables)}
        lines = [
            r for (_, table, _, most), r in results(chosen.folder).items() if table in names and most == chosen.rows
        ]
        print(summarise(standing_in(lines, chosen.ours), chosen.ours[0], each=chosen.each))


if __name__ == "__main__":
    main(sys.argv[1:])
