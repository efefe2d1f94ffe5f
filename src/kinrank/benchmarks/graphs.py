"""Diffusion over large graphs: per query against SciPy's solver on the whole graph, and against the search.

Times are of the processor (all threads), so that other work on the machine does not count.

The vectors lie on curves, a hundred a class, so that nearest neighbours alone find a part of a class and
only the graph finds the rest.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from tqdm import tqdm

from kinrank.evaluation.protocol import average_precision
from kinrank.gallery.gallery import Gallery
from kinrank.rerankers.dfs import DFS
from kinrank.rerankers.diffusion import Diffusion
from kinrank.rerankers.manifold import GalleryMatrix, seeds
from kinrank.types import Array, Candidates, stable_order, unit_rows

DIM, PER_CLASS = 64, 100


def run(full: bool = False) -> dict[str, Any]:
    """Three comparisons; `full` prepares the offline form for 50 thousand items, not 10."""
    return {
        "dfs, one query over 50k x 64": dfs_against_scipy(full),
        "diffusion online": diffusion_against_search(full),
        "the query's own picture in the graph": own_picture(full),
    }


def curves(size: int, noise: float = 0.9, seed: int = 0) -> Array:
    """Unit vectors (size, DIM): each class along a closed curve of its own, class after class."""
    rng = np.random.default_rng(seed)
    rows = np.empty((size, DIM), np.float32)
    for start in range(0, size, PER_CLASS):
        angle = rng.uniform(0, 1.2 * np.pi, PER_CLASS)
        waves = np.stack([np.cos(angle), np.sin(angle), 0.5 * np.cos(2 * angle), 0.5 * np.sin(2 * angle)], 1)
        spread = rng.standard_normal((4, DIM)), noise * rng.standard_normal((PER_CLASS, DIM))
        rows[start : start + PER_CLASS] = (waves @ spread[0] + spread[1])[: size - start]
    return unit_rows(rows)


def dfs_against_scipy(full: bool = False, size: int = 50_000, queries: int = 40) -> list[dict[str, Any]]:
    """SciPy's `cg` on the whole graph, a query at a time, and `dfs`; lists of 1024."""
    gallery, vectors = _gallery("memory:", size)
    published = _system(GalleryMatrix.of(gallery, 50, 3.0))
    ours = _system(GalleryMatrix.of(gallery, DFS().k, DFS().gamma))
    method = DFS().fit(gallery)
    forms: dict[str, Callable[[Candidates], Array]] = {
        "first round": lambda c: c.scores,
        "SciPy cg, k=50, kq=10, 20 steps (as published)": lambda c: _naive(published, c, 10, 20),
        "SciPy cg, k=20, kq=5, 20 steps": lambda c: _naive(ours, c, 5, 20),
        "SciPy cg, k=20, kq=5, to 1e-6": lambda c: _naive(ours, c, 5, None),
        "kinrank dfs": method.score,
    }
    lists = _lists(vectors, gallery, queries)
    taken, precision = _in_turns(forms, lists, "dfs")
    taken.pop("first round")
    fast = median(taken["kinrank dfs"])
    first = {"form": "first round", "mAP": round(100 * float(np.mean(precision["first round"])), 2)}
    return [first] + [
        {
            "form": name,
            "mAP": round(100 * float(np.mean(precision[name])), 2),
            "processor ms a query": round(1000 * median(times), 2),
            "times dfs": round(median(times) / fast, 1),
        }
        for name, times in taken.items()
    ]


def diffusion_against_search(full: bool = False, queries: int = 40) -> list[dict[str, Any]]:
    """What the offline form adds to a first-round search of 1024 in an embedded gallery."""
    size = 50_000 if full else 10_000
    with tempfile.TemporaryDirectory() as folder:
        gallery, vectors = _gallery(str(Path(folder) / "g.kin"), size)
        gallery.prepare()
        fitted = time.process_time()
        method = Diffusion().fit(gallery)
        fitted = time.process_time() - fitted
        asked = _queries(vectors, queries)
        gallery.search(asked[0], 1024)
        taken: dict[str, list[float]] = {"first-round search, K = 1024": [], "diffusion online": []}
        for query in tqdm(asked, desc="diffusion", leave=False):
            start = time.process_time()
            candidates = gallery.search(query, 1024)
            middle = time.process_time()
            method.rerank(candidates)
            taken["first-round search, K = 1024"].append(middle - start)
            taken["diffusion online"].append(time.process_time() - middle)
        stored = sum(f.stat().st_size for f in Path(folder).rglob("diffusion-*/*")) / 2**20
        gallery.close()
    search = median(taken["first-round search, K = 1024"])
    return [
        {
            "items": size,
            "step": name,
            "processor ms": round(1000 * median(times), 2),
            "times the search": round(median(times) / search, 2),
            "fit s": round(fitted, 1) if name == "diffusion online" else None,
            "stored MB": round(stored) if name == "diffusion online" else None,
        }
        for name, times in taken.items()
    ]


def own_picture(full: bool = False) -> list[dict[str, Any]]:
    """What a query gains when its own picture is a passive node: the graph with it, and never having held it.

    A picture that queries itself is in no list of its own (leave-one-out), so never a seed.
    """
    size, queries = (5000, 100) if full else (2000, 25)
    gallery, vectors = _gallery("memory:", size)
    method = DFS().fit(gallery)
    precision: dict[str, list[float]] = {"as a passive node": [], "not in the graph": []}
    for own in tqdm(np.random.default_rng(2).choice(size, queries, replace=False), desc="own", leave=False):
        others = np.delete(np.arange(size), own)
        relevant = others[others // PER_CLASS == own // PER_CLASS]
        candidates = Candidates.from_vectors(vectors[own], vectors[others], others)
        without = Gallery.create("memory:", dim=DIM)
        without.add(others, vectors[others])
        for name, ready in (("as a passive node", method), ("not in the graph", DFS().fit(without))):
            precision[name].append(average_precision(ready.rerank(candidates).ids, relevant))
    return [
        {"own picture": name, "mAP": round(100 * float(np.mean(values)), 2)}
        for name, values in precision.items()
    ]


def _gallery(place: str, size: int) -> tuple[Gallery, Array]:
    vectors = curves(size)
    gallery = Gallery.create(place, dim=DIM)
    gallery.add(np.arange(size), vectors)
    return gallery, vectors


def _queries(vectors: Array, count: int) -> Array:
    """Vectors near some of the items, but none of them."""
    rng = np.random.default_rng(1)
    own = rng.choice(len(vectors), count, replace=False)
    return unit_rows(vectors[own] + 0.3 * rng.standard_normal((count, DIM)).astype(np.float32) / np.sqrt(DIM))


def _lists(vectors: Array, gallery: Gallery, count: int) -> list[tuple[Candidates, Array]]:
    """(the first 1024, the ids of the query's class) of each query."""
    rng = np.random.default_rng(1)
    classes = rng.choice(len(vectors), count, replace=False) // PER_CLASS
    lists = []
    for query, label in zip(_queries(vectors, count), classes):
        lists.append((gallery.search(query, 1024), label * PER_CLASS + np.arange(PER_CLASS)))
    return lists


def _system(nodes: GalleryMatrix) -> Any:
    from scipy.sparse import eye_array

    return (eye_array(len(nodes), format="csr", dtype=np.float32) - np.float32(0.99) * nodes.matrix).tocsr()


def _naive(system: Any, candidates: Candidates, kq: int, steps: int | None) -> Array:
    from scipy.sparse.linalg import cg

    source = np.zeros(system.shape[0], np.float32)
    source[candidates.ids[:kq]] = seeds(candidates, kq, 3.0)
    answer: Array = cg(system, source, rtol=1e-6, maxiter=steps)[0][candidates.ids]
    return answer


def _in_turns(
    forms: dict[str, Callable[[Candidates], Array]], lists: list[tuple[Candidates, Array]], what: str
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """(seconds, average precision) of each form for each list, in turns so that noise falls on all."""
    taken: dict[str, list[float]] = {name: [] for name in forms}
    precision: dict[str, list[float]] = {name: [] for name in forms}
    for candidates, positives in tqdm(lists, desc=what, leave=False):
        for name, form in forms.items():
            start = time.process_time()
            scores = form(candidates)
            taken[name].append(time.process_time() - start)
            precision[name].append(average_precision(candidates.ids[stable_order(scores)], positives))
    return taken, precision
