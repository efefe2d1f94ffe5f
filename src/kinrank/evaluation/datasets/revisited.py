"""Revisited Oxford and Paris: a ground truth with easy, hard and junk images for each query."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kinrank.errors import InputError
from kinrank.evaluation import safe_pickle
from kinrank.evaluation.array_gallery import ArrayGallery
from kinrank.evaluation.datasets.base import Dataset, Judgement, read_npz, same_width
from kinrank.evaluation.feature_files import read_arrays
from kinrank.evaluation.protocol import REVISITED, merged
from kinrank.types import Array, unit_rows


class Revisited:
    """A folder with gnd_<name>.pkl or .json and features; easy, medium and hard."""

    layout = (
        "a folder with gnd_<name>.pkl or .json, <features>.npz with queries (Q, d) and gallery (N, d), "
        "optionally distractors.npy or .npz"
    )

    @staticmethod
    def recognises(path: Path) -> bool:
        """A folder with a ground truth in it."""
        return path.is_dir() and bool(ground_truths(path))

    @staticmethod
    def load(path: Path) -> Dataset:
        """Read and check it."""
        truths = ground_truths(path)
        if len({_short_name(t) for t in truths}) > 1:
            raise InputError(f"'{path}' holds {len(truths)} ground truths; cure: one folder a data set")
        truth = read_ground_truth(truths[0])
        features = _features(path)
        data = read_npz(features, ("queries", "gallery"))
        return assemble(
            _short_name(truths[0]), truth, data["queries"], data["gallery"], distractors(path), features
        )


def ground_truths(folder: Path) -> list[Path]:
    """The ground truths in a folder, JSON before pickle."""
    return sorted([*folder.glob("gnd_*.json"), *folder.glob("gnd_*.pkl")], key=lambda p: (p.suffix, p.name))


def _short_name(path: Path) -> str:
    return path.stem.removeprefix("gnd_")


def read_ground_truth(path: Path) -> dict[str, Any]:
    """{"imlist", "qimlist", "gnd": [{"easy", "hard", "junk", "bbx"}]}, checked."""
    if path.suffix == ".json":
        try:
            truth = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(f"'{path}' is not JSON: {error}") from None
    else:
        truth = safe_pickle.load(path)
    if not isinstance(truth, dict) or not {"imlist", "qimlist", "gnd"} <= truth.keys():
        raise InputError(f"'{path}' is no ground truth: it needs imlist, qimlist and gnd")
    images, queries, gnd = truth["imlist"], truth["qimlist"], truth["gnd"]
    if not all(isinstance(part, list | tuple) for part in (images, queries, gnd)) or len(queries) != len(gnd):
        raise InputError(f"'{path}': imlist, qimlist and gnd must be lists, the last two equally long")
    checked = [_checked_query(query, i, len(images), path) for i, query in enumerate(gnd)]
    return {"imlist": [str(x) for x in images], "qimlist": [str(x) for x in queries], "gnd": checked}


def _checked_query(query: Any, number: int, size: int, path: Path) -> dict[str, Any]:
    if not isinstance(query, Mapping):
        raise InputError(f"'{path}': gnd[{number}] is no dictionary")
    answer: dict[str, Any] = {"bbx": query.get("bbx")}
    for name in ("easy", "hard", "junk"):
        rows = np.asarray(query.get(name, ())).ravel()
        if rows.size and rows.dtype.kind not in "iu":
            raise InputError(f"'{path}': gnd[{number}]['{name}'] must be rows of imlist, got {rows.dtype}")
        if rows.size and not (rows.min() >= 0 and rows.max() < size):
            raise InputError(
                f"'{path}': gnd[{number}]['{name}'] speaks of row {rows.max()}, imlist has {size}; "
                "cure: rows count from 0 (the .mat files count from 1)"
            )
        answer[name] = rows.astype(np.int64)
    return answer


def assemble(
    name: str,
    truth: dict[str, Any],
    queries: Array,
    gallery: Array,
    more: Array | None = None,
    where: Path | str = "",
) -> Dataset:
    """A data set of ground truth and features; `more` are distractors, which may be memory-mapped."""
    same_width(queries, gallery, where)
    for what, rows, wanted in (("queries", queries, "qimlist"), ("gallery", gallery, "imlist")):
        if len(rows) != len(truth[wanted]):
            raise InputError(
                f"'{where}': {len(rows)} {what} for {len(truth[wanted])} names in {wanted} of the ground "
                f"truth '{name}'; they must be as many, in the same order"
            )
    parts, names = [gallery], [f"'{where}': gallery"]
    if more is not None:
        same_width(queries, more, "distractors")
        parts.append(more)
        names.append("distractors")
    settings = {
        setting: Judgement([merged(q, good) for q in truth["gnd"]], [merged(q, bad) for q in truth["gnd"]])
        for setting, (good, bad) in REVISITED.items()
    }
    folder = Path(where).parent / "jpg" if where else Path("jpg")
    boxes = [tuple(map(float, q["bbx"])) if q["bbx"] is not None else None for q in truth["gnd"]]
    return Dataset(
        name,
        unit_rows(queries, f"'{where}': queries"),
        ArrayGallery(*parts, names=names),
        settings,
        None,
        [folder / f"{image}.jpg" for image in truth["imlist"]],
        [folder / f"{image}.jpg" for image in truth["qimlist"]],
        [f"{image}.jpg" for image in truth["imlist"]],
        boxes if all(box and len(box) == 4 for box in boxes) else None,  # type: ignore[arg-type]
    )


def _features(folder: Path) -> Path:
    found = sorted(p for p in folder.glob("*.npz") if p.stem != "distractors")
    if not found:
        raise InputError(f"'{folder}' has a ground truth but no features; cure: put <features>.npz there")
    if len(found) > 1:
        names = ", ".join(p.name for p in found)
        raise InputError(f"'{folder}' holds several features ({names}); cure: one folder a kind of features")
    return found[0]


def distractors(folder: Path) -> Array | None:
    """The distractors beside a data set, memory-mapped where the file allows it (.npy, stored .npz)."""
    for path in (folder / "distractors.npy", folder / "distractors.npz"):
        if path.exists():
            return map_array(path)
    return None


def map_array(path: Path) -> Array:
    """The one array (n, d) of a file, left on disk where its format allows it."""
    arrays = read_arrays(path)
    if len(arrays) != 1:
        raise InputError(f"'{path}' holds {len(arrays)} arrays; distractors must be one array (n, d)")
    array = next(iter(arrays.values()))
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise InputError(f"'{path}' must hold numbers of shape (n, d), got {array.dtype} {array.shape}")
    return array
