"""A folder into a gallery: what is done is known by content, and nothing stops the rest."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kinrank.errors import GalleryError, InputError
from kinrank.features.backbones.local import LocalOnnx
from kinrank.features.extract import Report, content_hash, index_folder
from kinrank.features.images import read_image
from kinrank.gallery.gallery import Gallery


class Counting:
    """A backbone that counts what it embeds."""

    def __init__(self, path: Path) -> None:
        self.inner = LocalOnnx(path)
        self.identity, self.preprocess, self.dim = self.inner.identity, self.inner.preprocess, self.inner.dim
        self.batches: list[int] = []

    def embed(self, inputs: np.ndarray) -> np.ndarray:
        self.batches.append(len(inputs))
        return self.inner.embed(inputs)


@pytest.fixture
def backbone(network: Path) -> Counting:
    return Counting(network)


@pytest.fixture
def gallery(backbone: Counting, tmp_path: Path) -> Gallery:
    return Gallery.create(tmp_path / "g.kin", dim=backbone.dim)


def counts(report: Report) -> tuple[int, int, int, int, int]:
    return report.embedded, report.replaced, report.copied, report.unchanged, len(report.failed)


def test_every_picture_under_its_path(photos: Path, gallery: Gallery, backbone: Counting) -> None:
    seen: list[int] = []
    begun: list[int] = []
    report = index_folder(photos, gallery, backbone, batch=4, begin=begun.append, progress=seen.append)
    assert counts(report) == (9, 0, 0, 0, 0)
    assert gallery.ids().tolist() == [f"{n}.png" for n in (2, 5, 8)] + [
        *(f"a/{n}.png" for n in (0, 3, 6)),
        *(f"b/{n}.png" for n in (1, 4, 7)),
    ]
    assert (backbone.batches, begun, sum(seen), report.found) == ([4, 4, 1], [9], 9, 9)
    assert gallery.backbone == backbone.identity
    expected = backbone.inner.embed_images([read_image(photos / "a/3.png")])[0]
    np.testing.assert_allclose(
        gallery.vectors(["a/3.png"])[0], expected / np.linalg.norm(expected), atol=1e-6
    )
    entry = gallery.metadata(["a/3.png"])[0]
    raw = (photos / "a/3.png").read_bytes()
    assert entry == {
        "path": str(photos / "a/3.png"),
        "size": len(raw),
        "mtime_ns": os.stat(photos / "a/3.png").st_mtime_ns,
        "hash": content_hash(raw),
    }


def test_finished_work_is_skipped_and_replaced_files_are_not(
    photos: Path, gallery: Gallery, backbone: Counting, make_photo: Callable[..., Image.Image]
) -> None:
    index_folder(photos, gallery, backbone)
    backbone.batches.clear()
    assert counts(index_folder(photos, gallery, backbone)) == (0, 0, 0, 9, 0)
    before = gallery.vectors(["2.png", "5.png"])
    status = os.stat(photos / "2.png")
    os.utime(photos / "2.png", ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))  # touched, the same
    make_photo(99).save(photos / "5.png")  # replaced
    make_photo(50).save(photos / "b/new.png")
    assert counts(index_folder(photos, gallery, backbone)) == (2, 1, 0, 8, 0)
    assert sum(backbone.batches) == 2
    after = gallery.vectors(["2.png", "5.png"])
    np.testing.assert_allclose(after[0], before[0], atol=1e-6)
    assert np.abs(after[1] - before[1]).max() > 1e-3
    assert gallery.metadata(["2.png"])[0]["mtime_ns"] == status.st_mtime_ns + 10**9
    assert counts(index_folder(photos, gallery, backbone)) == (0, 0, 0, 10, 0)


def test_a_replaced_file_of_the_same_size(gallery: Gallery, backbone: Counting, tmp_path: Path) -> None:
    folder = tmp_path / "bmp"
    folder.mkdir()
    Image.new("RGB", (50, 50), "red").save(folder / "x.bmp")
    index_folder(folder, gallery, backbone)
    Image.new("RGB", (50, 50), "blue").save(folder / "x.bmp")
    assert counts(index_folder(folder, gallery, backbone)) == (1, 1, 0, 0, 0)


def test_known_content_is_not_embedded_again(photos: Path, gallery: Gallery, backbone: Counting) -> None:
    index_folder(photos, gallery, backbone)
    backbone.batches.clear()
    shutil.copy(photos / "2.png", photos / "b/twin.png")
    (photos / "5.png").rename(photos / "renamed.png")
    report = index_folder(photos, gallery, backbone)
    assert counts(report) == (0, 0, 2, 8, 0)
    assert (report.vanished, backbone.batches) == (["5.png"], [])
    twin = gallery.vectors(["2.png", "b/twin.png"])
    np.testing.assert_allclose(twin[0], twin[1], atol=1e-7)
    assert len(gallery) == 11


def test_twins_in_one_batch_are_both_there(gallery: Gallery, backbone: Counting, photos: Path) -> None:
    shutil.copy(photos / "2.png", photos / "3.png")
    index_folder(photos, gallery, backbone)
    assert {"2.png", "3.png"} <= set(gallery.ids().tolist())


def test_vanished_files_stay_until_pruned(
    photos: Path, gallery: Gallery, backbone: Counting, tmp_path: Path, make_photo: Callable[..., Image.Image]
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    make_photo(70).save(other / "kept.png")
    index_folder(other, gallery, backbone)
    index_folder(photos, gallery, backbone)
    (photos / "2.png").unlink()
    shutil.rmtree(photos / "a")
    report = index_folder(photos, gallery, backbone)
    assert sorted(report.vanished) == ["2.png", "a/0.png", "a/3.png", "a/6.png"]
    assert (report.pruned, len(gallery)) == (0, 10)
    report = index_folder(photos, gallery, backbone, prune=True)
    assert (report.pruned, len(gallery)) == (4, 6)
    assert "kept.png" in gallery  # of another folder
    for file in photos.rglob("*.png"):
        file.unlink()
    with pytest.raises(InputError, match="holds no picture at all, so nothing is pruned"):
        index_folder(photos, gallery, backbone, prune=True)
    assert len(gallery) == 6


def test_a_folder_that_cannot_be_listed_has_not_vanished(
    photos: Path, gallery: Gallery, backbone: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    index_folder(photos, gallery, backbone)
    shutil.rmtree(photos / "a")
    (photos / "a").mkdir()
    scandir = os.scandir

    def denied(path: str) -> object:  # what a user without the right sees; root may list everything
        if path == str(photos / "a"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denied)
    report = index_folder(photos, gallery, backbone, prune=True)
    assert (report.vanished, report.pruned, len(gallery)) == ([], 0, 9)
    assert [(f.path, f.reason) for f in report.failed] == [(str(photos / "a"), "Permission denied")]


def test_what_cannot_be_read_is_listed_and_not_fatal(
    photos: Path, gallery: Gallery, backbone: Counting
) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (90, 90, 3), dtype=np.uint8)
    Image.fromarray(noise).save(photos / "cut.jpg")
    (photos / "cut.jpg").write_bytes((photos / "cut.jpg").read_bytes()[:2000])
    (photos / "a/text.png").write_text("no picture")
    (photos / "b/empty.gif").touch()
    Image.new("RGB", (200, 200)).save(photos / "large.bmp")
    report = index_folder(photos, gallery, backbone, batch=2, max_pixels=30_000)
    assert counts(report) == (9, 0, 0, 0, 4)
    reasons = {os.path.relpath(f.path, photos): f.reason for f in report.failed}
    assert list(reasons) == ["cut.jpg", "large.bmp", "a/text.png", "b/empty.gif"]  # in the folder's order
    assert "truncated" in reasons["cut.jpg"] and "limit" in reasons["large.bmp"]


def test_a_folder_that_moved_is_known_by_content(
    photos: Path, gallery: Gallery, backbone: Counting, tmp_path: Path
) -> None:
    index_folder(photos, gallery, backbone)
    moved = photos.rename(tmp_path / "moved")
    assert counts(index_folder(moved, gallery, backbone)) == (0, 0, 0, 9, 0)
    assert gallery.metadata(["2.png"])[0]["path"] == str(moved / "2.png")


def test_two_folders_do_not_overwrite_each_other(
    photos: Path, gallery: Gallery, backbone: Counting, tmp_path: Path, make_photo: Callable[..., Image.Image]
) -> None:
    index_folder(photos, gallery, backbone)
    other = tmp_path / "other"
    other.mkdir()
    make_photo(80).save(other / "2.png")
    report = index_folder(other, gallery, backbone)
    assert counts(report) == (0, 0, 0, 0, 1)
    assert f"holds another picture of that id: '{photos / '2.png'}'" in report.failed[0].reason


def test_another_backbone_is_refused(
    photos: Path, gallery: Gallery, backbone: Counting, tmp_path: Path, make_network: Callable[..., Path]
) -> None:
    index_folder(photos, gallery, backbone)
    other = Counting(make_network(tmp_path / "other.onnx", shape=("n", 3, 56, 56)))
    with pytest.raises(GalleryError, match="cannot be compared"):
        index_folder(photos, gallery, other)


def test_a_gallery_of_numbers_is_refused(photos: Path, backbone: Counting) -> None:
    gallery = Gallery.create("memory:", dim=backbone.dim, backbone=backbone.identity)
    gallery.add([1, 2], np.eye(2, backbone.dim))
    with pytest.raises(InputError, match="are numbers, those of pictures are paths"):
        index_folder(photos, gallery, backbone)


class Blind(Counting):
    """Gives a zero vector for what is dark, as a network after a ReLU may."""

    def embed(self, inputs: np.ndarray) -> np.ndarray:
        vectors = super().embed(inputs)
        vectors[inputs.mean((1, 2, 3)) < -1.9] = 0
        return vectors


def test_a_picture_without_a_vector_is_listed(photos: Path, network: Path) -> None:
    blind = Blind(network)
    gallery = Gallery.create("memory:", dim=blind.dim)
    Image.new("RGB", (50, 50)).save(photos / "black.png")
    report = index_folder(photos, gallery, blind)
    assert counts(report) == (9, 0, 0, 0, 1)
    assert "gives no vector" in report.failed[0].reason


def test_an_error_keeps_what_was_committed(photos: Path, gallery: Gallery, backbone: Counting) -> None:
    embed, calls = backbone.embed, []

    def failing(inputs: np.ndarray) -> np.ndarray:
        calls.append(len(inputs))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return embed(inputs)

    backbone.embed = failing  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        index_folder(photos, gallery, backbone, batch=2)
    assert len(gallery) == 4
    backbone.embed = embed  # type: ignore[method-assign]
    assert counts(index_folder(photos, gallery, backbone, batch=2)) == (5, 0, 0, 4, 0)
