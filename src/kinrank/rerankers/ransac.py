"""Geometric verification by RANSAC, as in Philbin (2007) and DELG: a planar object is seen twice.

Local features are matched, a transformation is fitted to the matches by OpenCV's MAGSAC, and the number of
matches that it explains decides (`kinrank.rerankers.local` says how, and where the features come from).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kinrank.errors import SpecError
from kinrank.features.local import LocalFeatures, opencv
from kinrank.rerankers.local import LocalReranker
from kinrank.rerankers.matching import mutual_matches
from kinrank.types import Array

MODELS = {"homography": 4, "affine": 3}  # matches that one hypothesis takes


class Ransac(LocalReranker):
    """RANSAC verification of the top candidates by local features; weak matches change nothing."""

    name = "ransac"

    def __init__(
        self,
        features: str | Mapping[str, LocalFeatures] | None = None,
        model: str = "homography",
        top: int = 100,
        floor: int = 15,
        residual: float = 5.0,
        ratio: float = 0.9,
        weight: float = 2.0,
        half: float = 60.0,
    ) -> None:
        if model not in MODELS:
            raise SpecError(f"unknown model '{model}'; there are: {', '.join(MODELS)}")
        if residual <= 0 or not 0 < ratio <= 1:
            raise SpecError(f"residual must be positive and ratio in (0, 1], got {residual} and {ratio}")
        super().__init__(features, top, floor, weight, half)
        self.model, self.residual, self.ratio = model, residual, ratio

    def agreement(self, query: LocalFeatures, other: LocalFeatures) -> int:
        """Inliers of the best transformation."""
        matches = mutual_matches(query.descriptors, other.descriptors, self.ratio)
        source, target = query.points[matches[:, 0], :2], other.points[matches[:, 1], :2]
        return int(inliers(source, target, self.model, self.residual).sum())


def inliers(source: Array, target: Array, model: str = "homography", residual: float = 5.0) -> Array:
    """Which of m matched points (m, 2) follow one transformation within `residual` pixels; (m,) bool.

    A transformation that mirrors the picture, or scales it more than tenfold, explains nothing: no camera
    sees a plane from both sides.
    """
    nothing = np.zeros(len(source), bool)
    if len(source) < MODELS[model] + 1:
        return nothing
    cv2 = opencv()
    fit = cv2.findHomography if model == "homography" else cv2.estimateAffine2D
    arguments = {"maxIters": 2000, "confidence": 0.999}
    matrix, kept = fit(source, target, method=cv2.USAC_MAGSAC, ransacReprojThreshold=residual, **arguments)
    if matrix is None or not np.isfinite(matrix).all():
        return nothing
    explained: Array = kept.ravel().astype(bool)
    if not explained.any() or not _plausible(matrix, source[explained].mean(axis=0)):
        return nothing
    return explained


def _plausible(matrix: Array, centre: Array) -> bool:
    """The area near the matches keeps its orientation and shrinks or grows a hundredfold at most."""
    if len(matrix) == 2:
        area = float(np.linalg.det(matrix[:, :2]))
    else:
        depth = matrix[2, :2] @ centre + matrix[2, 2]
        area = float(np.linalg.det(matrix) / depth**3) if depth else 0.0  # the Jacobian's determinant
    return 1e-2 <= area <= 1e2
