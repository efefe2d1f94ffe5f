"""Data sets of metric learning: CUB-200-2011, Stanford Online Products, In-shop, and folders of classes."""

from __future__ import annotations

from pathlib import Path

from kinrank.errors import InputError
from kinrank.evaluation.datasets.pictures import (
    Pictures,
    PictureSet,
    by_label,
    column,
    leave_one_out,
    read_rows,
)
from kinrank.features.images import SUFFIXES


class Cub(Pictures):
    """CUB-200-2011: birds; classes 1 to 100 train, 101 to 200 are tested, leave-one-out."""

    layout = "a folder with images.txt, image_class_labels.txt and images/"

    @staticmethod
    def recognises(path: Path) -> bool:
        """By its lists."""
        return (path / "images.txt").is_file() and (path / "image_class_labels.txt").is_file()

    @staticmethod
    def pictures(path: Path, split: str = "test") -> PictureSet:
        """By the order of images.txt."""
        names, classes = (_pairs(path / file) for file in ("images.txt", "image_class_labels.txt"))
        if names.keys() != classes.keys():
            raise InputError(f"'{path}': images.txt and image_class_labels.txt name different images")
        wanted = [key for key in names if (int(classes[key]) > 100) == (split == "test")]
        files = [path / "images" / names[key] for key in wanted]
        return leave_one_out(f"cub200-{split}", files, [int(classes[key]) for key in wanted])


class OnlineProducts(Pictures):
    """Stanford Online Products: half the products train, the other half is tested, leave-one-out."""

    layout = "a folder with Ebay_test.txt, Ebay_train.txt and the *_final/ folders"

    @staticmethod
    def recognises(path: Path) -> bool:
        """By its list."""
        return (path / "Ebay_test.txt").is_file()

    @staticmethod
    def pictures(path: Path, split: str = "test") -> PictureSet:
        """By the order of Ebay_<split>.txt."""
        table = path / f"Ebay_{split}.txt"
        rows = read_rows(table, " ")
        files = [path / name for name in column(rows, "path", table)]
        return leave_one_out(f"sop-{split}", files, [int(c) for c in column(rows, "class_id", table)])


class InShop(Pictures):
    """In-shop Clothes (DeepFashion): queries against a gallery, by item."""

    layout = "a folder with list_eval_partition.txt (or Eval/ of it) and img/ (or Img/img/)"

    @staticmethod
    def recognises(path: Path) -> bool:
        """By its list."""
        return _partition(path) is not None

    @staticmethod
    def pictures(path: Path, split: str = "test") -> PictureSet:
        """By the order of the list, whose first line counts and whose second names the columns."""
        table = _partition(path)
        assert table is not None
        lines = [line.split() for line in table.read_text(encoding="utf-8").splitlines()[2:] if line.strip()]
        if any(len(line) != 3 for line in lines):
            raise InputError(f"'{table}' must hold image_name, item_id and evaluation_status a line")
        root = path / "Img" if (path / "Img" / "img").is_dir() else path

        def part(status: str) -> tuple[list[Path], list[str]]:
            chosen = [(name, item) for name, item, what in lines if what == status]
            return [root / name for name, _ in chosen], [item for _, item in chosen]

        if split == "train":
            return leave_one_out("inshop-train", *part("train"))
        return by_label("inshop-test", *part("query"), *part("gallery"))


class Folders(Pictures):
    """A folder of classes with their pictures, CLASS/PICTURE.jpg; leave-one-out."""

    layout = "a folder of folders: class/picture.jpg"

    @staticmethod
    def recognises(path: Path) -> bool:
        """A folder in which two folders hold pictures."""
        if not path.is_dir():
            return False
        found = (folder for folder in sorted(path.iterdir()) if folder.is_dir() and _files(folder))
        return next(found, None) is not None and next(found, None) is not None

    @staticmethod
    def pictures(path: Path, split: str = "test") -> PictureSet:
        """Classes and pictures by name; there is one split, which serves as both."""
        files = [file for folder in sorted(path.iterdir()) if _visible(folder) for file in _files(folder)]
        return leave_one_out(path.resolve().name, files, [file.parent.name for file in files])


def _visible(folder: Path) -> bool:
    return folder.is_dir() and not folder.name.startswith(".")


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES and p.name[0] != ".")


def _partition(path: Path) -> Path | None:
    places = (path / part / "list_eval_partition.txt" for part in (".", "Eval"))
    return next((place for place in places if place.is_file()), None)


def _pairs(path: Path) -> dict[str, str]:
    lines = [line.split(maxsplit=1) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if any(len(line) != 2 for line in lines):
        raise InputError(f"'{path}' must hold a number and a value a line")
    return {number: value.strip() for number, value in lines}
