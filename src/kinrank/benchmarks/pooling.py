"""What input and which pooling make the better vectors of EfficientNet-Lite1, by leave-one-out.

The photographs are a folder with a folder a class, named by KINRANK_PHOTOS; without it nothing is measured.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from kinrank.device import onnx_session
from kinrank.evaluation.protocol import leave_one_out
from kinrank.features.backbones.efficientnet_lite1 import EfficientNetLite1, weights_file
from kinrank.features.backbones.efficientnet_onnx import efficientnet_lite
from kinrank.features.backbones.state_dict import read_state_dict
from kinrank.features.images import read_image, walk
from kinrank.features.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from kinrank.types import Array, unit_rows

POWERS = {"mean": None, "GeM 2": 2.0, "GeM 3": 3.0}


def run() -> list[dict[str, Any]] | dict[str, str]:
    """A row an input: mAP and mP@1 in percent under each pooling; the first row is the shipped input."""
    place = os.environ.get("KINRANK_PHOTOS")
    if not place:
        return {"needs": "photographs: KINRANK_PHOTOS=FOLDER kinrank bench pooling, a folder a class"}
    names = list(walk(place, lambda failure: None))
    labels = np.unique([name.split("/")[0] for name in names], return_inverse=True)[1]
    state = read_state_dict(weights_file())
    networks = {how: efficientnet_lite(state, gem=power).SerializeToString() for how, power in POWERS.items()}
    sessions = {how: onnx_session(network) for how, network in networks.items()}
    rows = []
    for name, prepare in inputs().items():
        images = [prepare(read_image(Path(place) / path, prepare.least)) for path in tqdm(names, desc=name)]
        row: dict[str, Any] = {"input": name}
        for how, session in sessions.items():
            parts = [
                session.run(None, {"image": np.stack(images[i : i + 32])})[0]
                for i in range(0, len(images), 32)
            ]
            result = leave_one_out(_rankings(np.concatenate(parts)), labels)
            row[f"{how}, mAP"] = result["map"]["all"] * 100
            row[f"{how}, mP@1"] = result["mp"]["all"][1] * 100
        rows.append(row)
    return rows


def inputs() -> dict[str, Preprocess]:
    """The shipped preparation and its neighbours."""
    shipped = EfficientNetLite1(device="cpu").preprocess

    def sized(size: int, resize: int | None) -> Preprocess:
        return dataclasses.replace(shipped, size=(size, size), resize=resize)

    return {
        "240 of 272": shipped,
        "240, whole": sized(240, None),
        "240, stretched": dataclasses.replace(shipped, resize=None, fit="stretch"),
        "240 of 272, ImageNet's mean": dataclasses.replace(shipped, mean=IMAGENET_MEAN, std=IMAGENET_STD),
        "224 of 256": sized(224, 256),
        "288 of 326": sized(288, 326),
    }


def _rankings(vectors: Array) -> Array:
    """Row i: all images by their cosine to image i, without i."""
    rows = unit_rows(vectors)
    similarities = rows @ rows.T
    np.fill_diagonal(similarities, -np.inf)
    return np.argsort(-similarities, axis=1, kind="stable")[:, :-1]
