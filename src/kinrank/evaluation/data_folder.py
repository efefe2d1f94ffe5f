"""Where the files of the paper's experiments lie: our layout, the authors', or all in one folder."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinrank.errors import InputError
from kinrank.evaluation import paper
from kinrank.evaluation.datasets.base import Dataset
from kinrank.evaluation.datasets.revisited import assemble, ground_truths, map_array, read_ground_truth
from kinrank.evaluation.feature_files import READERS, read_arrays
from kinrank.types import Array

_LOCAL = {"ransac": ".local", "spatial": ".local", "dsm": ".dsm"}  # as `kinrank index` names the folders
_QUERIES = ("queries", "query", "Q", "qvecs", "q")
_GALLERY = ("gallery", "db", "X", "vecs", "database", "x")


@dataclass
class DataFolder:
    """A folder, what is missing from it, and what was used in place of the paper's features."""

    root: Path
    missing: dict[str, paper.Wanted] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _open: dict[tuple[str, str, str], Dataset | None] = field(default_factory=dict)

    def dataset(self, data: str, more: str, kind: str) -> Dataset | None:
        """A data set with these features, with or without distractors; None, and noted, when not there."""
        key = (data, more, kind)
        if key not in self._open:
            self._open[key] = self._assemble(data, more, paper.FEATURES[kind])
        return self._open[key]

    def model(self, role: str) -> Path | None:
        """The folder of a trained model; None when there is none of this role."""
        folder = self.root / "models" / role
        return folder if (folder / "config.json").is_file() else None

    def with_local(self, spec: str, data: str) -> str:
        """A geometric method with the local features that lie beside the data set."""
        suffix = _LOCAL.get(spec)
        places = [*(self.root / data).glob(f"*{suffix}"), *self.root.glob(f"{data}*{suffix}")]
        found = sorted(place for place in places if place.is_dir()) if suffix else []
        return f"{spec}:features='{found[0]}'" if found else spec

    def models(self, method: str) -> dict[str, dict[str, Any]]:
        """Every model of a method in the folder: path -> config."""
        found = {}
        for path in sorted((self.root / "models").glob("*/config.json")):
            try:
                config = json.loads(path.read_text(encoding="utf-8"))
            except ValueError:
                self.note(f"'{path}' is not JSON; the model is left out")
                continue
            if config.get("method") == method:
                found[str(path.parent)] = config
        return found

    def lacks(self, wanted: paper.Wanted) -> None:
        """Remember a missing file."""
        self.missing[wanted.path] = wanted

    def note(self, text: str) -> None:
        """Remember what a reader of the figures must know."""
        if text not in self.notes:
            self.notes.append(text)

    def _assemble(self, data: str, more: str, kind: paper.Features) -> Dataset | None:
        truth, features = self._truth(data), self._features(data, kind)
        if truth is None:
            self.lacks(paper.truth_file(data))
        if features is None:
            self.lacks(paper.feature_file(data, kind))
        distractors = self._distractors(data, features) if more and features else None
        if more and distractors is None:
            self.lacks(paper.distractor_file(kind))
        if truth is None or features is None or (more and distractors is None):
            return None
        checked = read_ground_truth(truth)
        sizes = len(checked["qimlist"]), len(checked["imlist"])
        queries, gallery = _queries_and_gallery(features, *sizes)
        extra = map_array(distractors) if distractors is not None else None
        made = assemble(data + more, checked, queries, gallery, extra, truth)
        if extra is not None:
            self.note(f"{data}{more}: {len(extra):,} distractors; the paper has {paper.DISTRACTORS:,}")
        return made

    def _truth(self, data: str) -> Path | None:
        for folder in self._folders(data, "annotations"):
            for path in ground_truths(folder):
                if path.stem == f"gnd_{data}":
                    return path
        return None

    def _features(self, data: str, kind: paper.Features) -> Path | None:
        folders = self._folders(data, "test")
        for folder in folders:
            for stem in kind.files:
                for suffix in READERS:
                    if (folder / f"{stem}{suffix}").is_file():
                        return folder / f"{stem}{suffix}"
                if (folder / f"{stem}_queries.npy").is_file():
                    return folder / f"{stem}_queries.npy"
        return self._other_features(folders, kind)

    def _other_features(self, folders: list[Path], kind: paper.Features) -> Path | None:
        """Features of a kind of their own, in place of the main ones when these are missing."""
        if kind.name != paper.MAIN:
            return None
        known = {stem for each in paper.FEATURES.values() for stem in each.files}
        for folder in folders:
            for path in sorted(folder.iterdir()):
                usable = path.suffix in READERS and not path.stem.startswith(("gnd_", "distractors"))
                if usable and path.stem.removesuffix("_queries") not in known and _holds_both(path):
                    self.note(
                        f"features '{path.name}' stand in for {kind.name}: what differs from the "
                        "published figures tells of the features, not of the methods"
                    )
                    return path
        return None

    def _distractors(self, data: str, features: Path) -> Path | None:
        stem = features.stem.removesuffix("_queries")
        places = [folder / stem for folder in (self.root / "r1m", self.root / "test" / "r1m")]
        for place in [*places, features.parent / "distractors"]:
            for suffix in READERS:
                path = place.with_name(place.name + suffix)
                if path.is_file():
                    return path
        return None

    def _folders(self, data: str, group: str) -> list[Path]:
        """Where files of a data set may lie."""
        places = [self.root / data, self.root / group / data, self.root / group]
        if self.root.resolve().name == data or (self.root / f"gnd_{data}.pkl").is_file():
            places.append(self.root)
        return [place for place in places if place.is_dir()]


def _holds_both(path: Path) -> bool:
    if path.stem.endswith("_queries"):
        return True
    if path.stem.endswith("_gallery"):
        return False
    try:
        names = set(read_arrays(path))
    except InputError:
        return False
    return bool(names & set(_QUERIES)) and bool(names & set(_GALLERY))


def _queries_and_gallery(path: Path, queries: int, gallery: int) -> tuple[Array, Array]:
    """Both, a row an image: from one file, or from a pair NAME_queries.npy and NAME_gallery.npy."""
    if path.stem.endswith("_queries"):
        other = path.with_name(path.name.replace("_queries", "_gallery"))
        found = {"queries": read_arrays(path)[""], "gallery": read_arrays(other)[""]}
    else:
        found = read_arrays(path)
    return (
        _oriented(found, _QUERIES, queries, path),
        _oriented(found, _GALLERY, gallery, path),
    )


def _oriented(arrays: dict[str, Array], names: tuple[str, ...], count: int, path: Path) -> Array:
    name = next((name for name in names if name in arrays), None)
    if name is None:
        raise InputError(f"'{path}' has no array named {' or '.join(names)}; it has {', '.join(arrays)}")
    array = arrays[name]
    if array.ndim == 2 and array.shape[0] != count and array.shape[1] == count:
        return array.T  # files of MATLAB hold an image a column
    if array.ndim != 2 or len(array) != count:
        raise InputError(
            f"'{path}': '{name}' has shape {array.shape}, the ground truth speaks of {count} images"
        )
    return array
