"""RANSAC verification: inliers are the true ones, real objects separate, weak matches change nothing."""

import numpy as np
import pytest

from kinrank.errors import InputError, NotFittedError, SpecError
from kinrank.features.local import LocalFeatures, LocalStore, extract_local, rootsift
from kinrank.rerankers.matching import mutual_matches, unit_bytes
from kinrank.rerankers.ransac import Ransac, inliers
from kinrank.spec import reranker
from kinrank.types import Candidates

cv2 = pytest.importorskip("cv2", reason="needs the extra 'local'")

TURNED = np.array([[0.9, -0.25, 40.0], [0.3, 0.8, 10.0], [2e-4, -1e-4, 1.0]])


def project(matrix, points):
    lifted = np.concatenate([points, np.ones((len(points), 1))], axis=1) @ matrix.T
    return lifted[:, :2] / lifted[:, 2:]


def textured(seed, size=(360, 480)):
    rng = np.random.default_rng(seed)
    image = cv2.resize(
        rng.integers(0, 255, (45, 60), dtype=np.uint8), size[::-1], interpolation=cv2.INTER_CUBIC
    )
    for _ in range(60):
        x, y, r = (int(v) for v in rng.integers((0, 0, 4), (size[1], size[0], 26)))
        cv2.circle(image, (x, y), r, int(rng.integers(0, 255)), -1)
    return image


@pytest.mark.parametrize("model", ["homography", "affine"])
def test_inliers_of_made_up_matches_are_the_true_ones(model):
    rng = np.random.default_rng(0)
    matrix = TURNED.copy()
    if model == "affine":
        matrix[2] = (0, 0, 1)
    source = rng.uniform(0, 500, (200, 2))
    target = project(matrix, source) + rng.normal(scale=0.3, size=(200, 2))
    target[120:] = rng.uniform(0, 500, (80, 2))
    found = inliers(source.astype(np.float32), target.astype(np.float32), model, residual=3.0)
    assert found[:120].mean() > 0.98
    true = np.linalg.norm(project(matrix, source) - target, axis=1) < 4
    assert not (found & ~true).any()


def test_inliers_of_a_warped_picture_are_the_true_ones():
    image = textured(1)
    warped = cv2.warpPerspective(image, TURNED, (480, 360))
    one, two = rootsift(image), rootsift(warped)
    matches = mutual_matches(one.descriptors, two.descriptors)
    centre = np.array([240, 180])
    source, target = one.points[matches[:, 0], :2] + centre, two.points[matches[:, 1], :2] + centre
    error = np.linalg.norm(project(TURNED, source) - target, axis=1)
    found = inliers(source, target)
    assert found.sum() > 50
    assert (error[found] < 8).all()
    assert found[error < 1].mean() > 0.97
    assert Ransac(features={}).agreement(one, two) == found.sum()


def test_strangers_and_mirrored_pictures_do_not_agree():
    one = rootsift(textured(1))
    method = Ransac(features={})
    assert max(method.agreement(one, rootsift(textured(seed))) for seed in range(2, 8)) < method.floor
    source = np.random.default_rng(0).uniform(0, 300, (60, 2)).astype(np.float32)
    assert inliers(source, source).all()
    assert not inliers(source, source * [-1, 1]).any()
    assert not inliers(source[:3], source[:3]).any()


def test_matches_are_the_mutual_nearest_by_distance():
    rng = np.random.default_rng(3)
    base = rng.integers(0, 255, (40, 128), dtype=np.uint8)
    one = np.concatenate([base[:30], rng.integers(0, 255, (15, 128), dtype=np.uint8)])
    two = np.clip(base[::-1].astype(int) + rng.integers(-40, 40, (40, 128)), 0, 255).astype(np.uint8)
    slow = []
    a, b = unit_bytes(one).astype(float), unit_bytes(two).astype(float)
    for i in range(len(a)):
        forth = sorted((np.linalg.norm(a[i] - b[j]), j) for j in range(len(b)))
        j = forth[0][1]
        back = min((np.linalg.norm(a[k] - b[j]), k) for k in range(len(a)))[1]
        if back == i and forth[0][0] < 0.8 * forth[1][0]:
            slow.append((i, j))
    assert mutual_matches(one, two, 0.8).tolist() == [list(pair) for pair in slow]
    assert len(slow) >= 25
    assert mutual_matches(one[:0], two).shape == (0, 2)
    assert mutual_matches(one[[3, 3, 5]], two, 0.8).tolist() == [
        [0, 36],
        [2, 34],
    ], "of equal ones the first"


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """A gallery of 12 textures; the object of the query is the last of the list, seen from elsewhere."""
    from PIL import Image

    tmp_path = tmp_path_factory.mktemp("scene")
    pictures = [textured(seed) for seed in range(20, 32)]
    pictures[11] = cv2.warpPerspective(textured(1), TURNED, (480, 360))
    paths = []
    for i, image in enumerate(pictures):
        paths.append((100 + i, tmp_path / f"{i}.png"))
        Image.fromarray(image).save(paths[-1][1])
    extract_local(paths, tmp_path / "g.kin.local")
    vectors = np.eye(13, dtype=np.float32)[:12] + np.linspace(0.5, 0.1, 12)[:, None].astype(np.float32)
    candidates = Candidates(np.arange(100, 112), np.linspace(0.9, 0.5, 12), vectors, np.ones(13))
    return candidates, tmp_path / "g.kin.local"


def test_a_verified_candidate_rises_and_the_rest_keep_their_order(scene):
    candidates, folder = scene
    ranking = reranker(f"ransac:features='{folder}'").with_query(textured(1)).rerank(candidates)
    assert ranking.ids.tolist() == [111, *range(100, 111)]


def test_weak_matches_change_nothing(scene):
    candidates, folder = scene
    ranking = Ransac(str(folder)).with_query(textured(77)).rerank(candidates)
    assert ranking.ids.tolist() == candidates.ids.tolist()
    np.testing.assert_array_equal(ranking.scores, candidates.scores)
    high = Ransac(str(folder), floor=10**6).with_query(textured(1)).rerank(candidates)
    assert high.ids.tolist() == candidates.ids.tolist()


def test_only_the_top_is_verified(scene):
    candidates, folder = scene
    assert Ransac(str(folder), top=11).with_query(textured(1)).agreements(candidates)[11] == 0
    assert Ransac(str(folder), top=12).with_query(textured(1)).agreements(candidates)[11] > 50


def test_the_scale_of_the_scores_does_not_matter(scene):
    candidates, folder = scene
    method = Ransac(str(folder), weight=0.5).with_query(textured(1))
    small = candidates.take(np.arange(12), candidates.scores * 1e-3)
    assert method.rerank(small).ids.tolist() == method.rerank(candidates).ids.tolist()


def test_fit_finds_the_folder_beside_the_gallery(scene, memory_gallery):
    candidates, folder = scene
    gallery = memory_gallery(candidates.vectors, candidates.ids)
    with pytest.raises(InputError, match="kinrank index FOLDER -g GALLERY --local"):
        Ransac().fit(gallery)
    gallery.location = folder.parent / "g.kin"
    chain = reranker("ransac+none").fit(gallery).with_query(textured(1))
    assert chain.rerank(candidates).ids[0] == 111
    augmented = reranker("adba:k=2+ransac").fit(gallery).with_query(textured(1))
    assert augmented.rerank(candidates).ids[0] == 111
    chained = reranker("affinity+ransac").fit(gallery).with_query(folder.parent / "11.png").rerank(candidates)
    assert chained.ids[0] == 111


def test_what_is_missing_is_said(scene):
    candidates, folder = scene
    with pytest.raises(InputError, match=r"ransac:features=FOLDER"):
        Ransac().with_query(textured(1)).rerank(candidates)
    with pytest.raises(InputError, match="with_query"):
        Ransac(str(folder)).rerank(candidates)
    strangers = Candidates(np.arange(12), candidates.scores, candidates.vectors, candidates.query)
    with pytest.raises(InputError, match="none of the candidates"):
        Ransac(str(folder)).with_query(textured(1)).rerank(strangers)
    for bad in ("model=rigid", "ratio=0", "floor=0", "weight=-1"):
        with pytest.raises(SpecError):
            reranker(f"ransac:{bad}")
    assert not issubclass(InputError, NotFittedError)


@pytest.mark.shared
def test_real_packages_separate_from_others(shared_data):
    """Ten planar objects, photographed twice: the same object beats nine others by inliers."""
    folders = sorted((shared_data / "photos").glob("Packages_*"))[::3][:10]
    pairs = [sorted(folder.glob("*.jpg"))[:2] for folder in folders]
    left = [rootsift(pair[0]) for pair in pairs]
    right = [rootsift(pair[1]) for pair in pairs]
    method = Ransac(features={})
    table = np.array([[method.agreement(a, b) for b in right] for a in left])
    assert (table.argmax(axis=1) == np.arange(len(pairs))).mean() >= 0.8
    same, other = np.diag(table), table[~np.eye(len(pairs), dtype=bool)]
    assert np.median(same) > 5 * np.median(other)


def test_a_store_of_another_kind_is_refused(tmp_path):
    store = LocalStore.create(tmp_path / "d", {"kind": "dsm"})
    store.add({"1": LocalFeatures(np.zeros((1, 5), np.float32), np.zeros((1, 3), np.uint8), (3, 3))})
    with pytest.raises(InputError, match="kind rootsift"):
        Ransac(str(tmp_path / "d")).with_query(textured(1))
