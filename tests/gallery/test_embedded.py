"""What a file promises: it lasts, refuses what it is not, and is shared between processes."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinrank.errors import GalleryError
from kinrank.gallery.gallery import Gallery

RNG = np.random.default_rng(0)
VECTORS = RNG.normal(size=(500, 16))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A gallery of 500 vectors, closed."""
    place = tmp_path / "photos.kin"
    with Gallery.create(place, 16, backbone="net:1") as gallery:
        gallery.add(np.arange(500), VECTORS, [{"path": f"{i}.jpg"} for i in range(500)])
    return place


def holds_all(gallery: Gallery) -> None:
    """The gallery answers as one that was never hurt."""
    reference = Gallery.create("memory:", 16)
    reference.add(np.arange(500), VECTORS)
    assert len(gallery) == 500
    for query in VECTORS[:5] + 0.1:
        found, right = gallery.search(query, 50), reference.search(query, 50)
        np.testing.assert_array_equal(found.ids, right.ids)
        np.testing.assert_array_equal(found.scores, right.scores)
        np.testing.assert_array_equal(found.vectors, right.vectors)


def test_everything_is_there_after_opening(path: Path) -> None:
    with Gallery.open(str(path)) as gallery:
        assert (gallery.dim, gallery.dtype, gallery.backbone, gallery.revision) == (16, "float32", "net:1", 1)
        assert gallery.metadata([7]) == [{"path": "7.jpg"}]
        holds_all(gallery)
    assert sorted(p.name for p in path.parent.iterdir()) == ["photos.kin", "photos.kin.index"]


def test_one_file_is_the_whole_truth(path: Path) -> None:
    """Moved alone under another name, all is there."""
    moved = path.parent / "other place é #1?.kin"
    path.rename(moved)
    with Gallery.open(moved) as gallery:
        holds_all(gallery)


def test_create_never_overwrites(path: Path) -> None:
    with pytest.raises(GalleryError, match="exists; cure"):
        Gallery.create(path, 16)
    with pytest.raises(GalleryError, match="no folder"):
        Gallery.create(path.parent / "missing" / "g.kin", 16)
    assert not list(path.parent.glob("*.new*"))


def test_what_is_no_gallery_is_refused(path: Path) -> None:
    folder = path.parent
    (folder / "text.kin").write_text("hello " * 100)
    (folder / "empty.kin").touch()
    (folder / "short.kin").write_bytes(path.read_bytes()[:50])
    (folder / "cut.kin").write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with sqlite3.connect(folder / "other.kin") as other:
        other.execute("CREATE TABLE meta (key, value)")
    messages = {
        "text.kin": "not a gallery, or it is damaged",
        "empty.kin": "not a gallery",
        "short.kin": "not a gallery, or it is damaged",
        "cut.kin": "damaged",
        "other.kin": "not a gallery of kinrank",
        "none.kin": "there is no gallery.*cure",
        "": "is a folder",
    }
    for name, message in messages.items():
        with pytest.raises(GalleryError, match=message):
            Gallery.open(folder / name)


def test_damage_inside_is_an_error_not_a_wrong_answer(path: Path) -> None:
    """Every page of the file in turn is overwritten: what is read is right, or an error of the gallery."""
    clean, errors = path.read_bytes(), 0
    expected = np.float32(VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True))
    for start in range(0, len(clean), 16384):
        shutil.rmtree(f"{path}.index", ignore_errors=True)
        path.write_bytes(clean[:start] + b"\xff" * 16384 + clean[start + 16384 :])
        try:
            with Gallery.open(path) as gallery:
                np.testing.assert_allclose(gallery.vectors(np.arange(500)), expected, atol=1e-6)
                gallery.metadata(np.arange(500))
                assert gallery.search(VECTORS[0], 3).ids[0] == 0
        except GalleryError as error:
            assert "damaged" in str(error) or "not a gallery" in str(error)
            errors += 1
    assert errors > 3


def test_newer_format_is_refused_politely(path: Path) -> None:
    with sqlite3.connect(path) as raw:
        raw.execute("PRAGMA user_version = 99")
    with pytest.raises(GalleryError, match=r"has format 99.*reads up to 1; cure: pip install --upgrade"):
        Gallery.open(path)


def test_second_writer_gets_a_clear_error_and_readers_go_on(path: Path) -> None:
    first, second = Gallery.open(path), Gallery.open(path)
    first.add([1000], VECTORS[:1])
    for call in (lambda: second.add([1], VECTORS[:1]), lambda: second.remove([1])):
        with pytest.raises(GalleryError, match=f"being written by process {os.getpid()}; cure"):
            call()
    assert len(second) == 501 and second.search(VECTORS[0], 2).ids.tolist() == [0, 1000]
    first.close()
    second.remove([1000])
    assert len(second) == 500
    second.close()


_SMALL = """
import sys
import numpy as np
from kinrank.gallery import ivf
from kinrank.gallery.gallery import Gallery
from kinrank.gallery.stores import embedded
embedded.TAIL_BYTES, embedded.APPEND_BYTES, ivf.FLAT_FLOATS = 500, 2000, 16_000
"""

_WRITER = f"""{_SMALL}
gallery = Gallery.open(sys.argv[1])
rng = np.random.default_rng(1)
for number in range(100):
    gallery.add(np.arange(1000 + 10 * number, 1010 + 10 * number), rng.normal(size=(10, 16)))
    print(number, flush=True)
sys.stdin.read()
"""


_CHURN = f"""{_SMALL}
gallery = Gallery.open(sys.argv[1])
rng = np.random.default_rng(1)
for number in range(6):
    first = 1000 + 1500 * number
    for start in range(first, first + 1500, 300):
        gallery.add(np.arange(start, start + 300), rng.normal(size=(300, 16)))
    gallery.remove(np.arange(first, first + 1400))
    gallery.prepare()
    print(number, flush=True)
"""


def start_writer(path: Path, code: str = _WRITER) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_readers_see_what_another_process_commits(path: Path, small_files: None) -> None:
    """While it writes: whole batches only, the search knows them at once; the lock ends with the process."""
    reader, rng = Gallery.open(path), np.random.default_rng(1)
    writer = start_writer(path)
    assert writer.stdout is not None
    try:
        for number in range(100):
            rows = rng.normal(size=(10, 16))
            assert int(writer.stdout.readline()) == number
            assert len(reader) >= 510 + 10 * number and len(reader) % 10 == 0
            assert reader.search(rows[3], 1).ids.tolist() == [1003 + 10 * number]
        with pytest.raises(GalleryError, match=f"process {writer.pid}"):
            reader.add([1], VECTORS[:1])
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()
    reader.add([5000], VECTORS[:1])
    assert len(reader) == 1501
    reader.close()


def test_readers_go_on_while_files_are_replaced(path: Path, indexed: None) -> None:
    """Another process writes new generations and indices and removes the old ones under the reader."""
    reader, writer, searches = Gallery.open(path), start_writer(path, _CHURN), 0
    generations = set()
    try:
        while writer.poll() is None:
            for number in range(0, 500, 50):
                found = reader.search(VECTORS[number], 20)
                assert found.ids[0] == number and len(found) == 20
                searches += 1
            mapped = reader.store._derived.mapped  # type: ignore[attr-defined]
            generations.add(mapped.state.generation if mapped else None)
            time.sleep(0.01)
        assert writer.returncode == 0
    finally:
        writer.kill()
        writer.communicate()
    assert len(reader) == 500 + 6 * 100 and searches > 20 and len(generations) > 2
    reader.close()


def test_a_full_disk_stores_nothing(path: Path) -> None:
    """SQLite is told that the disk ends where the file does."""
    with Gallery.open(path) as gallery:
        gallery.store._db._sql.execute("PRAGMA max_page_count = 1")  # type: ignore[attr-defined]
        with pytest.raises(GalleryError, match=r"no room left.*nothing was added"):
            gallery.add(np.arange(1000, 1500), VECTORS)
        assert len(gallery) == 500 and gallery.revision == 1
        holds_all(gallery)


def test_an_interrupted_add_stores_nothing(path: Path) -> None:
    def vectors() -> Any:
        yield VECTORS[0].tobytes()
        raise KeyboardInterrupt

    with Gallery.open(path) as gallery:
        database = gallery.store._db  # type: ignore[attr-defined]
        with pytest.raises(KeyboardInterrupt):
            database.put("int", [1, 2000], VECTORS[:2].astype(np.float32), vectors())
        assert gallery.revision == 1 and 2000 not in gallery
        holds_all(gallery)


def test_blocks_show_one_commit(path: Path) -> None:
    with Gallery.open(path) as gallery:
        blocks = gallery.blocks(100)
        ids = [next(blocks)[0]]
        gallery.remove(np.arange(250, 500))
        ids += [part for part, _ in blocks]
        assert np.concatenate(ids).tolist() == list(range(500))
        assert len(gallery) == 250


def test_one_gallery_in_many_threads(path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def work(number: int) -> int:
        if number % 5 == 0:
            gallery.add([1000 + number], VECTORS[number : number + 1] + 5)
        found = gallery.search(VECTORS[number], 3)
        return int(found.ids[0]) if np.array_equal(gallery.vectors(found.ids), found.vectors) else -1

    with Gallery.open(path) as gallery, ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(100))) == list(range(100))
        assert len(gallery) == 520


def test_a_place_that_cannot_be_written_can_be_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests may run as root, whom permissions do not stop; so the answer of the system is replaced."""
    shutil.rmtree(f"{path}.index")
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(Path, "mkdir", _refused)
    before = sorted(p.name for p in path.parent.iterdir())
    with Gallery.open(path) as gallery:
        holds_all(gallery)
        with pytest.raises(GalleryError, match="cannot be written: no permission"):
            gallery.add([1], VECTORS[:1])
    assert sorted(p.name for p in path.parent.iterdir()) == before


def _refused(*_: Any, **__: Any) -> None:
    raise PermissionError(13, "Permission denied")


def test_opening_reads_next_to_nothing(tmp_path: Path) -> None:
    """Pages that the process asked the system for, by a counter of the system."""
    place = tmp_path / "large.kin"
    with Gallery.create(place, 256) as gallery:
        gallery.add(np.arange(20_000), np.random.default_rng(0).normal(size=(20_000, 256)))
    code = (
        "import sys; from kinrank.gallery.gallery import Gallery\n"
        "def read(): return int(open('/proc/self/io').readline().split()[1])\n"
        "Gallery.open(sys.argv[2]).close(); before = read()\n"
        "gallery = Gallery.open(sys.argv[1]); print(len(gallery), read() - before)"
    )
    small = tmp_path / "small.kin"
    Gallery.create(small, 256).close()
    answer = subprocess.run(
        [sys.executable, "-c", code, place, small], capture_output=True, text=True, check=True
    )
    size, read = map(int, answer.stdout.split())
    assert size == 20_000 and read < 500_000 < place.stat().st_size / 40
