"""A gallery of arrays that cannot change: what `fit` may ask of a gallery, without a copy of the vectors.

Arrays may be memory-mapped, of any precision and length: rows are brought to unit float32 a block at a
time, so a million distractors on disk cost no memory beyond their scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kinrank.errors import InputError
from kinrank.types import Array, Candidates, stable_order, unit_rows

BLOCK_BYTES = 128 << 20


class ArrayGallery:
    """Vectors of several arrays (N_i, d) as one gallery; the ids are the row numbers."""

    revision = 0

    def __init__(self, *parts: Array, names: Sequence[str] = ()) -> None:
        if any(part.ndim != 2 for part in parts) or len({part.shape[1] for part in parts}) != 1:
            shapes = ", ".join(str(part.shape) for part in parts) or "nothing"
            raise InputError(f"vectors must have shape (n, d) with one d for all, got {shapes}")
        # What is on disk stays there and is brought to unit length when it is read.
        self.mapped = [isinstance(part, np.memmap) for part in parts]
        named = names or [f"part {i}" for i in range(len(parts))]
        self.parts = [
            part if mapped else unit_rows(part, name) for part, mapped, name in zip(parts, self.mapped, named)
        ]
        self.names = list(named)
        self.starts = np.cumsum([0, *(len(part) for part in parts)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def dim(self) -> int:
        """Dimensions of the vectors."""
        return int(self.parts[0].shape[1])

    def ids(self) -> Array:
        """The row numbers."""
        return np.arange(len(self))

    def vectors(self, ids: Sequence[Any] | Array) -> Array:
        """Unit vectors (n, d) float32 of these rows, in the order asked for."""
        rows = np.asarray(ids, dtype=np.int64)
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self)):
            raise InputError(f"there are no rows {rows.min()} to {rows.max()} in a gallery of {len(self)}")
        answer = np.empty((len(rows), self.dim), np.float32)
        which = np.searchsorted(self.starts, rows, side="right") - 1
        for i, part in enumerate(self.parts):
            mine = which == i
            if mine.any():
                found = part[rows[mine] - self.starts[i]]
                answer[mine] = _unit(found, self.names[i], rows[mine]) if self.mapped[i] else found
        return answer

    def blocks(self, size: int | None = None) -> Iterator[tuple[Array, Array]]:
        """The whole gallery as (ids, unit vectors), a block at a time."""
        size = size or max(1, BLOCK_BYTES // (4 * self.dim))
        for part, start, name, mapped in zip(self.parts, self.starts, self.names, self.mapped):
            for low in range(0, len(part), size):
                rows = part[low : low + size]
                ids = np.arange(start + low, start + low + len(rows))
                yield ids, _unit(rows, name, ids) if mapped else rows

    def changes_since(self, revision: int) -> tuple[Array, Array]:
        """Nothing: it cannot change."""
        return np.zeros(0, np.int64), np.zeros(0, np.int64)

    def scores(self, queries: Array) -> Array:
        """Cosines (Q, N) of unit queries (Q, d) to everything."""
        answer = np.empty((len(queries), len(self)), np.float32)
        for ids, rows in self.blocks():
            np.matmul(queries, rows.T, out=answer[:, ids[0] : ids[-1] + 1])
        return answer

    def search_ids(self, queries: Array, k: int) -> tuple[Array, Array]:
        """(ids (Q, k), scores (Q, k)) of unit queries (Q, d); equal scores in the order of the rows."""
        k = min(k, len(self))
        queries = np.asarray(queries, np.float32)
        ids, best = np.empty((len(queries), k), np.int64), np.empty((len(queries), k), np.float32)
        step = max(1, BLOCK_BYTES // (4 * len(self)))
        for low in range(0, len(queries), step):
            for row, scores in enumerate(self.scores(queries[low : low + step]), low):
                ids[row] = top(scores, k)
                best[row] = scores[ids[row]]
        return ids, best

    def search(self, query: Any, k: int) -> Candidates:
        """The k nearest by cosine, with their vectors."""
        unit = unit_rows(np.asarray(query)[None], "query")
        ids, scores = self.search_ids(unit, k)
        return Candidates(ids[0], scores[0], self.vectors(ids[0]), unit[0])


def _unit(rows: Array, name: str, ids: Array) -> Array:
    """`unit_rows` for large blocks: one pass and one copy, where nothing is out of the ordinary."""
    answer = np.array(rows, dtype=np.float32)
    squares = np.einsum("nd,nd->n", answer, answer)
    if not (np.isfinite(squares) & (squares > 1e-30)).all():
        return unit_rows(rows, name, ids)
    answer /= np.sqrt(squares)[:, None]
    return answer


def top(scores: Array, k: int) -> Array:
    """Positions of the k largest, best first; equal ones in their order."""
    if k >= len(scores):
        return stable_order(scores)
    threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
    inside = np.flatnonzero(scores >= threshold)
    return inside[stable_order(scores[inside])][:k]
