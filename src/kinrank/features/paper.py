"""A picture as the papers describe it: 1024 pixels, three scales, queries cropped to what is asked for.

The order is that of the published extraction (Radenovic 2019), step by step, so that its figures can be
met: crop, shrink, normalise, resample the normalised picture for each scale, average, L2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kinrank.errors import InputError
from kinrank.features.pooling import SCALES, l2, multi_scale
from kinrank.types import Array

if TYPE_CHECKING:
    from PIL import Image

    from kinrank.features.backbones.base import Backbone

Box = Sequence[float]  # left, top, right, bottom in pixels


def describe(
    backbone: Backbone,
    picture: Image.Image | str | Path,
    size: int = 1024,
    scales: Sequence[float] = SCALES,
    box: Box | None = None,
    power: float | None = None,
) -> Array:
    """The unit vector (d,) of a picture under a backbone whose network takes any height and width.

    `power` averages the scales; by default what the network's file says of itself (GeM's p where it has no
    whitening layer), else 1.
    """
    from kinrank.features.images import read_image

    if isinstance(picture, str | Path):
        picture = read_image(picture)
    picture = fitted(picture.convert("RGB"), size, box)
    width, height = picture.size
    if backbone.preprocess.layout != "nchw":
        raise InputError(f"'{backbone.name}' reads (n, h, w, 3); this extraction needs (n, 3, h, w)")
    pixels = replace(backbone.preprocess, size=(height, width), fit="stretch", resize=None)(picture)
    vectors = np.stack([l2(backbone.embed(resampled(pixels, scale)[None])[0]) for scale in scales])
    if power is None:
        power = float(backbone.session.get_modelmeta().custom_metadata_map.get("power", 1))
    return multi_scale(vectors, power)


def fitted(picture: Image.Image, size: int, box: Box | None = None) -> Image.Image:
    """The picture, cropped to a box and shrunk until the *whole* picture's longer side would be `size`.

    So a query keeps the scale that its object has among the gallery's pictures. Nothing is enlarged.
    """
    from PIL import Image

    whole = max(picture.size)
    if box is not None:
        picture = crop_box(picture, box)
    limit = size * max(picture.size) / whole
    picture = picture.copy()
    picture.thumbnail((limit, limit), Image.Resampling.LANCZOS, reducing_gap=None)
    return picture


def crop_box(picture: Image.Image, box: Box) -> Image.Image:
    """The part of a picture inside left, top, right, bottom, as far as it lies within the picture."""
    if len(box) != 4 or not np.isfinite(box).all():
        raise InputError(f"a box is left, top, right, bottom in pixels, got {tuple(box)}")
    left, top, right, bottom = (round(float(side)) for side in box)
    left, top = max(left, 0), max(top, 0)
    right, bottom = min(right, picture.width), min(bottom, picture.height)
    if left >= right or top >= bottom:
        raise InputError(
            f"the box {tuple(box)} holds nothing of a picture of {picture.width} x {picture.height}"
        )
    return picture.crop((left, top, right, bottom))


def resampled(pixels: Array, scale: float) -> Array:
    """A normalised picture (3, h, w) at another scale, bilinear between pixel centres, as PyTorch does it."""
    if scale == 1:
        return pixels
    rows, columns = (_between(side, scale) for side in pixels.shape[1:])
    return _blend(_blend(pixels, *rows, axis=1), *columns, axis=2)


def _between(side: int, scale: float) -> tuple[Array, Array, Array]:
    """For each new pixel the two old ones that it lies between, and the share of the second."""
    places = np.maximum((np.arange(int(side * scale)) + 0.5) / scale - 0.5, 0)
    first = np.minimum(places.astype(np.int64), side - 1)
    return first, np.minimum(first + 1, side - 1), (places - first).astype(np.float32)


def _blend(pixels: Array, first: Array, second: Array, share: Array, axis: int) -> Array:
    share = share[:, None] if axis == 1 else share
    blended: Array = pixels.take(first, axis) * (1 - share) + pixels.take(second, axis) * share
    return blended
