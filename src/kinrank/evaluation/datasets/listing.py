"""Data sets of pictures: what their files say of them, to be joined with the vectors of a gallery.

A kind of data set writes one function, from a folder to a `Listing`; paths are relative to the folder, as
`kinrank index FOLDER` names the pictures.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from kinrank.errors import InputError
from kinrank.evaluation.array_gallery import ArrayGallery
from kinrank.evaluation.datasets.base import Dataset, Judgement
from kinrank.types import Array


@dataclass(frozen=True)
class Listing:
    """Pictures and their labels; either each queries the others, or some query the rest.

    `queries` and `gallery` are rows of `pictures`. `relevant` names the right rows of each query where labels
    do not say it. `views`: of the same label and the same view (a camera) is junk.
    """

    name: str
    pictures: list[str]
    labels: list[str]
    queries: list[int] | None = None
    gallery: list[int] | None = None
    relevant: list[list[int]] | None = None
    views: list[str] | None = None


class GalleryOfPictures(Protocol):
    """What is asked of the gallery that holds the pictures."""

    def ids(self) -> Array:
        """All ids."""
        ...

    def vectors(self, ids: Array) -> Array:
        """Their vectors."""
        ...


def join(listing: Listing, folder: Path, gallery: GalleryOfPictures) -> Dataset:
    """The data set, with the vectors that a gallery holds of its pictures."""
    if not listing.pictures:
        raise InputError(f"'{folder}' lists no pictures")
    names = np.asarray(listing.pictures)
    rows = np.arange(len(names)) if listing.gallery is None else np.asarray(listing.gallery, np.int64)
    asked = rows if listing.queries is None else np.asarray(listing.queries, np.int64)
    if len(rows) == 0 or len(asked) == 0:
        raise InputError(f"'{folder}' lists no {'queries' if len(rows) else 'gallery'}")
    _check_indexed(names[np.union1d(rows, asked)], gallery, folder)
    labels = np.unique(np.asarray(listing.labels), return_inverse=True)[1]
    positives, junk = _judged(listing, rows, asked, labels)
    own = None
    if listing.queries is None:
        kept = np.array([len(right) > 1 for right in positives])
        if not kept.any():
            raise InputError(f"'{folder}': every label occurs once, so there is nothing to find")
        own, asked = np.flatnonzero(kept), asked[kept]
        positives = [right[right != i] for i, right in enumerate(positives) if kept[i]]
        junk = [bad for i, bad in enumerate(junk) if kept[i]]
    vectors = ArrayGallery(gallery.vectors(names[rows]), names=["gallery"])
    queries = vectors.vectors(own) if own is not None else gallery.vectors(names[asked])
    places = [folder / name for name in listing.pictures]
    return Dataset(
        listing.name,
        np.asarray(queries, np.float32),
        vectors,
        {"all": Judgement(positives, junk)},
        own,
        [places[row] for row in rows],
        [places[row] for row in asked],
        [listing.pictures[row] for row in rows],
    )


def _judged(listing: Listing, rows: Array, asked: Array, labels: Array) -> tuple[list[Array], list[Array]]:
    """Right and junk places in the gallery, for each query."""
    nothing = np.zeros(0, np.int64)
    if listing.relevant is not None:
        place = {int(row): i for i, row in enumerate(rows)}
        right = [np.array(sorted(place[row] for row in found), np.int64) for found in listing.relevant]
        return right, [nothing] * len(asked)
    order = np.argsort(labels[rows], kind="stable")
    ordered = labels[rows][order]
    low, high = (np.searchsorted(ordered, labels[asked], side) for side in ("left", "right"))
    same = [order[a:b] for a, b in zip(low, high)]
    if listing.views is None:
        return same, [nothing] * len(asked)
    views = np.asarray(listing.views)
    alike = [views[rows[found]] == views[row] for found, row in zip(same, asked)]
    return (
        [found[~mask] for found, mask in zip(same, alike)],
        [found[mask] for found, mask in zip(same, alike)],
    )


def _check_indexed(wanted: Array, gallery: GalleryOfPictures, folder: Path) -> None:
    missing = wanted[~np.isin(wanted, gallery.ids())]
    if len(missing):
        raise InputError(
            f"{len(missing)} of {len(wanted)} pictures of '{folder}' are not in the gallery (first: "
            f"'{missing[0]}'); cure: kinrank index {folder} -g GALLERY"
        )


def table(path: Path, header: int = 0, separator: str | None = None, columns: int = 2) -> list[list[str]]:
    """The lines of a text file as words, after its header; a line that is too short is named."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()[header:]
    except UnicodeDecodeError as error:
        raise InputError(f"'{path}' is not text: {error}") from None
    rows = [[word.strip() for word in line.split(separator)] for line in lines if line.strip()]
    for number, row in enumerate(rows, header + 1):
        if len(row) < columns:
            raise InputError(f"'{path}', line {number}: {columns} columns are needed, there are {len(row)}")
    return rows


def first_file(folder: Path, names: Iterable[str]) -> Path | None:
    """The first of some files that is there."""
    return next((folder / name for name in names if (folder / name).is_file()), None)
