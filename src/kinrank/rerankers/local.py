"""What the geometric methods share: where local features come from, and how their word is weighed.

A list of candidates holds vectors, and geometry needs pictures. So a geometric method is made complete in
two steps, and `rerank` stays as it is:

- the candidates' features: `ransac:features=FOLDER`, or the folder beside the gallery given to
  `fit(gallery)`; they are looked up by id;
- the query's: `method.with_query(image)` returns a copy that belongs to this one query (a path, a PIL
  image, an array, or features that are already there). `kinrank search` and the web page do it for every
  method; those that look at vectors alone return themselves, and a chain asks each of its stages.

    method = kinrank.reranker("ransac").fit(gallery)
    method.with_query("query.jpg").rerank(gallery.search(vector, 1024))
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from kinrank.errors import InputError, SpecError
from kinrank.features.local import LocalFeatures, LocalStore, companion, extractor
from kinrank.rerankers.base import Reranker
from kinrank.types import Array, Candidates, GalleryLike


class LocalReranker(Reranker):
    """Verifies the first `top` candidates; a subclass counts what of a pair agrees (`agreement`)."""

    extra: ClassVar[str | None] = "local"
    needs_vectors = False
    name: ClassVar[str] = ""
    kind: ClassVar[str] = "rootsift"
    reports_harm = "where the floor is set so low that chance agreement counts"

    def __init__(
        self,
        features: str | Mapping[str, LocalFeatures] | None = None,
        top: int = 100,
        floor: int = 15,
        weight: float = 2.0,
        half: float = 60.0,
    ) -> None:
        if top < 1 or floor < 1:
            raise SpecError(f"top and floor must be at least 1, got {top} and {floor}")
        if weight < 0 or half <= 0:
            raise SpecError(f"weight must not be negative and half positive, got {weight} and {half}")
        self.top, self.floor, self.weight, self.half = top, floor, weight, half
        self.store = LocalStore.open(features) if isinstance(features, str | Path) else features
        self.query: LocalFeatures | None = None

    def agreement(self, query: LocalFeatures, other: LocalFeatures) -> int:
        """How many local features of the two pictures agree on one geometric transformation."""
        raise NotImplementedError

    def least(self, counts: Array) -> float:
        """The agreement that is more than chance, given the agreements of a list."""
        return self.floor

    def fit(self, gallery: GalleryLike) -> Self:
        """Take the features from the folder beside the gallery, unless the constructor named another."""
        if self.store is None:
            location = getattr(gallery, "location", None)
            if location is None or not companion(location, self.kind).is_dir():
                raise InputError(f"{self.name} finds no local features beside this gallery; {self._cure()}")
            self.store = LocalStore.open(companion(location, self.kind))
        return self

    def with_query(self, query: Any) -> Self:
        """A copy for one query: its picture, or its local features."""
        made = copy.copy(self)
        made.query = query if isinstance(query, LocalFeatures) else self._extract(query)
        return made

    def check(self, candidates: Candidates) -> None:
        """Refuse to rank without the features of the query and of at least one candidate."""
        super().check(candidates)
        if self.store is None:
            raise InputError(f"{self.name} has no local features of the candidates; {self._cure()}")
        if self.query is None:
            raise InputError(
                f"{self.name} has no local features of the query; "
                "cure: method.with_query(IMAGE).rerank(candidates), as kinrank search GALLERY IMAGE does"
            )
        if not any(str(key) in self.store for key in candidates.ids[: self.top]):
            raise InputError(
                f"{self.name}: none of the candidates (first id {candidates.ids[0]!s}) has local features; "
                + self._cure()
            )

    def agreements(self, candidates: Candidates) -> Array:
        """Agreement (K,) of each candidate with the query; 0 beyond `top` and where features are missing."""
        self.check(candidates)
        assert self.store is not None and self.query is not None
        counts = np.zeros(len(candidates), np.int64)
        for place, key in enumerate(candidates.ids[: self.top]):
            if str(key) in self.store:
                counts[place] = self.agreement(self.query, self.store[str(key)])
        return counts

    def score(self, candidates: Candidates) -> Array:
        """The first score s, raised by weight x spread x tanh(n / half) where n >= `least` features agree.

        The spread is that of the scores within `top`, so the sum means the same whatever a former method
        scores in. Below that agreement is chance, and the candidate keeps its score.
        """
        scores = candidates.scores
        counts = self.agreements(candidates)
        spread = float(scores[0] - scores[: self.top][-1]) or 1.0
        bonus = np.where(counts >= self.least(counts[: self.top]), np.tanh(counts / self.half), 0)
        answer: Array = scores + self.weight * spread * bonus
        return answer

    def _extract(self, image: Any) -> LocalFeatures:
        settings = dict(self.store.settings) if isinstance(self.store, LocalStore) else {"kind": self.kind}
        kind = settings.pop("kind")
        if kind != self.kind:
            raise InputError(f"{self.name} reads features of kind {self.kind}, these are {kind}")
        return extractor(kind)(image, **settings)

    def _cure(self) -> str:
        return (
            f"cure: kinrank index FOLDER -g GALLERY {'--local' if self.kind == 'rootsift' else '--dsm'}, "
            f"or name a folder that holds them: {self.name}:features=FOLDER"
        )
