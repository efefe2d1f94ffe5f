"""Indexing a folder against the backbone alone, its pictures decoded beforehand.

Pictures as the web and cameras give them, JPEG of three sizes; the whole of `kinrank index` (walking,
hashing, decoding, preparing, embedding, committing to a gallery on disk) is timed, in turn, against the
backbone on the same pictures already decoded (it prepares and embeds them), and against its network alone on
inputs already prepared, which leaves out work that every picture needs.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

    from kinrank.features.backbones.base import Backbone

SIZES = {"web, 500 x 400": (500, 400), "screen, 1280 x 960": (1280, 960), "camera, 4000 x 3000": (4000, 3000)}
BATCH = 32
_KINDS = 4  # pictures made of each size


def run(full: bool = False, backbone: str = "efficientnet-lite1") -> list[dict[str, Any]]:
    """A row a picture size: pictures a second of each way, and what part of them indexing reaches."""
    from kinrank.features.backbones.base import open_backbone

    network = open_backbone(backbone)
    with tempfile.TemporaryDirectory() as place:
        return [_row(name, size, network, Path(place), 15 if full else 3) for name, size in SIZES.items()]


def _row(name: str, size: tuple[int, int], network: Backbone, place: Path, rounds: int) -> dict[str, Any]:
    from kinrank.features.images import read_image

    folder = place / f"{size[0]}"
    _write_photos(folder, size, 2 * BATCH)
    files = sorted(folder.glob("*.jpg"))
    images = [read_image(file, network.preprocess.least) for file in files]
    ready = np.stack([network.preprocess(image) for image in images])
    ways: dict[str, Callable[[int], None]] = {
        "decoded": lambda _: _embed_images(network, images),
        "prepared": lambda _: _embed(network, ready),
        "folder": lambda number: _index(network, folder, place / f"{size[0]}-{number}.kin"),
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds + 1):
        for way, work in ways.items():
            start = time.perf_counter()
            work(number)
            if number:  # the first round warms up
                times[way].append(time.perf_counter() - start)
    rates = {f"{way}, 1/s": len(files) / statistics.median(spent) for way, spent in times.items()}
    ratios = {
        f"folder / {way}": statistics.median(a / b for a, b in zip(times[way], times["folder"]))
        for way in ("decoded", "prepared")
    }
    return {"pictures": name, **rates, **ratios}


def _embed_images(network: Backbone, images: list[Image]) -> None:
    for start in range(0, len(images), BATCH):
        network.embed_images(images[start : start + BATCH])


def _embed(network: Backbone, ready: np.ndarray) -> None:
    for start in range(0, len(ready), BATCH):
        network.embed(ready[start : start + BATCH])


def _index(network: Backbone, folder: Path, location: Path) -> None:
    from kinrank.features.extract import index_folder
    from kinrank.gallery.gallery import Gallery

    with Gallery.create(location, dim=network.dim) as gallery:
        report = index_folder(folder, gallery, network, batch=BATCH)
    assert report.embedded == report.found


def _write_photos(folder: Path, size: tuple[int, int], count: int) -> None:
    """Few pictures, many files: bytes behind the picture's end make each content new."""
    import io

    folder.mkdir()
    rng = np.random.default_rng(0)
    kinds = []
    for _ in range(_KINDS):
        out = io.BytesIO()
        _photo(rng, size).save(out, "JPEG", quality=88)
        kinds.append(out.getvalue())
    for number in range(count):
        (folder / f"{number:03}.jpg").write_bytes(kinds[number % _KINDS] + bytes([number]))


def _photo(rng: np.random.Generator, size: tuple[int, int]) -> Image:
    """Detail at all scales, the finer the fainter, as photographs have it: JPEG finds as much to write."""
    from PIL import Image

    total = np.zeros((size[1], size[0], 3), np.float32)
    cells = 4
    while cells < max(size):
        coarse = Image.fromarray(rng.integers(0, 256, (cells, cells, 3), dtype=np.uint8))
        layer = np.asarray(coarse.resize(size, Image.Resampling.BICUBIC), np.float32) - 128
        total += layer / cells**0.7
        cells *= 2
    return Image.fromarray(np.clip(128 + 2 * total, 0, 255).astype(np.uint8))
