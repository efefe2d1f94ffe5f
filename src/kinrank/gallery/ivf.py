"""The inverted index for large galleries: FAISS IVF with 8-bit codes, memory-mapped.

It finds a quarter more than was asked for; the caller scores those exactly. How many lists a search visits
is measured when the index is built: the fewest that reach the wanted recall on the gallery's own vectors.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kinrank.gallery import scan
from kinrank.types import Array

FLAT_FLOATS = 1 << 26  # up to this many numbers every row is read; measured: `kinrank bench gallery --full`
DEPTH = 1024  # the k at which recall is measured
RECALL = 0.99
SAMPLE = 64  # vectors that play the query when recall is measured
SEED = 0


@dataclass(frozen=True)
class Description:
    """What the state says of the index."""

    file: str
    size: int  # bytes, to notice a file that was cut
    count: int  # how many of the vectors it holds
    trained: int  # how many there were when its lists were laid out
    lists: int
    probes: int
    recall: float  # at DEPTH, measured with `probes`


def is_due(index: Description | None, count: int, dim: int) -> bool:
    """Whether the index should be made, or take in the vectors that came after it."""
    if index is None:
        return count * dim > FLAT_FLOATS
    return (count - index.count) > max(FLAT_FLOATS // (4 * dim), index.count // 8)


def build(folder: Path, generation: int, matrix: Array, old: Description | None) -> Description:
    """Write an index over all of the matrix; new vectors go into the old lists until there are many more."""
    import faiss

    if old is not None and len(matrix) < 4 * old.trained:
        index: Any = faiss.read_index(str(folder / old.file))
        done, trained = old.count, old.trained
    else:
        index, done, trained = _trained(matrix), 0, len(matrix)
    step = max(1, (1 << 25) // matrix.shape[1])
    for start in range(done, len(matrix), step):
        index.add(np.ascontiguousarray(matrix[start : start + step]))
    probes, recall = _calibrated(index, matrix)
    name = f"ivf-{generation}-{len(matrix)}.faiss"
    new = folder / f"{name}.new-{os.getpid()}"
    faiss.write_index(index, str(new))
    with open(new, "rb") as file:
        os.fsync(file.fileno())
    size = new.stat().st_size
    os.replace(new, folder / name)
    return Description(name, size, len(matrix), trained, index.nlist, probes, recall)


def _trained(matrix: Array) -> Any:
    import faiss

    count, dim = matrix.shape
    lists = max(1, int(2 * count**0.5))
    coarse: Any = faiss.IndexFlatIP(dim)
    index = faiss.IndexIVFScalarQuantizer(
        coarse, dim, lists, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT, False
    )
    index.own_fields = True
    coarse.this.disown()
    index.cp.niter, index.cp.seed, index.cp.min_points_per_centroid = 6, SEED, 1
    some = np.random.default_rng(SEED).choice(count, min(count, 40 * lists), replace=False)
    index.train(np.ascontiguousarray(matrix[np.sort(some)]))
    return index


def _calibrated(index: Any, matrix: Array) -> tuple[int, float]:
    """(lists to visit, the recall that this gives)."""
    queries = _likely_queries(matrix)
    k = min(DEPTH, len(matrix))
    truth, _ = scan.nearest_many(matrix, queries, k)
    recall, probes = 0.0, 1
    for share in (1 / 64, 1 / 32, 1 / 16, 1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2, 3 / 4, 1):
        probes = max(1, round(share * index.nlist))
        hits = 0
        for query, right in zip(queries, truth):
            found = search(index, query[None], k, probes, len(matrix), None)[0]
            best, _, _ = scan.ranked(found, matrix[found], query, k)
            hits += len(np.intersect1d(best, right))
        recall = hits / truth.size
        if recall >= RECALL:
            break
    return probes, recall


def _likely_queries(matrix: Array) -> Array:
    """Vectors of the gallery, and for the first half what lies between two: queries are rarely so typical."""
    some = np.random.default_rng(SEED).choice(len(matrix), min(len(matrix), SAMPLE), replace=False)
    queries = matrix[some]
    half = len(queries) // 2
    queries[:half] += matrix[some[len(some) - half :]]
    lengths = np.linalg.norm(queries, axis=1, keepdims=True)
    return np.ascontiguousarray((queries / lengths)[lengths[:, 0] > 1e-3])


def open_index(folder: Path, description: Description, dim: int) -> Any:
    """The index, mapped into memory; ValueError or RuntimeError when the file cannot be it."""
    import faiss

    path = folder / description.file
    if path.stat().st_size != description.size:
        raise ValueError(f"{path.name} has another size than when it was written")
    index: Any = faiss.read_index(str(path), faiss.IO_FLAG_MMAP)
    if (index.ntotal, index.d, index.nlist) != (description.count, dim, description.lists):
        raise ValueError(f"{path.name} holds something else")
    lists = faiss.downcast_InvertedLists(index.invlists)
    if hasattr(lists, "prefetch_nthread"):
        lists.prefetch_nthread = 0  # threads for reading ahead cost more than the search itself
    return index


def probes_for(description: Description, k: int) -> int:
    """Lists to visit for k: more when more is asked for than recall was measured at."""
    return min(description.lists, -(-description.probes * max(k, DEPTH) // DEPTH))


def search(index: Any, queries: Array, k: int, probes: int, count: int, alive: Array | None) -> list[Array]:
    """For each query the positions, ascending, of a quarter more than k candidates.

    `alive` is a bit a position, least first; None when all are.
    """
    import faiss

    wanted = min(count, k + k // 4 + 16)
    settings: dict[str, Any] = {"nprobe": probes}
    if alive is not None:
        selector: Any = faiss.IDSelectorBitmap  # the wrapper takes an array, its type hints do not say so
        settings["sel"] = selector(alive)
    _, found = index.search(queries, wanted, params=faiss.SearchParametersIVF(**settings))
    return [np.sort(line[line >= 0]) for line in found]
