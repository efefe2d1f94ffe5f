"""Full rankings of an evaluation on their way to one .npz, a block of queries at a time."""

from __future__ import annotations

import os
import tempfile
import zipfile
from pathlib import Path
from types import TracebackType

import numpy as np

from kinrank.types import Array


class SavedRankings:
    """One array (Q, N) int32 a method, named by its spec; the file appears when all is there."""

    def __init__(self, path: Path, queries: int, size: int) -> None:
        self.path = path if path.suffix == ".npz" else path.with_name(path.name + ".npz")
        self.shape = (queries, size)
        self.arrays: dict[str, Array] = {}

    def __enter__(self) -> SavedRankings:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._folder = tempfile.TemporaryDirectory(dir=self.path.parent, prefix=".rankings-")
        return self

    def keep(self, name: str, low: int, rankings: Array) -> None:
        """Rows low, low + 1, ... of a method's rankings."""
        if name not in self.arrays:
            file = Path(self._folder.name) / f"{len(self.arrays)}.npy"
            self.arrays[name] = np.lib.format.open_memmap(file, "w+", np.int32, self.shape)
        self.arrays[name][low : low + len(rankings)] = rankings

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._folder:
            if kind is None:
                self._write()

    def _write(self) -> None:
        whole = Path(self._folder.name) / "whole.npz"
        with zipfile.ZipFile(whole, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for i, (name, array) in enumerate(self.arrays.items()):
                array.flush()  # type: ignore[attr-defined]
                archive.write(Path(self._folder.name) / f"{i}.npy", f"{name}.npy")
        os.replace(whole, self.path)
