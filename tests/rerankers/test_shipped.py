"""The shipped model: what a user gets right after the core install."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.metrics import average_precision_score

import kinrank
from kinrank.models.shipped import CSA
from kinrank.types import Candidates


def a_list(k: int, d: int = 24, seed: int = 0) -> Candidates:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(6, d))
    rows = centres[rng.integers(6, size=k)] + rng.normal(size=(k, d))
    return Candidates.from_vectors(centres[0] + rng.normal(size=d), rows)


def test_it_is_the_default_and_small():
    files = list(Path(CSA.folder).iterdir())
    assert {"model.onnx", "model.safetensors", "config.json", "card.md"} <= {f.name for f in files}
    assert sum(f.stat().st_size for f in files) < 12e6
    assert kinrank.rerank(np.ones(3), np.eye(3)[:, [2, 0, 1]]).ids.tolist() == [0, 1, 2]  # all equal: stable


@pytest.mark.parametrize("k", [2, 3, 19, 64, 65, 300, 2048])
def test_any_length_and_similarities_alone_give_the_same_order(k):
    candidates = a_list(k)
    found = kinrank.rerank(candidates.query, candidates.vectors, candidates.ids)
    alone = kinrank.rerank(similarities=candidates.affinity(), ids=candidates.ids)
    assert sorted(found.ids.tolist()) == list(range(k))
    np.testing.assert_allclose(found.scores, alone.scores, atol=2e-3)


def test_a_rotation_or_another_scale_of_similarities_changes_no_score():
    candidates = a_list(120)
    method = kinrank.reranker("csa")
    scores = method.score(candidates)
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(24, 24)))[0]
    turned = Candidates(candidates.ids, candidates.scores, candidates.vectors @ turn, candidates.query @ turn)
    np.testing.assert_allclose(method.score(turned), scores, atol=1e-2)
    scaled = Candidates.from_similarities(0.3 * candidates.affinity() + 0.6, candidates.ids)
    assert np.corrcoef(method.score(scaled), scores)[0, 1] > 0.999


def test_onnx_is_the_torch_model_of_the_weights_beside_it():
    torch = pytest.importorskip("torch")
    from kinrank.training.export import load_model

    model, recipe = load_model(CSA.folder)
    assert recipe.name == "universal"
    for k in (5, 100, 400):
        candidates = a_list(k)
        with torch.no_grad():
            expected = model(torch.from_numpy(candidates.affinity().copy())[None])[0].numpy()
        np.testing.assert_allclose(kinrank.reranker("csa").score(candidates), expected, atol=2e-4)


def test_pixels_of_digits_that_no_training_saw_gain():
    """Raw pixels of handwritten digits, leave-one-out, against scikit-learn's average precision."""
    data = load_digits()
    vectors = (data.data / np.linalg.norm(data.data, axis=1, keepdims=True)).astype(np.float32)
    lists, before, after = [], [], []
    for q in range(0, len(vectors), 60):
        others = np.flatnonzero(np.arange(len(vectors)) != q)
        lists.append(Candidates.from_vectors(vectors[q], vectors[others], others, k=400))
    for q, candidates, ranking in zip(
        range(0, len(vectors), 60), lists, kinrank.reranker("csa").rerank_many(lists)
    ):
        for values, ids in ((before, candidates.ids), (after, ranking.ids)):
            relevant = data.target[ids] == data.target[q]
            values.append(100 * average_precision_score(relevant, -np.arange(400)))
    assert np.mean(after) > np.mean(before) + 4
