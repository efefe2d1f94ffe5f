"""Labelled vectors: an .npz with `vectors` and `labels`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kinrank.errors import InputError
from kinrank.evaluation.array_gallery import ArrayGallery
from kinrank.evaluation.datasets.base import Dataset, Judgement, read_npz, same_width
from kinrank.types import Array, unit_rows


class Labelled:
    """Vectors with a label each; leave-one-out, or with queries of their own."""

    layout = ".npz with vectors (N, d), labels (N,), optionally queries (Q, d), query_labels (Q,), paths (N,)"

    @staticmethod
    def recognises(path: Path) -> bool:
        """Any .npz file."""
        return path.is_file() and path.suffix == ".npz"

    @staticmethod
    def load(path: Path) -> Dataset:
        """Read and check it."""
        data = read_npz(path, ("vectors", "labels"), ("queries", "query_labels", "paths"))
        if ("queries" in data) != ("query_labels" in data):
            raise InputError(f"'{path}' has one of queries and query_labels; both or none must be there")
        vectors, labels = data["vectors"], _labels(data["labels"], len(data["vectors"]), "labels", path)
        gallery = ArrayGallery(vectors, names=[f"'{path}': vectors"])
        names = [str(name) for name in data.get("paths", ())]
        pictures = [path.parent / name for name in names]
        if pictures and len(pictures) != len(vectors):
            raise InputError(f"'{path}': {len(pictures)} paths for {len(vectors)} vectors")
        if "queries" not in data:
            return _leave_one_out(path, gallery, labels, names)
        queries = data["queries"]
        same_width(queries, vectors, path)
        wanted = _labels(data["query_labels"], len(queries), "query_labels", path)
        same = _rows_of(labels, wanted)
        judgement = Judgement(same, [np.zeros(0, np.int64)] * len(same))
        queries = unit_rows(queries, f"'{path}': queries")
        return Dataset(path.stem, queries, gallery, {"all": judgement}, None, pictures, names=names)


def _leave_one_out(path: Path, gallery: ArrayGallery, labels: Array, names: list[str]) -> Dataset:
    _, number, counts = np.unique(labels, return_inverse=True, return_counts=True)
    own = np.flatnonzero(counts[number] > 1)
    if len(own) == 0:
        raise InputError(f"'{path}': every label occurs once, so there is nothing to find")
    same = [rows[rows != i] for rows, i in zip(_rows_of(labels, labels[own]), own)]
    judgement = Judgement(same, [np.zeros(0, np.int64)] * len(same))
    pictures = [path.parent / name for name in names]
    asked = [pictures[i] for i in own] if pictures else []
    return Dataset(path.stem, gallery.vectors(own), gallery, {"all": judgement}, own, pictures, asked, names)


def _rows_of(labels: Array, wanted: Array) -> list[Array]:
    """Rows (n,) that carry each of the wanted labels; one shared array a label."""
    order = np.argsort(labels, kind="stable")
    low = np.searchsorted(labels, wanted, "left", sorter=order)
    high = np.searchsorted(labels, wanted, "right", sorter=order)
    return [order[a:b] for a, b in zip(low, high)]


def _labels(labels: Array, count: int, what: str, path: Path) -> Array:
    if labels.shape != (count,):
        raise InputError(f"'{path}': {what} has shape {labels.shape} for {count} vectors; one each is needed")
    if labels.dtype.kind not in "iuUSb":
        raise InputError(f"'{path}': {what} must be whole numbers or strings, got {labels.dtype}")
    return labels
