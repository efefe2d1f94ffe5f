"""`kinrank train` without the command line: data and a recipe in, a model folder out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kinrank.errors import InputError
from kinrank.rerankers.learned import model_folder
from kinrank.training.card import card, curves
from kinrank.training.config import Recipe, build_model, needs_vectors
from kinrank.training.distributed import group
from kinrank.training.export import load_model, write_model
from kinrank.training.loop import Training, Weights, steps_of
from kinrank.training.sources import gather

WORK = "training"  # inside the model folder: lists, checkpoint, log; may be deleted when all is done


def train(
    recipe: Recipe,
    datasets: Sequence[str | Path],
    output: str | Path,
    validation: Sequence[str | Path] = (),
    resume: bool = False,
    device: str = "auto",
    quiet: bool = False,
    command: str = "",
    start: str | None = None,
) -> dict[str, Any] | None:
    """Train, export, write the card; returns `config.json` (None in the processes that do not lead).

    `start` is a model, by name or folder, whose weights are trained further.
    """
    weights = None if start is None else _weights_of(start, recipe)
    folder = Path(output)
    work = folder / WORK
    _check_output(folder, work, resume)
    with group(device) as processes:
        if processes.leads:
            material = gather(recipe, datasets, validation, work / "lists", quiet)
            work.mkdir(parents=True, exist_ok=True)
        processes.wait()  # the others find the lists that the first has made
        if not processes.leads:
            material = gather(recipe, datasets, validation, work / "lists", quiet=True)
        recipe = _sized(recipe, material.dims)
        steps = steps_of(recipe, material.lists)
        training = Training(recipe, material.source, material.validation, work, processes, steps, weights)
        trained = training.run(resume, quiet)
        if not processes.leads:
            return None
        config = write_model(folder, training.model, recipe, trained, material.described)
    (folder / "card.md").write_text(card(config, command or "kinrank train"), encoding="utf-8")
    os.replace(work / "metrics.jsonl", folder / "metrics.jsonl")
    curves(folder / "metrics.jsonl", folder / "curves.png")
    (work / "checkpoint.pt").unlink()
    return config


def _weights_of(start: str, recipe: Recipe) -> Weights:
    """The weights of another model of the same architecture and sizes."""
    model, made_by = load_model(model_folder(start, recipe.method))
    same = made_by.architecture == recipe.architecture
    if not same or _shapes(model) != _shapes(build_model(_sized(recipe, made_by.model.get("dims")))):
        raise InputError(
            f"the model '{start}' is of architecture '{made_by.architecture}' {made_by.model}, the recipe "
            f"'{recipe.name}' of '{recipe.architecture}' {recipe.model}; cure: a recipe with the model's own"
        )
    return model.state_dict()


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in model.state_dict().items()}


def _sized(recipe: Recipe, dims: int | None) -> Recipe:
    """The recipe with the vectors' dimensions, where the architecture reads vectors."""
    if not needs_vectors(recipe) or "dims" in recipe.model:
        return recipe
    if dims is None:
        raise InputError(
            f"{recipe.method} reads vectors, but the sets differ in dimensions; cure: sets of one feature"
        )
    return recipe.with_changes(model={**recipe.model, "dims": dims})


def _check_output(folder: Path, work: Path, resume: bool) -> None:
    checkpoint = work / "checkpoint.pt"
    if folder.is_file():
        raise InputError(f"'{folder}' is a file; cure: name a folder for the model")
    if resume and not checkpoint.is_file() and not work.is_dir():
        raise InputError(f"'{folder}' holds no interrupted training; cure: leave --resume out")
    if not resume and checkpoint.is_file():
        raise InputError(
            f"'{folder}' holds an interrupted training; cure: --resume to go on, or delete '{work}'"
        )
    if (folder / "config.json").is_file():
        raise InputError(f"'{folder}' already holds a model; cure: another -o, or delete it first")
