"""Methods on neighbours, each against a dense or textbook computation of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinrank.benchmarks.published import final_distance
from kinrank.errors import NotFittedError, SpecError
from kinrank.gallery.gallery import Gallery
from kinrank.spec import reranker
from kinrank.types import Candidates


def dense(candidates: Candidates) -> np.ndarray:
    """Similarities of query and candidates in double precision."""
    nodes = np.concatenate([candidates.query[None], candidates.vectors]).astype(np.float64)
    return nodes @ nodes.T


def nearest(row: np.ndarray, k: int, itself: int) -> list[int]:
    """The k nearest others, ties to the earlier."""
    return [j for j in np.argsort(-row, kind="stable").tolist() if j != itself][:k]


def in_order(candidates: Candidates, spec: str, method: Any = None) -> np.ndarray:
    """Scores in the order of the candidates."""
    ranking = (method or reranker(spec)).rerank(candidates)
    place = {value: i for i, value in enumerate(ranking.ids.tolist())}
    return ranking.scores[[place[i] for i in candidates.ids.tolist()]].astype(np.float64)


@pytest.fixture(params=[(20, 20), (5, 12), (3, 3), (1, 3), (1, 2), (1, 1)], ids=str)
def some_list(request: pytest.FixtureRequest, clusters: Any) -> Candidates:
    vectors, _ = clusters(classes=request.param[0], size=request.param[1], seed=8)
    return Candidates.from_vectors(vectors[0] + 0.05, vectors)


@pytest.mark.parametrize("k1,k2,mix", [(20, 6, 0.3), (7, 3, 0.0), (5, 1, 0.5), (1, 1, 0.3), (40, 20, 0.1)])
def test_kreciprocal_of_a_list_is_as_published(some_list: Candidates, k1: int, k2: int, mix: float) -> None:
    spec = f"kreciprocal:k1={k1},k2={k2},mix={mix}"
    expected = final_distance(some_list.query[None], some_list.vectors, k1, k2, mix)[0]
    np.testing.assert_allclose(in_order(some_list, spec), -expected, atol=1e-5)


@pytest.mark.parametrize("k1,k2", [(20, 6), (9, 4), (5, 1)])
@pytest.mark.parametrize("k", [400, 60, 5])
def test_kreciprocal_in_a_gallery_is_as_published(
    memory_gallery: Any, clusters: Any, k1: int, k2: int, k: int
) -> None:
    """One query at a time joins the gallery; the list may be far shorter than the gallery."""
    vectors, _ = clusters(classes=20, size=20, seed=9)
    method = reranker(f"kreciprocal:k1={k1},k2={k2}").fit(memory_gallery(vectors))
    # Near to an item, but no copy of it: among exact ties the published form has no order of its own.
    for query in (vectors[0] + 0.1, vectors[7] + 0.01, vectors[11] - 0.2):
        candidates = Candidates.from_vectors(query, vectors, k=k)
        expected = final_distance(candidates.query[None], vectors, k1, k2, 0.3)[0][candidates.ids]
        if k >= 2 * k1:  # a shorter list does not tell which others the query joins
            np.testing.assert_allclose(in_order(candidates, "", method), -expected, atol=1e-5)
        else:
            assert len(method.rerank(candidates)) == k


def test_kreciprocal_refuses_a_gallery_that_changed(memory_gallery: Any, clusters: Any) -> None:
    vectors, _ = clusters(seed=10)
    gallery = memory_gallery(vectors)
    method = reranker("kreciprocal").fit(gallery)
    gallery.remove([3])
    with pytest.raises(NotFittedError, match="fit"):
        method.rerank(gallery.search(vectors[0], k=20))
    rebuilt = reranker("kreciprocal").fit(memory_gallery(gallery._vectors, gallery.ids()))
    candidates = gallery.search(vectors[0], k=20)
    again = method.fit(gallery).rerank(candidates)
    assert again.ids.tolist() == rebuilt.rerank(candidates).ids.tolist()


def test_the_encoding_of_a_gallery_is_stored_and_kept_in_step(tmp_path: Path, clusters: Any) -> None:
    vectors, _ = clusters(classes=20, size=20, seed=13)
    with Gallery.create(tmp_path / "g.kin", dim=24) as gallery:
        gallery.add(np.arange(400), vectors)
        reranker("kreciprocal").fit(gallery)
    with Gallery.open(tmp_path / "g.kin") as gallery:
        assert list((tmp_path / "g.kin.fit").glob("*/kreciprocal-*/manifest.json"))
        gallery.remove([3, 4, 5])
        gallery.add([900, 17], vectors[[3, 4]])
        updated = reranker("kreciprocal").fit(gallery).encoding
        fresh = Gallery.create("memory:", dim=24)
        for ids, rows in gallery.blocks():
            fresh.add(ids, rows)
        rebuilt = reranker("kreciprocal").fit(fresh).encoding
        for name in ("starts", "columns", "values"):
            np.testing.assert_array_equal(getattr(updated, name), getattr(rebuilt, name))


def test_gnn_is_the_dense_form(some_list: Candidates) -> None:
    k1, k2, mix = 26, 7, 0.3
    table = dense(some_list)
    size = len(table)
    first = [[i, *nearest(table[i], k1 - 1, i)] for i in range(size)]
    adjacency = np.zeros((size, size))
    for i in range(size):
        adjacency[i, first[i]] = 1
    for _ in range(2):
        both = adjacency + adjacency.T
        adjacency = np.array([sum(table[i, j] ** 2 * both[j] for j in first[i][:k2]) for i in range(size)])
        adjacency /= np.linalg.norm(adjacency, axis=1, keepdims=True)
    expected = (1 - mix) * adjacency[1:] @ adjacency[0] + mix * table[0, 1:]
    np.testing.assert_allclose(in_order(some_list, f"gnn:k1={k1},k2={k2},mix={mix}"), expected, atol=1e-4)


@pytest.mark.parametrize("iterations", [1, 4])
def test_cdm_is_the_iterative_definition(some_list: Candidates, iterations: int) -> None:
    size, k = len(some_list), min(10, len(some_list) - 1)
    distance = np.sqrt(np.maximum(2 - 2 * dense(some_list), 0))
    delta = np.ones(size)
    for _ in range(iterations if k else 0):
        r = np.empty(size)
        for i in range(size):
            row = sorted(distance[1 + i, 1 + j] * delta[i] * delta[j] for j in range(size) if j != i)
            r[i] = np.mean(row[:k])
        rbar = np.prod(r ** (1 / size))
        if np.abs(r - rbar).max() < 1e-3 * rbar:
            break
        delta *= np.sqrt(rbar / r)
    scores = in_order(some_list, f"cdm:iterations={iterations}")
    np.testing.assert_allclose(scores, -distance[0, 1:] * delta, atol=1e-4)


def test_one_iteration_of_cdm_is_nicdm(some_list: Candidates) -> None:
    size = len(some_list)
    if size < 3:
        pytest.skip("local scaling needs neighbours")
    distance = np.sqrt(np.maximum(2 - 2 * dense(some_list), 0))
    r = np.sort(distance[1:, 1:] + np.diag(np.full(size, np.inf)), axis=1)[:, : min(10, size - 1)].mean(1)
    order = np.argsort(distance[0, 1:] / np.sqrt(r), kind="stable")
    assert reranker("cdm").rerank(some_list).ids.tolist() == some_list.ids[order].tolist()


@pytest.mark.parametrize("damping", [0.5, 0.85, 0.99])
def test_visualrank_solves_its_equation(some_list: Candidates, damping: float) -> None:
    """Power iteration against (I - d S)^-1 (1 - d) p."""
    table, k, gamma = dense(some_list), 20, 6
    size = len(table)
    lists = [nearest(table[i], k, i) for i in range(size)]
    walk = np.zeros((size, size))
    for i in range(size):
        for j in lists[i]:
            if i in lists[j]:
                walk[i, j] = max(table[i, j], 0) ** gamma
    sums = walk.sum(0)
    walk /= np.where(sums > 0, sums, 1)
    start = np.eye(size)[0] * (1 - damping)
    expected = np.linalg.solve(np.eye(size) - damping * walk, start)[1:]
    spec = f"visualrank:damping={damping},k={k},gamma={gamma}"
    np.testing.assert_allclose(in_order(some_list, spec), expected, atol=1e-4)


def test_nodes_without_neighbours_keep_the_first_order() -> None:
    """Negative similarities all round: no walk leaves the query."""
    vectors = np.eye(4) - 0.5
    candidates = Candidates.from_vectors(-vectors.sum(0) + vectors[0], vectors)
    assert reranker("visualrank").rerank(candidates).ids.tolist() == candidates.ids.tolist()


@pytest.mark.parametrize(
    "spec",
    ["kreciprocal:k1=0", "kreciprocal:mix=2", "gnn:k2=0", "gnn:mix=-1", "cdm:k=0", "visualrank:damping=1"],
)
def test_parameters_without_meaning_are_refused(spec: str) -> None:
    with pytest.raises(SpecError, match="must"):
        reranker(spec)
