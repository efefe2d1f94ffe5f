"""Landmarks and objects at scale: retrieval-SfM-120k, Google Landmarks v2, ILIAS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kinrank.errors import InputError
from kinrank.evaluation import safe_pickle
from kinrank.evaluation.datasets.base import Judgement
from kinrank.evaluation.datasets.pictures import (
    Box,
    Pictures,
    PictureSet,
    by_label,
    column,
    leave_one_out,
    read_rows,
)

_NONE = np.zeros(0, np.int64)


class Sfm120k(Pictures):
    """retrieval-SfM-120k: clusters of 3D models; train and val, with pairs to learn a whitening from."""

    layout = "a folder with retrieval-SfM-120k.pkl and ims/ (by the last six signs of a picture's id)"

    @staticmethod
    def recognises(path: Path) -> bool:
        """By its pickle."""
        return path.is_dir() and any(path.glob("retrieval-SfM-*.pkl"))

    @staticmethod
    def pictures(path: Path, split: str = "test") -> PictureSet:
        """By the order of the pickle, which is read without running it; val is the test split."""
        file = min(path.glob("retrieval-SfM-*.pkl"), key=lambda p: (len(p.name), p.name))
        part: Any = safe_pickle.load(file)
        part = part.get("train" if split == "train" else "val") if isinstance(part, dict) else None
        if not isinstance(part, dict) or not {"cids", "cluster"} <= part.keys():
            raise InputError(f"'{file}' is not retrieval-SfM's: it needs train and val with cids and cluster")
        ids = [str(cid) for cid in part["cids"]]
        clusters = np.asarray(part["cluster"]).ravel()
        if len(clusters) != len(ids):
            raise InputError(f"'{file}': {len(clusters)} clusters for {len(ids)} cids")
        pairs = None
        if "qidxs" in part and "pidxs" in part:
            pairs = np.stack([np.ravel(part["qidxs"]), np.ravel(part["pidxs"])], axis=1).astype(np.int64)
            if pairs.size and not (pairs.min() >= 0 and pairs.max() < len(ids)):
                raise InputError(f"'{file}': its pairs speak of row {pairs.max()}, there are {len(ids)} cids")
        files = [path / "ims" / cid[-2:] / cid[-4:-2] / cid[-6:-4] / cid for cid in ids]
        return leave_one_out(f"sfm120k-{split}", files, clusters.tolist(), pairs=pairs)


class GoogleLandmarks(Pictures):
    """Google Landmarks v2, retrieval: public and private queries against the index; train by landmark."""

    layout = "a folder with index.csv, retrieval_solution*.csv, train*.csv and index/, test/, train/"

    @staticmethod
    def recognises(path: Path) -> bool:
        """By its tables."""
        return path.is_dir() and any(_tables(path, "retrieval_solution*.csv", "train_clean.csv"))

    @staticmethod
    def pictures(path: Path, split: str = "test") -> PictureSet:
        """By the order of the tables; queries that are ignored there are left out here."""
        if split == "train":
            return _landmarks(path)
        solutions = _tables(path, "retrieval_solution*.csv")
        if not solutions or not (path / "index.csv").is_file():
            raise InputError(f"'{path}' needs index.csv and retrieval_solution_v2.1.csv")
        index = column(read_rows(path / "index.csv"), "id", path / "index.csv")
        row_of = {name: row for row, name in enumerate(index)}
        rows = read_rows(solutions[-1])
        asked = [row for row in rows if row.get("Usage") in ("Public", "Private")]
        positives = []
        for row in asked:
            right = [row_of.get(name, -1) for name in row["images"].split()]
            if -1 in right:
                raise InputError(f"'{solutions[-1]}': query {row['id']} asks for what is not in index.csv")
            positives.append(np.array(right, np.int64))
        settings = {
            usage.lower(): Judgement(
                [p if row["Usage"] == usage else _NONE for p, row in zip(positives, asked)],
                [_NONE] * len(asked),
            )
            for usage in ("Public", "Private")
        }
        files = [_spread(path / "index", name) for name in index]
        return PictureSet("gldv2-test", files, settings, [_spread(path / "test", row["id"]) for row in asked])


class Ilias(Pictures):
    """ILIAS: particular objects on clean ground, to be found in the world; a box says where in the query."""

    layout = "the folder ilias_core/ of OBJECT/query/Q*.jpg and OBJECT/pos/P*.jpg, each with *_bbox.txt"

    @staticmethod
    def recognises(path: Path) -> bool:
        """By its folders."""
        return path.is_dir() and any(_core(path).glob("*/query/Q*.jpg"))

    @staticmethod
    def pictures(path: Path, split: str = "test") -> PictureSet:
        """Objects by name. Distractors are the user's: their features join as `distractors.npy`."""
        core = _core(path)
        queries, positives = sorted(core.glob("*/query/Q*.jpg")), sorted(core.glob("*/pos/P*.jpg"))
        labels = [file.parent.parent.name for file in positives]
        if split == "train":
            raise InputError("ILIAS has no training split; it is there to be tested on")
        asked = [file.parent.parent.name for file in queries]
        found = by_label("ilias", queries, asked, positives, labels)
        boxes = [_box(file.with_name(f"{file.stem}_bbox.txt")) for file in queries]
        return PictureSet("ilias", positives, found.settings, queries, labels=found.labels, boxes=boxes)


def _landmarks(path: Path) -> PictureSet:
    tables = _tables(path, "train_clean.csv") or _tables(path, "train.csv")
    if not tables:
        raise InputError(f"'{path}' needs train_clean.csv or train.csv")
    rows = read_rows(tables[0])
    landmarks = column(rows, "landmark_id", tables[0])
    names = column(rows, "images" if tables[0].stem == "train_clean" else "id", tables[0])
    pairs = [(image, int(mark)) for mark, images in zip(landmarks, names) for image in images.split()]
    files = [_spread(path / "train", image) for image, _ in pairs]
    return leave_one_out("gldv2-train", files, [mark for _, mark in pairs])


def _tables(path: Path, *patterns: str) -> list[Path]:
    return sorted(file for pattern in patterns for file in path.glob(pattern))


def _spread(folder: Path, name: str) -> Path:
    """index/0/1/2/0123456789abcdef.jpg: three levels by the first three signs."""
    return folder / name[0] / name[1] / name[2] / f"{name}.jpg"


def _core(path: Path) -> Path:
    return path / "ilias_core" if (path / "ilias_core").is_dir() else path


def _box(path: Path) -> Box | None:
    """What encloses all boxes of a file of `x y width height` lines."""
    if not path.is_file():
        return None
    try:
        rows = np.loadtxt(path, ndmin=2)
    except ValueError:
        raise InputError(f"'{path}' must hold x, y, width and height a line") from None
    if rows.shape[1:] != (4,):
        raise InputError(f"'{path}' must hold x, y, width and height a line")
    left, top = np.maximum(rows[:, :2].min(axis=0), 0)
    right, bottom = (rows[:, :2] + rows[:, 2:]).max(axis=0)
    return float(left), float(top), float(right), float(bottom)
