"""The honest protocol: what a fold may learn from, and gains against scikit-learn's average precision."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from kinrank.benchmarks import universal
from kinrank.spec import reranker


def test_a_fold_shares_neither_images_nor_backbone():
    files = [Path(f"{images}_{net}.npz") for images in ("shoes", "old_shoes") for net in ("a", "b")]
    fold = universal.fold_of(Path("shoes_a.npz"), files)
    assert [f.stem for f in fold.taught] == ["old_shoes_b"]


def test_gains_are_those_of_a_written_out_loop(monkeypatch):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(8), 6)
    vectors = rng.normal(size=(8, 10))[labels] + 1.5 * rng.normal(size=(48, 10))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    monkeypatch.setattr(universal, "QUERIES", 48)
    monkeypatch.setattr(universal, "LENGTHS", (20,))
    found = universal.judge_rows(vectors, labels, reranker("aqe:k=3"))[20]
    gains = []
    for q in range(48):
        others = np.delete(np.arange(48), q)
        scores = vectors[others] @ vectors[q]
        order = np.argsort(-scores)
        moved = vectors[q] + vectors[others][order[:3]].sum(0)
        tail = np.argsort(order) >= 20  # keeps its order, below the head
        again = np.where(tail, scores - 100, vectors[others] @ moved)
        relevant = labels[others] == labels[q]
        change = average_precision_score(relevant, again) - average_precision_score(relevant, scores)
        gains.append([change, float(relevant[np.argmax(again)]) - float(relevant[np.argmax(scores)])])
    assert found == pytest.approx(100 * np.mean(gains, axis=0), abs=1e-3)
