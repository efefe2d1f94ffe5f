"""What geometric verification does to real lists: mAP, mP@1 and what it costs, beside the first round.

The photographs are a folder with a folder a class, named by KINRANK_PHOTOS; without it nothing is measured.
Classes are taken together by what stands before the first underscore of their names (Packages_, Fruit_),
since flat printed things and fruit are different stories. Pictures ask for each other, leave-one-out.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from kinrank.evaluation.protocol import judge
from kinrank.features.backbones.base import open_backbone
from kinrank.features.images import read_image, walk
from kinrank.features.local import LocalStore, extract_local
from kinrank.rerankers.dsm import DSM
from kinrank.rerankers.local import LocalReranker
from kinrank.rerankers.ransac import Ransac
from kinrank.rerankers.spatial import SpatialCoding
from kinrank.types import Array, Candidates, unit_rows

METHODS: dict[str, Callable[..., LocalReranker]] = {"ransac": Ransac, "spatial": SpatialCoding}
STRIDE = 4  # every fourth picture asks, unless all is asked for
BACKBONE = "efficientnet-lite1"


def run(full: bool = False) -> dict[str, Any]:
    """A row a method for each group of classes; `full` lets every picture ask, and adds dsm."""
    place = os.environ.get("KINRANK_PHOTOS")
    if not place:
        return {"needs": "photographs: KINRANK_PHOTOS=FOLDER kinrank bench geometry, a folder a class"}
    return measure(Path(place), full)


def measure(place: Path, full: bool = False, backbone: str = BACKBONE) -> dict[str, Any]:
    """The tables for a folder of photographs."""
    names = list(walk(place, lambda failure: None))
    groups = np.array([name.split("/")[0].split("_")[0] for name in names])
    tables: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for group in dict.fromkeys(groups.tolist()):
            mine = [name for name, of in zip(names, groups) if of == group]
            tables[group] = _group(place, mine, Path(folder) / group, 1 if full else STRIDE, full, backbone)
    return tables


def _group(
    place: Path, names: list[str], folder: Path, stride: int, full: bool, backbone: str
) -> list[dict[str, Any]]:
    labels = np.unique([name.split("/")[0] for name in names], return_inverse=True)[1]
    vectors = _embedded(place, names, backbone)
    files = [(row, place / name) for row, name in enumerate(names)]
    extract_local(files, folder / "sift", progress=True)
    methods = {name: make(LocalStore.open(folder / "sift")) for name, make in METHODS.items()}
    if full:
        extract_local(files, folder / "dsm", kind="dsm", progress=True, model=backbone, size=480, count=1024)
        methods["dsm"] = DSM(LocalStore.open(folder / "dsm"))
    asking = np.arange(0, len(names), stride)
    first = [_candidates(vectors, int(row)) for row in asking]
    rankings = {"none": np.array([c.ids for c in first])}
    seconds = {"none": 0.0}
    for name, method in methods.items():
        start, ranked = time.process_time(), []
        for row, candidates in zip(tqdm(asking, desc=name, unit="query"), first):
            assert method.store is not None
            ranked.append(method.with_query(method.store[str(row)]).rerank(candidates).ids)
        rankings[name], seconds[name] = np.array(ranked), time.process_time() - start
    top = {name: labels[ids[:, 0]] == labels[asking] for name, ids in rankings.items()}
    return [
        {
            "method": name,
            "queries": len(asking),
            **_figures(ids, labels, asking),
            "first right now": int((top[name] & ~top["none"]).sum()),
            "first wrong now": int((~top[name] & top["none"]).sum()),
            "CPU ms": 1e3 * seconds[name] / len(asking),  # of all threads: what others do does not count
        }
        for name, ids in rankings.items()
    ]


def _embedded(place: Path, names: list[str], backbone: str) -> Array:
    network = open_backbone(backbone)
    parts = [
        network.embed_images(
            [read_image(place / name, network.preprocess.least) for name in names[i : i + 16]]
        )
        for i in tqdm(range(0, len(names), 16), desc="embedding")
    ]
    return unit_rows(np.concatenate(parts))


def _candidates(vectors: Array, row: int) -> Candidates:
    others = np.delete(np.arange(len(vectors)), row)
    return Candidates.from_vectors(vectors[row], vectors[others], others)


def _figures(rankings: Array, labels: Array, asking: Array) -> dict[str, float]:
    """mAP and mP@1, 5 in percent; a picture that is alone in its class asks nobody."""
    judged = []
    for row, ids in zip(asking, rankings):
        same = np.flatnonzero(labels == labels[row])
        judged.append(judge(ids, same[same != row], ks=(1, 5)))
    precision = np.nanmean([at for _, at in judged], axis=0)
    found = np.nanmean([ap for ap, _ in judged])
    return {"mAP": 100 * float(found), "mP@1": 100 * float(precision[0]), "mP@5": 100 * float(precision[1])}
