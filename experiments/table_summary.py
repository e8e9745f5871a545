"""What results add up to: the lines that decide whether the defaults are good enough."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from table_scores import MAIN

LIBRARIES = ("sklearn", "lightgbm", "xgboost", "catboost")
STOPPED = tuple(f"{name}-es" for name in LIBRARIES)
Line = Mapping[str, Any]
Table = Mapping[str, Line]
"""The result of each method."""


def summarise(lines: Sequence[Line], ours: str, *, each: bool = False) -> str:
    """A text for people.  Seeds count as tables of their own."""
    tables: dict[tuple[str, int], dict[str, Line]] = defaultdict(dict)
    for line in lines:
        if "failed" not in line:
            tables[line["table"], line["seed"]][line["method"]] = line
    failed = [f"{line['table']}: {line['failed']}" for line in lines if "failed" in line and line["method"] == ours]
    known = {key: found for key, found in tables.items() if ours in found and best(found, LIBRARIES) is not None}
    text = [f"{ours}: {len(known)} tables with results", *(f"FAILED {line}" for line in failed)]
    for kind, held in (("to tune on", False), ("held back", True)):
        chosen = {key: found for key, found in known.items() if found[ours]["held_back"] == held}
        text += ["", f"Tables {kind} ({len(chosen)})", *_decisive(chosen, ours)]
    if each:
        text += ["", *_each(known, ours)]
    return "\n".join(text)


def standing_in(lines: Sequence[Line], methods: Sequence[str]) -> list[Line]:
    """The lines, and those of the first of these methods that has a result in the name of the first of them."""
    found = list(lines)
    for method in methods[1:]:
        done = {(line["table"], line["seed"]) for line in found if line["method"] == methods[0]}
        others = [line for line in lines if line["method"] == method and (line["table"], line["seed"]) not in done]
        found += [{**line, "method": methods[0]} for line in others]
    return [line for line in found if line["method"] not in methods[1:]]


def best(found: Table, methods: Sequence[str], name: str | None = None) -> float | None:
    """The best of these methods by a score."""
    task = next(iter(found.values()))["task"]
    name = name or MAIN[task]
    values = [found[m][name] for m in methods if m in found and found[m].get(name) is not None]
    if not values:
        return None
    return float(min(values) if name in ("rmse", "log_loss") else max(values))


def gap(found: Table, ours: str, methods: Sequence[str], name: str | None = None) -> float:
    """How far ours is behind the best of these: a difference, or for errors RMSE/best - 1."""
    task = found[ours]["task"]
    name = name or MAIN[task]
    there = best(found, methods, name)
    assert there is not None
    mine = float(found[ours][name])
    if name == "rmse":
        return mine / there - 1
    return mine - there if name == "log_loss" else there - mine


def behind_linear(found: Table, ours: str) -> bool:
    """By more than 0.005 AUC or accuracy, or by 1 % of RMSE."""
    return "linear" in found and gap(found, ours, ("linear",)) > (
        0.01 if found[ours]["task"] == "regression" else 0.005
    )


def _decisive(tables: Mapping[tuple[str, int], Table], ours: str) -> list[str]:
    text = []
    for task, words, bound, median in (
        ("regression", "median RMSE / best central library - 1", 0.01, True),
        ("binary", "mean AUC gap to the best central library", 0.002, False),
        ("classes", "mean accuracy gap to the best central library", 0.005, False),
    ):
        some = [found for found in tables.values() if found[ours]["task"] == task]
        if some:
            middle = np.median if median else np.mean
            defaults = float(middle([gap(found, ours, LIBRARIES) for found in some]))
            all_eight = float(middle([gap(found, ours, (*LIBRARIES, *STOPPED)) for found in some]))
            text.append(
                f"  {words}: {defaults:+.4f} (defaults), {all_eight:+.4f} (with early stopping, too); "
                f"bound {bound}; n = {len(some)}"
            )
    behind = [key[0] for key, found in tables.items() if behind_linear(found, ours)]
    compared = sum("linear" in found for found in tables.values())
    text.append(f"  behind plain linear: {len(behind)} of {compared} {_names(behind)}; bound 0")
    text += _honest([(key[0], found) for key, found in tables.items()], ours)
    return text


def _honest(tables: Sequence[tuple[str, Table]], ours: str) -> list[str]:
    """Log loss and calibration."""
    text = []
    classes = [found for _, found in tables if found[ours]["task"] != "regression"]
    if classes:
        mine = float(np.mean([found[ours]["log_loss"] for found in classes]))
        theirs = {
            m: float(np.mean([f[m]["log_loss"] for f in classes]))
            for m in (*LIBRARIES, *STOPPED)
            if all(m in f for f in classes)
        }
        text.append(f"  mean log loss: {mine:.4f}; " + ", ".join(f"{m} {value:.4f}" for m, value in theirs.items()))
        gaps = [gap(found, ours, (*LIBRARIES, *STOPPED), "log_loss") for found in classes]
        text.append(f"  mean log loss behind the best of each table: {float(np.mean(gaps)):+.4f}")
    sloped = [(name, found[ours]) for name, found in tables if found[ours].get("slope") is not None]
    large = [(name, line["slope"]) for name, line in sloped if line["test_rows"] >= 1000]
    if sloped:
        off = [f"{name} {slope:.2f}" for name, slope in large if not 0.85 <= slope <= 1.15]
        median = float(np.median([line["slope"] for _, line in sloped]))
        text.append(
            f"  calibration slope: median {median:.2f} of {len(sloped)}; outside [0.85, 1.15] with 1,000 test rows: "
            f"{len(off)} of {len(large)} {_names(off)}"
        )
    return text


def _names(words: Sequence[str]) -> str:
    return f"({', '.join(words)})" if words else ""


def _each(tables: Mapping[tuple[str, int], Table], ours: str) -> list[str]:
    methods = list(dict.fromkeys(m for found in tables.values() for m in found))
    text = [f"{'table':20} {'n':>6} " + " ".join(f"{m[:11]:>11}" for m in methods)]
    for (name, _), found in sorted(tables.items(), key=lambda item: (item[1][ours]["task"], item[0])):
        line = found[ours]
        values = [found[m].get(MAIN[line["task"]]) if m in found else None for m in methods]
        cells = " ".join("          -" if v is None else f"{v:11.4g}" for v in values)
        text.append(f"{name:20} {line['rows']:6} {cells} {'held' if line['held_back'] else ''}")
    return text
