"""Spatial coding (Zhou, ACM MM 2010): matches must stand to each other as they do in the query.

For each pair of matches, is one left of the other, is one above the other: two binary maps, and as many
again for every rotation of the axes. Maps of query and candidate are compared by exclusive or, and the match
that contradicts most is dropped until none contradicts. What remains is the agreement.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kinrank.errors import SpecError
from kinrank.features.local import LocalFeatures
from kinrank.rerankers.local import LocalReranker
from kinrank.rerankers.matching import mutual_matches
from kinrank.types import Array

_BINS = 36  # of the histogram of angle differences


class SpatialCoding(LocalReranker):
    """Spatial coding of matched local features: those that keep their relative places are counted."""

    name = "spatial"

    def __init__(
        self,
        features: str | Mapping[str, LocalFeatures] | None = None,
        rotations: int = 3,
        upright: bool = False,
        top: int = 100,
        floor: int = 10,
        ratio: float = 0.85,
        matches: int = 200,
        weight: float = 2.0,
        half: float = 30.0,
    ) -> None:
        if rotations < 1 or matches < 1 or not 0 < ratio <= 1:
            raise SpecError(
                "rotations and matches must be at least 1 and ratio in (0, 1], "
                f"got {rotations}, {matches} and {ratio}"
            )
        super().__init__(features, top, floor, weight, half)
        self.rotations, self.upright, self.ratio, self.matches = rotations, upright, ratio, matches

    def agreement(self, query: LocalFeatures, other: LocalFeatures) -> int:
        """Matches left when all contradictions are gone."""
        pairs = mutual_matches(query.descriptors, other.descriptors, self.ratio)[: self.matches]
        if len(pairs) < 2:
            return 0  # one match cannot contradict itself
        source, target = query.points[pairs[:, 0]], other.points[pairs[:, 1]]
        places = target[:, :2]
        if not self.upright:
            places = turned(places, -dominant_angle(target[:, 3] - source[:, 3]))
        return int(consistent(source[:, :2], places, self.rotations).sum())


def spatial_maps(points: Array, rotations: int) -> Array:
    """Maps (2 r, N, N) bool of points (N, 2): entry ij of map k says whether i lies before j on axis k.

    The axes are x and y, turned by k pi / (2 r) for k = 0 ... r - 1.
    """
    angles = np.arange(rotations) * np.pi / (2 * rotations)
    axes = np.stack([np.cos(angles), np.sin(angles), -np.sin(angles), np.cos(angles)], axis=1)
    along = points @ axes.reshape(-1, 2).T  # (N, 2 r)
    before: Array = along.T[:, :, None] < along.T[:, None, :]
    return before


def consistent(source: Array, target: Array, rotations: int) -> Array:
    """Which of N matched points survive when the worst of them is dropped again and again; (N,) bool."""
    clashes = np.zeros((len(source), len(source)), np.int32)
    for axis in range(rotations):  # one rotation at a time: N x N bytes, not 2 r times that
        angle = axis * np.pi / (2 * rotations)
        one, two = (spatial_maps(turned(points, -angle), 1) for points in (source, target))
        clashes += (one ^ two).sum(axis=0, dtype=np.int32)
    total = clashes.sum(axis=1)
    kept = np.ones(len(source), bool)
    while (worst := int(total.argmax())) >= 0 and total[worst] > 0:
        kept[worst] = False
        total -= clashes[:, worst]
        total[worst] = -1
        total[~kept] = -1
    return kept


def turned(points: Array, angle: float) -> Array:
    """Points (N, 2) turned by an angle in radians."""
    cos, sin = np.cos(angle), np.sin(angle)
    rotated: Array = points @ np.array([[cos, sin], [-sin, cos]], points.dtype)
    return rotated


def dominant_angle(degrees: Array) -> float:
    """The commonest of some angles, in radians: the mean of the fullest bin and its two neighbours."""
    places = np.floor(np.mod(degrees, 360) / (360 / _BINS)).astype(int) % _BINS
    counts = np.bincount(places, minlength=_BINS)
    peak = int(np.argmax(counts + np.roll(counts, 1) + np.roll(counts, -1)))
    near = np.abs((places - peak + _BINS // 2) % _BINS - _BINS // 2) <= 1
    radians = np.deg2rad(degrees[near])
    return float(np.arctan2(np.sin(radians).mean(), np.cos(radians).mean()))
