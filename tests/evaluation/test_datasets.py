"""Data sets are found out, read safely and refused with a reason."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinrank.errors import InputError
from kinrank.evaluation.datasets import REGISTRY, open_dataset
from kinrank.registry import describe


def test_every_kind_is_listed_with_a_summary() -> None:
    rows = describe("datasets")
    assert [row["name"] for row in rows] == list(REGISTRY)
    assert all(len(row["summary"]) > 20 for row in rows)


def test_labelled_leave_one_out(labelled: Path) -> None:
    data = open_dataset(labelled)
    assert (data.name, len(data.queries), len(data.gallery), data.size) == ("small", 48, 49, 48)
    assert data.own is not None
    labels = np.load(labelled)["labels"]
    for own, positives in zip(data.own, data.settings["all"].positives):
        assert set(positives) == set(np.flatnonzero(labels == labels[own])) - {own}


def test_labelled_with_queries_of_its_own(labelled: Path, tmp_path: Path) -> None:
    arrays = dict(np.load(labelled))
    path = tmp_path / "asked.npz"
    np.savez(path, queries=arrays["vectors"][:3], query_labels=[99, 12345, arrays["labels"][2]], **arrays)
    data = open_dataset(path)
    assert data.own is None and data.size == 49
    right = data.settings["all"].positives
    assert right[0].tolist() == [48] and right[1].tolist() == []
    assert set(right[2]) == set(np.flatnonzero(arrays["labels"] == arrays["labels"][2]))


@pytest.mark.parametrize("as_json", [False, True])
def test_revisited(tmp_path: Path, revisited_maker: Callable[..., Path], as_json: bool) -> None:
    data = open_dataset(revisited_maker(tmp_path / "x", as_json=as_json))
    assert (data.name, len(data.queries), data.size) == ("mini", 5, 100)
    assert data.settings["easy"].positives[1].tolist() == [12, 13, 14, 15]
    assert data.settings["easy"].junk[1].tolist() == list(range(16, 24))
    assert data.settings["medium"].positives[0].tolist() == list(range(8))
    assert data.settings["hard"].junk[0].tolist() == [0, 1, 2, 3, 8, 9, 10, 11]
    assert data.boxes is not None and data.boxes[0] == (1, 2, 30, 40)


@pytest.mark.parametrize("kind", ["distractors.npy", "distractors.npz", "compressed.npz"])
def test_distractors_are_mapped(revisited: Path, kind: str) -> None:
    far = np.random.default_rng(5).normal(size=(40_000, 16)).astype(np.float16)
    if kind == "distractors.npy":
        np.save(revisited / kind, far)
    elif kind == "distractors.npz":
        np.savez(revisited / kind, far)
    else:
        np.savez_compressed(revisited / "distractors.npz", anything=far)
    data = open_dataset(revisited)
    assert data.size == 40_100
    assert isinstance(data.gallery.parts[1], np.memmap) == (kind != "compressed.npz")
    unit = far[7].astype(np.float32) / np.linalg.norm(far[7].astype(np.float32))
    np.testing.assert_allclose(data.gallery.vectors([107])[0], unit, atol=1e-6)


def rewrite(path: Path, **change: Any) -> None:
    arrays = {**dict(np.load(path)), **change}
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})


def with_nan(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array[3, 2] = np.nan
    return array


BAD_LABELLED: dict[str, tuple[Callable[[dict[str, np.ndarray]], dict[str, Any]], str]] = {
    "labels too few": (lambda a: {"labels": a["labels"][:-1]}, r"labels has shape \(48,\) for 49 vectors"),
    "no labels": (lambda a: {"labels": None}, "has no array 'labels'.*it has: vectors"),
    "labels in two dimensions": (lambda a: {"labels": a["labels"][None]}, "one each is needed"),
    "labels as floats": (lambda a: {"labels": a["labels"] / 2}, "whole numbers or strings"),
    "labels as objects": (lambda a: {"labels": a["labels"].astype(object)}, "cannot be read"),
    "nan": (lambda a: {"vectors": with_nan(a["vectors"])}, "vectors row 3 holds NaN"),
    "a zero row": (lambda a: {"vectors": a["vectors"] * (np.arange(49) != 4)[:, None]}, "row 4 is a zero"),
    "vectors of one dimension": (lambda a: {"vectors": a["vectors"][:, 0]}, "must have shape"),
    "all labels once": (lambda a: {"labels": np.arange(49)}, "nothing to find"),
    "queries alone": (lambda a: {"queries": a["vectors"]}, "both or none"),
    "queries of another width": (
        lambda a: {"queries": a["vectors"][:, :4], "query_labels": a["labels"]},
        "with the same d",
    ),
    "paths too few": (lambda a: {"paths": np.array(["a.jpg"])}, "1 paths for 49 vectors"),
}


@pytest.mark.parametrize("name", BAD_LABELLED)
def test_bad_labelled_files(name: str, labelled: Path) -> None:
    change, words = BAD_LABELLED[name]
    rewrite(labelled, **change(dict(np.load(labelled))))
    with pytest.raises(InputError, match=words):
        open_dataset(labelled)


def _truth(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / "gnd_mini.pkl"
    truth = pickle.loads(path.read_bytes())
    changed = edit(truth)
    path.write_bytes(pickle.dumps(truth if changed is None else changed))


BAD_REVISITED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "queries too few": (
        lambda f: rewrite(f / "features.npz", queries=np.ones((4, 16))),
        "4 queries for 5 names in qimlist",
    ),
    "gallery too long": (
        lambda f: rewrite(f / "features.npz", gallery=np.ones((101, 16))),
        "101 gallery for 100 names in imlist",
    ),
    "no gallery": (lambda f: rewrite(f / "features.npz", gallery=None), "has no array 'gallery'"),
    "widths differ": (lambda f: rewrite(f / "features.npz", queries=np.ones((5, 8))), "with the same d"),
    "nan": (lambda f: rewrite(f / "features.npz", gallery=np.full((100, 16), np.nan)), "row 0 holds NaN"),
    "no features": (lambda f: (f / "features.npz").unlink(), "no features; cure"),
    "two features": (lambda f: np.savez(f / "more.npz", queries=[1]), "several features"),
    "two ground truths": (lambda f: (f / "gnd_b.json").write_text("{}"), "2 ground truths"),
    "distractors of another width": (
        lambda f: np.save(f / "distractors.npy", np.ones((9, 4))),
        "with the same d",
    ),
    "distractors cut off": (
        lambda f: (f / "distractors.npy").write_bytes(b"\x93NUMPY\x01\x00"),
        "cannot be read",
    ),
    "rows from one": (
        lambda f: _truth(f, lambda t: t["gnd"][0].update(easy=[100])),
        "speaks of row 100, imlist has 100; cure: rows count from 0",
    ),
    "rows as text": (lambda f: _truth(f, lambda t: t["gnd"][0].update(easy=["a"])), "must be rows of imlist"),
    "no gnd": (lambda f: _truth(f, lambda t: t.pop("gnd") and None), "needs imlist, qimlist and gnd"),
    "a list": (lambda f: _truth(f, lambda t: [1]), "is no ground truth"),
    "gnd of numbers": (lambda f: _truth(f, lambda t: t.update(gnd=[1] * 5)), "no dictionary"),
    "no json": (lambda f: (f / "gnd_mini.pkl").rename(f / "gnd_mini.json"), "is not JSON"),
}


@pytest.mark.parametrize("name", BAD_REVISITED)
def test_bad_revisited_folders(name: str, revisited: Path) -> None:
    spoil, words = BAD_REVISITED[name]
    spoil(revisited)
    with pytest.raises(InputError, match=words):
        open_dataset(revisited)


def test_a_hostile_ground_truth_does_nothing(revisited: Path, tmp_path: Path) -> None:
    class Attack:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path / 'trace'}",)

    _truth(revisited, lambda truth: truth.update(gnd=[Attack()]))
    with pytest.raises(InputError, match="refused"):
        open_dataset(revisited)
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: None, "there is no data set at"),
        (lambda p: p.mkdir(), "is no data set that kinrank knows; there are labelled: .*revisited: a folder"),
        (lambda p: p.write_text("hello"), "is no data set that kinrank knows"),
    ],
)
def test_what_is_no_data_set(make: Callable[[Path], Any], words: str, tmp_path: Path) -> None:
    make(tmp_path / "x")
    with pytest.raises(InputError, match=words):
        open_dataset(tmp_path / "x")


def test_an_npz_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_text("hello")
    with pytest.raises(InputError, match=r"cannot be read as .npz"):
        open_dataset(tmp_path / "x.npz")


@pytest.mark.shared
def test_the_real_ground_truths(shared_data: Path) -> None:
    from kinrank.evaluation.datasets.revisited import read_ground_truth

    for name, images in (("roxford5k", 4993), ("rparis6k", 6322)):
        truth = read_ground_truth(shared_data / name / f"gnd_{name}.pkl")
        assert (len(truth["imlist"]), len(truth["qimlist"])) == (images, 70)
        json.dumps(truth["imlist"])
