"""SSR on similarities against the published form: gradients by autograd, through vectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import kinrank
from kinrank.device import onnx_session
from kinrank.training.config import from_dict
from kinrank.training.export import check_agreement, write_onnx
from kinrank.training.ssr import SSR, info_nce
from kinrank.training.train import train


@pytest.fixture
def model():
    torch.manual_seed(0)
    made = SSR(nearest=6, hidden=16, step_size=0.05).double().eval()
    for p in made.parameters():
        torch.nn.init.normal_(p, std=0.4)
    return made


def by_autograd(model: SSR, query: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
    """The published procedure: guessed gradients are pulled back through the similarities to the vectors."""

    first = torch.cat([query[None], items])
    first = first @ first.T  # who is near whom is settled before anything moves

    def inputs(q, d):
        nodes = F.normalize(torch.cat([q[None], d]), dim=1)
        s = nodes @ nodes.T
        rows = []
        for i in range(len(nodes)):
            near = first[i, 1:].topk(min(model.nearest, len(d))).indices + 1
            pad = model.nearest - len(near)
            rows.append(torch.cat([s[i, :1], F.pad(s[i, near], (0, pad)), F.pad(s[0, near], (0, pad))]))
        return torch.stack(rows), s

    q, d = query.clone().requires_grad_(), items.clone().requires_grad_()
    x, _ = inputs(q, d)
    (gradient,) = torch.autograd.grad(x, q, model.for_query(x.detach()))
    q = (q - model.step_size * gradient).detach()
    x, _ = inputs(q, d)
    (gradient,) = torch.autograd.grad(x, d, model.for_candidates(x.detach()))
    _, s = inputs(q, d - model.step_size * gradient)
    return s[0, 1:].detach()


@pytest.mark.parametrize("k", [20, 6, 4])
def test_the_form_on_similarities_is_the_step_on_vectors(model, k):
    random = torch.Generator().manual_seed(k)
    rows = F.normalize(torch.randn(1 + k, 9, generator=random, dtype=torch.float64), dim=1)
    with torch.no_grad():
        found = model((rows @ rows.T)[None])[0]
    expected = by_autograd(model, rows[0], rows[1:])
    assert (expected - rows[1:] @ rows[0]).abs().max() > 0.01  # it does move
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_without_a_step_it_is_the_cosine(model):
    model.step_size = 0.0
    rows = F.normalize(torch.randn(2, 12, 9, dtype=torch.float64), dim=2)
    table = rows @ rows.transpose(1, 2)
    np.testing.assert_allclose(model(table).detach(), table[:, 0, 1:], atol=1e-9)


def test_info_nce_is_its_equation():
    random = np.random.default_rng(0)
    s, relevant = random.normal(size=(3, 8)), random.random((3, 8)) < 0.4
    relevant[:, 0], relevant[:, 1] = True, False
    expected = []
    for i in range(3):
        negatives = np.exp(4 * s[i][~relevant[i]]).sum()
        expected.append(
            np.mean([-np.log(np.exp(4 * v) / (np.exp(4 * v) + negatives)) for v in s[i][relevant[i]]])
        )
    mask = torch.ones(3, 8, dtype=torch.bool)
    found = info_nce(torch.tensor(s), torch.tensor(relevant), mask, torch.tensor(4.0))
    assert found.item() == pytest.approx(np.mean(expected), rel=1e-5)


def test_gradients_of_the_whole_match_finite_differences(model):
    rows = F.normalize(torch.randn(1, 8, 5, dtype=torch.float64), dim=2)
    table = (rows @ rows.transpose(1, 2)).detach()
    weight = model.for_query[1].weight
    (gradient,) = torch.autograd.grad(model(table).square().sum(), weight)
    for i, j in [(0, 0), (3, 5), (10, 12)]:
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                weight[i, j] += sign * 1e-5
                values.append(model(table).square().sum().item())
                weight[i, j] -= sign * 1e-5
        assert gradient[i, j].item() == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-4, abs=1e-8)


def test_torch_and_onnx_agree_below_and_above_the_subgraphs_size(model, tmp_path):
    model = model.float()
    write_onnx(model, tmp_path / "model.onnx")
    assert check_agreement(model, tmp_path / "model.onnx", (2, 5, 6, 7, 60)) < 1e-4


def test_equal_similarities_do_not_part_torch_and_onnx(model, tmp_path):
    """Duplicates in the list: which of two equal neighbours comes first must not depend on the runtime."""
    model = model.float()
    write_onnx(model, tmp_path / "model.onnx")
    rows = np.random.default_rng(0).normal(size=(12, 9)).astype(np.float32)
    rows = rows[np.random.default_rng(1).integers(12, size=60)]
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    table = (rows @ rows.T)[None]
    with torch.no_grad():
        expected = model(torch.tensor(table)).numpy()
    found = onnx_session(tmp_path / "model.onnx", "cpu").run(None, {"similarities": table})[0]
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_it_trains_and_ranks(clusters, tmp_path):
    vectors, labels = clusters(classes=40, size=10, dim=12, noise=0.9, seed=3)
    path = tmp_path / "set.npz"
    np.savez(path, vectors=vectors, labels=labels)
    raw = {
        "method": "ssr", "architecture": "ssr", "batch": 16, "micro_batch": 16, "steps": 150,
        "validate_every": 50, "data": {"k": [40, 40]}, "loss": {"name": "ssr"},
        "model": {"nearest": 10, "hidden": 64, "step_size": 0.01},
        "optimiser": {"name": "adamw", "lr": 1e-3, "warmup": 10},
    }  # fmt: skip
    config = train(from_dict(raw, "ssr"), [path], tmp_path / "m", device="cpu", quiet=True)
    (quality,) = config["metrics"]["validation"].values()
    assert quality["map"] > quality["map_first"] + 1  # on classes that it was never shown
    ranking = kinrank.rerank(vectors[0], vectors[1:60], method=f"ssr:model={tmp_path / 'm'}")
    assert sorted(ranking.ids) == list(range(59))
