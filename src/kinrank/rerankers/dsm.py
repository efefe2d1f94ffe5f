"""Deep spatial matching (Simeoni, CVPR 2019): regions of activation maps agree on one affine map.

Two regions are a tentative match when the same channel fired. One match is enough for a hypothesis, since a
region is an ellipse: A = F' F^-1 turns the one frame into the other, upright. What most matches agree with
is refitted to them and counted; a picture's score is the best over pairs of scales.

The paper's residual of 2 cells belongs to maps of 64 cells; on maps of 15 it lets a seventh of the picture
pass, and 1 measures better (`kinrank bench geometry`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kinrank.errors import SpecError
from kinrank.features.local import LocalFeatures
from kinrank.features.regions import words
from kinrank.rerankers.local import LocalReranker
from kinrank.types import Array


class DSM(LocalReranker):
    """Deep spatial matching: regions of activation maps, verified by one-correspondence affine RANSAC."""

    extra = "offline"  # onnx, where the network itself does not give its maps
    name = "dsm"
    kind = "dsm"

    def __init__(
        self,
        features: str | Mapping[str, LocalFeatures] | None = None,
        top: int = 100,
        floor: int = 20,
        chance: float = 2.0,
        residual: float = 1.0,
        scale: float = 3.0,
        hypotheses: int = 500,
        weight: float = 1.0,
        half: float = 100.0,
    ) -> None:
        if residual <= 0 or scale < 1 or hypotheses < 1:
            raise SpecError(
                "residual must be positive, scale and hypotheses at least 1, "
                f"got {residual}, {scale} and {hypotheses}"
            )
        super().__init__(features, top, floor, weight, half)
        self.residual, self.scale, self.hypotheses, self.chance = residual, scale, hypotheses, chance

    def agreement(self, query: LocalFeatures, other: LocalFeatures) -> int:
        """Regions that agree, at the pair of scales where most do."""
        best = 0
        for one in _scales(query):
            for two in _scales(other):
                pairs = same_words(words(query)[one], words(other)[two])
                source, target = query.points[one[pairs[:, 0]]], other.points[two[pairs[:, 1]]]
                kept = one_match_affine(source, target, self.residual, self.scale, self.hypotheses)
                # A region may stand in many tentative matches, but is seen once.
                unique = (len(np.unique(pairs[kept, side])) for side in (0, 1))
                best = max(best, min(unique, default=0))
        return best

    def least(self, counts: Array) -> float:
        """`floor`, or `chance` times the lower quartile of the list where that is more.

        How many regions agree by chance depends on the network and on the size of its maps; most of a list
        does not show the query's object, so the list itself tells.
        """
        return max(self.floor, self.chance * float(np.quantile(counts, 0.25)))


def same_words(one: Array, two: Array) -> Array:
    """All pairs (m, 2) of positions whose words are equal, in the order of the first."""
    order = np.argsort(two, kind="stable")
    ordered = two[order]
    starts, ends = np.searchsorted(ordered, one, "left"), np.searchsorted(ordered, one, "right")
    counts = ends - starts
    first = np.repeat(np.arange(len(one)), counts)
    within = np.arange(len(first)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.stack([first, order[np.repeat(starts, counts) + within]], axis=1)


def one_match_affine(
    source: Array, target: Array, residual: float = 2.0, scale: float = 3.0, hypotheses: int = 500
) -> Array:
    """Which of m matched regions (m, 5) follow one upright affine map within `residual` cells; (m,) bool.

    Each of the first `hypotheses` matches proposes a map; those that scale lengths by more than `scale` or
    less than 1 / `scale` are not asked. The best is refitted to its matches by least squares.
    """
    nothing = np.zeros(len(source), bool)
    if len(source) == 0:
        return nothing
    # As (h, 3) @ (3, m) a coordinate: 500 hypotheses for a thousand matches are two small products.
    linear = _frames(target[:hypotheses]) @ np.linalg.inv(_frames(source[:hypotheses]))  # (h, 2, 2)
    size = np.sqrt(np.linalg.det(linear))
    x, y = source[:, :2].astype(np.float32), target[:, :2].astype(np.float32)
    sane = np.flatnonzero((size >= 1 / scale) & (size <= scale))
    if len(sane) == 0:
        return nothing
    shift = y[sane] - np.einsum("hij,hj->hi", linear[sane], x[sane])
    maps = np.concatenate([linear[sane], shift[:, :, None]], axis=2).astype(np.float32)  # (h, 2, 3)
    lifted = np.concatenate([x, np.ones((len(x), 1), np.float32)], axis=1)
    error = (maps[:, 0] @ lifted.T - y[:, 0]) ** 2 + (maps[:, 1] @ lifted.T - y[:, 1]) ** 2
    near = error <= residual**2
    kept: Array = near[np.argmax(near.sum(axis=1))]
    if kept.sum() >= 3:
        fitted, *_ = np.linalg.lstsq(lifted[kept], y[kept], rcond=None)
        again = ((lifted @ fitted - y) ** 2).sum(axis=1) <= residual**2
        if again.sum() > kept.sum():
            kept = again
    return kept


def _frames(points: Array) -> Array:
    """Frames (n, 2, 2), lower triangles of the regions' ellipses."""
    frames = np.zeros((len(points), 2, 2), np.float64)
    frames[:, 0, 0], frames[:, 1, 0], frames[:, 1, 1] = points[:, 2:].T
    return frames


def _scales(features: LocalFeatures) -> list[Array]:
    """The positions of the regions of each scale."""
    scale = features.descriptors[:, 2]
    return [np.flatnonzero(scale == value) for value in np.unique(scale)]
