"""k-reciprocal sets and the encoding made of them (Zhong 2017), as sparse rows.

Neighbour lists (n, k1 + 1) hold each node first in its own list; -1 where there is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kinrank.types import Array

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_BLOCK = 1 << 22  # numbers gathered at once


def half_of(k1: int) -> int:
    """k1/2, rounded as in the published code (halves to the even)."""
    return int(np.around(k1 / 2))


def reciprocal(lists: Array, k: int, rows: Array | None = None) -> csr_matrix:
    """0/1 (n, n): j in the first k + 1 of i and i in the first k + 1 of j; of these `rows` (rising) alone."""
    from scipy.sparse import csr_matrix

    size, near = len(lists), lists[:, : k + 1]
    rows = np.arange(size) if rows is None else rows
    width = near.shape[1]
    keep = np.empty((len(rows), width), bool)
    step = max(1, _BLOCK // (width * width))
    for start in range(0, len(rows), step):
        some = near[rows[start : start + step]]
        back = near[np.maximum(some, 0)]  # (step, width, width)
        keep[start : start + step] = (back == some[:, :1, None]).any(2) & (some >= 0)
    starts = np.zeros(size + 1, np.int64)
    starts[rows + 1] = keep.sum(1)
    columns = near[rows][keep]
    return csr_matrix((np.ones(len(columns), np.float32), columns, np.cumsum(starts)), shape=(size, size))


def grown(near: csr_matrix, half: csr_matrix, half_back: csr_matrix) -> csr_matrix:
    """0/1 (t, n): rows `near` (t, n) of R(., k1), and the halves R(c, k1/2) that they take in.

    `half` (n, n) holds R(., k1/2), `half_back` its transpose.
    """
    sizes = np.diff(half.indptr)
    shared = (near @ half_back).multiply(near).tocsr()  # how much of R(c, k1/2) lies in R(t, k1)
    shared.data = (shared.data > 2 / 3 * sizes[shared.indices]).astype(np.float32)
    shared.eliminate_zeros()
    support = (near + shared @ half).tocsr()
    support.data[:] = 1
    return support


def owners(rows: csr_matrix) -> Array:
    """The row of each stored entry."""
    return np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))


def encode(support: csr_matrix, distances: Array) -> csr_matrix:
    """V: exp(-D) on the support, rows summing to one; `distances` in the support's order."""
    encoded = support.copy()
    encoded.data = np.exp(-distances).astype(np.float32)
    sums = np.bincount(owners(encoded), encoded.data, encoded.shape[0])
    encoded.data /= np.maximum(sums, 1e-12).astype(np.float32)[owners(encoded)]
    return encoded


def jaccard(query: Array, others: Array) -> Array:
    """1 - sum min / sum max of the query (c,) to rows (n, c); all sum to one, beyond these columns too."""
    shared = np.minimum(np.minimum(others, query).sum(axis=1, dtype=np.float64), 1)
    distance: Array = 1 - shared / (2 - shared)
    return distance
