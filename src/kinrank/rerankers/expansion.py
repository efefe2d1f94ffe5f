"""Query expansion: the query moves towards its first neighbours and asks again.

q' = norm(q + sum_{i <= k} w_i x_i) over the k nearest x_i; the second search ranks by q'.x.
Fitted to a gallery, the second search is over all of it; otherwise it is over the list.
"""

from __future__ import annotations

import numpy as np

from kinrank.errors import SpecError
from kinrank.rerankers.base import Reranker
from kinrank.types import Array, Candidates, GalleryLike


class QueryExpansion(Reranker):
    """What the expansions share; each says only how its neighbours weigh."""

    gallery: GalleryLike | None = None

    def __init__(self, k: int) -> None:
        if k < 1:
            raise SpecError(f"k must be at least 1, got {k}")
        self.k = k

    def weights(self, similarities: Array) -> Array:
        """Weights (k,) of the neighbours, given their similarities to the query, best first."""
        raise NotImplementedError

    def expand(self, candidates: Candidates) -> Array:
        """The moved query (d,), of unit length."""
        neighbours = candidates.vectors[: self.k]
        moved: Array = candidates.query + self.weights(neighbours @ candidates.query) @ neighbours
        length = float(np.linalg.norm(moved))
        return moved / length if length > 1e-6 else candidates.query

    def fit(self, gallery: GalleryLike) -> QueryExpansion:
        """Let the second search run over the whole gallery."""
        self.gallery = gallery
        return self

    def score(self, candidates: Candidates) -> Array:
        """q'.x within the list."""
        return candidates.vectors @ self.expand(candidates)

    def relist(self, candidates: Candidates) -> Candidates:
        """Search the gallery again with the moved query; the list keeps its length and the first query."""
        if self.gallery is None:
            return super().relist(candidates)
        found = self.gallery.search(self.expand(candidates), k=len(candidates))
        return Candidates(found.ids, found.scores, found.vectors, candidates.query)


class AQE(QueryExpansion):
    """Average query expansion (Chum 2007): every neighbour weighs one."""

    reports_harm = "where a query has fewer than k true matches"

    def __init__(self, k: int = 3) -> None:
        super().__init__(k)

    def weights(self, similarities: Array) -> Array:
        """All one."""
        return np.ones_like(similarities)


class AQEwD(QueryExpansion):
    """Average query expansion with decay (Gordo 2017): weights fall linearly with the rank."""

    reports_harm = "where a query has fewer than k/2 true matches"

    def __init__(self, k: int = 5) -> None:
        super().__init__(k)

    def weights(self, similarities: Array) -> Array:
        """(k - i) / k for i = 0 ... k-1."""
        return ((self.k - np.arange(len(similarities))) / self.k).astype(np.float32)


class AlphaQE(QueryExpansion):
    """Alpha query expansion (Radenovic 2019): a neighbour weighs its similarity to the power alpha."""

    reports_harm = "where a query has fewer than k true matches; at the published k of 50 mP@1 falls much"

    def __init__(self, k: int = 50, alpha: float = 3.0) -> None:
        super().__init__(k)
        if alpha < 0:
            raise SpecError(f"alpha must not be negative, got {alpha}")
        self.alpha = alpha

    def weights(self, similarities: Array) -> Array:
        """max(0, s)^alpha: clipped, since a negative base would subtract or give NaN."""
        return np.maximum(similarities, 0) ** np.float32(self.alpha)
