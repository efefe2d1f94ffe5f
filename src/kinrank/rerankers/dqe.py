"""Discriminative query expansion (Arandjelovic, Zisserman 2012): the query becomes the normal of a plane.

A linear SVM parts the query and its first k neighbours from the last `negatives` of the list;
q' = norm(sum_i a_i y_i f_i), and the second search ranks by q'.x, the signed distance up to a shift
and a scale.
"""

from __future__ import annotations

import numpy as np

from kinrank.rerankers.expansion import QueryExpansion
from kinrank.rerankers.limits import at_least_one, positive
from kinrank.rerankers.separation import normal
from kinrank.types import Array, Candidates


class DQE(QueryExpansion):
    """Discriminative query expansion: a linear SVM of the first against the last of the list."""

    reports_harm = "where a query has fewer than k true matches, or the list ends before its true matches do"

    def __init__(self, k: int = 5, negatives: int = 200, c: float = 1.0) -> None:
        super().__init__(k)
        at_least_one(negatives=negatives)
        positive(c=c)
        self.negatives = negatives
        self.c = c

    def expand(self, candidates: Candidates) -> Array:
        """The plane's normal (d,), of unit length; the query where the list is too short for negatives."""
        positive = min(self.k, len(candidates) - 1)
        negative = min(self.negatives, len(candidates) - 1 - positive)
        if negative < 1:
            return candidates.query
        points = np.concatenate(
            [candidates.query[None], candidates.vectors[:positive], candidates.vectors[-negative:]]
        )
        signs = np.r_[np.ones(positive + 1), -np.ones(negative)]
        moved = normal(points, signs, self.c).astype(np.float32)
        length = float(np.linalg.norm(moved))
        return moved / length if length > 1e-6 else candidates.query
