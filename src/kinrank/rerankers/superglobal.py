"""SuperGlobal re-ranking (Shao 2023): global vectors only, refined by their neighbours in the list.

F = the first m vectors; d_i = (f_i + beta sum_j s_ij f_j) / (1 + beta sum_j s_ij) over the k nearest of
i in F; s1_i = q.d_i; b = element-wise maximum over d of the `best` by s1; score = (s1_i + b.d_i) / 2.
As published, d is not brought to unit length and the query is not moved. Beyond m the order is kept.
"""

from __future__ import annotations

import numpy as np

from kinrank.errors import SpecError
from kinrank.rerankers.base import Reranker, below
from kinrank.rerankers.limits import at_least_one
from kinrank.rerankers.nearest import first_of
from kinrank.types import Array, Candidates, stable_order


class SuperGlobal(Reranker):
    """SuperGlobal (Shao 2023): vectors refined by their neighbours, against query and a pooled best."""

    reports_harm = "where a query has fewer than ten true matches: the pooled best then holds strangers"

    def __init__(self, m: int = 400, k: int = 9, beta: float = 0.15, best: int = 10) -> None:
        at_least_one(m=m, k=k, best=best)
        if beta < 0:
            raise SpecError(f"beta must not be negative, got {beta}")
        self.m, self.k, self.beta, self.best = m, k, beta, best

    def score(self, candidates: Candidates) -> Array:
        """The mean of both similarities; the tail beyond m shifted below."""
        vectors, query = candidates.vectors[: self.m], candidates.query
        refined = self.refined(vectors)
        first = refined @ query
        pooled = refined[stable_order(first)[: self.best]].max(axis=0)
        scores = (first + refined @ pooled) / 2
        tail = below(candidates.scores[self.m :], np.float32(scores.min()))
        return np.concatenate([scores, tail])

    def refined(self, vectors: Array) -> Array:
        """d (m, d): each vector averaged with its k nearest, weighed by beta times their cosine."""
        from scipy.sparse import csr_matrix

        table = vectors @ vectors.T
        near = first_of(table, self.k)[:, 1:]
        size, k = near.shape
        weights = np.float32(self.beta) * np.take_along_axis(table, near, 1)
        starts = np.arange(size + 1) * k
        spread = csr_matrix((weights.ravel(), near.ravel(), starts), shape=(size, size))
        total = 1 + weights.sum(1)
        # Opposite neighbours could make the sum of weights vanish; then the vector stays as it is.
        sound = total > 1e-3
        refined: Array = (vectors + spread @ vectors) / np.where(sound, total, 1)[:, None]
        return np.where(sound[:, None], refined, vectors)
