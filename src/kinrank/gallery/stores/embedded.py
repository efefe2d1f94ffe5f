"""The embedded store: one SQLite file as the truth, derived files beside it to search fast.

Any number of processes may read while one writes. A reader sees the last commit at every call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar

import numpy as np

from kinrank.errors import GalleryError
from kinrank.gallery import ivf
from kinrank.gallery.database import Commit, Database, writable
from kinrank.gallery.derived import DamagedFilesError, Derived
from kinrank.gallery.locks import Lock
from kinrank.gallery.store import Kind, unknown_ids
from kinrank.gallery.view import View
from kinrank.types import Array

TAIL_BYTES = 1 << 24  # newest vectors that a search reads from the database rather than from the files
WAIT_BYTES = 1 << 28  # with more of them a search waits for another process that is writing the files
APPEND_BYTES = 1 << 26  # after so many added bytes a writer brings the files up for its readers
MANY = 20_000  # hits from which all ids are read at once
KEPT_TEXTS = 1 << 18  # so many ids that are text are kept in memory for searching

T = TypeVar("T")


class EmbeddedStore:
    """A file on this machine (any path): SQLite with a FAISS index beside it; safe against crashes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db = Database(path)
        self.dim, self.dtype = self._db.dim, self._db.dtype
        self._derived = Derived(self._db)
        self._writer = Lock(self._derived.folder / "writer.lock")
        self._view: View | None = None
        self._names: tuple[int, Array, Array] | None = None  # of a revision: row numbers, ids
        self._looked_up, self._looked_at = 0, -1  # ids looked up one by one, at which revision
        self._added = 0  # bytes since the files were brought up
        self._guard = RLock()

    @classmethod
    def create(cls, location: str, dim: int, dtype: str, backbone: str | None) -> EmbeddedStore:
        """A new, empty gallery file."""
        Database.create(Path(location), dim, dtype, backbone)
        return cls(Path(location))

    @classmethod
    def open(cls, location: str) -> EmbeddedStore:
        """The gallery in that file."""
        return cls(Path(location))

    @property
    def backbone(self) -> str | None:
        """What made the vectors."""
        with self._guard:
            return self._db.meta("backbone")

    @property
    def uid(self) -> str:
        """This gallery's own mark: another gallery made at the same path has another."""
        return self._db.gallery

    @property
    def kind(self) -> Kind | None:
        """What the ids are."""
        with self._guard:
            return self._db.meta("kind")

    @property
    def revision(self) -> int:
        """The number of the last commit."""
        with self._guard:
            return self._db.last_commit().revision

    def __len__(self) -> int:
        with self._guard:
            return self._db.last_commit().size

    def __contains__(self, key: Any) -> bool:
        with self._guard:
            return bool(self._db.rows_of([key.item() if isinstance(key, np.generic) else key]))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Become the one writer and stay it until closed."""
        with self._guard:
            if not writable(self._path):
                raise GalleryError(f"the gallery '{self._path}' cannot be written: no permission")
            if not self._writer.acquire():
                raise GalleryError(
                    f"the gallery '{self._path}' is being written by process {self._writer.holder()}; "
                    "cure: wait until it has closed the gallery (reading is possible meanwhile)"
                )
            yield

    def remember_backbone(self, name: str) -> None:
        """Keep the name of what makes the vectors."""
        with self._writing():
            self._db.set_meta("backbone", name)

    def put(self, ids: Array, vectors: Array, metadata: Sequence[str]) -> None:
        """Add or replace in one commit; on disk when this returns."""
        with self._writing():
            self._db.put("str" if ids.dtype.kind == "U" else "int", ids.tolist(), vectors, metadata)
            self._added += vectors.nbytes
            if self._added >= APPEND_BYTES:
                self._derived.complete(index=False)
                self._added = 1  # not all is done before the index knows it too

    def remove(self, ids: Array) -> None:
        """Take ids out in one commit."""
        with self._writing():
            self._db.remove(self._rows(ids))
            self._added = max(self._added, 1)

    def _rows(self, ids: Array) -> list[int]:
        keys = ids.tolist()
        found = self._db.rows_of(keys)
        missing = [key for key in keys if key not in found]
        if missing:
            raise unknown_ids(missing, str(self._path))
        return [found[key] for key in keys]

    def ids(self) -> Array:
        """All ids in the order of adding."""
        with self._guard, self._db.reading() as now:
            return self._all_names(now)[1].copy()

    def _all_names(self, now: Commit) -> tuple[Array, Array]:
        """(row numbers, ids) of all, kept until the next commit."""
        if self._names is None or self._names[0] != now.revision:
            rows, keys = self._db.all_rows()
            self._names = (now.revision, rows, self._array(keys))
        return self._names[1], self._names[2]

    def _array(self, keys: list[Any]) -> Array:
        return _as_array(keys, self.kind)

    def vectors(self, ids: Array) -> Array:
        """Unit vectors in the order asked for."""
        with self._guard, self._db.reading():
            return self._db.vectors(self._rows(ids)) if len(ids) else np.zeros((0, self.dim), np.float32)

    def metadata(self, ids: Array) -> list[str]:
        """JSON text in the order asked for."""
        with self._guard, self._db.reading():
            return self._db.metadata(self._rows(ids))

    def blocks(self, size: int) -> Iterator[tuple[Array, Array]]:
        """(ids, vectors), a block at a time, all of one commit whatever is written meanwhile."""
        database = Database(self._path)
        try:
            with database.reading():
                kind = database.meta("kind")
                for rows, units in database.vectors_after(0, size):
                    keys = database.keys_of(rows.tolist())
                    yield _as_array([keys[row] for row in rows.tolist()], kind), units
        finally:
            database.close()

    def changes_since(self, revision: int) -> tuple[Array, Array]:
        """(ids added or replaced, ids removed) since then."""
        with self._guard, self._db.reading():
            then = self._db.commit(revision)
            if then is None:
                raise GalleryError(f"the gallery '{self._path}' knows no revision {revision}")
            added, gone = self._db.changes_since(revision, then.last_row)
            return self._array(added), self._array(gone)

    def search(self, query: Array, k: int) -> tuple[Array, Array, Array]:
        """(ids, scores, vectors), best first."""

        def ask(view: View) -> tuple[Array, Array, Array]:
            rows, scores, vectors = view.nearest(query, min(k, view.commit.size))
            return self._names_of(rows, view.commit), scores, vectors

        return self._asked(ask)

    def search_ids(self, queries: Array, k: int) -> tuple[Array, Array]:
        """(ids (Q, k), scores (Q, k)), best first."""

        def ask(view: View) -> tuple[Array, Array]:
            rows, scores = view.nearest_many(queries, min(k, view.commit.size))
            return self._names_of(rows, view.commit), scores

        return self._asked(ask)

    def _asked(self, ask: Callable[[View], T]) -> T:
        """The answer of the last commit's view; damaged files are made anew and asked again."""
        with self._guard:
            try:
                with self._searching() as view:
                    return ask(view)
            except DamagedFilesError:
                self._derived.discard()
                self._view = None
            with self._searching() as view:
                return ask(view)

    @contextmanager
    def _searching(self) -> Iterator[View]:
        """The view of the last commit, with the database held still at it."""
        self._derived.refresh()
        self._complete_when_long()
        with self._db.reading() as now:
            if now.size == 0:
                raise GalleryError(f"the gallery '{self._path}' has become empty")
            self._view = View.at(now, self._derived.mapped, self._db, self._view)
            yield self._view

    def _complete_when_long(self) -> None:
        """Bring the files up when too much is not in them, or in the index, yet."""
        mapped, last = self._derived.mapped, self._db.last_commit().last_row
        behind = (last - (mapped.state.last_row if mapped else 0)) * self.dim * 4
        due = mapped is not None and ivf.is_due(mapped.state.index, mapped.state.count, self.dim)
        if behind > TAIL_BYTES or due:
            self._derived.complete(wait=behind > WAIT_BYTES)

    def _names_of(self, rows: Array, now: Commit) -> Array:
        at_hand = self._names is not None and self._names[0] == now.revision
        self._looked_up = rows.size + (self._looked_up if self._looked_at == now.revision else 0)
        self._looked_at = now.revision
        # Once looking ids up one by one has cost as much as reading all of them, all are read.
        if at_hand or rows.size > MANY or (2 * self._looked_up > now.size and self._small_names(now)):
            known, names = self._all_names(now)
            places = np.minimum(np.searchsorted(known, rows), len(known) - 1)
            if not np.array_equal(known[places], rows):
                raise DamagedFilesError
            return names[places]
        numbers = rows.ravel().tolist()
        keys = self._db.keys_of(numbers)
        if len(keys) < len(set(numbers)) or (rows.ndim == 1 and len(keys) < len(numbers)):
            raise DamagedFilesError
        return self._array([keys[row] for row in numbers]).reshape(rows.shape)

    def _small_names(self, now: Commit) -> bool:
        """Whether all ids may be kept in memory: 8 bytes each for numbers, the longest's room for text."""
        return self.kind == "int" or now.size <= KEPT_TEXTS

    def prepare(self) -> None:
        """Bring the derived files up to the last commit."""
        with self._guard:
            self._derived.complete(wait=True)
            self._added = 0

    def close(self) -> None:
        """Bring the files up after writing, and let go of everything."""
        with self._guard:
            if self._added and self._writer.held:
                self._derived.complete()
            self._view = self._names = None
            self._derived.close()
            self._writer.release()
            self._db.close()


def _as_array(keys: list[Any], kind: Kind | None) -> Array:
    return np.array(keys, dtype=np.str_ if kind == "str" else np.int64)
