"""Ranking quality of whole batches of lists, for choosing a checkpoint."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from kinrank.training.batch import Source
from kinrank.training.checkpoint import seed_of
from kinrank.training.config import Recipe
from kinrank.training.objective import scores_of, takes_mask


def average_precision(scores: torch.Tensor, relevant: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """AP (B,) of each list, over the relevant items that the list holds; NaN where it holds none.

    scores, relevant, mask (B, K). Equal scores keep the order of the list.
    """
    relevant = relevant & mask
    order = scores.float().masked_fill(~mask, -torch.inf).argsort(dim=1, descending=True, stable=True)
    hits = relevant.gather(1, order).float()
    places = torch.arange(1, hits.shape[1] + 1, device=hits.device)
    return (hits.cumsum(dim=1) / places * hits).sum(dim=1) / hits.sum(dim=1)


def first_is_relevant(scores: torch.Tensor, relevant: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """1 or 0 (B,): whether the best-scored item is relevant; NaN where the list holds none."""
    relevant = relevant & mask
    best = scores.float().masked_fill(~mask, -torch.inf).argmax(dim=1, keepdim=True)
    first = relevant.gather(1, best)[:, 0].float()
    return first.masked_fill(~relevant.any(dim=1), torch.nan)


@torch.no_grad()
def evaluate(model: nn.Module, source: Source, recipe: Recipe, name: str) -> dict[str, float]:
    """mAP and mP@1 in percent, of the model and the first round, on lists that depend on the name alone."""
    device = next(model.parameters()).device
    model.eval()
    rows: list[torch.Tensor] = []
    for number in range(recipe.validation_batches):
        generator = generator_on(device, seed_of("validation", name, number))
        batch = source.sample(recipe.micro_batch, generator, device, number)
        if not takes_mask(model):
            batch = batch.trimmed()
        with precision_of(recipe.precision, device):
            scores = scores_of(model, batch)
        first, mask = batch.similarities[:, 0, 1:], batch.mask[:, 1:]
        rows.append(
            torch.stack(
                [
                    measure(s, batch.relevant, mask)
                    for s in (scores, first)
                    for measure in (average_precision, first_is_relevant)
                ]
            )
        )
    means = torch.cat(rows, dim=1).nanmean(dim=1) * 100
    return dict(zip(("map", "mp1", "map_first", "mp1_first"), means.tolist()))


def generator_on(device: torch.device, seed: int) -> torch.Generator:
    """Random numbers on the device where it can make them."""
    return torch.Generator(device if device.type == "cuda" else "cpu").manual_seed(seed)


def precision_of(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """Automatic mixed precision where the recipe and the device ask for it."""
    if precision == "bf16" or (precision == "auto" and device.type == "cuda"):
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()
