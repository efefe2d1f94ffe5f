"""Where a test can make a gallery of each registered store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kinrank.gallery.gallery import Gallery
from kinrank.gallery.stores import REGISTRY

Maker = Callable[..., Gallery]


def _location(store: str, folder: Path, number: int) -> str:
    places = {"exact": "memory:", "embedded": str(folder / f"gallery {number}.kin")}
    if store not in places:
        pytest.skip(f"the store '{store}' needs a server; its own tests start one")
    return places[store]


@pytest.fixture(params=[*sorted(REGISTRY), "embedded with small files"])
def make(request: Any, tmp_path: Path) -> Iterator[Maker]:
    """`make(dim, dtype=..., backbone=...)`: an empty gallery of every store in turn."""
    made: list[Gallery] = []
    store, _, small = request.param.partition(" ")
    if small:
        request.getfixturevalue("small_files")

    def maker(dim: int, **options: Any) -> Gallery:
        gallery = Gallery.create(_location(store, tmp_path, len(made)), dim, **options)
        made.append(gallery)
        return gallery

    yield maker
    for gallery in made:
        gallery.close()


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are written and completed at sizes so small that a test's few vectors pass through it all."""
    from kinrank.gallery.stores import embedded

    monkeypatch.setattr(embedded, "TAIL_BYTES", 500)
    monkeypatch.setattr(embedded, "APPEND_BYTES", 2_000)


@pytest.fixture
def indexed(small_files: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small files, and an inverted index from 16 000 numbers on."""
    import faiss

    from kinrank.gallery import ivf

    monkeypatch.setattr(ivf, "FLAT_FLOATS", 16_000)
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)  # for a few vectors, threads on a busy machine only wait for each other
    yield
    faiss.omp_set_num_threads(threads)
