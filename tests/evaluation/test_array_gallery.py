"""The read-only view of arrays keeps what a gallery promises, mapped or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinrank.errors import InputError
from kinrank.evaluation import array_gallery
from kinrank.evaluation.array_gallery import ArrayGallery, top


@pytest.fixture
def rows() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32) * 7


def mapped(folder: Path, rows: np.ndarray) -> np.ndarray:
    np.save(folder / "rows.npy", rows.astype(np.float16))
    return np.load(folder / "rows.npy", mmap_mode="r")


def test_same_answers_as_the_plain_gallery(rows: np.ndarray, memory_gallery: Any, tmp_path: Path) -> None:
    half = rows[200:].astype(np.float16).astype(np.float32)
    truth = memory_gallery(np.concatenate([rows[:200], half]))
    view = ArrayGallery(rows[:200], mapped(tmp_path, rows[200:]))
    assert (len(view), view.dim) == (len(truth), truth.dim)
    np.testing.assert_array_equal(view.ids(), truth.ids())
    np.testing.assert_allclose(view.vectors([299, 0, 250]), truth.vectors([299, 0, 250]), atol=1e-6)
    np.testing.assert_allclose(
        np.concatenate([block for _, block in view.blocks(64)]), truth.vectors(truth.ids()), atol=1e-6
    )
    np.testing.assert_array_equal(np.concatenate([ids for ids, _ in view.blocks(64)]), truth.ids())
    found, expected = view.search(rows[7], 20), truth.search(rows[7], 20)
    np.testing.assert_array_equal(found.ids, expected.ids)
    queries = truth.vectors([3, 4, 5])
    ids, scores = view.search_ids(queries, 30)
    wanted_ids, wanted_scores = truth.search_ids(queries, 30)
    np.testing.assert_array_equal(ids, wanted_ids)
    np.testing.assert_allclose(scores, wanted_scores, atol=1e-6)
    assert view.search_ids(queries, 10**6)[0].shape == (3, 300)
    assert [len(part) for part in view.changes_since(0)] == [0, 0]


def test_blocks_of_scores_agree(rows: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    view = ArrayGallery(rows)
    whole = view.search_ids(view.vectors(np.arange(50)), 9)
    monkeypatch.setattr(array_gallery, "BLOCK_BYTES", 4 * 8 * 7)  # seven rows a block, one query a block
    small = view.search_ids(view.vectors(np.arange(50)), 9)
    np.testing.assert_array_equal(whole[0], small[0])


def test_top_keeps_the_order_of_ties() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        scores = rng.integers(0, 4, rng.integers(1, 30)).astype(np.float32)
        k = int(rng.integers(1, 32))
        np.testing.assert_array_equal(top(scores, k), np.argsort(-scores, kind="stable")[:k])


def test_bad_rows_are_named(rows: np.ndarray, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="with one d for all"):
        ArrayGallery(rows, rows[:, :4])
    with pytest.raises(InputError, match="no rows"):
        ArrayGallery(rows).vectors([300])
    rows[5] = 0
    with pytest.raises(InputError, match=r"far row 5.*zero vector"):
        ArrayGallery(np.ones((1, 8)), mapped(tmp_path, rows), names=["near", "far"]).scores(rows[:1])
