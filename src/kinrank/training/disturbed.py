"""Real sets as galleries that never come twice: what worlds lack, without learning a set by heart.

For each group of batches a gallery is drawn from one of the sets: some items, some classes (the others
leave, or stay as distractors), at most so many positives; then its geometry is changed: two features of
the same images joined, projected, noised, stretched, centred or not. Lists are ranked in what came out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kinrank.training.batch import ListBatch
from kinrank.training.checkpoint import seed_of
from kinrank.training.lists import Labelled
from kinrank.training.metrics import generator_on
from kinrank.training.worlds import LENGTHS, Dice, lists_of, pick_queries
from kinrank.types import unit_rows

SMALLEST = 40  # items of a gallery; a smaller draw is made again


class DisturbedSets:
    """Training lists of real sets, disturbed anew for every `batches` batches."""

    def __init__(
        self,
        sets: Sequence[Labelled],
        k: tuple[int, int],
        seed: str,
        nodes: int | None = None,
        batches: int = 2,
    ) -> None:
        self.k, self.seed, self.nodes, self.batches = k, seed, nodes, batches
        self.families = _families(sets)
        self._on: dict[str, list[list[tuple[Tensor, Tensor]]]] = {}
        self._made: tuple[Any, Any] = (None, None)

    def sample(
        self, batch_size: int, generator: torch.Generator, device: torch.device, number: int = 0
    ) -> ListBatch:
        """Lists of one length from the gallery of this batch's number."""
        group = number // self.batches
        if self._made[0] != group:
            self._made = group, self._gallery(generator_on(device, seed_of(self.seed, group)), device)
        vectors, labels = self._made[1]
        dice = Dice(generator)
        longest = min(self.k[1], len(labels) - 2)
        k = dice.pick([k for k in LENGTHS if self.k[0] <= k <= longest] or [longest])
        wanted = self.nodes // k if self.nodes else batch_size
        queries = pick_queries(labels[None], max(1, min(wanted, 1024, int((labels >= 0).sum()))), dice)
        return lists_of(vectors[None], labels[None], queries, k)

    def _gallery(self, random: torch.Generator, device: torch.device) -> tuple[Tensor, Tensor]:
        if str(device) not in self._on:  # once a device: the sets stay where the lists are made
            self._on = {
                str(device): [[(x.to(device), y.to(device)) for x, y in family] for family in self.families]
            }
        dice = Dice(random)
        while True:
            vectors, labels = draw_items(*join(dice.pick(self._on[str(device)]), dice), dice)
            classes = torch.bincount(labels[labels >= 0]) if (labels >= 0).any() else labels[:0]
            if len(labels) >= SMALLEST and (classes > 1).sum() >= 4:
                return change_geometry(vectors, dice), labels


def _families(sets: Sequence[Labelled]) -> list[list[tuple[Tensor, Tensor]]]:
    """Sets with the same labels in the same order are features of the same images."""
    families: dict[bytes, list[tuple[Tensor, Tensor]]] = {}
    for data in sets:
        labels = torch.unique(torch.from_numpy(_numbers(data.labels)), return_inverse=True)[1]
        vectors = torch.from_numpy(unit_rows(data.vectors, data.name))
        families.setdefault(labels.numpy().tobytes(), []).append((vectors, labels))
    return list(families.values())


def _numbers(labels: Any) -> Any:
    import numpy as np

    return np.unique(labels, return_inverse=True)[1]


def join(family: list[tuple[Tensor, Tensor]], dice: Dice) -> tuple[Tensor, Tensor]:
    """One feature of a family; in four draws of ten two of them side by side, weighed at random."""
    vectors, labels = dice.pick(family)
    if len(family) > 1 and dice.flip(0.4):
        other = dice.pick(family)[0]
        share = float(dice.uniform(1, low=0.2, high=0.8))
        vectors = torch.cat([vectors * share**0.5, other * (1 - share) ** 0.5], dim=1)
    return vectors, labels


def draw_items(vectors: Tensor, labels: Tensor, dice: Dice) -> tuple[Tensor, Tensor]:
    """A part of the items, of the classes and of each class's positives; distractors get -1."""
    if dice.flip(0.5):
        kept = dice.uniform(len(labels)) < dice.log(1, low=0.1, high=1.0)
        vectors, labels = vectors[kept], labels[kept]
    if len(labels) == 0:
        return vectors, labels
    taking_part = dice.uniform(int(labels.max()) + 1) < dice.uniform(1, low=0.2, high=1.3)
    out = ~taking_part[labels]
    if dice.flip(0.6):
        out |= beyond(labels, int(dice.log(1, low=2, high=40)), dice)
    if dice.flip(0.5):
        return vectors[~out], contiguous(labels[~out])
    return vectors, contiguous(torch.where(out, torch.full_like(labels, -1), labels))


def beyond(labels: Tensor, cap: int, dice: Dice) -> Tensor:
    """True for all but `cap` random items of each class."""
    shuffled = dice.uniform(len(labels)).argsort()
    by_class = labels[shuffled].argsort(stable=True)
    grouped = labels[shuffled][by_class]
    place = torch.arange(len(labels), device=labels.device) - torch.searchsorted(grouped, grouped)
    over = torch.zeros_like(labels, dtype=torch.bool)
    over[shuffled[by_class]] = place >= cap
    return over


def contiguous(labels: Tensor) -> Tensor:
    """Classes numbered from 0 without gaps; -1 stays."""
    labels = labels.clone()
    held = labels >= 0
    labels[held] = torch.unique(labels[held], return_inverse=True)[1]
    return labels


def change_geometry(vectors: Tensor, dice: Dice) -> Tensor:
    """Each change in some of the galleries; unit vectors."""
    if dice.flip(0.5):
        vectors = vectors @ dice.normal(vectors.shape[1], int(dice.log(1, low=12, high=vectors.shape[1])))
    if dice.flip(0.5):
        length = vectors.square().sum(1).mean().sqrt() / vectors.shape[1] ** 0.5
        vectors = vectors + dice.normal(*vectors.shape) * length * dice.uniform(1, high=0.8)
    if dice.flip(0.2):
        vectors = vectors * (dice.normal(1, vectors.shape[1]) * 0.5).exp()
    if dice.flip(0.5):
        vectors = vectors - vectors.mean(0)
    return F.normalize(vectors, dim=1)
