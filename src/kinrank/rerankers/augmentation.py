"""Database augmentation: every item moves towards its own first neighbours, once, ahead of all queries.

x_j' = norm(x_j + sum_{i <= k} w_i x_i) over the k nearest x_i of x_j, itself excluded; then q.x'.
Fitted to a gallery, neighbours come from all of it, the moved vectors are stored beside it and later
stages of a chain (`adba+aqe`) search among them; on a bare list, neighbours come from the list.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np

from kinrank.errors import SpecError
from kinrank.rerankers import state
from kinrank.rerankers.augmented import AugmentedGallery
from kinrank.rerankers.base import Reranker, falling
from kinrank.rerankers.knn import KnnGraph, rows_of
from kinrank.rerankers.knn_work import Work
from kinrank.rerankers.limits import at_least_one, positive
from kinrank.rerankers.nearest import first_of
from kinrank.rerankers.separation import multipliers
from kinrank.types import Array, Candidates, GalleryLike, stable_order

_BLOCK = 1 << 22  # numbers gathered at once
_in_memory: WeakKeyDictionary[Any, dict[str, Fitted]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Fitted:
    """Augmented vectors of a gallery, and what they were made from."""

    ids: Array
    neighbours: Array  # (N, k) rows, -1 where none
    vectors: Array  # (N, d)
    strangers: Array  # ids of the negatives that all items share; empty where the method has none
    revision: int


class DatabaseAugmentation(Reranker):
    """What the augmentations share; each says only how an item and its neighbours combine."""

    name: ClassVar[str]
    strangers: ClassVar[int] = 0  # shared negatives that the method wants to know

    def __init__(self, k: int) -> None:
        at_least_one(k=k)
        self.k = k
        self.gallery: GalleryLike | None = None
        self.augmented: AugmentedGallery | None = None

    def parameters(self) -> dict[str, Any]:
        """What makes one fitted state different from another."""
        return {"k": self.k}

    def weights(self, similarities: Array) -> Array:
        """Weights (n, k) of the neighbours, given their similarities (n, k) to the item, best first."""
        raise NotImplementedError

    def combine(self, vectors: Array, rows: Array, near: Array, cosines: Array, far: Array) -> Array:
        """Moved rows (n, d): `near` (n, k) of `vectors`, -1 where none; `far` (m, d) shared negatives."""
        from scipy.sparse import csr_matrix

        present = near >= 0
        weights = np.broadcast_to(self.weights(cosines), near.shape)[present].astype(np.float32)
        starts = np.concatenate([[0], np.cumsum(present.sum(axis=1))])
        shares = csr_matrix((weights, near[present], starts), shape=(len(rows), len(vectors)))
        moved: Array = vectors[rows] + shares @ vectors
        return moved

    def fit(self, gallery: GalleryLike) -> DatabaseAugmentation:
        """Augment the whole gallery; what is stored beside it is taken, and brought up to date."""
        graph = KnnGraph.of(gallery, self.k)
        name = state.spec_name(self.name, **self.parameters())
        folder = state.fit_folder(gallery, name)
        kept = _load(gallery, name)
        if kept is None or kept.revision != graph.revision or not np.array_equal(kept.ids, graph.ids):
            kept = self._updated(gallery, graph, kept)
            if folder is None:
                _in_memory.setdefault(gallery, {})[name] = kept
            else:
                arrays = {key: getattr(kept, key) for key in ("ids", "neighbours", "vectors", "strangers")}
                state.save(folder, arrays, revision=kept.revision)
        self.gallery = gallery
        path = None if folder is None else folder / "gallery"
        location = getattr(gallery, "location", None)
        self.augmented = AugmentedGallery(kept.ids, kept.vectors, kept.revision, path, location)
        return self

    def passes_on(self, gallery: GalleryLike) -> GalleryLike:
        """The augmented gallery."""
        return gallery if self.augmented is None else self.augmented

    def score(self, candidates: Candidates) -> Array:
        """q.x' of the candidates."""
        return self._moved(candidates) @ candidates.query

    def relist(self, candidates: Candidates) -> Candidates:
        """The same candidates with their augmented vectors, ranked by them."""
        vectors = self._moved(candidates)
        scores = falling(candidates, vectors @ candidates.query)
        order = stable_order(scores)
        return Candidates(candidates.ids[order], scores[order], vectors[order], candidates.query)

    def _moved(self, candidates: Candidates) -> Array:
        if self.augmented is None:
            return self._within(candidates.vectors)
        state.require_current(self.gallery, self.augmented.revision, self.name)
        unknown = candidates.ids[self.augmented.rows(candidates.ids) < 0]
        state.require_origin(self.augmented, unknown, candidates.vectors.shape[1], self.name)
        return self.augmented.vectors(candidates.ids)

    def _within(self, vectors: Array) -> Array:
        """Each vector of a list moved towards its nearest of the same list."""
        size = len(vectors)
        k = min(self.k, size - 1)
        if k < 1:
            return vectors
        table = vectors @ vectors.T
        far = vectors[-min(self.strangers, size) :] if self.strangers else vectors[:0]
        chosen = first_of(table, k)[:, 1:]
        return self._combined(vectors, np.arange(size), chosen, np.take_along_axis(table, chosen, 1), far)

    def _combined(self, vectors: Array, rows: Array, near: Array, cosines: Array, far: Array) -> Array:
        """Unit augmented vectors of these rows, a block at a time."""
        moved = np.empty((len(rows), vectors.shape[1]), np.float32)
        step = max(1, _BLOCK // (near.shape[1] * vectors.shape[1]))
        for start in range(0, len(rows), step):
            some = slice(start, start + step)
            block = self.combine(vectors, rows[some], near[some], cosines[some], far)
            lengths = np.sqrt(np.einsum("nd,nd->n", block, block))[:, None]
            # Neighbours that cancel an item out leave it where it was.
            moved[some] = np.where(lengths > 1e-6, block / np.maximum(lengths, 1e-6), vectors[rows[some]])
        return moved

    def _updated(self, gallery: GalleryLike, graph: KnnGraph, old: Fitted | None) -> Fitted:
        """Augment what is new or has new neighbours; take the rest from `old`."""
        near, cosines = graph.top(self.k)
        strangers = _strangers(graph.ids, self.strangers)
        work = Work(gallery, resume=False)
        if work.revision != graph.revision:
            work.check(gallery, whole=False)
        stale, moved = np.ones(len(graph), bool), work.room(self.name, *work.vectors.shape)
        if old is not None and old.revision <= graph.revision and old.vectors.shape[1] == gallery.dim:
            added, _ = gallery.changes_since(old.revision)
            before = rows_of(old.ids, np.argsort(old.ids, kind="stable"), graph.ids)
            stale = _stale(old, graph, near, before, np.isin(graph.ids, added))
            if not np.array_equal(strangers, old.strangers) or np.isin(strangers, added).any():
                stale[:] = True
            taken = np.flatnonzero(~stale)
            for start in range(0, len(taken), 65536):
                some = taken[start : start + 65536]
                moved[some] = old.vectors[before[some]]
        far = work.vectors[graph.rows(strangers)] if len(strangers) else work.vectors[:0]
        rows = np.flatnonzero(stale)
        for start in range(0, len(rows), 65536):
            some = rows[start : start + 65536]
            moved[some] = self._combined(work.vectors, some, near[some], cosines[some], far)
        work.close()
        return Fitted(graph.ids, np.array(near), moved, strangers, graph.revision)


class ADBA(DatabaseAugmentation):
    """Average database augmentation (Turcot, Lowe 2009; Gordo 2017): every neighbour weighs one."""

    name = "adba"
    reports_harm = "where classes have fewer than k images: neighbours of another class blur them together"

    def __init__(self, k: int = 3) -> None:
        super().__init__(k)

    def weights(self, similarities: Array) -> Array:
        """All one."""
        return np.ones_like(similarities)


class ADBAwD(DatabaseAugmentation):
    """Average database augmentation with decay (Gordo 2017): weights fall linearly with the rank."""

    name = "adbawd"
    reports_harm = "where classes have fewer than k/2 images"

    def __init__(self, k: int = 5) -> None:
        super().__init__(k)

    def weights(self, similarities: Array) -> Array:
        """(k - i) / k for i = 0 ... k-1."""
        decay = (self.k - np.arange(similarities.shape[1])) / self.k
        return np.broadcast_to(decay.astype(np.float32), similarities.shape)


class AlphaDBA(DatabaseAugmentation):
    """Alpha database augmentation (Radenovic 2019): a neighbour weighs its similarity to the power alpha."""

    name = "alphadba"
    reports_harm = "where features are weak and classes small"

    def __init__(self, k: int = 10, alpha: float = 3.0) -> None:
        super().__init__(k)
        if alpha < 0:
            raise SpecError(f"alpha must not be negative, got {alpha}")
        self.alpha = alpha

    def parameters(self) -> dict[str, Any]:
        """k and alpha."""
        return {"k": self.k, "alpha": self.alpha}

    def weights(self, similarities: Array) -> Array:
        """max(0, s)^alpha, clipped as in `alphaqe`."""
        return np.maximum(similarities, 0) ** np.float32(self.alpha)


class DDBA(DatabaseAugmentation):
    """Discriminative database augmentation: every item becomes the normal of its own linear SVM.

    Positives are the item and its k nearest. Negatives are the items of a shared pool that are least
    similar to it: on a list, of the list's tail; in a gallery, of items that a hash of their ids picks.
    """

    name = "ddba"
    strangers = 64
    reports_harm = "where classes have fewer than k images, and on small galleries, where negatives are few"

    def __init__(self, k: int = 3, negatives: int = 20, c: float = 1.0) -> None:
        super().__init__(k)
        at_least_one(negatives=negatives)
        positive(c=c)
        self.negatives = negatives
        self.c = c

    def parameters(self) -> dict[str, Any]:
        """k, negatives and c."""
        return {"k": self.k, "negatives": self.negatives, "c": self.c}

    def combine(self, vectors: Array, rows: Array, near: Array, cosines: Array, far: Array) -> Array:
        """sum_i a_i y_i f_i; negatives that are as near as a neighbour are left out."""
        items, present = vectors[rows], near >= 0
        if len(far) == 0:
            return items
        to_far = items @ far.T
        count = min(self.negatives, len(far))
        chosen = np.argsort(to_far, axis=1, kind="stable")[:, :count]
        apart = np.take_along_axis(to_far, chosen, 1) < np.where(present, cosines, 1).min(axis=1)[:, None]
        points = np.concatenate([items[:, None], vectors[near], far[chosen]], axis=1)
        signs = np.concatenate([np.ones((len(items), 1)), present, -1.0 * apart], axis=1)
        a = multipliers(points @ points.transpose(0, 2, 1), signs, self.c)
        moved = np.einsum("bm,bmd->bd", a * signs, points).astype(np.float32)
        return np.where(apart.any(axis=1)[:, None], moved, items)


def _stale(old: Fitted, graph: KnnGraph, near: Array, before: Array, added: Array) -> Array:
    """Rows that are new, replaced, or have a neighbour that they did not have or that was replaced."""
    to_new = np.full(len(old.ids) + 1, -1, np.int64)
    known = before >= 0
    to_new[before[known]] = np.flatnonzero(known)
    lists = np.full(near.shape, -2, np.int64)
    lists[known] = to_new[old.neighbours[before[known]]]
    replaced = np.append(added, False)  # the last entry answers for -1
    stale: Array = ~known | added | (lists != near).any(1) | replaced[near].any(1)
    return stale


def _strangers(ids: Array, count: int) -> Array:
    """The ids with the smallest hashes: the same for the same ids, whatever came and went between."""
    if count == 0:
        return ids[:0]
    hashes = np.array([zlib.crc32(str(i).encode()) for i in ids.tolist()], np.uint32)
    return ids[np.sort(np.argsort(hashes, kind="stable")[:count])]


def _load(gallery: GalleryLike, name: str) -> Fitted | None:
    folder = state.fit_folder(gallery, name)
    if folder is None:
        return _in_memory.get(gallery, {}).get(name)
    found = state.load(folder)
    return None if found is None else Fitted(**found[0], revision=found[1]["revision"])
