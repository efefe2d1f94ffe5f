"""Spatial coding against the paper's loops, and on pictures seen from elsewhere."""

import math

import numpy as np
import pytest

from kinrank.rerankers.spatial import SpatialCoding, consistent, dominant_angle, spatial_maps, turned


def slow_consistent(source, target, r):
    """Maps by loops, exclusive or, and the worst dropped until none contradicts."""
    alive = list(range(len(source)))
    while True:
        sums = {}
        for i in alive:
            total = 0
            for j in alive:
                for k in range(r):
                    a = k * math.pi / (2 * r)
                    for axis in ((math.cos(a), math.sin(a)), (-math.sin(a), math.cos(a))):
                        one = [axis[0] * p[0] + axis[1] * p[1] for p in (source[i], source[j])]
                        two = [axis[0] * p[0] + axis[1] * p[1] for p in (target[i], target[j])]
                        total += (one[0] < one[1]) != (two[0] < two[1])
            sums[i] = total
        worst = max(alive, key=lambda i: sums[i])
        if sums[worst] == 0:
            return alive
        alive.remove(worst)


@pytest.mark.parametrize("r", [1, 2, 4])
def test_what_survives_is_what_survives_in_loops(r):
    rng = np.random.default_rng(r)
    source = rng.uniform(-100, 100, (25, 2))
    target = 1.3 * source + 7
    target[[2, 9, 17, 18, 21]] = rng.uniform(-100, 100, (5, 2))
    kept = consistent(source, target, r)
    assert np.flatnonzero(kept).tolist() == slow_consistent(source, target, r)
    assert kept.sum() >= 15


def test_the_first_maps_are_left_of_and_above():
    points = np.array([[0.0, 5.0], [3.0, 1.0], [3.0, 9.0]])
    maps = spatial_maps(points, 2)
    assert maps.shape == (4, 3, 3)
    assert maps[0].tolist() == [[False, True, True], [False, False, False], [False, False, False]]
    assert maps[1].tolist() == [[False, False, True], [True, False, True], [False, False, False]]


def test_scale_and_shift_keep_all_and_a_mirror_does_not():
    points = np.random.default_rng(5).normal(size=(60, 2))
    assert consistent(points, 0.4 * points - 3, 3).all()
    assert consistent(points, points * [-1, 1], 3).sum() < 12
    assert consistent(points, points[::-1], 3).sum() < 12


def test_the_dominant_angle_is_found_among_strangers():
    rng = np.random.default_rng(0)
    for true in (3.0, 91.0, 178.0, 359.0):
        angles = np.concatenate([true + rng.normal(scale=4, size=40), rng.uniform(0, 360, 30)])
        error = (np.rad2deg(dominant_angle(angles)) - true + 180) % 360 - 180
        assert abs(error) < 4
    np.testing.assert_allclose(turned(np.array([[1.0, 0.0]]), np.pi / 2), [[0, 1]], atol=1e-12)


@pytest.fixture(scope="module")
def objects():
    cv2 = pytest.importorskip("cv2", reason="needs the extra 'local'")

    def textured(seed):
        rng = np.random.default_rng(seed)
        image = cv2.resize(
            rng.integers(0, 255, (30, 40), dtype=np.uint8), (400, 300), interpolation=cv2.INTER_CUBIC
        )
        for _ in range(60):
            x, y, r = (int(v) for v in rng.integers((0, 0, 4), (400, 300, 26)))
            cv2.circle(image, (x, y), r, int(rng.integers(0, 255)), -1)
        return image

    return cv2, textured


@pytest.mark.parametrize("degrees", [0, 25, 90, 180])
def test_a_turned_object_agrees_and_strangers_do_not(objects, degrees):
    from kinrank.features.local import rootsift

    cv2, textured = objects
    image = textured(1)
    matrix = cv2.getRotationMatrix2D((200, 150), degrees, 0.8)
    query, seen = rootsift(image), rootsift(cv2.warpAffine(image, matrix, (400, 300)))
    method = SpatialCoding(features={})
    strangers = [rootsift(textured(seed)) for seed in range(2, 7)]
    assert method.agreement(query, seen) > 40
    assert max(method.agreement(query, other) for other in strangers) < method.floor
    if degrees == 180:
        assert SpatialCoding(features={}, upright=True).agreement(query, seen) < 20


@pytest.mark.shared
def test_real_packages_separate_from_others(shared_data):
    from kinrank.features.local import rootsift

    folders = sorted((shared_data / "photos").glob("Packages_*"))[::3][:10]
    pairs = [sorted(folder.glob("*.jpg"))[:2] for folder in folders]
    left, right = ([rootsift(pair[side]) for pair in pairs] for side in (0, 1))
    method = SpatialCoding(features={})
    table = np.array([[method.agreement(a, b) for b in right] for a in left])
    assert (table.argmax(axis=1) == np.arange(len(pairs))).mean() >= 0.7
    same, other = np.diag(table), table[~np.eye(len(pairs), dtype=bool)]
    assert np.median(same) > 3 * max(1, np.median(other))
