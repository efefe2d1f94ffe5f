"""LAttQE's network: self-attention over a query and its neighbours says how much each of them counts.

Gordo, Radenovic, Berg: Attention-based query expansion learning, ECCV 2020 (no code was published).
t_0 = q + p_0, t_i = x_i + p_i; a transformer gives q~, x~_i; w_i = cos(q~, x~_i);
q' = norm(q + sum_i w_i x_i): attention sets the weights, the vectors that are added are the original ones.
Positions start as small sines and cosines: as large as the vectors, they drown them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from kinrank.training import losses
from kinrank.training.batch import ListBatch
from kinrank.training.config import Loss
from kinrank.training.encoder import ContextEncoder, cosine_to_query

POSITION_SCALE = 0.02


class LAttQE(nn.Module):
    """Vectors of a list (B, 1+K, d), the query first, to the weights of its neighbours or to new scores."""

    needs_vectors = True

    def __init__(
        self,
        dims: int,
        neighbours: int = 64,
        fewest: int = 32,
        layers: int = 3,
        heads: int = 64,
        mlp_ratio: float = 1.0,
        drop_neighbours: float = 0.1,
    ) -> None:
        super().__init__()
        self.dims, self.neighbours, self.fewest = dims, neighbours, min(fewest, neighbours)
        self.drop_neighbours = drop_neighbours
        self.positions = nn.Parameter(POSITION_SCALE * sines(1 + neighbours, dims))
        head_dim = max(1, dims // heads)
        self.encoder = ContextEncoder(dims, layers, heads, head_dim, norm="pre", mlp_ratio=mlp_ratio)
        self.relevance = nn.Linear(dims, 1)

    def refine(self, vectors: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Tokens (B, 1+n, d) of the query and its first n neighbours -> (B, 1+n, d)."""
        refined: torch.Tensor = self.encoder(vectors + self.positions[: vectors.shape[1]], mask)
        return refined

    def serve(self, vectors: torch.Tensor) -> torch.Tensor:
        """(B, 1+n, d) -> weights (B, n) of the neighbours, each from -1 to 1."""
        return cosine_to_query(self.refine(vectors))

    def forward(self, vectors: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Scores (B, K) = q'.x_i of all candidates, q' from the first `neighbours` of them."""
        near = vectors[:, : 1 + self.neighbours]
        near_mask = None if mask is None else mask[:, : 1 + self.neighbours]
        weights = cosine_to_query(self.refine(near, near_mask))
        moved = expanded(near, weights if near_mask is None else weights * near_mask[:, 1:])
        return (moved[:, None] * vectors[:, 1:]).sum(dim=-1)


def sines(count: int, dims: int) -> torch.Tensor:
    """The sine and cosine positions (count, dims) of Vaswani 2017."""
    places = torch.arange(count)[:, None] / 10000 ** (torch.arange(0, dims, 2)[None] / dims)
    return torch.stack([places.sin(), places.cos()], dim=2).flatten(1)[:, :dims]


def expanded(near: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """norm(q + sum_i w_i x_i) of near (B, 1+n, d), weights (B, n)."""
    return F.normalize(near[:, 0] + (weights[:, :, None] * near[:, 1:]).sum(dim=1), dim=-1)


def objective(model: LAttQE, batch: ListBatch, settings: Loss) -> dict[str, torch.Tensor]:
    """Contrastive on q' against the list, and cross-entropy of what each neighbour says of itself.

    y |q' - f|^2 + (1 - y) max(0, m - |q' - f|)^2, the mean over a list's positives plus the mean over
    its negatives. While training, the number of neighbours is drawn, and some of them are left out.
    """
    assert batch.vectors is not None
    vectors, mask = batch.vectors, batch.mask
    n = min(model.neighbours, vectors.shape[1] - 1)
    if model.training:
        n = int(torch.randint(min(model.fewest, n), n + 1, (1,)).item())
    near, kept = vectors[:, : 1 + n], mask[:, : 1 + n].clone()
    if model.training:
        kept[:, 1:] &= torch.rand(kept[:, 1:].shape, device=kept.device) >= model.drop_neighbours
    y = model.refine(near, kept)
    moved = expanded(near, cosine_to_query(y) * kept[:, 1:])
    contrastive = losses.margin_contrastive(
        moved, vectors[:, 1:], batch.relevant, mask[:, 1:], settings.margin
    )
    said = model.relevance(y[:, 1:])[..., 0]
    bce = losses.binary_cross_entropy(said, batch.relevant[:, :n], kept[:, 1:])
    return {"loss": contrastive + settings.weight_bce * bce, "contrastive": contrastive, "bce": bce}
