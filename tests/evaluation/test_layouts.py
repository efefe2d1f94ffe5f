"""Data sets of pictures in miniatures of their official layouts, joined with the vectors of a gallery."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinrank.cli import main
from kinrank.errors import InputError
from kinrank.evaluation.datasets import REGISTRY, open_dataset
from kinrank.evaluation.run import evaluate
from kinrank.registry import load


@dataclass
class Mini:
    """What was written, and what must be read: query picture -> its right pictures and its junk."""

    kind: str
    pictures: list[str]
    right: dict[str, set[str]]
    junk: dict[str, set[str]]


def alone(names: list[str], labels: list[str]) -> dict[str, set[str]]:
    """Leave-one-out: all others of the same label, for labels that occur twice."""
    others = {
        name: {o for o, other in zip(names, labels) if other == label and o != name}
        for name, label in zip(names, labels)
    }
    return {name: found for name, found in others.items() if found}


def folders(root: Path) -> Mini:
    names = ["cat/1.jpg", "cat/deep/2.PNG", "dog/1.jpeg", "dog/2.jpg", "dog/3.jpg", "lone/1.jpg"]
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")
    (root / "notes.txt").write_text("no picture")
    return Mini("folders", names, alone(names, [name.split("/")[0] for name in names]), {})


def cub(root: Path) -> Mini:
    classes = [100, 101, 101, 102, 102, 102]
    paths = [f"{c}.Bird/{i}.jpg" for i, c in enumerate(classes)]
    (root / "images.txt").write_text("".join(f"{i} {p}\n" for i, p in enumerate(paths, 1)))
    (root / "image_class_labels.txt").write_text("".join(f"{i} {c}\n" for i, c in enumerate(classes, 1)))
    names = [f"images/{path}" for path in paths[1:]]
    return Mini("cub", names, alone(names, [str(c) for c in classes[1:]]), {})


def sop(root: Path) -> Mini:
    names = ["bicycle_final/1_0.JPG", "bicycle_final/1_1.JPG", "chair_final/2_0.JPG", "chair_final/2_1.JPG"]
    lines = [f"{i} {11320 + i // 2} 1 {name}" for i, name in enumerate(names)]
    (root / "Ebay_test.txt").write_text("\n".join(["image_id class_id super_class_id path", *lines]))
    return Mini("sop", names, alone(names, ["a", "a", "b", "b"]), {})


def inshop(root: Path) -> Mini:
    rows = [
        ("img/a.jpg", "id_1", "train"),
        ("img/b.jpg", "id_2", "query"),
        ("img/c.jpg", "id_2", "gallery"),
        ("img/d.jpg", "id_2", "gallery"),
        ("img/e.jpg", "id_3", "gallery"),
    ]
    (root / "Eval").mkdir(parents=True)
    text = "\n".join(["4", "image_name item_id evaluation_status", *("  ".join(row) for row in rows)])
    (root / "Eval" / "list_eval_partition.txt").write_text(text)
    right = {"img/b.jpg": {"img/c.jpg", "img/d.jpg"}}
    return Mini("inshop", [row[0] for row in rows[1:]], right, {})


def market(root: Path) -> Mini:
    test = ["0001_c1s1_000002_01.jpg", "0001_c2s1_000003_01.jpg", "0001_c3s1_000004_01.jpg"]
    test += ["0002_c1s1_000005_01.jpg", "0000_c1s1_000006_01.jpg", "-1_c1s1_000007_01.jpg"]
    for folder, names in (("query", ["0001_c1s1_000001_00.jpg"]), ("bounding_box_test", test)):
        (root / folder).mkdir(parents=True)
        for name in names:
            (root / folder / name).write_bytes(b"")
    query = "query/0001_c1s1_000001_00.jpg"
    places = [f"bounding_box_test/{name}" for name in test]
    return Mini("market", [query, *places[:5]], {query: set(places[1:3])}, {query: {places[0]}})


def gldv2(root: Path) -> Mini:
    def place(folder: str, name: str) -> str:
        return f"{folder}/{name[0]}/{name[1]}/{name[2]}/{name}.jpg"

    (root / "index.csv").write_text("id\nabc1\nabd2\nxyz3\n")
    solution = "id,images,Usage\nqqq1,abc1 xyz3,Public\nqqq2,abd2,Private\nqqq3,None,Ignored\n"
    (root / "retrieval_solution_v2.1.csv").write_text(solution)
    index = [place("index", name) for name in ("abc1", "abd2", "xyz3")]
    first, second = place("test", "qqq1"), place("test", "qqq2")
    return Mini("gldv2", [*index, first, second], {first: {index[0], index[2]}, second: {index[1]}}, {})


def sfm120k(root: Path) -> Mini:
    cids = ["aabbcc", "ddeeff", "xaabbcc", "lonely"]
    parts = {"train": {"cids": ["zzzzzz"], "cluster": [9]}, "val": {"cids": cids, "cluster": [1, 2, 1, 3]}}
    (root / "retrieval-SfM-120k.pkl").write_bytes(pickle.dumps(parts, 2))
    names = [f"ims/{cid[-2:]}/{cid[-4:-2]}/{cid[-6:-4]}/{cid}" for cid in cids]
    return Mini("sfm120k", names, alone(names, ["1", "2", "1", "3"]), {})


WRITERS: dict[str, Callable[[Path], Mini]] = {
    write.__name__: write for write in (folders, cub, sop, inshop, market, gldv2, sfm120k)
}


def test_every_layout_has_a_miniature() -> None:
    assert {kind for kind in REGISTRY if hasattr(load("datasets", kind), "listing")} == set(WRITERS)


@pytest.fixture(params=WRITERS)
def mini(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Mini]:
    (tmp_path / "set").mkdir()
    return tmp_path / "set", WRITERS[request.param](tmp_path / "set")


def test_layouts_are_read(mini: tuple[Path, Mini], memory_gallery: Any) -> None:
    root, expected = mini
    rng = np.random.default_rng(0)
    names = [*expected.pictures, "other/0.jpg"]  # the gallery may hold more
    rows = rng.normal(size=(len(names), 6))
    gallery = memory_gallery(rows, np.array(names))
    dataset = open_dataset(root, gallery)
    setting = dataset.settings["all"]
    relative = [path.relative_to(root).as_posix() for path in dataset.query_pictures]
    for i, query in enumerate(relative):
        np.testing.assert_allclose(dataset.queries[i], gallery.vectors([query])[0], atol=1e-6)
        assert {dataset.names[row] for row in setting.positives[i]} == expected.right[query]
        assert {dataset.names[row] for row in setting.junk[i]} == expected.junk.get(query, set())
    assert set(relative) == set(expected.right)
    for row, name in enumerate(dataset.names):
        np.testing.assert_allclose(dataset.gallery.vectors([row]), gallery.vectors([name]), atol=1e-6)
    if dataset.own is not None:
        assert [dataset.names[row] for row in dataset.own] == relative
    answer = evaluate(dataset, ["none"]).as_json()["rows"][0]["map"]["all"]
    assert 0 < answer <= 100


def test_pictures_without_vectors(mini: tuple[Path, Mini], memory_gallery: Any) -> None:
    root, expected = mini
    with pytest.raises(InputError, match=r"holds pictures .*cure: kinrank index .* -g GALLERY, then"):
        open_dataset(root)
    few = memory_gallery(np.eye(3), np.array(["x", "y", "z"]))
    with pytest.raises(InputError, match=rf"of {len(expected.pictures)} pictures .* not in the gallery"):
        open_dataset(root, few)


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from kinrank.gallery.gallery import Gallery

    root = tmp_path / "pets"
    expected = folders(root)
    gallery = Gallery.create(tmp_path / "pets.kin", dim=4)
    gallery.add(np.array(expected.pictures), np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32))
    gallery.close()
    main(["evaluate", str(root), "-g", str(tmp_path / "pets.kin"), "--methods", "none", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert (answer["dataset"], answer["queries"], answer["gallery"]) == ("pets", 5, 5)
    with pytest.raises(SystemExit):
        main(["evaluate", str(root), "--methods", "none"])
    assert "cure: kinrank index" in capsys.readouterr().err


class Attack:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.trace}",)


@pytest.mark.parametrize(
    ("name", "content", "more", "words"),
    [
        ("Ebay_test.txt", b"header\n1 2\n", {}, r"line 2: 4 columns are needed, there are 2"),
        ("Ebay_test.txt", b"header\n", {}, "lists no pictures"),
        ("Ebay_test.txt", b"\xff\xfe\x00", {}, "is not text"),
        ("images.txt", b"1 a.jpg\n", {"image_class_labels.txt": b"2 101\n"}, "does not name a class"),
        ("list_eval_partition.txt", b"1\nx y z\nimg/a.jpg id query\n", {}, "lists no gallery"),
        ("retrieval_solution_v2.1.csv", b"id,images\n", {}, "lists the pictures of the index"),
        (
            "retrieval_solution_v2.1.csv",
            b"a,b\n",
            {"index.csv": b"id\nabc\n"},
            "needs the columns id, images",
        ),
        (
            "retrieval_solution_v2.1.csv",
            b"id,images\n",
            {"index.csv": b"id\nab\n"},
            "fewer than three letters",
        ),
        ("retrieval-SfM-120k.pkl", pickle.dumps({"val": {}}), {}, "has no part 'val'"),
        ("retrieval-SfM-120k.pkl", pickle.dumps({"val": {"cids": [1], "cluster": [1]}}), {}, "must be names"),
    ],
)
def test_damaged_lists(
    name: str, content: bytes, more: dict[str, bytes], words: str, tmp_path: Path, memory_gallery: Any
) -> None:
    for file, text in {name: content, **more}.items():
        (tmp_path / file).write_bytes(text)
    with pytest.raises(InputError, match=words):
        open_dataset(tmp_path, memory_gallery(np.eye(2), np.array(["img/a.jpg", "b"])))


def test_a_hostile_pickle_does_nothing(tmp_path: Path, memory_gallery: Any) -> None:
    (tmp_path / "retrieval-SfM-120k.pkl").write_bytes(pickle.dumps({"val": Attack(tmp_path / "trace")}))
    with pytest.raises(InputError, match="refused"):
        open_dataset(tmp_path, memory_gallery(np.eye(2)))
    assert not (tmp_path / "trace").exists()
