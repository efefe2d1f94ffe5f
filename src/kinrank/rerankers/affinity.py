"""Affinity features without a network: the deterministic row of the CSA paper's ablation.

Each candidate is described by its similarities to the first L of the list (query + top L-1), and
ranked by the cosine of that description to the query's own.
"""

from __future__ import annotations

import numpy as np

from kinrank.errors import SpecError
from kinrank.rerankers.base import Reranker
from kinrank.types import Array, Candidates


class Affinity(Reranker):
    """Cosine between similarity profiles to the top-L anchors, no training."""

    needs_vectors = False
    reports_harm = "where features are weak or share a common direction (centre=true helps there)"

    def __init__(self, anchors: int = 512, centre: bool = False) -> None:
        if anchors < 2:
            raise SpecError(f"anchors must be at least 2, got {anchors}")
        self.anchors = anchors
        self.centre = centre

    def score(self, candidates: Candidates) -> Array:
        """cos(a_query, a_i) of the affinity rows."""
        anchors = min(self.anchors, len(candidates) + 1)
        if candidates.has_vectors:  # (1 + K, L) straight from the vectors: K x K is not needed
            nodes = np.concatenate([candidates.query[None], candidates.vectors])
            profiles = nodes @ nodes[:anchors].T
        else:
            profiles = candidates.affinity()[:, :anchors]
        if self.centre:
            profiles = profiles - profiles.mean(axis=0)
        lengths = np.linalg.norm(profiles, axis=1)
        cosine: Array = profiles @ profiles[0] / np.maximum(lengths * lengths[0], 1e-12)
        return cosine[1:]
