"""Contextual similarity aggregation (CSA): a set transformer reads how the list's items stand to each other.

Ouyang et al., NeurIPS 2021. Here only the runtime: the trained graph goes from similarities to scores
(`kinrank train` writes it), and needs neither torch nor vectors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from kinrank.errors import SpecError
from kinrank.rerankers.base import Reranker, falling, with_tail
from kinrank.rerankers.learned import LearnedModel
from kinrank.types import Array, Candidates, Ranking, stable_order

BATCH_NUMBERS = 4_000_000  # similarities in one call of the graph: 16 MB of float32


class CSA(Reranker):
    """A transformer over the list's similarities, trained; works on any embedding."""

    needs_vectors = False
    reports_harm = "where the list holds no true match, or the model was trained on too little"

    def __init__(self, model: str = "csa", limit: int = 2048, device: str = "auto") -> None:
        if limit < 2:
            raise SpecError(f"limit must be at least 2 candidates, got {limit}")
        self.learned = LearnedModel(model, "csa", device)
        self.limit = limit  # beyond it the head is re-ranked and the tail kept

    def similarities(self, candidates: Candidates) -> Array:
        """What the graph reads of a list: (1+K, 1+K), or its first columns where the model needs no more."""
        columns = self.learned.config.get("columns")
        if columns is None or columns > len(candidates) or not candidates.has_vectors:
            table = candidates.affinity()
            return table if columns is None else table[:, :columns]
        nodes = np.concatenate([candidates.query[None], candidates.vectors])
        return nodes @ nodes[:columns].T

    def score(self, candidates: Candidates) -> Array:
        """The graph's scores; a list of one stays as it is."""
        if len(candidates) == 1:
            return candidates.scores
        return self._run([candidates])[0]

    def relist(self, candidates: Candidates) -> Candidates:
        """The head in its new order; what lies beyond the limit follows as it was."""
        if len(candidates) <= self.limit:
            return super().relist(candidates)
        head = candidates.head(self.limit)
        scores = falling(head, self.score(head))
        order = stable_order(scores)
        whole = with_tail(Ranking(head.ids[order], scores[order]), candidates)
        return candidates.take(np.concatenate([order, np.arange(self.limit, len(candidates))]), whole.scores)

    def rerank_many(self, lists: Iterable[Candidates]) -> list[Ranking]:
        """Lists of one length go through the graph together."""
        lists = list(lists)
        answers: list[Ranking | None] = [None] * len(lists)
        by_length: dict[int, list[int]] = defaultdict(list)
        for position, candidates in enumerate(lists):
            self.check(candidates)
            by_length[min(len(candidates), self.limit)].append(position)
        for length, positions in by_length.items():
            step = max(1, BATCH_NUMBERS // (length + 1) ** 2)
            for start in range(0, len(positions), step):
                part = positions[start : start + step]
                heads = [lists[p].head(self.limit) for p in part]
                rows = [c.scores for c in heads] if length == 1 else self._run(heads)
                for p, head, scores in zip(part, heads, rows):
                    scores = falling(head, scores)
                    order = stable_order(scores)
                    answers[p] = with_tail(Ranking(head.ids[order], scores[order]), lists[p])
        return [answer for answer in answers if answer is not None]

    def _run(self, lists: list[Candidates]) -> Array:
        """Scores (B, K) of lists of one length."""
        tables = [self.similarities(c) for c in lists]
        return self.learned.run(similarities=np.stack(tables) if len(tables) > 1 else tables[0][None])
