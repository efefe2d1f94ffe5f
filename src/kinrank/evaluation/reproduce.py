"""The paper's tables as runs: each cell from the files that are there, beside the published figure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kinrank.errors import KinrankError
from kinrank.evaluation import paper
from kinrank.evaluation.data_folder import DataFolder
from kinrank.evaluation.datasets.base import Dataset
from kinrank.evaluation.paper import Column, Line
from kinrank.evaluation.protocol import KAPPAS
from kinrank.evaluation.run import DEFAULT_K, FirstBlock, Row, evaluate, first_round
from kinrank.registry import registry

# mark -> (method, folder of its model, whether it must have one)
_ROLES = {
    "{csa}": ("csa", "csa", False),
    "{augmented}": ("csa", "csa-augmented", True),
    "{lattqe}": ("lattqe", "lattqe", False),
    "{lattdba}": ("lattdba", "lattqe", False),
    "{gss}": ("gss", "gss", False),
    "{crl}": ("crl", "crl", False),
    "{ssr}": ("ssr", "ssr", False),
}


@dataclass
class Cell:
    """A measured figure beside the published one; None where there is none."""

    measured: float | None = None
    published: float | None = None

    @property
    def difference(self) -> float | None:
        """Measured less published."""
        both = self.measured is not None and self.published is not None
        return round(self.measured - self.published, 2) if both else None  # type: ignore[operator]

    def as_json(self) -> dict[str, float | None]:
        """Plain data."""
        return {"measured": self.measured, "published": self.published, "difference": self.difference}


@dataclass
class Filled:
    """One row of a table with its cells."""

    label: str
    method: str
    k: int
    cells: dict[str, Cell]
    source: str = "paper"
    x: float | None = None  # where it stands on the axis of a curve
    curve: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        cells = {name: cell.as_json() for name, cell in self.cells.items()}
        return {
            "row": self.label,
            "method": self.method,
            "k": self.k,
            "cells": cells,
            "published_in": self.source,
        }


@dataclass
class Reproduction:
    """Everything that came out of a run."""

    folder: DataFolder
    tables: dict[str, list[Filled]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)  # method -> why it could not run

    def as_json(self) -> dict[str, Any]:
        """Plain data, percent and milliseconds."""
        return {
            "tables": {
                name: {"title": paper.TABLES[name].title, "rows": [row.as_json() for row in rows]}
                for name, rows in self.tables.items()
            },
            "missing": [vars(wanted) for wanted in self.folder.missing.values()],
            "failed": self.failed,
            "notes": self.folder.notes,
        }


class Runner:
    """Runs methods on the data sets of a folder, each combination once."""

    def __init__(self, root: Path, step: Callable[[str], Any] = lambda text: None) -> None:
        self.folder = DataFolder(root)
        self.result = Reproduction(self.folder)
        self.step = step
        self._first: dict[int, list[FirstBlock]] = {}
        self._rows: dict[tuple[Any, ...], Row | None] = {}

    def reproduce(self, names: Sequence[str]) -> Reproduction:
        """Fill the tables of these names."""
        for name in names:
            self.result.tables[name] = list(self._table(name))
        return self.result

    def measure(self, spec: str, column: Column, k: int, kind: str = paper.MAIN) -> Row | None:
        """A method on a data set; None, with the reason kept, where it cannot run."""
        data, more, _ = column
        spec = self.folder.with_local(spec, data)
        key = (spec, data, more, k, kind)
        if key not in self._rows:
            dataset = self.folder.dataset(data, more, kind)
            self._rows[key] = self._run(spec, dataset, k) if dataset is not None else None
        return self._rows[key]

    def _run(self, spec: str, dataset: Dataset, k: int) -> Row | None:
        self.step(f"{dataset.name}: {spec}, K = {k}")
        if id(dataset) not in self._first:
            self._first.clear()  # one at a time: with a million distractors it is half a gigabyte
            self._first[id(dataset)] = list(first_round(dataset))
        try:
            return evaluate(dataset, [spec], [k], first=self._first[id(dataset)]).rows[0]
        except KinrankError as error:
            self.result.failed[spec] = str(error).partition("; there are: ")[0]
            return None

    def spec(self, text: str) -> str | None:
        """A line's method with the models of this folder; None when one that has no default is missing."""
        for mark, role in _ROLES.items():
            if mark not in text:
                continue
            method, name, required = role
            folder = self.folder.model(name)
            if folder is None and not _learns_by_itself(method) and name not in registry("models"):
                self.folder.lacks(paper.model_file(name))
            if folder is None and required:
                return None
            text = text.replace(mark, method if folder is None else f"{method}:model='{folder}'")
        return text

    def _table(self, name: str) -> Iterator[Filled]:
        if name == "table1":
            yield from self._lengths()
        elif name == "table2":
            yield from self._anchors()
        elif name == "figures":
            yield from self._sizes()
        else:
            columns = paper.columns(paper.TABLES[name].distractors)
            # Data set by data set, so that the first round of each is computed once.
            for column in columns:
                for line in paper.TABLES[name].lines:
                    spec = self.spec(line.spec)
                    if spec is not None:
                        self.measure(spec, column, DEFAULT_K, line.features)
            for line in paper.TABLES[name].lines:
                yield self._cost(line) if name == "table6" else self._line(line, columns)

    def _line(self, line: Line, columns: Sequence[Column], k: int = DEFAULT_K) -> Filled:
        spec = self.spec(line.spec)
        cells = {}
        for column in columns:
            row = self.measure(spec, column, k, line.features) if spec else None
            cells[paper.heading(column)] = Cell(_mean(row, column[2]), line.published.get(column))
        for column in columns if line.precision else ():
            row = self.measure(spec, column, k, line.features) if spec else None
            for i, kappa in enumerate(KAPPAS):
                cells[f"{paper.heading(column)} mP@{kappa}"] = Cell(
                    _mean_precision(row, column[2], i), line.precision[column][i]
                )
        return Filled(line.label, spec or line.spec, k, cells, line.source)

    def _lengths(self) -> Iterator[Filled]:
        published = next(line for line in paper.COMPARISON if line.label == "CSA")
        for text, label in (("{csa}", "CSA"), ("affinity", "affinity feature")):
            for k in paper.LENGTHS:
                known = published.published if (label, k) == ("CSA", 1024) else {}
                row = self._line(Line(f"{label}, K = {k}", text, known, published.source), paper.columns(), k)
                row.curve, row.x = label, k
                self._with_costs(row)
                yield row

    def _with_costs(self, row: Filled) -> None:
        """Latency and memory beside the accuracy, of the first data set that is there."""
        for column in paper.columns():
            measured = self._rows.get((row.method, column[0], column[1], row.k, paper.MAIN))
            if measured is not None:
                row.cells["ms a query"] = Cell(_ms(measured))
                row.cells["MB"] = Cell(round(measured.memory_mb, 1))
                return

    def _anchors(self) -> Iterator[Filled]:
        for anchors in paper.ANCHORS:
            line = Line(f"affinity feature, L = {anchors}", f"affinity:anchors={anchors}")
            row = self._line(line, paper.columns())
            row.curve, row.x = "affinity feature", anchors
            yield row
        yield from self._models("L", lambda config: config["recipe"]["model"].get("anchors"))

    def _sizes(self) -> Iterator[Filled]:
        yield from self._models("depth", lambda config: config["recipe"]["model"].get("layers", 2))
        yield from self._models("width", lambda config: config["recipe"]["model"].get("width", 768))
        yield from self._models("lambda", lambda config: config["recipe"]["loss"].get("weight_mse"))

    def _models(self, what: str, value: Callable[[dict[str, Any]], Any]) -> Iterator[Filled]:
        """A row for every CSA model in the folder, by one of its sizes."""
        found = self.folder.models("csa")
        if len(found) < 2:
            self.folder.lacks(
                paper.Wanted(
                    f"models/*, that differ in {what}", "trained csa models", "'kinrank train' with recipes"
                )
            )
        for path, config in found.items():
            try:
                x = value(config)
            except (KeyError, TypeError, AttributeError):
                self.folder.note(f"'{path}': config.json tells no {what}; the model is left out")
                continue
            if x is not None:
                line = Line(f"CSA, {what} = {x} ({Path(path).name})", f"csa:model='{path}'")
                row = self._line(line, paper.columns())
                row.curve, row.x = what if what != "L" else "CSA", float(x)
                yield row

    def _cost(self, line: Line) -> Filled:
        """Latency and memory with the distractors where they are there, otherwise without."""
        spec = self.spec(line.spec)
        cells = {}
        for more in (paper.PLAIN, paper.MILLION):
            milliseconds, gigabytes = Cell(), Cell()
            if more:
                milliseconds.published, gigabytes.published = line.milliseconds, line.gigabytes
            for column in paper.columns((more,)):
                row = self.measure(spec, column, DEFAULT_K) if spec else None
                dataset = self.folder.dataset(column[0], more, paper.MAIN)
                if row is not None and dataset is not None:
                    held = sum(part.nbytes for part in dataset.gallery.parts) / 1e9
                    milliseconds.measured = _ms(row)
                    gigabytes.measured = round(held + row.memory_mb * (1 << 20) / 1e9, 3)
                    break
            cells[f"ms{more}"], cells[f"GB{more}"] = milliseconds, gigabytes
        return Filled(line.label, spec or line.spec, DEFAULT_K, cells)


def _learns_by_itself(method: str) -> bool:
    """GSS learns on the gallery that it is fitted to; the others come with a model."""
    return method == "gss"


def _mean(row: Row | None, setting: str) -> float | None:
    if row is None or np.isnan(row.ap[setting]).all():
        return None
    return round(100 * float(np.nanmean(row.ap[setting])), 2)


def _mean_precision(row: Row | None, setting: str, place: int) -> float | None:
    if row is None or np.isnan(row.precision[setting]).all():
        return None
    return round(100 * float(np.nanmean(row.precision[setting][:, place])), 2)


def _ms(row: Row) -> float:
    return round(1000 * float(np.median(row.seconds)), 3)
