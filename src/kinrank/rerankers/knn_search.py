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
_BLOCK = 1 << 24  # numbers in a block of similarities


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
        np.full((len(rows), 1), -1, np.int32),
        np.zeros((len(rows), 1), np.float32),
    )
    for cell in np.unique(plan.cells[rows]):
        places = np.flatnonzero(plan.cells[rows] == cell)
        near, far = plan.pool(cell, among), plan.pool_far(cell, among)
        for block in _blocks(places, len(near), k, vectors.shape[1]):
            out[0][block], out[1][block] = _extreme(vectors, rows[block], near, k, 1)
            bar.update(len(block))
        for block in _blocks(places, len(far), 1, vectors.shape[1]):
            out[2][block], out[3][block] = _extreme(vectors, rows[block], far, 1, -1)
    return out[0], out[1], out[2][:, 0], out[3][:, 0]


def _blocks(places: Array, pool: int, k: int, dim: int) -> Iterator[Array]:
    step = max(1, min(_BLOCK // max(pool, 1), 2 * _BLOCK // ((k + _MARGIN) * dim), 4096))
    for start in range(0, len(places), step):
        yield places[start : start + step]


def _extreme(vectors: Array, rows: Array, pool: Array, k: int, sign: int) -> tuple[Array, Array]:
    """(rows (n, k), cosines (n, k)) of the k most (sign 1) or least (-1) similar, never itself."""
    found = np.full((len(rows), k), -1, np.int32)
    cosines = np.zeros((len(rows), k), np.float32)
    if len(pool) == 0:
        return found, cosines
    whole = len(pool) == len(vectors)
    queries, keys = vectors[rows], vectors if whole else vectors[pool]
    rough = queries @ keys.T
    if sign < 0:
        np.negative(rough, out=rough)
    place = np.minimum(np.searchsorted(pool, rows), len(pool) - 1)
    itself = np.flatnonzero(pool[place] == rows)
    rough[itself, place[itself]] = -np.inf
    take = min(k + _MARGIN, len(pool))
    chosen = np.argpartition(rough, len(pool) - take, axis=1)[:, len(pool) - take :]
    exact = sign * np.einsum("nkd,nd->nk", keys[chosen], queries)
    exact[pool[chosen] == rows[:, None]] = -np.inf
    kept = min(k, take)
    order = np.lexsort((chosen, -exact), axis=-1)[:, :kept]
    best = np.take_along_axis(exact, order, 1)
    found[:, :kept] = pool[np.take_along_axis(chosen, order, 1)]
    if take < len(pool):  # what was not taken is no better than the worst taken, up to rounding
        bound = np.take_along_axis(rough, chosen, 1).min(1)
        for i in np.flatnonzero(best[:, -1] <= bound + _ROUNDING):  # many ties: look at every one
            row = sign * np.einsum("nkd,nd->nk", keys[None], queries[i : i + 1])[0]
            row[pool == rows[i]] = -np.inf
            first = np.lexsort((np.arange(len(pool)), -row))[:kept]
            found[i, :kept], best[i] = pool[first], row[first]
    cosines[:, :kept] = np.where(np.isfinite(best), sign * best, 0)
    found[:, :kept][~np.isfinite(best)] = -1
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
    centroids: Array = means.centroids
    return centroids


def assign(vectors: Array, centroids: Array) -> Array:
    """The cell of each vector."""
    cells = np.zeros(len(vectors), np.int32)
    if len(centroids) > 1:
        for start in range(0, len(vectors), 8192):
            block = slice(start, start + 8192)
            cells[block] = np.argmax(vectors[block] @ centroids.T, axis=1)
    return cells
