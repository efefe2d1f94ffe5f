"""The encoder against a plain NumPy form, and the laws of the paper's model."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from kinrank.errors import InputError
from kinrank.training.batch import ListBatch
from kinrank.training.config import build_model, recipe
from kinrank.training.encoder import ContextEncoder, PaperCSA, affinity_rows


def table(b: int, k: int, d: int = 16, seed: int = 0) -> torch.Tensor:
    rows = np.random.default_rng(seed).normal(size=(b, 1 + k, d))
    rows /= np.linalg.norm(rows, axis=2, keepdims=True)
    return torch.tensor(rows @ rows.transpose(0, 2, 1), dtype=torch.float32)


def numpy_encoder(encoder: ContextEncoder, x: np.ndarray, norm: str) -> np.ndarray:
    """One list (N, W), written from the equations: softmax(Q K' / sqrt(d)) V per head, GELU by erf."""

    def linear(layer, y):
        return y @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()

    def layer_norm(layer, y):
        y = (y - y.mean(1, keepdims=True)) / np.sqrt(y.var(1, keepdims=True) + layer.eps)
        return y * layer.weight.detach().numpy() + layer.bias.detach().numpy()

    def gelu(y):
        return 0.5 * y * (1 + np.vectorize(math.erf)(y / math.sqrt(2)))

    def attention(part, y):
        inner = part.heads * part.head_dim
        qkv = linear(part.qkv, y)
        q, k, v = qkv[:, :inner], qkv[:, inner : 2 * inner], qkv[:, 2 * inner :]
        heads = []
        for h in range(part.heads):
            cut = slice(h * part.head_dim, (h + 1) * part.head_dim)
            logits = q[:, cut] @ k[:, cut].T / math.sqrt(part.head_dim)
            weights = np.exp(logits - logits.max(1, keepdims=True))
            heads.append(weights / weights.sum(1, keepdims=True) @ v[:, cut])
        return linear(part.out, np.concatenate(heads, axis=1))

    def mlp(part, y):
        return linear(part[3], gelu(linear(part[0], y)))

    for block in encoder.blocks:
        if norm == "pre":
            x = x + attention(block.attention, layer_norm(block.norm1, x))
            x = x + mlp(block.mlp, layer_norm(block.norm2, x))
        else:
            x = x + layer_norm(block.norm1, attention(block.attention, x))
            x = x + layer_norm(block.norm2, mlp(block.mlp, x))
    return x


def loosened(module: torch.nn.Module) -> torch.nn.Module:
    """Weights large enough that attention is far from uniform."""
    torch.manual_seed(1)
    for p in module.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return module.eval()


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("head_dim", [None, 5])
def test_encoder_is_its_equations(norm, head_dim):
    encoder = loosened(ContextEncoder(12, layers=2, heads=3, head_dim=head_dim, norm=norm))
    x = np.random.default_rng(0).normal(size=(7, 12)).astype(np.float32)
    found = encoder(torch.tensor(x)[None])[0].detach().numpy()
    np.testing.assert_allclose(found, numpy_encoder(encoder, x, norm), atol=2e-4)


def test_padding_changes_nothing():
    model = loosened(PaperCSA(anchors=8, width=12, heads=3))
    short = table(1, 5)
    mask = torch.zeros(1, 13, dtype=torch.bool)
    mask[:, :6] = True
    padded = torch.nn.functional.pad(short, (0, 7, 0, 7))
    np.testing.assert_allclose(
        model(padded, mask)[:, :5].detach(), model(short, mask[:, :6]).detach(), atol=1e-5
    )
    np.testing.assert_allclose(model(short).detach(), model(short, mask[:, :6]).detach(), atol=1e-5)


def test_shuffled_rows_keep_their_scores():
    # No positional encoding: with the anchors fixed, each candidate's score goes with it.
    model = loosened(PaperCSA(anchors=8, width=12, heads=3))
    b, k = 2, 9
    batch = ListBatch(table(b, k), torch.arange(b * k).view(b, k) % 2 == 0, torch.ones(b, 1 + k, dtype=bool))
    shuffled = batch.rows_shuffled(torch.Generator().manual_seed(3))
    assert not torch.equal(shuffled.similarities, batch.similarities)
    for i in range(b):
        before = sorted(zip(model(batch.similarities)[i].tolist(), batch.relevant[i].tolist()))
        after = sorted(zip(model(shuffled.similarities)[i].tolist(), shuffled.relevant[i].tolist()))
        np.testing.assert_allclose([s for s, _ in before], [s for s, _ in after], atol=1e-5)
        assert [r for _, r in before] == [r for _, r in after]


def test_affinity_rows_are_the_first_columns_padded_with_zeros():
    s = table(1, 4)
    assert torch.equal(affinity_rows(s, 3), s[:, :, :3])
    rows = affinity_rows(s, 7)
    assert torch.equal(rows[:, :, :5], s) and not rows[:, :, 5:].any()


def test_scores_are_cosines_of_the_refined_rows():
    model = loosened(PaperCSA(anchors=8, width=12, heads=3))
    y = model.refine(affinity_rows(table(1, 9), 8))[0].detach().numpy()
    expected = [y[0] @ y[i] / np.linalg.norm(y[0]) / np.linalg.norm(y[i]) for i in range(1, 10)]
    np.testing.assert_allclose(model(table(1, 9))[0].detach(), expected, atol=1e-5)


def test_sizes_are_the_published_ones():
    code = build_model(recipe("paper-code"))
    assert sum(p.numel() for p in code.parameters()) == 14_963_456  # the released network
    paper = recipe("paper")
    assert (paper.model["anchors"], paper.data.k, paper.model["width"]) == (512, (512, 512), 768)
    assert (paper.loss.temperature, paper.loss.weight_mse, paper.optimiser.lr) == (2.0, 0.2, 0.1)
    assert (paper.batch, paper.epochs, paper.optimiser.weight_decay) == (256, 100, 1e-5)
    assert recipe("paper-1024").model["width"] == 1024


@pytest.mark.parametrize(
    "sizes, word", [({"norm": "middle"}, "norm"), ({"head": "none"}, "head"), ({"heads": 7}, "head_dim")]
)
def test_sizes_that_do_not_fit_are_refused(sizes, word):
    with pytest.raises(InputError, match=word):
        PaperCSA(anchors=8, width=12, **{"heads": 3, **sizes})
