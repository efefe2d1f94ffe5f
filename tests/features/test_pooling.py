"""Pooling against slow loops written from the papers."""

import math

import numpy as np
import pytest

from kinrank.errors import InputError
from kinrank.features import pooling


@pytest.fixture
def maps():
    return np.maximum(np.random.default_rng(0).normal(size=(6, 5, 9)), 0)


def slow_gem(maps, p, eps=1e-6):
    out = []
    for channel, power in zip(maps, np.broadcast_to(p, len(maps))):
        total = 0.0
        for value in channel.ravel():
            total += max(value, eps) ** power
        out.append((total / channel.size) ** (1 / power))
    return np.array(out)


def slow_rmac(maps, levels=3):
    """Loops over levels, regions, channels and cells, with the region grid of the published description."""
    channels, height, width = maps.shape
    short, long = min(height, width), max(height, width)
    best, more = 9e9, 0
    for steps in range(2, 8):
        b = (long - short) / (steps - 1)
        off = abs((short**2 - short * b) / short**2 - 0.4)
        if off < best:
            best, more = off, steps - 1
    if height == width:
        more = 0
    down, right = (more if height > width else 0), (more if width > height else 0)

    def unit(v):
        return [x / (math.sqrt(sum(y * y for y in v)) + 1e-6) for x in v]

    total = np.array(unit([max(maps[c].ravel()) for c in range(channels)]))
    for level in range(1, levels + 1):
        side = math.floor(2 * short / (level + 1))
        if side == 0:
            break
        half = math.floor(side / 2 - 1)
        for i in range(level + down):
            for j in range(level + right):
                by = 0 if level + down == 1 else (height - side) / (level + down - 1)
                bx = 0 if level + right == 1 else (width - side) / (level + right - 1)
                top, left = math.floor(half + i * by) - half, math.floor(half + j * bx) - half
                region = maps[:, top : top + side, left : left + side]
                total += unit([max(region[c].ravel()) for c in range(channels)])
    return total


@pytest.mark.parametrize("p", [1.0, 2.5, 3.0, 80.0, np.array([1, 2, 3, 4, 5, 6.0])])
def test_gem_is_the_written_out_mean(maps, p):
    np.testing.assert_allclose(pooling.gem(maps, p), slow_gem(maps, p), rtol=1e-9)


def test_gem_runs_from_the_mean_to_the_maximum(maps):
    np.testing.assert_allclose(pooling.gem(maps + 0.1, 1), pooling.spoc(maps + 0.1), rtol=1e-9)
    np.testing.assert_allclose(pooling.gem(maps, 2000), pooling.mac(maps), rtol=1e-2)
    assert np.isfinite(pooling.gem(maps.astype(np.float32) * 1e6, 60)).all()


def test_mac_and_spoc(maps):
    for c in range(len(maps)):
        assert pooling.mac(maps)[c] == max(maps[c].ravel())
        assert pooling.spoc(maps)[c] == pytest.approx(sum(maps[c].ravel()) / 45)


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (7, 7), (12, 4), (30, 22), (2, 3), (1, 1), (1, 8)])
def test_rmac_is_the_written_out_sum(shape):
    maps = np.maximum(np.random.default_rng(1).normal(size=(6, *shape)), 0)
    np.testing.assert_allclose(pooling.rmac(maps), slow_rmac(maps), rtol=1e-9)
    for top, left, side in pooling.rmac_regions(*shape):
        assert 0 <= top <= shape[0] - side and 0 <= left <= shape[1] - side


def test_square_map_has_the_fourteen_regions_of_the_paper():
    assert len(pooling.rmac_regions(30, 30)) == 1 + 4 + 9


def test_rmac_whitens_each_region(maps):
    flip = np.diag([1, -1, 1, -1, 2, 1.0])
    parts = [maps, *(maps[:, t : t + s, l : l + s] for t, l, s in pooling.rmac_regions(5, 9))]
    expected = sum(pooling.l2(flip @ pooling.l2(part.max(axis=(1, 2)))) for part in parts)
    np.testing.assert_allclose(pooling.rmac(maps, whiten=lambda rows: rows @ flip.T), expected, rtol=1e-6)


@pytest.mark.parametrize("name", pooling.POOLINGS)
def test_a_batch_is_its_images(name, maps):
    batch = np.stack([maps, maps[::-1], maps * 2])
    pool = pooling.POOLINGS[name]
    np.testing.assert_allclose(pool(batch), np.stack([pool(m) for m in batch]), rtol=1e-9)


def test_multi_scale_is_the_power_mean():
    vectors = np.abs(np.random.default_rng(2).normal(size=(3, 8)))
    for power in (1.0, 3.0):
        slow = np.array([(sum(v**power for v in column) / 3) ** (1 / power) for column in vectors.T])
        slow /= math.sqrt(sum(slow**2))
        np.testing.assert_allclose(pooling.multi_scale(vectors, power), slow, rtol=1e-5)
    assert sorted(pooling.SCALES) == pytest.approx([0.7071068, 1, 1.4142136])


def test_bad_input_is_refused(maps):
    with pytest.raises(InputError, match=r"\(C, H, W\)"):
        pooling.mac(np.zeros((3, 4)))
    with pytest.raises(InputError, match="positive"):
        pooling.gem(maps, 0)
    with pytest.raises(InputError, match="6 channels"):
        pooling.gem(maps, np.ones(5))
    with pytest.raises(InputError, match="negative"):
        pooling.multi_scale(np.array([[-1.0, 1]]), 3)
