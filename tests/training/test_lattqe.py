"""LAttQE and LAttDBA: the network against NumPy, the graph against the network, and what training gives."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import kinrank
from kinrank.errors import InputError, SpecError
from kinrank.training import losses
from kinrank.training.checkpoint import read_log
from kinrank.training.config import from_dict
from kinrank.training.export import check_agreement, write_onnx
from kinrank.training.lattqe import LAttQE, sines
from kinrank.training.train import train
from kinrank.types import Candidates

DIMS = 12


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    made = LAttQE(DIMS, neighbours=8, fewest=4, layers=2, heads=3)
    for p in made.encoder.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return made.eval()


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    home = tmp_path_factory.mktemp("lattqe")
    write_onnx(model, home / "model.onnx")
    config = {"method": "lattqe", "dims": DIMS, "neighbours": 8}
    (home / "config.json").write_text(json.dumps(config))
    return home


def a_list(k: int, seed: int = 0) -> Candidates:
    random = np.random.default_rng(seed)
    return Candidates.from_vectors(random.normal(size=DIMS), random.normal(size=(k, DIMS)))


def numpy_expanded(model: LAttQE, candidates: Candidates, n: int) -> np.ndarray:
    tokens = np.concatenate([candidates.query[None], candidates.vectors[:n]])
    with torch.no_grad():
        y = model.encoder(torch.tensor(tokens)[None] + model.positions[: n + 1])[0].numpy()
    weights = y[1:] @ y[0] / (np.linalg.norm(y[1:], axis=1) * np.linalg.norm(y[0]))
    moved = candidates.query + weights @ candidates.vectors[:n]
    return moved / np.linalg.norm(moved)


@pytest.mark.parametrize("k, n", [(20, 8), (20, 3), (5, 8)])
def test_the_expanded_query_is_the_papers(model, folder, k, n):
    candidates = a_list(k)
    method = kinrank.reranker(f"lattqe:model={folder},k={n}")
    expected = numpy_expanded(model, candidates, min(n, k))
    np.testing.assert_allclose(method.expand(candidates), expected, atol=1e-5)
    np.testing.assert_allclose(method.score(candidates), candidates.vectors @ expected, atol=1e-5)


def test_training_scores_by_the_same_expansion(model):
    candidates = a_list(20)
    vectors = torch.tensor(np.concatenate([candidates.query[None], candidates.vectors]))[None]
    with torch.no_grad():
        scores = model(vectors, torch.ones(1, 21, dtype=torch.bool))[0].numpy()
    np.testing.assert_allclose(scores, candidates.vectors @ numpy_expanded(model, candidates, 8), atol=1e-5)


def test_torch_and_onnx_agree(model, folder):
    assert check_agreement(model, folder / "model.onnx") < 1e-4


def test_it_searches_the_gallery_again(folder, memory_gallery):
    random = np.random.default_rng(3)
    gallery = memory_gallery(random.normal(size=(100, DIMS)))
    method = kinrank.reranker(f"lattqe:model={folder},k=8").fit(gallery)
    first = gallery.search(random.normal(size=DIMS), 10)
    again = method.relist(first)
    moved = method.expand(first)
    np.testing.assert_array_equal(again.ids, gallery.search(moved, 10).ids)


def test_lattdba_moves_items_by_tempered_weights(model, folder):
    candidates = a_list(15)
    method = kinrank.reranker(f"lattdba:model={folder},k=4,temperature=0.5")
    found = method.relist(candidates)
    vectors = candidates.vectors
    table = vectors @ vectors.T
    np.fill_diagonal(table, -np.inf)
    for j in range(15):
        near = np.argsort(-table[j], kind="stable")[:4]
        tokens = torch.tensor(np.concatenate([vectors[j : j + 1], vectors[near]]))[None]
        with torch.no_grad():
            weights = model.serve(tokens)[0].numpy()
        shares = np.exp(weights / 0.5) / np.exp(weights / 0.5).sum()
        moved = vectors[j] + shares @ vectors[near]
        place = int(np.flatnonzero(found.ids == candidates.ids[j])[0])
        np.testing.assert_allclose(found.vectors[place], moved / np.linalg.norm(moved), atol=1e-5)


def test_lattdba_on_a_gallery_is_lattdba_on_each_item(folder, memory_gallery):
    random = np.random.default_rng(4)
    vectors = random.normal(size=(40, DIMS))
    gallery = memory_gallery(vectors)
    method = kinrank.reranker(f"lattdba:model={folder},k=4").fit(gallery)
    whole = gallery.search(random.normal(size=DIMS), 40)
    alone = kinrank.reranker(f"lattdba:model={folder},k=4").relist(whole)
    fitted = method.relist(whole)
    np.testing.assert_array_equal(fitted.ids, alone.ids)
    np.testing.assert_allclose(fitted.scores, alone.scores, atol=1e-5)


def test_wrong_dimensions_and_too_many_neighbours_are_named(folder):
    wide = Candidates.from_vectors(np.ones(5), np.eye(5) + 0.1)
    with pytest.raises(InputError, match=r"vectors of 12 dimensions, these have 5; cure.*kinrank train"):
        kinrank.reranker(f"lattqe:model={folder}").rerank(wide)
    with pytest.raises(SpecError, match="at most 8 neighbours, got k=9"):
        kinrank.reranker(f"lattqe:model={folder},k=9").rerank(a_list(20))
    with pytest.raises(InputError, match=r"lattdba has no shipped model.*--recipe lattqe.*lattdba:model="):
        kinrank.reranker("lattdba").rerank(a_list(5))


def test_the_contrastive_term_is_its_equation():
    random = np.random.default_rng(5)
    q, f = random.normal(size=(2, 6)), random.normal(size=(2, 7, 6))
    q /= np.linalg.norm(q, axis=1, keepdims=True)
    f /= np.linalg.norm(f, axis=2, keepdims=True)
    relevant = random.random((2, 7)) < 0.5
    relevant[:, 0], relevant[:, 1] = True, False
    expected = []
    for i in range(2):
        distance = np.linalg.norm(q[i] - f[i], axis=1)
        far = np.maximum(0, 1.3 - distance[~relevant[i]]) ** 2
        expected.append((distance[relevant[i]] ** 2).mean() + far.mean())
    args = torch.tensor(q, requires_grad=True), torch.tensor(f), torch.tensor(relevant)
    found = losses.margin_contrastive(*args, torch.ones(2, 7, dtype=torch.bool), 1.3)
    assert found.item() == pytest.approx(np.mean(expected), rel=1e-5)
    # Double precision inside would be needed for gradcheck; differences of the float32 value are close.
    found.backward()
    step = 1e-2
    for i, j in [(0, 0), (1, 4)]:
        values = []
        for sign in (1, -1):
            other = q.copy()
            other[i, j] += sign * step
            values.append(
                losses.margin_contrastive(
                    torch.tensor(other), *args[1:], torch.ones(2, 7, dtype=torch.bool), 1.3
                ).item()
            )
        assert args[0].grad[i, j].item() == pytest.approx((values[0] - values[1]) / (2 * step), abs=1e-3)


def test_positions_are_the_sines_of_the_transformer():
    found = sines(5, 6).numpy()
    for place in range(5):
        for i in range(3):
            angle = place / 10000 ** (2 * i / 6)
            np.testing.assert_allclose(
                found[place, 2 * i : 2 * i + 2], [np.sin(angle), np.cos(angle)], atol=1e-6
            )


def test_what_it_learns_holds_on_classes_never_shown(clusters, tmp_path):
    """Classes of 8 among 24 neighbours: the weights of strangers must fall, those of the class must not."""
    vectors, labels = clusters(classes=400, size=8, dim=32, noise=1.1, seed=2)
    path = tmp_path / "set.npz"
    np.savez(path, vectors=vectors, labels=labels)
    raw = {
        "method": "lattqe", "architecture": "lattqe", "batch": 32, "micro_batch": 32, "steps": 200,
        "validate_every": 200, "checkpoint_every": 200, "data": {"k": [64, 64]},
        "model": {"neighbours": 24, "fewest": 5, "layers": 2, "heads": 4},
        "loss": {"name": "lattqe", "margin": 0.1, "weight_bce": 1.0},
        "optimiser": {"name": "adamw", "lr": 2e-3, "warmup": 10},
    }  # fmt: skip
    out = tmp_path / "model"
    config = train(from_dict(raw, "lattqe"), [path], out, device="cpu", quiet=True)
    assert config["dims"] == 32 and config["input"] == "vectors"
    rows = read_log(out / "metrics.jsonl")
    (untrained,) = next(row["validation"] for row in rows if "validation" in row).values()
    (trained,) = config["metrics"]["validation"].values()
    assert trained["map"] > untrained["map"] + 1 > untrained["map_first"] + 1
    ranking = kinrank.rerank(vectors[0], vectors[1:200], method=f"lattqe:model={out},k=24", k=60)
    assert len(ranking) == 199
