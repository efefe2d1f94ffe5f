"""The k-reciprocal encoding of a whole gallery, and what changes in it when one query joins.

Rows of V are made once, from the neighbour graph. A query enters the lists of its neighbours; only rows
near to those are made again for it, the others are read: O((1 + K) k1^2) a query, and a mark an item.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from kinrank.rerankers import state
from kinrank.rerankers.encoding import encode, grown, half_of, jaccard, owners, reciprocal
from kinrank.rerankers.knn import KnnGraph
from kinrank.rerankers.knn_work import Work
from kinrank.types import Array, Candidates, GalleryLike

_BLOCK = 1 << 22  # numbers gathered at once
_FARTHEST = 256  # items that are asked whether the query is now their farthest
_in_memory: WeakKeyDictionary[Any, dict[int, Encoding]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Encoding:
    """V of a gallery, row by row: entries starts[i] to starts[i + 1] of columns and values."""

    graph: KnnGraph
    k1: int
    starts: Array
    columns: Array
    values: Array

    @property
    def revision(self) -> int:
        """Of the gallery."""
        return self.graph.revision

    @classmethod
    def of(cls, gallery: GalleryLike, k1: int) -> Encoding:
        """Loaded, or made from the gallery's neighbour graph (which itself is only brought up to date)."""
        graph = KnnGraph.of(gallery, k1)
        folder = state.fit_folder(gallery, state.spec_name("kreciprocal", k1=k1))
        if folder is None:
            kept = _in_memory.setdefault(gallery, {})
            if k1 not in kept or kept[k1].revision != graph.revision:
                kept[k1] = _made(gallery, graph, k1)
            return kept[k1]
        found = state.load(folder)
        if found is not None and found[1]["revision"] == graph.revision:
            return cls(graph, k1, **found[0])
        made = _made(gallery, graph, k1)
        arrays = {"starts": made.starts, "columns": made.columns, "values": made.values}
        state.save(folder, arrays, revision=graph.revision)
        return made

    def farthest(self, queries: Array, gallery: GalleryLike) -> Iterator[tuple[Array, Array]]:
        """(rows, cosines) of the items farthest from each query (Q, d), the farthest first."""
        ids, cosines = gallery.search_ids(-queries, min(_FARTHEST, len(self.graph)))
        for row, values in zip(ids, cosines):
            yield self.graph.rows(row), -values

    def distances(
        self, candidates: Candidates, k2: int, gallery: GalleryLike, far: tuple[Array, Array]
    ) -> tuple[Array, Array]:
        """(Jaccard distance (K,), D (K,)) of the candidates to the query, which joins as the last node.

        `far` is what `farthest` gives for the query.
        """
        size = len(self.graph)
        rows = self.graph.rows(candidates.ids)
        joined = Joined(self.graph, self.k1, candidates, rows, far)
        order = np.concatenate([[size], rows])
        near = joined.lists(order)[:, :k2]
        targets = _marked(size + 1, order, near)
        again = joined.affected(targets)
        seats = np.full(size + 2, -1, np.int64)  # the last entry answers for -1
        seats[targets] = np.arange(len(targets))
        remade = self._remade(joined, again, gallery)

        own = np.zeros(size + 1, np.float32)
        first = near[0][near[0] >= 0]
        for node in first:
            columns, values = self._row(node, again, remade)
            own[columns] += values / np.float32(len(first))
        support = np.flatnonzero(own)
        place = np.full(size + 1, -1, np.int64)
        place[support] = np.arange(len(support))
        table = np.zeros((len(targets) + 1, len(support)), np.float32)  # the last row stays empty, for -1
        stored = targets[~np.isin(targets, again, assume_unique=True)]
        self._scatter(table, stored, seats, place)
        columns = place[remade.indices]
        some = columns >= 0
        table[seats[again[owners(remade)[some]]], columns[some]] = remade.data[some]
        short = near[1:]
        described = table[seats[short]].sum(axis=1) / (short >= 0).sum(axis=1, keepdims=True)
        largest = max(2 - 2 * joined.lowest_of_query, 1e-12)
        scaled = np.maximum(2 - 2 * joined.similarities, 0) / largest
        return jaccard(own[support], described), scaled

    def _row(self, node: int, again: Array, remade: Any) -> tuple[Array, Array]:
        place = np.searchsorted(again, node)
        if place < len(again) and again[place] == node:
            some = slice(remade.indptr[place], remade.indptr[place + 1])
            return remade.indices[some], remade.data[some]
        some = slice(self.starts[node], self.starts[node + 1])
        return self.columns[some], self.values[some]

    def _scatter(self, table: Array, nodes: Array, seats: Array, place: Array) -> None:
        """Stored rows of these nodes into the table, where a column is wanted."""
        counts = self.starts[nodes + 1] - self.starts[nodes]
        offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        entries = np.repeat(self.starts[nodes], counts) + offsets
        columns = place[self.columns[entries]]
        some = columns >= 0
        table[np.repeat(seats[nodes], counts)[some], columns[some]] = self.values[entries[some]]

    def _remade(self, joined: Joined, targets: Array, gallery: GalleryLike) -> Any:
        """V (t, N + 1) of these nodes with the query among the neighbours."""
        from scipy.sparse import csr_matrix

        size = len(self.graph) + 1
        half = half_of(self.k1)
        first = _marked(size, joined.lists(targets))
        nodes = _marked(size, first, joined.lists(first)[:, : half + 1])
        place = np.full(size + 1, -1, np.int64)
        place[nodes] = np.arange(len(nodes))
        local = place[joined.lists(nodes)]
        halves = reciprocal(local, half, place[first])
        near = reciprocal(local, self.k1, place[targets])[place[targets]]
        support = grown(near, halves, halves.T.tocsr())
        vectors = joined.vectors(_marked(size, targets, nodes[support.indices]), gallery)
        seats = np.full(size, -1, np.int64)
        seats[vectors[0]] = np.arange(len(vectors[0]))
        rows = owners(support)
        left, right = seats[targets[rows]], seats[nodes[support.indices]]
        distances = np.maximum(2 - 2 * _cosines(vectors[1], left, right), 0)
        largest = np.maximum(2 - 2 * joined.lowest(targets), 1e-12)
        encoded = encode(support, distances / largest[rows])
        return csr_matrix((encoded.data, nodes[encoded.indices], encoded.indptr), shape=(len(targets), size))


class Joined:
    """Neighbour lists, each node first in its own, of a gallery that one query has joined."""

    def __init__(
        self, graph: KnnGraph, k1: int, candidates: Candidates, rows: Array, far: tuple[Array, Array]
    ) -> None:
        self.graph, self.candidates, self.rows = graph, candidates, rows
        self.query = len(graph)
        self.near, cosines = graph.top(k1)
        # Not by BLAS: its threads cost more than so small a product, and most of all on a busy machine.
        self.similarities = np.einsum("kd,d->k", candidates.vectors, candidates.query)
        k = self.near.shape[1]
        self.own = np.full(k + 1, -1, np.int64)
        order = np.argsort(-self.similarities, kind="stable")[:k]
        self.own[0], self.own[1 : 1 + len(order)] = self.query, rows[order]
        # A list is short only when the gallery is: then the query always finds a place in it.
        theirs = self.near[rows]
        worth = np.where(theirs >= 0, cosines[rows], -np.inf)
        # A tie goes to the query: it is the first of all nodes in the published form.
        entered = self.similarities >= worth[:, -1]
        place = (worth[entered] > self.similarities[entered, None]).sum(1)[:, None]
        column = np.arange(k)
        shifted = np.take_along_axis(theirs[entered], np.maximum(column - (column > place), 0), 1)
        self.shifted = np.where(column == place, self.query, shifted)
        self.changed = np.full(self.query + 1, -1, np.int64)
        self.changed[rows[entered]] = np.arange(entered.sum())
        self._note_farthest(*far)

    def _note_farthest(self, far: Array, values: Array) -> None:
        """The query may be the farthest that an item has, which scales the item's distances."""
        self.lowest_of_query = min(float(values[0]), 1.0)
        rows, values = np.concatenate([far, self.rows]), np.concatenate([values, self.similarities])
        lower = (rows >= 0) & (values < self.graph.lowest[rows])
        self.lowered = dict(zip(rows[lower].tolist(), values[lower].tolist()))

    def lists(self, nodes: Array) -> Array:
        """(n, k1 + 1) nodes, -1 where there is none."""
        answer = np.full((len(nodes), len(self.own)), -1, np.int64)
        answer[:, 0], answer[:, 1:] = nodes, self.near[np.minimum(nodes, self.query - 1)]
        changed = self.changed[nodes]
        answer[changed >= 0, 1:] = self.shifted[changed[changed >= 0]]
        answer[nodes == self.query] = self.own
        return answer

    def lowest(self, nodes: Array) -> Array:
        """The lowest cosine of each node to any other, the query counted."""
        lowest = np.array(self.graph.lowest[np.minimum(nodes, self.query - 1)])
        for i in np.flatnonzero(nodes == self.query):
            lowest[i] = self.lowest_of_query
        for i in np.flatnonzero(np.isin(nodes, list(self.lowered))):
            lowest[i] = self.lowered[int(nodes[i])]
        return lowest

    def affected(self, targets: Array) -> Array:
        """Those of the targets whose row of V the query may change: two steps from a changed list."""
        moved = np.zeros(self.query + 2, bool)  # the last entry answers for -1
        moved[:-1] = self.changed >= 0
        moved[self.query] = True
        lists = self.lists(targets)
        reach = _marked(self.query + 1, targets, lists)
        nearby = np.zeros(self.query + 2, bool)
        nearby[reach] = _any_of(moved, self.lists(reach))
        again: Array = targets[_any_of(nearby, lists) | np.isin(targets, list(self.lowered))]
        return again

    def vectors(self, nodes: Array, gallery: GalleryLike) -> tuple[Array, Array]:
        """(nodes, their vectors); those that are not candidates are fetched."""
        seat = np.full(self.query + 1, -1, np.int64)
        seat[self.rows] = np.arange(len(self.rows))
        seat = seat[nodes]
        vectors = np.empty((len(nodes), len(self.candidates.query)), np.float32)
        vectors[seat >= 0] = self.candidates.vectors[seat[seat >= 0]]
        missing = (seat < 0) & (nodes < self.query)
        if missing.any():
            vectors[missing] = gallery.vectors(self.graph.ids[nodes[missing]])
        vectors[nodes == self.query] = self.candidates.query
        return nodes, vectors


def _marked(size: int, *nodes: Array) -> Array:
    """The nodes, rising, each once; -1 left out. A mark a node is faster than sorting them."""
    marks = np.zeros(size + 1, bool)
    for some in nodes:
        marks[some] = True
    return np.flatnonzero(marks[:size])


def _any_of(marks: Array, lists: Array) -> Array:
    """Whether any of each list is marked; a column at a time, which is faster than many short rows."""
    found = marks[lists[:, 0]]
    for column in lists.T[1:]:
        found |= marks[column]
    return found


def _cosines(vectors: Array, left: Array, right: Array) -> Array:
    """Cosines of pairs of rows, a block at a time."""
    cosines = np.empty(len(left), np.float32)
    step = max(1, _BLOCK // vectors.shape[1])
    for start in range(0, len(left), step):
        some = slice(start, start + step)
        cosines[some] = np.einsum("nd,nd->n", vectors[left[some]], vectors[right[some]])
    return cosines


def _made(gallery: GalleryLike, graph: KnnGraph, k1: int) -> Encoding:
    """All rows of V, in blocks."""
    from tqdm import tqdm

    size = len(graph)
    work = Work(gallery, resume=False)
    work.check(gallery, work.revision == graph.revision)
    lists = np.concatenate([np.arange(size, dtype=np.int32)[:, None], graph.top(k1)[0]], axis=1)
    near, half = reciprocal(lists, k1), reciprocal(lists, half_of(k1))
    half_back = half.T.tocsr()
    largest = np.maximum(2 - 2 * graph.lowest, 1e-12)
    counts, columns, values = [np.zeros(1, np.int64)], [], []
    for start in tqdm(range(0, size, 8192), desc="encoding", delay=1, leave=False):
        support = grown(near[start : start + 8192], half, half_back)
        rows = owners(support) + start
        distances = np.maximum(2 - 2 * _cosines(work.vectors, rows, support.indices), 0)
        encoded = encode(support, distances / largest[rows])
        counts.append(np.diff(encoded.indptr))
        columns.append(encoded.indices.astype(np.int32))
        values.append(encoded.data)
    work.close()
    starts = np.cumsum(np.concatenate(counts), dtype=np.int64)
    return Encoding(graph, k1, starts, np.concatenate(columns), np.concatenate(values))
