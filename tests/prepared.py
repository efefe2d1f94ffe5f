"""Re-rankers that need more than a spec and a gallery, made ready for the contract tests."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinrank.rerankers.base import Reranker
from kinrank.spec import reranker

# Methods that need more than a spec and a gallery: name -> function(ids, vectors) that makes one, ready.
PREPARED: dict[str, Callable[[Any, Any], Reranker]] = {
    "ransac": lambda ids, vectors: with_local_features("ransac", ids),
    "spatial": lambda ids, vectors: with_local_features("spatial", ids),
    "dsm": lambda ids, vectors: with_local_features("dsm", ids),
    # No weights ship with these: a network with random ones must keep the laws too.
    "lattqe": lambda ids, vectors: with_random_weights("lattqe", "lattqe", np.shape(vectors)[1]),
    "lattdba": lambda ids, vectors: with_random_weights("lattdba", "lattqe", np.shape(vectors)[1]),
    "ssr": lambda ids, vectors: with_random_weights("ssr", "ssr", 0),
}


@cache
def random_model(architecture: str, dims: int) -> Path:
    """A model folder whose weights were never trained."""
    torch = pytest.importorskip("torch", reason="needs the extra 'train'")
    from kinrank.training.config import ARCHITECTURES
    from kinrank.training.export import input_name, write_onnx

    module, _, name = ARCHITECTURES[architecture].partition(":")
    sizes = {"nearest": 20, "hidden": 16}
    if architecture == "lattqe":
        sizes = {"dims": dims, "neighbours": 16, "fewest": 4, "layers": 1, "heads": 4 if dims % 4 == 0 else 1}
    torch.manual_seed(0)
    model = getattr(import_module(module), name)(**sizes).eval()
    folder = Path(tempfile.mkdtemp(prefix="kinrank-random-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_onnx(model, folder / "model.onnx")
    config = {"method": architecture, "input": input_name(model), "dims": dims, "neighbours": 16}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def with_random_weights(name: str, architecture: str, dims: int) -> Reranker:
    """A learned method without weights of its own."""
    k = "k=8," if name != "ssr" else ""
    return reranker(f"{name}:{k}model='{random_model(architecture, dims)}'")


def with_local_features(name: str, ids: Any) -> Reranker:
    """A geometric method whose query is seen again, moved, in every fourth picture."""
    from kinrank.features.local import LocalFeatures
    from kinrank.registry import load

    rng = np.random.default_rng(0)
    width, most = (5, [1, 20, 2]) if name == "dsm" else (4, [250] * 128)

    def random() -> LocalFeatures:
        points = rng.uniform(1, 200, (60, width)).astype(np.float32)
        return LocalFeatures(points, rng.integers(0, most, (60, len(most)), dtype=np.uint8), (400, 400))

    query, features = random(), {}
    for place, key in enumerate(np.asarray(ids).tolist()):
        features[str(key)] = random()
        if place % 4 == 0:
            points = query.points + np.float32([place, -place] + [0] * (width - 2))
            features[str(key)] = LocalFeatures(points, query.descriptors, query.shape)
    if name != "dsm":
        pytest.importorskip("cv2", reason="needs the extra 'local'")
    return load("rerankers", name)(features=features).with_query(query)
