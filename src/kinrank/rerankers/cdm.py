"""Contextual dissimilarity (Jegou 2007): distances are scaled until every item has neighbours as near.

d_ij = |x_i - x_j|; r_i = mean of delta_i delta_j d_ij over the k nearest of i so scaled, itself
excluded; rbar = the geometric mean of r; delta_i <- delta_i (rbar / r_i)^(1/2), until
max |r_i - rbar| is small or `iterations` are done. The answer ranks by delta_x |q - x|; the query's own
delta moves all scores alike. One iteration ranks as the non-iterative form d_qx / sqrt(r_x) (NICDM).
"""

from __future__ import annotations

import numpy as np

from kinrank.rerankers.base import Reranker
from kinrank.rerankers.limits import at_least_one
from kinrank.types import Array, Candidates

_CLOSE = 1e-3  # relative difference of r_i from rbar at which the iteration has converged


class CDM(Reranker):
    """Contextual dissimilarity (Jegou 2007): hubs are moved away, items in sparse regions nearer."""

    needs_vectors = False
    reports_harm = "wherever the list ends in isolated distractors, which it brings nearer: it is no default"

    def __init__(self, k: int = 10, iterations: int = 1) -> None:
        at_least_one(k=k, iterations=iterations)
        self.k, self.iterations = k, iterations

    def score(self, candidates: Candidates) -> Array:
        """The scaled distance to the query, negated."""
        table = candidates.affinity()
        to_query = np.sqrt(np.maximum(2 - 2 * table[0, 1:], 0))
        size = len(table) - 1
        k = min(self.k, size - 1)
        if k < 1:
            return -to_query
        similar = np.array(table[1:, 1:])
        np.fill_diagonal(similar, -np.inf)  # nobody is his own neighbour
        delta = np.ones(size, np.float32)
        for turn in range(self.iterations):
            if turn == 0:  # all deltas are one: the nearest are the most similar
                nearest = np.partition(similar, size - k, axis=1)[:, size - k :]
                nearest = np.sqrt(np.maximum(2 - 2 * nearest, 0))
            else:
                distances = np.sqrt(np.maximum(2 - 2 * similar, 0))
                nearest = np.partition(distances * delta[:, None] * delta, k - 1, axis=1)[:, :k]
            r = nearest.mean(axis=1, dtype=np.float64)
            # Copies of one image have r = 0: they are as near as it gets, and stay finite.
            r = np.maximum(r, 1e-6 * max(float(r.max()), 1e-6))
            mean = np.exp(np.log(r).mean())
            if np.abs(r - mean).max() < _CLOSE * mean:
                break
            delta = (delta * np.sqrt(mean / r)).astype(np.float32)
        scores: Array = -to_query * delta
        return scores
