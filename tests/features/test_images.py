"""Pictures of every kind come in upright and in RGB; what is broken says why."""

from __future__ import annotations

import io
import os
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kinrank.errors import InputError
from kinrank.features.images import Failure, UnreadableImage, read_image, walk


def png(width: int, height: int, depth: int, colour: int, rows: bytes) -> bytes:
    """A PNG written by hand: kinds that Pillow does not write."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


# EXIF 2.3: what must be done to the stored picture so that it stands upright.
UPRIGHT: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a, 2).transpose(1, 0, 2),
    8: lambda a: np.rot90(a, 1),
}


@pytest.mark.parametrize("orientation", sorted(UPRIGHT))
def test_exif_orientation(orientation: int, make_photo: Callable[..., Image.Image]) -> None:
    stored = np.asarray(make_photo(1))
    exif = Image.Exif()
    exif[0x0112] = orientation
    read = read_image(encoded(Image.fromarray(stored), "PNG", exif=exif))
    np.testing.assert_array_equal(np.asarray(read), UPRIGHT[orientation](stored))


def test_orientation_survives_the_fast_path(make_photo: Callable[..., Image.Image]) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    raw = encoded(make_photo(1, 1600, 1200), "JPEG", exif=exif, quality=95)
    quick = read_image(raw, least=100)
    assert quick.size == (150, 200)  # an eighth, turned
    whole = read_image(raw).resize((150, 200), Image.Resampling.BOX)
    assert np.abs(np.asarray(quick, float) - np.asarray(whole, float)).mean() < 1.5


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "GIF", "TIFF", "BMP", "JPEG", "HEIF"])
def test_formats(kind: str, make_photo: Callable[..., Image.Image]) -> None:
    if kind == "HEIF":
        pytest.importorskip("pillow_heif", reason="the extra 'heic' is not installed").register_heif_opener()
    image = make_photo(2, 128, 96)
    exact = kind in ("PNG", "TIFF", "BMP")
    read = read_image(encoded(image, kind, **({} if exact or kind == "GIF" else {"quality": 95})))
    assert (read.mode, read.size) == ("RGB", image.size)
    error = np.abs(np.asarray(read, float) - np.asarray(image, float)).mean()
    assert error == 0 if exact else error < 6


def test_heic_without_its_plug_in_names_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(UnreadableImage, match=r"pip install 'kinrank\[heic\]'"):
        read_image(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(50))


def test_cmyk_jpeg() -> None:
    colours = np.zeros((16, 16, 4), np.uint8)
    colours[:, :8] = (0, 255, 255, 0)  # red
    colours[:, 8:] = (255, 255, 0, 0)  # blue
    read = np.asarray(read_image(encoded(Image.fromarray(colours, "CMYK"), "JPEG", quality=100)), int)
    assert np.abs(read[8, 2] - (255, 0, 0)).max() < 12
    assert np.abs(read[8, 13] - (0, 0, 255)).max() < 12


def test_what_is_transparent_lies_on_white() -> None:
    pixels = np.zeros((4, 4, 4), np.uint8)
    pixels[:2] = (200, 0, 0, 255)
    pixels[3] = (0, 0, 0, 128)
    read = np.asarray(read_image(encoded(Image.fromarray(pixels), "PNG")))
    assert (read[0, 0].tolist(), read[2, 0].tolist()) == ([200, 0, 0], [255, 255, 255])
    assert abs(int(read[3, 0, 0]) - 127) <= 1
    grey = Image.fromarray(np.array([[[90, 255], [90, 0]]], np.uint8), "LA")
    assert np.asarray(read_image(encoded(grey, "PNG")))[0, :, 0].tolist() == [90, 255]


def test_palette_with_transparency() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putdata([0, 1])
    read = read_image(encoded(image, "PNG", transparency=1))
    assert np.asarray(read)[0].tolist() == [[10, 20, 30], [255, 255, 255]]
    assert np.asarray(read_image(encoded(image, "GIF")))[0].tolist() == [[10, 20, 30], [40, 50, 60]]


def test_sixteen_bits() -> None:
    values = np.array([[0, 0x1234, 0x80FF, 0xFFFF]], np.uint16)
    grey = read_image(encoded(Image.fromarray(values), "PNG"))
    assert np.asarray(grey)[0, :, 1].tolist() == [0, 0x12, 0x80, 0xFF]
    tiff = read_image(encoded(Image.fromarray(values), "TIFF"))
    assert np.array_equal(np.asarray(tiff), np.asarray(grey))
    colour = read_image(
        png(2, 1, 16, 2, b"\0" + struct.pack(">6H", 0x1200, 0x3400, 0x5600, 0, 0xFFFF, 0x8000))
    )
    assert np.abs(np.asarray(colour, int)[0] - [[0x12, 0x34, 0x56], [0, 0xFF, 0x80]]).max() <= 1


def test_real_numbers_and_wide_integers() -> None:
    real = read_image(encoded(Image.fromarray(np.array([[0, 0.5, 1.0, np.nan]], np.float32)), "TIFF"))
    assert np.asarray(real)[0, :, 0].tolist() == [0, 128, 255, 0]
    wide = read_image(encoded(Image.fromarray(np.array([[0, 65535]], np.int32)), "TIFF"))
    assert np.asarray(wide)[0, :, 0].tolist() == [0, 255]


def test_tiny_and_huge() -> None:
    assert read_image(encoded(Image.new("RGB", (1, 1), "red"), "PNG"), least=224).getpixel((0, 0)) == (
        255,
        0,
        0,
    )
    huge = encoded(Image.new("L", (9000, 7000), 77), "JPEG")
    small = read_image(huge, least=224)
    assert small.size == (1125, 875)  # decoded at an eighth
    assert abs(small.getpixel((500, 500))[0] - 77) <= 1


def test_a_decompression_bomb_is_refused_before_it_is_unpacked() -> None:
    bomb = png(50_000, 50_000, 8, 2, b"\0" * 100_000)
    with pytest.raises(UnreadableImage, match="decompression bomb"):
        read_image(bomb)
    with pytest.raises(UnreadableImage, match=r"64 x 64 pixels.*--max-pixels"):
        read_image(encoded(Image.new("RGB", (64, 64)), "PNG"), max_pixels=4095)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda raw: raw[: len(raw) // 2], "truncated"),
        (lambda raw: b"", "empty"),
        (lambda raw: b"hello, I am a text\n" * 9, "not a picture"),
        (lambda raw: raw[:20], "damaged|not a picture"),
    ],
)
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_damage_has_a_reason(
    kind: str, damage: Callable[[bytes], bytes], reason: str, make_photo: Callable[..., Image.Image]
) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (80, 80, 3), dtype=np.uint8))
    with pytest.raises(UnreadableImage, match=reason):
        read_image(damage(encoded(noise, kind)))


def test_a_broken_exif_block_does_not_cost_the_picture(make_photo: Callable[..., Image.Image]) -> None:
    raw = encoded(make_photo(3), "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff broken")
    assert read_image(raw).size == (64, 48)


def test_walk_is_in_order_and_knows_its_files(tmp_path: Path) -> None:
    for name in (
        "b/ä b.JPG",
        "b/日本.png",
        "z.gif",
        "Z.webp",
        "b/c/1.tif",
        "a.txt",
        ".hidden.jpg",
        ".git/x.png",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    (tmp_path / "folder.jpg").mkdir()
    failed: list[Failure] = []
    assert list(walk(tmp_path, failed.append)) == ["Z.webp", "z.gif", "b/ä b.JPG", "b/日本.png", "b/c/1.tif"]
    assert failed == []


def test_walk_follows_links_but_no_loop(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    (outside / "deep").mkdir(parents=True)
    (root / "sub").mkdir(parents=True)
    (outside / "o.png").touch()
    (root / "sub/1.png").touch()
    (root / "loop").symlink_to(root, target_is_directory=True)
    (root / "sub/up").symlink_to("..", target_is_directory=True)
    (outside / "deep/back").symlink_to(root, target_is_directory=True)
    (root / "elsewhere").symlink_to(outside, target_is_directory=True)
    (root / "twice").symlink_to(outside, target_is_directory=True)
    (root / "above").symlink_to(tmp_path, target_is_directory=True)
    (root / "file.png").symlink_to(outside / "o.png")
    (root / "gone.png").symlink_to(tmp_path / "nothing")
    failed: list[Failure] = []
    assert list(walk(root, failed.append)) == ["file.png", "elsewhere/o.png", "sub/1.png"]
    assert failed == [Failure(str(root / "gone.png"), "the link leads nowhere")]


def test_walk_reports_what_is_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    failed: list[Failure] = []
    assert list(walk(tmp_path, failed.append)) == []
    assert failed == [Failure(str(tmp_path / "pipe.jpg"), "it is not a regular file")]


def test_walk_reports_names_that_no_gallery_can_hold(tmp_path: Path) -> None:
    with open(os.path.join(os.fsencode(tmp_path), b"caf\xe9.jpg"), "wb"):
        pass
    failed: list[Failure] = []
    assert list(walk(tmp_path, failed.append)) == []
    assert "not valid UTF-8" in failed[0].reason
    assert failed[0].path.endswith(r"caf\xe9.jpg")


def test_walk_refuses_what_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        list(walk(tmp_path / "none", print))
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file"):
        list(walk(tmp_path / "file", print))
