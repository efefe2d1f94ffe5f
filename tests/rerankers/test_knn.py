"""The neighbour graph of a gallery: against the dense table, after changes, after an interruption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinrank.errors import NotFittedError
from kinrank.gallery.gallery import Gallery
from kinrank.rerankers import knn, knn_search, knn_work, state
from kinrank.rerankers.knn import KnnGraph, build

FIELDS = ("ids", "neighbours", "similarities", "farthest", "lowest", "cells")


def assert_equal(left: KnnGraph, right: KnnGraph) -> None:
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name), err_msg=name)


def dense(vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Neighbours by a full sort in double precision."""
    table = vectors.astype(np.float64) @ vectors.astype(np.float64).T
    lowest = table.min(1)
    np.fill_diagonal(table, -np.inf)
    order = np.argsort(-table, axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(table, order, 1), lowest


@pytest.mark.parametrize("size", [2, 3, 17, 400])
def test_as_the_dense_table(memory_gallery: Any, size: int) -> None:
    vectors = np.random.default_rng(0).normal(size=(size, 24))
    gallery = memory_gallery(vectors)
    graph = KnnGraph.of(gallery, 10)
    assert graph.k == 16
    k = min(16, size - 1)
    order, cosines, lowest = dense(gallery._vectors, k)
    np.testing.assert_array_equal(graph.neighbours[:, :k], order)
    np.testing.assert_allclose(graph.similarities[:, :k], cosines, atol=1e-6)
    np.testing.assert_allclose(graph.lowest, lowest, atol=1e-6)
    assert (graph.neighbours[:, k:] == -1).all()
    assert graph.top(3)[0].shape == (size, 3)


def test_a_single_item(memory_gallery: Any) -> None:
    graph = KnnGraph.of(memory_gallery(np.eye(1, 4)), 5)
    assert (graph.neighbours == -1).all()
    assert (graph.similarities == 0).all()


def test_many_ties_fall_to_the_earlier_row(memory_gallery: Any) -> None:
    rng = np.random.default_rng(1)
    vectors = np.repeat(rng.normal(size=(4, 37)), 60, axis=0)
    graph = build(memory_gallery(vectors), 16)
    assert graph.neighbours[0].tolist() == list(range(1, 17))
    assert graph.neighbours[70].tolist() == [60 + i for i in range(17) if i != 10]


def change(gallery: Any, rng: np.random.Generator, replace: bool = True) -> None:
    dim = gallery.dim
    gallery.add(np.arange(9000, 9040), rng.normal(size=(40, dim)))
    gallery.remove(gallery.ids()[rng.choice(300, 25, replace=False)])
    if replace:
        some = gallery.ids()[rng.choice(300, 10, replace=False)]
        gallery.add(some, rng.normal(size=(10, dim)))
    gallery.add([9100], gallery.vectors(gallery.ids()[:1]))  # a copy of another


@pytest.mark.parametrize("kind", ["exact", "cells"])
def test_an_update_equals_a_rebuild(memory_gallery: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knn_search, "EXACT_LIMIT", 100 if kind == "cells" else 10_000)
    monkeypatch.setattr(knn_search, "PROBES", 5)
    rng = np.random.default_rng(2)
    gallery = memory_gallery(rng.normal(size=(500, 16)))
    graph = KnnGraph.of(gallery, 16)
    assert (len(graph.centroids) > 1) == (kind == "cells")
    for _ in range(3):
        change(gallery, rng)
        graph = graph.updated(gallery)
        assert graph is not None
        assert_equal(graph, build(gallery, 16, centroids=graph.centroids))
        assert graph.revision == gallery.revision


def test_only_removed_and_only_added(memory_gallery: Any) -> None:
    rng = np.random.default_rng(3)
    gallery = memory_gallery(rng.normal(size=(200, 16)), [f"name {i}" for i in range(200)])
    graph = KnnGraph.of(gallery, 16)
    gallery.remove(gallery.ids()[5:15])
    graph = graph.updated(gallery)
    assert_equal(graph, build(gallery, 16))
    gallery.add(["x", "y"], rng.normal(size=(2, 16)))
    graph = graph.updated(gallery)
    assert_equal(graph, build(gallery, 16))
    assert graph.rows(np.array(["y", "nobody", "name 3"])).tolist() == [191, -1, 3]


def test_cells_find_most_neighbours(
    memory_gallery: Any, clusters: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors, _ = clusters(classes=100, size=20, dim=32, noise=0.7, seed=5)
    exact = build(memory_gallery(vectors), 10)
    monkeypatch.setattr(knn_search, "EXACT_LIMIT", 100)
    rough = build(memory_gallery(vectors), 10)
    assert len(rough.centroids) == 44
    shared = [len(np.intersect1d(a, b)) for a, b in zip(exact.neighbours, rough.neighbours)]
    assert np.mean(shared) / 10 > 0.95


@pytest.mark.shared
@pytest.mark.parametrize("name", ["grocery_mbv2", "omniglot_effl0"])
def test_cells_find_most_neighbours_of_real_features(
    memory_gallery: Any, shared_data: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight of some fifty cells; a large gallery has more, finer cells, and searches 24."""
    gallery = memory_gallery(np.load(shared_data / f"{name}.npz")["vectors"][::2])
    exact = build(gallery, 20)
    monkeypatch.setattr(knn_search, "EXACT_LIMIT", 100)
    monkeypatch.setattr(knn_search, "PROBES", 8)
    rough = build(gallery, 20)
    shared = [len(np.intersect1d(a, b)) for a, b in zip(exact.neighbours, rough.neighbours)]
    assert np.mean(shared) / 20 > 0.85


def with_path(gallery: Any, path: Path) -> Any:
    gallery.path = path
    return gallery


def test_stored_beside_the_gallery_and_kept_in_step(memory_gallery: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    gallery = with_path(memory_gallery(rng.normal(size=(400, 16))), tmp_path / "photos.kin")
    first = KnnGraph.of(gallery, 20)
    folder = tmp_path / "photos.kin.fit" / "one" / "knn-32"
    stamp = (folder / "manifest.json").stat().st_mtime_ns
    assert_equal(first, KnnGraph.of(gallery, 5))  # a larger graph serves
    assert (folder / "manifest.json").stat().st_mtime_ns == stamp
    change(gallery, rng)
    assert_equal(KnnGraph.of(gallery, 20), build(gallery, 32))
    for file in folder.glob("similarities*.npy"):
        file.write_bytes(file.read_bytes()[:50])
    assert_equal(KnnGraph.of(gallery, 20), build(gallery, 32))  # damaged: built again


def test_another_gallery_at_the_same_path_is_not_believed(memory_gallery: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    KnnGraph.of(with_path(memory_gallery(rng.normal(size=(80, 16))), tmp_path / "g"), 8)
    other = with_path(memory_gallery(rng.normal(size=(90, 16)), np.arange(90) + 7), tmp_path / "g")
    other.add([1], rng.normal(size=(1, 16)))
    assert_equal(KnnGraph.of(other, 8), build(other, 16))


def test_a_gallery_made_again_at_the_same_path(tmp_path: Path) -> None:
    """The same ids at the same revision, but other vectors: as when a folder is indexed anew."""
    rng = np.random.default_rng(9)
    for _ in range(2):
        path = tmp_path / "g.kin"
        path.unlink(missing_ok=True)
        with Gallery.create(path, dim=16) as gallery:
            gallery.add(np.arange(60), rng.normal(size=(60, 16)))
            assert_equal(KnnGraph.of(gallery, 8), build(gallery, 16))
        with Gallery.open(path) as gallery:
            gallery.add([99, 3], rng.normal(size=(2, 16)))
            gallery.remove([5])
            assert_equal(KnnGraph.of(gallery, 8), build(gallery, 16))
    assert len(list((tmp_path / "g.kin.fit").iterdir())) == 1


def test_an_interrupted_build_resumes(
    memory_gallery: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(knn, "CHUNK", 50)
    gallery = with_path(memory_gallery(np.random.default_rng(8).normal(size=(300, 16))), tmp_path / "g")
    search, calls = knn.search, []

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return search(*args, **kwargs)

    monkeypatch.setattr(knn, "search", interrupted)
    with pytest.raises(KeyboardInterrupt):
        KnnGraph.of(gallery, 8)
    graph = KnnGraph.of(gallery, 8)
    assert len(calls) == 4 + 3, "three of six parts were there already"
    monkeypatch.setattr(knn, "search", search)
    assert_equal(graph, build(memory_gallery(gallery._vectors), 16))
    assert not list((tmp_path / "g.fit" / "one" / "building").iterdir())


def test_stale_state_is_refused(memory_gallery: Any) -> None:
    gallery = memory_gallery(np.eye(3))
    state.require_current(gallery, gallery.revision, "adba")
    with pytest.raises(NotFittedError, match=r"revision 0 .* fit"):
        state.require_current(gallery, 0, "adba")


def test_state_of_another_format_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state.save(tmp_path / "x", {"a": np.arange(3)}, revision=4)
    arrays, meta = state.load(tmp_path / "x") or ({}, {})
    assert arrays["a"].tolist() == [0, 1, 2]
    assert meta == {"revision": 4}
    monkeypatch.setattr(state, "FORMAT", 2)
    assert state.load(tmp_path / "x") is None
    assert state.spec_name("adba", k=3) != state.spec_name("adba", k=4)


def test_where_nothing_can_be_written_it_stays_in_the_process(
    memory_gallery: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "g.fit").write_text("a file stands where the folder should be")
    gallery = with_path(memory_gallery(np.random.default_rng(10).normal(size=(60, 8))), tmp_path / "g")
    monkeypatch.setattr(knn, "CHUNK", 20)
    monkeypatch.setattr(knn_work, "IN_MEMORY", 0)
    assert_equal(KnnGraph.of(gallery, 8), build(memory_gallery(gallery._vectors), 16))


def test_vectors_beyond_memory_are_mapped(
    memory_gallery: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery = with_path(memory_gallery(np.random.default_rng(11).normal(size=(60, 8))), tmp_path / "g")
    expected = build(memory_gallery(gallery._vectors), 16)
    monkeypatch.setattr(knn_work, "IN_MEMORY", 0)
    assert_equal(KnnGraph.of(gallery, 8), expected)
    assert not list((tmp_path / "g.fit" / "one" / "building").iterdir())


def test_a_larger_graph_takes_the_place_of_a_smaller(memory_gallery: Any, tmp_path: Path) -> None:
    gallery = with_path(memory_gallery(np.random.default_rng(12).normal(size=(60, 8))), tmp_path / "g")
    for k in (8, 20, 8):
        KnnGraph.of(gallery, k)
    assert [p.name for p in (tmp_path / "g.fit" / "one").glob("knn-*")] == ["knn-32"]
