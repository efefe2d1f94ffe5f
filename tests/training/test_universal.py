"""What the universal model reads of a list, each number against a plain NumPy form; and what it promises."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from kinrank.training import tokens  # noqa: E402
from kinrank.training.universal import UniversalCSA  # noqa: E402


def lists(k: int, dims: int = 12, seed: int = 0) -> np.ndarray:
    """Two ranked lists of unit vectors (2, 1 + K, dims), the query first."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(2, 1 + k, dims)) + rng.normal(size=(2, 1, dims))
    rows /= np.linalg.norm(rows, axis=2, keepdims=True)
    order = np.argsort(-np.einsum("bd,bkd->bk", rows[:, 0], rows[:, 1:]), axis=1) + 1
    order = np.concatenate([np.zeros((2, 1), int), order], axis=1)
    return np.take_along_axis(rows, order[:, :, None], axis=1)


def table(k: int, seed: int = 0) -> np.ndarray:
    rows = lists(k, seed=seed)
    return (rows @ rows.transpose(0, 2, 1)).astype(np.float32)


def standardised(similarities: np.ndarray) -> np.ndarray:
    other = ~np.eye(len(similarities), dtype=bool)
    pairs = similarities[other].astype(np.float64)
    return np.clip((similarities - pairs.mean()) / pairs.std(), -6, 8)


def test_standardised_over_the_pairs_of_different_nodes():
    s = table(30)
    found = tokens.standardise(torch.from_numpy(s)).numpy()
    for mine, theirs in zip(found, s):
        np.testing.assert_allclose(mine, standardised(theirs), atol=1e-3)


def test_neighbours_are_the_nearest_others_and_short_lists_say_what_is_missing():
    z = tokens.standardise(torch.from_numpy(table(30)))
    index, value, valid = tokens.neighbours(z)
    assert valid.all()
    plain = z[0].numpy().copy()
    np.fill_diagonal(plain, -np.inf)
    nearest = np.argsort(-plain, axis=1)[:, : tokens.NEIGHBOURS]
    np.testing.assert_array_equal(index[0].numpy(), nearest)
    np.testing.assert_allclose(value[0].numpy(), np.take_along_axis(plain, nearest, axis=1), atol=1e-6)
    index, _, valid = tokens.neighbours(tokens.standardise(torch.from_numpy(table(7))))
    assert (valid.sum(-1) == 7).all() and index.max() <= 7


@pytest.mark.parametrize("k", [5, 20])
def test_the_walk_is_the_textbook_one_on_the_mutual_graph(k):
    z = tokens.standardise(torch.from_numpy(table(40)))
    index, value, valid = tokens.neighbours(z)
    bound = value[..., k - 1]
    mutual = (valid[..., :k] & (value[..., :k] >= tokens.gather(bound, index[..., :k]))).float()
    found = tokens.random_walk(tokens.weights(value[..., :k], mutual), index[..., :k])[0].numpy()

    plain = z[0].numpy().astype(np.float64)
    np.fill_diagonal(plain, -np.inf)
    near = plain >= np.sort(plain, axis=1)[:, -k][:, None]
    edges = np.where(near & near.T, np.exp(0.7 * np.where(np.isfinite(plain), plain, 0)), 0.0)
    root = 1 / np.sqrt(np.maximum(edges.sum(1), 1e-6))
    moves = (1 - tokens.RESTART) * root[:, None] * edges * root
    source = np.zeros(len(plain))
    source[0] = tokens.RESTART
    heat = source
    for _ in range(tokens.STEPS):
        heat = moves @ heat + source
    np.testing.assert_allclose(found, np.log(heat + 1e-6), atol=1e-3)


def test_overlap_is_the_shared_neighbourhood():
    z = tokens.standardise(torch.from_numpy(table(40)))
    index, value, _ = tokens.neighbours(z)
    edges = tokens.weights(value, torch.ones_like(value))
    found = tokens.overlap(edges, index)[0].numpy()
    n = z.shape[1]
    share = np.zeros((n, n))
    for i in range(n):
        weight = edges[0, i].numpy().astype(np.float64)
        share[i, index[0, i].numpy()] = weight / weight.sum()
    mine = share[:7].sum(0) / 7
    mine = np.zeros(n)
    for i in range(7):  # the query and its first 6 neighbours of the list
        mine += share[i] / 7
    np.testing.assert_allclose(found, np.minimum(share, mine).sum(1), atol=1e-5)


def test_another_scale_and_offset_of_the_similarities_changes_nothing():
    s = torch.from_numpy(table(60))
    mine, scaled = tokens.describe(s), tokens.describe(0.2 * s + 0.7)
    # The diagonal, 1 in both, is clipped in both; all else is relative.
    torch.testing.assert_close(mine.tokens, scaled.tokens, atol=2e-2, rtol=0)
    torch.testing.assert_close(mine.first, scaled.first, atol=2e-3, rtol=0)
    assert (mine.nodes == scaled.nodes).float().mean() > 0.999


def test_sizes_are_as_declared_for_any_length():
    for k in (1, 2, 5, 19, 20, 21, 64, 100):
        found = tokens.describe(torch.from_numpy(table(k)))
        assert found.tokens.shape == (2, k + 1, tokens.ANCHORS + tokens.SCALARS)
        assert found.pairs.shape == (2, k + 1, tokens.NEIGHBOURS, tokens.PAIRS)
        assert torch.isfinite(found.tokens).all() and torch.isfinite(found.pairs).all()


@pytest.mark.parametrize("reach", [None, 16])
def test_an_untrained_model_keeps_the_first_round_and_every_weight_learns(reach):
    torch.manual_seed(0)
    model = UniversalCSA(width=24, layers=2, heads=3, local_heads=2, local_width=4, reach=reach)
    s = torch.from_numpy(table(50))
    scores = model(s)
    assert (scores.diff(dim=1) <= 0).all()
    # The head begins at zero, so what feeds it has no gradient before the first step.
    torch.nn.init.normal_(model.head[2].weight)
    model(s).square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] in (
        [],
        ["blocks.0.list.key_value.bias", "blocks.1.list.key_value.bias"],
    )
