"""Losses on ranked lists. Each is a mean over lists; padded candidates count for nothing."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def contrastive(
    scores: torch.Tensor,
    relevant: torch.Tensor,
    mask: torch.Tensor,
    temperature: float = 2.0,
    with_query: bool = False,
) -> torch.Tensor:
    """-log( sum_i r_i e^(s_i / tau) / sum_i e^(s_i / tau) ), the paper's L_C.

    scores, relevant, mask (B, K). The sums run over the candidates (the paper: i >= 2), or over the
    query itself too (`with_query`, the released code: its score is 1 and it is relevant). A list
    without a relevant candidate has no value in the first form and is left out.
    """
    logits = (scores.float() / temperature).masked_fill(~mask, -torch.inf)
    relevant = relevant & mask
    if with_query:
        own = torch.full_like(logits[:, :1], 1 / temperature)
        logits = torch.cat([own, logits], dim=1)
        relevant = torch.cat([torch.ones_like(relevant[:, :1]), relevant], dim=1)
    counted = relevant.any(dim=1)
    positive = logits.masked_fill(~relevant, -torch.inf)[counted].logsumexp(dim=1)
    return _mean(logits[counted].logsumexp(dim=1) - positive, scores)


def reconstruction(
    affinity: torch.Tensor, rebuilt: torch.Tensor, mask: torch.Tensor, form: str = "squared"
) -> torch.Tensor:
    """How far the rows (B, 1+K, L) that the head rebuilds from y are from the affinity rows.

    "squared" (the paper's L_M, read literally): sum over the items of a list of |a_i - b_i|^2.
    "mean_squared": the same, divided by the number of items and anchors.
    "normalised" (released code): mean over the items of |a_i/|a_i| - b_i/|b_i||, the plain distance.
    """
    affinity, rebuilt = affinity.float(), rebuilt.float()
    if form == "normalised":
        affinity, rebuilt = F.normalize(affinity, dim=-1), F.normalize(rebuilt, dim=-1)
    squared = (affinity - rebuilt).square().sum(dim=-1)  # (B, 1+K)
    if form == "squared":
        return (squared * mask).sum(dim=1).mean()
    if form == "mean_squared":
        return ((squared * mask).sum(dim=1) / mask.sum(dim=1)).mean() / affinity.shape[-1]
    distance = squared.clamp(min=1e-4).sqrt()  # the clamp keeps the root's gradient finite at zero
    return ((distance * mask).sum(dim=1) / mask.sum(dim=1)).mean()


def smooth_ap(
    scores: torch.Tensor, relevant: torch.Tensor, mask: torch.Tensor, temperature: float = 0.15
) -> torch.Tensor:
    """1 - AP of each list, the ranks made smooth by sigmoids of score differences (Brown 2020).

    rank_i = 1 + sum_{j != i} sigma((s_j - s_i) / tau), over all and over the relevant alone;
    AP = mean over relevant i of rank_i(relevant) / rank_i(all). Lists without a relevant
    candidate are left out.
    """
    relevant = relevant & mask
    counted = relevant.any(dim=1)
    scores, relevant, mask = scores.float()[counted], relevant[counted], mask[counted]
    above = torch.sigmoid((scores[:, None, :] - scores[:, :, None]) / temperature)  # (B, i, j)
    above = above * ~torch.eye(scores.shape[1], dtype=torch.bool, device=scores.device)
    rank = 1 + (above * mask[:, None, :]).sum(dim=2)
    rank_relevant = 1 + (above * relevant[:, None, :]).sum(dim=2)
    precision = rank_relevant / rank * relevant
    return _mean(1 - precision.sum(dim=1) / relevant.sum(dim=1), scores)


def binary_cross_entropy(scores: torch.Tensor, relevant: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean over a list's candidates of the cross-entropy of sigma(s_i) with its label."""
    each = F.binary_cross_entropy_with_logits(scores.float(), relevant.float(), reduction="none")
    return ((each * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)).mean()


def margin_contrastive(
    query: torch.Tensor, items: torch.Tensor, relevant: torch.Tensor, mask: torch.Tensor, margin: float
) -> torch.Tensor:
    """Mean of |q - f|^2 over a list's positives plus mean of max(0, m - |q - f|)^2 over its negatives.

    query (B, d), items (B, K, d); relevant, mask (B, K). Lists without a positive are left out.
    """
    positive, negative = relevant & mask, ~relevant & mask
    squared = (query.float()[:, None] - items.float()).square().sum(dim=-1)
    near = (margin - squared.clamp(min=1e-8).sqrt()).clamp(min=0).square()
    each = (squared * positive).sum(dim=1) / positive.sum(dim=1).clamp(min=1)
    each = each + (near * negative).sum(dim=1) / negative.sum(dim=1).clamp(min=1)
    return _mean(each[positive.any(dim=1)], query)


def _mean(values: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """The mean; of nothing, a zero that still has a gradient."""
    return values.mean() if len(values) else scores.sum() * 0.0
