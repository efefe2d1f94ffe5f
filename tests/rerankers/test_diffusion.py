"""dfs, diffusion and fsr against the closed form (I - alpha S)^-1 y on dense matrices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from kinrank.errors import InputError, NotFittedError, SpecError
from kinrank.rerankers import columns as columns_module
from kinrank.rerankers import local_flow as local_flow_module
from kinrank.rerankers.dfs import DFS
from kinrank.rerankers.diffusion import Diffusion
from kinrank.rerankers.fsr import FSR
from kinrank.rerankers.gss import GSS
from kinrank.rerankers.local_flow import local_flow
from kinrank.rerankers.manifold import GalleryMatrix, mutual_graph, normalised, solve
from kinrank.types import Candidates

METHODS = {
    "dfs": lambda **more: DFS(iterations=150, tolerance=1e-7, **more),
    "diffusion": lambda **more: Diffusion(iterations=150, tolerance=1e-7, n=10_000, **more),
    "fsr": lambda **more: FSR(r=10_000, **more),
    "fsr as published": lambda **more: FSR(r=10_000, sharp=0, **more),
}


def dense_weights(vectors: np.ndarray, k: int, gamma: float) -> np.ndarray:
    """W as the paper writes it, edge by edge."""
    size = len(vectors)
    near = []
    for i in range(size):
        others = sorted((j for j in range(size) if j != i), key=lambda j: (-(vectors[i] @ vectors[j]), j))
        near.append(set(others[:k]))
    weights = np.zeros((size, size))
    for i in range(size):
        for j in near[i]:
            if i in near[j]:
                weights[i, j] = max(0.0, float(vectors[i] @ vectors[j])) ** gamma
    return weights


def closed_form(weights: np.ndarray, y: np.ndarray, alpha: float) -> np.ndarray:
    degrees = weights.sum(1)
    degrees[degrees == 0] = 1
    s = weights / np.sqrt(np.outer(degrees, degrees))
    return np.linalg.solve(np.eye(len(s)) - alpha * s, y)


def expected(vectors: np.ndarray, candidates: Candidates, rows: Any, k: int, kq: int, alpha: float) -> Any:
    y = np.zeros(len(vectors))
    for place in range(min(kq, len(candidates))):
        y[rows[place]] = max(0.0, float(candidates.vectors[place] @ candidates.query)) ** 3
    return closed_form(dense_weights(vectors, k, 3.0), y, alpha)[rows]


@pytest.fixture(scope="module")
def world(clusters: Any) -> tuple[np.ndarray, np.ndarray]:
    vectors, _ = clusters(classes=12, size=25, dim=16, noise=0.9, seed=5)
    query = vectors[3] + 0.2 * np.random.default_rng(1).normal(size=16).astype(np.float32)
    return vectors, query


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("alpha", [0.9, 0.99])
def test_the_gallery_form_is_the_closed_form(
    name: str, alpha: float, world: Any, memory_gallery: Any
) -> None:
    vectors, query = world
    gallery = memory_gallery(vectors, ids=np.arange(len(vectors)) + 1000)
    candidates = gallery.search(query, 120)
    scores = METHODS[name](k=8, kq=6, alpha=alpha).fit(gallery).score(candidates)
    right = expected(vectors, candidates, candidates.ids - 1000, 8, 6, alpha)
    assert right.max() > 1
    np.testing.assert_allclose(scores, right, atol=1e-4 * right.max())


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 60, 300])
def test_the_list_form_is_the_closed_form(name: str, size: int, world: Any) -> None:
    vectors, query = world
    candidates = Candidates.from_vectors(query, vectors, k=size)
    scores = METHODS[name](k=8, kq=6).score(candidates)
    rows = np.arange(size)
    right = expected(candidates.vectors, candidates, rows, 8, 6, 0.99)
    np.testing.assert_allclose(scores, right, atol=1e-4 * right.max())


@pytest.mark.parametrize("name", METHODS)
def test_without_an_edge_the_first_order_stands(name: str, memory_gallery: Any) -> None:
    vectors = np.eye(9, 12, dtype=np.float32)
    query = np.zeros(12, np.float32)
    query[[4, 2, 7]] = (0.9, 0.5, 0.3)
    for ready in (METHODS[name](), METHODS[name]().fit(memory_gallery(vectors))):
        candidates = Candidates.from_vectors(query, vectors)
        assert ready.rerank(candidates).ids.tolist() == candidates.ids.tolist()


@pytest.mark.parametrize("name", METHODS)
def test_what_is_not_reached_follows_in_its_first_order(name: str, memory_gallery: Any) -> None:
    rng = np.random.default_rng(2)
    near = np.concatenate([np.ones((10, 1)), 0.1 * rng.normal(size=(10, 5))], axis=1)
    far = np.concatenate([0.2 * np.ones((10, 1)), rng.normal(size=(10, 5)) * [1, 1, 1, 1, 4]], axis=1)
    vectors = np.concatenate([near, far]).astype(np.float32)
    query = np.eye(6, dtype=np.float32)[0]
    candidates = Candidates.from_vectors(query, vectors)
    ranking = METHODS[name](k=3, kq=2).rerank(candidates)
    rest = ranking.ids[ranking.scores == 0]
    assert len(rest) >= 5
    first = [i for i in candidates.ids.tolist() if i in set(rest.tolist())]
    assert rest.tolist() == first


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("size", [3, 4, 11])
def test_small_galleries_and_short_lists(name: str, size: int, world: Any, memory_gallery: Any) -> None:
    vectors, query = world
    gallery = memory_gallery(vectors[:size])
    method = METHODS[name]().fit(gallery)
    for k in (1, 2, size):
        candidates = gallery.search(query, k)
        right = expected(vectors[:size], candidates, candidates.ids, 20, 5, 0.99)
        np.testing.assert_allclose(method.score(candidates), right, atol=1e-4 * right.max())


@pytest.mark.parametrize("name", METHODS)
def test_an_update_is_a_rebuild(name: str, world: Any, memory_gallery: Any) -> None:
    vectors, query = world
    rng = np.random.default_rng(3)
    gallery = memory_gallery(vectors[:260])
    method = METHODS[name](k=8)
    method.fit(gallery)
    gallery.remove([5, 77, 78])
    gallery.add(np.arange(260, 270), vectors[260:270])
    gallery.add([9], vectors[[9]] + 0.1 * rng.normal(size=16))
    candidates = gallery.search(query, 100)
    with pytest.raises(NotFittedError, match="fit"):
        method.rerank(candidates)
    again = method.fit(gallery).score(candidates)
    anew = METHODS[name](k=8).fit(memory_gallery(gallery._vectors, gallery.ids())).score(candidates)
    np.testing.assert_allclose(again, anew, rtol=1e-5, atol=1e-5)


def test_a_truncated_update_makes_only_the_stale_flows_anew(
    world: Any, memory_gallery: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors, _ = world
    gallery = memory_gallery(vectors[:290])
    method = Diffusion(k=6, n=12).fit(gallery)
    made = []
    plain = columns_module.column
    monkeypatch.setattr(columns_module, "column", lambda *a, **b: made.append(a[1]) or plain(*a, **b))
    gallery.remove([4])
    gallery.add([290, 291], vectors[290:292])
    method.fit(gallery)
    assert 2 <= len(made) < 200, "some flows are kept"
    fresh = Diffusion(k=6, n=12).fit(memory_gallery(gallery._vectors, gallery.ids()))
    assert method.columns is not None and fresh.columns is not None
    np.testing.assert_array_equal(method.columns.nodes, fresh.columns.nodes)
    np.testing.assert_array_equal(method.columns.flows, fresh.columns.flows)


def test_few_changes_extend_the_spectrum(world: Any, memory_gallery: Any) -> None:
    vectors, query = world
    gallery = memory_gallery(vectors[:297])
    method = FSR(k=10, r=60).fit(gallery)
    gallery.add([297, 298], vectors[297:299])
    method.fit(gallery)
    assert method.spectrum is not None and method.spectrum.touched == 2
    fresh = FSR(k=10, r=60).fit(memory_gallery(gallery._vectors, gallery.ids()))
    candidates = gallery.search(query, 100)
    near, anew = method.score(candidates), fresh.score(candidates)
    assert np.corrcoef(near, anew)[0, 1] > 0.98
    gallery.add(np.arange(400, 440), np.roll(vectors[:40], 3, axis=1))
    assert method.fit(gallery).spectrum.touched == 0, "many changes: made anew"


def test_stored_flows_are_loaded_and_resumed(
    world: Any, memory_gallery: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors, query = world
    monkeypatch.setattr(columns_module, "CHUNK", 50)
    plain = columns_module.column
    made: list[int] = []

    def interrupted(*arguments: Any, **more: Any) -> Any:
        if len(made) == 120:
            raise KeyboardInterrupt
        made.append(arguments[1])
        return plain(*arguments, **more)

    monkeypatch.setattr(columns_module, "column", interrupted)
    gallery = memory_gallery(vectors)
    gallery.path = tmp_path / "g.kin"
    with pytest.raises(KeyboardInterrupt):
        Diffusion(n=40).fit(gallery)
    monkeypatch.setattr(columns_module, "column", lambda *a, **b: made.append(a[1]) or plain(*a, **b))
    made.clear()
    method = Diffusion(n=40).fit(gallery)
    assert made == list(range(100, 300)), "two parts of fifty were kept"
    made.clear()
    loaded = Diffusion(n=40).fit(gallery)
    assert made == []
    candidates = gallery.search(query, 50)
    unstored = Diffusion(n=40).fit(memory_gallery(vectors)).score(candidates)
    np.testing.assert_array_equal(method.score(candidates), unstored)
    np.testing.assert_array_equal(loaded.score(candidates), unstored)
    assert not list(tmp_path.rglob("draft-*"))


def test_many_at_once_are_one_product(world: Any, memory_gallery: Any) -> None:
    vectors, _ = world
    gallery = memory_gallery(vectors)
    method = DFS().fit(gallery)
    lists = [gallery.search(q, k) for q, k in zip(vectors[:70], [50, 3, 300] * 30)]
    for ranking, candidates in zip(method.rerank_many(lists), lists):
        alone = method.rerank(candidates)
        np.testing.assert_allclose(np.sort(ranking.scores), np.sort(alone.scores), atol=1e-4)
    assert len(method.rerank_many(lists)) == 70


def test_truncated_to_all_of_a_component_changes_nothing(world: Any, memory_gallery: Any) -> None:
    vectors, query = world
    vectors = np.block([[vectors, 0 * vectors], [0 * vectors, vectors]])  # two parts without an edge between
    gallery = memory_gallery(vectors)
    candidates = gallery.search(np.append(query, 0 * query), 200)
    nodes = GalleryMatrix.of(gallery, 8, 3.0)
    rows = candidates.ids
    part, flow = local_flow(nodes.matrix, rows[:3], candidates.scores[:3] ** 3, 500, 0.99, 150, 1e-7)
    assert len(part) <= 300
    y = np.zeros(600)
    y[rows[:3]] = candidates.scores[:3] ** 3.0
    right = closed_form(dense_weights(vectors, 8, 3.0), y, 0.99)
    assert set(np.flatnonzero(right > 1e-9).tolist()) <= set(part.tolist())
    np.testing.assert_allclose(flow, right[part], atol=1e-4 * right.max())


def test_a_truncated_flow_is_the_closed_form_on_its_nodes(world: Any, memory_gallery: Any) -> None:
    vectors, query = world
    gallery = memory_gallery(vectors)
    candidates = gallery.search(query, 300)
    method = DFS(k=8, kq=4, iterations=200, tolerance=1e-7, truncate=25).fit(gallery)
    scores = method.score(candidates)
    assert 15 <= (scores > 0).sum() <= 25
    dense = method.nodes.matrix.toarray()
    part = np.sort(candidates.ids[scores > 0])
    y = np.zeros(300)
    y[candidates.ids[:4]] = candidates.scores[:4] ** 3.0
    right = np.zeros(300)
    right[part] = np.linalg.solve(np.eye(len(part)) - 0.99 * dense[np.ix_(part, part)], y[part])
    np.testing.assert_allclose(scores, right[candidates.ids], atol=1e-4 * right.max())


def test_flow_goes_where_most_of_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    from scipy.sparse import csr_matrix

    monkeypatch.setattr(local_flow_module, "FIRST", 1)
    chain = np.zeros((6, 6), np.float32)
    for i, j, weight in ((0, 1, 0.5), (0, 2, 0.1), (1, 3, 0.5), (4, 5, 1.0)):
        chain[i, j] = chain[j, i] = weight
    matrix, one = csr_matrix(chain), np.ones(1, np.float32)
    for size, nodes in ((1, [0]), (2, [0, 1]), (3, [0, 1, 3]), (4, [0, 1, 2, 3]), (6, [0, 1, 2, 3])):
        assert np.sort(local_flow(matrix, np.array([0]), one, size, 0.9, 50, 1e-7)[0]).tolist() == nodes


def test_systems_solved_together_are_those_solved_alone(world: Any) -> None:
    vectors, _ = world
    similarities = vectors @ vectors.T
    near = np.argsort(-similarities, axis=1)[:, :9]
    matrix = normalised(mutual_graph(near, np.take_along_axis(similarities, near, 1), 3.0))
    sources = np.random.default_rng(1).random((300, 5)).astype(np.float32)
    sources[:, 3] = 0
    together = solve(matrix, sources, 0.99, 30, 1e-6)
    for column in range(5):
        alone = solve(matrix, sources[:, [column]].copy(), 0.99, 30, 1e-6)[:, 0]
        np.testing.assert_allclose(together[:, column], alone, atol=1e-4 * max(alone.max(), 1))


def test_duplicates_do_not_hide_the_item_itself() -> None:
    near = np.array([[1, 2, 0], [0, 2, 1], [1, 0, 2]])  # the item itself comes last, as ties may have it
    matrix = mutual_graph(near, np.ones((3, 3), np.float32), 3.0)
    np.testing.assert_array_equal(matrix.toarray(), 1 - np.eye(3))


@pytest.mark.parametrize("bad", [{"alpha": 1.0}, {"k": 0}, {"kq": 0}, {"gamma": 0.0}, {"alpha": math.nan}])
@pytest.mark.parametrize("method", [DFS, Diffusion, FSR])
def test_parameters_without_a_solution_are_refused(method: Any, bad: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=next(iter(bad))):
        method(**bad)


@pytest.mark.parametrize("name", METHODS)
def test_ids_of_another_gallery_are_named(name: str, world: Any, memory_gallery: Any) -> None:
    vectors, query = world
    method = METHODS[name]().fit(memory_gallery(vectors))
    with pytest.raises(InputError, match="id 900 is not in the gallery"):
        method.rerank(Candidates.from_vectors(query, vectors[:1], [900]))


@pytest.mark.parametrize("name", ["diffusion", "fsr", "gss"])
def test_where_nothing_can_be_written_the_state_lives_in_memory(
    name: str, world: Any, memory_gallery: Any, tmp_path: Any
) -> None:
    vectors, query = world
    make = {**METHODS, "gss": lambda: GSS(steps=2)}[name]
    gallery = memory_gallery(vectors[:200])
    (tmp_path / "g.kin.fit").write_text("a file where the folder should be")
    gallery.path = tmp_path / "g.kin"
    method = make().fit(gallery)
    gallery.add([200], vectors[[200]])
    scores = method.fit(gallery).score(gallery.search(query, 30))
    fresh = memory_gallery(vectors[:201])
    expected = make().fit(fresh).score(fresh.search(query, 30))
    near = 0.1 if name == "fsr" else 0.02  # fsr extends its spectrum, gss keeps its weights
    np.testing.assert_allclose(scores, expected, atol=near * np.abs(expected).max())
    assert [p.name for p in tmp_path.iterdir()] == ["g.kin.fit"]


def test_eigenvalues_that_were_not_found_count_as_zero(
    clusters: Any, memory_gallery: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import scipy.sparse.linalg as linalg

    vectors, _ = clusters(classes=90, size=8, dim=10, noise=1.5)
    gallery = memory_gallery(vectors)
    candidates = gallery.search(vectors[0] + vectors[1], 50)
    found = FSR(k=10, r=20).fit(gallery)
    plain, calls = linalg.eigsh, []

    def cut_short(*arguments: Any, **more: Any) -> Any:
        calls.append(1)
        return plain(*arguments, **more, maxiter=1)

    monkeypatch.setattr(linalg, "eigsh", cut_short)
    few = FSR(k=10, r=20).fit(memory_gallery(vectors))
    assert calls and (few.spectrum.values == 0).sum() > (found.spectrum.values == 0).sum()
    assert np.isfinite(few.score(candidates)).all()
    assert np.corrcoef(few.score(candidates), found.score(candidates))[0, 1] > 0.5
