"""k-reciprocal encoding in its published form, dense and with loops: what the sparse form stands against."""

from __future__ import annotations

import numpy as np

from kinrank.types import Array


def final_distance(queries: Array, gallery: Array, k1: int, k2: int, mix: float) -> Array:
    """(Q, N) final distances; all queries are nodes of the graph together. Holds several (Q + N)^2."""
    nodes = np.concatenate([queries, gallery]).astype(np.float32)
    distance = np.maximum(2 - 2 * nodes @ nodes.T, 0)
    np.fill_diagonal(distance, -1)  # a node comes first in its own list
    rank = np.argsort(distance, axis=1).astype(np.int32)
    np.fill_diagonal(distance, 0)
    scaled = (distance / distance.max(0)).T
    half = int(np.around(k1 / 2))

    def reciprocal(i: int, k: int) -> Array:
        forward = rank[i, : k + 1]
        return forward[(rank[forward, : k + 1] == i).any(1)]

    encoded = np.zeros_like(scaled)
    for i in range(len(nodes)):
        near = reciprocal(i, k1)
        expansion = near
        for candidate in near:
            theirs = reciprocal(candidate, half)
            if len(np.intersect1d(theirs, near)) > 2 / 3 * len(theirs):
                expansion = np.append(expansion, theirs)
        expansion = np.unique(expansion)
        weight = np.exp(-scaled[i, expansion])
        encoded[i, expansion] = weight / weight.sum()
    if k2 != 1:
        averaged = np.zeros_like(encoded)
        for i in range(len(nodes)):
            averaged[i] = encoded[rank[i, :k2]].mean(0)
        encoded = averaged
    containing = [np.flatnonzero(encoded[:, i]) for i in range(len(nodes))]
    answer = np.empty((len(queries), len(gallery)), np.float32)
    for i in range(len(queries)):
        shared = np.zeros(len(nodes), np.float32)
        for j in np.flatnonzero(encoded[i]):
            shared[containing[j]] += np.minimum(encoded[i, j], encoded[containing[j], j])
        apart = 1 - shared / (2 - shared)
        answer[i] = (apart * (1 - mix) + scaled[i] * mix)[len(queries) :]
    return answer
