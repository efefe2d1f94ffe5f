"""Real files for the tests of this room: pictures and tiny networks, made on the spot."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


def photo(seed: int, width: int = 64, height: int = 48) -> Image.Image:
    """A smooth picture that no other seed gives."""
    small = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture(scope="session")
def make_photo() -> Callable[..., Image.Image]:
    return photo


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder with nine pictures in two levels."""
    folder = tmp_path / "photos"
    for number in range(9):
        path = folder / ("a", "b", "")[number % 3] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        photo(number).save(path)
    return folder


def write_network(
    path: Path,
    kind: str = "vector",
    shape: tuple[int | str, ...] = ("n", 3, 224, 224),
    names: tuple[str, str] = ("pixel_values", "image_embeds"),
    dim: int = 16,
    opset: int = 17,
) -> Path:
    """A network of one convolution with fixed random weights; `kind` is map, tokens or vector."""
    import onnx
    import onnx.helper as make
    from onnx.numpy_helper import from_array

    nhwc = shape[3] == 3
    size = 14
    weight = np.random.default_rng(7).normal(size=(dim, 3, size, size)).astype(np.float32) / size
    nodes, x = [], names[0]
    if nhwc:
        nodes.append(make.make_node("Transpose", [x], ["nchw"], perm=[0, 3, 1, 2]))
        x = "nchw"
    nodes.append(make.make_node("Conv", [x, "weight"], ["conv"], strides=[size, size]))
    nodes.append(make.make_node("Relu", ["conv"], ["map"]))
    constants = [from_array(weight, "weight")]
    if kind == "map":
        nodes[-1].output[0] = names[1]
        out: list[int | str] = [shape[0], dim, "h", "w"]
    elif kind == "tokens":
        constants.append(from_array(np.array([0, dim, -1], np.int64), "flat"))
        nodes.append(make.make_node("Reshape", ["map", "flat"], ["rows"]))
        nodes.append(make.make_node("Transpose", ["rows"], ["places"], perm=[0, 2, 1]))
        nodes.append(make.make_node("ReduceMean", ["places"], ["mean"], axes=[1], keepdims=1))
        nodes.append(make.make_node("Concat", ["mean", "places"], [names[1]], axis=1))
        out = [shape[0], "tokens", dim]
    else:
        nodes.append(make.make_node("GlobalAveragePool", ["map"], ["pooled"]))
        nodes.append(make.make_node("Flatten", ["pooled"], [names[1]]))
        out = [shape[0], dim]
    graph = make.make_graph(
        nodes,
        "tiny",
        [make.make_tensor_value_info(names[0], onnx.TensorProto.FLOAT, list(shape))],
        [make.make_tensor_value_info(names[1], onnx.TensorProto.FLOAT, out)],
        constants,
    )
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


@pytest.fixture(scope="session")
def make_network() -> Callable[..., Path]:
    return write_network


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """A tiny network for whole runs."""
    return write_network(tmp_path / "tiny.onnx", shape=("n", 3, 42, 42))


class FileServer:
    """A web server on the loopback that can cut connections and deny ranges."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.ranges = True
        self.cut_after: list[int] = []  # bytes sent before the connection is cut, one a request
        self.requests: list[str | None] = []  # the Range header of each
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/{name}"

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        body = self.files.get(request.path[1:])
        asked = request.headers.get("Range")
        self.requests.append(asked)
        if body is None:
            request.send_error(404)
            return
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.ranges else 0
        request.send_response(206 if start else 200)
        request.send_header("Content-Length", str(len(body) - start))
        request.end_headers()
        part = body[start:]
        if self.cut_after:
            part = part[: self.cut_after.pop(0)]
        request.wfile.write(part)
        request.wfile.flush()
        request.close_connection = True


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """A file server, and a cache of this test's own."""
    monkeypatch.setenv("KINRANK_CACHE", str(tmp_path / "cache"))
    for proxy in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    running = FileServer()
    yield running
    running.server.shutdown()
    running.server.server_close()
