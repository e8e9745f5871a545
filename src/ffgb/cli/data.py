"""`ffgb data`: what there is, whether it is whole, and how different the clients are."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ffgb.cli.common import (
    JSON,
    app,
    print_rows,
    say,
)
from ffgb.errors import FFGBError

data_app = typer.Typer(
    help="List and verify data, describe files, check them, and measure how clients differ.", no_args_is_help=True
)
app.add_typer(data_app, name="data")

FEWEST_POINTS = 10
"""Points that a classifier needs of a client."""


@data_app.command("list")
def data_list(as_json: JSON = False) -> None:
    """List the data sets that can be named, what is in them, and whether they are here."""
    from ffgb.data import listing

    if as_json:
        print(json.dumps([dataclasses.asdict(s) for s in listing()]))
        return
    names = ("name", "task", "rows", "columns", "classes", "sites")
    print_rows([{**{n: getattr(s, n) or "" for n in names}, "here": "yes" if s.present else "no"} for s in listing()])
    print("\nwhere they come from:")
    for s in listing():
        say(f"  {s.name}: {s.origin}")
    where = os.environ.get("FFGB_DATA")
    print(
        f"\nfiles are looked for in {where} (FFGB_DATA)" if where else "\nset FFGB_DATA to the folder with the files",
        "also: openml:NAME, which downloads, and files of your own, one a client",
        sep="\n",
    )


@data_app.command("verify")
def data_verify(
    names: Annotated[list[str] | None, typer.Argument(help="Names of sets.", show_default="all that are here")] = None,
    as_json: JSON = False,
) -> None:
    """Check the files of data sets against their published sums; exit code 2 if one is damaged or missing."""
    from ffgb.data import SOURCES, available, verify

    rows = [
        {"name": name, "file": str(path), "status": status}
        for name in names or filter(available, SOURCES)
        for path, status in verify(name) or [(Path("inside scikit-learn"), "ok")]
    ]
    if as_json:
        print(json.dumps(rows))
    else:
        print_rows(rows)
    for status, advice in (("corrupt", "delete it and fetch it again"), ("missing", "put it there, or set FFGB_DATA")):
        if bad := [row["file"] for row in rows if row["status"] == status]:
            raise FFGBError(f"{', '.join(bad)}: {status}; {advice}")


@data_app.command("heterogeneity")
def data_heterogeneity(
    data: Annotated[
        list[str] | None, typer.Option(help="A named set, or a client's file: repeat it.", show_default="digits")
    ] = None,
    target: Annotated[str | None, typer.Option(help="The target column, for CSV and Parquet files.")] = None,
    clients: Annotated[
        int | None, typer.Option(help="Number of clients N.", show_default="20, or the natural sites", min=1)
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="similarity, dirichlet, labels, iid or natural.",
            show_default="natural if there are sites, else similarity",
        ),
    ] = None,
    similarity: Annotated[float, typer.Option(help="Share of the rows dealt out evenly.")] = 0.1,
    alpha: Annotated[float, typer.Option(help="Concentration of the dirichlet split.")] = 0.5,
    labels: Annotated[int, typer.Option(help="Classes that a client has, in the labels split.", min=1)] = 2,
    by: Annotated[str | None, typer.Option(help="Sort rows by this column instead of the label.")] = None,
    seed: Annotated[int, typer.Option(help="The seed of all random numbers.", min=0)] = 0,
    method: Annotated[str, typer.Option(help="auto (exact if that takes seconds), exact or estimate.")] = "auto",
    points: Annotated[int, typer.Option(help="Measure at most so many points a client.", min=1)] = 1000,
    plot: Annotated[Path | None, typer.Option(help="Draw a picture of it, to this PNG file.")] = None,
    as_json: JSON = False,
) -> None:
    """Measure how different the clients' points are: total variation and Wasserstein distances, as in the paper."""
    from ffgb.data import partition
    from ffgb.data.heterogeneity import measure
    from ffgb.runs.config import Config, load_data
    from ffgb.studies import plots

    if plot is not None:
        plots.check(plot)
    dealt: dict[str, Any] = {"similarity": similarity, "alpha": alpha, "labels": labels, "by": by, "seed": seed}
    config = Config(data=tuple(data or ("digits",)), target=target, clients=clients, split=split, **dealt)
    dataset = load_data(config)
    config = config.resolved(dataset)
    assert config.split is not None
    parts = partition(dataset, config.split, config.clients, **dealt)
    held_labels = [dataset.y[rows] for rows in parts]
    found = measure([dataset.x[rows] for rows in parts], held_labels, method, points, seed)
    names = dataset.sites if config.split == "natural" else [str(i) for i in range(len(parts))]
    bins, counts, held = _label_counts(held_labels, dataset.classes)
    if plot is not None:
        what = "class" if dataset.classes else "target"
        plots.heterogeneity(plot, found, counts, bins, clients=names, what=what)
    if as_json:
        settings = {"data": list(config.data), "split": config.split, "seed": seed, "clients": list(names)}
        print(json.dumps({**settings, "bins": bins, "counts": counts.tolist(), **found.to_json()}, allow_nan=False))
        return
    _print_clients(found, names, held)
    _print_measures(found, tables=dataset.x.ndim == 2)


def _print_clients(found: Any, names: Sequence[str], held: Sequence[Mapping[str, Any]]) -> None:
    """A row a client: its points, which labels they have, and how far it is from all."""
    distances = {"TV to all": found.tv, "W₁ to all": found.w1, "W₂ to all": found.w2}
    shown = {name: values.tolist() for name, values in distances.items() if values is not None}
    rows = [{"client": n, "points": p, **h} for n, p, h in zip(names, found.points, held, strict=True)]
    print_rows([{**row, **{name: values[i] for name, values in shown.items()}} for i, row in enumerate(rows)])


def _print_measures(found: Any, *, tables: bool) -> None:
    """The paper's measures of all clients together, and how they were taken."""
    lines = (
        ("ω_TV", found.omega_tv, "mean TV to all: FFGB.C ends within a radius that grows with it (Theorem 2)"),
        ("ω_W₁", found.omega_w1, "mean W₁ to all: FFGB.L ends within a radius that grows with it (Theorem 3)"),
        ("W₂²", found.w2_squared, "mean over pairs of clients: in G² of Theorem 3"),
        ("D", found.D, "every point of a client has one of each other client as near as this (Assumption 3)"),
        ("B", found.B, "no target is larger, whatever its sign, in its own units (Assumption 3)"),
    )
    print()
    for symbol, value, meaning in lines:
        if value is not None:
            print(f"{symbol:5} {value:9.4f}  {meaning}")
    how = {"exact": "exact", "classifier": "a classifier's lower bound", "sliced": "sliced, a lower bound"}
    print(
        f"\nTV: {how[found.tv_method]}; W₁: {how[found.w1_method]}; from {sum(found.measured):,} of "
        f"{sum(found.points):,} points.  Lower bounds are estimates, up to noise.",
        "Samples differ by chance, too: --split iid shows how much.",
        sep="\n",
    )
    if tables:
        print("Distances are between columns of unit variance.")
    if found.tv_method != "exact" and (few := sum(n < FEWEST_POINTS for n in found.measured)):
        print(
            f"{few} clients have fewer than {FEWEST_POINTS} points: a classifier learns nothing about them, "
            "and TV says 0."
        )


def _label_counts(labels: Sequence[Any], classes: Sequence[str]) -> tuple[list[str], Any, list[dict[str, Any]]]:
    """Classes, or bins of the (first) target; how many points of each client are in them; and that in a few words."""
    import numpy as np

    if classes:
        counts = np.array([np.bincount(y, minlength=len(classes)) for y in labels])
        shares = counts / counts.sum(axis=1, keepdims=True)
        most = [{"classes": int((s > 0).sum()), "most": f"{classes[s.argmax()]} ({s.max():.0%})"} for s in shares]
        return list(classes), counts, most
    firsts = [y.reshape(len(y), -1)[:, 0] for y in labels]
    edges = np.histogram_bin_edges(np.concatenate(firsts), 12)
    counts = np.array([np.histogram(y, edges)[0] for y in firsts])
    bins = [f"{middle:.3g}" for middle in (edges[1:] + edges[:-1]) / 2]
    return bins, counts, [{"targets from": float(y.min()), "to": float(y.max())} for y in firsts]
