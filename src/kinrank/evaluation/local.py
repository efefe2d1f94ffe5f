"""Methods that look at pictures, on a data set: the query's picture, and local features by row."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from kinrank.evaluation.datasets.base import Dataset
from kinrank.rerankers.base import Reranker


class ByRow(Mapping[str, Any]):
    """Local features by the row of an image, where the store knows them by the picture's path."""

    def __init__(self, store: Mapping[str, Any], names: list[str]) -> None:
        self.store, self.names = store, names

    def __getitem__(self, row: str) -> Any:
        return self.store[self.names[int(row)]]

    def __iter__(self) -> Iterator[str]:
        return (str(row) for row, name in enumerate(self.names) if name in self.store)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, row: object) -> bool:
        return isinstance(row, str) and int(row) < len(self.names) and self.names[int(row)] in self.store


def looks_at_pictures(method: Reranker) -> bool:
    """Whether the method, or a stage of its chain, wants the query's picture."""
    stages = getattr(method, "stages", [method])
    return any(type(stage).with_query is not Reranker.with_query for stage in stages)


def for_query(method: Reranker, dataset: Dataset, query: int) -> Reranker:
    """The method for one query of the data set, cropped to its box; the same where no picture is there."""
    if query >= len(dataset.query_pictures) or not dataset.query_pictures[query].is_file():
        return method
    path = dataset.query_pictures[query]
    picture: Any = path
    if dataset.boxes is not None:
        from PIL import Image

        with Image.open(path) as opened:
            picture = opened.convert("RGB").crop(dataset.boxes[query])
    return by_row(method.with_query(picture), dataset.names)


def by_row(method: Reranker, names: list[str]) -> Reranker:
    """The method with its local features keyed as the candidates are: by row."""
    if hasattr(method, "stages"):
        made = copy.copy(method)
        made.stages = [by_row(stage, names) for stage in method.stages]
        return made
    store = getattr(method, "store", None)
    if not isinstance(store, Mapping):
        return method
    method = copy.copy(method)
    method.store = ByRow(store, names)  # type: ignore[attr-defined]
    return method
