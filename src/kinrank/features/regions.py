"""Regions of activation maps as local features, for `dsm` (Simeoni, CVPR 2019): the channel is the word.

A channel of the last convolution fires on one kind of thing. Where it fires, the regions that stay the same
over a range of thresholds (MSER, Matas 2002) are taken, each described by its ellipse; no descriptor is
needed, since two regions match when their channels are the same. `points (n, 5)` are x, y and the lower
triangle a, b, c of the ellipse's frame [[a, 0], [b, c]], all in cells of the map; `descriptors (n, 3)` the
channel as two bytes and the number of the scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from kinrank.errors import InputError
from kinrank.features.local import LocalFeatures
from kinrank.features.preprocess import Preprocess
from kinrank.types import Array

SCALES = (1.0, 2**-0.5, 0.5)  # of the image
_LEVELS = 64  # thresholds that activations are cut at, from nothing to the strongest of the image
_MOST_DELTA = 12  # levels over which a region must be stable, at most
_VARIATION, _DIVERSITY, _AREA = 0.5, 0.7, (0.001, 0.75)  # as in the published settings
_CLUTTERED = 36  # regions of a channel from which on it says nothing


@dataclass(frozen=True, eq=False)
class Regions:
    """n regions of a stack of maps: channel (n,), points (n, 5), the strongest activation inside (n,)."""

    channels: Array
    points: Array
    values: Array

    def take(self, rows: Array) -> Regions:
        """Some of them, in the order asked for."""
        return Regions(self.channels[rows], self.points[rows], self.values[rows])


def stable_regions(maps: Array, per_channel: int = 20) -> Regions:
    """The stable regions of maps (C, H, W), at most `per_channel` of a channel, strongest first."""
    maps = np.maximum(np.asarray(maps, np.float32), 0)
    if maps.ndim != 3:
        raise InputError(f"regions are found in maps (C, H, W), got shape {maps.shape}")
    top = float(maps.max()) if maps.size else 0.0
    if top <= 0:
        return Regions(np.zeros(0, np.int64), np.zeros((0, 5), np.float32), np.zeros(0, np.float32))
    levels = np.minimum(np.ceil(maps * (_LEVELS / top)), _LEVELS).astype(np.uint8)
    tree = _component_tree(levels)
    chosen = _stable(tree, levels.shape, _delta(levels))
    regions = _described(maps, tree, chosen)
    regions = regions.take(np.argsort(-regions.values, kind="stable"))
    return regions.take(_per_channel(regions.channels, len(maps), per_channel))


@dataclass(frozen=True, eq=False)
class _Tree:
    """Connected components of all channels at all levels: node -> level, area, parent (one level below)."""

    labels: Array  # (T, C, H, W) int32: the node that a cell belongs to at a level, -1 for none
    area: Array
    level: Array
    parent: Array


def _component_tree(levels: Array) -> _Tree:
    """Components {cells >= t} for every t, labelled in all channels at once; parents hold their children."""
    from scipy.ndimage import label

    within = np.zeros((3, 3, 3), bool)
    within[1] = [[False, True, False], [True, True, True], [False, True, False]]  # never across channels
    peaks = levels.max(axis=(1, 2))
    labels = np.full((int(peaks.max()), *levels.shape), -1, np.int32)
    areas, heights, parents = [], [], []
    first = 0
    for t in range(len(labels)):
        active = np.flatnonzero(peaks > t)  # most channels are quiet at most levels
        found, count = label(levels[active] > t, within)
        channel, y, x = np.nonzero(found)
        cells = active[channel], y, x
        nodes = found[channel, y, x] - 1
        labels[t][cells] = nodes + first
        parent = np.full(count, -1, np.int32)
        if t:
            parent[nodes] = labels[t - 1][cells]
        areas.append(np.bincount(nodes, minlength=count))
        heights.append(np.full(count, t))
        parents.append(parent)
        first += count
    return _Tree(labels, *(np.concatenate(part) for part in (areas, heights, parents)))


def _delta(levels: Array) -> int:
    """The level that three fifths of the cells that fire stay under, capped: how long stable is stable."""
    return int(np.clip(np.quantile(levels[levels > 0], 0.6), 1, _MOST_DELTA))


def _stable(tree: _Tree, shape: tuple[int, ...], delta: int) -> Array:
    """Nodes whose area varies least along their branch, little enough, and unlike a kept one around them."""
    below = np.arange(len(tree.area))
    for _ in range(delta):  # the component `delta` levels below; the lowest one where the branch ends
        below = np.where(tree.parent[below] >= 0, tree.parent[below], below)
    variation = (tree.area[below] - tree.area) / tree.area
    # The variation of a region's own parent and of its children: it must be no larger than either.
    up = np.where(tree.parent >= 0, variation[tree.parent], np.inf)
    down = np.full(len(tree.area), np.inf)
    children = np.flatnonzero(tree.parent >= 0)
    np.minimum.at(down, tree.parent[children], variation[children])
    cells = shape[1] * shape[2]
    good = (variation <= _VARIATION) & (variation < up) & (variation <= down)
    good &= (tree.area >= max(2, _AREA[0] * cells)) & (tree.area <= _AREA[1] * cells)
    kept = np.zeros(len(tree.area), bool)
    nearest = np.full(len(tree.area), -1)  # the kept region that holds a node, by levels from below
    for t in range(int(tree.level.max()) + 1):
        nodes = np.flatnonzero(tree.level == t)
        if t:
            parent = tree.parent[nodes]
            nearest[nodes] = np.where(kept[parent], parent, nearest[parent])
        outer = nearest[nodes]
        smaller = (tree.area[outer] - tree.area[nodes]) / np.maximum(tree.area[outer], 1)
        kept[nodes] = good[nodes] & ((outer < 0) | (smaller >= _DIVERSITY))
    return np.flatnonzero(kept)


def _described(maps: Array, tree: _Tree, chosen: Array) -> Regions:
    """Centre, ellipse and strongest activation of nodes, by sums over their cells."""
    number = np.full(len(tree.area) + 1, -1)
    number[chosen] = np.arange(len(chosen))
    sums = np.zeros((6, len(chosen)))  # 1, x, y, xx, xy, yy
    values = np.zeros(len(chosen), np.float32)
    channels = np.zeros(len(chosen), np.int64)
    for t in np.unique(tree.level[chosen]):
        wanted = np.append(tree.level == t, False) & (number >= 0)  # a label of -1 picks the last entry
        channel, y, x = np.nonzero(wanted[tree.labels[t]])
        region = number[tree.labels[t][channel, y, x]]
        for row, weight in enumerate((np.ones(len(x)), x, y, x * x, x * y, y * y)):
            sums[row] += np.bincount(region, weight, minlength=len(chosen))
        np.maximum.at(values, region, maps[channel, y, x])
        channels[region] = channel
    mean = sums[1:3] / sums[0]
    # A cell is a square, not a point: its own spread of 1/12 keeps thin regions from having no width.
    xx = sums[3] / sums[0] - mean[0] ** 2 + 1 / 12
    xy = sums[4] / sums[0] - mean[0] * mean[1]
    yy = sums[5] / sums[0] - mean[1] ** 2 + 1 / 12
    a = np.sqrt(xx)
    b = xy / a
    c = np.sqrt(np.maximum(yy - b * b, 1 / 12 / 4))
    return Regions(channels, np.stack([mean[0], mean[1], a, b, c], axis=1).astype(np.float32), values)


def _per_channel(channels: Array, count: int, most: int) -> Array:
    """Rows that are among the first `most` of their channel, without the channels that fire everywhere."""
    totals = np.bincount(channels, minlength=count)
    order = np.argsort(channels, kind="stable")
    starts = np.concatenate([[0], np.cumsum(totals)])[:-1]
    rank = np.empty(len(channels), np.int64)
    rank[order] = np.arange(len(channels)) - starts[channels[order]]
    kept: Array = np.flatnonzero((rank < most) & (totals[channels] <= _CLUTTERED))
    return kept


def region_features(
    stacks: Sequence[Array], shape: tuple[int, int], per_channel: int = 10, count: int = 2048
) -> LocalFeatures:
    """Local features of one picture from its maps (C, H, W) at each scale: the `count` strongest regions."""
    found = [stable_regions(maps, per_channel) for maps in stacks]
    scale = np.repeat(np.arange(len(found)), [len(r.values) for r in found])
    every = Regions(
        *(np.concatenate([getattr(r, name) for r in found]) for name in ("channels", "points", "values"))
    )
    best = np.argsort(-every.values, kind="stable")[:count]
    words = every.channels[best].astype(np.uint16)
    descriptors = np.stack([words >> 8, words & 255, scale[best]], axis=1).astype(np.uint8)
    return LocalFeatures(every.points[best], descriptors, shape)


def words(features: LocalFeatures) -> Array:
    """The channel (n,) of each region."""
    bytes_ = features.descriptors.astype(np.int64)
    return bytes_[:, 0] * 256 + bytes_[:, 1]


def dsm_regions(
    image: Any, model: str = "efficientnet-lite1", size: int = 640, per_channel: int = 10, count: int = 2048
) -> LocalFeatures:
    """Regions of a picture (a path, a PIL image or an array) under a backbone, by name or ONNX file.

    The longer side is brought to `size` (1024 in the paper) and to its shares in `SCALES`. The network's maps
    are its first output of four dimensions, or else what enters its global pooling (that takes onnx to read).
    """
    from PIL import Image

    from kinrank.features.images import read_image

    session, output, preprocess = maps_session(model)
    if isinstance(image, str | Path):
        image = read_image(image, least=size)
    picture = (Image.fromarray(image) if isinstance(image, np.ndarray) else image).convert("RGB")
    stacks = []
    for scale in SCALES:
        ratio = scale * size / max(picture.size)
        width, height = (max(32, round(side * ratio)) for side in picture.size)
        pixels = replace(preprocess, size=(height, width), fit="stretch", resize=None)(picture)
        stacks.append(session.run([output], {session.get_inputs()[0].name: pixels[None]})[0][0])
    return region_features(stacks, (picture.height, picture.width), per_channel, count)


@lru_cache(maxsize=4)
def maps_session(model: str) -> tuple[Any, str, Preprocess]:
    """A session on a backbone's network, the name of its maps (n, C, h, w), and how it wants its pictures."""
    from kinrank.device import onnx_session
    from kinrank.features.backbones.base import open_backbone

    backbone = open_backbone(model)
    session = backbone.session
    shape = session.get_inputs()[0].shape
    if backbone.preprocess.layout != "nchw" or any(isinstance(side, int) for side in shape[2:]):
        raise InputError(
            f"'{model}' takes pictures {shape}; maps at other sizes need (n, 3, h, w), h and w free"
        )
    for output in session.get_outputs():
        if len(output.shape or ()) == 4:
            return session, output.name, backbone.preprocess
    try:
        import onnx
    except ImportError:
        raise InputError(f"'{model}' gives vectors, not maps; cure: pip install onnx, to open it") from None
    network = onnx.load(backbone.model)
    pools = [node for node in network.graph.node if node.op_type == "GlobalAveragePool"]
    if not pools:
        raise InputError(f"'{model}' has no global pooling to read maps from; cure: give it a second output")
    name = pools[-1].input[0]
    network.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    return onnx_session(network.SerializeToString()), name, backbone.preprocess
