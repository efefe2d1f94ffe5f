"""Whitening: a linear map, learned once, that makes the directions of a descriptor weigh alike.

`learn` fits the map of Mikolajczyk (2007) as Radenovic (2016) uses it: differences of matching pairs are
whitened, then the principal axes of all are kept. `learn_pca` needs no pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kinrank.errors import InputError
from kinrank.features.pooling import l2
from kinrank.types import Array

_BLOCK = 65536


@dataclass(frozen=True, eq=False)
class Whitening:
    """`x -> l2(P (x - m))` with the mean m (d,) and the projection P (d', d), strongest axis first."""

    mean: Array
    projection: Array

    def __post_init__(self) -> None:
        mean, projection = (np.asarray(a, dtype=np.float32) for a in (self.mean, self.projection))
        if mean.ndim != 1 or projection.ndim != 2 or projection.shape[1] != len(mean):
            raise InputError(f"a whitening needs m (d,) and P (d', d), got {mean.shape}, {projection.shape}")
        if not (np.isfinite(mean).all() and np.isfinite(projection).all()):
            raise InputError("a whitening must be finite; cure: fit it on more vectors than dimensions")
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "projection", projection)

    def apply(self, vectors: Array, dims: int | None = None) -> Array:
        """Vectors (N, d) or (d,) whitened and of unit length; `dims` keeps the strongest axes only."""
        vectors = np.asarray(vectors, dtype=np.float32)
        if vectors.shape[-1] != len(self.mean):
            raise InputError(f"this whitening was fitted to {len(self.mean)} dimensions, got {vectors.shape}")
        if dims is not None and not 1 <= dims <= len(self.projection):
            raise InputError(f"dims must lie between 1 and {len(self.projection)}, got {dims}")
        return l2((vectors - self.mean) @ self.projection[:dims].T)

    def save(self, path: str | Path) -> Path:
        """Write an `.npz` with `mean` and `projection`; returns its path."""
        path = Path(path)
        with path.open("wb") as file:
            np.savez(file, mean=self.mean, projection=self.projection)
        return path

    @classmethod
    def load(cls, path: str | Path) -> Whitening:
        """Read what `save` wrote."""
        try:
            with np.load(path, allow_pickle=False) as data:
                return cls(data["mean"], data["projection"])
        except (KeyError, ValueError, AttributeError) as error:
            raise InputError(
                f"'{path}' holds no whitening (an .npz with mean and projection): {error}"
            ) from None


def learn(vectors: Array, queries: Any, positives: Any) -> Whitening:
    """Whitening learned from matching pairs: rows `queries[i]` and `positives[i]` of vectors (N, d) match."""
    vectors = _checked(vectors)
    queries, positives = np.asarray(queries), np.asarray(positives)
    if queries.shape != positives.shape or queries.ndim != 1 or len(queries) == 0:
        raise InputError(f"pairs need as many queries as positives, got {queries.shape}, {positives.shape}")
    mean = vectors[queries].mean(axis=0, dtype=np.float64)
    differences = _scatter(vectors, np.zeros_like(mean), queries, positives) / len(queries)
    # P = C^-1 with S = C C': differences of matching pairs get unit covariance.
    whiten = _inverse_cholesky(differences)
    spread = whiten @ _scatter(vectors, mean) @ whiten.T
    _, axes = _eigen(spread)
    return Whitening(mean, axes.T @ whiten)


def learn_pca(vectors: Array, dims: int | None = None, shrinkage: float = 1.0) -> Whitening:
    """PCA whitening of vectors (N, d): axes by falling variance, each divided by variance^(shrinkage / 2).

    `shrinkage` 1 whitens fully, 0 only rotates; 0.5 is kinder to weak axes. `dims` keeps the first axes.
    """
    vectors = _checked(vectors)
    mean = vectors.mean(axis=0, dtype=np.float64)
    values, axes = _eigen(_scatter(vectors, mean) / len(vectors))
    known = int((values > values[0] * 1e-10).sum())  # an axis without variance cannot be whitened
    keep = min(known, dims or known)
    return Whitening(mean, (axes[:, :keep] / values[:keep] ** (shrinkage / 2)).T)


def _scatter(vectors: Array, mean: Array, rows: Array | None = None, others: Array | None = None) -> Array:
    """Sum of x x' in float64, a block at a time, of x = v - mean, or of v[rows] - v[others] - mean."""
    total = np.zeros((vectors.shape[1], vectors.shape[1]))
    for start in range(0, len(vectors) if rows is None else len(rows), _BLOCK):
        part = slice(start, start + _BLOCK)
        block = vectors[part] if rows is None else vectors[rows[part]]
        block = block.astype(np.float64) - mean
        if others is not None and rows is not None:
            block -= vectors[others[part]]
        total += block.T @ block
    return total


def _inverse_cholesky(matrix: Array) -> Array:
    """C^-1 of matrix = C C'; few pairs leave it singular, and then the diagonal is raised until it is not."""
    from scipy.linalg import solve_triangular

    size = len(matrix)
    ridge = 0.0
    while True:
        try:
            lower = np.linalg.cholesky(matrix + ridge * np.eye(size))
            return solve_triangular(lower, np.eye(size), lower=True)
        except np.linalg.LinAlgError:
            ridge = max(10 * ridge, 1e-10 * max(float(np.trace(matrix)) / size, 1e-30))


def _eigen(matrix: Array) -> tuple[Array, Array]:
    """Eigenvalues, largest first, and vectors in columns, the largest entry of each positive.

    `eigh`, since `eig` may answer with complex numbers and in any order.
    """
    values, axes = np.linalg.eigh((matrix + matrix.T) / 2)
    values, axes = values[::-1], axes[:, ::-1]
    signs = np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])])
    return values, axes * signs


def _checked(vectors: Array) -> Array:
    vectors = np.asarray(vectors)
    if vectors.ndim != 2 or len(vectors) < 2:
        raise InputError(f"a whitening is fitted on vectors (N, d) with N >= 2, got shape {vectors.shape}")
    if not np.isfinite(vectors).all():
        raise InputError("the vectors hold NaN or infinity; cure: leave those rows out")
    return vectors
