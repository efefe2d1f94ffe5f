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
    others = np.array(table)  # one copy, sorted in place: large new arrays cost more than the work on them
    np.fill_diagonal(others, -np.inf)
    others.partition(size - k, axis=1)
    at_least = table >= others[:, size - k, None]
    np.fill_diagonal(at_least, False)
    tied = np.flatnonzero(np.count_nonzero(at_least, axis=1) > k)
    if len(tied):  # rows with ties at the bound are sorted whole, below
        at_least[tied, k:], at_least[tied, :k] = False, True
    columns = (np.flatnonzero(at_least) % size).reshape(size, k)
    order = np.argsort(-np.take_along_axis(table, columns, 1), axis=1, kind="stable")
    lists[:, 1:] = np.take_along_axis(columns, order, 1)
    if len(tied):
        rows = np.array(table[tied])
        rows[np.arange(len(tied)), tied] = -np.inf
        lists[tied, 1:] = np.argsort(-rows, axis=1, kind="stable")[:, :k]
    return lists
