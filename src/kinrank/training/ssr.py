"""SSR's network: small networks guess how the list's similarities should change; one step follows them.

Shen et al., Re-ranking for image retrieval and transductive few-shot classification, NeurIPS 2021.
Each node i (query or candidate) is described by a subgraph: s(i, q), its similarities to the m candidates
nearest to it, and the query's similarities to the same m. A network maps this to the gradient of a loss by
these similarities, though no label is known ("synthetic gradients"). One gradient step moves the query, a
second one (another network) the candidates; the cosine after that is the score.

The step is taken on vectors, but it only mixes them: x - lr sum_b g_b (b - s_b x), since that is the
gradient of a cosine. So all of it is written on similarities here, and no vectors are needed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from kinrank.training.batch import ListBatch
from kinrank.training.config import Loss

ABSENT = -2.0  # below any cosine: marks a neighbour that a short list does not have


class Scaled(nn.Module):
    """Instance norm of one channel: each vector to zero mean and unit deviation, one scale, one offset."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.scale, self.offset = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., size) -> (..., size)."""
        return F.layer_norm(x, (self.size,)) * self.scale + self.offset


def gradient_network(size: int, hidden: int) -> nn.Sequential:
    """Similarities of a subgraph (..., size) -> the loss's gradient by each of them."""
    return nn.Sequential(
        Scaled(size),
        nn.Linear(size, hidden),
        nn.ReLU(),
        Scaled(hidden),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        Scaled(hidden),
        nn.Linear(hidden, size),
    )


class SSR(nn.Module):
    """Similarities (B, 1+K, 1+K), the query first -> scores (B, K) after one refinement."""

    def __init__(
        self, nearest: int = 100, hidden: int = 1024, step_size: float = 1e-3, scale: float = 10.0
    ) -> None:
        super().__init__()
        self.nearest, self.step_size = nearest, step_size
        self.for_query = gradient_network(2 * nearest + 1, hidden)
        self.for_candidates = gradient_network(2 * nearest + 1, hidden)
        self.scale = nn.Parameter(torch.tensor(scale))  # of the cosines in the loss

    def forward(self, similarities: torch.Tensor) -> torch.Tensor:
        """Scores (B, K), cosines of the moved query to the moved candidates."""
        index, present = self.subgraphs(similarities[:, :, 1:])
        table = similarities[:, 1:, 1:]  # (B, K, K)
        to_query = self.moved_query(similarities[:, 0, 1:], table, index, present)
        return self.moved_candidates(to_query, table, index, present)

    def subgraphs(self, nodes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The m candidates nearest to each node (B, 1+K, m), best first, and which of them are there.

        Chosen once, from the input: similarities that were computed would put near ties in an order that
        depends on rounding. Equal ones keep the order of the list.
        """
        padded = F.pad(nodes, (0, self.nearest), value=ABSENT)
        if torch.onnx.is_in_onnx_export():  # ONNX's TopK takes the first of equals; torch's promises nothing
            near, index = padded.topk(self.nearest, dim=2)
        else:
            near, index = torch.sort(padded, dim=2, descending=True, stable=True)
            near, index = near[..., : self.nearest], index[..., : self.nearest]
        present = near > ABSENT / 2 - 0.5
        return index * present.long(), present.to(nodes.dtype)

    def moved_query(
        self, to_query: torch.Tensor, table: torch.Tensor, index: torch.Tensor, present: torch.Tensor
    ) -> torch.Tensor:
        """The moved query's cosines (B, K) to the candidates."""
        own, near, shared = self.gradients(self.for_query, to_query, table, index, present)
        c = collected(own, near[:, 0], index[:, 0], shared, index)  # gradient by each s(q, d_j)
        lr = self.step_size
        keep = 1 + lr * (c * to_query).sum(dim=1, keepdim=True)
        mixed = torch.einsum("bjm,bj->bm", table, c)
        products = keep * to_query - lr * mixed  # q'.d_m
        length = (
            keep.square()
            - 2 * lr * keep * (c * to_query).sum(dim=1, keepdim=True)
            + lr**2 * (c * mixed).sum(dim=1, keepdim=True)
        )
        return products / length.clamp(min=1e-12).sqrt()

    def moved_candidates(
        self, to_query: torch.Tensor, table: torch.Tensor, index: torch.Tensor, present: torch.Tensor
    ) -> torch.Tensor:
        """Cosines (B, K) of the moved candidates to the query."""
        own, near, shared = self.gradients(self.for_candidates, to_query, table, index, present)
        cq = collected(own, near[:, 0], index[:, 0], shared, index)  # by s(q, d_j)
        pairs = torch.zeros_like(table).scatter_add(2, index[:, 1:], near[:, 1:])
        pairs = pairs + pairs.transpose(1, 2)  # by s(d_i, d_j); each side moves
        lr = self.step_size
        pulled = (pairs * table).sum(dim=2)
        keep = 1 + lr * (pulled + cq * to_query)  # d'_a = keep_a d_a - lr sum_b pairs_ab d_b - lr cq_a q
        rest = keep * to_query - lr * torch.einsum("bij,bj->bi", pairs, to_query)
        products = rest - lr * cq
        length = (
            keep.square()
            - 2 * lr * keep * pulled
            + lr**2 * ((pairs @ table) * pairs).sum(dim=2)
            - 2 * lr * cq * rest
            + (lr * cq).square()
        )
        return products / length.clamp(min=1e-12).sqrt()

    def gradients(
        self,
        network: nn.Module,
        to_query: torch.Tensor,
        table: torch.Tensor,
        index: torch.Tensor,
        present: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """By s(i, q) (B, 1+K), and by s(i, d_j) and s(q, d_j) (B, 1+K, m) for the j of each subgraph."""
        nodes = torch.cat([to_query[:, None], table], dim=1)  # (B, 1+K, K): node i to all candidates
        near = nodes.gather(2, index) * present
        shared = to_query[:, None].expand(-1, nodes.shape[1], -1).gather(2, index) * present
        own = F.pad(to_query, (1, 0), value=1.0)  # s(i, q); the query's to itself
        out = network(torch.cat([own[..., None], near, shared], dim=2))
        m = self.nearest
        return out[..., 0], out[..., 1 : 1 + m] * present, out[..., 1 + m :] * present


def collected(
    own: torch.Tensor,
    query_near: torch.Tensor,
    query_index: torch.Tensor,
    shared: torch.Tensor,
    index: torch.Tensor,
) -> torch.Tensor:
    """The whole gradient by s(q, d_j) (B, K): from d_j's own subgraph, the query's, and all that share it."""
    total = own[:, 1:].scatter_add(1, query_index, query_near)
    return total.scatter_add(1, index.flatten(1), shared.flatten(1))


def objective(model: SSR, batch: ListBatch, settings: Loss) -> dict[str, torch.Tensor]:
    """InfoNCE of each positive against all negatives of its list, with a learned scale."""
    value = info_nce(model(batch.similarities), batch.relevant, batch.mask[:, 1:], model.scale)
    return {"loss": value, "info_nce": value}


def info_nce(
    scores: torch.Tensor, relevant: torch.Tensor, mask: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    """Mean over positives p of -log( e^(c s_p) / (e^(c s_p) + sum_neg e^(c s_n)) ), then over lists."""
    positive, negative = relevant & mask, ~relevant & mask
    logits = scores.float() * scale
    against = logits.masked_fill(~negative, -torch.inf).logsumexp(dim=1, keepdim=True)
    each = torch.logaddexp(logits, against.expand_as(logits)) - logits
    counted = positive.any(dim=1)
    lists = (each * positive).sum(dim=1)[counted] / positive.sum(dim=1)[counted]
    return lists.mean() if len(lists) else scores.sum() * 0.0
