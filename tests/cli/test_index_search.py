"""`kinrank index` and `kinrank search` as a user runs them."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kinrank.gallery.gallery import Gallery

SHAPES = 24


def write_network(path: Path) -> Path:
    """Mean colours of a grid of 4 x 4 cells: near enough to what a picture shows."""
    import onnx
    import onnx.helper as make

    graph = make.make_graph(
        [
            make.make_node("AveragePool", ["image"], ["cells"], kernel_shape=[16, 16], strides=[16, 16]),
            make.make_node("Flatten", ["cells"], ["vector"]),
        ],
        "grid",
        [make.make_tensor_value_info("image", onnx.TensorProto.FLOAT, ["n", 3, 64, 64])],
        [make.make_tensor_value_info("vector", onnx.TensorProto.FLOAT, ["n", 48])],
    )
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8), path)
    return path


def run(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "kinrank", *map(str, arguments)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pictures, a network, and a gallery made of both."""
    place = tmp_path_factory.mktemp("index with a space")
    rng = np.random.default_rng(0)
    for number in range(SHAPES):
        base = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        for view in range(3):
            noisy = np.clip(base + rng.normal(0, 12, base.shape), 0, 255).astype(np.uint8)
            path = place / f"photos/ö{number % 2}/{number}-{view}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(noisy).resize((80, 60), Image.Resampling.NEAREST).save(path)
    (place / "photos/broken.jpg").write_bytes(b"no picture")
    write_network(place / "grid.onnx")
    done = run("index", place / "photos", "-g", place / "g.kin", "--backbone", place / "grid.onnx", "--json")
    result = json.loads(done.stdout)
    assert (result["embedded"], result["size"], result["found"]) == (3 * SHAPES, 3 * SHAPES, 3 * SHAPES + 1)
    assert result["failed"] == [
        {"path": str(place / "photos/broken.jpg"), "reason": "it is not a picture of a known format"}
    ]
    assert "preprocessing guessed" in done.stderr and str(place / "grid.json") in done.stderr
    assert f"{place / 'photos/broken.jpg'}: it is not a picture" in done.stderr
    assert "image/s" in done.stderr  # rate and time left
    return place


def test_search_json_is_the_contract(place: Path) -> None:
    query = place / "photos/ö1/7-0.png"
    answer = json.loads(
        run("search", place / "g.kin", query, "--rerank", "aqe:k=3", "--top", 4, "--json").stdout
    )
    assert list(answer) == ["query", "results", "timing_ms"]
    assert answer["query"] == str(query)
    assert sorted(answer["timing_ms"]) == ["embed", "rerank", "search"]
    assert all(ms > 0 for ms in answer["timing_ms"].values())
    assert [set(row) for row in answer["results"]] == [{"id", "path", "score", "rank", "first_rank"}] * 4
    assert [row["rank"] for row in answer["results"]] == [1, 2, 3, 4]
    assert {row["id"] for row in answer["results"][:3]} == {f"ö1/7-{view}.png" for view in range(3)}
    assert answer["results"][0]["path"] == str(place / "photos" / answer["results"][0]["id"])


def test_search_agrees_with_the_library(place: Path) -> None:
    import kinrank

    with Gallery.open(place / "g.kin") as gallery:
        first = gallery.search(gallery.vectors(["ö0/4-1.png"])[0], 20)
        last = kinrank.reranker("aqe:k=5").fit(gallery).relist(first)
    found = run(
        "search", place / "g.kin", "ö0/4-1.png", "--rerank", "aqe:k=5", "-k", 20, "--top", 20, "--json"
    )
    rows = json.loads(found.stdout)["results"]
    assert [row["id"] for row in rows] == last.ids.tolist()
    ranks = {key: rank for rank, key in enumerate(first.ids.tolist(), start=1)}
    assert [row["first_rank"] for row in rows] == [ranks.get(key) for key in last.ids.tolist()]


def test_a_second_search_may_bring_new_pictures(place: Path) -> None:
    import kinrank

    with Gallery.open(place / "g.kin") as gallery:
        method = kinrank.reranker("aqe:k=6").fit(gallery)
        lists = {key: gallery.search(gallery.vectors([key])[0], 6) for key in gallery.ids().tolist()}
        moved = {key: method.relist(first) for key, first in lists.items()}
    key = next(key for key, first in lists.items() if set(moved[key].ids) != set(first.ids))
    ranks = [dict(zip(lists[key].ids.tolist(), range(1, 7))).get(i) for i in moved[key].ids.tolist()]
    arguments = ["search", place / "g.kin", key, "-k", 6, "--rerank"]
    rows = json.loads(run(*arguments, "aqe:k=6", "--json").stdout)["results"]
    assert [row["first_rank"] for row in rows] == ranks and None in ranks
    assert run(*arguments, "aqe:k=6").stdout.splitlines()[2 + ranks.index(None)].split()[2:4] == ["-", "new"]
    rows = json.loads(run(*arguments, "none", "--json").stdout)["results"]
    assert [row["first_rank"] for row in rows] == [1, 2, 3, 4, 5, 6]


def test_search_table_shows_what_moved(place: Path) -> None:
    text = run(
        "search", place / "g.kin", place / "photos/ö0/2-1.png", "--rerank", "aqe:k=5", "--top", 6
    ).stdout
    lines = text.splitlines()
    assert lines[0].split() == ["picture", "rank", "was", "moved", "score"]
    for line in lines[2:8]:
        _, rank, was, moved, _ = line.split()
        steps = int(was) - int(rank)
        assert moved == (f"+{steps}" if steps > 0 else str(steps) if steps else "=")
    assert "embed" in lines[-1] and "rerank" in lines[-1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["search", "{}/g.kin", "nothing.jpg"], "neither a file nor an id"),
        (["search", "{}/g.kin", "{}/photos/broken.jpg"], "cannot be read"),
        (["search", "{}/none.kin", "{}/photos/ö0/0-0.png"], "none.kin"),
        (["search", "{}/g.kin", "{}/photos/ö0/0-0.png", "--rerank", "bqe"], "unknown reranker 'bqe'"),
        (["search", "{}/g.kin", "{}/photos/ö0/0-0.png", "--backbone", "dinov2-small"], "cannot be compared"),
        (["index", "{}/nowhere", "-g", "{}/x.kin"], "does not exist"),
        (["index", "{}/photos", "-g", "{}/g.kin", "--backbone", "dinov2-small"], "cannot be compared"),
        (["index", "{}/photos", "-g", "{}/x.kin", "--backbone", "none.onnx"], "no ONNX file"),
    ],
)
def test_errors_are_one_line(place: Path, arguments: list[str], words: str) -> None:
    method = [] if "--rerank" in arguments or arguments[0] == "index" else ["--rerank", "none"]
    done = subprocess.run(
        [sys.executable, "-m", "kinrank", *(a.format(place) for a in arguments), *method],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode in (1, 2)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("kinrank: ") and words in last
    assert not (place / "x.kin").exists()


def many(folder: Path, count: int = 160) -> Path:
    """Pictures that take a moment each: the same pixels, but each file differs behind their end."""
    folder.mkdir()
    noise = np.random.default_rng(1).integers(0, 256, (700, 900, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(noise).save(out, "PNG", compress_level=1)
    for number in range(count):
        (folder / f"{number:03}.png").write_bytes(out.getvalue() + bytes([number]))
    return folder


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("slow")
    many(place / "photos")
    write_network(place / "grid.onnx")
    return place


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_interrupted_it_goes_on_where_it_stopped(slow: Path, how: signal.Signals) -> None:
    location = slow / f"{how.name}.kin"
    command: list[Any] = [
        "index",
        slow / "photos",
        "-g",
        location,
        "--backbone",
        slow / "grid.onnx",
        "--batch",
        4,
    ]
    started = subprocess.Popen(
        [sys.executable, "-m", "kinrank", *map(str, command)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and started.poll() is None:
        if location.exists():
            with Gallery.open(location) as gallery:
                if len(gallery) >= 12:
                    break
        time.sleep(0.02)
    os.kill(started.pid, how)
    _, errors = started.communicate(timeout=60)
    with Gallery.open(location) as gallery:
        kept = len(gallery)
    assert 12 <= kept < 160 and kept % 4 == 0  # whole batches
    if how == signal.SIGINT:
        assert started.returncode == 130
        assert f"interrupted; {kept} pictures are in the gallery" in errors and "Traceback" not in errors
    result = json.loads(run(*command, "--json").stdout)
    assert (result["unchanged"], result["embedded"], result["size"]) == (kept, 160 - kept, 160)
