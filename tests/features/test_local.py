"""Local features: what SIFT finds, kept in a folder, resumed, replaced and refused."""

import json

import numpy as np
import pytest

from kinrank.errors import GalleryError, InputError
from kinrank.features.local import LocalFeatures, LocalStore, companion, extract_local, rootsift

pytest.importorskip("cv2", reason="needs the extra 'local'")


def picture(seed: int, size: tuple[int, int] = (240, 320)) -> np.ndarray:
    """Discs and squares at random: something with corners."""
    import cv2

    rng = np.random.default_rng(seed)
    image = np.full(size, 128, np.uint8)
    for _ in range(80):
        x, y = (int(v) for v in rng.integers(0, (size[1], size[0])))
        r, grey = int(rng.integers(4, 30)), int(rng.integers(0, 255))
        if rng.random() < 0.5:
            cv2.circle(image, (x, y), r, grey, -1)
        else:
            cv2.rectangle(image, (x, y), (x + r, y + r), grey, -1)
    return image


@pytest.fixture
def photos(tmp_path):
    from PIL import Image

    paths = []
    for i in range(5):
        paths.append((i, tmp_path / f"p{i}.png"))
        Image.fromarray(picture(i)).save(paths[-1][1])
    return paths


def test_rootsift_is_the_root_of_sift():
    import cv2

    image = picture(0)
    found, raw = cv2.SIFT_create(nfeatures=300).detectAndCompute(image, None)
    features = rootsift(image, count=300)
    assert len(features) == min(300, len(found)) and features.shape == (240, 320)
    expected = {
        (round(p.pt[0] - 160, 3), round(p.pt[1] - 120, 3), round(p.angle, 2)): d for p, d in zip(found, raw)
    }
    for point, descriptor in zip(features.points, features.descriptors):
        slow = expected[(round(float(point[0]), 3), round(float(point[1]), 3), round(float(point[3]), 2))]
        slow = [min(255, round(512 * (v / sum(slow)) ** 0.5)) for v in slow.tolist()]
        assert np.abs(np.array(slow) - descriptor).max() <= 1
    responses = {(round(p.pt[0] - 160, 3), round(p.pt[1] - 120, 3)): p.response for p in found}
    order = [responses[(round(float(x), 3), round(float(y), 3))] for x, y in features.points[:, :2]]
    assert order == sorted(order, reverse=True)


def test_large_pictures_are_brought_down_and_blank_ones_have_nothing():
    assert max(rootsift(picture(1, (900, 1200)), size=400).shape) == 400
    assert len(rootsift(np.full((64, 64), 7, np.uint8))) == 0


def test_the_folder_gives_back_what_was_put(photos, tmp_path):
    done = extract_local(photos, tmp_path / "store", count=200)
    assert (done.made, done.skipped, done.unreadable) == (5, 0, [])
    store = LocalStore.open(tmp_path / "store")
    assert sorted(store) == ["0", "1", "2", "3", "4"] and 9 not in store
    for i, path in photos:
        fresh, kept = rootsift(path, count=200), store[str(i)]
        np.testing.assert_array_equal(kept.descriptors, fresh.descriptors)
        np.testing.assert_allclose(kept.points[:, :2], fresh.points[:, :2], atol=0.07)  # float16 near 160
        assert kept.shape == fresh.shape
    assert isinstance(np.load(tmp_path / "store" / "000000.points.npy", mmap_mode="r"), np.memmap)


def test_what_is_done_is_skipped_and_what_changed_is_not(photos, tmp_path):
    from PIL import Image

    extract_local(photos[:3], tmp_path / "store")
    assert extract_local(photos, tmp_path / "store").skipped == 3
    Image.fromarray(picture(99)).save(photos[1][1])
    again = extract_local(photos, tmp_path / "store")
    assert (again.made, again.skipped) == (1, 4)
    fresh = rootsift(picture(99))
    np.testing.assert_array_equal(LocalStore.open(tmp_path / "store")["1"].descriptors, fresh.descriptors)


def test_an_interruption_keeps_what_was_made(photos, tmp_path, monkeypatch):
    from kinrank.features import local

    monkeypatch.setattr(local, "_SHARD", 2)

    def interrupted():
        yield from photos[:4]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract_local(interrupted(), tmp_path / "store")
    assert len(LocalStore.open(tmp_path / "store")) == 4
    assert extract_local(photos, tmp_path / "store").made == 1


def test_a_shard_without_its_table_does_not_count(photos, tmp_path):
    extract_local(photos[:2], tmp_path / "store")
    (tmp_path / "store" / "000000.json").unlink()  # as if the machine had stopped before it was written
    assert extract_local(photos, tmp_path / "store").made == 5
    assert len(LocalStore.open(tmp_path / "store")) == 5


def test_unreadable_pictures_are_named(photos, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no picture")
    done = extract_local([*photos, (7, tmp_path / "bad.png"), (8, tmp_path / "gone.png")], tmp_path / "store")
    assert done.made == 5 and [name.rpartition("/")[2] for name, _ in done.unreadable] == [
        "bad.png",
        "gone.png",
    ]


def test_other_settings_are_refused(photos, tmp_path):
    extract_local(photos[:1], tmp_path / "store", count=100)
    with pytest.raises(InputError, match="cure"):
        extract_local(photos, tmp_path / "store", count=200)


def test_missing_and_damaged_folders_say_the_cure(photos, tmp_path):
    with pytest.raises(GalleryError, match="kinrank index"):
        LocalStore.open(tmp_path / "none")
    extract_local(photos[:1], tmp_path / "store")
    (tmp_path / "store" / "000000.descriptors.npy").write_bytes(b"x")
    with pytest.raises(GalleryError, match="extract again"):
        LocalStore.open(tmp_path / "store")["0"]
    (tmp_path / "store" / "000000.json").write_text(json.dumps({"ids": ["0"]}))
    with pytest.raises(GalleryError, match="damaged"):
        LocalStore.open(tmp_path / "store")


def test_replacing_and_naming(tmp_path):
    store = LocalStore.create(tmp_path / "s", {"kind": "rootsift"})
    one = LocalFeatures(np.ones((2, 4), np.float32), np.ones((2, 128), np.uint8), (5, 6))
    two = LocalFeatures(np.zeros((3, 4), np.float32), np.zeros((3, 128), np.uint8), (5, 6))
    store.add({"Küche/bild 猫.jpg": one, "b": one})
    store.add({"b": two})
    for seen in (store, LocalStore.open(tmp_path / "s")):
        assert len(seen["Küche/bild 猫.jpg"]) == 2 and len(seen["b"]) == 3
    assert companion("a/photos.kin").name == "photos.kin.local"
    assert companion("a/photos.kin", "dsm").name == "photos.kin.dsm"
