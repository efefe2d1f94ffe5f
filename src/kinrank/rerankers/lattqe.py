"""Learned expansion: a trained attention network sets the weights of the neighbours.

Gordo, Radenovic, Berg: Attention-based query expansion learning, ECCV 2020. No weights ship: they
belong to one feature. The network is in `kinrank.training.lattqe`; here only its ONNX graph runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kinrank.errors import InputError, SpecError
from kinrank.rerankers.augmentation import DatabaseAugmentation
from kinrank.rerankers.expansion import QueryExpansion
from kinrank.rerankers.learned import LearnedModel
from kinrank.types import Array, Candidates


class NeighbourWeights(LearnedModel):
    """Weights of an item's neighbours, from the vectors of both."""

    def of(self, items: Array, near: Array) -> Array:
        """Weights (n, k) for items (n, d) and their neighbours (n, k, d), best first."""
        dims, most = self.config["dims"], self.config["neighbours"]
        if items.shape[1] != dims:
            raise InputError(
                f"the model '{self.folder}' was trained on vectors of {dims} dimensions, these have "
                f"{items.shape[1]}; cure: kinrank train SET.npz -o MODEL --recipe lattqe, on this feature"
            )
        if near.shape[1] > most:
            raise SpecError(
                f"the model '{self.folder}' knows at most {most} neighbours, got k={near.shape[1]}"
            )
        tokens = np.concatenate([items[:, None], near], axis=1)
        return self.run(vectors=np.ascontiguousarray(tokens, dtype=np.float32))


class LAttQE(QueryExpansion):
    """Query expansion whose weights a trained attention network sets (LAttQE)."""

    reports_harm = "where the features are not those that it was trained on"

    def __init__(self, model: str = "lattqe", k: int = 64, device: str = "auto") -> None:
        super().__init__(k)
        self.learned = NeighbourWeights(model, "lattqe", device)

    def expand(self, candidates: Candidates) -> Array:
        """norm(q + sum w_i x_i) over the first k."""
        near = candidates.vectors[: self.k]
        weights = self.learned.of(candidates.query[None], near[None])[0]
        moved: Array = candidates.query + weights @ near
        length = float(np.linalg.norm(moved))
        return moved / length if length > 1e-6 else candidates.query


class LAttDBA(DatabaseAugmentation):
    """Database augmentation with LAttQE's weights, tempered so that items move less (LAttDBA)."""

    name = "lattdba"
    reports_harm = "where the features are not those that it was trained on, or classes are small"

    def __init__(
        self, model: str = "lattqe", k: int = 16, temperature: float = 0.2, device: str = "auto"
    ) -> None:
        super().__init__(k)
        if not temperature > 0:
            raise SpecError(f"temperature must be positive, got {temperature}")
        self.learned = NeighbourWeights(model, "lattqe", device, self.name)
        self.temperature = temperature

    def parameters(self) -> dict[str, Any]:
        """The model by its content, k and the temperature."""
        return {"model": self.learned.digest, "k": self.k, "temperature": self.temperature}

    def combine(self, vectors: Array, rows: Array, near: Array, cosines: Array, far: Array) -> Array:
        """Items plus the softmax-weighted mean of their neighbours; absent neighbours weigh nothing."""
        items, present = vectors[rows], near >= 0
        neighbours = vectors[near] * present[:, :, None]
        logits = np.where(present, self.learned.of(items, neighbours) / self.temperature, -np.inf)
        shares = np.exp(logits - np.maximum(logits.max(axis=1, keepdims=True), -1e30))
        shares = shares / np.maximum(shares.sum(axis=1, keepdims=True), 1e-12)
        moved: Array = items + np.einsum("nk,nkd->nd", shares.astype(np.float32), neighbours)
        return moved
