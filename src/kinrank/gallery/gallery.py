"""The one object over all stores: vectors go in with ids and metadata, `Candidates` come out.

    gallery = Gallery.create("photos.kin", dim=384)
    gallery.add(ids, vectors, metadata)
    gallery.search(query, k=1024)

All checking of input is done here, so every store keeps the same laws.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from kinrank.errors import GalleryError, InputError
from kinrank.gallery.store import StoreLike
from kinrank.registry import load, registry
from kinrank.types import Array, Candidates, as_ids, check_k, check_unique, unit_rows

MAX_DIM = 4096
DTYPES = ("float32", "float16")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+):(//)?")


class Gallery:
    """Vectors with ids and metadata, searched by cosine. Usable as a context manager."""

    def __init__(self, store: StoreLike, location: str) -> None:
        self._store: StoreLike | None = store
        self.location = location

    @classmethod
    def create(
        cls,
        location: str | os.PathLike[str],
        dim: int,
        dtype: str = "float32",
        backbone: str | None = None,
    ) -> Gallery:
        """A new, empty gallery: a path (embedded), `memory:` (exact, not kept) or an engine's URL.

        `dim` is 1 to 4096; `dtype` is how vectors are kept, float32 or float16 (half the room, cosines to
        three digits); `backbone` names what makes the vectors, see `require_backbone`.
        """
        if isinstance(dim, bool) or not isinstance(dim, int | np.integer) or not 1 <= dim <= MAX_DIM:
            raise InputError(f"dim must be a whole number from 1 to {MAX_DIM}, got {dim!r}")
        name = np.dtype(dtype).name if isinstance(dtype, type | np.dtype) else dtype
        if name not in DTYPES:
            raise InputError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
        place = os.fspath(location)
        return cls(_store_class(place).create(place, int(dim), name, backbone), place)

    @classmethod
    def open(cls, location: str | os.PathLike[str]) -> Gallery:
        """The gallery at a path or an engine's URL. Opening reads next to nothing; searching maps files."""
        place = os.fspath(location)
        return cls(_store_class(place).open(place), place)

    @property
    def store(self) -> StoreLike:
        """The store underneath; an error when the gallery is closed."""
        if self._store is None:
            raise GalleryError(f"the gallery '{self.location}' is closed; cure: open it again")
        return self._store

    @property
    def path(self) -> Path | None:
        """The file of an embedded gallery, beside which methods keep what they fitted; None elsewhere."""
        return Path(self.location) if getattr(self.store, "uid", None) else None

    @property
    def uid(self) -> str | None:
        """The mark of an embedded gallery, other than that of any former gallery at its path."""
        return getattr(self.store, "uid", None)

    @property
    def dim(self) -> int:
        """Dimensions of the vectors."""
        return self.store.dim

    @property
    def dtype(self) -> str:
        """How the vectors are kept: float32 or float16. What comes out is always float32."""
        return self.store.dtype

    @property
    def revision(self) -> int:
        """A number that grows with every committed change, also another process's."""
        return self.store.revision

    @property
    def backbone(self) -> str | None:
        """What made the vectors (a name with the preprocessing's fingerprint), None when unknown."""
        return self.store.backbone

    def __len__(self) -> int:
        return len(self.store)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str | int | np.integer | np.str_) and key in self.store

    def __repr__(self) -> str:
        state = "closed" if self._store is None else f"{len(self)} x {self.dim} {self.dtype}"
        return f"<Gallery '{self.location}', {state}>"

    def require_backbone(self, name: str) -> None:
        """Refuse to mix: raises unless the gallery's vectors are made by `name`. Empty, it remembers it."""
        kept = self.backbone
        if kept == name:
            return
        if kept is None and len(self) == 0:
            self.store.remember_backbone(name)
            return
        held = f"vectors of '{kept}'" if kept else "vectors of an unknown origin"
        raise GalleryError(
            f"the gallery '{self.location}' holds {held}, these are made by '{name}'; they cannot be "
            "compared; cure: take the same backbone, or make a new gallery for this one"
        )

    def add(
        self,
        ids: Sequence[Any] | Array,
        vectors: Any,
        metadata: Sequence[Mapping[str, Any] | None] | None = None,
    ) -> None:
        """Add vectors (n, d), all of them or, at any error, none. A known id is replaced.

        Ids are all integers or all text in one gallery. Vectors are brought to unit length; NaN, zero and
        wrong dimensions are refused by name. `metadata` is one JSON-able mapping an id.
        """
        keys = self._checked_ids(ids)
        rows = np.asarray(vectors)
        if rows.ndim == 2 and rows.shape[1] != self.dim:
            raise InputError(f"the vectors have {rows.shape[1]} dimensions, the gallery has {self.dim}")
        if rows.ndim == 2 and len(rows) != len(keys):
            raise InputError(f"{len(rows)} vectors for {len(keys)} ids; both must be as many")
        if len(keys) == 0:
            return
        check_unique(keys)
        self.store.put(keys, unit_rows(rows, "vectors", keys), _json_texts(metadata, keys))

    upsert = add

    def remove(self, ids: Sequence[Any] | Array) -> None:
        """Take ids out, all of them or, when one is unknown, none."""
        keys = self._checked_ids(ids)
        if len(keys):
            check_unique(keys)
            self.store.remove(keys)

    def ids(self) -> Array:
        """All ids (N,), in the order in which they were added; a replaced id counts as added anew."""
        return self.store.ids()

    def vectors(self, ids: Sequence[Any] | Array) -> Array:
        """Unit vectors (n, d) float32 of these ids, in the order asked for."""
        return self.store.vectors(self._checked_ids(ids))

    def metadata(self, ids: Sequence[Any] | Array) -> list[dict[str, Any]]:
        """What was given with each of these ids, in the order asked for ({} where nothing was)."""
        return [json.loads(text) if text else {} for text in self.store.metadata(self._checked_ids(ids))]

    def blocks(self, size: int = 65536) -> Iterator[tuple[Array, Array]]:
        """The whole gallery as (ids, unit vectors) in the order of `ids()`, a block at a time."""
        if size < 1:
            raise InputError(f"size must be at least 1, got {size}")
        return self.store.blocks(size)

    def changes_since(self, revision: int) -> tuple[Array, Array]:
        """(ids added or replaced, ids removed) since that revision."""
        if not 0 <= revision <= self.revision:
            raise InputError(f"revision must be from 0 to {self.revision}, got {revision}")
        return self.store.changes_since(revision)

    def search(self, query: Any, k: int = 1024) -> Candidates:
        """The k nearest by cosine with their vectors (all when k is larger than the gallery)."""
        array = np.asarray(query)
        if array.ndim != 1:
            raise InputError(f"query must have one dimension, got shape {array.shape}")
        unit = self._checked_queries(array[None], "query")[0]
        ids, scores, rows = self.store.search(unit, self._checked_k(k))
        return Candidates(ids, scores, rows, unit)

    def search_ids(self, queries: Any, k: int = 1024) -> tuple[Array, Array]:
        """(ids (Q, k), scores (Q, k)) of many queries at once, without vectors."""
        units = self._checked_queries(np.asarray(queries), "queries")
        return self.store.search_ids(units, self._checked_k(k))

    def prepare(self) -> None:
        """Bring the search index up to date now; otherwise closing or the next search does it."""
        self.store.prepare()

    def close(self) -> None:
        """Let go of files and locks; a second call does nothing."""
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def __enter__(self) -> Gallery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _checked_queries(self, queries: Array, what: str) -> Array:
        units = unit_rows(queries, what)
        if units.shape[1] != self.dim:
            raise InputError(f"the {what} has {units.shape[1]} dimensions, the gallery has {self.dim}")
        return units

    def _checked_k(self, k: int) -> int:
        size = len(self)
        if size == 0:
            raise GalleryError(f"the gallery '{self.location}' is empty; cure: add vectors before searching")
        return check_k(k, size)

    def _kind_fits(self, ids: Array) -> bool:
        kind = self.store.kind
        return kind is None or (ids.dtype.kind == "U") == (kind == "str")

    def _checked_ids(self, ids: Any) -> Array:
        keys = as_ids(ids)
        if len(keys) and not self._kind_fits(keys):
            given = "text" if keys.dtype.kind == "U" else "integers"
            kept = "text" if self.store.kind == "str" else "integers"
            raise InputError(
                f"these ids are {given}, those of the gallery '{self.location}' are {kept}; "
                "cure: one kind of id in one gallery"
            )
        if keys.dtype.kind == "U":
            for key in keys.tolist():
                try:
                    key.encode()
                except UnicodeEncodeError:
                    raise InputError(f"the id {key!r} is not valid Unicode; cure: rename it") from None
        return keys


def _store_class(location: str) -> type[StoreLike]:
    """`memory:` is the exact store, `name://...` the store of that name, anything else a path."""
    match = _SCHEME.match(location)
    if location == "memory:":
        name = "exact"
    elif match and match[2]:
        name = match[1]
        engines = [n for n in registry("stores") if n not in ("exact", "embedded")]
        if name not in engines:
            known = ", ".join([*(f"{n}://" for n in engines), "memory:", "a path"])
            raise GalleryError(f"no store answers to '{name}://' in '{location}'; there are: {known}")
    else:
        name = "embedded"
    store: type[StoreLike] = load("stores", name)
    return store


def _json_texts(metadata: Sequence[Mapping[str, Any] | None] | None, keys: Array) -> list[str]:
    """One JSON text an id; empty where there is nothing to keep."""
    if metadata is None:
        return [""] * len(keys)
    if isinstance(metadata, Mapping) or len(metadata) != len(keys):
        raise InputError(f"metadata must be {len(keys)} mappings, one an id, got {len(metadata)}")
    texts = []
    for key, entry in zip(keys, metadata):
        if entry is not None and not isinstance(entry, Mapping):
            raise InputError(f"metadata of id {key!s} must be a mapping, got {type(entry).__name__}")
        try:
            texts.append(json.dumps(dict(entry), allow_nan=False) if entry else "")
        except (TypeError, ValueError) as error:
            raise InputError(f"metadata of id {key!s} cannot be kept as JSON: {error}") from None
    return texts
