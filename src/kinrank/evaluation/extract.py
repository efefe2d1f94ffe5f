"""The features of a data set from its pictures: `kinrank index --dataset FOLDER`.

FOLDER is a data set in its official layout (`kinrank list datasets`). The answer lies in it: `<network>.npz`
with `queries` and `gallery`, or with `vectors`, `labels` and `paths` where pictures ask for each other; that
is what `kinrank evaluate FOLDER` and `kinrank train` read. Queries are cropped to their boxes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kinrank.errors import InputError
from kinrank.evaluation.datasets import REGISTRY
from kinrank.evaluation.datasets.base import Judgement
from kinrank.evaluation.datasets.pictures import Box, PictureSet
from kinrank.evaluation.datasets.revisited import ground_truths, read_ground_truth
from kinrank.features.paper import describe
from kinrank.registry import load
from kinrank.types import Array

if TYPE_CHECKING:
    from kinrank.features.backbones.base import Backbone
    from kinrank.features.whitening import Whitening

_SUFFIXES = ("", ".jpg", ".jpeg", ".png", ".JPG")


def picture_set(folder: str | Path, split: str = "test") -> PictureSet:
    """The pictures of a data set in its official layout."""
    folder = Path(folder)
    if folder.is_dir() and ground_truths(folder):
        return _revisited(folder)
    kinds = [kind for kind in REGISTRY if hasattr(load("datasets", kind), "pictures")]
    for kind in kinds:
        entry = load("datasets", kind)
        if entry.recognises(folder):
            pictures: PictureSet = entry.pictures(folder, split)
            return pictures
    known = "; ".join(f"{kind}: {load('datasets', kind).layout}" for kind in kinds)
    raise InputError(
        f"'{folder}' is no data set of pictures; there are revisited: a folder with gnd_<name>.pkl and jpg/; "
        + known
    )


def extract(
    folder: str | Path,
    backbone: Backbone,
    split: str = "test",
    size: int = 1024,
    whitening: Whitening | None = None,
    progress: bool = False,
) -> Path:
    """Describe every picture of a data set; returns the .npz. Interrupted work goes on where it stopped."""
    folder = Path(folder)
    pictures = picture_set(folder, split)
    _all_there(folder, [*pictures.queries, *pictures.gallery])
    name = Path(backbone.name).stem + ("" if split == "test" else f".{split}")
    asked = pictures.boxes or [None] * len(pictures.queries)
    parts: dict[str, tuple[list[Path], list[Box | None]]] = {}
    if pictures.own is None:
        parts["queries"] = pictures.queries, asked
    parts["gallery"] = pictures.gallery, [None] * len(pictures.gallery)
    partial = {key: folder / f".{name}.{size}.{key}" for key in parts}
    arrays = {
        key: _described(partial[key], files, boxes, backbone, size, progress)
        for key, (files, boxes) in parts.items()
    }
    if whitening is not None:
        arrays = {key: whitening.apply(value) for key, value in arrays.items()}
    if pictures.own is not None:
        assert pictures.labels is not None
        paths = np.array([str(path.relative_to(folder)) for path in pictures.gallery])
        arrays = {"vectors": arrays["gallery"], "labels": pictures.labels, "paths": paths}
    target, part = folder / f"{name}.npz", folder / f".{name}.part"
    with part.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    part.replace(target)
    for path in partial.values():
        for suffix in (".npy", ".done"):
            Path(f"{path}{suffix}").unlink()
    return target


def _described(
    partial: Path,
    pictures: Sequence[Path],
    boxes: Sequence[Box | None],
    backbone: Backbone,
    size: int,
    progress: bool,
) -> Array:
    """Vectors (n, d) in order; each is in a file beside the data set as soon as it is there."""
    from tqdm import tqdm

    table = Path(f"{partial}.npy")
    stamp = Path(f"{partial}.done")  # what the table is made with, and up to where it is filled
    made_with, done = f"{backbone.identity} {len(pictures)}", 0
    if table.exists() and stamp.exists():
        known, _, filled = stamp.read_text().rpartition(" ")
        done = int(filled) if known == made_with else 0
    rows = np.load(table, mmap_mode="r+") if done else None
    bar = tqdm(total=len(pictures), initial=done, desc=partial.suffix[1:], unit="image", disable=not progress)
    with bar:
        for i in range(done, len(pictures)):
            try:
                vector = describe(backbone, pictures[i], size, box=boxes[i])
            except InputError as error:
                raise InputError(f"'{pictures[i]}': {error}") from None
            if rows is None:
                rows = np.lib.format.open_memmap(table, "w+", np.float32, (len(pictures), len(vector)))
            rows[i] = vector
            rows.flush()
            stamp.write_text(f"{made_with} {i + 1}")
            bar.update()
    assert rows is not None
    return np.array(rows)


def _revisited(folder: Path) -> PictureSet:
    """The pictures that a ground truth names, under `jpg/` or beside it."""
    file = ground_truths(folder)[0]
    truth = read_ground_truth(file)
    nobody = Judgement(
        [np.zeros(0, np.int64)] * len(truth["gnd"]), [np.zeros(0, np.int64)] * len(truth["gnd"])
    )
    boxes = [None if query["bbx"] is None else tuple(map(float, query["bbx"])) for query in truth["gnd"]]
    gallery, queries = ([_place(folder, name) for name in truth[key]] for key in ("imlist", "qimlist"))
    return PictureSet(file.stem, gallery, {"all": nobody}, queries, boxes=boxes)  # type: ignore[arg-type]


def _place(folder: Path, name: str) -> Path:
    places = [folder / part / f"{name}{suffix}" for part in ("jpg", ".") for suffix in _SUFFIXES]
    return next((place for place in places if place.is_file()), places[1])


def _all_there(folder: Path, pictures: Sequence[Path]) -> None:
    missing = [path for path in pictures if not path.is_file()]
    if missing or not pictures:
        first = f", the first being '{missing[0]}'" if missing else ""
        raise InputError(
            f"'{folder}' lacks {len(missing)} of {len(pictures)} pictures{first}; cure: put them there"
        )
