"""Exact search by reading every row: a matrix product, a partial sort, ties in the order of the rows."""

from __future__ import annotations

import numpy as np

from kinrank.types import Array, stable_order

SLACK = np.float32(1e-5)  # more than float32 sums of the same numbers can differ by
BLOCK = 1 << 25  # scores held at once when many queries are asked


def row_scores(rows: Array, query: Array) -> Array:
    """Cosines (n,) of unit rows (n, d) to a unit query; equal rows get equal scores to the last bit.

    A BLAS product does not promise that: it treats the rows at the edge of a block differently.
    """
    return np.einsum("nd,d->n", rows, query)


def nearest(matrix: Array, query: Array, k: int, dead: Array | None = None) -> tuple[Array, Array, Array]:
    """(positions (k,), scores (k,), rows (k, d)) of the k nearest rows, without the `dead` positions."""
    return _ranked(matrix, query, matrix @ query, k, dead)


def nearest_many(matrix: Array, queries: Array, k: int, dead: Array | None = None) -> tuple[Array, Array]:
    """(positions (Q, k), scores (Q, k)) for many queries; memory stays bounded."""
    positions = np.empty((len(queries), k), np.int64)
    scores = np.empty((len(queries), k), np.float32)
    step = max(1, BLOCK // max(1, len(matrix)))
    for start in range(0, len(queries), step):
        table = queries[start : start + step] @ matrix.T
        for row, line in enumerate(table, start):
            positions[row], scores[row], _ = _ranked(matrix, queries[row], line, k, dead)
    return positions, scores


def contenders(scores: Array, k: int) -> Array:
    """Positions, ascending, of all that may be among the k best once scored to the last bit."""
    if k >= len(scores):
        return np.flatnonzero(scores > -np.inf)
    threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
    return np.flatnonzero(scores >= max(threshold - SLACK, np.finfo(np.float32).min))


def _ranked(
    matrix: Array, query: Array, scores: Array, k: int, dead: Array | None
) -> tuple[Array, Array, Array]:
    if dead is not None and len(dead):
        scores[dead] = -np.inf
    near = contenders(scores, k)
    rows = matrix[near]
    exact = row_scores(rows, query)
    order = stable_order(exact)[:k]
    return near[order], exact[order], rows[order]
