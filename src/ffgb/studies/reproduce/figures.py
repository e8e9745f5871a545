"""The paper's figures, with numbers: each method as the paper ran it and as the rule of tuning.py would, several seeds.

What the text leaves open is as in the authors' code or as stated here:

- FedAvg's printed step sizes are those of a loss *summed* over a batch of 20 % of a client's points; ours is a mean, so
  they are multiplied by the size of that batch.  Taken as steps for a mean they would cripple it.
- η^{k,t} = η₀/(Kt+k+1), the paper's; μ = 0; pixels are divided by 255; the residual starts at 0 in every round.
- What tuning.py finds best in some rounds may diverge later: it is halved until it does not, with any of the seeds.
- Communication is a client's, both ways, in numbers of parameters over those of one net.  A round's cost is paid when
  the round is over.  The authors' code plots it before: their curves lie one round further left (dotted).
- Figure 2 is of CIFAR-10 in the paper; here it is of MNIST, where it can be repeated in hours.
- Figure 1 takes days on two cores: every client evaluates all N·K new nets at all of its points, in every round.
  Reduced, a quarter of the clients share all images: four times as many each, so batches of FedAvg are as large as the
  paper's.  FFGB's rounds are as many, and a quarter as dear: the budget is 500 models, for both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, final

from ffgb.data import available, load
from ffgb.protocol.costs import UNITS
from ffgb.studies import plots
from ffgb.studies.reproduce.experiment import Experiment, Recall, Results
from ffgb.studies.reproduce.runs import MARKS, mean_spread, run, tuned, within

CLIENTS, BUDGET = 56, 2000
SPLITS = {0.1: 10.0, 0.3: 20.0}
"""s, and the paper's η₀ for it."""
TUNING = {"FFGB": 1, "FedAvg": 8}
"""Rounds of the first rung: 28 and 224 in all, less what diverges.  A round of FFGB is the work of 50 of FedAvg's."""


class Scale(TypedDict):
    oracle_steps: int
    clients: int
    fedavg: int
    """Rounds of FedAvg; those of FFGB are what the budget allows."""
    batch: float
    """Of FedAvg."""
    seeds: int
    tuned_at: float | None
    """The s that step sizes are tuned at, or each its own."""


MNIST: Mapping[str, Scale] = {
    "full": {"oracle_steps": 1000, "clients": 56, "fedavg": 1000, "batch": 0.2, "seeds": 3, "tuned_at": None},
    "small": {"oracle_steps": 50, "clients": 56, "fedavg": 60, "batch": 0.2, "seeds": 1, "tuned_at": None},
}
CIFAR: Mapping[str, Scale] = {
    "full": {"oracle_steps": 1000, "clients": 56, "fedavg": 1000, "batch": 0.2, "seeds": 1, "tuned_at": None},
    "reduced": {"oracle_steps": 100, "clients": 14, "fedavg": 250, "batch": 0.05, "seeds": 1, "tuned_at": 0.1},
    "small": {"oracle_steps": 20, "clients": 8, "fedavg": 10, "batch": 128, "seeds": 1, "tuned_at": 0.1},
}


@final
@dataclass(frozen=True)
class Study:
    """What the paper does with a data set."""

    net: str
    K: Mapping[float, int]
    """FFGB's local steps, by s."""
    fedavg_steps: int
    fedavg_step: float
    """FedAvg's printed step size, for a mean over a batch."""


STUDIES = {
    "mnist": Study("mlp", {0.1: 2, 0.3: 2}, 25, 3e-4 * 214),  # 20 % of 1,071 images
    "cifar10": Study("cnn", {0.1: 4, 0.3: 3}, 10, 5e-4 * 179),  # and of 893
}
RESIDUAL_ROUNDS, LOCAL_ROUNDS = 5, 3
"""Of figures 2a and 2b: the paper does not say how many."""
LOCAL = {"full": (1, 5, 10, 20, 40), "small": (1, 5, 10)}


def against_fedavg(data: str, scales: Mapping[str, Scale], scale: str, recall: Recall) -> dict[str, Any]:
    """Figures 1, 3 and 4: FFGB and FedAvg, as printed and tuned, and the closed family with a shared geometry."""
    study, chosen, panels = STUDIES[data], scales[scale], []
    unit = UNITS[study.net]
    for s, eta0 in SPLITS.items():
        curves, there = [], methods(data, chosen, chosen["tuned_at"] or s)
        for label, config in methods(data, chosen, s).items():
            name, printed = f"{data}-{s:g}-{label.lower()}", eta0 if label == "FFGB" else study.fedavg_step
            curves.append(
                curves_of(recall, f"{label}, as printed", name, config | {"step_size": printed}, unit, chosen["seeds"])
            )
            race = f"{data}-{there[label]['similarity']:g}-{label.lower()}-tuning"
            best = recall.resumable(race, tuned, config=there[label], rounds=TUNING[label])
            step, found = best["step_size"], {"diverged": True}
            while found["diverged"]:  # what is best for some rounds may be too long for more, or for another seed
                settings = config | {"step_size": step}
                found = curves_of(recall, f"{label}, tuned", name, settings, unit, chosen["seeds"])
                step /= 2
            # in how many rounds, all candidates together, and whether it is the smallest or largest that was tried
            curves.append(found | {"tuning": {name: best[name] for name in ("step_size", "rounds", "edge")}})
        closed = dealt(data, chosen, s) | {"rounds": 10}
        curves.append(curves_of(recall, "closed family", f"{data}-{s:g}-closed", closed, unit, chosen["seeds"]))
        panels.append({"title": f"s = {s:g}", "curves": curves})
    return {"data": data, "settings": dict(chosen), "unit": unit, "how": _how(chosen), "panels": panels}


def dealt(data: str, chosen: Scale, s: float) -> dict[str, Any]:
    """The data, and who has what of it."""
    return {"data": data, "clients": chosen["clients"], "similarity": s, "split": "similarity", "stop": False}


def methods(data: str, chosen: Scale, s: float) -> dict[str, dict[str, Any]]:
    """The two that the paper compares, but for their step sizes."""
    study, base = STUDIES[data], dealt(data, chosen, s) | {"learner": STUDIES[data].net}
    K = study.K[s]
    rounds = max(1, BUDGET // (CLIENTS * K))
    return {
        "FFGB": base | {"local_steps": K, "rounds": rounds, "oracle_steps": chosen["oracle_steps"]},
        "FedAvg": base | {
            "algorithm": "fedavg", "rounds": chosen["fedavg"], "batch": chosen["batch"],
            "local_steps": study.fedavg_steps,
        },
    }  # fmt: skip


def residual(scale: str, recall: Recall) -> dict[str, Any]:
    """Figure 2a: the residual on and off, K = 10."""
    curves = []
    for label, on in (("with the residual", True), ("without it", False)):
        config = _figure2(scale) | {"local_steps": 10, "rounds": RESIDUAL_ROUNDS, "residual": on}
        curves.append(curves_of(recall, label, f"figure2-10-{on}", config, UNITS["mlp"], MNIST[scale]["seeds"]))
    return _both_sides(scale, curves, "s = 0.1, K = 10, η₀ = 10")


def local_steps(scale: str, recall: Recall) -> dict[str, Any]:
    """Figure 2b: K local steps."""
    curves = []
    for K in LOCAL[scale]:
        # that of K = 10 is figure 2a's
        rounds = RESIDUAL_ROUNDS if K == 10 else LOCAL_ROUNDS
        config = _figure2(scale) | {"local_steps": K, "rounds": rounds, "residual": True}
        curves.append(curves_of(recall, f"K = {K}", f"figure2-{K}-True", config, UNITS["mlp"], MNIST[scale]["seeds"]))
    for curve in curves:
        for columns in curve["seeds"]:
            columns.update({name: values[:LOCAL_ROUNDS] for name, values in columns.items()})
    return _both_sides(scale, curves, "s = 0.1, η₀ = 10")


def _both_sides(scale: str, curves: list[dict[str, Any]], title: str) -> dict[str, Any]:
    """Accuracy in training, which the paper shows, and at the test points."""
    sides = {"training": "train_accuracy", "test": "test_accuracy"}
    panels = [{"title": f"{title}: {which}", "curves": curves, "y": y} for which, y in sides.items()]
    chosen = MNIST[scale]
    return {"data": "mnist", "settings": dict(chosen), "unit": UNITS["mlp"], "how": _how(chosen), "panels": panels}


def _how(scale: Scale) -> str:
    tuned = f", tuned at s = {scale['tuned_at']:g}" if scale["tuned_at"] else ""
    return f"{scale['oracle_steps']} Adam steps an oracle call{tuned}"


def _figure2(scale: str) -> dict[str, Any]:
    return {
        "data": "mnist", "clients": CLIENTS, "similarity": 0.1, "split": "similarity", "stop": False, "learner": "mlp",
        "oracle_steps": MNIST[scale]["oracle_steps"], "step_size": 10.0,
    }  # fmt: skip


def curves_of(recall: Recall, label: str, name: str, config: dict[str, Any], unit: int, seeds: int) -> dict[str, Any]:
    """A method's curves, one a seed; if one diverged, as far as all of them went, which may be nowhere."""
    found, diverged = list[dict[str, list[float]]](), False
    for seed in range(seeds):
        if not diverged:
            one = recall.resumable(f"{name}-{seed}", run, config=config | {"seed": seed}, unit=unit)
            found.append(one["curve"])
            diverged = bool(one.get("diverged"))
    if diverged:
        rows = min(len(curve.get("rounds", ())) for curve in found)
        found = [{name: values[:rows] for name, values in curve.items()} if rows else {} for curve in found]
    return {"label": label, "config": config, "diverged": diverged, "seeds": found}


def table(kind: str, results: Results) -> str:
    """Accuracy within some budgets, mean and standard deviation over seeds."""
    most = max(s[kind][-1] for panel in results["panels"] for curve in panel["curves"] for s in curve["seeds"] if s)
    marks = [m for m in COLUMNS[kind] if m <= most]
    heads = [f"{mark:,} {kind if mark > 1 else kind.removesuffix('s')}" for mark in marks]
    lines = [
        f"| | method | step size | {' | '.join(heads)} | last | at {kind} |",
        "|---|---|---|" + "---|" * (len(marks) + 2),
    ]
    lines += [_row(panel, curve, kind, marks) for panel in results["panels"] for curve in panel["curves"]]
    scale = results["settings"]
    seeds = f"{scale['seeds']} seeds, mean ± standard deviation" if scale["seeds"] > 1 else "one seed"
    how = f"{results['data']}, {scale['clients']} clients, {results['how']}"
    what = f"{seeds}; {_what(results)}, %. A model is {results['unit']:,} numbers."
    lines += ["", f"{how}, scale {results['scale']}; {what}"]
    return "\n".join(lines) + "\n"


def _row(panel: Mapping[str, Any], curve: Mapping[str, Any], kind: str, marks: Sequence[int]) -> str:
    """A method's line of the table: its accuracy within each budget, and its last."""
    y = panel.get("y", "test_accuracy")
    if all(curve["seeds"]):
        cells = [cell([_at(s, kind, mark, y) for s in curve["seeds"]]) for mark in marks]
        cells += [cell([s[y][-1] for s in curve["seeds"]]), f"{curve['seeds'][0][kind][-1]:,.0f}"]
    else:  # it diverged in its first round
        cells = [""] * (len(marks) + 2)
    step = curve["config"].get("step_size")
    step = "search" if step is None else f"{step:.3g}"
    return f"| {panel['title']} | {curve['label']} | {step}{_doubts(curve)} | {' | '.join(cells)} |"


def _doubts(curve: Mapping[str, Any]) -> str:
    """What is to be said of a step size."""
    tuning = curve.get("tuning", {})
    if curve.get("diverged"):
        return " (diverged)"
    if tuning and tuning["step_size"] != curve["config"]["step_size"]:
        return f" ({tuning['step_size']:.3g} diverged)"
    return " (edge)" if tuning.get("edge") else ""


COLUMNS = {"models": MARKS["models"], "rounds": (1, 2, 3, 6, 17, 100, 300)}


def _what(results: Results) -> str:
    return "accuracy as the row says" if any("y" in panel for panel in results["panels"]) else "test accuracy"


def _at(curve: Mapping[str, Sequence[float]], kind: str, budget: float, y: str) -> float | None:
    if budget > curve[kind][-1]:  # it was not trained for so long
        return None
    row = within(dict(curve), kind, budget)  # type: ignore[arg-type]
    return None if row is None else curve[y][row]


def cell(values: Sequence[float | None]) -> str:
    """Accuracies as a table has them, in %; empty if one is missing."""
    known = [v for v in values if v is not None]
    if len(known) < len(values):
        return ""
    mean, spread = mean_spread(known)
    return f"{100 * mean:.1f}" + (f" ± {100 * spread:.1f}" if len(known) > 1 else "")


def draw(kind: str, results: Results, path: Path) -> None:
    plots.curves(path, results, kind)


def check(data: str, scale: str) -> None:
    """Raise an FFGBError if no picture can be drawn, or the data is not here."""
    plots.check(Path("figure.png"))
    if not available(data):
        load(data)  # says what is missing, and where it comes from


def _experiments() -> Iterator[tuple[str, Experiment]]:
    for name, data, scales, kind in (("fig1", "cifar10", CIFAR, "models"), ("fig3", "mnist", MNIST, "rounds"),
                                     ("fig4", "mnist", MNIST, "models")):  # fmt: skip
        shown = partial(table, kind), partial(draw, kind)
        yield name, Experiment(tuple(scales), partial(check, data), partial(against_fedavg, data, scales), *shown)
    for name, results in (("fig2a", residual), ("fig2b", local_steps)):
        shown = partial(table, "rounds"), partial(draw, "rounds")
        yield name, Experiment(tuple(MNIST), partial(check, "mnist"), results, *shown)


EXPERIMENTS = dict(sorted(_experiments()))
