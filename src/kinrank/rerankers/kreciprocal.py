"""Re-ranking by k-reciprocal encoding (Zhong 2017), in sparse form.

R(i, k) = {j among the first k+1 of i (i itself included) : i among the first k+1 of j}. R(i, k1) grows
by R(c, k1/2) for each c in it that shares more than 2/3 of that set. Items are described by
V_ij = exp(-D_ij) / sum over the grown set, averaged over the first k2 of i; D is the squared distance
over its row's largest. final = (1 - mix) * Jaccard distance of V + mix * D.

Only rows that a query can touch are computed: O((1 + K) k1^2), never N x N.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kinrank.errors import InputError, SpecError
from kinrank.rerankers import state
from kinrank.rerankers.base import Reranker
from kinrank.rerankers.knn import KnnGraph
from kinrank.types import Array, Candidates, GalleryLike

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


class KReciprocal(Reranker):
    """k-reciprocal encoding (Zhong 2017): alike are those whose neighbours name each other.

    On a bare list the items are the query and its candidates; fitted to a gallery, neighbours come from
    all of it, as published.
    """

    needs_vectors = False
    reports_harm = "where a query has one true match or few, and below rank 1 on small classes"

    def __init__(self, k1: int = 20, k2: int = 6, mix: float = 0.3) -> None:
        for name, value in (("k1", k1), ("k2", k2)):
            if value < 1:
                raise SpecError(f"{name} must be at least 1, got {value}")
        if not 0 <= mix <= 1:
            raise SpecError(f"mix must be from 0 to 1, got {mix}")
        self.k1, self.k2, self.mix = k1, k2, mix
        self.gallery: GalleryLike | None = None
        self.graph: KnnGraph | None = None

    def fit(self, gallery: GalleryLike) -> KReciprocal:
        """Take neighbours from the whole gallery from now on."""
        self.graph = KnnGraph.of(gallery, self.k1)
        self.gallery = gallery
        return self

    def score(self, candidates: Candidates) -> Array:
        """The final distance, negated."""
        if self.graph is None or self.gallery is None or not candidates.has_vectors:
            return self._within(candidates.affinity())
        state.require_current(self.gallery, self.graph.revision, "kreciprocal")
        return self._in_gallery(candidates, self.graph, self.gallery)

    def _within(self, table: Array) -> Array:
        """A list alone: every row is at hand."""
        size = len(table)
        lists = first_of(table, self.k1)
        support = grown(lists, np.arange(size), self.k1)
        rows = np.repeat(np.arange(size), np.diff(support.indptr))
        distance = 2 - 2 * table[rows, support.indices]
        largest = np.maximum(2 - 2 * table.min(1), 1e-12)
        to_query = np.maximum(2 - 2 * table[0], 0) / largest[0]
        encoded = encode(support, np.maximum(distance, 0) / largest[rows])
        return self._final(averaged(encoded, lists[:, : self.k2]), to_query)[1:]

    def _final(self, encoded: csr_matrix, to_query: Array) -> Array:
        return -((1 - self.mix) * jaccard(encoded, 0) + self.mix * to_query)

    def _in_gallery(self, candidates: Candidates, graph: KnnGraph, gallery: GalleryLike) -> Array:
        """The query joins the gallery's graph as one more node, the last."""
        rows = graph.rows(candidates.ids)
        if candidates.vectors.shape[1] != gallery.dim:
            raise InputError(
                f"the candidates have {candidates.vectors.shape[1]} dimensions, the gallery that kreciprocal "
                f"was fitted to has {gallery.dim}"
            )
        if (rows < 0).any():
            raise InputError(
                f"id {candidates.ids[rows < 0][0]!s} is not in the gallery that kreciprocal was fitted to; "
                "cure: fit it to the gallery that the candidates come from"
            )
        similarities = candidates.vectors @ candidates.query
        near, cosines = graph.top(self.k1)
        query = len(graph)
        joined = _Joined(near, cosines, query, rows, similarities)
        targets = np.unique(np.concatenate([rows, joined.lists(rows)[:, : self.k2].ravel(), [query]]))
        targets = targets[targets >= 0]
        first = joined.lists(targets)
        second = joined.lists(np.unique(first[first >= 0]))
        nodes = np.unique(np.concatenate([first.ravel(), second.ravel()]))
        nodes = nodes[nodes >= 0]
        place = np.full(query + 2, -1, np.int64)  # the last entry answers for -1
        place[nodes] = np.arange(len(nodes))
        place[-1] = -1
        local = place[joined.lists(nodes)]
        support = grown(local, place[targets], self.k1)
        vectors = _vectors(nodes, support, place[targets], graph, gallery, candidates)
        owners = np.repeat(np.arange(len(targets)), np.diff(support.indptr))
        left, right = vectors[place[targets]][owners], vectors[support.indices]
        distance = np.maximum(2 - 2 * np.einsum("nd,nd->n", left, right), 0)
        lowest = np.append(graph.lowest, np.float32(1))[targets]
        from_query = vectors[place[targets]] @ candidates.query
        lowest = np.minimum(lowest, from_query)
        farthest = -gallery.search_ids(-candidates.query[None], 1)[1][0, 0]
        lowest[targets == query] = min(farthest, 1.0)
        largest = np.maximum(2 - 2 * lowest, 1e-12)
        encoded = encode(support, distance / largest[owners])
        order = np.concatenate([[query], rows])
        seats = np.full(query + 2, -1, np.int64)
        seats[targets] = np.arange(len(targets))
        short = joined.lists(order)[:, : self.k2]
        described = averaged(encoded, seats[short])
        to_query = np.maximum(2 - 2 * similarities, 0) / largest[targets == query]
        return self._final(described, np.concatenate([[0.0], to_query]))[1:]


class _Joined:
    """Neighbour lists, each node first in its own, of a gallery that one query has joined."""

    def __init__(self, near: Array, cosines: Array, query: int, rows: Array, similarities: Array) -> None:
        self.near, self.query = near, query
        k = near.shape[1]
        # A list is short only when the gallery is: then the query always finds a place in it.
        worth = np.where(near[rows] >= 0, cosines[rows], -np.inf)
        entered = similarities > worth[:, -1]
        self.own = np.full(k + 1, -1, np.int64)
        order = np.argsort(-similarities, kind="stable")[:k]
        self.own[0], self.own[1 : 1 + len(order)] = query, rows[order]
        place = (worth[entered] >= similarities[entered, None]).sum(1)
        column = np.arange(k)
        shifted = np.take_along_axis(
            near[rows[entered]], np.maximum(column - (column > place[:, None]), 0), 1
        )
        shifted = np.where(column == place[:, None], query, shifted)
        self.changed = np.full(query + 1, -1, np.int64)
        self.changed[rows[entered]] = np.arange(entered.sum())
        self.shifted = shifted

    def lists(self, nodes: Array) -> Array:
        """(n, k1 + 1) nodes, -1 where there is none."""
        answer = np.full((len(nodes), len(self.own)), -1, np.int64)
        theirs = np.minimum(nodes, self.query - 1)
        answer[:, 0], answer[:, 1:] = nodes, self.near[theirs]
        changed = self.changed[nodes]
        answer[changed >= 0, 1:] = self.shifted[changed[changed >= 0]]
        answer[nodes == self.query] = self.own
        return answer


def _vectors(
    nodes: Array, support: csr_matrix, targets: Array, graph: KnnGraph, gallery: GalleryLike, of: Candidates
) -> Array:
    """Vectors (nodes, d) of the nodes that a distance is asked of; the rest stay zero."""
    wanted = np.zeros(len(nodes), bool)
    wanted[targets] = True
    wanted[support.indices] = True
    vectors = np.zeros((len(nodes), len(of.query)), np.float32)
    known = np.full(len(graph) + 1, -1, np.int64)
    known[graph.rows(of.ids)] = np.arange(len(of))
    seat = known[nodes]
    vectors[seat >= 0] = of.vectors[seat[seat >= 0]]
    vectors[nodes == len(graph)] = of.query
    missing = wanted & (seat < 0) & (nodes < len(graph))
    if missing.any():
        vectors[missing] = gallery.vectors(graph.ids[nodes[missing]])
    return vectors


def first_of(table: Array, k: int) -> Array:
    """(n, min(k + 1, n)) of a table (n, n): each node and its k nearest."""
    size = len(table)
    k = min(k, size - 1)
    lists = np.empty((size, k + 1), np.int64)
    lists[:, 0] = np.arange(size)
    if k == 0:
        return lists
    others = np.array(table)
    np.fill_diagonal(others, -np.inf)
    bound = np.partition(others, size - k, axis=1)[:, size - k]
    at_least = others >= bound[:, None]
    tied = at_least.sum(1) > k  # rows with ties at the bound are sorted whole
    at_least[tied, k:], at_least[tied, :k] = False, True
    columns = (np.flatnonzero(at_least) % size).reshape(size, k)
    order = np.argsort(-np.take_along_axis(others, columns, 1), axis=1, kind="stable")
    lists[:, 1:] = np.take_along_axis(columns, order, 1)
    if tied.any():
        lists[tied, 1:] = np.argsort(-others[tied], axis=1, kind="stable")[:, :k]
    return lists


def reciprocal(lists: Array, width: int) -> csr_matrix:
    """0/1 (n, n): j in the first `width` of i and i in the first `width` of j."""
    from scipy.sparse import csr_matrix

    size = len(lists)
    near = lists[:, :width]
    back = near[np.maximum(near, 0)]  # (n, width, width)
    keep = (near >= 0) & (back == np.arange(size)[:, None, None]).any(2)
    starts = np.concatenate([[0], np.cumsum(keep.sum(1))])
    return csr_matrix((np.ones(starts[-1], np.float32), near[keep], starts), shape=(size, size))


def grown(lists: Array, targets: Array, k1: int) -> csr_matrix:
    """0/1 (len(targets), n): R(t, k1) and the halves that it takes in."""
    width = lists.shape[1]
    near = reciprocal(lists, min(k1 + 1, width))[targets]
    half = reciprocal(lists, min(int(np.around(k1 / 2)) + 1, width))
    sizes = np.asarray(half.sum(1)).ravel()
    shared = (near @ half.T.tocsr()).multiply(near).tocsr()  # |R(c, k1/2) and R(t, k1)| for c in R(t, k1)
    shared.data = (shared.data > 2 / 3 * sizes[shared.indices]).astype(np.float32)
    shared.eliminate_zeros()
    support = (near + shared @ half).tocsr()
    support.data[:] = 1
    return support


def encode(support: csr_matrix, distances: Array) -> csr_matrix:
    """V: exp(-D) on the support, each row summing to one."""
    encoded = support.copy()
    encoded.data = np.exp(-distances).astype(np.float32)
    sums = np.asarray(encoded.sum(1)).ravel()
    encoded.data /= np.repeat(np.maximum(sums, 1e-12), np.diff(encoded.indptr))
    return encoded


def averaged(encoded: csr_matrix, lists: Array) -> csr_matrix:
    """Rows of V averaged over the nodes (n, k2) of each list; -1 does not count."""
    from scipy.sparse import csr_matrix

    present = lists >= 0
    counts = present.sum(1)
    starts = np.concatenate([[0], np.cumsum(counts)])
    shares = np.repeat(1 / counts, counts).astype(np.float32)
    mean = csr_matrix((shares, lists[present], starts), shape=(len(lists), encoded.shape[0]))
    return mean @ encoded


def jaccard(encoded: csr_matrix, query: int) -> Array:
    """1 - sum min / sum max of the query's row to every row, all of which sum to one."""
    row = np.zeros(encoded.shape[1], np.float32)
    own = slice(encoded.indptr[query], encoded.indptr[query + 1])
    row[encoded.indices[own]] = encoded.data[own]
    least = np.minimum(encoded.data, row[encoded.indices])
    owners = np.repeat(np.arange(encoded.shape[0]), np.diff(encoded.indptr))
    shared = np.minimum(np.bincount(owners, least, encoded.shape[0]), 1)
    distance: Array = 1 - shared / (2 - shared)
    return distance
