"""CSA on an NVIDIA GPU through torch: latency of a query, queries a second in batches, vectors to scores.

The paper reports 37 ms for K = 1024 on a 2080 Ti. Copying the vectors to the GPU and the scores back counts.

    kinrank bench gpu [--json]
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import numpy as np

from kinrank.errors import MissingExtraError
from kinrank.models.shipped import CSA
from kinrank.types import Array, unit_rows

PUBLISHED_MS = 37.0
SIZES = ((1024, 2048), (1024, 512), (400, 512))  # K, d
BATCHES = (1, 8, 32, 64)


def run() -> dict[str, Any]:
    """A row a model and size; says so where there is no GPU."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError("CSA on a GPU", "train") from None
    if not torch.cuda.is_available():
        return {"said": "torch finds no NVIDIA GPU here"}
    from kinrank.training.encoder import PaperCSA
    from kinrank.training.serve import TorchLists

    device = torch.device("cuda")
    rows = []
    models = {
        "shipped csa": (TorchLists.open(CSA.folder, device), None),
        "published size, L = 512, 768 wide": (TorchLists(PaperCSA(anchors=512), device), 512),
    }
    for name, (runner, columns) in models.items():
        for k, d in SIZES:
            rows.append({"model": name, "K": k, "d": d, **measured(runner, columns, k, d)})
    return {
        "GPU": torch.cuda.get_device_name(),
        "published ms, K = 1024 (2080 Ti)": PUBLISHED_MS,
        "rows": rows,
    }


def measured(runner: Any, columns: int | None, k: int, d: int) -> dict[str, float]:
    """Milliseconds of one query, and the most queries a second over some batch sizes."""
    nodes = unit_rows(np.random.default_rng(0).normal(size=(max(BATCHES) * (k + 1), d)))
    lists = nodes.reshape(max(BATCHES), k + 1, d)
    taken = {size: _milliseconds(runner, lists[:size], columns) for size in BATCHES}
    speed = {size: size * 1000 / ms for size, ms in taken.items()}
    best = max(speed, key=lambda size: speed[size])
    return {"one query ms": taken[1], "queries/s": speed[best], "in batches of": best}


def _milliseconds(runner: Any, lists: Array, columns: int | None, rounds: int = 20) -> float:
    times = []
    for round_ in range(rounds + 3):
        start = time.perf_counter()
        runner.scores(lists, True, columns)
        if round_ >= 3:
            times.append((time.perf_counter() - start) * 1000)
    return median(times)
