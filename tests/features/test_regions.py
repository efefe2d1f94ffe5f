"""Stable regions of activation maps against a tree built pixel by pixel, and their ellipses."""

import numpy as np
import pytest

from kinrank.errors import InputError
from kinrank.features import regions
from kinrank.features.regions import region_features, stable_regions, words


def flood(mask):
    """Connected sets of cells, by walking."""
    left, found = set(zip(*(a.tolist() for a in np.nonzero(mask)))), []
    while left:
        todo, region = [left.pop()], set()
        while todo:
            y, x = todo.pop()
            region.add((y, x))
            for cell in ((y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)):
                if cell in left:
                    left.remove(cell)
                    todo.append(cell)
        found.append(frozenset(region))
    return found


def slow_regions(plane, delta):
    """Every threshold's components, their parents by inclusion, and the published rules, one by one."""
    nodes = [(t, cells) for t in range(int(plane.max())) for cells in flood(plane > t)]

    def parent(node):
        for t, cells in nodes:
            if t == node[0] - 1 and node[1] <= cells:
                return t, cells
        return None

    def variation(node):
        low = node
        for _ in range(delta):
            low = parent(low) or low
        return (len(low[1]) - len(node[1])) / len(node[1])

    kept = []
    for node in nodes:
        v, size = variation(node), len(node[1])
        up = parent(node)
        children = [n for n in nodes if n[0] == node[0] + 1 and n[1] <= node[1]]
        if v > 0.5 or (up and v >= variation(up)) or any(variation(c) < v for c in children):
            continue
        if size < max(2, 0.001 * plane.size) or size > 0.75 * plane.size:
            continue
        around = [cells for t, cells in kept if t < node[0] and node[1] <= cells]
        outer = min(around, key=len, default=None)
        if outer is None or (len(outer) - size) / len(outer) >= 0.7:
            kept.append(node)
    return [cells for _, cells in kept]


@pytest.fixture
def maps():
    from scipy.ndimage import gaussian_filter

    rng = np.random.default_rng(0)
    return np.maximum(gaussian_filter(rng.normal(size=(5, 18, 23)), (0, 1.6, 1.6)) - 0.02, 0)


def test_regions_are_those_of_the_slow_tree(maps):
    top = maps.max()
    levels = np.minimum(np.ceil(maps * (regions._LEVELS / top)), regions._LEVELS).astype(int)
    delta = regions._delta(levels)
    found = stable_regions(maps, per_channel=100)
    total = 0
    for channel in range(len(maps)):
        expected = []
        for cells in slow_regions(levels[channel], delta):
            y, x = np.array(sorted(cells)).T
            expected.append((len(cells), x.mean(), y.mean(), maps[channel, y, x].max()))
        mine = found.channels == channel
        got = np.column_stack([found.points[mine, 0], found.points[mine, 1], found.values[mine]])
        expected = np.array([e[1:] for e in expected]).reshape(-1, 3)
        assert len(got) == len(expected)
        np.testing.assert_allclose(got[np.lexsort(got.T)], expected[np.lexsort(expected.T)], atol=1e-4)
        total += len(got)
    assert total > 10


def test_the_ellipse_has_the_moments_of_the_region():
    maps = np.zeros((1, 30, 40), np.float32)
    y, x = np.mgrid[:30, :40]
    inside = ((x - 20) * 0.8 + (y - 12) * 0.6) ** 2 / 64 + ((y - 12) * 0.8 - (x - 20) * 0.6) ** 2 / 9 <= 1
    maps[0, inside] = 5
    found = stable_regions(maps)
    assert len(found.values) == 1 and found.values[0] == 5
    a, b, c = found.points[0, 2:]
    frame = np.array([[a, 0], [b, c]])
    cells = np.stack([x[inside], y[inside]])
    np.testing.assert_allclose(found.points[0, :2], cells.mean(axis=1), atol=1e-5)
    np.testing.assert_allclose(
        frame @ frame.T, np.cov(cells, bias=True) + np.eye(2) / 12, rtol=1e-4, atol=1e-4
    )


def test_a_channel_is_capped_and_a_cluttered_one_says_nothing():
    maps = np.zeros((3, 40, 40), np.float32)
    for i in range(6):  # six blobs of rising strength in channel 0, a grid of 100 in channel 1
        maps[0, 6 * i : 6 * i + 3, 4:8] = i + 1
    maps[1, ::4, ::4] = maps[1, 1::4, ::4] = 3
    found = stable_regions(maps, per_channel=4)
    assert found.channels.tolist() == [0, 0, 0, 0]
    assert found.values.tolist() == [6, 5, 4, 3]
    assert len(stable_regions(np.zeros((2, 5, 5))).values) == 0
    with pytest.raises(InputError, match=r"\(C, H, W\)"):
        stable_regions(np.zeros((5, 5)))


def test_scales_and_channels_are_kept_in_bytes(maps):
    many = np.zeros((700, 18, 23), np.float32)
    many[690:695] = maps
    features = region_features([many, many[:, ::2, ::2]], (180, 230), count=30)
    assert len(features) == 30 and features.descriptors.dtype == np.uint8
    assert set(words(features).tolist()) <= set(range(690, 695))
    assert set(features.descriptors[:, 2].tolist()) == {0, 1}
