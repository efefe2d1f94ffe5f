"""The encoder that both CSA recipes share, and the paper's model around it.

Ouyang et al., Contextual Similarity Aggregation with Self-attention for Visual Re-ranking, NeurIPS 2021.
Symbols: B lists, K candidates, L anchors, W width; the query is item 0 of every list.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from kinrank.errors import InputError


class Attention(nn.Module):
    """Multi-head self-attention without positions: the list is a set."""

    def __init__(self, width: int, heads: int, head_dim: int, dropout: float, attention_dropout: float):
        super().__init__()
        self.heads, self.head_dim, self.attention_dropout = heads, head_dim, attention_dropout
        self.qkv = nn.Linear(width, 3 * heads * head_dim)
        self.out = nn.Linear(heads * head_dim, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, keys: torch.Tensor | None) -> torch.Tensor:
        """x (B, N, W), keys (B, 1, 1, N) True where an item may be attended to -> (B, N, W)."""
        b, n, _ = x.shape
        qkv = self.qkv(x).view(b, n, 3, self.heads, self.head_dim)
        q, k, v = (qkv[:, :, i].transpose(1, 2) for i in range(3))  # (B, heads, N, head_dim)
        rate = self.attention_dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=keys, dropout_p=rate)
        mixed: torch.Tensor = self.out(y.transpose(1, 2).reshape(b, n, self.heads * self.head_dim))
        return self.dropout(mixed)


class DropPath(nn.Module):
    """Leaves a residual branch out for whole lists at random (stochastic depth)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (B, N, W), lists dropped with probability `rate`, the others scaled up."""
        if not self.training or self.rate == 0:
            return x
        kept = torch.rand(x.shape[0], 1, 1, device=x.device) >= self.rate
        return x * kept.to(x.dtype) / (1 - self.rate)


class Block(nn.Module):
    """Attention, then a feed-forward of `mlp_ratio` times the width, each on a residual branch.

    norm "pre": x + f(LN x), as in the released code; "post": x + LN(f(x)), as in the paper's equation 5.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        head_dim: int,
        norm: str,
        mlp_ratio: float,
        dropout: float,
        attention_dropout: float,
        drop_path: float,
    ) -> None:
        super().__init__()
        hidden = int(mlp_ratio * width)
        self.pre = norm == "pre"
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, head_dim, dropout, attention_dropout)
        self.mlp = nn.Sequential(
            nn.Linear(width, hidden),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, width),
            nn.Dropout(dropout),
        )
        self.drop_path = DropPath(drop_path)

    def forward(self, x: torch.Tensor, keys: torch.Tensor | None) -> torch.Tensor:
        """x (B, N, W) -> (B, N, W)."""
        if self.pre:
            x = x + self.drop_path(self.attention(self.norm1(x), keys))
            return x + self.drop_path(self.mlp(self.norm2(x)))
        x = x + self.drop_path(self.norm1(self.attention(x, keys)))
        return x + self.drop_path(self.norm2(self.mlp(x)))


class ContextEncoder(nn.Module):
    """A stack of blocks over the items of a list; permuting the list permutes the answer."""

    def __init__(
        self,
        width: int,
        layers: int = 2,
        heads: int = 12,
        head_dim: int | None = None,
        norm: str = "pre",
        mlp_ratio: float = 4.0,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        if norm not in ("pre", "post"):
            raise InputError(f"norm must be 'pre' (released code) or 'post' (the paper), got '{norm}'")
        if head_dim is None:
            if width % heads:
                raise InputError(f"width {width} cannot be split over {heads} heads; cure: give head_dim")
            head_dim = width // heads
        rates = [drop_path * i / max(layers - 1, 1) for i in range(layers)]  # linear in depth, first 0
        self.blocks = nn.ModuleList(
            Block(width, heads, head_dim, norm, mlp_ratio, dropout, attention_dropout, rate) for rate in rates
        )
        self.apply(_initialise)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """x (B, 1+K, W), mask (B, 1+K) True for real items (None: all are) -> (B, 1+K, W)."""
        keys = None if mask is None else mask[:, None, None, :]
        for block in self.blocks:
            x = block(x, keys)
        return x


def _initialise(module: nn.Module) -> None:
    """Linear layers: truncated normal of .02, no offset."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def affinity_rows(similarities: torch.Tensor, anchors: int) -> torch.Tensor:
    """(B, 1+K, 1+K) -> (B, 1+K, L): similarities to the query and the top L-1; zeros where K+1 < L."""
    return F.pad(similarities, (0, anchors))[:, :, :anchors]


class PaperCSA(nn.Module):
    """CSA as published: affinity rows, a projection, an encoder; the score is cos(y_query, y_i)."""

    def __init__(
        self,
        anchors: int = 512,
        width: int = 768,
        layers: int = 2,
        heads: int = 12,
        norm: str = "pre",  # gained more than "post" with every form of the loss that was tried
        head: str = "mlp",
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        if head not in ("mlp", "linear"):
            raise InputError(f"head must be 'mlp' (the paper) or 'linear' (released code), got '{head}'")
        self.anchors = anchors
        self.input_dropout = nn.Dropout(dropout)
        self.projection = nn.Linear(anchors, width)
        self.encoder = ContextEncoder(
            width,
            layers,
            heads,
            norm=norm,
            dropout=dropout,
            attention_dropout=attention_dropout,
            drop_path=drop_path,
        )
        self.reconstruct: nn.Module = nn.Linear(width, anchors)
        if head == "mlp":
            self.reconstruct = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, anchors))
        self.projection.apply(_initialise)
        self.reconstruct.apply(_initialise)

    def refine(self, affinity: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Affinity rows (B, 1+K, L) -> refined, not normalised y (B, 1+K, W)."""
        refined: torch.Tensor = self.encoder(self.projection(self.input_dropout(affinity)), mask)
        return refined

    def forward(self, similarities: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Similarities (B, 1+K, 1+K), the query first -> scores (B, K) = cos(y_0, y_i)."""
        return cosine_to_query(self.refine(affinity_rows(similarities, self.anchors), mask))


def cosine_to_query(y: torch.Tensor) -> torch.Tensor:
    """y (B, 1+K, W) -> (B, K)."""
    y = F.normalize(y.float(), dim=-1)
    return (y[:, :1] * y[:, 1:]).sum(dim=-1)  # not a matrix product: mixed precision would round it
