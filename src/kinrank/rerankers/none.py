"""The first round as it is: the row that every other method is measured against."""

from __future__ import annotations

from kinrank.rerankers.base import Reranker
from kinrank.types import Array, Candidates


class NoRerank(Reranker):
    """Keeps the first-round order."""

    needs_vectors = False

    def score(self, candidates: Candidates) -> Array:
        """The scores that came in."""
        return candidates.scores
