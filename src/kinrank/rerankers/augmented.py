"""A gallery whose vectors were moved by database augmentation: what later stages of a chain are fitted to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from kinrank.errors import InputError
from kinrank.rerankers.knn import rows_of
from kinrank.types import Array, Candidates, stable_order, unit_rows

_BLOCK = 1 << 24  # numbers in a block of scores


class AugmentedGallery:
    """Ids with their augmented vectors, searched exactly; `vectors` may be mapped from disk."""

    def __init__(
        self, ids: Array, vectors: Array, revision: int, path: Path | None, location: str | None = None
    ) -> None:
        self._ids, self._vectors = ids, vectors
        self.revision = revision
        self.path = path
        self.location = location  # of the gallery that was augmented: what lies beside it stays true

    @property
    def dim(self) -> int:
        """Dimensions of the vectors."""
        return int(self._vectors.shape[1])

    def __len__(self) -> int:
        return len(self._ids)

    def ids(self) -> Array:
        """The ids of the gallery that was augmented, in its order."""
        return self._ids

    @cached_property
    def _sorter(self) -> Array:
        return np.argsort(self._ids, kind="stable")

    def rows(self, ids: Array) -> Array:
        """Where these ids stand, -1 for one that is not there."""
        return rows_of(self._ids, self._sorter, ids)

    def vectors(self, ids: Sequence[Any] | Array) -> Array:
        """Augmented vectors (n, d) of these ids."""
        rows = self.rows(np.asarray(ids))
        if (rows < 0).any():
            raise InputError(f"the augmented gallery holds no id {np.asarray(ids)[rows < 0][0]!s}")
        return np.asarray(self._vectors[rows])

    def blocks(self, size: int = 65536) -> Iterator[tuple[Array, Array]]:
        """All of it, a block at a time."""
        for start in range(0, len(self), size):
            yield self._ids[start : start + size], np.asarray(self._vectors[start : start + size])

    def changes_since(self, revision: int) -> tuple[Array, Array]:
        """Everything, when anything changed: one new image may move the vectors of many others."""
        none = self._ids[:0]
        return (none, none) if revision == self.revision else (self._ids, none)

    def search(self, query: Any, k: int) -> Candidates:
        """The k nearest among the augmented vectors."""
        unit = unit_rows(np.asarray(query)[None], "query")[0]
        ids, scores = self.search_ids(unit[None], k)
        return Candidates(ids[0], scores[0], self.vectors(ids[0]), unit)

    def search_ids(self, queries: Array, k: int) -> tuple[Array, Array]:
        """(ids (Q, k), scores (Q, k)) of many queries; exact, equal scores in the order of the ids."""
        k = min(k, len(self))
        ids = np.empty((len(queries), k), self._ids.dtype)
        best = np.empty((len(queries), k), np.float32)
        step = max(1, _BLOCK // len(self))
        for start in range(0, len(queries), step):
            for row, scores in enumerate(queries[start : start + step] @ self._vectors.T, start):
                bound = np.partition(scores, len(scores) - k)[len(scores) - k]
                inside = np.flatnonzero(scores >= bound)
                first = inside[stable_order(scores[inside])][:k]
                ids[row], best[row] = self._ids[first], scores[first]
        return ids, best
