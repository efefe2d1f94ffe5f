"""CRL: the network's planes, its start from the first round, its export, and what it learns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import kinrank
from kinrank.training.config import from_dict
from kinrank.training.crl import CRL, standardised
from kinrank.training.export import check_agreement, write_onnx
from kinrank.training.train import train


def table(b: int, k: int, d: int = 12, seed: int = 0) -> torch.Tensor:
    rows = np.random.default_rng(seed).normal(size=(b, 1 + k, d))
    rows /= np.linalg.norm(rows, axis=2, keepdims=True)
    return torch.tensor(rows @ rows.transpose(0, 2, 1), dtype=torch.float32)


def test_standardised_leaves_the_diagonal_out():
    s = table(3, 9)
    z = standardised(s).numpy()
    off = ~np.eye(10, dtype=bool)
    for i in range(3):
        raw = s[i].numpy()[off]
        np.testing.assert_allclose(z[i][off], (raw - raw.mean()) / raw.std(), atol=1e-4)
        assert not z[i][~off].any()


def test_scores_do_not_depend_on_scale_and_offset_of_the_similarities():
    torch.manual_seed(0)
    model = CRL(columns=8, channels=4, layers=2)
    torch.nn.init.normal_(model.head[2].weight)
    s = table(2, 20)
    np.testing.assert_allclose(model.eval()(s).detach(), model(0.1 * s + 0.7).detach(), atol=1e-3)


def test_training_starts_from_the_first_round():
    s = table(2, 20)
    scores = CRL(columns=8, channels=4, layers=2).eval()(s)
    assert torch.equal(scores.argsort(dim=1), s[:, 0, 1:].argsort(dim=1))


def test_a_row_sees_its_neighbours_in_rank_and_the_first_columns_alone():
    torch.manual_seed(0)
    model = CRL(columns=6, channels=4, layers=2).eval()
    torch.nn.init.normal_(model.head[2].weight)
    z = standardised(table(1, 20))
    pairs, query = z[:, 1:, :6], z[:, 1:, :1]
    planes = [pairs, query.expand(-1, -1, 6), z[:, :1, :6].expand(-1, 20, -1)]
    x = torch.stack(planes, dim=1)
    for layer in model.convolutions:
        w, norm = layer[0].weight, layer[1]
        # The same convolution by unfolding: nine shifted copies, one matrix product.
        x = torch.einsum("oc,bcp->bop", w.flatten(1), F.unfold(x, 3, padding=1)).view(1, 4, 20, 6)
        x = torch.relu((x - 0) / (1 + norm.eps) ** 0.5)  # statistics are still those of the start
    rows = torch.cat([x.mean(3), x.amax(3)], 1).transpose(1, 2)
    expected = query[..., 0] + model.head(rows)[..., 0]
    np.testing.assert_allclose(model(table(1, 20)).detach(), expected.detach(), atol=1e-4)


def test_torch_and_onnx_agree_at_any_length(tmp_path):
    torch.manual_seed(0)
    model = CRL(columns=16, channels=8, layers=3).eval()
    torch.nn.init.normal_(model.head[2].weight)
    write_onnx(model, tmp_path / "model.onnx")
    assert check_agreement(model, tmp_path / "model.onnx", (2, 3, 15, 16, 17, 120)) < 1e-4


def test_it_trains_on_worlds_and_ranks(tmp_path):
    raw = {
        "method": "crl", "architecture": "crl", "batch": 8, "micro_batch": 8, "steps": 3, "precision": "fp32",
        "validate_every": 3, "validation_batches": 1, "data": {"k": [16, 24], "worlds": 1.0,
        "world": {"worlds": 2, "items": [300, 300]}}, "model": {"columns": 8, "channels": 4, "layers": 2},
        "loss": {"name": "smooth_ap", "temperature": 0.15, "weight_bce": 0.2}, "optimiser": {"name": "adamw"},
    }  # fmt: skip
    config = train(from_dict(raw, "crl"), [], tmp_path / "m", device="cpu", quiet=True)
    assert config["data"][0]["name"] == "synthetic worlds"
    vectors = np.random.default_rng(0).normal(size=(30, 9))
    ranking = kinrank.rerank(vectors[0], vectors[1:], method=f"crl:model={tmp_path / 'm'}")
    assert sorted(ranking.ids) == list(range(29))
    with pytest.raises(kinrank.KinrankError, match="a model of 'crl', not of 'csa'"):
        kinrank.rerank(vectors[0], vectors[1:], method=f"csa:model={tmp_path / 'm'}")
