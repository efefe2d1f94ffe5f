"""The methods' speed and memory: against naive forms, on lists, and as the gallery grows.

Each case is a function of `full` in CASES; what a room measures in a file of its own is named there.

    kinrank bench methods [--full] [--json]
    python -m kinrank.benchmarks.methods docs/speed.md [--full]
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from tqdm import tqdm

from kinrank.benchmarks.page import write
from kinrank.benchmarks.published import final_distance
from kinrank.errors import InputError
from kinrank.evaluation.memory import watched
from kinrank.gallery.gallery import Gallery
from kinrank.registry import registry
from kinrank.rerankers.base import Reranker
from kinrank.spec import reranker
from kinrank.types import Array, Candidates, unit_rows

SEED = 0
# Methods that rank a bare list, or would but for a gallery that they use when they have one.
LISTS = tuple(
    """affinity aqe aqewd alphaqe dqe adba adbawd alphadba ddba kreciprocal gnn cdm visualrank dfs superglobal
    gcr rdpac csa""".split()  # noqa: SIM905
)
FITTED = ("alphadba+alphaqe", "kreciprocal", "dfs", "diffusion", "fsr", "gss")


def run(full: bool = False) -> dict[str, Any]:
    """All cases; `full` adds the gallery of a million."""
    results = {}
    for name, case in CASES.items():
        function = case if callable(case) else _imported(case)
        results[name] = function(full)
    return results


def _imported(place: str) -> Callable[[bool], Any]:
    module, _, attribute = place.partition(":")
    found: Callable[[bool], Any] = getattr(import_module(module), attribute)
    return found


def clustered(
    size: int, dim: int, per_class: int, noise: float, seed: int = SEED, per_region: int = 1
) -> Array:
    """Unit vectors (size, dim) in classes of `per_class` around random centres, class after class.

    Centres of `per_region` classes lie around one of their own, as pictures of a kind do.
    """
    rng = np.random.default_rng(seed)
    count = -(-size // per_class)
    centres = rng.normal(size=(count, dim)).astype(np.float32)
    if per_region > 1:
        regions = rng.normal(size=(-(-count // per_region), dim)).astype(np.float32)
        centres += regions[np.arange(count) // per_region]
    rows = np.empty((size, dim), np.float32)
    for start in range(0, size, 65536):
        some = np.arange(start, min(start + 65536, size))
        noisy = centres[some // per_class] + noise * rng.standard_normal((len(some), dim), np.float32)
        rows[some] = unit_rows(noisy)
    return rows


def against_published(
    full: bool = False, size: int = 10_000, dim: int = 512, count: int = 100, k: int = 1024
) -> list[dict[str, Any]]:
    """`kreciprocal` fitted to a gallery, and then some queries, beside the dense form as published.

    The published form ranks all queries as nodes of one graph, ours one at a time. With a class a query,
    and the opposite of each class in the gallery (so that no query is an item's farthest), queries do not
    touch each other: both forms have one answer to find.
    """
    vectors = clustered(size, dim, size // count, noise=1.2)
    own = np.arange(0, size, size // count)  # the first of each class queries, its opposite takes its place
    queries = vectors[own]
    rest = vectors.copy()
    rest[own] = -clustered(count, dim, 1, noise=0.0)
    gallery = Gallery.create("memory:", dim=dim)
    gallery.add(np.arange(size), rest)
    lists = [gallery.search(query, k=k) for query in queries]

    start = time.perf_counter()
    with watched() as ours_memory:
        method = reranker("kreciprocal").fit(gallery)
        fitted = time.perf_counter() - start
        rankings = method.rerank_many(lists)
    ours = time.perf_counter() - start

    start = time.perf_counter()
    with watched() as dense_memory:
        distances = final_distance(queries, rest, 20, 6, 0.3)
    dense = time.perf_counter() - start
    same = []
    for ranking, candidates, all_of_them in zip(rankings, lists, distances):
        best = np.sort(all_of_them[candidates.ids])[:100]  # of the list: the dense form ranks all of N
        same.append(np.abs(all_of_them[ranking.ids[:100]] - best) < 1e-6)
    return [
        {
            "form": "dense, as published",
            "seconds": round(dense, 2),
            "memory_mb": round(dense_memory.mb),
        },
        {
            "form": "kinrank, fit and 100 queries",
            "seconds": round(ours, 2),
            "of that fit": round(fitted, 2),
            "memory_mb": round(ours_memory.mb),
            "times faster": round(dense / ours, 1),
            "times faster, queries alone": round(dense / (ours - fitted), 1),
            "times less memory": round(dense_memory.mb / max(ours_memory.mb, 1), 1),
            "same place in the top 100": f"{100 * np.mean(same):.2f} %",
        },
    ]


def on_lists(full: bool = False, k: int = 1024, dim: int = 512, turns: int = 15) -> list[dict[str, Any]]:
    """Milliseconds to re-rank one list of K=1024, d=512, by methods that need no gallery."""
    vectors = clustered(2 * k, dim, 40, noise=1.5)
    candidates = Candidates.from_vectors(vectors[0], vectors, k=k)
    methods = {name: method for name in LISTS if (method := _ready(name)) is not None}
    for method in methods.values():
        method.rerank(candidates)
    work: dict[str, Callable[[], Any]] = {"similarities alone": candidates.affinity}
    work |= {name: partial(method.rerank, candidates) for name, method in methods.items()}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in work}
    for _ in range(turns):  # in turns, so that a noisy moment falls on all
        for name, call in work.items():
            before = time.process_time()
            wall = _seconds(call)
            taken[name].append((wall, time.process_time() - before))
    middle = {name: [1000 * median(column) for column in zip(*times)] for name, times in taken.items()}
    floor = middle["similarities alone"][1]
    return [
        {
            "method": name,
            "ms": round(wall, 2),
            "processor ms": round(processor, 2),  # of all threads together; what others run does not count
            "processor times K x K": round(processor / floor, 2),
        }
        for name, (wall, processor) in middle.items()
    ]


def as_the_gallery_grows(
    full: bool = False, sizes: Sequence[int] = (), specs: Sequence[str] = FITTED
) -> list[dict[str, Any]]:
    """Fit, latency and memory of the fitted methods against N, 128 dimensions."""
    rows = []
    for size in sizes or ((10_000, 100_000, 1_000_000) if full else (10_000,)):
        with tempfile.TemporaryDirectory() as folder:
            gallery = Gallery.create(Path(folder) / "g.kin", dim=128)
            vectors = clustered(size, 128, 50, noise=1.0, per_region=100)
            for start in range(0, size, 65536):
                gallery.add(np.arange(start, min(start + 65536, size)), vectors[start : start + 65536])
            del vectors
            gallery.prepare()
            queries = unit_rows(gallery.vectors(np.arange(0, size, size // 10)) + 0.02)
            first = median(_seconds(gallery.search, q, 1024) for q in queries)
            for spec in tqdm([s for s in specs if _known(s)], desc=f"N = {size}", leave=False):
                rows.append(
                    {"N": size, "first round ms": round(1000 * first, 1), **_fitted(spec, gallery, queries)}
                )
            gallery.close()
    return rows


def _fitted(spec: str, gallery: Gallery, queries: Array) -> dict[str, Any]:
    lists = [gallery.search(query, k=1024) for query in queries]
    try:
        with watched() as peak:
            taken = _seconds(reranker(spec).fit, gallery)
        again = _seconds(reranker(spec).fit, gallery)
        method = reranker(spec).fit(gallery)
        method.rerank(lists[0])
        latency = median(_seconds(method.rerank, c) for c in lists)
    except MemoryError:
        return {"method": spec, "fit s": "does not fit into memory"}
    return {
        "method": spec,
        "fit s": round(taken, 1),
        "fit again s": round(again, 2),
        "fit memory_mb": round(peak.mb),
        "re-rank ms": round(1000 * latency, 1),
    }


def _known(spec: str) -> bool:
    return all(part.partition(":")[0] in registry("rerankers") for part in spec.split("+"))


def _ready(name: str) -> Reranker | None:
    """The method by that name when it works on a bare list and has the model that it needs."""
    method = reranker(name) if _known(name) else None
    if method is None or method.needs_fit:
        return None
    try:
        method.rerank(Candidates.from_vectors(np.ones(2), np.eye(3, 2) + 1))
    except InputError:  # no model is there
        return None
    return method


def _seconds(work: Callable[..., Any], *arguments: Any) -> float:
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


# A case is a function of `full`, or "module:function" of one that lives in a file of its own.
CASES: dict[str, Callable[[bool], Any] | str] = {
    "kreciprocal against the dense form, 10k x 512, 100 queries": against_published,
    "one list, K = 1024, d = 512": on_lists,
    "diffusion over a large graph": "kinrank.benchmarks.graphs:run",
    "as the gallery grows, d = 128": as_the_gallery_grows,
}

if __name__ == "__main__":
    write(
        Path(sys.argv[1]),
        "Speed of the methods",
        "Written by `python -m kinrank.benchmarks.methods docs/speed.md`; `kinrank bench methods` prints\n"
        "the same. Milliseconds hold for one machine at one hour; ratios were measured side by side.",
        run(full="--full" in sys.argv),
    )
