"""Caltech-UCSD Birds 200-2011."""

from __future__ import annotations

from pathlib import Path

from kinrank.errors import InputError
from kinrank.evaluation.datasets.listing import Listing, table

FIRST_TEST_CLASS = 101  # the split of metric learning: the classes up to 100 are for training


class Cub:
    """CUB-200-2011: images.txt and image_class_labels.txt; classes 101 to 200, leave-one-out."""

    layout = "CUB_200_2011 with images.txt, image_class_labels.txt, images/"

    @staticmethod
    def recognises(path: Path) -> bool:
        """Its two lists."""
        return (path / "images.txt").is_file() and (path / "image_class_labels.txt").is_file()

    @staticmethod
    def listing(path: Path) -> Listing:
        """The classes that are for testing."""
        label = {row[0]: row[1] for row in table(path / "image_class_labels.txt")}
        rows = [(name, label.get(number, "")) for number, name, *_ in table(path / "images.txt")]
        if not all(value.isdigit() for _, value in rows):
            raise InputError(f"'{path}': image_class_labels.txt does not name a class for every image")
        kept = [(f"images/{name}", value) for name, value in rows if int(value) >= FIRST_TEST_CLASS]
        return Listing("cub-200", [name for name, _ in kept], [value for _, value in kept])
