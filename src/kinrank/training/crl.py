"""CRL's network: convolutions over the rank-ordered affinity map, pooled by row to a relevance.

Only the idea is published (a lightweight CNN over the context of the ranking list, IEEE TMM 2020).
Chosen here: the columns are the query and the first A-1 candidates, so that long lists stay cheap; the
similarities are standardised within the list; the relevance corrects the first-round score.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

CLIP = 8.0  # standardised similarities are cut there


def standardised(similarities: torch.Tensor) -> torch.Tensor:
    """(B, N, N) with zero mean and unit deviation over what is off the diagonal, which becomes zero."""
    n = similarities.shape[1]
    off = 1 - torch.eye(n, dtype=similarities.dtype, device=similarities.device)
    count = off.sum()
    mean = (similarities * off).sum(dim=(1, 2), keepdim=True) / count
    centred = (similarities - mean) * off
    deviation = (centred.square().sum(dim=(1, 2), keepdim=True) / count + 1e-12).sqrt()
    return (centred / deviation).clamp(-CLIP, CLIP)


class CRL(nn.Module):
    """Affinity map (B, 3, K, A) -> convolutions -> mean and maximum of each row -> a score a candidate."""

    def __init__(self, columns: int = 64, channels: int = 32, layers: int = 4) -> None:
        super().__init__()
        self.columns = columns
        sizes = [3, *([channels] * layers)]
        self.convolutions = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU())
                for a, b in pairwise(sizes)
            )
        )
        self.head = nn.Sequential(nn.Linear(2 * channels, channels), nn.ReLU(), nn.Linear(channels, 1))
        self.residual = nn.Parameter(torch.ones(1))
        last = self.head[2]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)  # training starts from the first round
        nn.init.zeros_(last.bias)

    def forward(self, similarities: torch.Tensor) -> torch.Tensor:
        """Similarities (B, 1+K, 1+K), the query first, candidates in rank order -> scores (B, K)."""
        z = standardised(similarities)
        pairs = z[:, 1:, : self.columns]  # (B, K, A)
        to_query = z[:, 1:, :1]
        planes = [pairs, to_query.expand_as(pairs), z[:, :1, : self.columns].expand_as(pairs)]
        x = self.convolutions(torch.stack(planes, dim=1))  # (B, C, K, A)
        rows = torch.cat([x.mean(dim=3), x.amax(dim=3)], dim=1).transpose(1, 2)
        scores: torch.Tensor = self.residual * to_query[..., 0] + self.head(rows)[..., 0]
        return scores
