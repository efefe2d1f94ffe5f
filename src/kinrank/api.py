"""Bring your own embeddings: a query and vectors in, the right order out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kinrank.errors import InputError
from kinrank.rerankers.base import Reranker, rerank_head, with_tail
from kinrank.spec import reranker
from kinrank.types import Candidates, Ranking

DEFAULT = "csa"


def rerank(
    query: Any = None,
    vectors: Any = None,
    ids: Any = None,
    method: str | Reranker = DEFAULT,
    k: int | None = None,
    *,
    similarities: Any = None,
) -> Ranking:
    """Rank vectors (N, d) for a query (d,) and re-rank the first k of them (all by default).

    `ids` name the rows (their numbers otherwise). In place of query and vectors, `similarities`
    (1 + K, 1 + K) with the query first will do: any modality, any symmetric similarity.
    """
    candidates = _candidates(query, vectors, ids, similarities)
    return rerank_head(_method(method), candidates, k)


def rerank_many(
    queries: Any, vectors: Any, ids: Any = None, method: str | Reranker = DEFAULT, k: int | None = None
) -> list[Ranking]:
    """`rerank` for many queries (Q, d); `vectors` is (N, d) for all of them, or one (K, d) for each."""
    shared = getattr(vectors, "ndim", 3) == 2
    if not shared and len(vectors) != len(queries):
        raise InputError(f"{len(vectors)} lists of vectors for {len(queries)} queries; both must be as many")
    lists: Iterable[Candidates] = (
        Candidates.from_vectors(query, vectors if shared else vectors[i], _ids_of(ids, i, shared))
        for i, query in enumerate(queries)
    )
    chosen = _method(method)
    full = list(lists)
    heads = chosen.rerank_many([c.head(k) for c in full])
    return [with_tail(head, c) for head, c in zip(heads, full)]


def _ids_of(ids: Sequence[Any] | None, row: int, shared: bool) -> Any:
    return ids if ids is None or shared else ids[row]


def _method(method: str | Reranker) -> Reranker:
    return reranker(method) if isinstance(method, str) else method


def _candidates(query: Any, vectors: Any, ids: Any, similarities: Any) -> Candidates:
    if similarities is not None:
        if query is not None or vectors is not None:
            raise InputError("give either query and vectors, or similarities, not both")
        return Candidates.from_similarities(similarities, ids)
    if query is None or vectors is None:
        raise InputError("rerank needs a query and vectors, or similarities")
    return Candidates.from_vectors(query, vectors, ids)
