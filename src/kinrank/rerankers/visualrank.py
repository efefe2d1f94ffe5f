"""VisualRank (Jing, Baluja 2008): a random walk over the list that starts again at the query.

v = d S v + (1 - d) p, with p all on the query: the personalised PageRank of the query in its own answer.
S_ij = max(0, cos_ij)^gamma where i and j are among each other's k nearest, columns summing to one. The
paper's similarity counts matches of local features and is zero for most pairs; cosines are not, so
the graph is cut to mutual neighbours here (the full table is k >= K, and favours what is common).
"""

from __future__ import annotations

import numpy as np

from kinrank.errors import SpecError
from kinrank.rerankers.base import Reranker
from kinrank.rerankers.limits import at_least_one, positive
from kinrank.rerankers.manifold import mutual_graph
from kinrank.rerankers.nearest import first_of
from kinrank.types import Array, Candidates

_CLOSE = 1e-7  # of the mass may still move when the iteration stops


class VisualRank(Reranker):
    """VisualRank (Jing 2008): candidates that a random walk from the query visits often come first."""

    needs_vectors = False
    reports_harm = "where k is far above a query's true matches: the walk then favours whatever is common"

    def __init__(self, damping: float = 0.85, gamma: float = 6.0, k: int = 20) -> None:
        if not 0 <= damping < 1:
            raise SpecError(f"damping must be at least 0 and less than 1, got {damping}")
        positive(gamma=gamma)
        at_least_one(k=k)
        self.damping, self.gamma, self.k = damping, gamma, k

    def score(self, candidates: Candidates) -> Array:
        """The stationary visits of the candidates."""
        table = candidates.affinity()
        size = len(table)
        near = first_of(table, self.k)[:, 1:]
        weights = mutual_graph(near, np.take_along_axis(table, near, 1), self.gamma)
        sums = np.asarray(weights.sum(axis=0)).ravel()
        walk = weights.multiply(1 / np.where(sums > 0, sums, 1)).tocsr()  # columns sum to one
        begin = np.zeros(size, np.float32)
        begin[0] = 1 - self.damping
        visits = begin
        # What has not arrived after n rounds weighs damping^n.
        rounds = int(np.ceil(np.log(_CLOSE) / np.log(self.damping))) if self.damping > 0 else 0
        for _ in range(rounds):
            following = self.damping * (walk @ visits) + begin
            moved = float(np.abs(following - visits).sum())
            visits = following
            if moved < _CLOSE:
                break
        return visits[1:].astype(np.float32)
