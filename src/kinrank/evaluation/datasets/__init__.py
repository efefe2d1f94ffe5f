"""Kinds of data sets: one file a kind, one line here. `open_dataset` finds out which one a path holds."""

from __future__ import annotations

from pathlib import Path

from kinrank.errors import InputError
from kinrank.evaluation.datasets.base import Dataset
from kinrank.registry import load

REGISTRY: dict[str, str] = {
    "labelled": "kinrank.evaluation.datasets.labelled:Labelled",
    "revisited": "kinrank.evaluation.datasets.revisited:Revisited",
}


def open_dataset(path: str | Path) -> Dataset:
    """The data set at a path, whichever kind it is."""
    path = Path(path)
    if not path.exists():
        raise InputError(f"there is no data set at '{path}'; cure: name an .npz file or a data set's folder")
    for kind in REGISTRY:
        entry = load("datasets", kind)
        if entry.recognises(path):
            dataset: Dataset = entry.load(path)
            return dataset
    kinds = "; ".join(f"{kind}: {load('datasets', kind).layout}" for kind in REGISTRY)
    raise InputError(f"'{path}' is no data set that kinrank knows; there are {kinds}")
