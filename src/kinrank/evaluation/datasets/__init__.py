"""Kinds of data sets: one file a kind, one line here. `open_dataset` finds out which one a path holds."""

from __future__ import annotations

from pathlib import Path

from kinrank.errors import InputError
from kinrank.evaluation.datasets.base import Dataset
from kinrank.registry import load

# The first that recognises a path has it: the most particular come first, plain folders last.
REGISTRY: dict[str, str] = {
    "labelled": "kinrank.evaluation.datasets.labelled:Labelled",
    "revisited": "kinrank.evaluation.datasets.revisited:Revisited",
    "sfm120k": "kinrank.evaluation.datasets.landmarks:Sfm120k",
    "gldv2": "kinrank.evaluation.datasets.landmarks:GoogleLandmarks",
    "ilias": "kinrank.evaluation.datasets.landmarks:Ilias",
    "cub": "kinrank.evaluation.datasets.products:Cub",
    "sop": "kinrank.evaluation.datasets.products:OnlineProducts",
    "inshop": "kinrank.evaluation.datasets.products:InShop",
    "market": "kinrank.evaluation.datasets.market:Market1501",
    "folders": "kinrank.evaluation.datasets.products:Folders",
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
