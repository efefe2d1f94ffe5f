"""Methods one after the other: each sees the former's ranking with the original vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kinrank.rerankers.base import Reranker
from kinrank.types import Array, Candidates, GalleryLike


class Chain(Reranker):
    """Several stages, left to right, as `+` in a spec."""

    def __init__(self, stages: Sequence[Reranker]) -> None:
        self.stages = list(stages)

    @property
    def needs_fit(self) -> bool:  # type: ignore[override]
        """True when any stage does."""
        return any(stage.needs_fit for stage in self.stages)

    def check(self, candidates: Candidates) -> None:
        """Every stage must be able to read the list."""
        for stage in self.stages:
            stage.check(candidates)

    def fit(self, gallery: GalleryLike) -> Chain:
        """Fit the stages in order, each to the gallery that the former passes on."""
        for i, stage in enumerate(self.stages):
            self.stages[i] = stage.fit(gallery)
            gallery = self.stages[i].passes_on(gallery)
        return self

    def passes_on(self, gallery: GalleryLike) -> GalleryLike:
        """What the last stage passes on."""
        for stage in self.stages:
            gallery = stage.passes_on(gallery)
        return gallery

    def with_query(self, query: Any) -> Chain:
        """Every stage is told."""
        return Chain([stage.with_query(query) for stage in self.stages])

    def score(self, candidates: Candidates) -> Array:
        """Not used: a chain hands lists on."""
        raise NotImplementedError

    def relist(self, candidates: Candidates) -> Candidates:
        """The last stage's list."""
        for stage in self.stages:
            candidates = stage.relist(candidates)
        return candidates
