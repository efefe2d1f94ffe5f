"""Fast spectral ranking (Iscen 2018): diffusion through the largest eigenvalues of S.

S = U L U', so (I - alpha S)^-1 y = U (1 - alpha L)^-1 U' y; the r largest eigenvalues carry what is
smooth along the graph. What is sharp, the flow's first steps, costs little to compute as it is:

    f = y + alpha S y + (alpha S)^2 y + U (alpha L)^3 (1 - alpha L)^-1 U' y

which is the same for all eigenvalues and much nearer to it for few. S falls into blocks, the connected
components, whose eigenvectors are zero elsewhere: so each component keeps its own r largest, packed side
by side in one table (N, r).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kinrank.errors import SpecError
from kinrank.rerankers import state
from kinrank.rerankers.base import Reranker
from kinrank.rerankers.knn import rows_of
from kinrank.rerankers.limits import at_least_one
from kinrank.rerankers.local_flow import gathered
from kinrank.rerankers.manifold import GalleryMatrix, check_diffusion, list_matrix, seeds
from kinrank.types import Array, Candidates, GalleryLike

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

DENSE = 600  # components up to this size are decomposed whole
STALE = 0.05  # part of the nodes that may be extended before the spectrum is made anew


class FSR(Reranker):
    """Fast spectral ranking (Iscen 2018): diffusion as a product with the graph's r smoothest eigenvectors.

    Fitted to a gallery, the eigenvectors stand beside it: 4 N r bytes (0.5 GB for a million at r = 128).
    Components of up to r nodes are exact, so `r` at least N gives the closed form. After adds and removes
    the eigenvectors of new items follow by Nystroem extension, u_i = sum_j s_ij u_j / lambda, and those of
    the old stand; once 5 % of the items have come, gone or been replaced since the last decomposition,
    all are made anew. The decomposition of a large component is one call that shows no progress and does
    not resume. On a bare list the candidates' own graph is decomposed, which nothing can prepare:
    this costs tens of milliseconds for 1024 candidates where `dfs` costs one.

    The paper cuts all of f to r eigenvalues, up to 5000 of them for small sets. At r = 128 that loses
    much of mP@1; the first `sharp` steps of the flow, added as they are, keep it (`sharp=0` is the paper's
    form). Negative values of f, left by the cut, count as zero. Not transductive: the query is never a
    node; only candidates are seeds.
    """

    needs_vectors = False
    reports_harm = "the top answer: mP@1 falls where features are weak or r is small"

    def __init__(
        self,
        k: int = 20,
        kq: int = 5,
        r: int = 128,
        sharp: int = 3,
        alpha: float = 0.99,
        gamma: float = 3.0,
    ) -> None:
        check_diffusion(k, kq, alpha, gamma, 1)
        at_least_one(r=r)
        if not 0 <= sharp <= 10:
            raise SpecError(f"sharp must be from 0 to 10 steps, got {sharp}")
        self.k, self.kq, self.r, self.alpha, self.gamma = k, kq, r, alpha, gamma
        self.sharp = sharp
        self.nodes: GalleryMatrix | None = None
        self.spectrum: Spectrum | None = None

    def fit(self, gallery: GalleryLike) -> FSR:
        """Decompose the gallery's graph, or extend what stands beside it to what is new."""
        nodes = GalleryMatrix.of(gallery, self.k, self.gamma)
        folder = state.fit_folder(gallery, state.spec_name("fsr", k=self.k, gamma=self.gamma, r=self.r))
        former = (_stored(folder) if folder is not None else None) or self.spectrum
        self.spectrum = Spectrum.of(nodes, self.r, former)
        if folder is not None and self.spectrum is not former:
            _store(folder, self.spectrum)
        self.nodes = nodes
        return self

    def score(self, candidates: Candidates) -> Array:
        """f of the candidates, by the eigenvectors of the seeds' components."""
        masses = seeds(candidates, self.kq, self.gamma)
        if self.nodes is None or self.spectrum is None:
            matrix = list_matrix(candidates, self.k, self.gamma)
            rows, spectrum = np.arange(len(candidates)), decompose(matrix, self.r)
        else:
            matrix, spectrum = self.nodes.matrix, self.spectrum
            rows = self.nodes.rows(candidates, "fsr")
        smooth = spectrum.flow(rows, masses, self.alpha, self.sharp)
        return np.maximum(smooth + first_steps(matrix, rows, masses, self.alpha, self.sharp), 0)


def first_steps(matrix: csr_matrix, rows: Array, masses: Array, alpha: float, count: int) -> Array:
    """sum_{t < count} (alpha S)^t y at `rows`, y being `masses` at the first of them."""
    total = np.zeros(matrix.shape[0], np.float32)  # fresh zero pages: only what is reached costs anything
    nodes, held = rows[: len(masses)], masses
    for step in range(count):
        if step:
            counts, columns, values = gathered(matrix, nodes)
            nodes, place = np.unique(columns, return_inverse=True)
            flow = np.repeat(held, counts) * values
            held = np.float32(alpha) * np.bincount(place, flow, len(nodes)).astype(np.float32)
        total[nodes] += held
    return total[rows]


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The r largest eigenvalues of each component, and the rows of their eigenvectors."""

    vectors: Array  # (N, r): row i holds entry i of the eigenvectors of i's component
    values: Array  # (components, r), zero where there are fewer
    components: Array  # (N,) the component of each node
    ids: Array
    revision: int
    touched: int  # items that came, went or were replaced since the decomposition

    def flow(self, rows: Array, masses: Array, alpha: float, after: int) -> Array:
        """What flows after the first `after` steps, at `rows`; sources are `masses` at the first of them."""
        f = np.zeros(len(rows), np.float32)
        seeds_of = self.components[rows[: len(masses)]]
        owners = self.components[rows]
        for component in np.unique(seeds_of):
            mine = seeds_of == component
            there = np.flatnonzero(owners == component)
            spectrum = np.asarray(self.vectors[rows[: len(masses)][mine]]).T @ masses[mine]
            slowed = np.float32(alpha) * self.values[component]
            gain = spectrum * slowed**after / (1 - slowed)
            f[there] = np.asarray(self.vectors[rows[there]]) @ gain
        return f

    @classmethod
    def of(cls, source: GalleryMatrix, r: int, former: Spectrum | None) -> Spectrum:
        """The spectrum at the revision of `source`: as it was, extended, or made."""
        graph = source.graph
        if former is not None and former.revision <= graph.revision:
            added, removed = source.gallery.changes_since(former.revision)
            touched = former.touched + len(added) + len(removed)
            known = rows_of(former.ids, np.argsort(former.ids, kind="stable"), graph.ids)
            fresh = np.isin(graph.ids, added) | (known < 0)
            if touched == former.touched and np.array_equal(former.ids, graph.ids):
                return former
            if touched <= STALE * len(graph) and fresh.sum() == len(added):
                return former.extended(source, known, fresh, touched)
        return decompose(source.matrix, r, graph.ids, graph.revision)

    def extended(self, source: GalleryMatrix, known: Array, fresh: Array, touched: int) -> Spectrum:
        """Eigenvector entries for the fresh nodes, from their neighbours in the heaviest component."""
        vectors = np.zeros((len(fresh), self.vectors.shape[1]), np.float32)
        components = np.zeros(len(fresh), self.components.dtype)
        vectors[~fresh] = self.vectors[known[~fresh]]
        components[~fresh] = self.components[known[~fresh]]
        lonely = len(self.values)  # one empty component for nodes without an old neighbour
        matrix = source.matrix
        for node in np.flatnonzero(fresh):
            own = slice(matrix.indptr[node], matrix.indptr[node + 1])
            near, weights = matrix.indices[own], matrix.data[own]
            old = ~fresh[near]
            near, weights = near[old], weights[old]
            if len(near) == 0:
                components[node] = lonely
                continue
            shares = np.bincount(components[near], weights)
            component = int(np.argmax(shares))
            mine = components[near] == component
            values = self.values[component]
            inverse = np.where(values > 0.1, 1 / np.maximum(values, 0.1), 0)  # smooth ones extend well
            components[node] = component
            vectors[node] = (weights[mine] @ vectors[near[mine]]) * inverse
        values = np.concatenate([self.values, np.zeros((1, self.values.shape[1]), np.float32)])
        return Spectrum(vectors, values, components, source.graph.ids, source.graph.revision, touched)


def decompose(matrix: csr_matrix, r: int, ids: Array | None = None, revision: int = 0) -> Spectrum:
    """The r largest eigenvalues of every component of S, with their eigenvectors."""
    from scipy.sparse.csgraph import connected_components

    size = matrix.shape[0]
    count, components = connected_components(matrix, directed=False)
    order = np.argsort(components, kind="stable")
    sizes = np.bincount(components, minlength=count)
    starts = np.cumsum(sizes) - sizes
    width = min(r, int(sizes.max()))
    vectors = np.zeros((size, width), np.float32)
    values = np.zeros((count, width), np.float32)
    vectors[order[starts[sizes == 1]], 0] = 1  # a node alone: S = 0, f = y
    with _progress(size) as bar:
        bar.update(int((sizes == 1).sum()))
        for component in np.flatnonzero(sizes > 1):
            rows = order[starts[component] : starts[component] + sizes[component]]
            some = min(width, len(rows))
            values[component, :some], vectors[rows, :some] = _largest(matrix, rows, some)
            bar.update(len(rows))
    ids = np.arange(size) if ids is None else ids
    return Spectrum(vectors, values, components.astype(np.int32), ids, revision, 0)


def _largest(matrix: csr_matrix, rows: Array, count: int) -> tuple[Array, Array]:
    """(values (count,), vectors (n, count)) of the block `rows`, largest first."""
    part = matrix if len(rows) == matrix.shape[0] else matrix[rows][:, rows]
    if len(rows) <= DENSE or count > len(rows) // 3:
        values, vectors = np.linalg.eigh(part.toarray())
        return values[::-1][:count], vectors[:, ::-1][:, :count]
    from scipy.sparse.linalg import ArpackNoConvergence, eigsh

    start = np.ones(len(rows), np.float32)  # fixed, so that two fits agree
    try:
        values, vectors = eigsh(part, k=count, which="LA", v0=start, tol=1e-4)
    except ArpackNoConvergence as error:  # those that were found are right; the rest count as zero
        values, vectors = error.eigenvalues, error.eigenvectors
    order = np.argsort(-values, kind="stable")
    missing = count - len(order)
    return np.pad(values[order], (0, missing)), np.pad(vectors[:, order], ((0, 0), (0, missing)))


def _stored(folder: Any) -> Spectrum | None:
    found = state.load(folder)
    if found is None:
        return None
    arrays, meta = found
    return Spectrum(**arrays, revision=meta["revision"], touched=meta["touched"])


def _store(folder: Any, spectrum: Spectrum) -> None:
    names = ("vectors", "values", "components", "ids")
    arrays = {name: getattr(spectrum, name) for name in names}
    state.save(folder, arrays, revision=spectrum.revision, touched=spectrum.touched)


def _progress(total: int) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, desc="eigenvectors", unit=" items", delay=1, leave=False, disable=total < 5000)
