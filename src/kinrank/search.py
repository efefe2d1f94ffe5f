"""Search a gallery and re-rank what it finds: the one way that the command line and the web page take."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kinrank.rerankers.base import Reranker
from kinrank.spec import reranker
from kinrank.types import Array, Candidates

if TYPE_CHECKING:
    from kinrank.gallery.gallery import Gallery


@dataclass(frozen=True)
class Hit:
    """One picture of the answer; ranks count from 1, `first_rank` is None when a second search brought it."""

    id: Any
    path: str | None
    score: float
    rank: int
    first_rank: int | None


@dataclass(frozen=True)
class Answer:
    """The first hits, what came first in the first round, and what each step took."""

    hits: list[Hit]
    first: Candidates
    last: Candidates
    timing_ms: dict[str, float]


def fitted(spec: str | Reranker, gallery: Gallery) -> Reranker:
    """The method of that spec, fitted to the gallery: done once, used for many queries."""
    method = reranker(spec) if isinstance(spec, str) else spec
    return method.fit(gallery)


def search(
    gallery: Gallery,
    query: Array,
    method: Reranker,
    k: int = 1024,
    top: int | None = None,
    picture: Any = None,
) -> Answer:
    """The `top` best of a gallery for a query vector (d,): the k nearest, then in the method's order.

    `method` comes from `fitted`, so that a second search may bring new ids; `picture` is the query's own
    image (a path or a PIL image), for methods that look at it. The vectors' backbone is the caller's care.
    """
    start = time.perf_counter()
    first = gallery.search(query, k)
    searched = time.perf_counter()
    chosen = method if picture is None else method.with_query(picture)
    chosen.check(first)
    last = chosen.relist(first)
    done = time.perf_counter()
    ids = last.ids[:top]
    rank_of = {key: place for place, key in enumerate(first.ids.tolist(), start=1)}
    paths = [entry.get("path") for entry in gallery.metadata(ids)]
    hits = [
        Hit(key, path, float(score), rank, rank_of.get(key))
        for rank, (key, path, score) in enumerate(zip(ids.tolist(), paths, last.scores), start=1)
    ]
    timing = {"search": 1e3 * (searched - start), "rerank": 1e3 * (done - searched)}
    return Answer(hits, first, last, timing)
