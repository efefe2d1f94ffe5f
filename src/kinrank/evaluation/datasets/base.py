"""What every kind of data set becomes: queries, a gallery, and what is right for each query."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kinrank.errors import InputError
from kinrank.evaluation.array_gallery import ArrayGallery
from kinrank.types import Array


@dataclass(frozen=True, eq=False)
class Judgement:
    """One setting (easy, medium, hard, all): rows of the gallery that are right or junk, a list a query."""

    positives: list[Array]
    junk: list[Array]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Unit queries (Q, d) against a gallery, judged in one setting or several."""

    name: str
    queries: Array
    gallery: ArrayGallery
    settings: dict[str, Judgement]
    own: Array | None = None  # (Q,) the row of the gallery that is the query itself, left out of its list
    pictures: list[Path] = field(default_factory=list)  # (N,) where the pictures would lie
    query_pictures: list[Path] = field(default_factory=list)  # (Q,)
    names: list[str] = field(default_factory=list)  # (N,) of the pictures, as `kinrank index` calls them
    boxes: list[tuple[float, float, float, float]] | None = None  # (Q,) what was asked for in the picture

    @property
    def size(self) -> int:
        """How many images are ranked for a query."""
        return len(self.gallery) - (self.own is not None)


def read_npz(path: Path, needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, Array]:
    """Arrays of an .npz by name, nothing unpickled; a missing or unreadable one is refused by name."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            if isinstance(archive, np.ndarray):
                raise InputError(f"'{path}' holds one array; cure: save it with numpy.savez and names")
            missing = [name for name in needed if name not in archive.files]
            if missing:
                raise InputError(
                    f"'{path}' has no array '{missing[0]}' (it has: {', '.join(archive.files) or 'none'}); "
                    f"needed are {', '.join(needed)}"
                )
            return {name: archive[name] for name in (*needed, *optional) if name in archive.files}
    except InputError:
        raise
    except Exception as error:  # a damaged zip, a pickled array, a truncated header
        raise InputError(f"'{path}' cannot be read as .npz: {error}") from None


def same_width(queries: Array, gallery: Array, where: Any) -> None:
    """Queries and gallery must come from the same features."""
    if queries.ndim != 2 or gallery.ndim != 2 or queries.shape[1] != gallery.shape[1]:
        raise InputError(
            f"'{where}': queries have shape {queries.shape}, the gallery has {gallery.shape}; "
            "both must be (n, d) with the same d"
        )
