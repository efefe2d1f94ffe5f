"""CSA made independent of the feature: the recipe `universal`, the model that ships.

As in the paper, candidates are described by their similarities to anchors of the same list and an encoder
lets them exchange that context. What makes it carry over to embeddings never seen is in `tokens`; here
each block attends twice, to the whole list and to the node's own neighbours, and the answer starts
from the first round: score_i = a s_i + head(y_i, y_0 y_i, |y_0 - y_i|), the head beginning at zero.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kinrank.training.tokens import ANCHORS, PAIRS, SCALARS, ListTokens, describe


class LocalAttention(nn.Module):
    """Attention of each node over its T neighbours, with a bias learnt from the pair."""

    def __init__(self, width: int, heads: int, head_width: int) -> None:
        super().__init__()
        self.heads, self.inner = heads, heads * head_width
        self.query = nn.Linear(width, self.inner)
        self.key_value = nn.Linear(width, 2 * self.inner)
        self.bias = nn.Sequential(nn.Linear(PAIRS, 16), nn.GELU(), nn.Linear(16, heads))
        self.out = nn.Linear(self.inner, width)

    def forward(self, x: Tensor, lists: ListTokens) -> Tensor:
        """x (B, n, width) -> (B, n, width)."""
        batch, n, t = lists.nodes.shape
        offset = torch.arange(batch, device=x.device)[:, None, None] * n
        rows = (lists.nodes + offset).flatten()
        held = self.key_value(x).flatten(0, 1).index_select(0, rows).view(batch, n, t, 2, self.heads, -1)
        query = self.query(x).view(batch, n, 1, self.heads, -1)
        logits = (query * held[:, :, :, 0]).sum(-1) * (self.inner // self.heads) ** -0.5
        logits = logits + self.bias(lists.pairs.to(x.dtype)) + (lists.valid[..., None].to(x.dtype) - 1) * 1e4
        share = logits.softmax(2)[..., None]  # (B, n, T, heads, 1)
        mixed: Tensor = self.out((share * held[:, :, :, 1]).sum(2).flatten(2))
        return mixed


class GlobalAttention(nn.Module):
    """Multi-head attention of every node over the list (over its first `reach` nodes when set)."""

    def __init__(self, width: int, heads: int, reach: int | None) -> None:
        super().__init__()
        self.heads, self.reach = heads, reach
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, n, width) -> (B, n, width)."""
        seen = x if self.reach is None else x[:, : self.reach]
        query = self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        key, value = self.key_value(seen).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    """Pre-norm: the list, the neighbourhood, then each node on its own."""

    def __init__(self, width: int, heads: int, local_heads: int, local_width: int, reach: int | None) -> None:
        super().__init__()
        self.norm_list, self.norm_near, self.norm_own = (nn.LayerNorm(width) for _ in range(3))
        self.list = GlobalAttention(width, heads, reach)
        self.near = LocalAttention(width, local_heads, local_width)
        self.own = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, lists: ListTokens) -> Tensor:
        """x (B, n, width) -> (B, n, width)."""
        x = x + self.list(self.norm_list(x))
        x = x + self.near(self.norm_near(x), lists)
        out: Tensor = x + self.own(self.norm_own(x))
        return out


class UniversalCSA(nn.Module):
    """Similarities of a list (B, 1 + K, 1 + K), the query first, to scores (B, K)."""

    def __init__(
        self,
        width: int = 96,
        layers: int = 3,
        heads: int = 6,
        local_heads: int = 4,
        local_width: int = 12,
        reach: int | None = None,
    ) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(ANCHORS + SCALARS, width), nn.GELU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(
            Block(width, heads, local_heads, local_width, reach) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        last = nn.Linear(width, 1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.head = nn.Sequential(nn.Linear(3 * width, width), nn.GELU(), last)
        self.residual = nn.Parameter(torch.ones(1))

    def forward(self, similarities: Tensor) -> Tensor:
        """Scores (B, K) in the order of the candidates."""
        lists = describe(similarities)
        x = self.embed(lists.tokens)
        for block in self.blocks:
            x = block(x, lists)
        y = self.norm(x)
        query, rest = y[:, :1], y[:, 1:]
        change = self.head(torch.cat([rest, query * rest, (query - rest).abs()], -1))[..., 0]
        scores: Tensor = self.residual * lists.first[:, 1:] + change
        return scores
