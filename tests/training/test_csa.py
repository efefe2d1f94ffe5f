"""The runtime of CSA: similarities alone, any length, one at a time or many."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import torch

import kinrank
from kinrank.errors import InputError, SpecError
from kinrank.training.encoder import PaperCSA
from kinrank.training.export import write_onnx
from kinrank.types import Candidates


@pytest.fixture(scope="module")
def model():
    """A network with weights that do something."""
    torch.manual_seed(0)
    made = PaperCSA(anchors=16, width=24, heads=2)
    for p in made.parameters():
        torch.nn.init.normal_(p, std=0.2)
    return made.eval()


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    """The same as a model folder."""
    home = tmp_path_factory.mktemp("model")
    write_onnx(model, home / "model.onnx")
    (home / "config.json").write_text(json.dumps({"method": "csa", "columns": 16}))
    return home


def lists(number: int, k: int, d: int = 12, seed: int = 0) -> list[Candidates]:
    random = np.random.default_rng(seed)
    return [Candidates.from_vectors(random.normal(size=d), random.normal(size=(k, d))) for _ in range(number)]


@pytest.mark.parametrize("k", [2, 3, 15, 16, 40])
def test_scores_are_the_networks(folder, model, k):
    (candidates,) = lists(1, k)
    ranking = kinrank.reranker(f"csa:model={folder}").rerank(candidates)
    with torch.no_grad():
        scores = model(torch.tensor(candidates.affinity())[None])[0].numpy()
    np.testing.assert_array_equal(ranking.ids, candidates.ids[np.argsort(-scores, kind="stable")])
    np.testing.assert_allclose(ranking.scores, -np.sort(-scores), atol=1e-5)


def test_a_rotation_of_the_space_changes_nothing(folder):
    (candidates,) = lists(1, 50)
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(12, 12)))[0]
    turned = Candidates(candidates.ids, candidates.scores, candidates.vectors @ turn, candidates.query @ turn)
    method = kinrank.reranker(f"csa:model={folder}")
    np.testing.assert_allclose(method.score(candidates), method.score(turned), atol=1e-5)


def test_similarities_alone_are_enough(folder):
    (candidates,) = lists(1, 30)
    method = kinrank.reranker(f"csa:model={folder}")
    alone = kinrank.rerank(similarities=candidates.affinity(), method=method)
    np.testing.assert_allclose(alone.scores, method.rerank(candidates).scores, atol=1e-5)


def test_one_candidate_stays(folder):
    (candidates,) = lists(1, 1)
    ranking = kinrank.reranker(f"csa:model={folder}").rerank(candidates)
    assert ranking.ids.tolist() == [0] and ranking.scores[0] == candidates.scores[0]


def test_beyond_the_limit_the_tail_stays(folder):
    (candidates,) = lists(1, 60)
    method = kinrank.reranker(f"csa:model={folder},limit=20")
    ranking = method.rerank(candidates)
    head = kinrank.reranker(f"csa:model={folder}").rerank(candidates.head(20))
    np.testing.assert_array_equal(ranking.ids, np.concatenate([head.ids, candidates.ids[20:]]))
    np.testing.assert_array_equal(method.rerank_many([candidates])[0].ids, ranking.ids)


def test_many_at_once_as_one_by_one(folder):
    mixed = [*lists(5, 30), *lists(3, 12, seed=1), *lists(1, 1), *lists(2, 90, seed=2)]
    method = kinrank.reranker(f"csa:model={folder},limit=64")
    for one, many in zip([method.rerank(c) for c in mixed], method.rerank_many(mixed), strict=True):
        np.testing.assert_allclose(one.scores, many.scores, atol=1e-5)
        np.testing.assert_array_equal(one.ids, many.ids)


def test_nothing_is_read_before_the_first_list_and_a_method_can_be_sent(folder):
    method = kinrank.reranker("csa:model=/nowhere/at/all")  # no complaint yet
    with pytest.raises(InputError, match=r"unknown model.*kinrank train"):
        method.rerank(lists(1, 4)[0])
    ready = kinrank.reranker(f"csa:model={folder}")
    ready.rerank(lists(1, 4)[0])
    sent = pickle.loads(pickle.dumps(ready))
    np.testing.assert_array_equal(sent.score(lists(1, 9)[0]), ready.score(lists(1, 9)[0]))


def test_folders_that_are_no_model_of_csa_are_refused(folder, tmp_path):
    (candidates,) = lists(1, 4)
    with pytest.raises(InputError, match=r"no config\.json"):
        kinrank.reranker(f"csa:model={tmp_path}").rerank(candidates)
    (tmp_path / "config.json").write_text('{"method": "crl"}')
    with pytest.raises(InputError, match="a model of 'crl', not of 'csa'"):
        kinrank.reranker(f"csa:model={tmp_path}").rerank(candidates)
    (tmp_path / "config.json").write_text('{"method": "csa"}')
    with pytest.raises(InputError, match=r"no model\.onnx"):
        kinrank.reranker(f"csa:model={tmp_path}").rerank(candidates)
    (tmp_path / "model.onnx").write_bytes(b"not a graph")
    with pytest.raises(InputError, match="cannot be loaded"):
        kinrank.reranker(f"csa:model={tmp_path}").rerank(candidates)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="is not JSON"):
        kinrank.reranker(f"csa:model={tmp_path}").rerank(candidates)
    with pytest.raises(SpecError, match="limit"):
        kinrank.reranker("csa:limit=1")
