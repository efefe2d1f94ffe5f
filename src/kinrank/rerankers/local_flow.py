"""Diffusion from a few seeds on the part of a large graph that matters to them.

The part grows: the system is solved roughly on the nodes that are in, those outside that would receive
most come in, and so on until `size` nodes are there; then it is solved well. Degrees are those of the
whole graph (late truncation, Yang 2019). Nothing as long as the graph is touched but one table of zeros.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kinrank.types import Array

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

ROUGH = 4  # steps of the solver in a round, from where the last round stood
FIRST = 16  # nodes that come in at least in a round: with more, flow leaves a narrow manifold sideways
GROWTH = 0.5  # and this share of those that are in


def local_flow(
    matrix: csr_matrix,
    seeds: Array,
    masses: Array,
    size: int,
    alpha: float,
    iterations: int,
    tolerance: float,
) -> tuple[Array, Array]:
    """(nodes (n,), f (n,)) with (I - alpha S) f = y on at most `size` nodes, fewer where components end.

    `matrix` is S of the whole graph, y holds `masses` at `seeds`. `iterations` are those of the last solve.
    """
    part = _Part(matrix, seeds)
    y = masses.astype(np.float32)
    f = np.zeros_like(y)
    while True:
        whole = len(part.inside) >= size or len(part.inside) == len(part.seen)
        f = _solved(part, y, f, alpha, iterations if whole else ROUGH, tolerance)
        if whole:
            return part.seen[part.inside], np.maximum(f, 0)
        room = min(size - len(part.inside), len(part.seen) - len(part.inside))
        part.grow(f, min(room, max(FIRST, int(GROWTH * len(part.inside)))))
        new = np.zeros(len(part.inside) - len(y), np.float32)
        y, f = np.concatenate([y, new]), np.concatenate([f, new])


class _Part:
    """Rows of S of the nodes that are in; columns are numbered as nodes are first seen."""

    def __init__(self, matrix: csr_matrix, seeds: Array) -> None:
        self.matrix = matrix
        self.place = np.zeros(matrix.shape[0], np.int32)  # number of a node seen, from 1; 0: not yet
        self.seen = np.asarray(seeds, dtype=np.int64)
        self.place[self.seen] = np.arange(1, len(seeds) + 1)
        self.inside = np.arange(0)  # numbers of the nodes that are in
        self.counts: list[Array] = []
        self.columns: list[Array] = []
        self.values: list[Array] = []
        self._take_in(np.arange(len(seeds)))

    def grow(self, f: Array, count: int) -> None:
        """Take in the `count` nodes outside that flow f from inside reaches with most."""
        owners = np.repeat(np.maximum(f, 0), np.concatenate(self.counts))
        inflow = np.bincount(self.rows.indices, owners * self.rows.data, len(self.seen))
        inflow[self.inside] = -1
        self._take_in(np.sort(np.argpartition(-inflow, count - 1)[:count]))

    def _take_in(self, numbers: Array) -> None:
        from scipy.sparse import csr_matrix

        counts, columns, values = gathered(self.matrix, self.seen[numbers])
        new = columns[self.place[columns] == 0]
        self.place[new] = np.arange(1, len(new) + 1)
        new = new[self.place[new] == np.arange(1, len(new) + 1)]  # each once
        self.place[new] = np.arange(len(self.seen) + 1, len(self.seen) + len(new) + 1)
        self.seen = np.concatenate([self.seen, new])
        self.inside = np.concatenate([self.inside, numbers])
        self.counts.append(counts)
        self.columns.append(self.place[columns] - 1)
        self.values.append(values)
        starts = np.zeros(len(self.inside) + 1, np.int32)
        np.cumsum(np.concatenate(self.counts), out=starts[1:])
        entries = np.concatenate(self.values), np.concatenate(self.columns), starts
        self.rows = csr_matrix(entries, shape=(len(self.inside), len(self.seen)))


def gathered(matrix: csr_matrix, rows: Array) -> tuple[Array, Array, Array]:
    """(entries a row (n,), their columns, their values) of these rows, one after the other."""
    starts = matrix.indptr[rows].astype(np.int64)
    counts = matrix.indptr[rows + 1].astype(np.int64) - starts
    ends = np.cumsum(counts)
    entries = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + counts, counts)
    return counts, matrix.indices[entries], matrix.data[entries]


def _solved(part: _Part, y: Array, f: Array, alpha: float, iterations: int, tolerance: float) -> Array:
    """f (n,) of the nodes inside, by conjugate gradient from the f given."""
    rows, inside, decay = part.rows, part.inside, np.float32(-alpha)
    spread = np.zeros(rows.shape[1], np.float32)  # nodes outside hold nothing

    def system(x: Array) -> Array:
        spread[inside] = x
        image: Array = rows @ spread
        image *= decay
        image += x
        return image

    solution = f.copy()
    residual = y - system(f)
    direction = residual.copy()
    length = float(residual @ residual)
    enough = tolerance**2 * float(y @ y)
    for _ in range(iterations):
        if length <= enough:
            break
        image = system(direction)
        step = np.float32(length / float(direction @ image))
        solution += step * direction
        residual -= step * image
        shorter = float(residual @ residual)
        direction *= np.float32(shorter / length)
        direction += residual
        length = shorter
    return solution
