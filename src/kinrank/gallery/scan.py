"""Exact search by reading every row: a matrix product, a partial sort, ties in the order of the rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kinrank.types import Array, stable_order

SLACK = np.float32(1e-5)  # more than float32 sums of the same numbers can differ by
BLOCK = 1 << 25  # scores held at once when many queries are asked


def score_rows(rows: Array, query: Array) -> Array:
    """Cosines (n,) of unit rows (n, d) to a unit query; equal rows get equal scores to the last bit.

    A BLAS product does not promise that: it treats the rows at the edge of a block differently.
    """
    return np.einsum("nd,d->n", rows, query)


def lengths(rows: Array) -> Array:
    """Squared lengths (n,) of rows (n, d)."""
    return np.einsum("nd,nd->n", rows, rows)


def contenders(scores: Array, k: int) -> Array:
    """Positions, ascending, of all that may be among the k best once scored to the last bit.

    A score of minus infinity marks a row that must not be found.
    """
    if k >= len(scores):
        return np.flatnonzero(scores > -np.inf)
    threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
    return np.flatnonzero(scores >= max(threshold - SLACK, np.finfo(np.float32).min))


def ranked(positions: Array, rows: Array, query: Array, k: int) -> tuple[Array, Array, Array]:
    """The k best of rows (n, d) as (positions, scores, rows); ties in the order of ascending positions."""
    scores = score_rows(rows, query)
    order = stable_order(scores)[:k]
    return positions[order], scores[order], rows[order]


def nearest(matrix: Array, query: Array, k: int) -> tuple[Array, Array, Array]:
    """(positions (k,), scores (k,), rows (k, d)) of the k nearest rows."""
    near = contenders(matrix @ query, k)
    return ranked(near, matrix[near], query, k)


def nearest_many(matrix: Array, queries: Array, k: int) -> tuple[Array, Array]:
    """(positions (Q, k), scores (Q, k)) for many queries; memory stays bounded."""
    positions = np.empty((len(queries), k), np.int64)
    scores = np.empty((len(queries), k), np.float32)
    row = 0
    for part in parts(queries, len(matrix)):
        for query, line in zip(part, part @ matrix.T):
            near = contenders(line, k)
            positions[row], scores[row], _ = ranked(near, matrix[near], query, k)
            row += 1
    return positions, scores


def parts(queries: Array, count: int) -> Iterator[Array]:
    """Queries in blocks, so that their scores for `count` rows fit into memory."""
    step = max(1, BLOCK // max(1, count))
    for start in range(0, len(queries), step):
        yield queries[start : start + step]
