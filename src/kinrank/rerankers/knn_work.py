"""A copy of a gallery's vectors to work on, and the part files of an unfinished build."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from kinrank.errors import GalleryError, InputError
from kinrank.rerankers import state
from kinrank.types import Array, GalleryLike

IN_MEMORY = 1 << 30  # bytes of vectors that may be copied into memory; beyond, they are mapped from disk
_BLOCK = 1 << 23  # numbers read at once


class Work:
    """A copy of the gallery's vectors at one revision, and the part files of an unfinished build."""

    def __init__(self, gallery: GalleryLike, resume: bool = True) -> None:
        self.revision = gallery.revision
        self.folder = state.fit_folder(gallery, "building")
        self.made: list[Path] = []
        size, dim = len(gallery), gallery.dim
        if size == 0:
            raise InputError("the gallery is empty; cure: add vectors before fitting a method to it")
        self.vectors = self.room("vectors", size, dim)
        names, filled = [], 0
        for ids, block in gallery.blocks(max(1, _BLOCK // dim)):
            if filled + len(ids) > size:
                break
            self.vectors[filled : filled + len(ids)] = block
            names.append(ids)
            filled += len(ids)
        self.ids = np.concatenate(names)
        self.check(gallery, filled == size)
        # Parts are known by what they were made from, so those of another gallery are never taken.
        names_mark = zlib.crc32(np.ascontiguousarray(self.ids).data)
        self.mark = f"{zlib.crc32(self.vectors.data, names_mark):08x}"
        self.resume = resume

    def room(self, name: str, size: int, dim: int) -> Array:
        """A table (size, dim) in memory, or in a file when it is large and there is a place for one.

        `close` removes the file's name; the table lives on as long as anybody holds it.
        """
        if self.folder is not None and size * dim * 4 > IN_MEMORY:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                file = self.folder / f"{name}-{self.revision}.f32"
                table = np.memmap(file, np.float32, "w+", shape=(size, dim))
                self.made.append(file)
                return table
            except OSError:
                pass  # no place for a file: memory has to do
        return np.empty((size, dim), np.float32)

    def check(self, gallery: GalleryLike, whole: bool = True) -> None:
        """Refuse a copy that mixes two revisions."""
        if not whole or gallery.revision != self.revision:
            raise GalleryError("the gallery changed while a method was fitted to it; cure: fit again")

    def _file(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{name}-{self.mark}.npy"

    def read(self, name: str) -> Array | None:
        """What an interrupted build of the same vectors left."""
        file = self._file(name)
        if file is None or not self.resume:
            return None
        try:
            part: Array = np.load(file, allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None
        self.made.append(file)
        return part

    def write(self, name: str, part: Array) -> None:
        """Leave a part for a later run, whole or not at all."""
        file = self._file(name)
        if file is None:
            return
        draft = file.with_suffix(".draft.npy")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            np.save(draft, part, allow_pickle=False)
            draft.replace(file)
        except OSError:  # no place to leave it: an interruption then costs the whole build
            return
        self.made.append(file)

    def close(self) -> None:
        """Remove the working files: the finished graph takes their place."""
        if self.folder is not None and self.folder.is_dir():
            for file in self.made:
                file.unlink(missing_ok=True)
            for old in (*self.folder.glob("*.npy"), *self.folder.glob("*.f32")):  # of unfinished builds
                old.unlink(missing_ok=True)


def pack(neighbours: Array, similarities: Array, farthest: Array, lowest: Array) -> Array:
    """One array of integers for a part file."""
    return np.concatenate(
        [neighbours, farthest[:, None], similarities.view(np.int32), lowest[:, None].view(np.int32)], axis=1
    )


def unpack(part: Array, k: int) -> tuple[Array, Array, Array, Array]:
    """What `pack` took."""
    cosines = np.ascontiguousarray(part[:, k + 1 :]).view(np.float32)
    return part[:, :k], cosines[:, :k], part[:, k], cosines[:, k]
