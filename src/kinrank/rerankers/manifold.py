"""The mathematics that the diffusion methods share: the mutual graph, its sub-graphs, the solver.

w_ij = max(0, x_i.x_j)^gamma where i and j are among each other's k nearest, w_ii = 0;
d_i = sum_j w_ij; S = D^-1/2 W D^-1/2; diffusion solves (I - alpha S) f = y.
Nothing here is ever N x N: every matrix is sparse with at most k entries a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kinrank.errors import SpecError
from kinrank.rerankers import state
from kinrank.rerankers.knn import KnnGraph, rows_of
from kinrank.rerankers.limits import at_least_one, positive
from kinrank.types import Array, Candidates, GalleryLike

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


def check_diffusion(k: int, kq: int, alpha: float, gamma: float, iterations: int) -> None:
    """Refuse parameters with which the system has no meaning or no solution."""
    at_least_one(k=k, kq=kq, iterations=iterations)
    positive(gamma=gamma)
    if not 0 <= alpha < 1:  # also refuses NaN
        raise SpecError(
            f"alpha must be at least 0 and less than 1 (at 1 the system is singular), got {alpha}"
        )


def powered(similarities: Array, gamma: float) -> Array:
    """max(0, s)^gamma as float32; whole powers up to 4 by multiplication, which is much faster."""
    base = np.maximum(similarities, np.float32(0))
    if gamma == 1:
        return base
    if gamma in (2, 3, 4):
        square = base * base
        return square if gamma == 2 else square * (base if gamma == 3 else square)
    return base ** np.float32(gamma)


def mutual_graph(neighbours: Array, similarities: Array, gamma: float) -> csr_matrix:
    """W (N, N) sparse from kNN rows `neighbours (N, k)` (-1 where there is none) and their similarities.

    Only mutual edges stay. A row that names itself is cleaned by its number, not by its rank: with
    duplicates, or an approximate search, the node itself need not come first.
    """
    from scipy.sparse import csr_matrix

    size = len(neighbours)
    keep = (neighbours >= 0) & (neighbours != np.arange(size)[:, None]) & (similarities > 0)
    starts = np.concatenate([[0], np.cumsum(keep.sum(1))])
    directed = csr_matrix((powered(similarities[keep], gamma), neighbours[keep], starts), shape=(size, size))
    return csr_matrix(directed.minimum(directed.T.tocsr()))


def list_graph(table: Array, k: int, gamma: float) -> csr_matrix:
    """W of a short list from its similarities (K, K), whose diagonal is overwritten.

    A pair is an edge when its similarity reaches the k-th best of both rows; equal ones all stay.
    """
    from scipy.sparse import csr_matrix

    size = len(table)
    np.fill_diagonal(table, -2)
    best = max(size - k, 0)
    near = (table >= np.partition(table, best, axis=1)[:, best, None]) & (table > 0)
    rows, columns = np.divmod(np.flatnonzero(near), size)
    mutual = near[columns, rows]
    rows, columns = rows[mutual], columns[mutual]
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=size))])
    weights = powered(np.minimum(table[rows, columns], table[columns, rows]), gamma)
    return csr_matrix((weights, columns, starts), shape=(size, size))


def normalised(weights: csr_matrix) -> csr_matrix:
    """S = D^-1/2 W D^-1/2; a node without edges keeps an empty row."""
    from scipy.sparse import csr_matrix

    degrees = np.asarray(weights.sum(1), dtype=np.float32).ravel()
    root = 1 / np.sqrt(np.where(degrees > 0, degrees, 1))
    rows = np.repeat(root, np.diff(weights.indptr))
    data = weights.data * rows * root[weights.indices]
    return csr_matrix((data.astype(np.float32), weights.indices, weights.indptr), shape=weights.shape)


def carried_rows(
    former: csr_matrix, former_ids: Array, matrix: csr_matrix, ids: Array, added: Array
) -> tuple[Array, Array]:
    """(new row of each former row, -1 for those gone, with -1 for -1 at the end; changed (N,) bool).

    A row has changed when its entries have, or when it is new; a replaced item is a new one.
    """
    from scipy.sparse import csr_matrix

    to_new = np.full(len(former_ids) + 1, -1, np.int32)
    to_new[:-1] = rows_of(ids, np.argsort(ids, kind="stable"), former_ids)
    to_new[:-1][np.isin(former_ids, added)] = -1
    old = former.tocoo()
    rows, columns = to_new[old.row], to_new[old.col]
    inside = (rows >= 0) & (columns >= 0)
    renumbered = csr_matrix((old.data[inside], (rows[inside], columns[inside])), shape=matrix.shape)
    changed = np.diff((renumbered != matrix).tocsr().indptr) > 0
    # An edge that went with its item leaves nothing to compare but the row that it left.
    changed[np.unique(rows[(rows >= 0) & (columns < 0)])] = True
    known = np.zeros(len(ids), bool)
    known[to_new[:-1][to_new[:-1] >= 0]] = True
    return to_new, changed | ~known


def solve(matrix: csr_matrix, sources: Array, alpha: float, iterations: int, tolerance: float) -> Array:
    """F (n, q) with (I - alpha S) F = Y by conjugate gradient, all q columns in each sparse product.

    Every column is a system of its own with its own steps; it rests once its residual is below
    `tolerance` times the length of its source.
    """
    solution = np.zeros_like(sources)
    residual = sources.copy()
    direction = sources.copy()
    length = np.einsum("nq,nq->q", residual, residual)
    enough = tolerance**2 * length
    for _ in range(iterations):
        active = length > enough
        if not active.any():
            break
        image = direction - np.float32(alpha) * (matrix @ direction)
        curvature = np.einsum("nq,nq->q", direction, image)
        step = np.where(active, length / np.where(curvature > 0, curvature, 1), 0).astype(sources.dtype)
        solution += step * direction
        residual -= step * image
        shorter = np.einsum("nq,nq->q", residual, residual)
        turn = np.where(active, shorter / np.where(length > 0, length, 1), 0).astype(sources.dtype)
        direction = residual + turn * direction
        length = np.where(active, shorter, length)
    return solution


def seeds(candidates: Candidates, kq: int, gamma: float) -> Array:
    """y of the first kq of the list, (min(kq, K),): their similarity to the query, weighted as edges are.

    Only candidates are seeds. The query itself, should it stand in the gallery, is not in its own list
    and so never one.
    """
    if candidates.has_vectors:
        return powered(candidates.vectors[:kq] @ candidates.query, gamma)
    return powered(candidates.affinity()[0, 1 : kq + 1], gamma)


def list_matrix(candidates: Candidates, k: int, gamma: float) -> csr_matrix:
    """S (K, K) of the candidates among themselves; the query is no node."""
    if candidates.has_vectors:
        return normalised(list_graph(candidates.vectors @ candidates.vectors.T, k, gamma))
    return normalised(list_graph(np.array(candidates.affinity()[1:, 1:]), k, gamma))


@dataclass(frozen=True, eq=False)
class GalleryMatrix:
    """S (N, N) of a gallery, sparse, at one revision, and the rows that its ids have there."""

    gallery: GalleryLike
    graph: KnnGraph
    matrix: csr_matrix

    @classmethod
    def of(cls, gallery: GalleryLike, k: int, gamma: float) -> GalleryMatrix:
        """From the neighbour lists stored beside the gallery, which are built or brought up to date."""
        graph = KnnGraph.of(gallery, k)
        return cls(gallery, graph, normalised(mutual_graph(*graph.top(k), gamma)))

    def __len__(self) -> int:
        return len(self.graph)

    def rows(self, candidates: Candidates, method: str) -> Array:
        """The rows (K,) of the candidates; refuses a gallery that has changed and ids that it has not."""
        self.require_current(method)
        rows = self.graph.rows(candidates.ids)
        dim = len(candidates.query) if candidates.has_vectors else self.gallery.dim
        state.require_origin(self.gallery, candidates.ids[rows < 0], dim, method)
        return rows

    def require_current(self, method: str) -> None:
        """Refuse to rank once the gallery has changed."""
        state.require_current(self.gallery, self.graph.revision, method)
