"""The exact store: everything in memory, every row read. The truth that other stores are held against."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kinrank.errors import GalleryError
from kinrank.gallery import scan
from kinrank.gallery.store import Kind, unknown_ids
from kinrank.types import Array, unit_rows


class ExactStore:
    """In memory, exact, gone when the process ends (`memory:`)."""

    def __init__(self, dim: int, dtype: str, backbone: str | None) -> None:
        self.dim, self.dtype, self.backbone, self.revision = dim, dtype, backbone, 0
        self.kind: Kind | None = None
        self._room = np.zeros((0, dim), np.float32)  # rows beyond len(self) are free
        self._keys: list[Any] = []
        self._json: list[str] = []
        self._born: list[int] = []  # the revision that brought a row
        self._place: dict[Any, int] = {}
        self._gone: list[tuple[int, int, Any]] = []  # (born, removed, id)

    @classmethod
    def create(cls, location: str, dim: int, dtype: str, backbone: str | None) -> ExactStore:
        """A new, empty store; the location is always `memory:`."""
        return cls(dim, dtype, backbone)

    @classmethod
    def open(cls, location: str) -> ExactStore:
        """Nothing of that kind can be opened."""
        raise GalleryError(
            f"'{location}' lives in memory and cannot be opened again; "
            "cure: Gallery.create('memory:', dim=...), or a path to keep it"
        )

    def __len__(self) -> int:
        return len(self._keys)

    def remember_backbone(self, name: str) -> None:
        """Keep the name of what makes the vectors."""
        self.backbone = name

    def put(self, ids: Array, vectors: Array, metadata: Sequence[str]) -> None:
        """Add or replace."""
        keys = ids.tolist()
        if self.dtype == "float16":
            vectors = unit_rows(vectors.astype(np.float16))
        self.revision += 1
        self.kind = self.kind or ("str" if ids.dtype.kind == "U" else "int")
        self._drop([self._place[key] for key in keys if key in self._place])
        size = len(self)
        if size + len(keys) > len(self._room):
            room = np.empty((max(2 * len(self._room), size + len(keys)), self.dim), np.float32)
            room[:size] = self._room[:size]
            self._room = room
        self._room[size : size + len(keys)] = vectors
        self._place.update(zip(keys, range(size, size + len(keys))))
        self._keys += keys
        self._json += metadata
        self._born += [self.revision] * len(keys)

    def remove(self, ids: Array) -> None:
        """Take ids out."""
        places = self._places(ids)
        self.revision += 1
        self._drop(places)

    def _drop(self, dropped: list[int]) -> None:
        if not dropped:
            return
        places = set(dropped)
        self._gone += [(self._born[p], self.revision, self._keys[p]) for p in sorted(places)]
        kept = [p for p in range(len(self)) if p not in places]
        self._room = self._room[kept]
        self._keys = [self._keys[p] for p in kept]
        self._json = [self._json[p] for p in kept]
        self._born = [self._born[p] for p in kept]
        self._place = {key: p for p, key in enumerate(self._keys)}

    def __contains__(self, key: Any) -> bool:
        return key in self._place

    def _places(self, ids: Array) -> list[int]:
        keys = ids.tolist()
        missing = [key for key in keys if key not in self._place]
        if missing:
            raise unknown_ids(missing, "memory:")
        return [self._place[key] for key in keys]

    def ids(self) -> Array:
        """All ids in the order of adding."""
        return self._array(self._keys)

    def _array(self, keys: list[Any]) -> Array:
        return np.array(keys, dtype=np.str_ if self.kind == "str" else np.int64)

    def vectors(self, ids: Array) -> Array:
        """Unit vectors in the order asked for."""
        return self._room[self._places(ids)]

    def metadata(self, ids: Array) -> list[str]:
        """JSON text in the order asked for."""
        return [self._json[p] for p in self._places(ids)]

    def blocks(self, size: int) -> Iterator[tuple[Array, Array]]:
        """(ids, vectors), a block at a time."""
        ids, matrix = self.ids(), self._room[: len(self)].copy()
        for start in range(0, len(ids), size):
            yield ids[start : start + size], matrix[start : start + size]

    def changes_since(self, revision: int) -> tuple[Array, Array]:
        """(ids added or replaced, ids removed) since then."""
        added = [key for key, born in zip(self._keys, self._born) if born > revision]
        gone = [key for born, removed, key in self._gone if born <= revision < removed]
        return self._array(added), self._array([key for key in gone if key not in self._place])

    def search(self, query: Array, k: int) -> tuple[Array, Array, Array]:
        """(ids, scores, vectors), best first."""
        positions, scores, rows = scan.nearest(self._room[: len(self)], query, k)
        return self._array([self._keys[p] for p in positions]), scores, rows

    def search_ids(self, queries: Array, k: int) -> tuple[Array, Array]:
        """(ids (Q, k), scores (Q, k)), best first."""
        positions, scores = scan.nearest_many(self._room[: len(self)], queries, k)
        return self.ids()[positions], scores

    def prepare(self) -> None:
        """Nothing to prepare."""

    def close(self) -> None:
        """Nothing to close."""
