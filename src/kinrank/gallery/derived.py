"""What is derived from the database to search fast; all of it can be deleted at any time.

In the folder `<gallery>.index/`:

    state.json               what the files cover; replaced by rename, so it is the old or the new one
    vectors-<g>.f32          unit vectors, float32, one after the other, memory-mapped
    rows-<g>.i64             the database's row number of each
    ivf-<g>-<n>.faiss        a FAISS inverted index over the first n of them, once there are many

Rows never change, so new ones are appended and count once `state.json` says so; a process that dies
before leaves a tail that the next one overwrites. Rows that were removed stay until there are so many
that a new generation `<g>` is written without them.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kinrank.errors import GalleryError
from kinrank.gallery import ivf
from kinrank.gallery.database import Commit, Database
from kinrank.gallery.locks import Lock
from kinrank.types import Array

FORMAT = 1
BLOCK_BYTES = 1 << 25
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class State:
    """What the files cover. `token` is the mark of the commit they were made from."""

    gallery: str
    dim: int
    generation: int
    base: int  # the revision at which the generation began: what was removed before is not in it
    count: int = 0
    last_row: int = 0
    revision: int = 0
    token: str = ""
    index: ivf.Description | None = None
    format: int = FORMAT


class DamagedFilesError(Exception):
    """A search has met something in the derived files that cannot be right; caught by the store."""


class Mapped:
    """The derived files, mapped into memory: read where they are touched."""

    def __init__(self, folder: Path, state: State) -> None:
        self.state = state
        self.rows = _mapped(folder / f"rows-{state.generation}.i64", np.int64, (state.count,))
        self.matrix = _mapped(
            folder / f"vectors-{state.generation}.f32", np.float32, (state.count, state.dim)
        )
        self.index = ivf.open_index(folder, state.index, state.dim) if state.index else None


class Derived:
    """Makes, completes and maps the derived files of one gallery."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.folder = database.path.with_name(database.path.name + ".index")
        self._lock = Lock(self.folder / "build.lock")
        self._seen: tuple[int, int, int] | None = None
        self._distrusted = False
        self.mapped: Mapped | None = None

    def refresh(self) -> None:
        """Map what the files have become; files that cannot be right are not mapped."""
        path = self.folder / "state.json"
        if self._distrusted:
            return
        try:
            stat = path.stat()
        except OSError:
            self.mapped = self._seen = None
            return
        seen = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if seen == self._seen:
            return
        self._seen = seen
        state = self._read()
        try:
            self.mapped = Mapped(self.folder, state) if state else None
        except FileNotFoundError as error:
            self.mapped = None
            if path.exists() and path.stat().st_ino != stat.st_ino:
                self.refresh()  # another process has published newer files meanwhile and removed these
            else:
                log.warning("a file of the search index is missing (%s); it will be rebuilt", error.filename)
        except (OSError, ValueError, RuntimeError) as error:
            log.warning("the search index of '%s' is damaged (%s) and will be rebuilt", self.folder, error)
            self.mapped = None

    def _read(self) -> State | None:
        """The state, when it belongs to this gallery and to a commit that this gallery has made."""
        try:
            data = json.loads((self.folder / "state.json").read_text())
            index = data.pop("index")
            state = State(**data, index=ivf.Description(**index) if index else None)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None
        commit = self.database.commit(state.revision)
        fits = (state.format, state.gallery, state.dim) == (FORMAT, self.database.gallery, self.database.dim)
        return state if fits and commit is not None and commit.token == state.token else None

    def complete(self, wait: bool = False, index: bool = True) -> bool:
        """Bring the files up to the last commit; False when another process is at it or none may write.

        Without `index` only the vectors are brought up: quick, and enough for searching to stay lean.
        """
        try:
            if not self._lock.acquire(wait):
                return False
        except GalleryError:
            return False
        try:
            self._complete(index)
            return True
        except OSError as error:
            log.warning("the search index of '%s' cannot be written: %s", self.folder, error)
            return False
        finally:
            self._lock.release()
            self.refresh()

    def discard(self) -> None:
        """Forget files that turned out to be damaged; the next `complete` makes new ones."""
        log.warning("the search index of '%s' is damaged and will be rebuilt", self.database.path)
        self.mapped = self._seen = None
        try:
            (self.folder / "state.json").unlink(missing_ok=True)
        except OSError:
            self._distrusted = True  # nothing can be written here: go on without the files

    def _complete(self, index: bool) -> None:
        self._seen = None
        self.refresh()
        state = self.mapped.state if self.mapped else None
        with self.database.reading() as now:
            if state is None or self._mostly_dead(state, now):
                state = self._new_generation(state, now)
            if state.last_row < now.last_row:
                state = self._append(state, now)
        self._publish(state)
        if index and ivf.is_due(state.index, state.count, state.dim):
            log.warning(
                "building the search index of '%s' over %d vectors, once", self.database.path, state.count
            )
            matrix = Mapped(self.folder, replace(state, index=None)).matrix
            made = ivf.build(self.folder, state.generation, matrix, state.index)
            self._publish(replace(state, index=made))
        self._sweep()

    def _mostly_dead(self, state: State, now: Commit) -> bool:
        dead = state.count + self.database.count_after(state.last_row) - now.size
        return dead > max(1000, now.size // 4)

    def _new_generation(self, old: State | None, now: Commit) -> State:
        used = [int(p.stem.split("-")[1]) for p in self.folder.glob("vectors-*.f32")]
        generation = max([old.generation if old else 0, *used]) + 1
        return State(self.database.gallery, self.database.dim, generation, base=now.revision)

    def _append(self, state: State, now: Commit) -> State:
        count, dim = state.count, state.dim
        names = (f"vectors-{state.generation}.f32", f"rows-{state.generation}.i64")
        with open(self.folder / names[0], "ab") as vectors, open(self.folder / names[1], "ab") as rows:
            vectors.truncate(count * dim * 4)  # what a killed process left behind
            rows.truncate(count * 8)
            for numbers, units in self.database.vectors_after(state.last_row, BLOCK_BYTES // (4 * dim)):
                vectors.write(units.tobytes())
                rows.write(numbers.tobytes())
                count += len(numbers)
            for file in (vectors, rows):
                file.flush()
                os.fsync(file.fileno())
        return replace(state, count=count, last_row=now.last_row, revision=now.revision, token=now.token)

    def _publish(self, state: State) -> None:
        new = self.folder / f"state.json.new-{os.getpid()}"
        with open(new, "w") as file:
            json.dump(asdict(state), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self.folder / "state.json")

    def _sweep(self) -> None:
        """Remove files of former generations; who has them mapped keeps them until it lets go."""
        state = self._read()
        if state is None:
            return
        kept = {f"vectors-{state.generation}.f32", f"rows-{state.generation}.i64"}
        if state.index:
            kept.add(state.index.file)
        for path in self.folder.iterdir():
            old = path.name not in kept and path.suffix in (".f32", ".i64", ".faiss")
            if old or ".new-" in path.name:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the files."""
        self.mapped = self._seen = None
        self._lock.release()


def _mapped(path: Path, dtype: Any, shape: tuple[int, ...]) -> Array:
    if 0 in shape:
        return np.zeros(shape, dtype)
    if path.stat().st_size < int(np.prod(shape)) * np.dtype(dtype).itemsize:
        raise ValueError(f"{path.name} is too short")
    return np.asarray(np.memmap(path, dtype, "r", shape=shape))
