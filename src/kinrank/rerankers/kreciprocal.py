"""Re-ranking by k-reciprocal encoding (Zhong 2017), in sparse form.

R(i, k) = {j among the first k+1 of i (i itself included) : i among the first k+1 of j}. R(i, k1) grows
by R(c, k1/2) for each c in it that shares more than 2/3 of that set. Items are described by
V_ij = exp(-D_ij) / sum over the grown set, averaged over the first k2 of i; D is the squared distance
over its row's largest. final = (1 - mix) * Jaccard distance of V + mix * D.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kinrank.rerankers import state
from kinrank.rerankers.base import Reranker
from kinrank.rerankers.encoding import encode, grown, half_of, jaccard, owners, reciprocal
from kinrank.rerankers.kreciprocal_gallery import Encoding
from kinrank.rerankers.limits import at_least_one, share
from kinrank.rerankers.nearest import first_of
from kinrank.types import Array, Candidates, GalleryLike, Ranking, stable_order

_BATCH = 128  # queries whose farthest items are sought together


class KReciprocal(Reranker):
    """k-reciprocal encoding (Zhong 2017): alike are those whose neighbours name each other.

    On a bare list the items are the query and its candidates; fitted to a gallery, neighbours come from
    all of it, as published, with one query at a time.
    """

    needs_vectors = False
    reports_harm = "where a query has one true match or few, and below rank 1 on small classes"

    def __init__(self, k1: int = 20, k2: int = 6, mix: float = 0.3) -> None:
        at_least_one(k1=k1, k2=k2)
        share(mix=mix)
        self.k1, self.k2, self.mix = k1, k2, mix
        self.gallery: GalleryLike | None = None
        self.encoding: Encoding | None = None

    def fit(self, gallery: GalleryLike) -> KReciprocal:
        """Take neighbours from the whole gallery from now on; its encoding is stored beside it."""
        self.encoding = Encoding.of(gallery, self.k1)
        self.gallery = gallery
        return self

    def score(self, candidates: Candidates) -> Array:
        """The final distance, negated."""
        if self.encoding is None or self.gallery is None or not candidates.has_vectors:
            return self._final(*self._within(candidates.affinity()))
        self._check_origin(candidates, self.encoding, self.gallery)
        (far,) = self.encoding.farthest(candidates.query[None], self.gallery)
        return self._final(*self.encoding.distances(candidates, self.k2, self.gallery, far))

    def rerank_many(self, lists: Iterable[Candidates]) -> list[Ranking]:
        """`rerank` for many queries; in a gallery, their farthest items are found in one search."""
        lists = list(lists)
        encoding, gallery = self.encoding, self.gallery
        if encoding is None or gallery is None or not all(c.has_vectors for c in lists) or not lists:
            return super().rerank_many(lists)
        for candidates in lists:
            self._check_origin(candidates, encoding, gallery)
        answers = []
        for start in range(0, len(lists), _BATCH):
            batch = lists[start : start + _BATCH]
            queries = np.stack([candidates.query for candidates in batch])
            for candidates, far in zip(batch, encoding.farthest(queries, gallery)):
                scores = self._final(*encoding.distances(candidates, self.k2, gallery, far))
                order = stable_order(scores)
                answers.append(Ranking(candidates.ids[order], scores[order]))
        return answers

    def _final(self, apart: Array, scaled: Array) -> Array:
        final: Array = -((1 - self.mix) * apart + self.mix * scaled)
        return final.astype(np.float32)

    def _within(self, table: Array) -> tuple[Array, Array]:
        """(Jaccard distance (K,), D (K,)) of a list alone."""
        lists = first_of(table, self.k1)
        half = reciprocal(lists, half_of(self.k1))
        support = grown(reciprocal(lists, self.k1), half, half.T.tocsr())
        largest = np.maximum(2 - 2 * table.min(axis=1), 1e-12)
        rows = owners(support)
        distances = np.maximum(2 - 2 * table[rows, support.indices], 0)
        encoded = encode(support, distances / largest[rows])
        near = lists[:, : self.k2]
        own = encoded[near[0]].mean(axis=0).A1
        columns = np.flatnonzero(own)  # the others add nothing to what is shared with the query
        described = encoded[:, columns].toarray()[near].mean(axis=1)
        scaled = np.maximum(2 - 2 * table[0, 1:], 0) / largest[0]
        return jaccard(own[columns], described[1:]), scaled

    def _check_origin(self, candidates: Candidates, encoding: Encoding, gallery: GalleryLike) -> None:
        state.require_current(gallery, encoding.revision, "kreciprocal")
        unknown = candidates.ids[encoding.graph.rows(candidates.ids) < 0]
        state.require_origin(gallery, unknown, candidates.vectors.shape[1], "kreciprocal")
