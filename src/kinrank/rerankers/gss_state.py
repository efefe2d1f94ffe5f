"""What `gss` keeps of a gallery: weights, the first layer and the embedding of every item."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kinrank.rerankers import gss_network as network
from kinrank.rerankers import state
from kinrank.rerankers.knn import KnnGraph, rows_of
from kinrank.rerankers.manifold import carried_rows
from kinrank.types import Array, GalleryLike

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

STALE = 0.2  # part of the items that may change before the weights are learnt again
BLOCK = 8192  # items embedded at a time

Fetch = Callable[[Array], Array]


@dataclass(frozen=True, eq=False)
class Embedded:
    """A gallery as the trained network sees it, at one revision."""

    weights: network.Weights
    z1: Array  # (N, d) float16: the first layer, which a query's neighbours hand on
    e: Array  # (N, d) float16: the embeddings
    degrees: Array  # (N,) of the graph
    mix: csr_matrix  # A~
    ids: Array
    revision: int
    touched: int  # items that came, went or were replaced since training

    @cached_property
    def _sorter(self) -> Array:
        return np.argsort(self.ids, kind="stable")

    def rows(self, ids: Array) -> Array:
        """Rows of these ids, -1 for an unknown one."""
        return rows_of(self.ids, self._sorter, ids)

    def of(self, rows: Array) -> Array:
        """Embeddings (n, d)."""
        return np.asarray(self.e[rows], dtype=np.float32)

    def first(self, rows: Array) -> Array:
        """Z1 (n, d)."""
        return np.asarray(self.z1[rows], dtype=np.float32)

    def fits(self, gallery: GalleryLike, graph: KnnGraph) -> bool:
        """Whether this can be of the same gallery, now or before."""
        same = self.revision < graph.revision or np.array_equal(self.ids, graph.ids)
        return self.revision <= graph.revision and self.e.shape[1] == gallery.dim and same

    @classmethod
    def made(
        cls,
        weights: network.Weights,
        graph: KnnGraph,
        mix: csr_matrix,
        degrees: Array,
        fetch: Fetch,
        decay: float,
        folder: Path | None,
    ) -> Embedded:
        """Every item embedded."""
        z1, e = (np.empty((len(graph), len(weights["b1"])), np.float16) for _ in range(2))
        every = np.arange(len(graph))
        _embed(weights, mix, fetch, decay, z1, e, every, every)
        return cls(weights, z1, e, degrees, mix, graph.ids, graph.revision, 0)._kept(folder)

    def carried_over(
        self,
        gallery: GalleryLike,
        graph: KnnGraph,
        mix: csr_matrix,
        degrees: Array,
        fetch: Fetch,
        decay: float,
        folder: Path | None,
    ) -> Embedded | None:
        """With the same weights at a later revision; None when too much has changed for them."""
        added, removed = gallery.changes_since(self.revision)
        touched = self.touched + len(added) + len(removed)
        if touched > STALE * len(graph):
            return None
        to_new, changed = carried_rows(self.mix, self.ids, mix, graph.ids, added)
        old = np.flatnonzero(to_new[:-1] >= 0)
        z1, e = (np.empty((len(graph), self.e.shape[1]), np.float16) for _ in range(2))
        z1[to_new[old]], e[to_new[old]] = self.z1[old], self.e[old]
        reached = changed.copy()  # e reads Z1 of the neighbours: a step further
        reached[np.unique(mix[np.flatnonzero(changed)].indices)] = True
        _embed(self.weights, mix, fetch, decay, z1, e, np.flatnonzero(changed), np.flatnonzero(reached))
        made = Embedded(self.weights, z1, e, degrees, mix, graph.ids, graph.revision, touched)
        return made._kept(folder)

    def _kept(self, folder: Path | None) -> Embedded:
        if folder is None:
            return self
        arrays: dict[str, Array] = {"z1": self.z1, "e": self.e, "degrees": self.degrees, "ids": self.ids}
        arrays |= self.weights | {
            "data": self.mix.data,
            "indices": self.mix.indices,
            "indptr": self.mix.indptr,
        }
        saved = state.save(folder, arrays, revision=self.revision, touched=self.touched)
        return (Embedded.stored(folder) if saved else None) or self

    @classmethod
    def stored(cls, folder: Path) -> Embedded | None:
        """What stands beside the gallery, mapped; None when there is nothing whole."""
        from scipy.sparse import csr_matrix

        found = state.load(folder)
        if found is None:
            return None
        arrays, meta = found
        size = len(arrays["ids"])
        mix = csr_matrix(tuple(arrays.pop(name) for name in ("data", "indices", "indptr")), (size, size))
        weights = {name: np.array(arrays.pop(name)) for name in ("w1", "b1", "w2", "b2")}
        z1, e, degrees, ids = (arrays[name] for name in ("z1", "e", "degrees", "ids"))
        return cls(weights, z1, e, degrees, mix, ids, meta["revision"], meta["touched"])


def _embed(
    weights: network.Weights,
    mix: csr_matrix,
    fetch: Fetch,
    decay: float,
    z1: Array,
    e: Array,
    first: Array,
    second: Array,
) -> None:
    """Z1 of the items `first`, then e of the items `second`, in place, a block at a time."""
    from tqdm import tqdm

    def hidden(rows: Array) -> Any:
        part = mix[rows]
        read = np.unique(part.indices)
        return network.first_layer(weights, part[:, read] @ fetch(read))

    with tqdm(total=len(first) + len(second), desc="embeddings", delay=1, leave=False) as bar:
        for start in range(0, len(first), BLOCK):
            rows = first[start : start + BLOCK]
            z1[rows] = network.elu(hidden(rows))
            bar.update(len(rows))
        for start in range(0, len(second), BLOCK):
            rows = second[start : start + BLOCK]
            part = mix[rows]
            read = np.unique(part.indices)
            mixed = part[:, read] @ z1[read].astype(np.float32)
            e[rows] = network.embedding(weights, hidden(rows), mixed, decay)
            bar.update(len(rows))
