"""The k nearest neighbours of every item of a gallery: built in blocks, stored, kept in step.

    graph = KnnGraph.of(gallery, k=50)      # loads, updates or builds; stored beside the gallery
    graph.ids (N,)                          # as gallery.ids()
    graph.neighbours (N, >= k) int32        # rows of ids, best first, never the item itself; -1: none
    graph.similarities (N, >= k) float32    # cosines, 0 where neighbours is -1
    graph.lowest (N,) float32               # the cosine to the farthest item
    graph.top(k); graph.rows(ids); graph.revision

`of` rounds k up to a power of two, so that methods share graphs; `top(k)` cuts to the first k.

Up to `EXACT_LIMIT` items the lists are exact. Beyond, items are parted into cells (k-means) and each
is compared with the items of the `PROBES` cells nearest to its own (`graph.centroids` says where the
cells lie). An update after adds and removes gives, entry for entry, what a rebuild with the same
cells gives: similarities are summed in one fixed order and ties fall to the earlier row. Cells are
made anew, by a rebuild, when the gallery has doubled or halved. N x N is never held. Cells find most
neighbours of image features, which lie in regions; vectors without any such structure (many independent
random directions) lose most of them: more `PROBES` help there.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from kinrank.errors import InputError
from kinrank.rerankers import state
from kinrank.rerankers.knn_search import Cells, assign, search, train_cells
from kinrank.rerankers.knn_work import Work, pack, unpack
from kinrank.types import Array, GalleryLike

CHUNK = 16_384  # rows a part file; an interrupted build resumes after the last part

_in_memory: WeakKeyDictionary[Any, KnnGraph] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class KnnGraph:
    """Neighbour lists of all items of a gallery at one revision."""

    ids: Array
    neighbours: Array
    similarities: Array
    farthest: Array  # (N,) row of the farthest item, -1 for a single item
    lowest: Array
    centroids: Array  # (C, d); C = 1 means exact
    cells: Array  # (N,) the cell of each item
    trained_on: int  # items when the cells were made
    revision: int

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def k(self) -> int:
        """Neighbours in a list."""
        return int(self.neighbours.shape[1])

    def top(self, k: int) -> tuple[Array, Array]:
        """(neighbours (N, k), similarities (N, k)): the first k of every list, or as many as there are."""
        return self.neighbours[:, :k], self.similarities[:, :k]

    @cached_property
    def _numbered(self) -> bool:
        """Whether the ids are the row numbers, as those of arrays are."""
        return np.array_equal(self.ids, np.arange(len(self)))

    @cached_property
    def _sorter(self) -> Array:
        return np.argsort(self.ids, kind="stable")

    def rows(self, ids: Array) -> Array:
        """The rows of these ids, -1 for an id that is not there."""
        ids = np.asarray(ids)
        if self._numbered and ids.dtype.kind == "i":
            return np.where((ids >= 0) & (ids < len(self)), ids, -1)
        return rows_of(self.ids, self._sorter, ids)

    @classmethod
    def of(cls, gallery: GalleryLike, k: int) -> KnnGraph:
        """The graph with at least k neighbours at the gallery's revision: loaded, updated or built."""
        if k < 1:
            raise InputError(f"k must be at least 1, got {k}")
        k = 1 << max(4, (k - 1).bit_length())
        graph = _stored(gallery, k)
        if (
            graph is not None
            and graph.revision == gallery.revision
            and np.array_equal(graph.ids, gallery.ids())
        ):
            return graph
        made = None if graph is None else graph.updated(gallery)
        made = made or build(gallery, k)
        _keep(gallery, made)
        return made

    def updated(self, gallery: GalleryLike) -> KnnGraph | None:
        """The graph after the changes since its revision; None when a rebuild is due or cheaper."""
        return _Update(self, gallery).run()


def build(gallery: GalleryLike, k: int, centroids: Array | None = None) -> KnnGraph:
    """The graph from nothing; `centroids` fixes the cells (they are trained when None)."""
    work = Work(gallery)
    size = len(work.ids)
    trained_on = size
    if centroids is None:
        centroids = work.read("centroids")
        if centroids is None:
            centroids = train_cells(work.vectors)
            work.write("centroids", centroids)
    cells = assign(work.vectors, centroids)
    order = np.argsort(cells, kind="stable")
    plan = Cells(centroids, cells)
    neighbours = np.full((size, k), -1, np.int32)
    similarities = np.zeros((size, k), np.float32)
    farthest, lowest = np.full(size, -1, np.int32), np.zeros(size, np.float32)
    with _progress(size, "neighbours") as bar:
        for number, start in enumerate(range(0, size, CHUNK)):
            rows = order[start : start + CHUNK]
            part = work.read(f"part-{k}-{number}")
            if part is None:
                part = pack(*search(work.vectors, rows, plan, k, bar))
                if size > CHUNK:
                    work.write(f"part-{k}-{number}", part)
            else:
                bar.update(len(rows))
            neighbours[rows], similarities[rows], farthest[rows], lowest[rows] = unpack(part, k)
    work.check(gallery)
    work.close()
    return KnnGraph(
        work.ids,
        neighbours,
        similarities,
        farthest,
        lowest,
        centroids,
        cells,
        trained_on,
        work.revision,
    )


class _Update:
    """Adds and removes taken into a graph: the new are searched, losers searched again, the rest merged."""

    def __init__(self, old: KnnGraph, gallery: GalleryLike) -> None:
        self.old, self.gallery = old, gallery

    def run(self) -> KnnGraph | None:
        old, gallery = self.old, self.gallery
        if gallery.revision < old.revision or old.centroids.shape[1] != gallery.dim:
            return None  # another gallery stands at this path
        added, removed = gallery.changes_since(old.revision)
        if 4 * (len(added) + len(removed)) > len(gallery) or not 0.5 <= len(gallery) / old.trained_on <= 2:
            return None
        work = Work(gallery, resume=False)
        ids, sorter = work.ids, np.argsort(work.ids, kind="stable")
        touched = np.isin(old.ids, np.concatenate([added, removed])) if len(added) + len(removed) else None
        survivors = np.arange(len(old)) if touched is None else np.flatnonzero(~touched)
        to_new = np.full(len(old) + 1, -1, np.int32)  # the last entry keeps -1 as -1
        to_new[survivors] = rows_of(ids, sorter, old.ids[survivors])
        rows = to_new[survivors]
        fresh = np.ones(len(ids), bool)
        fresh[rows] = False
        if (rows < 0).any() or (np.diff(rows) < 0).any() or fresh.sum() != len(added):
            return None  # the list of changes does not explain the gallery
        graph = self._merged(work, survivors, rows, to_new, fresh)
        work.check(gallery)
        work.close()
        return graph

    def _merged(self, work: Work, survivors: Array, rows: Array, to_new: Array, fresh: Array) -> KnnGraph:
        old, size, k = self.old, len(work.ids), self.old.k
        cells = np.zeros(size, np.int32)
        cells[rows] = old.cells[survivors]
        cells[fresh] = assign(work.vectors[fresh], old.centroids)
        plan = Cells(old.centroids, cells)
        lists = np.full((size, k), -1, np.int32)
        cosines = np.zeros((size, k), np.float32)
        farthest, lowest = np.full(size, -1, np.int32), np.zeros(size, np.float32)
        lists[rows], cosines[rows] = to_new[old.neighbours[survivors]], old.similarities[survivors]
        farthest[rows], lowest[rows] = to_new[old.farthest[survivors]], old.lowest[survivors]
        lost = ((lists[rows] < 0) & (old.neighbours[survivors] >= 0)).any(1)
        lost |= (farthest[rows] < 0) & (old.farthest[survivors] >= 0)
        before, after = Cells(old.centroids, old.cells[survivors]).far, plan.far
        lost |= (before != after)[cells[rows]]  # the far cell changed: empty before, or now
        again = fresh.copy()
        again[rows[lost]] = True
        searched, kept = np.flatnonzero(again), np.flatnonzero(~again)
        with _progress(size, "neighbours, changes") as bar:
            found = search(work.vectors, searched, plan, k, bar)
            lists[searched], cosines[searched], farthest[searched], lowest[searched] = found
            if fresh.any():
                near, near_s, far, far_s = search(work.vectors, kept, plan, k, bar, among=fresh)
                lists[kept], cosines[kept] = _merge(lists[kept], cosines[kept], near, near_s)
                farther = (far >= 0) & (
                    (farthest[kept] < 0)
                    | (far_s < lowest[kept])
                    | ((far_s == lowest[kept]) & (far < farthest[kept]))
                )
                farthest[kept[farther]], lowest[kept[farther]] = far[farther], far_s[farther]
            else:
                bar.update(len(kept))
        return KnnGraph(
            work.ids,
            lists,
            cosines,
            farthest,
            lowest,
            old.centroids,
            cells,
            old.trained_on,
            work.revision,
        )


def _merge(left: Array, left_s: Array, right: Array, right_s: Array) -> tuple[Array, Array]:
    """The first k of two neighbour lists a row; ties to the earlier row."""
    entering = (right >= 0) & ((right_s >= left_s[:, -1:]) | (left[:, -1:] < 0))
    some = np.flatnonzero(entering.any(1))
    lists = np.concatenate([left[some], right[some]], axis=1)
    cosines = np.concatenate([left_s[some], right_s[some]], axis=1)
    worth = np.where(lists >= 0, cosines, -np.inf)
    order = np.lexsort((lists, -worth), axis=-1)[:, : left.shape[1]]
    left, left_s = left.copy(), left_s.copy()
    left[some] = np.take_along_axis(lists, order, 1)
    left_s[some] = np.take_along_axis(cosines, order, 1)
    return left, left_s


def rows_of(ids: Array, sorter: Array, wanted: Array) -> Array:
    """Where `wanted` stand in `ids`, given the order that sorts `ids`; -1 for those that do not."""
    if len(ids) == 0 or len(wanted) == 0 or ids.dtype.kind != wanted.dtype.kind:
        return np.full(len(wanted), -1, np.int64)
    place = np.minimum(np.searchsorted(ids, wanted, sorter=sorter), len(ids) - 1)
    rows: Array = sorter[place]
    return np.where(ids[rows] == wanted, rows, -1)


def _stored(gallery: GalleryLike, k: int) -> KnnGraph | None:
    """A graph of this gallery with k neighbours or more, of whatever revision."""
    kept = _in_memory.get(gallery) if state.fit_folder(gallery, "knn") is None else None
    if kept is not None:
        return kept if kept.k >= k else None
    best: KnnGraph | None = None
    while k <= 4096 and (best is None or best.revision != gallery.revision):
        found = state.load(state.fit_folder(gallery, f"knn-{k}"))
        if found is not None:
            arrays, meta = found
            graph = KnnGraph(**arrays, trained_on=meta["trained_on"], revision=meta["revision"])
            if best is None or graph.revision == gallery.revision:
                best = graph
        k *= 2
    return best


def _keep(gallery: GalleryLike, graph: KnnGraph) -> None:
    folder = state.fit_folder(gallery, f"knn-{graph.k}")
    if folder is None:
        _in_memory[gallery] = graph
        return
    names = ("ids", "neighbours", "similarities", "farthest", "lowest", "centroids", "cells")
    state.save(
        folder,
        {name: getattr(graph, name) for name in names},
        trained_on=graph.trained_on,
        revision=graph.revision,
    )
    for smaller in folder.parent.glob("knn-*"):  # this graph serves in their place
        if int(smaller.name[4:]) < graph.k:
            shutil.rmtree(smaller, ignore_errors=True)


def _progress(total: int, what: str) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, desc=what, unit=" items", delay=1, leave=False)
