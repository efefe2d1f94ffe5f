"""`kinrank index` with --dataset, --local, --dsm, and `search --rerank` by geometry, as a user runs them."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("cv2", reason="needs the extra 'local'")
onnx = pytest.importorskip("onnx", reason="needs the extra 'offline'")


def run(*arguments, code=0):
    done = subprocess.run(
        [sys.executable, "-m", "kinrank", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def textured(seed):
    rng = np.random.default_rng(seed)
    image = np.full((240, 320), 128, np.uint8)
    for _ in range(120):
        y, x, h, w = rng.integers((0, 0, 5, 5), (240, 320, 40, 40))
        image[y : y + h, x : x + w] = rng.integers(0, 255)
    return Image.fromarray(image).convert("RGB")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Six objects, each seen twice, the second time turned and shrunk; and a network of one convolution."""
    place = tmp_path_factory.mktemp("geo metry")
    for i in range(6):
        folder = place / "photos" / f"class{i}"
        folder.mkdir(parents=True)
        textured(i).save(folder / "front.png")
        textured(i).rotate(8).resize((256, 192)).save(folder / "turned.png")
    make, value = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    weights = np.random.default_rng(0).normal(size=(24, 3, 7, 7)).astype(np.float32)
    nodes = [make("Conv", ["image", "w"], ["c"], strides=[6, 6]), make("Relu", ["c"], ["r"])]
    nodes += [make("GlobalAveragePool", ["r"], ["g"]), make("Flatten", ["g"], ["features"])]
    graph = onnx.helper.make_graph(
        nodes,
        "net",
        [value("image", 1, ["n", 3, "h", "w"])],
        [value("features", 1, ["n", 24])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, place / "net.onnx")
    run(
        "index", place / "photos", "-g", place / "g.kin", "--backbone", place / "net.onnx", "--local", "--dsm"
    )
    return place


def test_local_features_reach_the_search(place):
    gallery = place / "g.kin"
    for method in ("ransac", "spatial", "dsm", "none+ransac"):
        query = place / "photos/class3/turned.png"
        done = run("search", gallery, query, "--rerank", method, "--top", 2, "--json")
        hits = [hit["id"] for hit in json.loads(done.stdout)["results"]]
        assert hits[0] == "class3/turned.png"
        if method != "dsm":
            assert hits[1] == "class3/front.png", method


def test_a_gallery_without_them_says_the_cure(place):
    run("index", place / "photos", "-g", place / "bare.kin", "--backbone", place / "net.onnx")
    for method, flag in (("ransac", "--local"), ("spatial", "--local"), ("dsm", "--dsm")):
        query = place / "photos/class3/front.png"
        done = run("search", place / "bare.kin", query, "--rerank", method, code=2)
        assert f"kinrank index FOLDER -g GALLERY {flag}" in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


def test_a_data_set_becomes_features_and_figures(place):
    done = run(
        "index", "--dataset", place / "photos", "--backbone", place / "net.onnx", "--size", 320, "--json"
    )
    assert json.loads(done.stdout)["features"] == str(place / "photos" / "net.npz")
    rows = json.loads(run("evaluate", place / "photos", "--methods", "none", "--json").stdout)["rows"]
    assert len(rows) == 1 and 0 < rows[0]["map"]["all"] < 60
    method = f"ransac:features='{place / 'g.kin.local'}'"
    rows = json.loads(run("evaluate", place / "photos", "--methods", f"none,{method}", "--json").stdout)[
        "rows"
    ]
    assert rows[1]["map"]["all"] == 100, "the same objects are found by their local features"


def test_what_is_wrong_is_said(place):
    assert "-g GALLERY" in run("index", place / "photos", code=2).stderr
    (place / "empty").mkdir()
    said = run("index", "--dataset", place / "empty", "--backbone", place / "net.onnx", code=2).stderr
    assert "gnd_<name>.pkl" in said and "class/picture.jpg" in said
