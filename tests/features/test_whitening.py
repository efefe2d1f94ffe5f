"""Whitening against dense textbook forms, scikit-learn and what it promises."""

import numpy as np
import pytest

from kinrank.errors import InputError
from kinrank.features import whitening
from kinrank.features.whitening import Whitening


@pytest.fixture
def pairs():
    """400 vectors of 12 dimensions, row i and row i + 200 being the same thing seen twice."""
    rng = np.random.default_rng(0)
    things = rng.normal(size=(200, 12)) * np.linspace(3, 0.5, 12)
    mix = rng.normal(size=(12, 12))
    views = np.concatenate([things, things + 0.3 * rng.normal(size=things.shape) @ mix])
    return views.astype(np.float32) + 0.5, np.arange(200), np.arange(200, 400)


def slow_learned(vectors, queries, positives):
    """inv(chol(S)), then the eigenvectors of the transformed scatter, loop by loop."""
    x = vectors.astype(np.float64)
    mean = np.zeros(x.shape[1])
    for q in queries:
        mean += x[q] / len(queries)
    s = np.zeros((x.shape[1],) * 2)
    for q, p in zip(queries, positives):
        s += np.outer(x[q] - x[p], x[q] - x[p]) / len(queries)
    p = np.linalg.inv(np.linalg.cholesky(s))
    d = np.zeros_like(s)
    for row in x:
        y = p @ (row - mean)
        d += np.outer(y, y)
    values, axes = np.linalg.eig(d)
    axes = axes[:, np.argsort(-values.real)].real
    return mean, axes.T @ p


def test_learned_is_the_written_out_form(pairs):
    mean, projection = slow_learned(*pairs)
    fitted = whitening.learn(*pairs)
    np.testing.assert_allclose(fitted.mean, mean, rtol=1e-5)
    signs = np.sign((fitted.projection * projection).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(fitted.projection, signs * projection, rtol=1e-3, atol=1e-4)


def test_learned_gives_differences_unit_covariance(pairs):
    vectors, queries, positives = pairs
    fitted = whitening.learn(*pairs)
    moved = (vectors[queries] - vectors[positives]) @ fitted.projection.T
    np.testing.assert_allclose(moved.T @ moved / len(moved), np.eye(12), atol=1e-3)


def test_learned_brings_pairs_together(pairs):
    vectors, queries, positives = pairs
    hits = []
    for rows in (
        vectors / np.linalg.norm(vectors, axis=1, keepdims=True),
        whitening.learn(*pairs).apply(vectors),
    ):
        hits.append((np.argmax(rows[queries] @ rows[positives].T, axis=1) == np.arange(200)).mean())
    assert hits[1] > hits[0] + 0.05


def test_pca_is_sklearns(pairs):
    from sklearn.decomposition import PCA

    vectors = pairs[0]
    ours = whitening.learn_pca(vectors, dims=5)
    theirs = PCA(5, whiten=True, svd_solver="full").fit(vectors)
    expected = theirs.transform(vectors)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    got = ours.apply(vectors)
    np.testing.assert_allclose(got * np.sign((got * expected).sum(axis=0)), expected, atol=1e-3)


def test_pca_without_shrinkage_only_rotates(pairs):
    vectors = pairs[0]
    turned = (vectors - vectors.mean(axis=0)) @ whitening.learn_pca(vectors, shrinkage=0).projection.T
    centred = vectors - vectors.mean(axis=0)
    np.testing.assert_allclose(turned @ turned.T, centred @ centred.T, rtol=1e-3, atol=2e-3)


def test_fewer_vectors_than_dimensions():
    vectors = np.random.default_rng(1).normal(size=(6, 20)).astype(np.float32)
    assert whitening.learn_pca(vectors).projection.shape == (5, 20)  # six points span five axes
    fitted = whitening.learn(vectors, [0, 2], [1, 3])  # S is singular: the diagonal is raised
    assert np.isfinite(fitted.apply(vectors)).all()


def test_blocks_do_not_change_the_fit(pairs, monkeypatch):
    whole = whitening.learn(*pairs)
    monkeypatch.setattr(whitening, "_BLOCK", 37)
    np.testing.assert_allclose(whitening.learn(*pairs).projection, whole.projection, atol=1e-4)


def test_saved_and_loaded(pairs, tmp_path):
    fitted = whitening.learn(*pairs)
    loaded = Whitening.load(fitted.save(tmp_path / "lw.npz"))
    np.testing.assert_array_equal(loaded.apply(pairs[0], dims=4), fitted.apply(pairs[0], dims=4))
    np.testing.assert_allclose(np.linalg.norm(loaded.apply(pairs[0][0])), 1, atol=1e-4)


def test_bad_input_is_refused(pairs, tmp_path):
    fitted = whitening.learn(*pairs)
    with pytest.raises(InputError, match="fitted to 12"):
        fitted.apply(np.ones((2, 5)))
    with pytest.raises(InputError, match="between 1 and 12"):
        fitted.apply(pairs[0], dims=13)
    with pytest.raises(InputError, match="as many"):
        whitening.learn(pairs[0], [1, 2], [1])
    with pytest.raises(InputError, match="NaN"):
        whitening.learn_pca(np.full((3, 2), np.nan))
    (tmp_path / "x.npz").write_bytes(b"not a zip")
    with pytest.raises(InputError, match="holds no whitening"):
        Whitening.load(tmp_path / "x.npz")
