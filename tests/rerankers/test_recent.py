"""SuperGlobal, GCR and RDPAC, each written out with loops in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kinrank.errors import SpecError
from kinrank.spec import reranker
from kinrank.types import Candidates


def nearest(row: np.ndarray, k: int, itself: int) -> list[int]:
    return [j for j in np.argsort(-row, kind="stable").tolist() if j != itself][:k]


def in_order(candidates: Candidates, spec: str) -> np.ndarray:
    ranking = reranker(spec).rerank(candidates)
    place = {value: i for i, value in enumerate(ranking.ids.tolist())}
    return ranking.scores[[place[i] for i in candidates.ids.tolist()]].astype(np.float64)


@pytest.fixture(params=[(20, 20), (5, 12), (1, 3), (1, 2), (1, 1)], ids=str)
def some_list(request: pytest.FixtureRequest, clusters: Any) -> Candidates:
    vectors, _ = clusters(classes=request.param[0], size=request.param[1], seed=11)
    return Candidates.from_vectors(vectors[0] + 0.05, vectors)


@pytest.mark.parametrize("m", [400, 30])
def test_superglobal_written_out(some_list: Candidates, m: int) -> None:
    head = some_list.vectors[:m].astype(np.float64)
    table = head @ head.T
    refined = []
    for i in range(len(head)):
        near = nearest(table[i], 9, i)
        total = head[i] + 0.15 * sum((table[i, j] * head[j] for j in near), np.zeros(head.shape[1]))
        refined.append(total / (1 + 0.15 * sum(table[i, j] for j in near)))
    d = np.array(refined)
    first = d @ some_list.query
    pooled = d[np.argsort(-first, kind="stable")[:10]].max(0)
    scores = in_order(some_list, f"superglobal:m={m}")
    np.testing.assert_allclose(scores[:m], (first + d @ pooled) / 2, atol=1e-4)
    ranking = reranker(f"superglobal:m={m}").rerank(some_list)
    assert ranking.ids[m:].tolist() == some_list.ids[m:].tolist()


@pytest.mark.parametrize("rounds", [1, 3])
def test_gcr_is_the_dense_form(some_list: Candidates, rounds: int) -> None:
    u = np.concatenate([some_list.query[None], some_list.vectors]).astype(np.float64)
    for _ in range(rounds):
        table = u @ u.T
        s = np.zeros_like(table)
        for i in range(len(u)):
            for j in [i, *nearest(table[i], 14, i)]:
                s[i, j] = np.exp(table[i, j] / 0.2)
        u = np.diag(s.sum(1) ** -0.5) @ s @ np.diag(s.sum(0) ** -0.5) @ u
        u /= np.linalg.norm(u, axis=1, keepdims=True)
    np.testing.assert_allclose(in_order(some_list, f"gcr:rounds={rounds}"), u[1:] @ u[0], atol=1e-4)


@pytest.mark.parametrize("m", [401, 50])
def test_rdpac_re_derived(some_list: Candidates, m: int) -> None:
    k, p1, p2, alpha, rounds = 15, 0.97, 0.75, 0.95, 4
    nodes = np.concatenate([some_list.query[None], some_list.vectors])[:m].astype(np.float64)
    table = nodes @ nodes.T
    size = len(table)
    w = np.zeros((size, size))
    for i in range(size):
        for rank, j in enumerate([i, *nearest(table[i], size, i)]):
            w[i, j] = p1**rank
    both = np.float32(w) + np.float32(w).T  # ties are decided in single precision
    t = np.zeros((size, size))
    for i in range(size):
        for rank, j in enumerate([i, *nearest(both[i], k - 1, i)]):
            t[i, j] = p2**rank
    t /= t.sum(0)
    p = t
    for _ in range(rounds):
        p = alpha * p @ t.T + (1 - alpha) * np.eye(size)
        p /= p.sum(0)
    expected = np.linalg.matrix_power(p, 3)[0, 1:]
    scores = in_order(some_list, f"rdpac:m={m},rounds={rounds}")
    np.testing.assert_allclose(scores[: len(expected)], expected, atol=1e-4)


@pytest.mark.parametrize("spec", ["superglobal:m=0", "gcr:beta=0", "gcr:k=0", "rdpac:p1=1", "rdpac:rounds=0"])
def test_parameters_without_meaning_are_refused(spec: str) -> None:
    with pytest.raises(SpecError, match="must"):
        reranker(spec)
