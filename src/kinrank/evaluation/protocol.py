"""The protocol: rankings and what is right in, figures between 0 and 1 out. NumPy only.

The revisited protocol (Radenovic et al., CVPR 2018): junk is taken out of the ranking, average precision
is the area under the precision-recall curve by the trapezoid rule over *all* positives, so one that is
missing from the ranking costs, and mP@k counts the first min(rank of the last positive, k). A query
without a positive is skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kinrank.errors import InputError
from kinrank.types import Array, as_ids

__all__ = [
    "KAPPAS",
    "REVISITED",
    "average_precision",
    "judge",
    "leave_one_out",
    "mean_average_precision",
    "mean_precision_at",
    "positive_ranks",
    "precision_at",
    "revisited",
]

KAPPAS = (1, 5, 10)
# setting -> (what counts as positive, what is taken out)
REVISITED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "easy": (("easy",), ("junk", "hard")),
    "medium": (("easy", "hard"), ("junk",)),
    "hard": (("hard",), ("junk", "easy")),
}


def positive_ranks(ranking: Any, positives: Any, junk: Any = ()) -> tuple[Array, int]:
    """(ranks from 0 of the positives that the ranking holds, junk taken out; number of all positives)."""
    ranking, positives, junk = as_ids(ranking, "ranking"), _id_set(positives), _id_set(junk)
    for name, ids in (("positives", positives), ("junk", junk)):
        if len(ids) and len(ranking) and ids.dtype.kind != ranking.dtype.kind:
            raise InputError(f"{name} are {ids.dtype}, the ranking is {ranking.dtype}: they can never meet")
    if len(junk):
        # An id that is named as both is a positive.
        ranking = ranking[~np.isin(ranking, np.setdiff1d(junk, positives))]
    ranks = np.flatnonzero(np.isin(ranking, positives))
    if len(ranks) > len(positives):
        raise InputError("a ranking holds an id twice; each may stand in it once")
    return ranks, len(positives)


def judge(ranking: Any, positives: Any, junk: Any = (), ks: Sequence[int] = KAPPAS) -> tuple[float, Array]:
    """(average precision, precision at each of ks) of one query; all NaN when it has no positive."""
    ranks, total = positive_ranks(ranking, positives, junk)
    return _trapezoid(ranks, total), _precisions(ranks, total, ks)


def average_precision(ranking: Any, positives: Any, junk: Any = ()) -> float:
    """Area under the precision-recall curve by the trapezoid rule; NaN when there is no positive."""
    return _trapezoid(*positive_ranks(ranking, positives, junk))


def precision_at(ranking: Any, positives: Any, k: int, junk: Any = ()) -> float:
    """Share of positives among the first min(rank of the last positive, k); NaN without a positive."""
    return float(_precisions(*positive_ranks(ranking, positives, junk), (k,))[0])


def mean_average_precision(rankings: Any, positives: Any, junk: Any = None) -> float:
    """Mean of `average_precision` over the queries that have a positive.

    `rankings (Q, N)` or a list of Q id arrays, best first; `positives` and `junk` hold one id array a query.
    """
    return _mean([average_precision(*query) for query in _queries(rankings, positives, junk)])


def mean_precision_at(
    rankings: Any, positives: Any, k: int | Sequence[int] = KAPPAS, junk: Any = None
) -> float | dict[int, float]:
    """Mean of `precision_at` over the queries that have a positive; a dict when k is a sequence."""
    ks = (k,) if isinstance(k, int | np.integer) else tuple(k)
    rows = [judge(*query, ks)[1] for query in _queries(rankings, positives, junk)]
    means = {int(kappa): _mean([row[i] for row in rows]) for i, kappa in enumerate(ks)}
    return means[int(ks[0])] if isinstance(k, int | np.integer) else means


def revisited(rankings: Any, gnd: Sequence[Mapping[str, Any]], ks: Sequence[int] = KAPPAS) -> dict[str, Any]:
    """{"map": {"easy", "medium", "hard"}, "mp": {"easy": {k: ..}, ..}} of rankings against `gnd`."""
    answer: dict[str, Any] = {"map": {}, "mp": {}}
    for setting, (good, bad) in REVISITED.items():
        positives = [merged(query, good) for query in gnd]
        junk = [merged(query, bad) for query in gnd]
        rows = [judge(*query, ks) for query in _queries(rankings, positives, junk)]
        answer["map"][setting] = _mean([ap for ap, _ in rows])
        answer["mp"][setting] = {k: _mean([row[i] for _, row in rows]) for i, k in enumerate(ks)}
    return answer


def leave_one_out(rankings: Any, labels: Any, ks: Sequence[int] = KAPPAS) -> dict[str, Any]:
    """{"map": {"all"}, "mp": {"all": {k: ..}}}: row i ranks the images for image i, which is itself left out.

    An image whose label occurs once is no query, only a distractor to the others.
    """
    labels = np.asarray(labels)
    if len(rankings) != len(labels):
        raise InputError(f"{len(rankings)} rankings for {len(labels)} labels; each image is a query")
    rows = []
    for i, ranking in enumerate(rankings):
        ranking = np.asarray(ranking)
        same = np.flatnonzero(labels == labels[i])
        rows.append(judge(ranking[ranking != i], same[same != i], ks=ks))
    means = {k: _mean([row[i] for _, row in rows]) for i, k in enumerate(ks)}
    return {"map": {"all": _mean([ap for ap, _ in rows])}, "mp": {"all": means}}


def merged(query: Mapping[str, Any], names: Sequence[str]) -> Array:
    """The ids under several names of one query's ground truth."""
    return np.unique(np.concatenate([np.asarray(query.get(n, ()), dtype=np.int64).ravel() for n in names]))


def _id_set(ids: Any) -> Array:
    ids = list(ids) if isinstance(ids, set | frozenset) else ids
    return np.unique(as_ids(np.asarray(ids).ravel()))


def _trapezoid(ranks: Array, total: int) -> float:
    if total == 0:
        return float("nan")
    found = np.arange(len(ranks))
    before = np.where(ranks == 0, 1.0, found / np.maximum(ranks, 1))
    return float((before + (found + 1) / (ranks + 1)).sum() / 2 / total)


def _precisions(ranks: Array, total: int, ks: Sequence[int]) -> Array:
    for k in ks:
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
            raise InputError(f"mP@k needs whole numbers of at least 1, got {k!r}")
    if total == 0:
        return np.full(len(ks), np.nan)
    if len(ranks) == 0:
        return np.zeros(len(ks))
    depth = np.minimum(ranks[-1] + 1, np.asarray(ks))
    hits: Array = np.searchsorted(ranks, depth) / depth
    return hits


def _queries(rankings: Any, positives: Any, junk: Any) -> list[tuple[Any, Any, Any]]:
    junk = [()] * len(rankings) if junk is None else junk
    if not len(rankings) == len(positives) == len(junk):
        raise InputError(
            f"{len(rankings)} rankings, {len(positives)} lists of positives, {len(junk)} of junk; "
            "there must be one of each a query"
        )
    return list(zip(rankings, positives, junk))


def _mean(values: Sequence[float]) -> float:
    kept = [value for value in values if not np.isnan(value)]
    return float(np.mean(kept)) if kept else float("nan")
