"""The two values that every room speaks of, `Candidates` in and `Ranking` out, and the seams between rooms.

Both are frozen and checked when they are built, so no method has to check them again.
Symbols of the paper: K candidates, L anchors, d dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from kinrank.errors import InputError

Array = np.ndarray


def as_ids(ids: Any, what: str = "ids") -> Array:
    """Ids as an int64 or a unicode array of one dimension; anything else is refused."""
    array = np.asarray(ids)
    if array.ndim != 1:
        raise InputError(f"{what} must have one dimension, got shape {array.shape}")
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind == "O" and all(isinstance(x, str) for x in array):
        array = array.astype(np.str_)
    if array.dtype.kind == "U":
        return array
    if array.dtype.kind in "iu":
        if array.dtype.kind == "u" and array.max() > np.iinfo(np.int64).max:
            raise InputError(f"{what}: {array.max()} does not fit into a signed 64-bit integer")
        return array.astype(np.int64)
    raise InputError(f"{what} must be integers or strings, got {array.dtype}; cure: map them to str first")


def unit_rows(vectors: Any, what: str = "vectors", ids: Any = None) -> Array:
    """Vectors (N, d) as float32 rows of length one; NaN, infinity and zero rows are refused by name."""
    array = np.asarray(vectors)
    if array.ndim != 2 or array.shape[1] == 0:
        raise InputError(f"{what} must have shape (n, d) with d >= 1, got {array.shape}")
    if array.dtype.kind not in "fiu":
        raise InputError(f"{what} must be real numbers, got {array.dtype}")

    if array.dtype == np.float32 and array.flags.c_contiguous:
        # Norms near one prove that all is finite and nothing zero: lists that come from a gallery stop here.
        norms = np.einsum("nd,nd->n", array, array)
        if (np.abs(norms - 1) < 1e-5).all():
            return array
        if ((norms > 1e-12) & (norms < 1e12)).all():  # nothing zero, nothing infinite, no overflow
            return array / np.sqrt(norms)[:, None]

    def name(row: int) -> str:
        return f"{what} row {row}" + ("" if ids is None else f" (id {ids[row]!s})")

    largest = np.abs(array).max(axis=1).astype(np.float64) if len(array) else np.zeros(0)
    if not np.isfinite(largest).all():
        raise InputError(f"{name(int(np.argmin(np.isfinite(largest))))} holds NaN or infinity")
    if (largest == 0).any():
        raise InputError(
            f"{name(int(np.argmin(largest)))} is a zero vector: it has no direction to compare; "
            "cure: leave it out, or look why its embedding is empty"
        )
    # Dividing by the largest entry first keeps huge and tiny values from overflowing in the square.
    rows = (array / largest[:, None]).astype(np.float32)
    return rows / np.sqrt(np.einsum("nd,nd->n", rows, rows))[:, None]


def _frozen(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


def check_unique(ids: Array) -> None:
    """Refuse ids of which one occurs twice."""
    unique, counts = np.unique(ids, return_counts=True)
    if len(unique) != len(ids):
        raise InputError(f"ids must be unique: {unique[counts > 1][0]!s} occurs {counts.max()} times")


def stable_order(scores: Array) -> Array:
    """Positions from best to worst; equal scores keep their order."""
    return np.argsort(-np.asarray(scores), kind="stable")


@dataclass(frozen=True, eq=False)
class Candidates:
    """The first answer to one query: K ids, best first, with the vectors that earned them their place.

    `ids (K,)` int64 or str, `scores (K,)` float32 best first, `vectors (K, d)` float32 unit rows,
    `query (d,)` float32 unit. Vectors of another length or precision are brought to that form (the
    caller's arrays are never changed). A list known by its similarities alone comes from
    `from_similarities`; its `vectors` have no columns.
    """

    ids: Array
    scores: Array
    vectors: Array
    query: Array
    similarities: Array | None = field(default=None, repr=False)  # (1 + K, 1 + K), query first

    def __post_init__(self) -> None:
        ids = as_ids(self.ids)
        scores = np.asarray(self.scores, dtype=np.float32)
        if scores.shape != (len(ids),):
            raise InputError(f"scores must have shape ({len(ids)},) as ids, got {scores.shape}")
        if len(ids) == 0:
            raise InputError(
                "the list of candidates is empty; cure: search with k >= 1 in a gallery that holds images"
            )
        if not np.isfinite(scores).all():
            raise InputError(f"scores[{int(np.argmin(np.isfinite(scores)))}] is NaN or infinity")
        if (np.diff(scores) > 0).any():
            raise InputError(
                "scores must come best first; cure: sort the list, or let Candidates.from_vectors do it"
            )
        check_unique(ids)
        if self.similarities is None:
            query, vectors = _checked_vectors(self.query, self.vectors, ids)
        else:
            query, vectors = np.zeros(0, np.float32), np.zeros((len(ids), 0), np.float32)
            object.__setattr__(
                self, "similarities", _frozen(_checked_similarities(self.similarities, len(ids)))
            )
        for name, value in (("ids", ids), ("scores", scores), ("vectors", vectors), ("query", query)):
            object.__setattr__(self, name, _frozen(value))

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def from_vectors(cls, query: Any, vectors: Any, ids: Any = None, k: int | None = None) -> Candidates:
        """Rank vectors (N, d) by their cosine to the query and keep the first k (all when k is None)."""
        ids = np.arange(len(vectors)) if ids is None else as_ids(ids)
        query, rows = _checked_vectors(query, vectors, ids)
        scores = rows @ query
        order = stable_order(scores)[: check_k(k, len(ids))]
        return cls(ids[order], scores[order], rows[order], query)

    @classmethod
    def from_similarities(cls, similarities: Any, ids: Any = None, k: int | None = None) -> Candidates:
        """A list known by its similarities (1 + K, 1 + K) alone, the query first; ranked by the first row."""
        size = len(similarities) - 1
        table = _checked_similarities(similarities, size)
        ids = np.arange(size) if ids is None else as_ids(ids)
        if len(ids) != size:
            raise InputError(f"similarities speak of {size} candidates, but there are {len(ids)} ids")
        order = stable_order(table[0, 1:])[: check_k(k, size)]
        rows = np.concatenate([[0], order + 1])
        empty = np.zeros((len(order), 0), np.float32)
        return cls(ids[order], table[0, 1:][order], empty, empty[:1, :0].ravel(), table[np.ix_(rows, rows)])

    @property
    def has_vectors(self) -> bool:
        """False for a list that is known by its similarities alone."""
        return self.similarities is None

    def affinity(self) -> Array:
        """Similarities (1 + K, 1 + K) of the query and the candidates to each other, the query first."""
        if self.similarities is not None:
            return self.similarities
        rows = np.concatenate([self.query[None], self.vectors])
        return rows @ rows.T

    def take(self, order: Array, scores: Array) -> Candidates:
        """The candidates at the positions `order`, with new scores (best first) and the same vectors."""
        table = self.similarities
        if table is not None:
            rows = np.concatenate([[0], np.asarray(order) + 1])
            table = table[np.ix_(rows, rows)]
        return Candidates(self.ids[order], scores, self.vectors[order], self.query, table)

    def head(self, k: int | None) -> Candidates:
        """The first k of the list (all of it when k is None or larger than the list)."""
        k = check_k(k, len(self))
        return self if k == len(self) else self.take(np.arange(k), self.scores[:k])


@dataclass(frozen=True, eq=False)
class Ranking:
    """The order after re-ranking: each id once, scores falling."""

    ids: Array
    scores: Array

    def __post_init__(self) -> None:
        ids = as_ids(self.ids)
        scores = np.asarray(self.scores, dtype=np.float32)
        if scores.shape != (len(ids),):
            raise InputError(f"scores must have shape ({len(ids)},) as ids, got {scores.shape}")
        if not np.isfinite(scores).all():
            raise InputError(f"scores[{int(np.argmin(np.isfinite(scores)))}] is NaN or infinity")
        if (np.diff(scores) > 0).any():
            raise InputError("scores of a ranking must come best first")
        check_unique(ids)
        object.__setattr__(self, "ids", _frozen(ids))
        object.__setattr__(self, "scores", _frozen(scores))

    def __len__(self) -> int:
        return len(self.ids)


def check_k(k: int | None, size: int) -> int:
    """k as a number from 1 to size; all for None."""
    if k is None:
        return size
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise InputError(f"k must be a whole number of at least 1, got {k!r}")
    return min(int(k), size)


def _checked_vectors(query: Any, vectors: Any, ids: Array) -> tuple[Array, Array]:
    query = np.asarray(query)
    if query.ndim != 1:
        raise InputError(f"query must have one dimension, got shape {query.shape}")
    rows = unit_rows(vectors, "vectors", ids if len(ids) == len(vectors) else None)
    if len(rows) != len(ids):
        raise InputError(f"{len(rows)} vectors for {len(ids)} ids; both must be as many")
    if rows.shape[1] != len(query):
        raise InputError(f"the query has {len(query)} dimensions, the vectors have {rows.shape[1]}")
    return unit_rows(query[None], "query")[0], rows


def _checked_similarities(similarities: Any, size: int) -> Array:
    table = np.asarray(similarities)
    if table.ndim != 2 or table.shape != (size + 1, size + 1) or size < 1:
        raise InputError(f"similarities must have shape (1 + K, 1 + K), the query first, got {table.shape}")
    if table.dtype.kind not in "fiu" or not np.isfinite(table).all():
        raise InputError("similarities must be finite real numbers")
    return np.ascontiguousarray(table, dtype=np.float32)


class GalleryLike(Protocol):
    """What a method may ask of a gallery in `fit`; every store keeps all of it."""

    @property
    def dim(self) -> int:
        """Dimensions of the vectors."""
        ...

    @property
    def revision(self) -> int:
        """A number that grows with every committed change; fitted state is stamped with it."""
        ...

    def __len__(self) -> int: ...

    def ids(self) -> Array:
        """All ids (N,), in the order in which they were added."""
        ...

    def vectors(self, ids: Sequence[Any] | Array) -> Array:
        """Unit vectors (n, d) float32 of these ids, in the order asked for."""
        ...

    def blocks(self, size: int = 65536) -> Iterator[tuple[Array, Array]]:
        """The whole gallery as (ids, unit vectors) in the order of `ids()`, a block at a time."""
        ...

    def changes_since(self, revision: int) -> tuple[Array, Array]:
        """(ids added or replaced, ids removed) since that revision."""
        ...

    def search(self, query: Any, k: int) -> Candidates:
        """The k nearest by cosine, with their vectors."""
        ...

    def search_ids(self, queries: Array, k: int) -> tuple[Array, Array]:
        """(ids (Q, k), scores (Q, k)) of many queries at once, without vectors (k at most N)."""
        ...


class RerankerLike(Protocol):
    """What every re-ranker offers; `kinrank.rerankers.base.Reranker` is the usual way to get it."""

    def rerank(self, candidates: Candidates) -> Ranking:
        """The same ids in a better order."""
        ...

    def rerank_many(self, lists: Iterable[Candidates]) -> list[Ranking]:
        """`rerank` for many queries; may batch."""
        ...

    def fit(self, gallery: GalleryLike) -> RerankerLike:
        """Learn or precompute what the method wants to know of the whole gallery; returns self."""
        ...
