"""The embedded gallery beside bare FAISS: the same vectors, the same query, one after the other."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from tqdm import tqdm

from kinrank.device import threads
from kinrank.gallery import ivf, scan
from kinrank.gallery.gallery import Gallery
from kinrank.types import Array

K = 1024
QUERIES = 30
SEED = 0

_OPEN = """
import resource, sys, time
import numpy as np
from kinrank.gallery.gallery import Gallery
def memory():
    for line in open("/proc/self/smaps_rollup"):
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) / 1024
query = np.random.default_rng(0).normal(size=int(sys.argv[2]))
before, start = memory(), time.perf_counter()
gallery = Gallery.open(sys.argv[1])
opened = time.perf_counter() - start
size, after = len(gallery), memory()
start = time.perf_counter(); gallery.search(query, 1024); first = time.perf_counter() - start
start = time.perf_counter(); gallery.search(query, 1024); second = time.perf_counter() - start
print(size, opened, first, second, after - before, memory() - before)
"""


def run(full: bool = False) -> dict[str, list[dict[str, Any]]]:
    """Latency against bare FAISS, recall of the index, and (`full`) opening a million vectors."""
    import faiss

    faiss.omp_set_num_threads(threads())
    with tempfile.TemporaryDirectory() as folder:
        results = {
            "top-1024 with vectors, 100k x 512": latency(Path(folder), 100_000, 512),
            "recall@1024, 200k x 256, queries that are not in the gallery": recall(Path(folder)),
        }
        if full:
            results["where the index pays, 256 dimensions"] = crossing(Path(folder))
            results["opening 1M x 512"] = [opening(Path(folder), 1_000_000, 512)]
    return results


def clustered(count: int, dim: int, clusters: int, noise: float = 1.0) -> Iterator[Array]:
    """Unit vectors around random centres, in blocks; any part is drawn like any other."""
    rng = np.random.default_rng(SEED)
    centres = rng.standard_normal((clusters, dim), dtype=np.float32)
    for start in range(0, count, 50_000):
        size = min(50_000, count - start)
        rows = centres[rng.integers(0, clusters, size)]
        rows += noise * rng.standard_normal((size, dim), dtype=np.float32)
        yield rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _made(path: Path, matrix: Array, indexed: bool) -> Gallery:
    """A gallery of the matrix, opened anew; `indexed` forces the index or its absence."""
    with index_beyond(0 if indexed else sys.maxsize), Gallery.create(path, matrix.shape[1]) as gallery:
        for start in tqdm(range(0, len(matrix), 50_000), desc=path.name, unit="block"):
            rows = matrix[start : start + 50_000]
            gallery.add(np.arange(start, start + len(rows)), rows)
    return Gallery.open(path)


@contextmanager
def index_beyond(floats: int) -> Iterator[None]:
    """Galleries make an index beyond so many numbers, in place of `ivf.FLAT_FLOATS`."""
    usual, ivf.FLAT_FLOATS = ivf.FLAT_FLOATS, floats
    try:
        yield
    finally:
        ivf.FLAT_FLOATS = usual


def interleaved(
    calls: Mapping[str, Callable[[Array], Any]],
    queries: Array,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median milliseconds of each call, taken in turns so that the machine's moods meet all alike."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call(queries[0])
    for query in queries:
        for name, call in calls.items():
            start = clock()
            call(query)
            taken[name].append(1e3 * (clock() - start))
    return {name: median(times) for name, times in taken.items()}


def _bare(index: Any, matrix: Array) -> Callable[[Array], Array]:
    """FAISS and a gather of the hits' vectors: what a program without a gallery would do."""

    def search(query: Array) -> Array:
        _, found = index.search(query[None], K)
        return matrix[found[0]]

    return search


def latency(folder: Path, count: int, dim: int) -> list[dict[str, Any]]:
    """Gallery.search beside FAISS and a gather, flat and indexed.

    The first searches look the ids of their hits up in the database; later ones have all ids at hand.
    """
    import faiss

    matrix = np.concatenate(list(clustered(count + QUERIES, dim, 1000)))
    matrix, queries = matrix[:count], matrix[count:]
    flat = faiss.IndexFlatIP(dim)
    flat.add(matrix)
    rows = []
    for kind, indexed in (("flat", False), ("indexed", True)):
        gallery = _made(folder / f"{kind}.kin", matrix, indexed)
        gallery.search(queries[0], K)
        bare: Any = flat
        if indexed:
            state = gallery.store._derived.mapped.state.index  # type: ignore[attr-defined]
            bare = faiss.read_index(str(folder / f"{kind}.kin.index" / state.file))
            bare.nprobe = state.probes
        calls: dict[str, Callable[[Array], Any]]
        calls = {"faiss": _bare(bare, matrix), "gallery": partial(gallery.search, k=K)}
        for state in ("first searches", "after a hundred"):
            times = interleaved(calls, queries)
            ratio = times["gallery"] / times["faiss"]
            rows.append(
                {"search": f"{kind}, {state}", "gallery ms": times["gallery"]}
                | {"faiss + gather ms": times["faiss"], "ratio": ratio, "ok (< 2)": ratio < 2}
            )
            for query in queries[np.arange(100) % len(queries)]:
                gallery.search(query, K)
        gallery.close()
    return rows


def recall(folder: Path) -> list[dict[str, Any]]:
    """The index against exact search, easy and hard: clusters smaller than the list make it hard."""
    rows: list[dict[str, Any]] = []
    for clusters in (200, 2000):
        matrix = np.concatenate(list(clustered(200_000 + QUERIES, 256, clusters)))
        matrix, queries = matrix[:-QUERIES], matrix[-QUERIES:]
        start = time.perf_counter()
        gallery = _made(folder / f"recall-{clusters}.kin", matrix, True)
        built = time.perf_counter() - start
        between = queries + np.roll(queries, 1, axis=0)
        between /= np.linalg.norm(between, axis=1, keepdims=True)
        row = {"clusters": clusters, "recall": found(gallery, matrix, queries)}
        row["recall between clusters"] = found(gallery, matrix, between)
        rows.append(row | {"ok (>= 0.98)": row["recall"] >= 0.98, "added and built s": built})
        gallery.close()
    return rows


def found(gallery: Gallery, matrix: Array, queries: Array) -> float:
    """Share of the exact K nearest that the gallery finds; its ids are the row numbers."""
    hits = 0
    for query in queries:
        truth, _, _ = scan.nearest(matrix, query, K)
        hits += len(np.intersect1d(gallery.search(query, K).ids, truth))
    return hits / (K * len(queries))


def crossing(folder: Path) -> list[dict[str, Any]]:
    """Exact against indexed over the gallery's size: where `ivf.FLAT_FLOATS` should lie.

    In CPU time of all threads (OMP_NUM_THREADS=1 makes it one's), which other work does not disturb.
    """
    rows = []
    for count, size in product((50_000, 100_000, 200_000, 400_000), (100, 2000)):
        matrix = np.concatenate(list(clustered(count + QUERIES, 256, count // size)))
        matrix, queries = matrix[:count], matrix[count:]
        pair = {
            kind: _made(folder / f"x{count}-{size}-{kind}.kin", matrix, kind == "index")
            for kind in ("flat", "index")
        }
        calls = {kind: (lambda query, g=gallery: g.search(query, K)) for kind, gallery in pair.items()}
        with index_beyond(sys.maxsize):
            times = interleaved(calls, queries, time.process_time)
        rows.append(
            {"vectors": count, "numbers": count * 256, "to a cluster": size}
            | {"flat CPU ms": times["flat"], "index CPU ms": times["index"]}
        )
        for gallery in pair.values():
            gallery.close()
    return rows


def opening(folder: Path, count: int, dim: int) -> dict[str, Any]:
    """Seconds and anonymous memory of opening and of the first search, in a process of its own."""
    path = folder / "large.kin"
    start = time.perf_counter()
    with Gallery.create(path, dim) as gallery:
        done = 0
        for rows in tqdm(clustered(count, dim, 10_000), total=count // 50_000, desc=path.name, unit="block"):
            gallery.add(np.arange(done, done + len(rows)), rows)
            done += len(rows)
    built = time.perf_counter() - start
    answer = subprocess.run(
        [sys.executable, "-c", _OPEN, str(path), str(dim)], check=True, capture_output=True, text=True
    )
    size, opened, first, second, memory, after = map(float, answer.stdout.split())
    disk = sum(p.stat().st_size for p in folder.glob("large.kin*/*")) + path.stat().st_size
    return {
        "vectors": int(size),
        "added and indexed s": built,
        "open s": opened,
        "ok (< 1 s)": opened < 1,
        "first search s": first,
        "next search s": second,
        "memory after open MB": memory,
        "after search MB": after,
        "on disk GB": disk / 1e9,
    }
