"""The nearest of each node in a short list, from its table of similarities."""

from __future__ import annotations

import numpy as np

from kinrank.types import Array


def first_of(table: Array, k: int) -> Array:
    """(n, min(k + 1, n)) of a table (n, n): each node and its k nearest."""
    size = len(table)
    k = min(k, size - 1)
    lists = np.empty((size, k + 1), np.int64)
    lists[:, 0] = np.arange(size)
    if k == 0:
        return lists
    others = np.array(table)
    np.fill_diagonal(others, -np.inf)
    bound = np.partition(others, size - k, axis=1)[:, size - k]
    at_least = others >= bound[:, None]
    tied = at_least.sum(1) > k  # rows with ties at the bound are sorted whole
    at_least[tied, k:], at_least[tied, :k] = False, True
    columns = (np.flatnonzero(at_least) % size).reshape(size, k)
    order = np.argsort(-np.take_along_axis(others, columns, 1), axis=1, kind="stable")
    lists[:, 1:] = np.take_along_axis(columns, order, 1)
    if tied.any():
        lists[tied, 1:] = np.argsort(-others[tied], axis=1, kind="stable")[:, :k]
    return lists
