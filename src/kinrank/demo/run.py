"""The main job in one go: pictures, vectors, gallery, search, re-ranking, figures; each step timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kinrank.api import DEFAULT
from kinrank.demo.pictures import CLUTTER_FOLDER, write_pictures
from kinrank.errors import KinrankError
from kinrank.evaluation.pictures import gains
from kinrank.evaluation.run import Evaluation, Row, evaluate
from kinrank.spec import reranker
from kinrank.types import Candidates

BACKBONE = "efficientnet-lite1"
COMPARED = ("none", DEFAULT, "affinity", "aqe", "alphaqe:k=5", "kreciprocal")
K = 100  # the first of each answer are re-ranked
Step = Callable[[str, str], Any]  # (what, unit) -> a progress bar with reset(total), update(n), close()


@dataclass
class Shown:
    """One query to look at, and why it was chosen."""

    why: str
    query: int
    before: float  # average precision, percent
    after: float


@dataclass
class Demo:
    """What came out of a run."""

    folder: Path
    evaluation: Evaluation
    shown: list[Shown]
    compared: Row  # the method of the pictures
    seconds: dict[str, float] = field(default_factory=dict)  # of each step
    counts: dict[str, int] = field(default_factory=dict)  # pictures that each step worked on
    search_ms: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def first(self) -> Row:
        """The first round."""
        return self.evaluation.rows[0]

    def name(self, query: int) -> str:
        """`halden-pepper/3`."""
        path = self.evaluation.dataset.query_pictures[query]
        return f"{path.parent.name}/{path.stem}"

    def right(self, query: int, row: Row, count: int = 5) -> list[bool]:
        """Which of the first answers show what was asked for."""
        assert row.first is not None
        positives = self.evaluation.dataset.settings["all"].positives[query]
        return np.isin(row.first[query][:count], positives).tolist()

    def as_json(self) -> dict[str, Any]:
        """`evaluate`'s shape, with the steps and the queries that are shown."""
        steps = {
            name: {"seconds": round(took, 3), "pictures": self.counts.get(name)}
            for name, took in self.seconds.items()
        }
        queries = [
            {"why": s.why, "query": self.name(s.query), "method": self.compared.method,
             "ap_before": round(s.before, 4), "ap_after": round(s.after, 4),
             "right_before": self.right(s.query, self.first),
             "right_after": self.right(s.query, self.compared)}
            for s in self.shown
        ]  # fmt: skip
        return {
            **self.evaluation.as_json(),
            "folder": str(self.folder),
            "steps": steps,
            "search_ms": round(self.search_ms, 4),
            "queries_shown": queries,
            "notes": self.notes,
        }


def run(folder: Path, step: Step, methods: Sequence[str] | None = None, seed: int = 0) -> Demo:
    """Do all of it in `folder`; what is there already is used again."""
    specs, notes = _methods(methods)
    seconds: dict[str, float] = {}
    counts: dict[str, int] = {}
    with _Timed("render", seconds), _bar(step, "rendering", "picture") as bar:
        counts["render"] = write_pictures(folder / "pictures", seed, bar.reset, bar.update)
    counts["embed"], search_ms = _index(folder, step, seconds)
    dataset = _dataset(folder)
    with _Timed("evaluate", seconds), _bar(step, "re-ranking", "list") as bar:
        bar.reset(len(dataset.queries) * len(specs))
        evaluation = evaluate(dataset, specs, (K,), tick=bar.update)
    counts["evaluate"] = len(dataset.queries)
    compared = _best(evaluation)
    notes += harm(evaluation)
    shown = _choose(evaluation.rows[0], compared)
    return Demo(folder, evaluation, shown, compared, seconds, counts, search_ms, notes)


def _methods(methods: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """What to compare, the first round first; without a choice, what can be built here."""
    if methods is not None:
        for spec in methods:
            reranker(spec)  # a wrong one is refused before the work
        return list(dict.fromkeys(["none", *methods])), []
    specs, notes = [], []
    for spec in COMPARED:
        try:
            method = reranker(spec)
            if not method.needs_fit:  # a model is opened when it is first used
                method.rerank(Candidates.from_vectors([1.0, 0.0], [[1.0, 0.1], [0.5, 0.5], [0.1, 1.0]]))
        except KinrankError as error:
            notes.append(f"{spec} is left out: {error}")
        else:
            specs.append(spec)
    return specs, notes


class _Timed:
    """Seconds of a block, into a dict."""

    def __init__(self, name: str, seconds: dict[str, float]) -> None:
        self.name, self.seconds = name, seconds

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds[self.name] = time.perf_counter() - self.start


class _bar:
    """Closes a progress bar."""

    def __init__(self, step: Step, what: str, unit: str) -> None:
        self.bar = step(what, unit)

    def __enter__(self) -> Any:
        return self.bar

    def __exit__(self, *_: object) -> None:
        self.bar.close()


def _index(folder: Path, step: Step, seconds: dict[str, float]) -> tuple[int, float]:
    """Bring the gallery up to the pictures; (pictures embedded now, milliseconds of a search)."""
    from kinrank.features.backbones.base import open_backbone
    from kinrank.features.extract import index_folder
    from kinrank.gallery.gallery import Gallery

    with _Timed("load backbone", seconds):
        backbone = open_backbone(BACKBONE)
    path = folder / "gallery.kin"
    opened = (
        Gallery.open(path)
        if path.exists()
        else Gallery.create(path, backbone.dim, backbone=backbone.identity)
    )
    with opened as gallery:
        with _Timed("embed", seconds), _bar(step, "embedding", "picture") as bar:
            report = index_folder(
                folder / "pictures", gallery, backbone, prune=True, begin=bar.reset, progress=bar.update
            )
        ids = gallery.ids()
        vectors = gallery.vectors(ids)
        labels = [_label(str(key)) for key in ids]
        np.savez(
            folder / "vectors.npz", vectors=vectors, labels=labels, paths=[f"pictures/{key}" for key in ids]
        )
        took = []
        for vector in vectors:
            start = time.perf_counter()
            gallery.search(vector, k=len(gallery))
            took.append(time.perf_counter() - start)
    return report.embedded, 1e3 * float(np.median(took))


def _label(key: str) -> str:
    """The product; a picture of clutter shows nothing else that is searched for."""
    product = key.partition("/")[0]
    return key if product == CLUTTER_FOLDER else product


def _dataset(folder: Path) -> Any:
    from kinrank.evaluation.datasets import open_dataset

    return open_dataset(folder / "vectors.npz")


def _percent(row: Row) -> tuple[float, float]:
    """(mAP, mP@1)."""
    return 100 * float(np.nanmean(row.ap["all"])), 100 * float(np.nanmean(row.precision["all"][:, 0]))


def _best(evaluation: Evaluation) -> Row:
    """The method to show: the default where it was compared, otherwise the one with the best mAP."""
    others = evaluation.rows[1:] or evaluation.rows
    named = [row for row in others if row.method == DEFAULT]
    return named[0] if named else max(others, key=lambda row: _percent(row)[0])


def _choose(first: Row, row: Row) -> list[Shown]:
    """The query that gained most, the one in the middle, the one that lost most."""
    order = gains(row, first, "all")
    picks = (("gained most", 0), ("in the middle", len(order) // 2), ("lost most", len(order) - 1))
    return [
        Shown(
            why,
            order[k][0],
            100 * float(first.ap["all"][order[k][0]]),
            100 * float(row.ap["all"][order[k][0]]),
        )
        for why, k in picks
    ]


def harm(evaluation: Evaluation) -> list[str]:
    """A sentence for each method that lowers the answer."""
    first, said = _percent(evaluation.rows[0]), []
    for row in evaluation.rows[1:]:
        figures = _percent(row)
        worse = [
            f"{name} {before:.1f} -> {after:.1f}"
            for name, before, after in zip(("mAP", "mP@1"), first, figures)
            if after < before - 0.05
        ]
        if worse:
            known = reranker(row.method).reports_harm
            why = f" (it does {known})" if known else ""
            said.append(f"{row.method} hurts here: {', '.join(worse)}{why}")
    return said
