"""Graph convolution re-ranking (Zhang 2023, GCR): features flow along the neighbour graph, a few times.

Repeat: S_ij = exp(u_i.u_j / beta) for j in the first k of i (i itself included);
U <- norm(D_r^-1/2 S D_c^-1/2 U) with row sums D_r and column sums D_c. Then cosines to the query.
Nodes are the query and its candidates. The paper's camera terms have no meaning here.
"""

from __future__ import annotations

import numpy as np

from kinrank.rerankers.base import Reranker
from kinrank.rerankers.limits import at_least_one, positive
from kinrank.rerankers.nearest import first_of
from kinrank.types import Array, Candidates


class GCR(Reranker):
    """Graph convolution re-ranking (Zhang 2023): vectors are smoothed over their neighbours, in rounds."""

    reports_harm = "where classes have fewer than k images: rounds of smoothing merge them with others"

    def __init__(self, k: int = 15, beta: float = 0.2, rounds: int = 3) -> None:
        at_least_one(k=k, rounds=rounds)
        positive(beta=beta)
        self.k, self.beta, self.rounds = k, beta, rounds

    def score(self, candidates: Candidates) -> Array:
        """Cosines of the smoothed vectors."""
        nodes = np.concatenate([candidates.query[None], candidates.vectors])
        for _ in range(self.rounds):
            nodes = self.smoothed(nodes)
        return nodes[1:] @ nodes[0]

    def smoothed(self, nodes: Array) -> Array:
        """One round: unit vectors (n, d) to unit vectors (n, d)."""
        from scipy.sparse import csr_matrix

        table = nodes @ nodes.T
        near = first_of(table, self.k - 1)
        size, k = near.shape
        # Over the row's largest, so that a small beta does not overflow; S is scaled alike by it.
        weights = np.exp((np.take_along_axis(table, near, 1) - 1) / np.float32(self.beta))
        weights = weights.astype(np.float32)
        columns = np.bincount(near.ravel(), weights.ravel(), size)
        weights /= np.sqrt(np.maximum(weights.sum(1, keepdims=True), 1e-30))
        weights /= np.sqrt(np.maximum(columns, 1e-30)).astype(np.float32)[near]
        starts = np.arange(size + 1) * k
        moved = csr_matrix((weights.ravel(), near.ravel(), starts), shape=(size, size)) @ nodes
        lengths = np.sqrt(np.einsum("nd,nd->n", moved, moved))[:, None]
        smooth: Array = np.where(lengths > 1e-12, moved / np.maximum(lengths, 1e-12), nodes)
        return smooth
