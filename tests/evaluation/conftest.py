"""Small data sets in the layouts of the contract."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def make_revisited(folder: Path, seed: int = 0, as_json: bool = False, dim: int = 16) -> Path:
    """A revisited folder: 5 queries of 5 groups of 12 images (easy, hard, junk), 40 others."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    centres = rng.normal(size=(5, dim))
    spreads = np.repeat([0.4, 0.8, 0.6], 4)
    groups = [centre + spread * rng.normal(size=dim) for centre in centres for spread in spreads]
    gallery = np.concatenate([groups, rng.normal(size=(40, dim))]).astype(np.float32)
    kinds = ("easy", "hard", "junk")
    gnd = [
        {kind: [12 * q + 4 * i + j for j in range(4)] for i, kind in enumerate(kinds)}
        | {"bbx": [1.0, 2.0, 30.0, 40.0]}
        for q in range(5)
    ]
    truth = {
        "imlist": [f"image_{i:03}" for i in range(len(gallery))],
        "qimlist": [f"query_{i}" for i in range(5)],
        "gnd": gnd,
    }
    if as_json:
        (folder / "gnd_mini.json").write_text(json.dumps(truth))
    else:
        (folder / "gnd_mini.pkl").write_bytes(pickle.dumps(truth, 3))
    queries = (centres + 0.4 * rng.normal(size=(5, dim))).astype(np.float32)
    np.savez(folder / "features.npz", queries=queries, gallery=gallery)
    return folder


@pytest.fixture(scope="session")
def revisited_maker() -> Callable[..., Path]:
    return make_revisited


@pytest.fixture
def revisited(tmp_path: Path) -> Path:
    return make_revisited(tmp_path / "mini")


@pytest.fixture
def labelled(tmp_path: Path, clusters: Any) -> Path:
    """Raw vectors of 8 classes of 6, and one image of a class of its own."""
    vectors, labels = clusters(8, 6, 16, 0.6, 3)
    lengths = np.random.default_rng(0).uniform(0.5, 20, (len(vectors), 1))
    vectors = np.concatenate([vectors * lengths, np.ones((1, 16))]).astype(np.float16)
    path = tmp_path / "small.npz"
    np.savez(path, vectors=vectors, labels=np.append(labels, 99))
    return path
