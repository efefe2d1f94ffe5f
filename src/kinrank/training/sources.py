"""What a training learns from and is judged by: labelled sets, synthetic worlds, or a mix of both."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kinrank.errors import InputError
from kinrank.training.batch import ListBatch, Source
from kinrank.training.checkpoint import seed_of
from kinrank.training.config import Data, Recipe, needs_vectors
from kinrank.training.disturbed import DisturbedSets
from kinrank.training.lists import Labelled, ListSet, digest, log_uniform, prepare, read_labelled
from kinrank.training.metrics import generator_on
from kinrank.types import Array

MIX_SPARE = 2  # lists that are filtered or noised are cut from so many times K neighbours
VALIDATION_QUERIES = 512


class Mix:
    """One of several sources for each batch, drawn by their shares."""

    def __init__(self, sources: Sequence[Source], shares: Sequence[float]) -> None:
        self.sources = list(sources)
        self.shares = torch.tensor(shares, dtype=torch.float64) / sum(shares)

    def sample(
        self, batch_size: int, generator: torch.Generator, device: torch.device, number: int = 0
    ) -> ListBatch:
        """A batch of one of the sources."""
        draw = torch.rand(1, generator=generator, device=generator.device).item()
        chosen = min(int((self.shares.cumsum(0) < draw).sum()), len(self.sources) - 1)
        return self.sources[chosen].sample(batch_size, generator, device, number)


class SyntheticWorlds:
    """Lists of worlds that are made on the device while training; some batches share their worlds.

    `nodes` is about how many items a batch holds: short lists come in larger batches. Without it,
    batches hold about the number of lists that is asked for.
    """

    def __init__(
        self,
        k: tuple[int, int],
        seed: str,
        nodes: int | None = None,
        worlds: int = 12,
        items: tuple[int, int] = (300, 2400),
        batches: int = 4,
    ) -> None:
        self.k, self.seed, self.nodes = k, seed, nodes
        self.worlds, self.items, self.batches = worlds, items, batches
        self._made: tuple[Any, Any] = (None, None)

    def sample(
        self, batch_size: int, generator: torch.Generator, device: torch.device, number: int = 0
    ) -> ListBatch:
        """Lists of one length, drawn from the worlds of this batch's number."""
        from kinrank.training.worlds import LENGTHS, Dice, lists_of, make_worlds, pick_queries

        group = number // self.batches
        if self._made[0] != group:
            random = generator_on(device, seed_of(self.seed, group))
            items = log_uniform((max(self.items[0], self.k[0] + 2), self.items[1]), random)
            self._made = group, make_worlds(self.worlds, items, Dice(random))
        world, dice = self._made[1], Dice(generator)
        longest = min(self.k[1], world.vectors.shape[1] - 2)
        k = dice.pick([k for k in LENGTHS if self.k[0] <= k <= longest] or [longest])
        lists = max(self.worlds, self.nodes // k if self.nodes else batch_size)
        queries = pick_queries(world.labels, lists // self.worlds, dice)
        return lists_of(world.vectors, world.labels, queries, k)


@dataclass(frozen=True)
class Material:
    """All that a training needs of the outside."""

    source: Source
    validation: dict[str, Source]
    lists: int | None  # queries in the labelled sets; None: worlds alone
    dims: int | None  # of the labelled sets, where all have the same
    described: list[dict[str, Any]]  # of each set, for the card


def gather(
    recipe: Recipe,
    datasets: Sequence[str | Path],
    validation: Sequence[str | Path],
    folder: Path,
    quiet: bool = False,
) -> Material:
    """Read, check and prepare everything; nothing is trained before all of it is known to be good."""
    train_sets = [read_labelled(path) for path in datasets]
    valid_sets = [read_labelled(path) for path in validation]
    if not train_sets and not recipe.data.worlds:
        raise InputError(
            f"recipe '{recipe.name}' learns from labelled vectors; cure: name an .npz with vectors and labels"
        )
    for data in (*train_sets, *valid_sets):
        _check_length(data, recipe.data)
    held = _held_out(train_sets, recipe) if train_sets and not valid_sets else set()
    for data in train_sets:
        _check_length(_part(data, held, inside=False), recipe.data)

    vectors = needs_vectors(recipe)
    sources: list[Source] = []
    judges: dict[str, Source] = {}
    lists = 0
    for data in train_sets:
        rest = _part(data, held, inside=False)
        if not recipe.data.disturb:
            made = ListSet(_prepared(rest, recipe.data, folder, quiet), recipe.data, None, data.name, vectors)
            sources.append(made)
            lists += len(made)
        if held:
            queries = np.flatnonzero([_key(label) in held for label in data.labels])
            judges[f"{data.name} (held-out classes)"] = _judge(data, recipe, folder, queries, quiet, vectors)
    for data in valid_sets:
        judges[data.name] = _judge(data, recipe, folder, None, quiet, vectors)
    shares = [(1 - recipe.data.worlds) * len(s) / lists for s in sources if isinstance(s, ListSet)]
    if train_sets and recipe.data.disturb:
        rests = [_part(data, held, inside=False) for data in train_sets]
        nodes = recipe.data.world.get("nodes")
        sources.append(DisturbedSets(rests, recipe.data.k, f"disturbed {recipe.seed}", nodes))
        shares.append(1 - recipe.data.worlds)
    if recipe.data.worlds:
        world = recipe.data.world
        sources.append(SyntheticWorlds(recipe.data.k, f"worlds {recipe.seed}", **world))
        shares.append(recipe.data.worlds)
        # Each validation batch has worlds of its own: as few batches would otherwise show few worlds.
        judges["worlds (other seeds)"] = SyntheticWorlds(
            recipe.data.k, "validation worlds", **world | {"batches": 1}
        )
    described = [_described(d, "train", held) for d in train_sets]
    described += [_described(d, "validation", set()) for d in valid_sets]
    if recipe.data.worlds:
        described.append({"name": "synthetic worlds", "use": "train and validation, by different seeds"})
    source = sources[0] if len(sources) == 1 else Mix(sources, shares)
    dims = {data.vectors.shape[1] for data in (*train_sets, *valid_sets)}
    return Material(source, judges, lists or None, dims.pop() if len(dims) == 1 else None, described)


def _check_length(data: Labelled, settings: Data) -> None:
    if settings.k[0] > len(data.vectors) - 1:
        raise InputError(
            f"{data.name} has {len(data.vectors)} images for its lists, too few for K={settings.k[0]}; "
            f"cure: -k {len(data.vectors) - 1}, or a recipe with a smaller data.k"
        )


def _prepared(data: Labelled, settings: Data, folder: Path, quiet: bool) -> Path:
    changed = settings.classes[0] < 1 or settings.positives or settings.dims or settings.noise[1] > 0
    reach = settings.k[1] * (MIX_SPARE if changed else 1)
    return prepare(data, min(reach, len(data.vectors) - 1), folder, quiet)


def _judge(
    data: Labelled, recipe: Recipe, folder: Path, queries: Array | None, quiet: bool, vectors: bool
) -> ListSet:
    """Plain lists at the recipe's longest K, of at most so many queries."""
    k = min(recipe.data.k[1], len(data.vectors) - 1)
    if queries is None:
        queries = np.arange(len(data.vectors))
    if len(queries) > VALIDATION_QUERIES:
        queries = np.sort(np.random.default_rng(0).choice(queries, VALIDATION_QUERIES, replace=False))
    home = prepare(data, k, folder, quiet)
    return ListSet(home, Data(k=(k, k)), queries, data.name, vectors)


def _key(label: Any) -> str:
    return str(label)


def _held_out(sets: Sequence[Labelled], recipe: Recipe) -> set[str]:
    """Classes that no training list holds; the same in all sets, whatever their order."""
    names = sorted({_key(label) for data in sets for label in np.unique(data.labels)})
    count = round(recipe.data.held_out * len(names))
    if count < 2 and len(names) >= 6:
        count = 2
    if count < 2:
        raise InputError(
            f"{', '.join(d.name for d in sets)}: {len(names)} classes are too few to keep some for "
            "validation; cure: --validation OTHER.npz with classes that are not trained on"
        )
    by_hash = sorted(names, key=lambda n: hashlib.blake2b(f"{recipe.seed}/{n}".encode()).digest())
    return set(by_hash[:count])


def _part(data: Labelled, held: set[str], inside: bool) -> Labelled:
    if not held:
        return data
    rows = np.array([(_key(label) in held) == inside for label in data.labels])
    return replace(data, vectors=data.vectors[rows], labels=data.labels[rows])


def _described(data: Labelled, use: str, held: set[str]) -> dict[str, Any]:
    return {
        "name": data.name,
        "use": use,
        "images": len(data.vectors),
        "dims": int(data.vectors.shape[1]),
        "classes": len(np.unique(data.labels)),
        "held_out_classes": len({_key(label) for label in np.unique(data.labels)} & held),
        "digest": digest(data),
    }
