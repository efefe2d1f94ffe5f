"""Each loss against a plain NumPy form written from its equation, and its gradient against differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kinrank.training import losses


def lists(seed: int, b: int = 4, k: int = 9):
    random = np.random.default_rng(seed)
    mask = np.ones((b, k), dtype=bool)
    mask[1, 6:] = False
    mask[2, 3:] = False
    relevant = random.random((b, k)) < 0.4
    relevant[:, 0] = True
    return random.normal(size=(b, k)), relevant & mask, mask


def numpy_contrastive(scores, relevant, mask, tau, with_query):
    values = []
    for s, r, m in zip(scores, relevant, mask):
        above = [np.exp(s[i] / tau) for i in range(len(s)) if m[i] and r[i]]
        below = [np.exp(s[i] / tau) for i in range(len(s)) if m[i]]
        if with_query:  # its cosine to itself is one, and it is relevant to itself
            above, below = [*above, np.exp(1 / tau)], [*below, np.exp(1 / tau)]
        if above:
            values.append(-np.log(sum(above) / sum(below)))
    return np.mean(values)


def numpy_average_precision_smooth(scores, relevant, mask, tau):
    values = []
    for s, r, m in zip(scores, relevant, mask):
        positives = [i for i in range(len(s)) if r[i] and m[i]]
        if not positives:
            continue
        precision = []
        for i in positives:
            sigma = {j: 1 / (1 + np.exp(-(s[j] - s[i]) / tau)) for j in range(len(s)) if j != i and m[j]}
            rank = 1 + sum(sigma.values())
            precision.append((1 + sum(v for j, v in sigma.items() if r[j])) / rank)
        values.append(1 - np.mean(precision))
    return np.mean(values)


def tensors(scores, relevant, mask):
    return torch.tensor(scores), torch.tensor(relevant), torch.tensor(mask)


@pytest.mark.parametrize("with_query", [False, True])
@pytest.mark.parametrize("tau", [2.0, 0.1])
def test_contrastive_is_the_papers_equation(with_query, tau):
    scores, relevant, mask = lists(0)
    found = losses.contrastive(*tensors(scores, relevant, mask), tau, with_query)
    assert found.item() == pytest.approx(numpy_contrastive(scores, relevant, mask, tau, with_query), rel=1e-5)


def test_contrastive_has_the_floor_that_its_bounded_scores_imply():
    # cos in [-1, 1] and tau = 2: the best that can be reached is -log(p e / (p e + 1 - p)).
    relevant = torch.zeros(1, 100, dtype=torch.bool)
    relevant[:, :20] = True
    best = torch.where(relevant, 1.0, -1.0)
    found = losses.contrastive(best, relevant, torch.ones_like(relevant), 2.0)
    assert found.item() == pytest.approx(-np.log(0.2 * np.e / (0.2 * np.e + 0.8)), rel=1e-5)


def test_lists_without_a_relevant_candidate_count_for_nothing():
    scores, relevant, mask = lists(1)
    relevant[3] = False
    for loss in (losses.contrastive, losses.smooth_ap):
        alone = loss(*tensors(scores[:3], relevant[:3], mask[:3]))
        assert loss(*tensors(scores, relevant, mask)).item() == pytest.approx(alone.item(), rel=1e-6)
        nothing = torch.tensor(scores[3:], requires_grad=True)
        value = loss(nothing, torch.tensor(relevant[3:]), torch.tensor(mask[3:]))
        value.backward()
        assert value.item() == 0 and not nothing.grad.any()


def test_reconstruction_squared_sums_over_the_items_of_a_list():
    random = np.random.default_rng(2)
    a, b = random.normal(size=(2, 5, 7)), random.normal(size=(2, 5, 7))
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], dtype=bool)
    expected = np.mean([((a[i] - b[i])[mask[i]] ** 2).sum() for i in range(2)])
    found = losses.reconstruction(torch.tensor(a), torch.tensor(b), torch.tensor(mask), "squared")
    assert found.item() == pytest.approx(expected, rel=1e-5)


def test_reconstruction_normalised_is_the_mean_distance_of_directions():
    random = np.random.default_rng(3)
    a, b = random.normal(size=(2, 5, 7)), random.normal(size=(2, 5, 7))
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], dtype=bool)
    each = np.linalg.norm(
        a / np.linalg.norm(a, axis=2, keepdims=True) - b / np.linalg.norm(b, axis=2, keepdims=True), axis=2
    )
    expected = np.mean([each[i][mask[i]].mean() for i in range(2)])
    found = losses.reconstruction(torch.tensor(a), torch.tensor(b), torch.tensor(mask), "normalised")
    assert found.item() == pytest.approx(expected, rel=1e-5)
    same = torch.tensor(a, requires_grad=True)
    losses.reconstruction(torch.tensor(a), same, torch.tensor(mask), "normalised").backward()
    assert torch.isfinite(same.grad).all()


@pytest.mark.parametrize("tau", [0.15, 1.0])
def test_smooth_ap_is_its_equation(tau):
    scores, relevant, mask = lists(4)
    found = losses.smooth_ap(*tensors(scores, relevant, mask), tau)
    assert found.item() == pytest.approx(
        numpy_average_precision_smooth(scores, relevant, mask, tau), rel=1e-5
    )


def test_smooth_ap_becomes_one_minus_ap_when_the_sigmoids_are_sharp():
    from sklearn.metrics import average_precision_score

    scores, relevant, mask = lists(5)
    expected = np.mean([1 - average_precision_score(r[m], s[m]) for s, r, m in zip(scores, relevant, mask)])
    assert losses.smooth_ap(*tensors(scores, relevant, mask), 1e-4).item() == pytest.approx(
        expected, abs=1e-4
    )


def test_cross_entropy_is_its_equation():
    scores, relevant, mask = lists(6)
    p = 1 / (1 + np.exp(-scores))
    each = -(relevant * np.log(p) + (1 - relevant) * np.log(1 - p))
    expected = np.mean([each[i][mask[i]].mean() for i in range(len(each))])
    found = losses.binary_cross_entropy(*tensors(scores, relevant, mask))
    assert found.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "loss",
    [
        lambda s, r, m: losses.contrastive(s, r, m, 0.5),
        lambda s, r, m: losses.contrastive(s, r, m, 0.5, True),
        lambda s, r, m: losses.smooth_ap(s, r, m, 0.3),
        losses.binary_cross_entropy,
    ],
)
def test_gradients_match_finite_differences(loss):
    scores, relevant, mask = lists(7)
    s = torch.tensor(scores, dtype=torch.float32, requires_grad=True)
    loss(s, torch.tensor(relevant), torch.tensor(mask)).backward()
    step = 1e-2
    for i, j in [(0, 0), (0, 4), (1, 5), (2, 1)]:
        up, down = scores.copy(), scores.copy()
        up[i, j] += step
        down[i, j] -= step
        high = loss(*tensors(up, relevant, mask)).item()
        low = loss(*tensors(down, relevant, mask)).item()
        assert s.grad[i, j].item() == pytest.approx((high - low) / (2 * step), abs=2e-3)
    assert not s.grad[torch.tensor(~mask)].any()  # padding moves nothing
