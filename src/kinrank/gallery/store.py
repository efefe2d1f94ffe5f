"""The seam between `Gallery` and its stores: what a store promises, and no more.

A store gets checked input only (unit float32 rows, unique ids of one kind, 1 <= k <= N); `Gallery` does
the checking for all of them. An id that is not there raises `unknown_ids`. A store keeps its rows in the
order of adding; a replaced id counts as added anew. Equal scores come in that order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from kinrank.errors import InputError
from kinrank.types import Array

Kind = str  # "int" or "str": what all ids of one gallery are


def unknown_ids(missing: Sequence[Any], location: str) -> InputError:
    """The error for ids that a store does not hold."""
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return InputError(f"the gallery '{location}' holds no id {missing[0]!r}{more}")


class StoreLike(Protocol):
    """Vectors with ids and metadata, kept somewhere."""

    dim: int
    dtype: str  # "float32" or "float16": how the store keeps its vectors

    @classmethod
    def create(cls, location: str, dim: int, dtype: str, backbone: str | None) -> StoreLike:
        """A new, empty store at a place where none is yet."""
        ...

    @classmethod
    def open(cls, location: str) -> StoreLike:
        """The store at that place."""
        ...

    @property
    def backbone(self) -> str | None:
        """What made the vectors, when known."""
        ...

    @property
    def kind(self) -> Kind | None:
        """What the ids are; None until the first are added."""
        ...

    @property
    def revision(self) -> int:
        """Grows with every committed change, whoever made it."""
        ...

    def __len__(self) -> int: ...

    def remember_backbone(self, name: str) -> None:
        """Keep the name of what makes the vectors."""
        ...

    def put(self, ids: Array, vectors: Array, metadata: Sequence[str]) -> None:
        """Add or replace, all or nothing; `metadata` is JSON text, one an id."""
        ...

    def remove(self, ids: Array) -> None:
        """Take these ids out, all or nothing."""
        ...

    def __contains__(self, key: Any) -> bool: ...

    def ids(self) -> Array:
        """All ids in the order of adding."""
        ...

    def vectors(self, ids: Array) -> Array:
        """Unit vectors (n, d) float32 in the order asked for."""
        ...

    def metadata(self, ids: Array) -> list[str]:
        """JSON text in the order asked for."""
        ...

    def blocks(self, size: int) -> Iterator[tuple[Array, Array]]:
        """(ids, vectors), a block at a time, in the order of adding, of one revision."""
        ...

    def changes_since(self, revision: int) -> tuple[Array, Array]:
        """(ids added or replaced, ids removed) since then."""
        ...

    def search(self, query: Array, k: int) -> tuple[Array, Array, Array]:
        """(ids (k,), scores (k,), vectors (k, d)), best first."""
        ...

    def search_ids(self, queries: Array, k: int) -> tuple[Array, Array]:
        """(ids (Q, k), scores (Q, k)), best first."""
        ...

    def prepare(self) -> None:
        """Do now what the next search would have to do first."""
        ...

    def close(self) -> None:
        """Let go of files, locks and connections; may be called twice."""
        ...
