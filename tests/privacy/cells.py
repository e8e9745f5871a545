"""What totals by cells tell of single rows: of additive models, and of blends.

A difference of two versions of a blend is a sum over the rows of one fold.

One client holds all rows, so its answers are the totals of any split.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from ffgb.algorithms.blended import Blended
from ffgb.core.cell_sums import CellSums, CurvatureAlong
from ffgb.core.histograms import HistogramsOf
from ffgb.core.merged_cells import MergedHistograms, NodeRows
from ffgb.core.points import Points
from ffgb.core.splits import Splits, route
from tests.privacy.attacks import Seen

Array = np.ndarray


@dataclass
class Cells:
    """Cells of which sums are in a total: of a node of a version's tree."""

    version: int
    like: object
    """Versions with the same one can be compared: same round, strand, output, columns and path."""
    columns: Array
    first: Array
    """Of each column, where its cells begin."""
    heads: Array
    inside: Array
    """The rows that would be in the node, if none were left out."""
    drawn: Array
    """The rows that its tree is grown from, as far as draws go."""


def alone_between_versions(seen: Seen) -> set[int]:
    """Rows that are alone in a cell of the difference of the version with all rows and one without a fold."""
    algorithm = seen.state.job.algorithm
    assert isinstance(algorithm, Blended)
    z, points = seen.state.job.family.features(seen.dataset.x), Points(0, np.asarray(seen.dataset.x), seen.dataset.y)
    fold, groups = algorithm.folds.of(points), dict[object, list[Cells]]()
    for cells in (*_of_trees(seen, z, points), *_of_columns(seen, points)):
        groups.setdefault(cells.like, []).append(cells)
    found, compared = set[int](), 0
    for some in groups.values():
        for whole in (each for each in some if each.version == 0):
            for part in (each for each in some if each.version > 0):
                compared += 1
                of_part = part.drawn & (fold != algorithm.folds.without[part.version])
                rows = np.flatnonzero(whole.inside & (whole.drawn != of_part))  # with either sign
                both = _coarser(whole.heads, part.heads)
                for column, first in zip(whole.columns, whole.first, strict=True):
                    _, cell, count = np.unique(both[first + z[rows, column]], return_inverse=True, return_counts=True)
                    found.update(rows[count[cell] == 1].tolist())
    assert compared > 50
    return found


def few_between_trees(seen: Seen, least: int) -> dict[int, int]:
    """Rows in the difference of sums of two trees that are grown from the same gradient, if these are few: of how many.

    A node of one tree may have all rows of a node of another, and a few more.  Their cells of a column that both have
    are compared, as finely as both tell; the server is given which node is within which.
    """
    z = seen.state.job.family.features(seen.dataset.x)
    found: dict[int, int] = {}
    for some in _of_one_gradient(seen, z).values():
        rows_of = np.array([cells.inside for cells in some], np.float32)
        within = rows_of @ rows_of.T == rows_of.sum(axis=1)  # the node of the column is within that of the row
        for a, b in zip(*np.nonzero(within), strict=True):
            whole, part = some[a], some[b]
            rows = np.flatnonzero(whole.inside & ~part.inside)
            for column in np.intersect1d(whole.columns, part.columns) if len(rows) else ():
                both = _coarser(*(_heads_of(cells, int(column)) for cells in (whole, part)))
                _, cell, count = np.unique(both[z[rows, column]], return_inverse=True, return_counts=True)
                for row, few in zip(rows.tolist(), count[cell].tolist(), strict=True):
                    if few < least:
                        found[row] = min(few, found.get(row, least))
    return found


def _of_one_gradient(seen: Seen, z: Array) -> dict[object, list[Cells]]:
    """Nodes whose sums are known, by round and entry of f; those that a version is trained without are not there."""
    algorithm, groups = seen.state.job.algorithm, dict[object, dict[object, Cells]]()
    points, fold = Points(0, np.asarray(seen.dataset.x), seen.dataset.y), None
    if isinstance(algorithm, Blended):
        fold = algorithm.folds.of(points)
    for asked, _ in seen.answers(MergedHistograms):
        question = asked.question
        assert isinstance(question, MergedHistograms)
        of = question.of
        heads = of.columns_of_cells[1] + question.heads
        ends = [*of.starts[1:], len(heads)]
        for (k, node), start, end in zip(of.asked.tolist(), of.starts, ends, strict=True):
            own, output = of.tree == k, int(of.outputs[k])
            splits = Splits(of.splits.node[own], of.splits.column[own], of.splits.left[own])
            position = route(splits, z, np.zeros(len(z), np.int32))
            there = ~left_out(of, points, asked.round, k)
            if fold is not None and isinstance(algorithm, Blended):
                there = there & (fold != algorithm.folds.without[output // seen.loss.outputs])
            columns, sizes = of.columns[k], of.cells[of.columns[k]].astype(np.int64)
            for place in (node, node + 1 if node % 2 else node - 1) if node else (node,):
                inside, own_heads = (position == place) & there, heads[start:end] - start
                cells = Cells(0, None, columns, np.cumsum(sizes) - sizes, own_heads, inside, inside)
                like = (inside.tobytes(), columns.tobytes(), own_heads.tobytes())
                groups.setdefault((asked.round, output), {})[like] = cells
    return {key: list(some.values()) for key, some in groups.items()}


def left_out(of: HistogramsOf, points: Points, t: int, tree: int) -> Array:
    """The rows that a tree's draw leaves out, (n,)."""
    found = None if of.draws is None else of.draws.left_out(points, t, [tree])
    return np.zeros(len(points), bool) if found is None else found[0]


def _heads_of(cells: Cells, column: int) -> Array:
    """The heads of one column's cells, counted from its first cell."""
    k = cells.columns.tolist().index(column)
    ends = np.append(cells.first, len(cells.heads))
    found: Array = cells.heads[ends[k] : ends[k + 1]] - ends[k]
    return found


def few_in_cells(seen: Seen, least: int) -> set[int]:
    """Rows in a cell of which the sums of an additive model have fewer than this."""
    found, z = set[int](), seen.state.job.family.features(seen.dataset.x).astype(np.int64)
    for kind in (CellSums, CurvatureAlong):
        for asked, answers in seen.answers(kind):
            question = asked.question
            of = question.of if isinstance(question, CurvatureAlong) else question
            assert isinstance(of, CellSums)
            cells = int(of.cells[of.columns].astype(np.int64).sum())
            assert all(a.size <= max(cells, 8) * len(of.outputs) for a in answers[0].tensors.values())  # no pairs
            for column in of.columns:
                _, cell, count = np.unique(z[:, column], return_inverse=True, return_counts=True)
                found.update(np.flatnonzero(count[cell] < least).tolist())
    return found


def pairs_that_follow(seen: Seen) -> int:
    """Pairs of cells whose rows follow from what curvature has done to the directions of all rounds.

    The curvature is taken to be 1 at all rows and in all rounds, as that of the square loss is: else nothing follows.
    """
    looks = [asked.question for asked, _ in seen.answers(CurvatureAlong)]
    first = looks[0]
    assert isinstance(first, CurvatureAlong)
    sizes = first.of.cells[first.of.columns].astype(np.int64)
    blocks = np.repeat(np.eye(len(sizes)), sizes, axis=1)  # the rows of a cell are in some cell of each column
    known = [look.directions[0, 1:] for look in looks if isinstance(look, CurvatureAlong)]
    _, values, right = np.linalg.svd(np.concatenate([blocks, known]), full_matrices=False)
    inside = right[values > 1e-10 * values[0]]
    return int((np.square(inside).sum(axis=0) > 1.0 - 1e-9).sum())


def rows_by_counts(seen: Seen) -> dict[int, int]:
    """Rows that are alone in a bin of a node, and of how many columns their bins follow from all counts of nodes.

    A row that is alone has the bins of its node's path, and one more.  It is also in every other node whose path agrees
    with that, and so has only bins there that have rows.  What is left may make out the row in other nodes, and so on.
    Where each tree draws its rows, this holds for the nodes of one tree.
    """
    z = seen.state.job.family.features(seen.dataset.x).astype(np.int64)
    cells = seen.state.job.family.layout.cells  # type: ignore[attr-defined]
    first = np.concatenate([[0], np.cumsum(cells)])
    nodes, paths, rows, at, possible = (
        list(_counted(seen, z, first)),
        list[Array](),
        list[int](),
        list[tuple[int, int]](),
        [],
    )
    there = np.ones((len(nodes), first[-1]), bool)
    for m, (_, path, columns, inside) in enumerate(nodes):
        paths.append(path)
        for j in columns:
            here = slice(first[j], first[j + 1])
            counts = np.bincount(z[inside, j], minlength=cells[j])
            there[m, here] = counts > 0
            for b in np.flatnonzero(counts == 1):
                own = path.copy()
                own[here] = np.arange(cells[j]) == b
                possible.append(own)
                rows.append(int(np.flatnonzero(inside & (z[:, j] == b))[0]))
                at.append((m, int(j)))
    known, away, empty = np.array(possible), ~np.array(paths).T, ~there
    draw = np.array([node[0] for node in nodes])
    drawn_together = draw[[m for m, _ in at]][:, None] == draw
    while True:
        before = int(known.sum())
        inside_of = (known.astype(np.float32) @ away.astype(np.float32) == 0) & drawn_together
        known &= inside_of.astype(np.float32) @ empty.astype(np.float32) == 0
        for row in sorted(set(rows)):
            some = np.flatnonzero(np.array(rows) == row)
            for h in some:
                for g in some:
                    m, j = at[g]
                    there_too = drawn_together[h, m] and not (known[h] & away[:, m]).any()
                    if there_too and known[h, first[j] : first[j + 1]].sum() == 1:
                        known[h] = known[g] = known[h] & known[g]
        if int(known.sum()) == before:
            break
    sizes = np.add.reduceat(known.astype(np.int64), first[:-1], axis=1)
    assert all(known[h, first[:-1] + z[r]].all() for h, r in enumerate(rows))  # nothing false follows
    usable = seen.state.job.family.layout.usable  # type: ignore[attr-defined]
    found: dict[int, int] = {}
    for r, own_sizes in zip(rows, sizes, strict=True):
        found[r] = max(found.get(r, 0), int((own_sizes[usable] == 1).sum()))
    return found


def _counted(seen: Seen, z: Array, first: Array) -> Iterator[tuple[int, Array, Array, Array]]:
    """Of each node whose rows were counted, of versions with all rows: which draw they are of, its path as cells, its
    columns and its rows."""
    algorithm, known = seen.state.job.algorithm, set[tuple[int, bytes, bytes]]()
    points = Points(0, np.asarray(seen.dataset.x), seen.dataset.y)
    for asked, _ in seen.answers(NodeRows):
        question = asked.question
        assert isinstance(question, NodeRows)
        of = question.of
        for k, node in of.asked.tolist():
            version = int(of.outputs[k]) // seen.loss.outputs
            if isinstance(algorithm, Blended) and algorithm.folds.without[version] >= 0:
                continue
            own = of.tree == k
            splits = Splits(of.splits.node[own], of.splits.column[own], of.splits.left[own])
            position = route(splits, z.astype(np.uint8), np.zeros(len(z), np.int32))
            position[left_out(of, points, asked.round, k)] = -1
            draw = 0 if of.draws is None else 10_000 * asked.round + k
            for place in (node, node + 1 if node % 2 else node - 1) if node else (node,):
                path = _path(splits, place, first)
                if (draw, path.tobytes(), of.columns[k].tobytes()) not in known:
                    known.add((draw, path.tobytes(), of.columns[k].tobytes()))
                    yield draw, path, of.columns[k], position == place


def _path(splits: Splits, node: int, first: Array) -> Array:
    """The cells that rows of a node may have."""
    path = np.ones(int(first[-1]), bool)
    while node > 0:
        s, left = (node - 1) // 2, node % 2 == 1
        column = int(splits.column[s])
        cells = splits.goes_left[s, : first[column + 1] - first[column]]
        path[first[column] : first[column + 1]] &= cells if left else ~cells
        node = int(splits.node[s])
    return path


def labels_that_follow(seen: Seen) -> int:
    """Rows whose gradient is a combination of sums of gradients by cell, for who knows the cells of all rows."""
    hot = _one_hot(seen)
    left, sizes, _ = np.linalg.svd(hot, full_matrices=False)
    inside = left[:, sizes > 1e-9 * sizes[0]]
    return int((np.square(inside).sum(axis=1) > 1.0 - 1e-7).sum())


def _one_hot(seen: Seen) -> Array:
    """Which cells each row is in."""
    z = seen.state.job.family.features(seen.dataset.x)
    question = next(seen.answers(CellSums))[0].question
    assert isinstance(question, CellSums)
    sizes = question.cells[question.columns].astype(np.int64)
    return np.concatenate([np.eye(size)[z[:, c]] for size, c in zip(sizes, question.columns, strict=True)], axis=1)


def _of_trees(seen: Seen, z: Array, points: Points) -> Iterator[Cells]:
    for kind in (HistogramsOf, MergedHistograms):
        for asked, _ in seen.answers(kind):
            question = asked.question
            assert isinstance(question, HistogramsOf | MergedHistograms)
            of = question.of if isinstance(question, MergedHistograms) else question
            _, begin = of.columns_of_cells
            heads = begin + question.heads if isinstance(question, MergedHistograms) else np.arange(len(begin))
            ends = [*of.starts[1:], len(heads)]
            for (k, node), start, end in zip(of.asked.tolist(), of.starts, ends, strict=True):
                own = of.tree == k
                splits = Splits(of.splits.node[own], of.splits.column[own], of.splits.left[own])
                inside = route(splits, z, np.zeros(len(z), np.int32)) == node
                columns, sizes = of.columns[k], of.cells[of.columns[k]].astype(np.int64)
                strand, version = _strand(seen, int(of.outputs[k]))
                like = (asked.round, strand, columns.tobytes(), inside.tobytes())
                drawn = ~left_out(of, points, asked.round, k)
                yield Cells(version, like, columns, np.cumsum(sizes) - sizes, heads[start:end] - start, inside, drawn)


def _of_columns(seen: Seen, points: Points) -> Iterator[Cells]:
    for asked, _ in seen.answers(CellSums):
        question = asked.question
        assert isinstance(question, CellSums)
        sizes = question.cells[question.columns].astype(np.int64)
        first = np.cumsum(sizes) - sizes
        own = np.arange(sizes.sum()) - np.repeat(first, sizes)
        within = np.tile(own, len(question.outputs)) if question.heads is None else question.heads
        every = np.ones(len(points), bool)
        for k, (output, heads) in enumerate(
            zip(question.outputs.tolist(), within.reshape(-1, sizes.sum()), strict=True)
        ):
            strand, version = _strand(seen, output)
            like = (asked.round, strand)
            drawn = ~left_out(question.single, points, asked.round, k)
            yield Cells(version, like, question.columns, first, heads + np.repeat(first, sizes), every, drawn)


def _strand(seen: Seen, output: int) -> tuple[tuple[int, int], int]:
    """Strand and class, and version, of an entry of f."""
    algorithm, loss = seen.state.job.algorithm, seen.loss
    assert isinstance(algorithm, Blended)
    number, k = divmod(output, loss.outputs)
    strand, version = divmod(number, algorithm.each)
    return (strand, k), version


def _coarser(a: Array, b: Array) -> Array:
    """A number for each cell: the same for all that are in one cell of both partitions' finest common coarsening."""
    cells = np.arange(len(a))
    edges = coo_matrix((np.ones(2 * len(a)), (np.tile(cells, 2), np.concatenate([a, b]))), shape=(len(a), len(a)))
    found: Array = connected_components(edges, directed=False)[1]
    return found
