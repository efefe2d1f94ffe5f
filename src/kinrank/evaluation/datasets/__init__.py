"""Kinds of data sets: one file a kind, one line here. `open_dataset` finds out which one a path holds."""

from __future__ import annotations

from pathlib import Path

from kinrank.errors import InputError
from kinrank.evaluation.datasets.base import Dataset
from kinrank.evaluation.datasets.listing import GalleryOfPictures, join
from kinrank.registry import load

# The first that recognises a path has it: the most particular come first, plain folders last.
REGISTRY: dict[str, str] = {
    "labelled": "kinrank.evaluation.datasets.labelled:Labelled",
    "revisited": "kinrank.evaluation.datasets.revisited:Revisited",
    "sfm120k": "kinrank.evaluation.datasets.sfm120k:Sfm120k",
    "cub": "kinrank.evaluation.datasets.cub:Cub",
    "sop": "kinrank.evaluation.datasets.sop:Sop",
    "inshop": "kinrank.evaluation.datasets.inshop:InShop",
    "market": "kinrank.evaluation.datasets.market:Market",
    "gldv2": "kinrank.evaluation.datasets.gldv2:Gldv2",
    "folders": "kinrank.evaluation.datasets.folders:Folders",
}


def open_dataset(path: str | Path, gallery: GalleryOfPictures | None = None) -> Dataset:
    """The data set at a path, whichever kind; those of pictures take their vectors from a gallery."""
    path = Path(path)
    if not path.exists():
        raise InputError(f"there is no data set at '{path}'; cure: name an .npz file or a data set's folder")
    for kind in REGISTRY:
        entry = load("datasets", kind)
        if not entry.recognises(path):
            continue
        if not hasattr(entry, "listing"):
            dataset: Dataset = entry.load(path)
            return dataset
        if gallery is None:
            raise InputError(
                f"'{path}' holds pictures ({kind}), not vectors; cure: kinrank index {path} -g GALLERY, "
                f"then kinrank evaluate {path} -g GALLERY"
            )
        return join(entry.listing(path), path, gallery)
    kinds = "; ".join(f"{kind}: {load('datasets', kind).layout}" for kind in REGISTRY)
    raise InputError(f"'{path}' is no data set that kinrank knows; there are {kinds}")
