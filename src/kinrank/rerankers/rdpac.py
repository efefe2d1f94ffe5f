"""Rank diffusion with assured convergence (Pedronette 2021, RDPAC): ranks alone, no vectors.

1. w_ij = p1^rank_i(j) within the first m of i, the node itself at rank 0; W + W' is sorted again:
   reciprocal neighbours come first.
2. T_ij = p2^rank_i(j) within the first k of the new lists, columns summing to one.
3. P = T; `rounds` times: P <- alpha * keep_m(P T') + (1 - alpha) I, columns to sum one, where keep_m
   leaves the m largest of a row.
4. Answer: the query's row of P^3.

Re-derived from a description of the paper; its reference code was not read. Step 3 multiplies by the
sparse transition matrix T. Nodes are the query and the first m - 1 candidates; the tail keeps its order.
"""

from __future__ import annotations

import numpy as np

from kinrank.errors import SpecError
from kinrank.rerankers.base import Reranker, below
from kinrank.rerankers.limits import at_least_one
from kinrank.rerankers.nearest import first_of
from kinrank.types import Array, Candidates


class RDPAC(Reranker):
    """Rank diffusion (Pedronette 2021): lists that name each other early strengthen each other."""

    needs_vectors = False
    reports_harm = "where classes are much smaller than k, and on lists whose order is mostly noise"

    def __init__(
        self,
        m: int = 400,
        k: int = 15,
        p1: float = 0.97,
        p2: float = 0.75,
        alpha: float = 0.95,
        rounds: int = 15,
    ) -> None:
        at_least_one(m=m, k=k, rounds=rounds)
        for name, share in (("p1", p1), ("p2", p2), ("alpha", alpha)):
            if not 0 < share < 1:
                raise SpecError(f"{name} must lie between 0 and 1, got {share}")
        self.m, self.k, self.p1, self.p2, self.alpha, self.rounds = m, k, p1, p2, alpha, rounds

    def score(self, candidates: Candidates) -> Array:
        """The query's row of P^3; the tail beyond m shifted below."""
        nodes = min(self.m, len(candidates) + 1)
        head = (
            candidates.affinity()[:nodes, :nodes] if not candidates.has_vectors else self._table(candidates)
        )
        final = self.diffused(self.transition(head))
        answer = ((final[0] @ final) @ final)[1:]
        tail = below(candidates.scores[nodes - 1 :], np.float32(answer.min() if len(answer) else 0))
        return np.concatenate([answer, tail])

    def _table(self, candidates: Candidates) -> Array:
        rows = np.concatenate([candidates.query[None], candidates.vectors[: self.m - 1]])
        return rows @ rows.T

    def transition(self, table: Array) -> Array:
        """T (n, n): dense, with k entries a row."""
        size = len(table)
        lists = first_of(table, size - 1)
        weights = np.empty((size, size), np.float32)
        np.put_along_axis(weights, lists, np.float32(self.p1) ** np.arange(size, dtype=np.float32)[None], 1)
        again = first_of(weights + weights.T, min(self.k, size) - 1)
        steps = np.zeros((size, size), np.float32)
        np.put_along_axis(
            steps, again, np.float32(self.p2) ** np.arange(again.shape[1], dtype=np.float32)[None], 1
        )
        return unit_columns(steps)

    def diffused(self, transition: Array) -> Array:
        """P (n, n) after all rounds."""
        from scipy.sparse import csr_matrix

        sparse = csr_matrix(transition)
        p = transition
        for _ in range(self.rounds):
            # keep_m has nothing to drop: a row has no more than m entries.
            p = np.float32(self.alpha) * (sparse @ p.T).T
            p[np.diag_indices(len(p))] += np.float32(1 - self.alpha)
            p = unit_columns(p)
        return p


def unit_columns(matrix: Array) -> Array:
    """Columns that sum to one; an empty column stays empty."""
    sums = matrix.sum(axis=0)
    scaled: Array = matrix / np.where(sums > 0, sums, 1)
    return scaled
