"""Which items of a gallery are near to which: blocks of similarities, over all or over cells.

Candidates come from BLAS, whose rounding depends on the shape of a block; their cosines are then summed
in one fixed order, and ties fall to the earlier row, so that any way of cutting gives the same lists.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from kinrank.types import Array

EXACT_LIMIT = 100_000
PROBES = 24
_MARGIN = 16  # more than k are taken by BLAS's rounding, then ordered by exact sums
_ROUNDING = 1e-5  # no two ways to sum a cosine of float32 differ by more
_BLOCK = 1 << 22  # numbers in a block of similarities, where it has the rows that BLAS wants
_ROWS = 192


class Cells:
    """Which rows are compared with which."""

    def __init__(self, centroids: Array, cells: Array) -> None:
        self.cells = cells
        table = centroids @ centroids.T
        self.near = np.argsort(-table, axis=1, kind="stable")[:, :PROBES]
        order = np.argsort(cells, kind="stable")
        bounds = np.searchsorted(cells[order], np.arange(len(centroids) + 1))
        self.members = [order[a:b] for a, b in itertools.pairwise(bounds)]
        # The cell on the other side that has members holds the farthest item.
        filled = np.array([len(m) > 0 for m in self.members])
        self.far = np.argmin(np.where(filled, table, np.inf), axis=1)

    def pool(self, cell: int, among: Array | None = None) -> Array:
        """Rows, rising, of the cells near to `cell`; only those of `among` (N,) bool when given."""
        rows = np.sort(np.concatenate([self.members[c] for c in self.near[cell]]))
        return rows if among is None else rows[among[rows]]

    def pool_far(self, cell: int, among: Array | None = None) -> Array:
        """Rows among which the farthest of a cell's items is sought."""
        rows = self.members[self.far[cell]]
        return rows if among is None else rows[among[rows]]


def search(
    vectors: Array, rows: Array, plan: Cells, k: int, bar: Any, among: Array | None = None
) -> tuple[Array, Array, Array, Array]:
    """Nearest k and farthest one of these rows, among all items or a part of them."""
    out = (
        np.full((len(rows), k), -1, np.int32),
        np.zeros((len(rows), k), np.float32),
        np.full(len(rows), -1, np.int32),
        np.zeros(len(rows), np.float32),
    )
    for cell in np.unique(plan.cells[rows]):
        places = np.flatnonzero(plan.cells[rows] == cell)
        near, far = plan.pool(cell, among), plan.pool_far(cell, among)
        for block in _blocks(places, max(len(near), len(far)), k, vectors.shape[1]):
            here = _Block(vectors, rows[block], near)
            out[0][block], out[1][block] = here.highest(k)
            if not np.array_equal(near, far):
                here = _Block(vectors, rows[block], far)
            out[2][block], out[3][block] = here.lowest()
            bar.update(len(block))
    return out[0], out[1], out[2], out[3]


def _blocks(places: Array, pool: int, k: int, dim: int) -> Iterator[Array]:
    step = max(1, min(max(_BLOCK // max(pool, 1), _ROWS), 2 * _BLOCK // ((k + _MARGIN) * dim), 4096))
    for start in range(0, len(places), step):
        yield places[start : start + step]


class _Block:
    """Similarities of some rows to a pool of rows (rising), as BLAS rounds them."""

    def __init__(self, vectors: Array, rows: Array, pool: Array) -> None:
        self.rows, self.pool = rows, pool
        self.queries = vectors[rows]
        self.keys = vectors if len(pool) == len(vectors) else vectors[pool]
        self.rough = self.queries @ self.keys.T  # (n, pool)
        if len(pool):
            place = np.minimum(np.searchsorted(pool, rows), len(pool) - 1)
            self.itself = np.flatnonzero(pool[place] == rows)
            self.place = place[self.itself]

    def highest(self, k: int) -> tuple[Array, Array]:
        """(rows (n, k), cosines (n, k)) of the k most similar, never a row itself; -1 and 0 where none."""
        found = np.full((len(self.rows), k), -1, np.int32)
        cosines = np.zeros((len(self.rows), k), np.float32)
        size = len(self.pool)
        if size == 0:
            return found, cosines
        self.rough[self.itself, self.place] = -np.inf
        take = min(k + _MARGIN, size)
        bound = np.partition(self.rough, size - take, axis=1)[:, size - take]
        inside = self.rough >= bound[:, None]
        tied = np.count_nonzero(inside, axis=1) > take
        inside[tied, take:], inside[tied, :take] = False, True
        chosen = (np.flatnonzero(inside) % size).reshape(-1, take)
        exact = np.einsum("nkd,nd->nk", self.keys[chosen], self.queries)
        exact[self.pool[chosen] == self.rows[:, None]] = -np.inf
        kept = min(k, take)
        order = np.lexsort((chosen, -exact), axis=-1)[:, :kept]
        best = np.take_along_axis(exact, order, 1)
        found[:, :kept] = self.pool[np.take_along_axis(chosen, order, 1)]
        if take < size:  # what was not taken is no better than the worst taken, up to rounding
            for i in np.flatnonzero(tied | (best[:, -1] <= bound + _ROUNDING)):  # look at every one
                row = np.einsum("nkd,nd->nk", self.keys[None], self.queries[i : i + 1])[0]
                row[self.pool == self.rows[i]] = -np.inf
                first = np.lexsort((np.arange(size), -row))[:kept]
                found[i, :kept], best[i] = self.pool[first], row[first]
        cosines[:, :kept] = np.where(np.isfinite(best), best, 0)
        found[:, :kept][~np.isfinite(best)] = -1
        return found, cosines

    def lowest(self) -> tuple[Array, Array]:
        """(row (n,), cosine (n,)) of the least similar, never a row itself; -1 and 0 where there is none."""
        found = np.full(len(self.rows), -1, np.int32)
        cosines = np.zeros(len(self.rows), np.float32)
        if len(self.pool) == 0:
            return found, cosines
        self.rough[self.itself, self.place] = np.inf
        close = np.flatnonzero(self.rough <= self.rough.min(axis=1, keepdims=True) + _ROUNDING)
        owner, column = np.divmod(close, len(self.pool))
        exact = np.empty(len(close), np.float32)
        for start in range(0, len(close), 4096):
            some = slice(start, start + 4096)
            exact[some] = np.einsum("nkd,nd->nk", self.keys[column[some], None], self.queries[owner[some]])[
                :, 0
            ]
        exact[self.pool[column] == self.rows[owner]] = np.inf
        order = np.lexsort((column, exact, owner))
        first = order[np.flatnonzero(np.diff(owner[order], prepend=-1))]
        first = first[np.isfinite(exact[first])]
        found[owner[first]] = self.pool[column[first]]
        cosines[owner[first]] = exact[first]
        return found, cosines


def train_cells(vectors: Array) -> Array:
    """Centroids (C, d): one cell up to EXACT_LIMIT items, about sqrt(N) beyond."""
    size, dim = vectors.shape
    if size <= EXACT_LIMIT:
        return np.zeros((1, dim), np.float32)
    import faiss

    count = int(np.sqrt(size))
    sample = np.random.default_rng(0).choice(size, min(size, 64 * count), replace=False)
    means = faiss.Kmeans(dim, count, niter=10, seed=1, spherical=True)
    means.train(np.ascontiguousarray(vectors[np.sort(sample)]))
    return np.asarray(means.centroids)


def assign(vectors: Array, centroids: Array) -> Array:
    """The cell of each vector."""
    cells = np.zeros(len(vectors), np.int32)
    if len(centroids) > 1:
        for start in range(0, len(vectors), 8192):
            block = slice(start, start + 8192)
            cells[block] = np.argmax(vectors[block] @ centroids.T, axis=1)
    return cells
