"""Query expansion and database augmentation, against loops in double precision and scikit-learn's SVM."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.svm import LinearSVC

from kinrank.errors import InputError, NotFittedError, SpecError
from kinrank.gallery.gallery import Gallery
from kinrank.rerankers import augmentation, knn_work
from kinrank.rerankers.augmentation import DatabaseAugmentation
from kinrank.rerankers.separation import multipliers, normal
from kinrank.spec import reranker
from kinrank.types import Candidates

Weights = Callable[[np.ndarray], np.ndarray]
WEIGHTS: dict[str, Weights] = {
    "adba:k=4": np.ones_like,
    "adbawd:k=4": lambda s: np.array([1, 0.75, 0.5, 0.25])[: len(s)],
    "alphadba:k=4,alpha=3": lambda s: np.maximum(s, 0) ** 3,
}


def plane(points: np.ndarray, signs: np.ndarray, c: float = 1.0) -> np.ndarray:
    """The normal of scikit-learn's linear SVM."""
    svm = LinearSVC(loss="hinge", C=c, tol=1e-10, max_iter=1_000_000).fit(points, signs)
    return svm.coef_[0]


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def augmented(vectors: np.ndarray, k: int, weights: Weights) -> np.ndarray:
    """Every vector with its k nearest others, one at a time."""
    moved = []
    for i, vector in enumerate(vectors.astype(np.float64)):
        cosines = vectors.astype(np.float64) @ vector
        cosines[i] = -np.inf
        near = np.argsort(-cosines, kind="stable")[: min(k, len(vectors) - 1)]
        moved.append(unit(vector + weights(cosines[near]) @ vectors[near]))
    return np.array(moved)


@pytest.mark.parametrize("c", [0.05, 1.0, 20.0])
@pytest.mark.parametrize("size", [7, 40, 120])
def test_the_plane_is_that_of_scikit_learn(c: float, size: int) -> None:
    rng = np.random.default_rng(size)
    points = rng.normal(size=(size, 30))
    points[:4] += 0.7
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    signs = np.where(np.arange(size) < 4, 1, -1)
    a = multipliers((points @ points.T)[None], signs[None], c)[0]
    expected = plane(points, signs, c)
    np.testing.assert_allclose((a * signs) @ points, expected, atol=1e-5)
    np.testing.assert_allclose(normal(points, signs, c), expected, atol=1e-5)


def test_many_planes_at_once_are_as_one_by_one() -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(20, 9, 12))
    signs = np.tile(np.r_[np.ones(3), -np.ones(5), 0], (20, 1))
    gram = points @ points.transpose(0, 2, 1)
    together = multipliers(gram, signs, 1.0)
    for i in range(20):
        alone = multipliers(gram[i : i + 1, :8, :8], signs[i : i + 1, :8], 1.0)[0]
        np.testing.assert_allclose(together[i, :8], alone, atol=1e-5)
        assert together[i, 8] == 0


def test_dqe_ranks_by_scikit_learns_decision(clusters: Any) -> None:
    vectors, _ = clusters(seed=1)
    candidates = Candidates.from_vectors(vectors[3] + 0.1, vectors)
    ranking = reranker("dqe:k=5,negatives=30").rerank(candidates)
    points = np.concatenate([candidates.query[None], candidates.vectors[:5], candidates.vectors[-30:]])
    direction = unit(plane(points, np.r_[np.ones(6), -np.ones(30)]))
    scores = candidates.vectors @ direction
    np.testing.assert_allclose(ranking.scores, np.sort(scores)[::-1], atol=1e-4)
    of_id = dict(zip(candidates.ids.tolist(), scores))  # support vectors lie on one line: they are ties
    np.testing.assert_allclose([of_id[i] for i in ranking.ids.tolist()], np.sort(scores)[::-1], atol=1e-5)


def test_dqe_of_a_short_list_keeps_the_first_order() -> None:
    vectors = np.eye(4)[:2] + 0.2
    candidates = Candidates.from_vectors(vectors[0], vectors)
    assert reranker("dqe").rerank(candidates).ids.tolist() == [0, 1]


@pytest.mark.parametrize("spec", WEIGHTS)
@pytest.mark.parametrize("where", ["gallery", "list"])
def test_dba_is_the_definition(memory_gallery: Any, clusters: Any, spec: str, where: str) -> None:
    vectors, _ = clusters(seed=2)
    candidates = Candidates.from_vectors(vectors[7] + 0.1, vectors, k=30 if where == "gallery" else None)
    method = reranker(spec)
    if where == "gallery":
        method = method.fit(memory_gallery(vectors))
    answer = method.relist(candidates)
    expected = augmented(vectors, 4, WEIGHTS[spec])[answer.ids]
    np.testing.assert_allclose(answer.vectors, expected, atol=1e-5)
    np.testing.assert_allclose(answer.scores, expected @ candidates.query, atol=1e-5)
    assert (np.diff(answer.scores) <= 0).all()


@pytest.mark.parametrize("spec", WEIGHTS)
def test_a_chain_searches_among_the_augmented(memory_gallery: Any, clusters: Any, spec: str) -> None:
    vectors, _ = clusters(seed=3)
    moved = augmented(vectors, 4, WEIGHTS[spec])
    chain = reranker(f"{spec}+aqe:k=3").fit(memory_gallery(vectors))
    candidates = Candidates.from_vectors(vectors[9] + 0.1, vectors, k=20)
    first = candidates.ids[np.argsort(-(moved[candidates.ids] @ candidates.query), kind="stable")]
    query = unit(candidates.query + moved[first[:3]].sum(0))
    found = chain.relist(candidates)
    best = np.argsort(-(moved @ query), kind="stable")[:20]
    # Items that name each other and share the rest of their lists become one vector: ties.
    np.testing.assert_allclose((moved @ query)[found.ids], (moved @ query)[best], atol=1e-5)
    np.testing.assert_allclose(found.scores, (moved @ query)[best], atol=1e-5)


def test_ddba_is_one_svm_an_item(memory_gallery: Any, clusters: Any) -> None:
    vectors, _ = clusters(classes=8, size=8, seed=4)
    gallery = memory_gallery(vectors)
    method = reranker("ddba:k=3,negatives=20").fit(gallery)
    pool = vectors[augmentation._strangers(gallery.ids(), 64)]
    for i in range(0, 64, 9):
        cosines = vectors @ vectors[i]
        cosines[i] = -np.inf
        near = np.argsort(-cosines, kind="stable")[:3]
        far = pool[np.argsort(pool @ vectors[i], kind="stable")[:20]]
        points = np.concatenate([vectors[[i]], vectors[near], far])
        direction = unit(plane(points, np.r_[np.ones(4), -np.ones(20)]))
        np.testing.assert_allclose(method.augmented.vectors([i])[0], direction, atol=1e-4)


def change(gallery: Any, rng: np.random.Generator) -> None:
    gallery.add(np.arange(900, 912), rng.normal(size=(12, gallery.dim)))
    gallery.remove(gallery.ids()[5:12])
    gallery.add(gallery.ids()[20:24], rng.normal(size=(4, gallery.dim)))


@pytest.mark.parametrize("spec", ["adba", "adbawd", "alphadba", "ddba"])
@pytest.mark.parametrize("kind", ["memory", "file"])
def test_an_update_equals_a_rebuild(
    tmp_path: Path, clusters: Any, spec: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(5)
    gallery = Gallery.create("memory:" if kind == "memory" else tmp_path / "g.kin", dim=24)
    gallery.add(np.arange(300), clusters(classes=30, size=10, seed=5)[0])
    first = reranker(spec).fit(gallery)
    change(gallery, rng)
    with pytest.raises(NotFittedError, match="fit"):
        first.rerank(gallery.search(np.ones(24), k=10))
    monkeypatch.setattr(knn_work, "IN_MEMORY", 0)  # large tables go to files
    counted: list[int] = []
    combined = DatabaseAugmentation._combined

    def count(self: Any, vectors: Any, rows: Any, *rest: Any) -> Any:
        counted.append(len(rows))
        return combined(self, vectors, rows, *rest)

    monkeypatch.setattr(DatabaseAugmentation, "_combined", count)
    updated = reranker(spec).fit(gallery).augmented
    assert reranker(spec).fit(gallery).augmented is not None
    assert len(counted) == 1, "the second fit takes what is stored"
    if spec != "ddba":
        assert counted[0] < 250, "not all is made again"
    fresh = Gallery.create("memory:", dim=24)
    for ids, vectors in gallery.blocks():
        fresh.add(ids, vectors)
    rebuilt = reranker(spec).fit(fresh).augmented
    assert updated.ids().tolist() == rebuilt.ids().tolist()
    np.testing.assert_allclose(updated.vectors(updated.ids()), rebuilt.vectors(rebuilt.ids()), atol=1e-6)


def test_fitted_state_is_found_again(tmp_path: Path, clusters: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, _ = clusters(seed=6)
    with Gallery.create(tmp_path / "g.kin", dim=24) as gallery:
        gallery.add([f"bild {i}" for i in range(len(vectors))], vectors)
        expected = reranker("adba+aqe").fit(gallery).rerank(gallery.search(vectors[0], k=40))
    with Gallery.open(tmp_path / "g.kin") as gallery:
        monkeypatch.setattr(DatabaseAugmentation, "_updated", None)  # would be called to build
        again = reranker("adba+aqe").fit(gallery).rerank(gallery.search(vectors[0], k=40))
    assert again.ids.tolist() == expected.ids.tolist()
    assert again.scores.tolist() == expected.scores.tolist()


def test_candidates_of_another_gallery_are_refused(memory_gallery: Any, clusters: Any) -> None:
    vectors, _ = clusters(seed=7)
    method = reranker("adba").fit(memory_gallery(vectors))
    with pytest.raises(InputError, match="id 500 is not in the gallery"):
        method.rerank(Candidates.from_vectors(vectors[0], vectors[:1], [500]))
    with pytest.raises(InputError, match="12 dimensions"):
        method.rerank(Candidates.from_vectors(vectors[0, :12], vectors[:3, :12]))


def test_neighbours_that_cancel_leave_the_item(memory_gallery: Any) -> None:
    vectors = np.array([[1.0, 0], [-1, 0]])
    method = reranker("adba:k=1").fit(memory_gallery(vectors))
    np.testing.assert_array_equal(method.augmented.vectors([0, 1]), vectors)


@pytest.mark.parametrize(
    "spec", ["dqe:k=0", "dqe:negatives=0", "dqe:c=0", "adba:k=0", "alphadba:alpha=-1", "ddba:negatives=0"]
)
def test_parameters_without_meaning_are_refused(spec: str) -> None:
    with pytest.raises(SpecError, match="must"):
        reranker(spec)
