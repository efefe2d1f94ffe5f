"""The ONNX graph says what torch says, or is not written."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import kinrank
from kinrank.device import onnx_session
from kinrank.errors import InputError, KinrankError
from kinrank.training.config import from_dict
from kinrank.training.encoder import PaperCSA
from kinrank.training.export import check_agreement, load_model, write_onnx
from kinrank.training.train import train


@pytest.fixture
def model():
    torch.manual_seed(0)
    made = PaperCSA(anchors=16, width=24, heads=2)
    for p in made.parameters():
        torch.nn.init.normal_(p, std=0.2)
    return made.eval()


def test_any_length_and_any_number_of_lists_and_columns(model, tmp_path):
    write_onnx(model, tmp_path / "model.onnx")
    assert check_agreement(model, tmp_path / "model.onnx", (1, 2, 5, 16, 90, 400)) < 1e-4
    session = onnx_session(tmp_path / "model.onnx", "cpu")
    rows = np.random.default_rng(0).normal(size=(3, 41, 8))
    table = (rows @ rows.transpose(0, 2, 1)).astype(np.float32)
    whole = session.run(None, {"similarities": table})[0]
    assert whole.shape == (3, 40)
    first = session.run(None, {"similarities": table[:, :, :16]})[0]  # what the 16 anchors are
    np.testing.assert_allclose(whole, first, atol=1e-6)
    np.testing.assert_allclose(whole[1], session.run(None, {"similarities": table[1:2]})[0][0], atol=1e-5)


def test_the_graph_runs_on_the_oldest_runtime_that_is_supported(model, tmp_path):
    import onnx

    write_onnx(model, tmp_path / "model.onnx")
    graph = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(graph)
    # ONNX Runtime 1.18: file format 10, operators 21.
    assert graph.ir_version <= 10 and graph.opset_import[0].version <= 21


def test_a_graph_that_differs_is_refused(model, tmp_path):
    write_onnx(model, tmp_path / "model.onnx")
    with torch.no_grad():
        model.projection.weight[0] += 0.5
    with pytest.raises(KinrankError, match=r"torch and ONNX differ by .* at K=.*not exported"):
        check_agreement(model, tmp_path / "model.onnx")


def test_a_saved_model_comes_back(tiny, labelled, tmp_path):
    config = train(from_dict(tiny, "tiny"), [labelled], tmp_path / "m", device="cpu", quiet=True)
    model, recipe = load_model(tmp_path / "m")
    assert recipe == from_dict(tiny, "tiny") and config["parameters"] == sum(
        p.numel() for p in model.parameters()
    )
    assert check_agreement(model, tmp_path / "m" / "model.onnx") < 1e-4


@pytest.mark.parametrize("vectors", [True, False])
def test_served_by_torch_the_scores_are_those_of_the_graph(vectors):
    from kinrank.models.shipped import CSA
    from kinrank.rerankers.csa import CSA as Method
    from kinrank.training.serve import TorchLists
    from kinrank.types import Candidates

    random = np.random.default_rng(0)
    lists = [Candidates.from_vectors(random.normal(size=12), random.normal(size=(40, 12))) for _ in range(3)]
    runner = TorchLists.open(CSA.folder, torch.device("cpu"))
    nodes = np.stack([np.concatenate([c.query[None], c.vectors]) for c in lists])
    found = runner.scores(nodes if vectors else nodes @ nodes.transpose(0, 2, 1), vectors)
    for candidates, scores in zip(lists, found):
        np.testing.assert_allclose(scores, Method().score(candidates), atol=2e-3)


def test_cuda_is_refused_in_a_line_where_there_is_none():
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(InputError, match="no CUDA was found"):
        kinrank.rerank(np.ones(3), np.eye(3), method="csa:device=cuda")
