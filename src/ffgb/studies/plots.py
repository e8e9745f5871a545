"""Pictures.  This is the only file that uses matplotlib, and it imports it when a picture is drawn, not before."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from ffgb.core.types import Array
from ffgb.data.heterogeneity import Heterogeneity
from ffgb.errors import FFGBError, missing_extra

DOWN, ACROSS = 28, 14
"""Labels that an axis has room for."""
NAME = 14
"""Letters of a label that there is room for."""
WRITTEN = 8
"""Up to so many clients, the numbers of a matrix are written into it."""


def check(path: Path) -> None:
    """Raise an FFGBError if no picture can be drawn there: better before long work than after it."""
    if path.suffix.lower() != ".png":
        raise FFGBError(f"{path} is not the name of a PNG file; give one that ends in .png")
    if not path.absolute().parent.is_dir():
        raise FFGBError(f"there is no folder {path.parent} for {path.name}; make it, or choose another place")
    _figure(1.0, 1.0)


def heterogeneity(
    path: Path,
    measured: Heterogeneity,
    class_counts: Array,
    classes: Sequence[str],
    *,
    clients: Sequence[str] | None = None,
    what: str = "class",
) -> None:
    """One PNG: TV and W₁ between all pairs of clients, and what share of each client's points is of which class.

    For regression, give the counts of a histogram of each client's targets, the names of its bins, and what="target".
    """
    names = [str(i) for i in range(len(class_counts))] if clients is None else list(clients)
    figure = _figure(15.0, 5.2)
    left, middle, right = figure.subplots(1, 3)
    _matrix(left, measured.tv_pairs, names, names, 1.0)
    left.set(title=_title("TV", measured.tv_method, measured.omega_tv), xlabel="client", ylabel="client")
    _matrix(middle, measured.w1_pairs, names, names, float(measured.w1_pairs.max()))
    middle.set(title=_title("W₁", measured.w1_method, measured.omega_w1), xlabel="client")
    _matrix(right, class_counts / class_counts.sum(axis=1, keepdims=True), names, classes, 1.0)
    right.set(title=f"share of a client's points by {what}", xlabel=what)
    _save(figure, path)


def compare(path: Path, found: Mapping[str, Any]) -> None:
    """A comparison: the score against rounds, models, bytes and seconds; the mean over seeds, and each seed thinly."""
    figure = _figure(15.0, 4.4)
    score = found["methods"][0]["score"]
    labels = {
        "rounds": "rounds",
        "models": f"models of {found['unit']:,} parameters",
        "bytes": "bytes",
        "seconds": "seconds",
    }
    for axis, (kind, label) in zip(figure.subplots(1, 4, sharey=True), labels.items(), strict=True):
        for j, method in enumerate(found["methods"]):
            runs = [run["rounds"] for run in method["runs"] if run["rounds"]]
            color, mean = f"C{j % 10}", method["mean"]
            text = f"{method['method']} {'diverged' if mean is None else f'{mean[score]:.4f}'}"
            for lines in runs:
                axis.plot(
                    [line[kind] for line in lines], [line[score] for line in lines], color=color, lw=0.7, alpha=0.5
                )
            # as far as all seeds go: they may have had different numbers of rounds for the same bytes or seconds
            shared = list(zip(*runs, strict=False))
            x, y = ([fmean(line[name] for line in lines) for lines in shared] for name in (kind, score))
            axis.plot(x, y, color=color, lw=1.8, label=text)
            axis.plot(x[-1:], y[-1:], "o", color=color, ms=4)
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
        if kind in ("models", "bytes", "seconds"):
            axis.set_xscale("log")
            axis.xaxis.set_minor_formatter("")
    axes = figure.axes
    axes[0].set_ylabel(score.replace("_", " "))
    axes[0].legend(fontsize=8, frameon=False)
    budget = found["budget"]
    figure.suptitle(f"{', '.join(found['data'])}, budget {budget['amount']:g} {budget['kind']}", fontsize=11)
    _save(figure, path)


def curves(path: Path, results: Mapping[str, Any], kind: str) -> None:
    """Panels of accuracy against cost: the mean over seeds, and in a band the least and the greatest.

    Dotted, where cost is models: as the authors' code plots what is as printed, before the round's cost is added.
    """
    panels = results["panels"]
    figure = _figure(6.5 * len(panels), 4.6)
    for axis, panel in zip(figure.subplots(1, len(panels), sharey=True, squeeze=False)[0], panels, strict=True):
        y = panel.get("y", "test_accuracy")
        for j, curve in enumerate(panel["curves"]):
            _draw_curve(axis, curve, kind, y, j)
        drawn = [s for curve in panel["curves"] for s in curve["seeds"] if s]
        _limit(axis, 100 * np.concatenate([np.ravel(s[y]) for s in drawn]))
        if max(s[kind][-1] for s in drawn) > 50:
            axis.set_xscale("log")
        elif kind == "rounds":
            axis.xaxis.get_major_locator().set_params(integer=True)
        what = f"models of {results['unit']:,} numbers" if kind == "models" else "rounds"
        _labelled(axis, panel["title"], what, f"{y.partition('_')[0]} accuracy, %")
        axis.legend(fontsize=8, frameon=False, loc="best", handlelength=1.3)
    scale = results["settings"]
    title = (
        f"{results['experiment']}: {results['data']}, {scale['clients']} clients, {results['how']}, "
        f"{scale['seeds']} seed{'s' * (scale['seeds'] > 1)}, scale {results['scale']}"
    )
    figure.suptitle(textwrap.fill(title, 80 * len(panels)), fontsize=11)
    _save(figure, path)


def _draw_curve(axis: Any, curve: Mapping[str, Any], kind: str, y: str, j: int) -> None:
    """A method's scores by their cost, in the j-th colour."""
    if not all(curve["seeds"]):  # it diverged in its first round
        axis.plot([], [], color=f"C{j}", lw=1.6, label=f"{curve['label']}: diverged")
        return
    x = curve["seeds"][0][kind]
    values = 100 * np.array([seed[y] for seed in curve["seeds"]])
    mean, printed = values.mean(axis=0), "as printed" in curve["label"]
    label, marker = f"{curve['label']}: {mean[-1]:.1f}", "o" if len(x) <= 20 else ""
    axis.plot(x, mean, color=f"C{j}", lw=1.6, label=label, marker=marker, ms=3)
    if len(values) > 1:
        axis.fill_between(x, values.min(axis=0), values.max(axis=0), color=f"C{j}", alpha=0.2, lw=0)
    if printed and kind == "models":
        theirs = "counted as in the authors' code" if j == 0 else None
        axis.plot([cost - x[0] + 1.0 for cost in x], mean, ":", color=f"C{j}", lw=1.0, label=theirs)


def _limit(axis: Any, values: Array) -> None:
    """The few rounds in which nothing is learnt yet may lie below, and no space is left where there are none."""
    least, greatest = values.min(), values.max()
    low = max(np.quantile(values, 0.1) - 8.0, least - 0.2 * (greatest - least))
    axis.set_ylim(max(0.0, low), greatest + 0.1 * (greatest - low))


def ablations(path: Path, groups: Mapping[str, Mapping[str, Mapping[str, list[float]]]]) -> None:
    """A panel a group: test accuracy by rounds."""
    figure = _figure(4.2 * len(groups), 3.8)
    for axis, (group, rows) in zip(figure.subplots(1, len(groups), sharey=True), groups.items(), strict=True):
        for label, found in rows.items():
            values = [100 * a for a in found["test_accuracy"]]
            axis.plot(found["rounds"], values, "o-", ms=3, lw=1.3, label=f"{label}: {values[-1]:.1f}")
        if max(found["rounds"][-1] for found in rows.values()) > 20:
            axis.set_xscale("log")
        _labelled(axis, group, "rounds", "test accuracy, %" if axis is figure.axes[0] else "")
        axis.legend(fontsize=7, frameon=False, loc="lower right")
    top = max(max(f["test_accuracy"]) for rows in groups.values() for f in rows.values())
    figure.axes[0].set_ylim(max(0.0, 100 * top - 25.0), 100 * top + 1.0)
    _save(figure, path)


def distillation(path: Path, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Accuracy against traffic; the size of a mark grows with the number of learners."""
    figure = _figure(11.0, 4.2)
    axis = figure.subplots()
    for j, (name, row) in enumerate(rows.items()):
        size = 30 + 40 * math.log10(row["learners"])
        learners = f"{row['learners']:,} learner{'s' * (row['learners'] != 1)}"
        label = f"{name}: {learners}, {100 * row['accuracy']:.1f} %"
        axis.scatter([row["models"]], [100 * row["accuracy"]], s=size, color=f"C{j}", label=label, alpha=0.8)
    axis.margins(0.15)
    _labelled(axis, "one learner in place of many", "models exchanged, training included", "test accuracy, %")
    axis.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.02, 0.5), labelspacing=1.2)
    _save(figure, path)


def bars(path: Path, panels: Mapping[str, Mapping[str, Mapping[str, float]]], what: str) -> None:
    """Panels by title, groups of bars in each by name, and the bars of a group by name."""
    columns = min(2, len(panels))
    figure = _figure(6.5 * columns, 3.4 * -(-len(panels) // columns))
    axes = figure.subplots(-(-len(panels) // columns), columns, squeeze=False).ravel()
    for axis, (title, groups) in zip(axes, panels.items(), strict=False):
        names = list(next(iter(groups.values())))
        for j, name in enumerate(names):
            places = [k + (j - (len(names) - 1) / 2) * 0.8 / len(names) for k in range(len(groups))]
            axis.bar(places, [bars[name] for bars in groups.values()], 0.75 / len(names), label=name)
        axis.set_xticks(range(len(groups)), [name.replace(", ", "\n") for name in groups], fontsize=8)
        axis.set(ylim=(0.0, 118.0), yticks=range(0, 101, 20))  # with room for the legend
        _labelled(axis, title, "", what)
        axis.legend(fontsize=8, frameon=False, ncols=len(names), loc="upper center")
    _save(figure, path)


def theory(path: Path, results: Mapping[str, Any]) -> None:
    """The six pictures of `ffgb reproduce theory`, on one page."""
    figure = _figure(13.5, 8.0)
    (a, b, c), (d, e, f) = figure.subplots(2, 3)
    _theory_rates(a, results["rates"])
    _theory_best_k(b, results["best_k"])
    _theory_residual(c, results["residual"])
    names = {"nearest": "h as at the nearest point", "zero": "h = 0 elsewhere"}
    _theory_floor(d, results["floor_c"], names)
    _labelled(d, "(d) FFGB.C: floor", "ω$_{TV}$", "‖f$^T$ − f*‖²")
    names = {"mcshane": "McShane extension", "middle": "middle extension"}
    _theory_floor(e, results["floor_l"], names)
    _labelled(e, "(d) FFGB.L: floor", "ω$_{W1}$", "‖f$^T$ − f*‖²")
    _theory_sampled(f, results["sampled"])
    figure.suptitle(f"Theorems 1–3 on finite sets, exact oracle h = γφ, scale {results['scale']}", fontsize=11)
    _save(figure, path)


def _theory_rates(axis: Any, rates: Mapping[str, Any]) -> None:
    """The error against T, with K fixed and with K = √T."""
    for K, errors in rates["fixed"].items():
        axis.loglog(rates["T"], errors, color="C0", alpha=min(1.0, 0.35 + 0.12 * math.log2(int(K))), lw=1.2)
        axis.annotate(
            f"K = {K}", (rates["T"][-1], errors[-1]), fontsize=7, va="center", xytext=(3, 0), textcoords="offset points"
        )
    rooted = rates["rooted"]
    axis.loglog(rooted["T"], rooted["error"], "o-", color="C1", label=f"K = √T: slope {rooted['slope']:.2f}")
    first, T = rooted["error"][0], rooted["T"]
    axis.loglog(T, [first * (t / T[0]) ** -0.5 for t in T], "--", color="grey", label="slope −0.5, as promised")
    _labelled(axis, "(a) FFGB: error against T", "rounds T", "‖f$^T$ − f*‖²")
    axis.margins(x=0.16)


def _theory_best_k(axis: Any, best: Mapping[str, Any]) -> None:
    """The best K against T."""
    axis.loglog(best["T"], best["best"], "o-", color="C1", label=f"best of K ≤ {best['largest K tried']}")
    axis.loglog(best["T"], best["promised"], "s-", color="C0", label="where the bound is least")
    axis.loglog(best["T"], [math.sqrt(t) for t in best["T"]], "--", color="grey", label="√T")
    _labelled(axis, "(b) the best K against T", "rounds T", "local steps K")


def _theory_residual(axis: Any, residual: Mapping[str, Any]) -> None:
    """The error with and without the residual, against γ."""
    axis.semilogy(residual["gamma"], residual["without"], "s-", color="C3", label="without the residual")
    axis.semilogy(residual["gamma"], residual["with"], "o-", color="C0", label="with it")
    _labelled(axis, f"(c) the residual, T = {residual['T']}, K = √T", "γ", "‖f$^T$ − f*‖²")


def _theory_floor(axis: Any, part: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """The floor against ω: the theorem's, what some ways of extending weak learners have, and a shared geometry."""
    away = [j for j, w in enumerate(part["omega"]) if w > 1e-9]

    def draw(name: str, look: str, colour: str, text: str) -> None:
        axis.loglog([part["omega"][j] for j in away], [part[name][j] for j in away], look, color=colour, label=text)

    draw("promised", "--", "grey", "the theorem's floor")
    for (name, text), colour in zip(names.items(), ("C3", "C1"), strict=True):
        draw(name, "o-", colour, text)
    draw("shared", "^-", "C2", "(f) shared geometry")


def _theory_sampled(axis: Any, sampled: Mapping[str, Any]) -> None:
    """The error that sampling clients adds."""
    factor, added = sampled["factor"], [error - sampled["everyone"] for error in sampled["error"]]
    errors = sampled["standard error"]
    axis.errorbar(factor, added, yerr=errors, fmt="o", color="C1", label="added error, mean of samples")
    scale = added[0] / factor[0]
    axis.loglog(factor, [scale * x for x in factor], "--", color="grey", label="in proportion, as promised")
    for m, x, y in zip(sampled["m"], factor, added, strict=True):
        axis.annotate(f"m = {m}", (x, y), fontsize=7, xytext=(5, -8), textcoords="offset points")
    _labelled(axis, f"(e) m of {sampled['N']} clients", "(N−m)/(N−1) · 1/m", "error added by sampling")


def _labelled(axis: Any, title: str, x: str, y: str) -> None:
    axis.set_title(title, fontsize=10)
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.grid(alpha=0.3, which="major")
    if axis.get_xscale() == "log":
        axis.xaxis.set_minor_formatter("")
    axis.legend(fontsize=7, frameon=False)


def _title(symbol: str, method: str, omega: float) -> str:
    return f"{symbol} between clients ({'exact' if method == 'exact' else 'lower bounds'}), ω = {omega:.3g}"


def _matrix(axes: Any, values: Array, rows: Sequence[str], columns: Sequence[str], top: float) -> None:
    """A heat map; dark is much.  The numbers stand in it if there is room."""
    top = top or 1.0
    image = axes.imshow(values, cmap="Blues", vmin=0.0, vmax=top, aspect="auto", interpolation="nearest")
    axes.figure.colorbar(image, ax=axes, aspect=40, pad=0.02)
    for axis, names, room in ((axes.yaxis, rows, DOWN), (axes.xaxis, columns, ACROSS)):
        at = range(0, len(names), -(-len(names) // room))
        axis.set_ticks(at, [n if len(n) <= NAME else n[: NAME - 1] + "…" for n in (names[i] for i in at)])
    if max(map(len, columns)) > 3:
        for label in axes.get_xticklabels():
            label.set(rotation=40, ha="right", rotation_mode="anchor")
    if max(values.shape) <= WRITTEN:
        for (i, j), value in np.ndenumerate(values):
            color = "white" if value > 0.6 * top else "black"
            axes.text(j, i, f"{value:.2f}", ha="center", va="center", color=color)


def _figure(width: float, height: float) -> Any:
    """A figure that no window or other code knows of."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        raise missing_extra("matplotlib", "plots", "a picture") from error
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.1))


def _save(figure: Any, path: Path) -> None:
    """As a PNG with a palette, which is a third as large as one without."""
    from PIL import Image  # matplotlib needs it, too

    check(path)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=100)
    Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
