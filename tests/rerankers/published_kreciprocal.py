"""k-reciprocal encoding as published, dense and with loops: what the sparse form is checked against."""

from __future__ import annotations

import numpy as np


def final_distance(queries: np.ndarray, gallery: np.ndarray, k1: int, k2: int, mix: float) -> np.ndarray:
    """(Q, N) final distances; all queries are nodes of the graph together."""
    nodes = np.concatenate([queries, gallery]).astype(np.float32)
    distance = np.maximum(2 - 2 * nodes @ nodes.T, 0)
    np.fill_diagonal(distance, 0)
    scaled = (distance / distance.max(0)).T
    encoded = np.zeros_like(scaled)
    np.fill_diagonal(distance, -1)  # a node comes first in its own list
    rank = np.argsort(distance, axis=1, kind="stable")
    half = int(np.around(k1 / 2))

    def reciprocal(i: int, k: int) -> np.ndarray:
        forward = rank[i, : k + 1]
        return forward[(rank[forward, : k + 1] == i).any(1)]

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
        encoded = np.stack([encoded[rank[i, :k2]].mean(0) for i in range(len(nodes))])
    answer = np.empty((len(queries), len(gallery)), np.float32)
    for i in range(len(queries)):
        shared = np.minimum(encoded[i], encoded[len(queries) :]).sum(1)
        answer[i] = (1 - shared / (2 - shared)) * (1 - mix) + scaled[i, len(queries) :] * mix
    return answer
