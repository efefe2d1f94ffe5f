"""Activation maps to one vector: MAC, SPoC, GeM, R-MAC, and the sum over image scales.

A map is what a trunk leaves of an image, (C, H, W) with C channels; every function also takes a batch
(B, C, H, W) and returns (C,) or (B, C). None of them normalises its answer unless it says so: the order
is pool, `l2`, whiten, `l2`, as in the papers.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from kinrank.errors import InputError
from kinrank.types import Array

SCALES = (1.0, 1 / math.sqrt(2), math.sqrt(2))  # of the image, as the paper's descriptors are made
_OVERLAP = 0.4  # wanted between neighbouring regions of R-MAC
_STEPS = np.arange(2, 8)  # regions that may lie along the longer side at the first level


def l2(vectors: Array, eps: float = 1e-6) -> Array:
    """Vectors (..., d) divided by their length; a zero vector stays zero."""
    return vectors / (np.linalg.norm(vectors, axis=-1, keepdims=True) + eps)


def mac(maps: Array) -> Array:
    """The maximum of each channel (Tolias 2016)."""
    answer: Array = _checked(maps).max(axis=(-2, -1))
    return answer


def spoc(maps: Array) -> Array:
    """The mean of each channel (Babenko 2015, without the centre prior)."""
    answer: Array = _checked(maps).mean(axis=(-2, -1))
    return answer


def gem(maps: Array, p: float | Array = 3.0, eps: float = 1e-6) -> Array:
    """The generalised mean of each channel, (mean max(x, eps)^p)^(1/p) (Radenovic 2019).

    p = 1 is `spoc` and p -> infinity is `mac`; p may be one number for all channels or one a channel (C,).
    """
    maps = np.maximum(_checked(maps), eps)
    power = np.asarray(p, dtype=maps.dtype)
    if (power <= 0).any():
        raise InputError(f"the power p of GeM must be positive, got {np.min(power)}")
    if power.ndim and power.shape not in ((1,), (maps.shape[-3],)):
        raise InputError(f"GeM needs one p, or one for each of {maps.shape[-3]} channels, got {power.shape}")
    # Dividing by the maximum first keeps a large p from overflowing in the power.
    peak = maps.max(axis=(-2, -1), keepdims=True)
    power = power.reshape(-1, 1, 1) if power.ndim else power
    mean = ((maps / peak) ** power).mean(axis=(-2, -1), keepdims=True)
    answer: Array = (peak * mean ** (1 / power))[..., 0, 0]
    return answer


def rmac_regions(height: int, width: int, levels: int = 3) -> list[tuple[int, int, int]]:
    """The square regions of R-MAC as (top, left, side), level by level, without the whole map.

    At level l the side is 2 min(H, W) / (l + 1), rounded down; l regions lie along the shorter side, and as
    many more along the longer one as bring the overlap of neighbours closest to 40 percent.
    """
    short = min(height, width)
    stride = (max(height, width) - short) / (_STEPS - 1)
    more = 0 if height == width else int(np.argmin(np.abs(1 - stride / short - _OVERLAP))) + 1
    extra_down, extra_right = (more, 0) if height > width else (0, more)
    regions = []
    for level in range(1, levels + 1):
        side = 2 * short // (level + 1)
        if side == 0:
            break
        tops = _starts(height, side, level + extra_down)
        lefts = _starts(width, side, level + extra_right)
        regions += [(top, left, side) for top in tops for left in lefts]
    return regions


def rmac(maps: Array, levels: int = 3, whiten: Callable[[Array], Array] | None = None) -> Array:
    """Regional maxima, each L2-normalised (and whitened, where `whiten` is given), summed (Tolias 2016).

    The whole map counts as one region more, as in the published code. `whiten` maps (R, C) to (R, C').
    """
    maps = _checked(maps)
    height, width = maps.shape[-2:]
    squares = [maps[..., t : t + s, l : l + s] for t, l, s in rmac_regions(height, width, levels)]
    pooled = l2(np.stack([mac(region) for region in [maps, *squares]]))  # (R, ..., C)
    if whiten is not None:
        flat = whiten(pooled.reshape(-1, pooled.shape[-1]))
        pooled = l2(flat).reshape(*pooled.shape[:-1], -1)
    answer: Array = pooled.sum(axis=0)
    return answer


def multi_scale(vectors: Array, power: float = 1.0) -> Array:
    """One unit vector (d,) of the same image at S scales (S, d): their power mean, then L2.

    `power` is 1 where the network ends in a whitening layer, and GeM's p where it does not (the vectors of
    GeM are then averaged before the root, which keeps them generalised means).
    """
    vectors = np.asarray(vectors)
    if vectors.ndim != 2 or len(vectors) == 0:
        raise InputError(f"multi_scale needs the vectors (S, d) of S scales, got shape {vectors.shape}")
    if power != 1.0 and (vectors < 0).any():
        raise InputError(f"a power of {power} needs vectors without negative entries; cure: power=1")
    return l2((vectors**power).mean(axis=0) ** (1 / power))


POOLINGS: dict[str, Callable[..., Array]] = {"gem": gem, "mac": mac, "spoc": spoc, "rmac": rmac}


def _starts(length: int, side: int, count: int) -> list[int]:
    """Where `count` regions begin so that they cover the length evenly."""
    if count == 1:
        return [0]
    half = side // 2 - 1  # the published code floors centres, not corners; it shifts some regions by one
    step = (length - side) / (count - 1)
    return [math.floor(half + i * step) - half for i in range(count)]


def _checked(maps: Array) -> Array:
    maps = np.asarray(maps)
    if maps.ndim not in (3, 4) or 0 in maps.shape:
        raise InputError(f"activation maps must have shape (C, H, W) or (B, C, H, W), got {maps.shape}")
    return maps if maps.dtype.kind == "f" else maps.astype(np.float32)
