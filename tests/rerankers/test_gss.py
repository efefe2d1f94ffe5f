"""gss: slopes by hand against finite differences and autograd, embeddings against the dense form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kinrank.errors import InputError, NotFittedError, SpecError
from kinrank.rerankers import gss as gss_module
from kinrank.rerankers import gss_network as network
from kinrank.rerankers.gss import GSS, propagation
from kinrank.types import Candidates

DECAY, BETA = 0.3, 0.35


def small(seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """(weights, A~ X, A~), all float64, of 14 nodes with 5 dimensions."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(14, 5)) + 0.4
    mix = np.abs(rng.normal(size=(14, 14))) * (rng.random((14, 14)) < 0.3) + np.eye(14)
    mix = mix + mix.T
    weights = {"w1": np.eye(5) + 0.3 * rng.normal(size=(5, 5)), "b1": 0.2 * rng.normal(size=5)}
    weights |= {"w2": np.eye(5) + 0.3 * rng.normal(size=(5, 5)), "b2": 0.2 * rng.normal(size=5)}
    return weights, mix @ vectors, mix


def loss_of(weights: dict[str, np.ndarray], mixed: np.ndarray, mix: Any, own: np.ndarray) -> float:
    return network.pair_loss(network.Step(weights, mixed, mix, own, DECAY).e, BETA)[0]


@pytest.mark.parametrize("batch", [range(14), [2, 3, 7, 11]])
def test_slopes_are_finite_differences(batch: Any) -> None:
    weights, mixed, full = small()
    own = np.array(list(batch))
    mix = full[own]
    step = network.Step(weights, mixed, mix, own, DECAY)
    slopes = step.backward(network.pair_loss(step.e, BETA)[1])
    for name, value in weights.items():
        numeric = np.zeros_like(value)
        for place in np.ndindex(value.shape):
            kept = value[place]
            sides = []
            for move in (1e-6, -1e-6):
                value[place] = kept + move
                sides.append(loss_of(weights, mixed, mix, own))
            value[place] = kept
            numeric[place] = (sides[0] - sides[1]) / 2e-6
        assert np.abs(numeric).max() > 1e-5
        np.testing.assert_allclose(slopes[name], numeric, atol=1e-4 * np.abs(numeric).max())


def test_slopes_are_those_of_autograd() -> None:
    torch = pytest.importorskip("torch", reason="needs the extra 'train'")
    weights, mixed, mix = small(1)
    leaves = {name: torch.tensor(value, requires_grad=True) for name, value in weights.items()}
    h1 = torch.tensor(mixed) @ leaves["w1"] + leaves["b1"]
    h2 = torch.tensor(mix) @ torch.nn.functional.elu(h1) @ leaves["w2"] + leaves["b2"]
    e = torch.nn.functional.normalize(h1 + DECAY * torch.nn.functional.elu(h2), dim=1)
    loss = (-0.5 * (torch.relu(e @ e.T) - BETA) ** 2).mean()
    loss.backward()
    step = network.Step(weights, mixed, mix, np.arange(14), DECAY)
    value, slope = network.pair_loss(step.e, BETA)
    np.testing.assert_allclose(step.e, e.detach().numpy(), atol=1e-12)
    assert value == pytest.approx(loss.item(), abs=1e-12)
    for name, by_hand in step.backward(slope).items():
        np.testing.assert_allclose(by_hand, leaves[name].grad.numpy(), atol=1e-10)


def test_adam_is_torch_s() -> None:
    torch = pytest.importorskip("torch", reason="needs the extra 'train'")
    rng = np.random.default_rng(0)
    value = rng.normal(size=(4, 3))
    leaf = torch.tensor(value.copy(), requires_grad=True)
    theirs = torch.optim.Adam([leaf], lr=1e-2)
    ours, weights = network.Adam({"w": value}, 1e-2), {"w": value}
    for _ in range(30):
        slope = rng.normal(size=(4, 3))
        leaf.grad = torch.tensor(slope)
        theirs.step()
        ours.update(weights, {"w": slope})
    np.testing.assert_allclose(weights["w"], leaf.detach().numpy(), atol=1e-6)


def test_blocks_of_pairs_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    e = np.random.default_rng(0).normal(size=(50, 6))
    e /= np.linalg.norm(e, axis=1, keepdims=True)
    whole = network.pair_loss(e, 0.2)
    monkeypatch.setattr(network, "PAIR_BLOCK", 350)
    parts = network.pair_loss(e, 0.2)
    assert parts[0] == pytest.approx(whole[0])
    np.testing.assert_allclose(parts[1], whole[1])


def test_propagation_is_the_dense_form(clusters: Any) -> None:
    vectors, _ = clusters(classes=6, size=7, dim=8)
    similarities = vectors @ vectors.T
    np.fill_diagonal(similarities, -2)
    near = np.argsort(-similarities, axis=1, kind="stable")[:, :4]
    adjacency = np.zeros_like(similarities)
    for i, row in enumerate(near):
        for j in row:
            adjacency[i, j] = adjacency[j, i] = max(0, vectors[i] @ vectors[j])
    adjacency += np.eye(len(vectors))
    degrees = adjacency.sum(1)
    mix, found = propagation(near.astype(np.int32), np.take_along_axis(similarities, near, 1))
    np.testing.assert_allclose(found, degrees, rtol=1e-5)
    np.testing.assert_allclose(mix.toarray(), adjacency / np.sqrt(np.outer(degrees, degrees)), atol=1e-6)


def world(clusters: Any, classes: int = 10, size: int = 20) -> tuple[np.ndarray, np.ndarray]:
    return clusters(classes=classes, size=size, dim=16, noise=1.1, seed=2)


def test_a_query_is_embedded_as_one_more_node(clusters: Any, memory_gallery: Any) -> None:
    """The dense combined matrix of the published code: queries first, edges from the query alone."""
    vectors, _ = world(clusters)
    gallery = memory_gallery(vectors)
    method = GSS(k=5, steps=3).fit(gallery)
    query = vectors[3] + 0.3 * np.random.default_rng(0).normal(size=16).astype(np.float32)
    candidates = gallery.search(query, 60)
    known = method.embedded
    assert known is not None
    size = len(vectors)
    row = np.zeros(size)
    row[candidates.ids[:5]] = candidates.scores[:5]
    combined = np.zeros((size + 1, size + 1))
    combined[1:, 1:] = known.mix.toarray()
    degree = 1 + row.sum()
    combined[0, 0] = 1 / degree
    combined[0, 1:] = row / np.sqrt(degree * known.degrees)
    joined = np.concatenate([candidates.query[None], vectors])
    w = known.weights
    h1 = combined @ joined @ w["w1"] + w["b1"]
    h2 = combined @ network.elu(h1) @ w["w2"] + w["b2"]
    out = h1 + 0.3 * network.elu(h2)
    out /= np.linalg.norm(out, axis=1, keepdims=True)
    right = out[1:][candidates.ids] @ out[0]
    np.testing.assert_allclose(method.score(candidates), right, atol=2e-3)  # stored as float16


@pytest.mark.parametrize("batch", [2048, 64])
def test_training_lowers_the_loss_and_parts_the_classes(
    batch: int, clusters: Any, memory_gallery: Any
) -> None:
    vectors, labels = world(clusters)
    gallery = memory_gallery(vectors)
    alike = labels[:, None] == labels
    np.fill_diagonal(alike, False)

    def apart(steps: int) -> float:
        known = GSS(steps=steps, rate=1e-3, batch=batch).fit(gallery).embedded
        assert known is not None
        table = known.e.astype(np.float32) @ known.e.astype(np.float32).T
        return float(table[alike].mean() - table[labels[:, None] != labels].mean())

    plain = vectors @ vectors.T
    before = float(plain[alike].mean() - plain[labels[:, None] != labels].mean())
    assert apart(0) > before
    assert apart(40) > apart(0)


def test_an_update_is_a_new_embedding_with_the_same_weights(clusters: Any, memory_gallery: Any) -> None:
    vectors, _ = world(clusters)
    gallery = memory_gallery(vectors[:190])
    method = GSS(steps=4).fit(gallery)
    gallery.remove([5, 60])
    gallery.add(np.arange(190, 196), vectors[190:196])
    gallery.add([9], vectors[[17]] + 0.05)
    with pytest.raises(NotFittedError, match="fit"):
        method.rerank(gallery.search(vectors[0], 20))
    weights = method.embedded.weights
    method.fit(gallery)
    assert method.embedded.weights is weights
    assert method.embedded.touched == 9
    fresh = GSS(steps=0).fit(memory_gallery(gallery._vectors, gallery.ids()))
    known = fresh.embedded
    other = type(known).made(
        weights,
        gss_module.KnnGraph.of(gallery, 31),
        known.mix,
        known.degrees,
        gss_module.fetcher(gallery, gallery.ids()),
        0.3,
        None,
    )
    np.testing.assert_allclose(method.embedded.e, other.e, atol=2e-3)
    np.testing.assert_allclose(method.embedded.z1, other.z1, atol=2e-3)
    gallery.add(np.arange(500, 560), np.roll(vectors[:60], 3, axis=1))
    assert method.fit(gallery).embedded.touched == 0, "too much has changed: trained again"


def test_an_interrupted_training_goes_on(
    clusters: Any, memory_gallery: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors, _ = world(clusters)
    gallery = memory_gallery(vectors)
    gallery.path = tmp_path / "g.kin"
    plain, calls = network.pair_loss, []

    def interrupted(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 33:
            raise KeyboardInterrupt
        return plain(*arguments)

    monkeypatch.setattr(network, "pair_loss", interrupted)
    with pytest.raises(KeyboardInterrupt):
        GSS(steps=45).fit(gallery)
    calls.clear()
    resumed = GSS(steps=45)
    monkeypatch.setattr(network, "pair_loss", lambda *a: calls.append(1) or plain(*a))
    resumed.fit(gallery)
    assert len(calls) == 25, "the first twenty steps were kept"
    calls.clear()
    assert GSS(steps=45).fit(gallery).embedded is not None
    assert calls == [], "all is loaded"
    unbroken = GSS(steps=45).fit(memory_gallery(vectors))
    np.testing.assert_allclose(resumed.embedded.e, unbroken.embedded.e, atol=2e-3)


@pytest.mark.parametrize("size", [3, 4, 40])
def test_small_galleries(size: int, clusters: Any, memory_gallery: Any) -> None:
    vectors, _ = world(clusters)
    gallery = memory_gallery(vectors[:size])
    method = GSS(steps=2).fit(gallery)
    for k in (1, size):
        candidates = gallery.search(vectors[0], k)
        assert sorted(method.rerank(candidates).ids.tolist()) == sorted(candidates.ids.tolist())


def test_errors_say_what(clusters: Any, memory_gallery: Any) -> None:
    vectors, _ = world(clusters)
    fitted = GSS(steps=0).fit(memory_gallery(vectors))
    with pytest.raises(InputError, match=r"have 9 dimensions, the gallery .* has 16"):
        fitted.rerank(Candidates.from_vectors(vectors[0, :9], vectors[:, :9]))
    with pytest.raises(InputError, match="id 900 is not in the gallery"):
        fitted.rerank(Candidates.from_vectors(vectors[0], vectors[:1], [900]))
    with pytest.raises(NotFittedError, match="fit"):
        GSS().rerank(Candidates.from_vectors(vectors[0], vectors))
    for bad in ({"k": 0}, {"steps": -1}, {"percentile": 100.0}, {"rate": 0.0}):
        with pytest.raises(SpecError, match=next(iter(bad))):
            GSS(**bad)
