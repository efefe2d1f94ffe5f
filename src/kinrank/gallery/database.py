"""The embedded gallery's one truth: a SQLite file in WAL mode with ids, metadata and vectors.

Every vector is a row with a number that only grows and is never used twice; a replaced id gets a new row.
So a row, once committed, never changes, and whatever is derived from rows (`derived.py`) only has to know
the last row it covers and which rows are gone. A commit is one line in `commits`: what it has reached.
"""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from kinrank.errors import GalleryError
from kinrank.types import Array, unit_rows

APPLICATION = 0x6B696E72  # "kinr", in SQLite's header: this file is a gallery
FORMAT = 1
CHUNK = 1000  # values in one statement

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE items (row INTEGER PRIMARY KEY, id NOT NULL UNIQUE, metadata TEXT NOT NULL);
CREATE TABLE vectors (row INTEGER PRIMARY KEY, vector BLOB NOT NULL);
CREATE TABLE removed (row INTEGER PRIMARY KEY, id NOT NULL, revision INTEGER NOT NULL);
CREATE INDEX removed_by_revision ON removed (revision);
CREATE TABLE commits (
    revision INTEGER PRIMARY KEY, last_row INTEGER NOT NULL, size INTEGER NOT NULL, token TEXT NOT NULL
);
"""


class Commit(NamedTuple):
    """What a commit has reached: its number, the last row, how many ids there are, a random mark."""

    revision: int
    last_row: int
    size: int
    token: str


class Database:
    """The truth of one gallery: reading sees the last commit, writing is all or nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self.errors():
            self._sql = _connect(path)
            self._check_format()
            meta = dict(self._sql.execute("SELECT key, value FROM meta").fetchall())
        try:
            self.dim, self.dtype, self.gallery = int(meta["dim"]), str(meta["dtype"]), str(meta["gallery"])
        except (KeyError, ValueError):
            raise GalleryError(f"{_damaged(path)}: its description is incomplete") from None
        self._codec = np.dtype(self.dtype)

    @classmethod
    def create(cls, path: Path, dim: int, dtype: str, backbone: str | None) -> None:
        """A new file, there whole or not at all."""
        if path.exists():
            raise GalleryError(f"'{path}' exists; cure: Gallery.open it, or choose another name")
        if not path.parent.is_dir():
            raise GalleryError(f"there is no folder '{path.parent}' for the gallery; cure: make it first")
        new = path.with_name(f"{path.name}.new-{uuid.uuid4().hex[:8]}")
        try:
            sql = sqlite3.connect(new, isolation_level=None)
            sql.execute("PRAGMA page_size = 16384")  # several vectors a page
            sql.execute("PRAGMA journal_mode = WAL")
            sql.executescript(
                f"BEGIN; {_SCHEMA} PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {FORMAT};"
            )
            meta = {"dim": dim, "dtype": dtype, "backbone": backbone, "gallery": uuid.uuid4().hex}
            sql.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
            sql.execute("INSERT INTO commits VALUES (0, 0, 0, ?)", (uuid.uuid4().hex,))
            sql.execute("COMMIT")
            sql.close()
            _move(new, path)
        except (sqlite3.Error, OSError) as error:
            raise GalleryError(f"the gallery '{path}' cannot be made: {error}") from None
        finally:
            new.unlink(missing_ok=True)

    def _check_format(self) -> None:
        (application,) = self._sql.execute("PRAGMA application_id").fetchone()
        (version,) = self._sql.execute("PRAGMA user_version").fetchone()
        if application != APPLICATION:
            raise GalleryError(f"'{self.path}' is not a gallery of kinrank")
        if version > FORMAT:
            raise GalleryError(
                f"the gallery '{self.path}' has format {version}, this version of kinrank reads up to "
                f"{FORMAT}; cure: pip install --upgrade kinrank"
            )

    @contextmanager
    def errors(self) -> Iterator[None]:
        """SQLite's errors in words of the gallery."""
        try:
            yield
        except sqlite3.OperationalError as error:
            text = str(error)
            if "locked" in text or "busy" in text:
                raise GalleryError(f"the gallery '{self.path}' is busy: {text}; cure: try again") from None
            if "full" in text:
                raise GalleryError(f"no room left for the gallery '{self.path}'; nothing was added") from None
            if "readonly" in text:
                raise GalleryError(f"the gallery '{self.path}' cannot be written: {text}") from None
            raise GalleryError(f"{_damaged(self.path)}: {text}") from None
        except sqlite3.DatabaseError as error:
            raise GalleryError(f"{_damaged(self.path)}: {error}") from None

    @contextmanager
    def reading(self) -> Iterator[Commit]:
        """One state of the gallery for all that is read inside, whatever is committed meanwhile."""
        with self.errors():
            self._sql.execute("BEGIN")
            try:
                yield self.last_commit()
            finally:
                self._sql.execute("ROLLBACK")

    @contextmanager
    def _writing(self) -> Iterator[Commit]:
        with self.errors():
            self._sql.execute("BEGIN IMMEDIATE")
            try:
                yield self.last_commit()
                self._sql.execute("COMMIT")
            except BaseException:
                if self._sql.in_transaction:
                    self._sql.execute("ROLLBACK")
                raise

    def last_commit(self) -> Commit:
        """The newest commit."""
        with self.errors():
            row = self._sql.execute("SELECT * FROM commits ORDER BY revision DESC LIMIT 1").fetchone()
        if row is None:
            raise GalleryError(f"{_damaged(self.path)}: it has no commit")
        return Commit(*row)

    def commit(self, revision: int) -> Commit | None:
        """A former commit."""
        with self.errors():
            row = self._sql.execute("SELECT * FROM commits WHERE revision = ?", (revision,)).fetchone()
        return Commit(*row) if row else None

    def meta(self, key: str) -> str | None:
        """A line of the gallery's description."""
        with self.errors():
            row = self._sql.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    def set_meta(self, key: str, value: str) -> None:
        """Write a line of the gallery's description."""
        with self._writing():
            self._sql.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def put(self, kind: str, keys: list[Any], vectors: Array, metadata: Sequence[str]) -> None:
        """Add or replace in one commit."""
        stored = np.ascontiguousarray(vectors, self._codec)
        with self._writing() as now:
            if now.last_row == 0:
                self._sql.execute("INSERT OR REPLACE INTO meta VALUES ('kind', ?)", (kind,))
            replaced = self.rows_of(keys)
            self._bury(list(replaced.values()), now.revision + 1)
            first = now.last_row + 1
            self._sql.executemany(
                "INSERT INTO items VALUES (?, ?, ?)",
                zip(range(first, first + len(keys)), keys, metadata),
            )
            self._sql.executemany("INSERT INTO vectors VALUES (?, ?)", enumerate(map(bytes, stored), first))
            size = now.size - len(replaced) + len(keys)
            self._sign(now.revision + 1, now.last_row + len(keys), size)

    def remove(self, rows: list[int]) -> None:
        """Take rows out in one commit."""
        with self._writing() as now:
            self._bury(rows, now.revision + 1)
            self._sign(now.revision + 1, now.last_row, now.size - len(rows))

    def _bury(self, rows: list[int], revision: int) -> None:
        for part in _parts(rows):
            some = f"({_marks(part)})"
            self._sql.execute(
                f"INSERT INTO removed SELECT row, id, {revision} FROM items WHERE row IN {some}", part
            )
            self._sql.execute(f"DELETE FROM items WHERE row IN {some}", part)
            self._sql.execute(f"DELETE FROM vectors WHERE row IN {some}", part)

    def _sign(self, revision: int, last_row: int, size: int) -> None:
        line = (revision, last_row, size, uuid.uuid4().hex)
        self._sql.execute("INSERT INTO commits VALUES (?, ?, ?, ?)", line)

    def rows_of(self, keys: list[Any]) -> dict[Any, int]:
        """id -> row, for those of the ids that are here."""
        return dict(self._select("SELECT id, row FROM items WHERE id IN", keys))

    def keys_of(self, rows: list[int]) -> dict[int, Any]:
        """row -> id, for those of the rows that are still here."""
        return dict(self._select("SELECT row, id FROM items WHERE row IN", rows))

    def metadata(self, rows: list[int]) -> list[str]:
        """JSON texts of these rows."""
        found = dict(self._select("SELECT row, metadata FROM items WHERE row IN", rows))
        return [found[row] for row in rows]

    def vectors(self, rows: list[int]) -> Array:
        """Unit vectors (n, d) of these rows."""
        found = dict(self._select("SELECT row, vector FROM vectors WHERE row IN", rows))
        if len(found) != len(set(rows)):
            raise GalleryError(f"{_damaged(self.path)}: vectors are missing")
        return self._decode([found[row] for row in rows])

    def _select(self, statement: str, values: list[Any]) -> list[tuple[Any, Any]]:
        found: list[tuple[Any, Any]] = []
        with self.errors():
            for part in _parts(values):
                found += self._sql.execute(f"{statement} ({_marks(part)})", part).fetchall()
        return found

    def all_rows(self) -> tuple[Array, list[Any]]:
        """(row numbers (N,), ids) in the order of adding."""
        with self.errors():
            lines = self._sql.execute("SELECT row, id FROM items ORDER BY row").fetchall()
        return np.array([line[0] for line in lines], np.int64), [line[1] for line in lines]

    def vectors_after(self, row: int, size: int) -> Iterator[tuple[Array, Array]]:
        """(row numbers, unit vectors) of all rows beyond `row`, a block at a time."""
        with self.errors():
            cursor = self._sql.execute("SELECT row, vector FROM vectors WHERE row > ? ORDER BY row", (row,))
            while lines := cursor.fetchmany(size):
                numbers = np.array([line[0] for line in lines], np.int64)
                yield numbers, self._decode([line[1] for line in lines])

    def count_after(self, row: int) -> int:
        """How many rows there are beyond `row`."""
        with self.errors():
            count: int = self._sql.execute("SELECT count(*) FROM items WHERE row > ?", (row,)).fetchone()[0]
        return count

    def removed_after(self, revision: int) -> Array:
        """Rows that commits after this one took out."""
        with self.errors():
            lines = self._sql.execute("SELECT row FROM removed WHERE revision > ?", (revision,)).fetchall()
        return np.array([line[0] for line in lines], np.int64)

    def changes_since(self, revision: int, last_row: int) -> tuple[list[Any], list[Any]]:
        """(ids of rows beyond `last_row`, ids that were there then and are not now)."""
        with self.errors():
            added = self._sql.execute("SELECT id FROM items WHERE row > ? ORDER BY row", (last_row,))
            new = [line[0] for line in added]
            gone = self._sql.execute(
                "SELECT id FROM removed WHERE revision > ? AND row <= ? "
                "AND id NOT IN (SELECT id FROM items) ORDER BY row",
                (revision, last_row),
            )
            return new, [line[0] for line in gone]

    def _decode(self, blobs: list[bytes]) -> Array:
        try:
            rows = np.frombuffer(bytearray().join(blobs), self._codec).reshape(len(blobs), self.dim)
            units = unit_rows(rows)
        except ValueError as error:
            raise GalleryError(f"{_damaged(self.path)}: {error}") from None
        if not (np.abs(np.einsum("nd,nd->n", units, rows) - 1) < 0.01).all():
            raise GalleryError(f"{_damaged(self.path)}: a vector is not of unit length")
        return units

    def close(self) -> None:
        """Close the connection."""
        self._sql.close()


def _connect(path: Path) -> sqlite3.Connection:
    if path.is_dir():
        raise GalleryError(f"'{path}' is a folder, a gallery is a file; cure: give the gallery's file")
    if not path.exists():
        raise GalleryError(
            f"there is no gallery '{path}'; cure: Gallery.create it, or kinrank index FOLDER -g '{path}'"
        )
    sql = sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?{_mode(path)}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=10,
    )
    sql.execute("PRAGMA synchronous = FULL")  # what add has reported survives a power cut too
    sql.execute("PRAGMA cache_size = -32768")
    sql.execute("PRAGMA journal_size_limit = 67108864")  # a large add leaves no large log behind
    return sql


def _move(new: Path, path: Path) -> None:
    """Give a file its name without overwriting what another process made meanwhile."""
    try:
        os.link(new, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        os.rename(new, path)


def _mode(path: Path) -> str:
    if writable(path):
        return "mode=rw"
    log = path.with_name(path.name + "-wal")
    # Reading through a log needs to make a file beside it; without a log that is not needed.
    return "mode=ro" if log.exists() and log.stat().st_size else "immutable=1"


def writable(path: Path) -> bool:
    """Whether the gallery and its folder may be written."""
    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)


def _damaged(path: Path) -> str:
    return f"'{path}' is not a gallery, or it is damaged"


def _parts(values: list[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(values), CHUNK):
        yield values[start : start + CHUNK]


def _marks(part: list[Any]) -> str:
    return ",".join("?" * len(part))
