"""One revision of an embedded gallery, ready to be searched.

Three parts: the vectors that the inverted index holds (when there is one), the mapped vectors beyond it,
and the newest ones, read from the database into memory. Positions count through all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kinrank.gallery import ivf, scan
from kinrank.gallery.database import Commit, Database
from kinrank.gallery.derived import DamagedFilesError, Mapped
from kinrank.types import Array

BLOCK = 8192  # rows read from the database at once


@dataclass
class View:
    """What to search, and which commit it shows."""

    commit: Commit
    mapped: Mapped | None
    matrix: Array  # (n, d), memory-mapped
    rows: Array  # (n + t,) row numbers in the database, ascending
    tail: Array  # (t, d), in memory
    dead: Array  # positions of rows that were removed
    alive: Array | None  # the same for the inverted index: a bit a position; None when all are

    @classmethod
    def at(cls, commit: Commit, mapped: Mapped | None, database: Database, old: View | None) -> View:
        """The view of a commit; what the `old` one has read is not read again."""
        if old is not None and old.mapped is mapped:
            if old.commit.revision == commit.revision:
                return old
            since, dead = old.commit.revision, [old.dead]
            matrix, rows, tail = old.matrix, [old.rows], [old.tail]
        else:
            empty = np.zeros((0, database.dim), np.float32)
            since, dead = (mapped.state.base if mapped else commit.revision), [np.zeros(0, np.int64)]
            matrix, tail = (mapped.matrix if mapped else empty), [empty]
            rows = [mapped.rows if mapped else np.zeros(0, np.int64)]
        last = int(rows[0][-1]) if len(rows[0]) else 0
        for numbers, units in database.vectors_after(last, BLOCK):
            rows.append(numbers)
            tail.append(units)
        numbers = np.concatenate(rows) if len(rows) > 1 else rows[0]
        dead.append(_places(numbers, database.removed_after(since)))
        gone = np.unique(np.concatenate(dead))
        index = mapped.state.index if mapped else None
        alive = _bits(gone, index.count) if index else None
        return cls(commit, mapped, matrix, numbers, np.concatenate(tail), gone, alive)

    def nearest(self, query: Array, k: int) -> tuple[Array, Array, Array]:
        """(row numbers (k,), scores (k,), vectors (k, d)), best first."""
        (near,) = self._near(query[None], k)
        positions, scores, vectors = scan.ranked(near, self._take(near), query, k)
        if not (np.abs(scan.lengths(vectors) - 1) < 1e-3).all():
            raise DamagedFilesError
        return self.rows[positions], scores, vectors

    def nearest_many(self, queries: Array, k: int) -> tuple[Array, Array]:
        """(row numbers (Q, k), scores (Q, k)), best first."""
        rows = np.empty((len(queries), k), np.int64)
        scores = np.empty((len(queries), k), np.float32)
        line = 0
        for part in scan.parts(queries, len(self.rows)):
            for query, near in zip(part, self._near(part, k)):
                positions, scores[line], _ = scan.ranked(near, self._take(near), query, k)
                rows[line] = self.rows[positions]
                line += 1
        return rows, scores

    def _near(self, queries: Array, k: int) -> Iterator[Array]:
        """For each query the positions, ascending, of all that may be among the k nearest."""
        index = self.mapped.state.index if self.mapped else None
        if index is None or k > index.count // 8:
            for scores in self._scores(queries, 0):
                yield scan.contenders(scores, k)
            return
        assert self.mapped is not None
        probes = ivf.probes_for(index, k)
        heads = ivf.search(self.mapped.index, queries, k, probes, index.count, self.alive)
        for query, head, scores in zip(queries, heads, self._scores(queries, index.count)):
            near = np.concatenate([head, scan.contenders(scores, k) + index.count])
            # Lists that were nearly all removed may not hold k: then every row is read.
            yield near if len(near) >= k else scan.contenders(self._scores(query[None], 0)[0], k)

    def _scores(self, queries: Array, start: int) -> Array:
        """Cosines (Q, n + t - start) from a position on; minus infinity where a row is gone."""
        parts: list[Any] = [queries @ self.matrix[start:].T]
        if len(self.tail):
            parts.append(queries @ self.tail.T)
        scores: Array = np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]
        scores[:, self.dead[self.dead >= start] - start] = -np.inf
        return scores

    def _take(self, positions: Array) -> Array:
        """Vectors at ascending positions."""
        split = int(np.searchsorted(positions, len(self.matrix)))
        if split == len(positions):
            return self.matrix[positions]
        newest = positions[split:] - len(self.matrix)
        return np.concatenate([self.matrix[positions[:split]], self.tail[newest]])


def _bits(dead: Array, count: int) -> Array | None:
    """A bit a position below count, least first, off where dead; None when none is."""
    if len(dead) == 0 or dead[0] >= count:
        return None
    alive = np.ones(count, bool)
    alive[dead[dead < count]] = False
    return np.packbits(alive, bitorder="little")


def _places(rows: Array, wanted: Array) -> Array:
    """Positions in ascending `rows` of those of the wanted rows that are there."""
    places = np.searchsorted(rows, wanted)
    inside = places < len(rows)
    places, wanted = places[inside], wanted[inside]
    return places[rows[places] == wanted]
