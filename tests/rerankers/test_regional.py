"""Regional diffusion against the form that the paper writes out, dense and with loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kinrank.errors import InputError, NotFittedError
from kinrank.rerankers.regional import RegionalDFS, pooling_weights
from kinrank.types import Candidates, unit_rows

K, KQ, ALPHA, GAMMA = 7, 12, 0.9, 3.0


def scene(clusters: Any) -> tuple[np.ndarray, dict[str, list[int]], np.ndarray, Candidates]:
    """(region vectors, image -> region ids, the query's regions, a list of all images)."""
    vectors, _ = clusters(classes=10, size=18, dim=12, noise=0.8, seed=4)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(vectors))
    images, start = {}, 0
    for number in range(60):
        size = 1 + number % 5
        images[f"i{number}"] = [int(r) + 500 for r in order[start : start + size]]
        start += size
    chosen = vectors[[3, 50, 90]] + 0.1 * rng.normal(size=(3, 12))
    means = unit_rows([vectors[np.array(r) - 500].sum(0) for r in images.values()])
    return vectors, images, chosen, Candidates.from_vectors(chosen.mean(0), means, list(images))


def written_out(vectors: Any, images: Any, queries: Any, allowed: Any) -> dict[str, float]:
    queries = unit_rows(queries).astype(np.float64)
    vectors = vectors.astype(np.float64)
    size = len(vectors)
    table = vectors @ vectors.T
    near = [[j for j in np.argsort(-table[i], kind="stable") if j != i][:K] for i in range(size)]
    w = np.zeros((size, size))
    for i in range(size):
        for j in near[i]:
            if i in near[j]:
                w[i, j] = max(0, table[i, j]) ** GAMMA
    d = w.sum(1)
    d[d == 0] = 1
    y = np.zeros(size)
    for q in queries:
        similarities = vectors @ q
        best = [j for j in np.argsort(-similarities, kind="stable") if j in allowed][:KQ]
        for j in best:
            y[j] += max(0, similarities[j])
    y[np.argsort(-y, kind="stable")[KQ:]] = 0
    f = np.linalg.solve(np.eye(size) - ALPHA * w / np.sqrt(np.outer(d, d)), y**GAMMA)
    scores = {}
    for image, regions in images.items():
        rows = np.array(regions) - 500
        v = vectors[rows].T
        scores[image] = float(f[rows] @ np.linalg.inv(v.T @ v + np.eye(len(rows))) @ np.ones(len(rows)))
    return scores


@pytest.mark.parametrize("truncate", [5000, 40])
@pytest.mark.parametrize("whole", [True, False])
def test_it_is_the_form_written_out(whole: bool, truncate: int, clusters: Any, memory_gallery: Any) -> None:
    vectors, images, queries, candidates = scene(clusters)
    if not whole:
        candidates = candidates.head(25)
    gallery = memory_gallery(vectors, np.arange(len(vectors)) + 500)
    method = RegionalDFS(k=K, kq=KQ, alpha=ALPHA, iterations=200, truncate=truncate)
    scores = method.fit_regions(gallery, images).with_regions(queries).score(candidates)
    allowed = {r - 500 for i in candidates.ids.tolist() for r in images[i]}
    right = written_out(vectors, images, queries, allowed)
    expected = np.array([right[i] for i in candidates.ids.tolist()])
    if truncate > len(vectors):
        np.testing.assert_allclose(scores, expected, atol=1e-4 * expected.max())
    else:
        assert np.corrcoef(scores, expected)[0, 1] > 0.95
    assert len(set(np.round(expected, 4))) > 10


def test_one_region_an_image_is_plain_diffusion(clusters: Any, memory_gallery: Any) -> None:
    from kinrank.rerankers.dfs import DFS

    vectors, _ = clusters(classes=10, size=18, dim=12)
    gallery = memory_gallery(vectors)
    candidates = gallery.search(vectors[3] + vectors[7], 180)
    plain = DFS(k=8, kq=6, iterations=100).fit(gallery).score(candidates)
    images = {i: [i] for i in range(180)}
    regional = RegionalDFS(k=8, kq=6, iterations=100).fit_regions(gallery, images).score(candidates)
    np.testing.assert_allclose(2 * regional, plain, atol=1e-4 * plain.max())  # c = 1/2 for a single region


def test_weights_of_repeated_regions_share_one_voice() -> None:
    np.testing.assert_allclose(pooling_weights(np.eye(3)), 0.5)
    np.testing.assert_allclose(pooling_weights(np.tile([[0.6, 0.8]], (4, 1))), 0.2)


def test_errors_say_what(clusters: Any, memory_gallery: Any) -> None:
    vectors, images, _, candidates = scene(clusters)
    gallery = memory_gallery(vectors, np.arange(len(vectors)) + 500)
    with pytest.raises(NotFittedError, match="fit_regions"):
        RegionalDFS().rerank(candidates)
    with pytest.raises(InputError, match="region 7 is not"):
        RegionalDFS().fit_regions(gallery, {"a": [7]})
    with pytest.raises(InputError, match="two images"):
        RegionalDFS().fit_regions(gallery, {"a": [500], "b": [500]})
    with pytest.raises(InputError, match="image b has no region"):
        RegionalDFS().fit_regions(gallery, {"a": [500], "b": []})
    method = RegionalDFS().fit_regions(gallery, {"i0": images["i0"]})
    with pytest.raises(InputError, match="has no regions"):
        method.rerank(candidates)
    with pytest.raises(InputError, match="3 dimensions"):
        RegionalDFS().fit_regions(gallery, images).with_regions(np.eye(3)).rerank(candidates)
    gallery.remove([500])
    with pytest.raises(NotFittedError, match="fit"):
        method.rerank(candidates.take([candidates.ids.tolist().index("i0")], np.ones(1)))
