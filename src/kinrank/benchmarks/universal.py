"""The universal recipe on embeddings that it has not seen: a data set and a backbone left out.

Files are named DATASET_BACKBONE.npz, in the folder KINRANK_DATA (`../shared/data` otherwise). For each of
them a model is trained on the files that share neither its images nor its backbone, and judged on it, raw
and centred, leave-one-out, beside every method that needs nothing but the list. Nothing is chosen by the
score on what is left out: a training keeps its best weights by held-out classes and worlds of its own.

    kinrank bench universal --full     trains what is missing, then judges
    kinrank bench universal            judges the models that are there

Models lie in KINRANK_RUNS (`runs/universal` otherwise); an interrupted training goes on. KINRANK_RECIPE
(`universal`; `universal-cpu` where there is no GPU) and KINRANK_STEPS change the training.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from kinrank.registry import registry
from kinrank.rerankers.base import Reranker, rerank_head
from kinrank.spec import reranker
from kinrank.types import Array, Candidates, stable_order, unit_rows

LENGTHS = (100, 400, 1000)
QUERIES = 100
SEEDS = (0, 1, 2)
PLAIN = tuple(
    "affinity aqe aqewd alphaqe dqe kreciprocal gnn cdm visualrank dfs superglobal gcr rdpac".split()  # noqa: SIM905
)


@dataclass(frozen=True)
class Fold:
    """A file that is left out, and those that share neither its images nor its backbone."""

    held: Path
    taught: tuple[Path, ...]


def run(full: bool = False) -> dict[str, Any]:
    """A row a method and length: mean and worst gain over the rows of real embeddings."""
    files = sorted(Path(os.environ.get("KINRANK_DATA", "../shared/data")).glob("*_*.npz"))
    folds = [fold for fold in (fold_of(held, files) for held in files) if fold.taught]
    if not folds:
        return {"said": "no DATASET_BACKBONE.npz of two data sets and two backbones; cure: set KINRANK_DATA"}
    if full:
        train_all(folds)
    results: dict[str, list[dict[str, Any]]] = {"mean over rows": [], "rows at K = 400": []}
    judged = {name: judge_plain(name, folds) for name in PLAIN if name in registry("rerankers")}
    by_seed = [judge_models(folds, seed) for seed in SEEDS]
    trained = [gains for gains in by_seed if gains is not None]
    for name, gains in judged.items():
        results["mean over rows"] += summary(name, [gains])
    if trained:
        results["mean over rows"] += summary(f"csa, unseen, {len(trained)} seeds", trained)
        results["rows at K = 400"] = per_row(trained)
    else:
        results["rows at K = 400"] = [{"row": "no model trained yet; cure: kinrank bench universal --full"}]
    return results


def fold_of(held: Path, files: Sequence[Path]) -> Fold:
    """What may be learnt from when this file is judged."""
    images, backbone = held.stem.rsplit("_", 1)
    others = [f for f in files if f.stem.rsplit("_", 1)[0] != images and f.stem.rsplit("_", 1)[1] != backbone]
    return Fold(held, tuple(others))


def model_of(fold: Fold, seed: int) -> Path:
    """Where the model that has not seen this file lies."""
    return Path(os.environ.get("KINRANK_RUNS", "runs/universal")) / f"without-{fold.held.stem}-{seed}"


def train_all(folds: Sequence[Fold]) -> None:
    """Train every model that is not there yet; one that was interrupted goes on."""
    from kinrank.training.config import recipe
    from kinrank.training.train import train

    steps = os.environ.get("KINRANK_STEPS")
    for fold in folds:
        for seed in SEEDS:
            folder = model_of(fold, seed)
            if (folder / "config.json").is_file():
                continue
            chosen = recipe(os.environ.get("KINRANK_RECIPE", "universal"))
            chosen = chosen.with_changes(seed=seed, steps=int(steps) if steps else None)
            resume = (folder / "training" / "checkpoint.pt").is_file()
            train(
                chosen, fold.taught, folder, resume=resume, command=f"kinrank bench universal, {folder.name}"
            )


def judge_plain(name: str, folds: Sequence[Fold]) -> dict[tuple[str, int], Array]:
    """Gains of a method that is not trained, by row and length."""
    method = reranker(name)
    gains: dict[tuple[str, int], Array] = {}
    for fold in tqdm(folds, desc=name, leave=False):
        gains |= judge_file(fold.held, method)
    return gains


def judge_models(folds: Sequence[Fold], seed: int) -> dict[tuple[str, int], Array] | None:
    """Gains of the trained models of a seed; None when one of them is missing."""
    gains: dict[tuple[str, int], Array] = {}
    for fold in tqdm(folds, desc=f"csa, seed {seed}", leave=False):
        folder = model_of(fold, seed)
        if not (folder / "config.json").is_file():
            return None
        gains |= judge_file(fold.held, reranker(f"csa:model='{folder}'"))
    return gains


def judge_file(path: Path, method: Reranker) -> dict[tuple[str, int], Array]:
    """(mAP, mP@1) gained in points, for each (row, K): the file as it is and centred."""
    with np.load(path, allow_pickle=False) as file:
        vectors, labels = file["vectors"].astype(np.float32), file["labels"]
    gains = {}
    for kind, moved in (("raw", vectors), ("centred", vectors - vectors.mean(axis=0))):
        for k, gain in judge_rows(unit_rows(moved), labels, method).items():
            gains[f"{path.stem}, {kind}", k] = gain
    return gains


def judge_rows(vectors: Array, labels: Array, method: Reranker) -> dict[int, Array]:
    """Gains over the first round, leave-one-out, the same queries for every method."""
    numbers = np.unique(labels, return_inverse=True)[1]
    asked = np.flatnonzero(np.bincount(numbers)[numbers] > 1)
    asked = np.random.default_rng(0).permutation(asked)[:QUERIES]
    gains: dict[int, list[Array]] = {k: [] for k in LENGTHS}
    for query in asked:
        scores = vectors @ vectors[query]
        order = stable_order(scores)
        order = order[order != query]
        first = quality(labels[order] == labels[query])
        for k in LENGTHS:
            head = order[:k]
            candidates = Candidates(head, scores[head], vectors[head], vectors[query])
            ranked = np.concatenate([rerank_head(method, candidates).ids, order[k:]])
            gains[k].append(quality(labels[ranked] == labels[query]) - first)
    return {k: np.mean(values, axis=0) for k, values in gains.items()}


def quality(relevant: Array) -> Array:
    """Average precision and precision of the first, in percent."""
    hits = np.cumsum(relevant)
    ap = (hits / np.arange(1, len(hits) + 1))[relevant].mean()
    return np.array([100 * ap, 100.0 * relevant[0]])


def summary(name: str, seeds: Sequence[dict[tuple[str, int], Array]]) -> list[dict[str, Any]]:
    """A row a length: means over the rows of embeddings, the spread over seeds, the worst row."""
    rows = []
    for k in LENGTHS:
        table = np.array([[gain for (_, length), gain in gains.items() if length == k] for gains in seeds])
        means = table.mean(axis=1)  # (seeds, 2)
        rows.append(
            {
                "method": name,
                "K": k,
                "mAP by": means[:, 0].mean(),
                "+-": means[:, 0].std() if len(seeds) > 1 else None,
                "worst row": table.mean(axis=0)[:, 0].min(),
                "mP@1 by": means[:, 1].mean(),
                "worst row mP@1": table.mean(axis=0)[:, 1].min(),
            }
        )
    return rows


def per_row(seeds: Sequence[dict[tuple[str, int], Array]]) -> list[dict[str, Any]]:
    """Each row of embeddings, mean over the seeds."""
    rows = []
    for row, k in seeds[0]:
        if k == 400:
            gains = np.array([gains[row, k] for gains in seeds])
            rows.append(
                {"row": row, "mAP by": gains[:, 0].mean(), "+-": gains[:, 0].std(),
                 "mP@1 by": gains[:, 1].mean()}
            )  # fmt: skip
    return rows
