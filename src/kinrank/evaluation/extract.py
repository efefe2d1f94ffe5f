"""The features of a revisited data set from its pictures: `kinrank index --dataset FOLDER`.

FOLDER holds `gnd_<name>.pkl` (or .json) and the pictures, under `jpg/` or beside it; queries are cropped to
their boxes. The answer is `<backbone>.npz` with `queries` and `gallery`, what `kinrank evaluate` reads.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kinrank.errors import InputError
from kinrank.evaluation.datasets.revisited import ground_truths, read_ground_truth
from kinrank.features.paper import Box, describe
from kinrank.types import Array

if TYPE_CHECKING:
    from kinrank.features.backbones.base import Backbone
    from kinrank.features.whitening import Whitening

_SUFFIXES = (".jpg", ".jpeg", ".png", ".JPG")


def extract_revisited(
    folder: str | Path,
    backbone: Backbone,
    size: int = 1024,
    whitening: Whitening | None = None,
    progress: bool = False,
) -> Path:
    """Describe every picture of a revisited data set; returns the .npz. Interrupted work goes on."""
    folder = Path(folder)
    truths = ground_truths(folder)
    if not truths:
        raise InputError(f"'{folder}' has no ground truth; cure: put gnd_<name>.pkl there")
    truth = read_ground_truth(truths[0])
    gallery = _pictures(folder, truth["imlist"])
    queries = _pictures(folder, truth["qimlist"])
    boxes: list[Box | None] = [query["bbx"] for query in truth["gnd"]]
    name = Path(backbone.name).stem
    arrays = {
        "queries": _described(folder / f".{name}.{size}.queries", queries, boxes, backbone, size, progress),
        "gallery": _described(
            folder / f".{name}.{size}.gallery", gallery, [None] * len(gallery), backbone, size, progress
        ),
    }
    if whitening is not None:
        arrays = {key: whitening.apply(value) for key, value in arrays.items()}
    target = folder / f"{name}.npz"
    part = folder / f".{name}.part"
    with part.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    part.replace(target)
    for key in arrays:
        (folder / f".{name}.{size}.{key}.npy").unlink()
        (folder / f".{name}.{size}.{key}.done").unlink()
    return target


def _described(
    partial: Path,
    pictures: list[Path],
    boxes: list[Box | None],
    backbone: Backbone,
    size: int,
    progress: bool,
) -> Array:
    """Vectors (n, d) in order; each is in a file beside the data set as soon as it is there."""
    from tqdm import tqdm

    table = Path(f"{partial}.npy")
    stamp = Path(f"{partial}.done")  # what the table was made with, and up to where it is filled
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
                shape = (len(pictures), len(vector))
                rows = np.lib.format.open_memmap(table, "w+", np.float32, shape)
            rows[i] = vector
            rows.flush()
            stamp.write_text(f"{made_with} {i + 1}")
            bar.update()
    assert rows is not None
    return np.array(rows)


def _pictures(folder: Path, names: list[str]) -> list[Path]:
    """Where the named pictures lie; all of them must be there."""
    found, missing = [], []
    for name in names:
        places = (folder / part / f"{name}{suffix}" for part in ("jpg", ".") for suffix in ("", *_SUFFIXES))
        place = next((p for p in places if p.is_file()), None)
        if place is None:
            missing.append(name)
        else:
            found.append(place)
    if missing:
        raise InputError(
            f"'{folder}' lacks {len(missing)} of {len(names)} pictures, the first being '{missing[0]}'; "
            f"cure: put them into '{folder / 'jpg'}'"
        )
    return found
