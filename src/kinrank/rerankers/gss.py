"""Guided similarity separation (Liu 2019): a graph network fitted to one gallery, without labels."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kinrank.errors import NotFittedError, SpecError
from kinrank.rerankers import gss_network as network
from kinrank.rerankers import state
from kinrank.rerankers.base import Reranker
from kinrank.rerankers.gss_state import Embedded
from kinrank.rerankers.knn import KnnGraph
from kinrank.rerankers.limits import at_least_one, positive
from kinrank.types import Array, Candidates, GalleryLike

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

GROUP = 32  # an anchor and its neighbours in a sampled batch
SAVE_EVERY = 20  # steps between two marks of progress


class GSS(Reranker):
    """Guided similarity separation (Liu 2019): embeddings from a graph network that parts what is unlike.

    `fit` trains two graph layers on the gallery alone, no labels, and stores weights and embeddings
    beside it (4 N d bytes as float16). A query joins through its first `k` candidates and sees the
    gallery; the gallery never sees it, nor other queries, so the method is not transductive in queries,
    but it is fitted to the very images it ranks.

    Up to `batch` items every pair counts, as published; beyond, steps take anchors with their nearest
    neighbours (the paper is silent on large galleries): this changes which pairs are seen, and beta is
    taken from such a batch. After adds and removes `fit` keeps the weights and makes only those embeddings
    anew that a change can reach, exactly as if all were; once more than 20 % of the items have come, gone
    or been replaced since training, it trains again.

    Published: k = 5 (15 for RParis), decay .3 in the command line, Adam at 1e-4, 200 epochs, beta the
    98th percentile of similarities. `steps` counts whole-gallery epochs, or sampled batches: on the sets
    that we have nearly all of the gain is there before the first step, by propagation alone, mAP is level
    from 25 to 100 steps and falls by a point at 200.
    """

    needs_fit = True
    reports_harm = "the top answer where features are weak, and everything when trained for too many steps"

    def __init__(
        self,
        k: int = 5,
        steps: int = 50,
        rate: float = 1e-4,
        decay: float = 0.3,
        percentile: float = 98.0,
        batch: int = 2048,
        seed: int = 0,
    ) -> None:
        at_least_one(k=k)
        positive(rate=rate)
        if steps < 0:
            raise SpecError(f"steps must not be negative, got {steps}")
        if batch < 2 * GROUP:
            raise SpecError(f"batch must be at least {2 * GROUP}, got {batch}")
        if not 0 < percentile < 100:
            raise SpecError(f"percentile must be between 0 and 100, got {percentile}")
        self.k, self.steps, self.rate, self.decay = k, steps, rate, decay
        self.percentile, self.batch, self.seed = percentile, batch, seed
        self.gallery: GalleryLike | None = None
        self.embedded: Embedded | None = None

    def fit(self, gallery: GalleryLike) -> GSS:
        """Train on the gallery, or carry weights and embeddings over to what changed."""
        graph = KnnGraph.of(gallery, max(self.k, GROUP - 1))
        names = ("k", "steps", "rate", "decay", "percentile", "batch", "seed")
        folder = state.fit_folder(
            gallery, state.spec_name("gss", **{name: getattr(self, name) for name in names})
        )
        former = (Embedded.stored(folder) if folder is not None else None) or self.embedded
        self.embedded = self._current(gallery, graph, folder, former)
        self.gallery = gallery
        return self

    def score(self, candidates: Candidates) -> Array:
        """e_q.e_j of the candidates."""
        if self.embedded is None or self.gallery is None:
            raise NotFittedError("gss learns from a gallery first; cure: fit(gallery) before rerank")
        state.require_current(self.gallery, self.embedded.revision, "gss")
        rows = self.embedded.rows(candidates.ids)
        state.require_origin(self.gallery, candidates.ids[rows < 0], len(candidates.query), "gss")
        return self.embedded.of(rows) @ self._query(self.embedded, candidates, rows)

    def _current(
        self, gallery: GalleryLike, graph: KnnGraph, folder: Path | None, former: Embedded | None
    ) -> Embedded:
        fetch = fetcher(gallery, graph.ids)
        mix, degrees = propagation(*graph.top(self.k))
        if former is not None and former.fits(gallery, graph):
            if former.revision == graph.revision:
                return former
            made = former.carried_over(gallery, graph, mix, degrees, fetch, self.decay, folder)
            if made is not None:
                return made
        weights = self._trained(graph, mix, fetch, gallery.dim, folder)
        return Embedded.made(weights, graph, mix, degrees, fetch, self.decay, folder)

    def _query(self, known: Embedded, candidates: Candidates, rows: Array) -> Array:
        """e_q (d,): the query as one more node whose row names its first k candidates."""
        near = candidates.vectors[: self.k]
        weights = np.maximum(near @ candidates.query, 0)
        degree = 1 + weights.sum()
        rows = rows[: self.k]
        mix = weights / np.sqrt(degree * known.degrees[rows])
        mixed = candidates.query / degree + mix @ near
        h1 = network.first_layer(known.weights, mixed[None])
        mixed_z1 = network.elu(h1) / degree + (mix @ known.first(rows))[None]
        return network.embedding(known.weights, h1, mixed_z1.astype(np.float32), self.decay)[0]

    def _trained(
        self, graph: KnnGraph, mix: csr_matrix, fetch: Callable[[Array], Array], dim: int, folder: Path | None
    ) -> network.Weights:
        """The weights after `steps` steps; an interrupted training goes on from its last mark."""
        from tqdm import tqdm

        weights = network.initial(dim, self.seed)
        adam, beta, first = network.Adam(weights, self.rate), None, 0
        whole = None
        if len(graph) <= self.batch:
            every = np.arange(len(graph))
            whole = (mix @ fetch(every), mix, every, every)
        draft = None if folder is None else folder / "training.npz"
        if draft is not None and draft.exists():
            first, beta = _resume(draft, weights, adam, graph)
        for number in tqdm(range(first, self.steps), desc="gss steps", delay=1, leave=False, initial=first):
            mixed, part, own, _ = whole or self._sampled(graph, mix, fetch, number)
            step = network.Step(weights, mixed, part, own, self.decay)
            if beta is None:
                beta = similar_at(step.e, self.percentile)
            adam.update(weights, step.backward(network.pair_loss(step.e, beta)[1]))
            if draft is not None and (number + 1) % SAVE_EVERY == 0 and number + 1 < self.steps:
                _mark(draft, weights, adam, beta, graph)
        if draft is not None:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
        return weights

    def _sampled(
        self, graph: KnnGraph, mix: csr_matrix, fetch: Callable[[Array], Array], number: int
    ) -> tuple[Array, csr_matrix, Array, Array]:
        """(A~ X of what is read, rows of A~, where the batch stands among it, what is read) of one step."""
        rng = np.random.default_rng([self.seed, number])
        anchors = rng.choice(len(graph), self.batch // GROUP, replace=False)
        lists = graph.neighbours[anchors][:, : GROUP - 1]
        batch = np.unique(np.append(lists[lists >= 0], anchors))
        part = mix[batch]
        read = np.unique(part.indices)
        return mixed_rows(mix, read, fetch), part[:, read], np.searchsorted(read, batch), read


def propagation(neighbours: Array, similarities: Array) -> tuple[csr_matrix, Array]:
    """(A~ (N, N) sparse, degrees (N,)): union of the neighbour lists, weighted by similarity, with loops."""
    from scipy.sparse import csr_matrix, eye_array

    size = len(neighbours)
    keep = (neighbours >= 0) & (similarities > 0)
    starts = np.concatenate([[0], np.cumsum(keep.sum(1))])
    lists = csr_matrix((similarities[keep], neighbours[keep], starts), shape=(size, size))
    joined = csr_matrix(lists.maximum(lists.T.tocsr()) + eye_array(size, dtype=np.float32, format="csr"))
    degrees = np.asarray(joined.sum(1), dtype=np.float32).ravel()
    root = 1 / np.sqrt(degrees)
    joined.sort_indices()
    joined.data *= np.repeat(root, np.diff(joined.indptr)) * root[joined.indices]
    return joined, degrees


def mixed_rows(mix: csr_matrix, rows: Array, fetch: Callable[[Array], Array]) -> Array:
    """Rows of A~ X, from the vectors of what they name only."""
    part = mix[rows]
    read = np.unique(part.indices)
    mixed: Array = part[:, read] @ fetch(read)
    return mixed


def fetcher(gallery: GalleryLike, ids: Array) -> Callable[[Array], Array]:
    """Vectors by row number; those of a small gallery stay in memory."""
    if len(ids) * gallery.dim * 4 > 1 << 30:
        return lambda rows: gallery.vectors(ids[rows])
    kept = np.empty((len(ids), gallery.dim), np.float32)
    filled = 0
    for _, block in gallery.blocks():
        kept[filled : filled + len(block)] = block
        filled += len(block)
    return lambda rows: kept[rows]


def similar_at(e: Array, percentile: float) -> float:
    """The percentile of similarities between the nodes of a batch."""
    some = e[:: max(1, len(e) // 1024)]
    return float(np.percentile(some @ some.T, percentile))


def _mark(draft: Path, weights: Any, adam: network.Adam, beta: float, graph: KnnGraph) -> None:
    arrays = {f"w-{name}": value for name, value in weights.items()}
    arrays |= {f"first-{name}": value for name, value in adam.first.items()}
    arrays |= {f"second-{name}": value for name, value in adam.second.items()}
    other = draft.with_suffix(".draft.npz")
    with suppress(OSError):  # no place to leave it: an interruption then costs the whole training
        draft.parent.mkdir(parents=True, exist_ok=True)
        np.savez(other, step=adam.step, beta=beta, revision=graph.revision, ids=graph.ids, **arrays)
        other.replace(draft)


def _resume(draft: Path, weights: Any, adam: network.Adam, graph: KnnGraph) -> tuple[int, float | None]:
    """(steps done, beta), with weights and Adam as they were; nothing of another gallery is taken."""
    try:
        with np.load(draft, allow_pickle=False) as kept:
            if int(kept["revision"]) != graph.revision or not np.array_equal(kept["ids"], graph.ids):
                return 0, None
            read = {name: kept[name] for name in kept.files}
    except (OSError, ValueError, KeyError, EOFError):
        return 0, None
    for name in weights:
        weights[name][...] = read[f"w-{name}"]
        adam.first[name][...] = read[f"first-{name}"]
        adam.second[name][...] = read[f"second-{name}"]
    adam.step = int(read["step"])
    return adam.step, float(read["beta"])
