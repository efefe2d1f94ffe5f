"""Synthetic worlds of every difficulty: the lists that the shipped model learns from.

A world is a set of vectors with classes. First its geometry is drawn (hierarchies, low-rank and curved
classes, several modes, heavy tails, bursts, distractors, common directions), then a target for the mean
average precision of the first round, and the within-class noise is set by bisection to meet the target.
Drawn freely, most worlds would be too easy to teach anything. Many worlds are made at once, on the
device, and each gives many lists.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kinrank.training.batch import ListBatch

TARGETS = (0.04, 0.97)  # first-round mAP
BISECTIONS = 7
PROBES = 48  # queries that measure a world's difficulty
DIMENSIONS = (12, 256)


class Dice:
    """Random numbers of one generator, on its device."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator
        self.device = generator.device

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Evenly between low and high."""
        return torch.rand(shape, generator=self.generator, device=self.device) * (high - low) + low

    def log(self, *shape: int, low: float, high: float) -> Tensor:
        """Evenly on a logarithmic scale."""
        return self.uniform(*shape, low=math.log(low), high=math.log(high)).exp()

    def normal(self, *shape: int) -> Tensor:
        """Standard normal."""
        return torch.randn(shape, generator=self.generator, device=self.device)

    def chance(self, share: float, *shape: int) -> Tensor:
        """1.0 with this probability, else 0.0."""
        return (self.uniform(*shape) < share).float()

    def flip(self, share: float) -> bool:
        """True with this probability."""
        return bool(self.uniform(1).item() < share)

    def pick(self, choices: Sequence[Any]) -> Any:
        """One of these."""
        return choices[int(self.uniform(1, high=len(choices)).item())]


@dataclass(frozen=True)
class Worlds:
    """W worlds of N items: unit vectors (W, N, D) and labels (W, N), -1 for a distractor."""

    vectors: Tensor
    labels: Tensor


def make_worlds(count: int, items: int, dice: Dice) -> Worlds:
    """Draw `count` worlds and set the difficulty of each."""
    labels = draw_labels(count, items, dice)
    axes = draw_axes(count, dice)
    centres = draw_centres(labels, axes, dice)
    noise = draw_noise(labels, axes, dice)
    finish = Finish(count, axes, dice)
    target = dice.uniform(count, low=TARGETS[0], high=TARGETS[1])
    probes = pick_queries(labels, PROBES, dice)
    low, high = torch.full_like(target, math.log(0.03)), torch.full_like(target, math.log(30.0))
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        vectors = finish(centres + middle.exp()[:, None, None] * noise)
        easy = first_round(vectors, labels, probes) > target
        low, high = torch.where(easy, middle, low), torch.where(easy, high, middle)
    vectors = finish(centres + ((low + high) / 2).exp()[:, None, None] * noise)
    return Worlds(vectors, labels)


def draw_labels(count: int, items: int, dice: Dice) -> Tensor:
    """Class sizes log-uniform in a range of the world's own; the last items belong to nobody."""
    smallest = dice.log(count, 1, low=2, high=40)
    largest = smallest * dice.log(count, 1, low=1, high=12)
    spread = dice.uniform(count, items // 2)
    sizes = (smallest.log() + spread * (largest / smallest).log()).exp().floor().clamp(2, max(2, items // 3))
    ends = sizes.cumsum(1)
    places = torch.arange(items, device=dice.device).expand(count, items).contiguous()
    labels = torch.searchsorted(ends, places.float(), right=True).clamp(max=items // 2 - 1)
    taken = items * dice.uniform(count, 1, low=0.4, high=1.0)
    return torch.where(places < taken, labels, torch.full_like(labels, -1))


def draw_axes(count: int, dice: Dice) -> Tensor:
    """Deviation of each dimension (W, 1, D): some dimensions are absent, the others fall by a power law."""
    wide = DIMENSIONS[1]
    used = dice.log(count, 1, 1, low=DIMENSIONS[0], high=wide)
    rank = torch.arange(wide, device=dice.device).float()
    power = dice.uniform(count, 1, 1, high=1.2) * dice.chance(0.6, count, 1, 1)
    axes = (1 + rank) ** -power * (rank < used)
    return axes / axes.square().sum(-1, keepdim=True).sqrt()


def draw_centres(labels: Tensor, axes: Tensor, dice: Dice) -> Tensor:
    """A centre for each item (W, N, D): classes lie in super-classes, those in families."""
    count, items = labels.shape
    classes = items // 2
    # A distractor is a class of its own: its number follows those of the classes.
    alone = classes + torch.arange(items, device=labels.device)
    owner = torch.where(labels < 0, alone, labels)
    own = dice.normal(count, classes + items, axes.shape[-1])
    levels = []
    for most, tightest in ((80, 0.95), (8, 0.9)):
        groups = dice.log(count, 1, low=1, high=most)
        group = (dice.uniform(count, classes + items) * groups).long()
        centre = dice.normal(count, most, axes.shape[-1])
        held = centre.gather(1, group[..., None].expand(-1, -1, axes.shape[-1]))
        levels.append((held, dice.uniform(count, 1, 1, high=tightest) * dice.chance(0.75, count, 1, 1)))
    for held, tight in levels:
        own = own * (1 - tight).sqrt() + held * tight.sqrt()
    return own.gather(1, owner[..., None].expand(-1, -1, axes.shape[-1])) * axes


def draw_noise(labels: Tensor, axes: Tensor, dice: Dice) -> Tensor:
    """How each item differs from its centre (W, N, D), of unit length on average."""
    count, items = labels.shape
    parts = [
        dice.normal(count, items, axes.shape[-1]) * noise_axes(axes, dice),
        manifold(labels, axes, dice),
        shared_directions(labels, axes, dice),
        modes(labels, axes, dice),
    ]
    # Most worlds are ruled by one or two of the four.
    mix = dice.uniform(count, len(parts)).clamp(min=1e-6).log().neg() ** dice.uniform(
        count, 1, low=0.5, high=3
    )
    mix = (mix / mix.sum(1, keepdim=True)).sqrt()
    noise = torch.stack(parts, 1).mul(mix[:, :, None, None]).sum(1)
    tails = dice.normal(count, items, 1) * dice.uniform(count, 1, 1, high=0.9) * dice.chance(0.7, count, 1, 1)
    by_class = dice.normal(count, items, 1) * dice.uniform(count, 1, 1, high=0.6)
    tails = tails + by_class.gather(1, labels.clamp(min=0)[..., None])
    return bursts(noise * (tails.exp() / tails.exp().square().mean(1, keepdim=True).sqrt()), labels, dice)


def noise_axes(axes: Tensor, dice: Dice) -> Tensor:
    """The noise lies along the axes of the centres, or evenly, or between."""
    even = (axes > 0).float()
    even = even / even.sum(-1, keepdim=True).sqrt()
    share = dice.uniform(axes.shape[0], 1, 1)
    mixed = axes * share + even * (1 - share)
    return mixed / mixed.square().sum(-1, keepdim=True).sqrt()


def manifold(labels: Tensor, axes: Tensor, dice: Dice) -> Tensor:
    """Low-rank classes: 1 to 4 directions of the class's own, filled evenly or run through as a curve."""
    count, items = labels.shape
    rank, classes = 4, items // 2
    basis = dice.normal(count, classes, rank * axes.shape[-1])
    basis = basis.gather(1, labels.clamp(min=0)[..., None].expand(-1, -1, basis.shape[-1]))
    basis = basis.unflatten(-1, (rank, -1)) * axes[:, :, None]
    strength = (torch.arange(rank, device=labels.device) < dice.uniform(count, 1, 1, low=1, high=5)).float()
    flat = dice.normal(count, items, rank)
    turn = dice.uniform(count, items, 1) * dice.uniform(count, 1, 1, low=0.15, high=1.0) * 2 * math.pi
    curve = torch.cat([turn.cos(), turn.sin(), (2 * turn).cos(), (2 * turn).sin()], -1) * 2**0.5
    place = torch.where(dice.chance(0.5, count, 1, 1) > 0, curve, flat) * strength
    place = place / strength.sum(-1, keepdim=True).sqrt()
    return torch.einsum("wnr,wnrd->wnd", place, basis)


def shared_directions(labels: Tensor, axes: Tensor, dice: Dice) -> Tensor:
    """Nuisances common to all classes, as light and viewpoint are: up to 8 directions, falling."""
    count, items = labels.shape
    basis = dice.normal(count, 8, axes.shape[-1]) * axes
    fall = (1 + torch.arange(8, device=labels.device)) ** -dice.uniform(count, 1, 1, high=2)
    place = dice.normal(count, items, 8) * fall / fall.square().sum(-1, keepdim=True).sqrt()
    return place @ basis


def modes(labels: Tensor, axes: Tensor, dice: Dice) -> Tensor:
    """Classes of several clusters: each item is moved to one of up to 6 offsets of its class."""
    count, items = labels.shape
    most, classes = 6, items // 2
    offsets = dice.normal(count, classes, most * axes.shape[-1])
    offsets = offsets.gather(1, labels.clamp(min=0)[..., None].expand(-1, -1, offsets.shape[-1]))
    which = (dice.uniform(count, items, 1) * dice.uniform(count, 1, 1, low=1.5, high=most)).long()
    picked = offsets.unflatten(-1, (most, -1)).gather(2, which[..., None].expand(-1, -1, -1, axes.shape[-1]))
    return picked[:, :, 0] * axes


def bursts(noise: Tensor, labels: Tensor, dice: Dice) -> Tensor:
    """In some worlds many items nearly repeat the item before them, as frames of one visit do."""
    count, items = labels.shape
    often = dice.uniform(count, 1, high=0.5) * dice.chance(0.3, count, 1)
    same = labels == labels.roll(1, 1)
    again = ((dice.uniform(count, items) < often) & same)[..., None]
    change = dice.uniform(count, 1, 1, low=0.05, high=0.5)
    return torch.where(again, noise.roll(1, 1) * (1 - change) + noise * change, noise)


class Finish:
    """What a network and its user do to vectors last; each step in some of the worlds."""

    def __init__(self, count: int, axes: Tensor, dice: Dice) -> None:
        wide = axes.shape[-1]
        used = (axes > 0).float()

        def some(share: float) -> Tensor:
            return dice.chance(share, count, 1, 1)

        self.layer = some(0.5)
        self.map = dice.normal(count, wide, wide) * used / used.sum(-1, keepdim=True).sqrt()
        self.offset = dice.normal(count, 1, wide) * used * dice.uniform(count, 1, 1, high=0.5) / wide**0.5
        self.common = (
            dice.normal(count, 1, wide) * used / used.sum(-1, keepdim=True).sqrt()
            * dice.uniform(count, 1, 1, high=2.0) * some(0.4)
        )  # fmt: skip
        self.stretch = (dice.normal(count, 1, wide) * dice.uniform(count, 1, 1, high=0.8) * some(0.3)).exp()
        self.root = some(0.15)
        self.centred = some(0.5)

    def __call__(self, vectors: Tensor) -> Tensor:
        """Unit vectors."""
        mapped = (torch.matmul(vectors, self.map) + self.offset).relu()
        x = torch.where(self.layer > 0, mapped, vectors) * self.stretch
        x = torch.where(self.root > 0, x.sign() * x.abs().sqrt(), x)
        length = x.square().sum(-1, keepdim=True).mean(1, keepdim=True).sqrt()
        x = x / length.clamp(min=1e-6) + self.common
        x = x - self.centred * x.mean(1, keepdim=True)
        return torch.nn.functional.normalize(x, dim=-1)


def pick_queries(labels: Tensor, number: int, dice: Dice) -> Tensor:
    """Positions (W, number) of items that have a class."""
    place = dice.uniform(*labels.shape)
    size = torch.zeros_like(labels).scatter_add_(1, labels.clamp(min=0), (labels >= 0).long())
    fit = (labels >= 0) & (size.gather(1, labels.clamp(min=0)) > 1)
    return torch.where(fit, place, place - 2).topk(number, dim=1).indices


def ranked(vectors: Tensor, labels: Tensor, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The first k of every query, itself left out: positions (W, Q, k) and which are of its class."""
    asking = vectors.gather(1, queries[..., None].expand(-1, -1, vectors.shape[-1]))
    scores = asking @ vectors.transpose(1, 2)
    scores.scatter_(2, queries[..., None], -10.0)
    index = scores.topk(k, dim=2).indices
    mine = labels.gather(1, queries)[..., None]
    found = labels.gather(1, index.flatten(1)).view(index.shape)
    return index, (found == mine) & (mine >= 0)


def first_round(vectors: Tensor, labels: Tensor, queries: Tensor) -> Tensor:
    """Mean average precision of the first round of each world (W,)."""
    _, relevant = ranked(vectors, labels, queries, vectors.shape[1] - 1)
    place = torch.arange(1, relevant.shape[-1] + 1, device=relevant.device)
    precision = relevant.cumsum(-1) / place * relevant
    return (precision.sum(-1) / relevant.sum(-1).clamp(min=1)).mean(1)


# A few lengths, evenly on a logarithmic scale: a GPU's allocator and kernels like shapes that come back.
LENGTHS = (24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


def lists_of(vectors: Tensor, labels: Tensor, queries: Tensor, k: int) -> ListBatch:
    """The lists of queries (W, Q) of galleries (W, N, D), k candidates each, all in one batch."""
    index, relevant = ranked(vectors, labels, queries, k)
    wide = vectors.shape[-1]
    nodes = torch.cat([queries[..., None], index], 2).flatten(1)
    rows = vectors.gather(1, nodes[..., None].expand(-1, -1, wide)).view(-1, k + 1, wide)
    similarities = rows @ rows.transpose(1, 2)
    mask = torch.ones_like(similarities[:, 0], dtype=torch.bool)
    return ListBatch(similarities, relevant.flatten(0, 1), mask, rows)
