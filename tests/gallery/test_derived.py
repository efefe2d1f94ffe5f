"""The derived files: completed, not rebuilt; rebuilt when missing or damaged; never the truth."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinrank.gallery import ivf, scan
from kinrank.gallery.database import Database
from kinrank.gallery.derived import Derived
from kinrank.gallery.gallery import Gallery
from kinrank.types import unit_rows

DIM = 16


def rows(count: int, seed: int = 0, clusters: int = 20) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(clusters, DIM))
    return unit_rows(centres[rng.integers(0, clusters, count)] + 0.5 * rng.normal(size=(count, DIM)))


def state(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((Path(f"{path}.index") / "state.json").read_text())
    return data


def recall(gallery: Gallery, queries: np.ndarray, k: int) -> float:
    """Share of the exact answer that the gallery finds; what it finds must be scored exactly."""
    ids, vectors = gallery.ids(), gallery.vectors(gallery.ids())
    hits = 0
    for query in queries:
        found = gallery.search(query, k)
        assert len(found) == min(k, len(ids))
        np.testing.assert_array_equal(found.scores, scan.score_rows(gallery.vectors(found.ids), found.query))
        hits += len(np.intersect1d(found.ids, ids[scan.nearest(vectors, unit_rows(query[None])[0], k)[0]]))
    return hits / (len(queries) * min(k, len(ids)))


@pytest.fixture
def path(tmp_path: Path, indexed: None) -> Path:
    """3000 vectors, indexed."""
    place = tmp_path / "g.kin"
    with Gallery.create(place, DIM) as gallery:
        gallery.add(np.arange(3000), rows(3000))
    return place


def test_the_index_finds_what_exact_search_finds(path: Path) -> None:
    with Gallery.open(path) as gallery:
        described = state(path)["index"]
        assert described["count"] == 3000 and described["recall"] >= ivf.RECALL
        assert recall(gallery, rows(30, seed=5), 100) >= 0.98
        assert recall(gallery, rows(5, seed=6), 2500) == 1.0  # most of the gallery: read it all
        ids, scores = gallery.search_ids(rows(40, seed=7), 30)
        for query, line, values in zip(rows(40, seed=7), ids, scores):
            found = gallery.search(query, 30)
            np.testing.assert_array_equal(found.ids, line)
            np.testing.assert_array_equal(found.scores, values)


def test_adding_completes_and_does_not_rebuild(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[int] = []
    original = ivf._trained
    monkeypatch.setattr(ivf, "_trained", lambda matrix: trained.append(len(matrix)) or original(matrix))
    with Gallery.open(path) as gallery:
        for number in range(8):
            first = 3000 + 400 * number
            fresh = rows(400, seed=number + 100)
            gallery.add(np.arange(first, first + 400), fresh)
            assert gallery.search(fresh[42], 3).ids[0] == first + 42  # found at once
        assert trained == []
        described = state(path)["index"]
        assert described["trained"] == 3000 and described["count"] > 5000  # grown in the old lists
        assert state(path)["generation"] == 1
        assert recall(gallery, rows(30, seed=5), 100) >= 0.98
        gallery.add(np.arange(6200, 14000), rows(7800, seed=77))
        assert recall(gallery, rows(30, seed=5), 100) >= 0.98
        assert trained == [14000]  # four times as many: lists laid out anew


def test_removed_and_replaced_are_not_found(path: Path) -> None:
    old = rows(3000)
    with Gallery.open(path) as gallery:
        gallery.search(old[0], 5)
        gallery.remove(np.arange(0, 900, 2))
        gallery.add(np.arange(1, 900, 2), -old[1:900:2])
        for query in old[:20]:
            assert gallery.search(query, 50).ids.min() >= 900
        assert recall(gallery, old[:20], 100) >= 0.98
        found, _ = gallery.search_ids(old[:50], 20)
        assert found.min() >= 900


def test_lists_that_were_emptied_do_not_shorten_the_answer(path: Path) -> None:
    old = rows(3000)
    with Gallery.open(path) as gallery:
        near = gallery.search(old[0], 900).ids
        gallery.remove(near)
        assert recall(gallery, old[:1], 250) > 0.5  # its own check: 250 were found, scored exactly


def test_many_removals_begin_a_new_generation(path: Path) -> None:
    with Gallery.open(path) as gallery:
        before = gallery.search(rows(1, seed=5)[0], 2000)
        gallery.remove(np.arange(2000))
        gallery.prepare()
        now = state(path)
        assert now["generation"] == 2 and now["count"] == 1000
        assert recall(gallery, rows(20, seed=5), 100) >= 0.98
        left = before.ids[before.ids >= 2000]
        assert np.isin(left, gallery.search(rows(1, seed=5)[0], 1000).ids).all()
    assert len(list(Path(f"{path}.index").glob("vectors-*"))) == 1
    with Gallery.open(path) as gallery:
        assert recall(gallery, rows(20, seed=5), 100) >= 0.98


DAMAGE = {
    "all gone": lambda folder: shutil.rmtree(folder),
    "state gone": lambda folder: (folder / "state.json").unlink(),
    "state cut": lambda folder: (folder / "state.json").write_text('{"gallery": '),
    "state of another kind": lambda folder: (folder / "state.json").write_text("[1]"),
    "vectors gone": lambda folder: next(folder.glob("vectors-*")).unlink(),
    "vectors cut": lambda folder: _cut(next(folder.glob("vectors-*"))),
    "vectors zero": lambda folder: _fill(next(folder.glob("vectors-*"))),
    "rows cut": lambda folder: _cut(next(folder.glob("rows-*"))),
    "rows zero": lambda folder: _fill(next(folder.glob("rows-*"))),
    "index gone": lambda folder: next(folder.glob("ivf-*")).unlink(),
    "index cut": lambda folder: _cut(next(folder.glob("ivf-*"))),
    "index zero": lambda folder: _fill(next(folder.glob("ivf-*"))),
}


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _fill(path: Path) -> None:
    path.write_bytes(b"\0" * path.stat().st_size)


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_files_are_made_again(path: Path, name: str) -> None:
    DAMAGE[name](Path(f"{path}.index"))
    with Gallery.open(path) as gallery:
        assert recall(gallery, rows(10, seed=5), 100) >= 0.98
        gallery.prepare()
    now = state(path)
    assert now["count"] == 3000 and now["index"]["count"] == 3000
    with Gallery.open(path) as gallery:
        assert recall(gallery, rows(10, seed=5), 100) >= 0.98


def test_files_of_another_history_are_not_believed(path: Path, tmp_path: Path) -> None:
    """A copy put back, then other vectors added: row numbers and counts agree, the contents do not."""
    shutil.copy(path, tmp_path / "copy.kin")
    with Gallery.open(path) as gallery:
        gallery.add(np.arange(3000, 3500), rows(500, seed=1))
    shutil.copy(tmp_path / "copy.kin", path)
    fresh = rows(500, seed=2)
    with Gallery.open(path) as gallery:
        gallery.add(np.arange(3000, 3500), fresh)
        assert gallery.search(fresh[7], 1).ids.tolist() == [3007]
        assert recall(gallery, fresh[:10], 50) >= 0.98


def test_a_half_written_tail_is_overwritten(path: Path) -> None:
    """A process died between appending vectors and saying so."""
    for file in Path(f"{path}.index").glob("*-1.*"):
        if file.suffix != ".faiss":
            with open(file, "ab") as appended:
                appended.write(b"\x07" * 1000)
    fresh = rows(300, seed=3)
    with Gallery.open(path) as gallery:
        gallery.add(np.arange(3000, 3300), fresh)
        gallery.prepare()
        assert [gallery.search(v, 1).ids[0] for v in fresh[:20]] == list(range(3000, 3020))
    assert state(path)["generation"] == 1


def test_another_process_at_the_files_does_not_stop_reading(path: Path) -> None:
    database = Database(path)
    other = Derived(database)
    other.folder.mkdir(exist_ok=True)
    assert other._lock.acquire()
    try:
        with Gallery.open(path) as gallery:
            fresh = rows(200, seed=4)
            gallery.add(np.arange(3000, 3200), fresh)
            assert gallery.search(fresh[9], 1).ids.tolist() == [3009]
            assert recall(gallery, fresh[:5], 50) >= 0.98
    finally:
        other.close()
        database.close()
