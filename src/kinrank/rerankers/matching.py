"""Tentative matches between two sets of local features, as the geometric methods take them."""

from __future__ import annotations

import numpy as np

from kinrank.types import Array


def mutual_matches(query: Array, other: Array, ratio: float = 0.9) -> Array:
    """Pairs (m, 2) of rows of descriptors (n, D) and (n', D) that are each other's nearest.

    The nearest in `other` must also be nearer than `ratio` times the second nearest (Lowe 2004).
    """
    if len(query) == 0 or len(other) < 2:
        return np.zeros((0, 2), np.int64)
    query, other = unit_bytes(query), unit_bytes(other)
    similarities = query @ other.T  # (n, n')
    forth = similarities.argmax(axis=1)
    rows = np.arange(len(query))
    best = similarities[rows, forth]
    mutual = best == similarities.max(axis=0)[forth]  # several times faster than argmax down the columns
    similarities[rows, forth] = -1
    second = similarities.max(axis=1)
    near = 1 - best < ratio**2 * (1 - second)  # squared distances of unit vectors are 2 - 2 cos
    kept = rows[mutual & near]
    _, once = np.unique(forth[kept], return_index=True)  # equal descriptors: the first has the match
    kept = kept[np.sort(once)]
    return np.stack([kept, forth[kept]], axis=1)


def unit_bytes(descriptors: Array) -> Array:
    """Descriptors of bytes as float32 rows of length one."""
    rows = descriptors.astype(np.float32)
    lengths = np.sqrt(np.einsum("nd,nd->n", rows, rows))
    return rows / np.maximum(lengths, 1e-6)[:, None]
