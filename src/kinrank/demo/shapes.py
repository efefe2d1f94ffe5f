"""Solids that a ray can hit, each with its texture: boxes, turned bodies (tins, bottles), balls.

Every `hit` works on rays in the solid's own frame, origin (3,) and directions (3, n), and answers the
distance (n,), inf where the ray misses; `surface` then gives colour and normal of the hits alone.
Points and colours are kept as (3, n): whole rows of numbers are what NumPy is fast at.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import numpy as np

from kinrank.demo import packaging
from kinrank.demo.brands import Product

Array = np.ndarray
LINEAR = ((np.arange(256) / 255.0) ** 2.2).astype(np.float32)  # sRGB byte -> light, near enough
PIXELS = 300  # of a texture, per unit of length


def sample(texture: Array, u: Array, v: Array) -> Array:
    """Light (3, n) of an image (h, w, 3) at u to the right and v downwards, both in [0, 1]."""
    h, w = texture.shape[:2]
    x = np.clip((u * w).astype(np.int32), 0, w - 1)
    y = np.clip((v * h).astype(np.int32), 0, h - 1)
    light: Array = LINEAR[texture.reshape(-1, 3).take(y * w + x, axis=0).T]
    return light


def slabs(half: Array, origin: Array, rays: Array) -> tuple[Array, Array]:
    """Where rays enter and leave the box from -half to +half; entering comes later than leaving: a miss."""
    inverse = 1 / np.where(np.abs(rays) < 1e-7, np.float32(1e-7), rays)
    reach = half[:, None] * np.abs(inverse)
    middle = -origin * inverse
    return (middle - reach).max(axis=0), (middle + reach).min(axis=0)


class Shape(Protocol):
    """What the renderer asks of a solid."""

    half: Array  # (3,) half the size of the box around it

    def hit(self, origin: Array, rays: Array) -> Array:
        """Distances (n,) along the rays, inf where they miss."""
        ...

    def surface(self, points: Array) -> tuple[Array, Array]:
        """(colour (3, n) as light, normal (3, n)) at points of the surface."""
        ...

    def beside(self, x: Array, z: Array) -> Array:
        """Distance (n,) on the table from where the solid touches it."""
        ...


@dataclass
class Box:
    """A cuboid; `faces` are images for +x, -x, +y, -y, +z (the front), -z."""

    half: Array
    faces: list[Array]

    def hit(self, origin: Array, rays: Array) -> Array:
        """Slab test."""
        near, far = slabs(self.half, origin[:, None], rays)
        return np.where((near < far) & (near > 1e-4), near, np.float32(np.inf))

    def surface(self, points: Array) -> tuple[Array, Array]:
        """Each point belongs to the face that it lies nearest to; edges catch the light."""
        relative = points / self.half[:, None]
        size = np.abs(relative)
        axis = size.argmax(axis=0)
        face_of = axis * 2 + (np.take_along_axis(relative, axis[None], 0)[0] < 0)
        colour, normal = np.empty_like(points), np.zeros_like(points)
        for face in np.unique(face_of):
            mine = np.flatnonzero(face_of == face)
            x, y, z = relative[:, mine]
            right = {0: -z, 1: z, 2: x, 3: x, 4: x, 5: -x}[int(face)]
            down = {0: -y, 1: -y, 2: z, 3: -z, 4: -y, 5: -y}[int(face)]
            colour[:, mine] = sample(self.faces[face], (right + 1) / 2, (down + 1) / 2)
            normal[face // 2, mine] = 1 - 2 * (face % 2)
        gap = np.sort((1 - size) * self.half[:, None], axis=0)[1]  # to the next face
        edge = np.clip(1 - gap / np.float32(0.012), 0, 1)
        return colour * (1 + np.float32(0.35) * edge) + np.float32(0.05) * edge, normal

    def beside(self, x: Array, z: Array) -> Array:
        """From its rectangle."""
        return np.hypot(np.maximum(np.abs(x) - self.half[0], 0), np.maximum(np.abs(z) - self.half[2], 0))


@dataclass
class Turned:
    """A body of revolution round y: radii at heights, straight in between; the label runs round."""

    heights: Array  # (m,) from -half to +half
    radii: Array  # (m,)
    label: Array  # image over the whole height
    half: Array = field(init=False)
    slopes: Array = field(init=False)

    def __post_init__(self) -> None:
        r = float(self.radii.max())
        self.half = np.array([r, float(self.heights[-1]), r], np.float32)
        self.slopes = (np.diff(self.radii) / np.maximum(np.diff(self.heights), 1e-4)).astype(np.float32)

    def hit(self, origin: Array, rays: Array) -> Array:
        """The nearest of the cones between two heights, and of the two lids."""
        best = np.full(rays.shape[1], np.inf, np.float32)
        dx, dy, dz = rays
        ox, oy, oz = (float(v) for v in origin)
        flat, along = dx * dx + dz * dz, ox * dx + oz * dz
        profile = [v.tolist() for v in (self.heights, self.heights[1:], self.radii, self.radii[1:])]
        with np.errstate(divide="ignore", invalid="ignore"):
            for y0, y1, r0, r1 in zip(*profile):
                k = (r1 - r0) / max(y1 - y0, 1e-6)
                base = r0 + k * (oy - y0)
                a = flat - k * k * dy * dy
                b = along - base * k * dy
                t = (-b - np.sqrt(b * b - a * (ox * ox + oz * oz - base * base))) / a
                y = oy + t * dy
                np.copyto(best, t, where=(y >= y0) & (y <= y1) & (t > 1e-4) & (t < best))
            for y, r in ((profile[1][-1], profile[3][-1]), (profile[0][0], profile[2][0])):
                t = (y - oy) / dy
                inside = (ox + t * dx) ** 2 + (oz + t * dz) ** 2 <= r * r
                np.copyto(best, t, where=inside & (t > 1e-4) & (t < best))
        return best

    def surface(self, points: Array) -> tuple[Array, Array]:
        """The label by angle and height; its middle looks along +z."""
        x, y, z = points
        top, out = self.half[1], np.hypot(x, z)
        colour = sample(self.label, (np.arctan2(x, z) / np.float32(np.pi) + 1) / 2, (top - y) / (2 * top))
        cone = np.clip(np.searchsorted(self.heights, y, side="right") - 1, 0, len(self.slopes) - 1)
        normal = np.stack([x, -self.slopes[cone] * out, z])
        lids = np.flatnonzero(
            (np.abs(y) > top - 2e-4) & (out < np.interp(y, self.heights, self.radii) - 1e-3)
        )
        normal[:, lids] = np.stack([0 * lids, np.sign(y[lids]), 0 * lids])
        rings = out[lids] / max(float(self.radii[-1]), 1e-6)
        colour[:, lids] *= 0.78 + 0.3 * np.cos(rings * 14) ** 2  # pressed into the lid
        return colour, normal / np.sqrt((normal * normal).sum(axis=0))

    def beside(self, x: Array, z: Array) -> Array:
        """From its foot."""
        return np.maximum(np.hypot(x, z) - self.radii[0], 0)


@dataclass
class Ball:
    """An ellipsoid of one colour, mottled: fruit for the clutter."""

    half: Array
    colour: Array  # light (3,)

    def hit(self, origin: Array, rays: Array) -> Array:
        """Unit sphere after scaling."""
        o, d = origin / self.half, rays / self.half[:, None]
        a, b, c = (d * d).sum(axis=0), o @ d, float(o @ o) - 1
        with np.errstate(invalid="ignore"):
            t = (-b - np.sqrt(b * b - a * c)) / a
        return np.where(t > 1e-4, t, np.float32(np.inf))

    def surface(self, points: Array) -> tuple[Array, Array]:
        """Blush on one side, freckles all over."""
        x, y, z = points / self.half[:, None]
        freckles = np.sin(x * 37 + np.sin(y * 29) * 2) * np.sin(z * 41 + y * 17)
        shade = 0.9 + 0.25 * x - 0.15 * y + 0.06 * freckles
        normal = points / self.half[:, None] ** 2
        return self.colour[:, None] * shade, normal / np.sqrt((normal * normal).sum(axis=0))

    def beside(self, x: Array, z: Array) -> Array:
        """From the one point that it stands on."""
        return np.maximum(np.hypot(x, z) - 0.3 * self.half[0], 0)


BOXES = {"box": (0.62, 0.9, 0.2), "tall": (0.42, 1.0, 0.4), "tea": (0.74, 0.6, 0.4),
         "wide": (0.96, 0.62, 0.24), "book": (0.64, 0.92, 0.13)}  # fmt: skip

# heights and radii, and the share of the height (from above) that the label covers
TURNED: dict[str, tuple[list[tuple[float, float]], tuple[float, float]]] = {
    "can": ([(0, 0.19), (0.04, 0.235), (0.86, 0.235), (0.92, 0.205), (0.94, 0.21)], (0.08, 0.95)),
    "tin": ([(0, 0.29), (0.02, 0.3), (0.66, 0.3), (0.68, 0.29)], (0.03, 0.97)),
    "flat": ([(0, 0.38), (0.02, 0.4), (0.3, 0.4), (0.32, 0.385)], (0.06, 0.94)),
    "canister": ([(0, 0.2), (0.01, 0.205), (0.9, 0.205), (0.9, 0.215), (0.97, 0.215), (0.98, 0.205)],
                 (0.09, 0.98)),
    "jar": ([(0, 0.25), (0.04, 0.285), (0.46, 0.285), (0.54, 0.23), (0.55, 0.25), (0.68, 0.25)], (0.3, 0.92)),
    "bottle": ([(0, 0.17), (0.03, 0.2), (0.66, 0.2), (0.76, 0.175), (0.84, 0.1), (0.9, 0.07), (1.04, 0.065),
                (1.04, 0.08), (1.12, 0.08)], (0.42, 0.94)),
}  # fmt: skip


def _pixels(image: object) -> Array:
    return np.asarray(image, dtype=np.uint8)


@lru_cache(maxsize=64)
def solid(product: Product) -> Box | Turned:
    """The product's body with its printed faces; its front looks along +z."""
    if product.kind in BOXES:
        return _box(product)
    return _turned(product)


def _box(product: Product) -> Box:
    w, h, d = BOXES[product.kind]
    across, up, deep = (int(v * PIXELS) for v in (w, h, d))
    face = _pixels(packaging.front(product, (across, up)))
    top = _pixels(packaging.lid(product, (across, max(deep, 8))))
    edge = _pixels(packaging.side(product, (max(deep, 30), up)))
    half = np.array([w, h, d], np.float32) / 2
    if product.kind != "book":
        return Box(half, [edge, edge, top, top, face, face])
    sheets = np.random.default_rng(product.seed).integers(196, 240, size=(1, 60, 1))
    paper = (np.broadcast_to(sheets, (8, 60, 3)) * np.array([1, 0.97, 0.9])).astype(np.uint8)
    return Box(half, [paper, edge, paper.transpose(1, 0, 2), paper.transpose(1, 0, 2), face, face])


def _turned(product: Product) -> Turned:
    profile, (start, stop) = TURNED[product.kind]
    heights, radii = (np.array(v, np.float32) for v in zip(*profile))
    total = float(heights[-1])
    rows, around = int(total * PIXELS), int(2 * np.pi * radii.max() * PIXELS)
    metal = product.kind in ("can", "tin", "flat", "canister")
    body = (196, 198, 202) if metal else packaging.blend(product.accent, (236, 232, 224), 0.35)
    label = np.empty((rows, around, 3), np.uint8)
    label[:] = body
    if product.kind in ("jar", "bottle"):
        cap = product.second if product.kind == "jar" else product.ground
        label[: int(rows * (0.2 if product.kind == "jar" else 0.08))] = cap
    if product.kind == "canister":
        label[: int(rows * 0.08)] = packaging.blend(product.accent, (255, 255, 255), 0.2)
    first, last = int(rows * start), int(rows * stop)
    label[first:last] = _pixels(packaging.wrap(product, (around, last - first)))
    return Turned(heights - total / 2, radii, label)
