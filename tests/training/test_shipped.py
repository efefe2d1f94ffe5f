"""The models in the package: what is served is what the weights say, and all of it is small."""

from __future__ import annotations

import json

import numpy as np
import pytest

import kinrank
from kinrank.registry import load, registry
from kinrank.training.export import check_agreement, load_model

NAMES = list(registry("models"))


@pytest.mark.parametrize("name", NAMES)
def test_the_graph_is_the_weights(name):
    folder = load("models", name).folder
    model, _ = load_model(folder)
    assert check_agreement(model, folder / "model.onnx", (2, 33, 200)) < 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_its_card_is_its_own(name):
    folder = load("models", name).folder
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    card = (folder / "card.md").read_text(encoding="utf-8")
    assert f"{config['parameters']:,} parameters" in card
    assert all(row["name"] in card for row in config["data"])


@pytest.mark.parametrize("name", NAMES)
def test_its_method_takes_it_without_a_word(name, clusters):
    config = json.loads((load("models", name).folder / "config.json").read_text(encoding="utf-8"))
    vectors, labels = clusters(classes=20, size=12, dim=24, noise=0.8, seed=5)
    method = kinrank.reranker(f"{config['method']}:model={name}")
    gains = []
    for query in range(0, 240, 8):
        others = np.arange(240) != query
        aps = []
        for which in ("none", method):
            ids = kinrank.rerank(vectors[query], vectors[others], np.flatnonzero(others), method=which).ids
            hits = labels[ids] == labels[query]
            aps.append((np.cumsum(hits)[hits] / (np.flatnonzero(hits) + 1)).mean())
        gains.append(aps[1] - aps[0])
    assert np.mean(gains) > 0.01  # on noisy classes of vectors that no training has seen


def test_all_of_them_take_less_than_12_megabytes():
    files = [path for name in NAMES for path in load("models", name).folder.iterdir()]
    assert sum(path.stat().st_size for path in files) < 12e6
