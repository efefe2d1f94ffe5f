"""Pictures in one folder a class."""

from __future__ import annotations

from pathlib import Path

from kinrank.evaluation.datasets.listing import Listing

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".gif", ".tif", ".tiff", ".bmp", ".heic"}


class Folders:
    """Pictures in folders, one a class (class/picture.jpg); leave-one-out."""

    layout = "a folder of folders with pictures, class/picture.jpg"

    @staticmethod
    def recognises(path: Path) -> bool:
        """A folder whose folders hold pictures."""
        return path.is_dir() and any(
            file.suffix.lower() in SUFFIXES
            for folder in sorted(path.iterdir())
            if folder.is_dir()
            for file in folder.iterdir()
        )

    @staticmethod
    def listing(path: Path) -> Listing:
        """Every picture; its label is its folder."""
        files = sorted(
            file
            for folder in path.iterdir()
            if folder.is_dir() and not folder.name.startswith(".")
            for file in folder.rglob("*")
            if file.suffix.lower() in SUFFIXES
        )
        names = [file.relative_to(path) for file in files]
        return Listing(path.name, [name.as_posix() for name in names], [name.parts[0] for name in names])
