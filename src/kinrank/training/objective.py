"""From a batch of lists to one loss: the module that is trained, and wrapped for several processes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from kinrank.errors import InputError
from kinrank.registry import unknown
from kinrank.training import lattqe, losses, ssr
from kinrank.training.batch import ListBatch
from kinrank.training.config import Loss
from kinrank.training.encoder import affinity_rows, cosine_to_query

Parts = dict[str, torch.Tensor]


def takes_mask(model: nn.Module) -> bool:
    """Whether the model's forward knows padding; one that does not gets lists of one length."""
    return "mask" in inspect.signature(model.forward).parameters


def scores_of(model: nn.Module, batch: ListBatch) -> torch.Tensor:
    """Scores (B, K) of a model for a batch."""
    inputs = [batch.similarities]
    if getattr(model, "needs_vectors", False):
        inputs = [batch.vectors]  # type: ignore[list-item]
    scores: torch.Tensor = model(*inputs, batch.mask) if takes_mask(model) else model(*inputs)
    return scores


def csa(model: Any, batch: ListBatch, settings: Loss) -> Parts:
    """The paper's L_C + lambda L_M."""
    affinity = affinity_rows(batch.similarities, model.anchors)
    y = model.refine(affinity, batch.mask)
    scores = cosine_to_query(y)
    contrastive = losses.contrastive(
        scores, batch.relevant, batch.mask[:, 1:], settings.temperature, settings.with_query
    )
    parts = {"loss": contrastive, "contrastive": contrastive}
    if settings.weight_mse:
        mse = losses.reconstruction(affinity, model.reconstruct(y), batch.mask, settings.reconstruction)
        parts |= {"loss": contrastive + settings.weight_mse * mse, "mse": mse}
    return parts


def smooth_ap(model: Any, batch: ListBatch, settings: Loss) -> Parts:
    """Smooth AP, plus a little cross-entropy."""
    scores, mask = scores_of(model, batch), batch.mask[:, 1:]
    ap = losses.smooth_ap(scores, batch.relevant, mask, settings.temperature)
    parts = {"loss": ap, "smooth_ap": ap}
    if settings.weight_bce:
        bce = losses.binary_cross_entropy(scores, batch.relevant, mask)
        parts |= {"loss": ap + settings.weight_bce * bce, "bce": bce}
    return parts


def bce(model: Any, batch: ListBatch, settings: Loss) -> Parts:
    """Binary cross-entropy of each candidate's relevance."""
    value = losses.binary_cross_entropy(scores_of(model, batch), batch.relevant, batch.mask[:, 1:])
    return {"loss": value, "bce": value}


OBJECTIVES: dict[str, Callable[[Any, ListBatch, Loss], Parts]] = {
    "csa": csa,
    "smooth_ap": smooth_ap,
    "bce": bce,
    "lattqe": lattqe.objective,
    "ssr": ssr.objective,
}


class Objective(nn.Module):
    """The model and its loss as one module: its forward is what several processes share."""

    def __init__(self, model: nn.Module, settings: Loss) -> None:
        super().__init__()
        if settings.name not in OBJECTIVES:
            raise InputError(unknown("loss", settings.name, OBJECTIVES))
        self.model, self.settings = model, settings

    def forward(self, batch: ListBatch) -> Parts:
        """ "loss" and its named parts, each a scalar."""
        return OBJECTIVES[self.settings.name](self.model, batch, self.settings)
