"""Fixtures for every room: the shared feature files, a gallery in memory, and lists with structure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinrank.types import Candidates, as_ids, stable_order, unit_rows

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real feature files beside the checkout; tests that need it are marked `shared`."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs the shared feature files in ../shared/data, which this clone does not have")
    return folder


class MemoryGallery:
    """The plainest thing that keeps `GalleryLike`: exact search over arrays, every change one revision."""

    def __init__(self, vectors: Any, ids: Any = None) -> None:
        self._vectors = unit_rows(vectors)
        self._ids = as_ids(np.arange(len(self._vectors)) if ids is None else ids)
        self._log: list[tuple[int, np.ndarray, np.ndarray]] = []
        self.revision = 1

    @property
    def dim(self) -> int:
        return self._vectors.shape[1]

    def __len__(self) -> int:
        return len(self._ids)

    def ids(self) -> np.ndarray:
        return self._ids

    def _rows(self, ids: Sequence[Any] | np.ndarray) -> np.ndarray:
        row = {value: i for i, value in enumerate(self._ids.tolist())}
        return np.array([row[value] for value in np.asarray(ids).tolist()], dtype=np.int64)

    def vectors(self, ids: Sequence[Any] | np.ndarray) -> np.ndarray:
        return self._vectors[self._rows(ids)]

    def blocks(self, size: int = 65536) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, len(self), size):
            yield self._ids[start : start + size], self._vectors[start : start + size]

    def add(self, ids: Any, vectors: Any) -> None:
        """Add or replace."""
        ids, vectors = as_ids(ids), unit_rows(vectors)
        fresh = ~np.isin(self._ids, ids)
        self._ids = np.concatenate([self._ids[fresh], ids])
        self._vectors = np.concatenate([self._vectors[fresh], vectors])
        self._note(ids, ids[:0])

    def remove(self, ids: Any) -> None:
        gone = np.isin(self._ids, as_ids(ids))
        removed = self._ids[gone]
        self._ids, self._vectors = self._ids[~gone], self._vectors[~gone]
        self._note(removed[:0], removed)

    def _note(self, added: np.ndarray, removed: np.ndarray) -> None:
        self.revision += 1
        self._log.append((self.revision, added, removed))

    def changes_since(self, revision: int) -> tuple[np.ndarray, np.ndarray]:
        added: dict[Any, None] = {}
        removed: dict[Any, None] = {}
        for when, new, old in self._log:
            if when > revision:
                for value in new.tolist():
                    added[value] = None
                    removed.pop(value, None)
                for value in old.tolist():
                    removed[value] = None
                    added.pop(value, None)
        kind = self._ids.dtype
        return np.array(list(added), dtype=kind), np.array(list(removed), dtype=kind)

    def search(self, query: Any, k: int) -> Candidates:
        return Candidates.from_vectors(query, self._vectors, self._ids, k)

    def search_ids(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        scores = unit_rows(queries, "queries") @ self._vectors.T
        order = np.stack([stable_order(row)[:k] for row in scores])
        return self._ids[order], np.take_along_axis(scores, order, axis=1)


@pytest.fixture(scope="session")
def memory_gallery() -> type[MemoryGallery]:
    """`memory_gallery(vectors, ids=None)` makes a gallery in memory."""
    return MemoryGallery


def clustered(
    classes: int = 12, size: int = 8, dim: int = 24, noise: float = 0.9, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """(vectors (classes * size, dim) of unit length, labels): classes around random centres, shuffled."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(classes), size))
    centres = rng.normal(size=(classes, dim))
    return unit_rows(centres[labels] + noise * rng.normal(size=(len(labels), dim))), labels


@pytest.fixture(scope="session")
def clusters() -> Any:
    """`clusters(classes, size, dim, noise, seed)` makes (vectors, labels) with structure."""
    return clustered


def _conv_network(path: Path, width: int = 16, kernel: int = 5, stride: int = 1) -> Path:
    import onnx.helper as make
    from onnx import numpy_helper, save

    weights = np.random.default_rng(0).normal(size=(width, 3, kernel, kernel)).astype(np.float32)
    nodes = [
        make.make_node("Conv", ["image", "w"], ["c"], strides=[stride, stride]),
        make.make_node("Relu", ["c"], ["r"]),
        make.make_node("GlobalAveragePool", ["r"], ["g"]),
        make.make_node("Flatten", ["g"], ["features"]),
    ]
    taken = make.make_tensor_value_info("image", 1, ["n", 3, "h", "w"])
    given = make.make_tensor_value_info("features", 1, ["n", width])
    graph = make.make_graph(nodes, "net", [taken], [given], [numpy_helper.from_array(weights, "w")])
    save(make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="session")
def conv_network() -> Any:
    """`conv_network(path, width, kernel, stride)` writes random filters, a ReLU and a mean."""
    pytest.importorskip("onnx", reason="needs the extra 'offline'")
    return _conv_network
