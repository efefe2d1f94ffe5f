"""Data sets that come as pictures: who is asked, who is right, and where each picture lies.

Their features are made once (`kinrank index --dataset FOLDER`) and lie in the folder as `<network>.npz`;
with them such a folder is a data set like any other.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kinrank.errors import InputError
from kinrank.evaluation.array_gallery import ArrayGallery
from kinrank.evaluation.datasets.base import Dataset, Judgement, read_npz, same_width
from kinrank.evaluation.datasets.revisited import distractors
from kinrank.types import Array, unit_rows

_OTHER = (".train.npz", ".lw.npz", "distractors.npz")  # what beside features of the test split may lie there
Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True, eq=False)
class PictureSet:
    """N pictures of a gallery and Q queries; without queries of their own, pictures ask for each other."""

    name: str
    gallery: list[Path]
    settings: dict[str, Judgement]
    queries: list[Path]  # empty: the rows in `own` ask
    own: Array | None = None  # (Q,) rows of the gallery that ask, each left out of its own list
    labels: Array | None = None  # (N,) of the gallery
    boxes: list[Box | None] | None = None  # (Q,)
    pairs: Array | None = None  # (P, 2) rows that match, where a whitening may be learned from them


class Pictures:
    """What the kinds share: with the features in its folder, a set of pictures is a data set."""

    layout = ""
    pictures: Callable[..., PictureSet]  # (folder, split), the split being "test" or "train"

    @classmethod
    def load(cls, path: Path) -> Dataset:
        """The test split with the features that lie in the folder."""
        return with_features(cls.pictures(path, "test"), path)


def leave_one_out(name: str, gallery: list[Path], labels: Sequence[Any], **more: Any) -> PictureSet:
    """Each picture whose label occurs again asks for the others of that label."""
    names = np.asarray(labels)
    rows = _rows_by_label(names)
    asking = [i for i, label in enumerate(names.tolist()) if len(rows[label]) > 1]
    positives = [same[same != i] for i in asking for same in [rows[names[i].item()]]]
    judgement = Judgement(positives, [_NONE] * len(asking))
    return PictureSet(name, gallery, {"all": judgement}, [], np.array(asking, np.int64), names, **more)


def by_label(
    name: str,
    queries: list[Path],
    asked: Sequence[Any],
    gallery: list[Path],
    labels: Sequence[Any],
    junk: list[Array] | None = None,
) -> PictureSet:
    """Queries ask for the gallery's pictures of their label, `junk` aside."""
    rows = _rows_by_label(np.asarray(labels))
    positives = [rows.get(label, _NONE) for label in asked]
    if junk is not None:
        positives = [np.setdiff1d(right, aside) for right, aside in zip(positives, junk)]
    judgement = Judgement(positives, junk or [_NONE] * len(positives))
    return PictureSet(name, gallery, {"all": judgement}, queries, labels=np.asarray(labels))


def with_features(pictures: PictureSet, folder: Path) -> Dataset:
    """The data set of these pictures and the features in the folder."""
    path = features_in(folder)
    names = [str(p.relative_to(folder)) if p.is_relative_to(folder) else str(p) for p in pictures.gallery]
    if pictures.own is not None:
        vectors = read_npz(path, ("vectors",))["vectors"]
        gallery = ArrayGallery(vectors, names=[f"'{path}': vectors"])
        _as_many(len(vectors), len(pictures.gallery), path)
        asking = [pictures.gallery[i] for i in pictures.own]
        queries = gallery.vectors(pictures.own)
    else:
        data = read_npz(path, ("queries", "gallery"))
        same_width(data["queries"], data["gallery"], path)
        _as_many(len(data["gallery"]), len(pictures.gallery), path)
        _as_many(len(data["queries"]), len(pictures.queries), path)
        more = distractors(folder)
        parts = [data["gallery"]] if more is None else [data["gallery"], more]
        gallery = ArrayGallery(*parts, names=[f"'{path}': gallery", "distractors"][: len(parts)])
        queries, asking = unit_rows(data["queries"], f"'{path}': queries"), pictures.queries
    boxes = pictures.boxes
    whole = [box for box in boxes if box is not None] if boxes else []
    return Dataset(
        pictures.name,
        queries,
        gallery,
        pictures.settings,
        pictures.own,
        pictures.gallery,
        asking,
        names,
        whole if boxes and len(whole) == len(boxes) else None,
    )


def features_in(folder: Path) -> Path:
    """The one file of test features in a folder."""
    found = sorted(p for p in folder.glob("*.npz") if not p.name.endswith(_OTHER))
    if not found:
        raise InputError(f"'{folder}' has no features yet; cure: kinrank index --dataset '{folder}'")
    if len(found) > 1:
        names = ", ".join(p.name for p in found)
        raise InputError(f"'{folder}' holds several features ({names}); cure: one folder a kind of features")
    return found[0]


def read_rows(path: Path, delimiter: str = ",") -> list[dict[str, str]]:
    """The rows of a text table with a header, by column; a space stands for any white space."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = [" ".join(line.split()) for line in file] if delimiter == " " else list(file)
            return list(csv.DictReader(lines, delimiter=delimiter))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"'{path}' cannot be read as a table: {error}") from None


def column(rows: list[dict[str, str]], name: str, path: Path) -> list[str]:
    """One column of `read_rows`, which must be there in every row."""
    values = [row.get(name) for row in rows]
    if not rows or any(value is None for value in values):
        raise InputError(f"'{path}' has no column '{name}' in every row; it is not the official file")
    return [str(value) for value in values]


_NONE = np.zeros(0, np.int64)


def _rows_by_label(labels: Array) -> dict[Any, Array]:
    found: dict[Any, list[int]] = defaultdict(list)
    for row, label in enumerate(labels.tolist()):
        found[label].append(row)
    return {label: np.array(rows, np.int64) for label, rows in found.items()}


def _as_many(vectors: int, pictures: int, path: Path) -> None:
    if vectors != pictures:
        raise InputError(
            f"'{path}' holds {vectors} vectors for {pictures} pictures; cure: delete it and make it again"
        )
