"""Methods side by side on one data set: the first round once, then every method on the same lists."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kinrank.errors import InputError
from kinrank.evaluation import memory
from kinrank.evaluation.array_gallery import BLOCK_BYTES, top
from kinrank.evaluation.datasets.base import Dataset
from kinrank.evaluation.local import for_query, looks_at_pictures
from kinrank.evaluation.protocol import KAPPAS, judge
from kinrank.rerankers.base import Reranker
from kinrank.spec import reranker, split
from kinrank.types import Array, Candidates

FirstBlock = tuple[int, Array, Array]
WARM_UP = 3
DEFAULT_K = 1024


@dataclass
class Row:
    """One method with one K: figures of every query, and their means."""

    method: str
    k: int
    ap: dict[str, Array]  # setting -> (Q,) average precision, NaN where the query has no positive
    precision: dict[str, Array]  # setting -> (Q, 3) mP@1, 5, 10
    seconds: Array  # (Q,) of re-ranking alone
    memory_mb: float = 0.0  # above what was there before, at the height of the fit or of re-ranking a list
    fit_seconds: float = 0.0
    first: Array | None = None  # (Q, 10) the first ten, for pictures

    def as_json(self) -> dict[str, Any]:
        """Percent and milliseconds; None where no query has a positive."""
        p50, p95 = (float(np.percentile(self.seconds, p)) * 1000 for p in (50, 95))
        return {
            "method": self.method,
            "k": self.k,
            "map": {name: _percent(values) for name, values in self.ap.items()},
            "mp": {
                name: {str(kappa): _percent(values[:, i]) for i, kappa in enumerate(KAPPAS)}
                for name, values in self.precision.items()
            },
            "latency_ms": {"p50": round(p50, 4), "p95": round(p95, 4)},
            "fit_s": round(self.fit_seconds, 3),
            "memory_mb": round(self.memory_mb, 1),
        }


@dataclass
class Evaluation:
    """A row a method, in the order asked for."""

    dataset: Dataset
    rows: list[Row] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """The shape that the contract promises."""
        return {
            "dataset": self.dataset.name,
            "queries": len(self.dataset.queries),
            "gallery": self.dataset.size,
            "rows": [row.as_json() for row in self.rows],
            "peak_mb": round(memory.highest_mb(), 1),
        }


def split_methods(text: str) -> list[str]:
    """`none,alphaqe:k=5,alpha=2,csa` -> three specs.

    A spec holds commas of its own: a part that starts with `key=` belongs to the spec before it.
    """
    specs: list[str] = []
    for part in split(text, ","):
        key, equals, _ = part.partition("=")
        if specs and equals and key.strip().isidentifier():
            specs[-1] += "," + part
        else:
            specs.append(part.strip())
    if not all(specs):
        raise InputError(f"'{text}' names no method between two commas; write none,aqe:k=3,csa")
    return list(dict.fromkeys(specs))


def evaluate(
    dataset: Dataset,
    methods: Sequence[str],
    ks: Sequence[int] = (DEFAULT_K,),
    tick: Callable[[], Any] = lambda: None,
    keep: Callable[[str, int, Array], None] | None = None,
    first: Sequence[FirstBlock] | None = None,
) -> Evaluation:
    """Every method on every K.

    `tick()` is called for every list that was judged; `keep(name, first query, rankings)` is handed the
    full rankings in blocks; `first` is what `first_round` gave, for callers that come more than once.

    Methods that can use the whole gallery are fitted to it; a second search may then bring images that
    were not among the first K. Beyond its list, a ranking goes on in the order of the first round. In
    leave-one-out the query's own image is left out of its list (the gallery that methods are fitted to
    holds it, as it holds every image).
    """
    for k in ks:
        if k < 1:
            raise InputError(f"K must be at least 1, got {k}")
    runs = [_Run(spec, k, dataset) for spec in methods for k in sorted({min(k, dataset.size) for k in ks})]
    for run in runs:
        run.fit(dataset)
    for low, orders, scores in first if first is not None else first_round(dataset):
        for run in runs:
            rankings = run.block(dataset, low, orders, scores, tick)
            if keep is not None:
                keep(run.name(len(ks) > 1), low, rankings)
    return Evaluation(dataset, [run.row for run in runs])


def _block(dataset: Dataset) -> int:
    return max(1, min(256, BLOCK_BYTES // (4 * len(dataset.gallery))))


def first_round(dataset: Dataset) -> Iterator[FirstBlock]:
    """(first query, order (B, size) of the whole gallery, scores in that order) a block of queries."""
    step = _block(dataset)
    for low in range(0, len(dataset.queries), step):
        scores = dataset.gallery.scores(dataset.queries[low : low + step])
        if dataset.own is not None:
            scores[np.arange(len(scores)), dataset.own[low : low + step]] = -np.inf
        orders = np.stack([top(row, len(row)) for row in scores]).astype(np.int32)[:, : dataset.size]
        yield low, orders, np.take_along_axis(scores, orders, 1)


def uses_gallery(method: Reranker) -> bool:
    """Whether `fit` does anything for this method (or for any stage of its chain)."""
    stages = getattr(method, "stages", [method])
    return any(type(stage).fit is not Reranker.fit for stage in stages)


class _Run:
    """One method with one K on its way through the queries."""

    def __init__(self, spec: str, k: int, dataset: Dataset) -> None:
        self.method = reranker(spec)
        self.fitted = uses_gallery(self.method)
        self.looks = looks_at_pictures(self.method)
        self.kept_mb = 0.0
        queries = len(dataset.queries)
        self.row = Row(
            spec,
            k,
            {name: np.empty(queries) for name in dataset.settings},
            {name: np.empty((queries, len(KAPPAS))) for name in dataset.settings},
            np.empty(queries),
            first=np.empty((queries, min(10, dataset.size)), np.int64),
        )

    def name(self, several_ks: bool) -> str:
        """The spec, and K where there are several."""
        return f"{self.row.method}@{self.row.k}" if several_ks else self.row.method

    def fit(self, dataset: Dataset) -> None:
        """Hand the method the whole gallery, where it has a use for it."""
        if self.fitted:
            start = time.perf_counter()
            with memory.watched() as peak:
                self.method = self.method.fit(dataset.gallery)
            self.row.fit_seconds = time.perf_counter() - start
            self.row.memory_mb, self.kept_mb = peak.mb, peak.kept_mb

    def warm_up(self, candidates: Candidates, dataset: Dataset) -> None:
        """A few calls that are not timed; what they hold at their height is the method's memory."""
        with memory.watched() as peak:
            for _ in range(WARM_UP):
                self._ids(candidates, dataset, 0)
        needed = max(peak.mb, memory.allocated_mb(lambda: self._ids(candidates, dataset, 0)))
        self.row.memory_mb = max(self.row.memory_mb, self.kept_mb + needed)

    def block(
        self, dataset: Dataset, low: int, orders: Array, scores: Array, tick: Callable[[], Any]
    ) -> Array:
        """Re-rank a block of queries, judge each; full rankings (B, size) come back."""
        rankings = np.empty_like(orders)
        for i, order in enumerate(orders):
            query = low + i
            candidates = _candidates(dataset, query, order[: self.row.k], scores[i, : self.row.k])
            if query == 0:
                self.warm_up(candidates, dataset)
            start = time.perf_counter()
            ids = self._ids(candidates, dataset, query)
            self.row.seconds[query] = time.perf_counter() - start
            rankings[i] = completed(ids, order, len(dataset.gallery))
            self._judge(dataset, query, rankings[i])
            tick()
        return rankings

    def _ids(self, candidates: Candidates, dataset: Dataset, query: int) -> Array:
        method = for_query(self.method, dataset, query) if self.looks else self.method
        method.check(candidates)
        answer = method.relist(candidates) if self.fitted else method.rerank(candidates)
        return answer.ids

    def _judge(self, dataset: Dataset, query: int, ranking: Array) -> None:
        for name, setting in dataset.settings.items():
            ap, precision = judge(ranking, setting.positives[query], setting.junk[query])
            self.row.ap[name][query] = ap
            self.row.precision[name][query] = precision
        assert self.row.first is not None
        self.row.first[query] = ranking[: self.row.first.shape[1]]


def _candidates(dataset: Dataset, query: int, ids: Array, scores: Array) -> Candidates:
    return Candidates(ids.astype(np.int64), scores, dataset.gallery.vectors(ids), dataset.queries[query])


def completed(ids: Array, order: Array, size: int) -> Array:
    """The ids that a method put first, then the rest of `order` as it was; ids outside it are dropped."""
    inside = np.zeros(size, bool)
    inside[order] = True
    head = ids[inside[ids]]
    inside[head] = False
    return np.concatenate([head, order[inside[order]]])


def _percent(values: Array) -> float | None:
    kept = values[~np.isnan(values)]
    return round(float(kept.mean()) * 100, 4) if len(kept) else None
