"""Indexing a folder against the backbone alone, its pictures decoded and prepared beforehand.

Pictures as cameras and the web give them, JPEG of three sizes; the whole of `kinrank index` (walking,
hashing, decoding, preparing, embedding, committing to a gallery on disk) is timed against `Backbone.embed`
on the same batches, in turn, and the medians are compared.
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
    """A row a picture size: pictures a second of both, and their ratio (1 is what cannot be beaten)."""
    from kinrank.features.backbones.base import open_backbone

    network = open_backbone(backbone)
    with tempfile.TemporaryDirectory() as place:
        return [_row(name, size, network, Path(place), 15 if full else 5) for name, size in SIZES.items()]


def _row(name: str, size: tuple[int, int], network: Backbone, place: Path, rounds: int) -> dict[str, Any]:
    from kinrank.features.images import read_image

    folder = place / f"{size[0]}"
    _write_photos(folder, size, 2 * BATCH)
    files = sorted(folder.glob("*.jpg"))
    ready = np.stack([network.preprocess(read_image(file, network.preprocess.least)) for file in files])
    times: dict[str, list[float]] = {"alone": [], "folder": []}
    network.embed(ready[:BATCH])  # warm up
    for number in range(rounds):
        times["alone"].append(_timed(_embed, network, ready))
        times["folder"].append(_timed(_index, network, folder, place / f"{size[0]}-{number}.kin"))
    alone, whole = (statistics.median(times[which]) for which in ("alone", "folder"))
    ratios = [a / b for a, b in zip(times["alone"], times["folder"])]
    return {
        "pictures": name,
        "backbone alone, 1/s": len(files) / alone,
        "folder, 1/s": len(files) / whole,
        "ratio": statistics.median(ratios),
    }


def _embed(network: Backbone, ready: np.ndarray) -> None:
    for start in range(0, len(ready), BATCH):
        network.embed(ready[start : start + BATCH])


def _index(network: Backbone, folder: Path, location: Path) -> None:
    from kinrank.features.extract import index_folder
    from kinrank.gallery.gallery import Gallery

    with Gallery.create(location, dim=network.dim) as gallery:
        report = index_folder(folder, gallery, network, batch=BATCH)
    assert report.embedded == report.found


def _timed(work: Callable[..., None], *arguments: Any) -> float:
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


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
