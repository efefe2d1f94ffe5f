"""A small labelled set on disk and a recipe that trains on it within seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

TINY: dict[str, Any] = {
    "method": "csa",
    "architecture": "paper",
    "batch": 16,
    "micro_batch": 8,
    "steps": 30,
    "validate_every": 10,
    "checkpoint_every": 10,
    "precision": "fp32",
    "model": {"anchors": 16, "width": 24, "layers": 2, "heads": 2, "norm": "pre", "dropout": 0.1},
    "data": {"k": [8, 24], "shuffle_rows": True, "held_out": 0.25},
    "loss": {"name": "csa", "temperature": 0.5, "reconstruction": "normalised"},
    "optimiser": {"name": "adamw", "lr": 3e-3, "warmup": 3, "average": 0.9},
}


def toml_of(raw: dict[str, Any]) -> str:
    """A recipe as the text of its file."""
    import json

    lines = [f"{key} = {json.dumps(value)}" for key, value in raw.items() if not isinstance(value, dict)]
    for name, part in raw.items():
        if isinstance(part, dict):
            lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in part.items())]
    return "\n".join(lines) + "\n"


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    """Tiny products are slower on many threads, and much slower where others use the cores too."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tiny() -> dict[str, Any]:
    """The raw recipe; tests change it and build it with `from_dict` or write it with `toml_of`."""
    import copy

    return copy.deepcopy(TINY)


@pytest.fixture
def write_recipe(tmp_path: Path) -> Any:
    """`write_recipe(raw, name)` -> the path of a recipe file."""

    def write(raw: dict[str, Any], name: str = "tiny") -> Path:
        path = tmp_path / f"{name}.toml"
        path.write_text(toml_of(raw), encoding="utf-8")
        return path

    return write


@pytest.fixture
def labelled(tmp_path: Path, clusters: Any) -> Path:
    """An .npz of 160 vectors in 20 classes."""
    vectors, labels = clusters(classes=20, size=8, dim=16, noise=0.8, seed=1)
    path = tmp_path / "things.npz"
    np.savez(path, vectors=3.0 * vectors, labels=labels)  # not of unit length, as a user's are not
    return path
