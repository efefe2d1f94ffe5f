"""Regional diffusion (Iscen 2017): several vectors an image, one graph over all of them.

Each of the query's regions names its kq nearest regions of the gallery; their similarities are added up
per region, the best kq sums, to the power gamma, are the source y. With (I - alpha S) f = y an image with
regions V (d, R) scores sum_r c_r f_r, c = (V'V + 1)^-1 1: regions that repeat each other share one voice
(generalised max pooling).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kinrank.errors import InputError, NotFittedError, SpecError
from kinrank.rerankers.base import Reranker
from kinrank.rerankers.knn import rows_of
from kinrank.rerankers.local_flow import local_flow
from kinrank.rerankers.manifold import GalleryMatrix, check_diffusion, powered, solve
from kinrank.types import Array, Candidates, GalleryLike, as_ids, unit_rows

WHOLE = 4  # a graph of up to this many times `truncate` regions is solved whole


class RegionalDFS(Reranker):
    """Diffusion over regions: images are ranked by the flow that their regions receive.

        method = RegionalDFS().fit_regions(regions, {"a.jpg": [0, 1, 2], ...})
        method.with_regions(query_regions).rerank(candidates)    # candidates are images

    `regions` is a gallery of region vectors, the mapping names each image's region ids. Without
    `with_regions` the query's own vector is its only region. k = kq = 200 as in the published code. Only
    regions of candidates are seeds. The query is never a node: not transductive.
    """

    needs_fit = True
    needs_vectors = False
    reports_harm = "where a small common thing in the picture, not its subject, has many neighbours"

    def __init__(
        self,
        k: int = 200,
        kq: int = 200,
        alpha: float = 0.99,
        gamma: float = 3.0,
        iterations: int = 20,
        tolerance: float = 1e-6,
        truncate: int = 5000,
    ) -> None:
        check_diffusion(k, kq, alpha, gamma, iterations)
        if truncate <= kq:
            raise SpecError(f"truncate must be more than kq = {kq}, got {truncate}")
        self.k, self.kq, self.alpha, self.gamma = k, kq, alpha, gamma
        self.iterations, self.tolerance, self.truncate = iterations, tolerance, truncate
        self.nodes: GalleryMatrix | None = None
        self.query_regions: Array | None = None

    def fit_regions(self, regions: GalleryLike, images: Mapping[Any, Sequence[Any]]) -> RegionalDFS:
        """The graph over all regions, and the weight of each region in its image."""
        self.nodes = GalleryMatrix.of(regions, self.k, self.gamma)
        self.images = as_ids(list(images))
        self.sorter = np.argsort(self.images, kind="stable")
        counts = np.array([len(ids) for ids in images.values()])
        if not (counts > 0).all():
            raise InputError(f"image {self.images[np.argmin(counts)]!s} has no region; cure: leave it out")
        flat = as_ids([region for ids in images.values() for region in ids])
        self.rows = self.nodes.graph.rows(flat)  # of each image's regions, image after image
        if (self.rows < 0).any():
            raise InputError(f"region {flat[self.rows < 0][0]!s} is not in the gallery of regions")
        if len(np.unique(self.rows)) != len(self.rows):
            raise InputError("a region belongs to two images; cure: give each image regions of its own")
        self.starts = np.concatenate([[0], np.cumsum(counts)])
        self.weights = np.concatenate(
            [pooling_weights(regions.vectors(flat[a:b])) for a, b in zip(self.starts, self.starts[1:])]
        )
        self.longest = int(counts.max())
        return self

    def with_regions(self, vectors: Any) -> RegionalDFS:
        """The method for one query that has these regions (R, d)."""
        method = copy.copy(self)
        method.query_regions = unit_rows(vectors, "query regions")
        return method

    def score(self, candidates: Candidates) -> Array:
        """sum_r c_r f_r of each candidate image."""
        if self.nodes is None:
            raise NotFittedError("regional diffusion needs regions; cure: fit_regions(gallery, images) first")
        images = rows_of(self.images, self.sorter, candidates.ids)
        if (images < 0).any():
            raise InputError(
                f"image {candidates.ids[images < 0][0]!s} has no regions; cure: fit_regions anew"
            )
        own = [np.arange(self.starts[i], self.starts[i + 1]) for i in images]
        places = np.concatenate(own)
        f = self._flow(self.nodes, self.rows[places], self._queries(candidates))
        pooled = np.add.reduceat(f * self.weights[places], np.cumsum([0] + [len(p) for p in own[:-1]]))
        return np.asarray(pooled)

    def _queries(self, candidates: Candidates) -> Array:
        regions = candidates.query[None] if self.query_regions is None else self.query_regions
        if self.nodes is not None and regions.shape[1] != self.nodes.gallery.dim:
            raise InputError(
                f"query regions have {regions.shape[1]} dimensions, those of the gallery "
                f"{self.nodes.gallery.dim}; cure: with_regions(vectors) of the same feature"
            )
        return regions

    def _flow(self, nodes: GalleryMatrix, allowed: Array, queries: Array) -> Array:
        """f of the regions `allowed`, which alone may be seeds."""
        nodes.require_current("regional dfs")
        found, similarities = nodes.gallery.search_ids(queries, min(self.kq + self.longest, len(nodes)))
        reached = nodes.graph.rows(found.ravel()).reshape(found.shape)
        permitted = np.isin(reached, allowed) & (similarities > 0)
        permitted &= np.cumsum(permitted, axis=1) <= self.kq
        seeds, place = np.unique(reached[permitted], return_inverse=True)
        sums = np.bincount(place, similarities[permitted], len(seeds)).astype(np.float32)
        best = np.sort(np.argsort(-sums, kind="stable")[: self.kq])
        seeds, masses = seeds[best], powered(sums[best], self.gamma)
        if len(seeds) == 0:
            return np.zeros(len(allowed), np.float32)
        if len(nodes) > WHOLE * self.truncate:
            part, flow = local_flow(
                nodes.matrix, seeds, masses, self.truncate, self.alpha, self.iterations, self.tolerance
            )
        else:
            source = np.zeros((len(nodes), 1), np.float32)
            source[seeds, 0] = masses
            part = np.arange(len(nodes))
            flow = solve(nodes.matrix, source, self.alpha, self.iterations, self.tolerance)[:, 0]
        f = np.zeros(len(nodes), np.float32)
        f[part] = np.maximum(flow, 0)
        return f[allowed]


def pooling_weights(vectors: Array) -> Array:
    """c (R,) = (V'V + 1)^-1 1 of one image's regions (R, d)."""
    gram = vectors @ vectors.T
    return np.linalg.solve(gram + np.eye(len(gram), dtype=gram.dtype), np.ones(len(gram), gram.dtype))
