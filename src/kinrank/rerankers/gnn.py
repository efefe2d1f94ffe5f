"""k-reciprocal re-ranking as message passing on a graph (Zhang 2020, "GNN re-ranking").

A = 0/1 adjacency of the first k1 of each node (itself included). Twice: A <- A + A';
A_i <- sum over the first k2 of i of s_ij^2 A_j; rows to unit length.
score = (1 - mix) A_q.A_x + mix q.x. Nodes are the query and its candidates.
"""

from __future__ import annotations

import numpy as np

from kinrank.rerankers.base import Reranker
from kinrank.rerankers.limits import at_least_one, share
from kinrank.rerankers.nearest import first_of
from kinrank.types import Array, Candidates


class GNN(Reranker):
    """GNN re-ranking (Zhang 2020): nodes are described by their neighbours, and these descriptions spread."""

    needs_vectors = False
    reports_harm = "where a query has fewer than k2 true matches, and on classes much smaller than k1"

    def __init__(self, k1: int = 26, k2: int = 7, mix: float = 0.3) -> None:
        at_least_one(k1=k1, k2=k2)
        share(mix=mix)
        self.k1, self.k2, self.mix = k1, k2, mix

    def score(self, candidates: Candidates) -> Array:
        """The mixed cosines."""
        from scipy.sparse import csr_matrix

        table = candidates.affinity()
        size = len(table)
        lists = first_of(table, max(self.k1, self.k2) - 1)
        near, close = lists[:, : self.k1], lists[:, : self.k2]
        rows = np.arange(size)
        starts = rows[0] + np.arange(size + 1)
        adjacency = np.zeros((size, size), np.float32)
        adjacency[rows[:, None], near] = 1
        weights = np.take_along_axis(table, close, 1).astype(np.float32) ** 2
        starts = np.arange(size + 1) * close.shape[1]
        spread = csr_matrix((weights.ravel(), close.ravel(), starts), shape=(size, size))
        for _ in range(2 if self.k2 > 1 else 0):
            adjacency = spread @ (adjacency + adjacency.T)
            lengths = np.sqrt(np.einsum("nm,nm->n", adjacency, adjacency))
            adjacency /= np.maximum(lengths, 1e-12)[:, None]
        lengths = np.sqrt(np.einsum("nm,nm->n", adjacency, adjacency))
        alike = adjacency @ adjacency[0] / np.maximum(lengths * lengths[0], 1e-12)
        mixed: Array = (1 - self.mix) * alike + self.mix * table[0]
        return mixed[1:]
