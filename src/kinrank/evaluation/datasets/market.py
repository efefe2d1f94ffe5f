"""Market-1501: people seen by six cameras."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from kinrank.errors import InputError
from kinrank.evaluation.datasets.pictures import Pictures, PictureSet, by_label, leave_one_out
from kinrank.types import Array

_NAME = re.compile(r"(-1|\d+)_c(\d+)")


class Market1501(Pictures):
    """Market-1501: a person is to be found in other cameras; the same camera's pictures are junk."""

    layout = "a folder with query/, bounding_box_test/ and bounding_box_train/"

    @staticmethod
    def recognises(path: Path) -> bool:
        """By its folders."""
        return (path / "query").is_dir() and (path / "bounding_box_test").is_dir()

    @staticmethod
    def pictures(path: Path, split: str = "test") -> PictureSet:
        """By file name: person (-1 is no person, junk; 0 a distractor), camera."""
        if split == "train":
            files, people, _ = _read(path / "bounding_box_train")
            return leave_one_out("market1501-train", files, people.tolist())
        asked, who, seen_by = _read(path / "query")
        gallery, people, cameras = _read(path / "bounding_box_test")
        nobody = np.flatnonzero(people == -1)
        junk = [
            np.union1d(nobody, np.flatnonzero((people == person) & (cameras == camera)))
            for person, camera in zip(who, seen_by)
        ]
        return by_label("market1501-test", asked, who.tolist(), gallery, people.tolist(), junk)


def _read(folder: Path) -> tuple[list[Path], Array, Array]:
    """Pictures by name, who is on them, and which camera saw it."""
    files = sorted(folder.glob("*.jpg"))
    found = [_NAME.match(file.name) for file in files]
    for file, match in zip(files, found):
        if match is None:
            raise InputError(f"'{file}' is not named as in Market-1501, 0001_c1s1_000151_01.jpg")
    if not files:
        raise InputError(f"'{folder}' holds no .jpg")
    parts = np.array([[int(m[1]), int(m[2])] for m in found if m], np.int64)
    return files, parts[:, 0], parts[:, 1]
