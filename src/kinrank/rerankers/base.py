"""What every re-ranking method shares: the head is permuted and the tail kept here, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from kinrank.errors import InputError
from kinrank.types import Array, Candidates, GalleryLike, Ranking, stable_order


class Reranker:
    """One method. A subclass writes `score`; a few (query expansion, chains) write `relist` instead."""

    extra: ClassVar[str | None] = None  # the optional dependency group that the method needs
    needs_vectors: ClassVar[bool] = True  # False: similarities alone are enough
    needs_fit: ClassVar[bool] = False  # True: `fit(gallery)` comes before `rerank`
    reports_harm: ClassVar[str | None] = None  # one sentence on when the method lowers the answer

    def score(self, candidates: Candidates) -> Array:
        """New scores (K,), higher is better, in the order of the candidates."""
        raise NotImplementedError

    def relist(self, candidates: Candidates) -> Candidates:
        """The list that the next stage of a chain sees.

        Here the same candidates in their new order. Query expansion with a gallery searches again and
        may bring ids that were not in the list; database augmentation hands on augmented vectors.
        """
        scores = falling(candidates, self.score(candidates))
        order = stable_order(scores)
        return candidates.take(order, scores[order])

    def rerank(self, candidates: Candidates) -> Ranking:
        """The same ids in a better order; ids that a second search brought are for `relist` alone."""
        self.check(candidates)
        answer = self.relist(candidates)
        if len(answer) == len(candidates) and np.array_equal(np.sort(answer.ids), np.sort(candidates.ids)):
            return Ranking(answer.ids, answer.scores)
        return _restricted(answer, candidates)

    def rerank_many(self, lists: Iterable[Candidates]) -> list[Ranking]:
        """`rerank` for many queries; methods that can batch do."""
        return [self.rerank(candidates) for candidates in lists]

    def fit(self, gallery: GalleryLike) -> Reranker:
        """Methods that work on the list alone learn nothing from the gallery."""
        return self

    def with_query(self, query: Any) -> Reranker:
        """The method for one query whose picture is at hand; those that look at vectors alone do not care."""
        return self

    def passes_on(self, gallery: GalleryLike) -> GalleryLike:
        """The gallery that later stages of a chain are fitted to; database augmentation hands on its own."""
        return gallery

    def check(self, candidates: Candidates) -> None:
        """Refuse a list that the method cannot read."""
        if self.needs_vectors and not candidates.has_vectors:
            raise InputError(
                f"{type(self).__name__} needs vectors, but this list is known by its similarities alone; "
                "cure: give query and vectors, or take a method that reads similarities (csa, affinity)"
            )


def falling(candidates: Candidates, scores: Array) -> Array:
    """Scores as float32 (K,), checked."""
    scores = np.asarray(scores, dtype=np.float32)
    if scores.shape != (len(candidates),):
        raise InputError(f"a method returned scores of shape {scores.shape} for {len(candidates)} candidates")
    if not np.isfinite(scores).all():
        raise InputError(f"a method returned {scores[~np.isfinite(scores)][0]} as a score")
    return scores


def _restricted(answer: Candidates, candidates: Candidates) -> Ranking:
    """The order of `answer` for the ids that were asked for; those it lost follow in their old order."""
    kept = np.isin(answer.ids, candidates.ids)
    lost = ~np.isin(candidates.ids, answer.ids)
    scores = answer.scores[kept]
    floor = scores[-1] if len(scores) else np.float32(0)
    return Ranking(
        np.concatenate([answer.ids[kept], candidates.ids[lost]]),
        np.concatenate([scores, below(candidates.scores[lost], floor)]),
    )


def below(tail: Array, floor: np.float32) -> Array:
    """Scores of a tail, shifted to lie under the head's worst so that the whole list falls."""
    return tail if len(tail) == 0 or tail[0] <= floor else floor + (tail - tail[0])


def rerank_head(method: Reranker, candidates: Candidates, k: int | None = None) -> Ranking:
    """Re-rank the first k and leave the rest behind them as they were."""
    return with_tail(method.rerank(candidates.head(k)), candidates)


def with_tail(head: Ranking, candidates: Candidates) -> Ranking:
    """A re-ranked head, followed by the candidates beyond it in their first order."""
    if len(head) == len(candidates):
        return head
    tail = slice(len(head), None)
    return Ranking(
        np.concatenate([head.ids, candidates.ids[tail]]),
        np.concatenate([head.scores, below(candidates.scores[tail], head.scores[-1])]),
    )
