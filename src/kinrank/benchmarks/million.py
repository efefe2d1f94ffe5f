"""A revisited data set with distractors on disk: the memory and time of evaluating it, by another process."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

QUERIES, GALLERY, DIM = 70, 4993, 2048
METHODS = "none,affinity"
LIMIT_GB = 6.0


def run(full: bool = False) -> list[dict[str, Any]]:
    """Peak memory of `kinrank evaluate`, beside the size of the file; `full` takes a million distractors."""
    rows = []
    for count in [20_000, 1_000_000] if full else [20_000]:
        with tempfile.TemporaryDirectory(prefix="kinrank-million-") as name:
            folder = Path(name)
            generate(folder, count)
            rows.append(_measured(folder, count))
    return rows


def generate(folder: Path, distractors: int, dim: int = DIM, gallery: int = GALLERY) -> None:
    """A data set of the size of ROxford5k: ten images around each query, others and distractors at random."""
    from tqdm import tqdm

    rng = np.random.default_rng(0)
    queries = rng.normal(size=(QUERIES, dim)).astype(np.float32)
    images = rng.normal(size=(gallery, dim)).astype(np.float32)
    near = np.arange(10 * QUERIES).reshape(QUERIES, 10)
    images[near.ravel()] += 0.5 * np.repeat(queries, 10, axis=0)
    gnd = [{"bbx": [0, 0, 1, 1], "easy": r[:4], "hard": r[4:8], "junk": r[8:]} for r in near.tolist()]
    names = {"imlist": [f"i{i}" for i in range(gallery)], "qimlist": [f"q{i}" for i in range(QUERIES)]}
    (folder / "gnd_generated.json").write_text(json.dumps(names | {"gnd": gnd}))
    np.savez(folder / "features.npz", queries=queries, gallery=images)
    path = folder / "distractors.npy"
    rows = np.lib.format.open_memmap(path, "w+", np.float16, (distractors, dim))
    table = rng.normal(size=(4096, dim)).astype(np.float16)
    for low in tqdm(range(0, distractors, len(table)), "writing distractors", leave=False):
        # One table, its columns shifted and its rows scaled, is random enough and quick to write.
        block = np.roll(table, low // len(table), axis=1)[: distractors - low]
        rows[low : low + len(block)] = block
    rows.flush()


def _measured(folder: Path, count: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "kinrank", "evaluate", str(folder), "--methods", METHODS, "--json"]
    start = time.perf_counter()
    answer = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    peak = answer["peak_mb"] * (1 << 20) / 1e9
    return {
        "distractors": count,
        "file GB": (folder / "distractors.npy").stat().st_size / 1e9,
        "peak GB": peak,
        "limit GB": LIMIT_GB,
        "ok": peak < LIMIT_GB,
        "seconds": time.perf_counter() - start,
        **{f"{row['method']} mAP M": row["map"]["medium"] for row in answer["rows"]},
    }
