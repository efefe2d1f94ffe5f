"""From solids and light to a photograph: rays, soft shadows, gloss, focus, grain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageFilter

from kinrank.demo.shapes import LINEAR, Ball, Box, Shape, slabs

Array = np.ndarray
COARSE = 6  # shadows are found on every sixth pixel and spread
SHADOW_RAYS = 4
TABLE, WALL = -1, -2  # what a pixel sees where no thing stands


def _film() -> Array:
    """Light -> byte along a film's curve, with soft shoulders."""
    light = np.linspace(0, BRIGHTEST, 8192)
    tone = light * (light * 2.51 + 0.03) / (light * (light * 2.43 + 0.59) + 0.14)
    return (np.clip(tone, 0, 1) ** (1 / 2.2) * 255).astype(np.uint8)


BRIGHTEST = 6.0
FILM = _film()


@dataclass
class Placed:
    """A solid that stands somewhere: own frame -> world by `turn` (3, 3) and `at` (3,)."""

    shape: Shape
    turn: Array
    at: Array
    gloss: float = 0.1


@dataclass
class Light:
    """One soft lamp and what comes from everywhere."""

    at: Array  # (3,)
    radius: float
    colour: Array  # (3,)
    ambient: Array  # (3,)
    bounce: Array  # (3,) from below


@dataclass
class Lens:
    """Where the camera stands and how it takes the picture."""

    eye: Array
    target: Array
    roll: float
    zoom: float  # height of the picture at distance one
    blur_far: float = 0.0  # pixels of blur at the wall
    exposure: float = 1.0
    balance: tuple[float, float, float] = (1, 1, 1)
    vignette: float = 0.2
    soft: float = 0.0
    shake: tuple[float, float] = (0, 0)
    grain: float = 0.01


@dataclass
class Scene:
    """Everything in front of the lens; the first thing is what the picture is of."""

    things: list[Placed]
    table: Array
    wall: Array
    wall_z: float
    table_scale: float
    wall_scale: float
    offset: tuple[float, float]
    light: Light
    table_gloss: float = 0.0


@dataclass
class Hits:
    """What each pixel sees: point, normal, colour, gloss and which thing (or TABLE, WALL)."""

    point: Array
    normal: Array
    colour: Array
    gloss: Array
    who: Array


def basis(lens: Lens) -> Array:
    """Rows: right, up, forward (3, 3)."""
    forward = lens.target - lens.eye
    forward = forward / np.linalg.norm(forward)
    right = np.cross(forward, [0, 1, 0])
    right /= np.linalg.norm(right)
    up = np.cross(right, forward)
    c, s = np.cos(lens.roll), np.sin(lens.roll)
    return np.stack([c * right + s * up, c * up - s * right, forward]).astype(np.float32)


def project(points: Array, lens: Lens, size: int) -> tuple[Array, Array]:
    """Pixels (n, 2) of world points (n, 3), and their depth (n,)."""
    local = (points - lens.eye) @ basis(lens).T
    flat = local[:, :2] / np.maximum(local[:, 2:], 1e-3) / lens.zoom
    return np.stack([(flat[:, 0] + 0.5) * size, (0.5 - flat[:, 1]) * size], axis=1), local[:, 2]


def corners(thing: Placed) -> Array:
    """The eight corners of a thing's own box, in the world."""
    signs = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], np.float32)
    placed: Array = (signs * thing.shape.half) @ thing.turn.T + thing.at
    return placed


def _tile(image: Array, x: Array, y: Array) -> Array:
    """Light (3, n) of an image repeated as in a mirror, so that no seam shows."""
    n = len(image)
    u, v = (np.abs(((q * n).astype(np.int32) % (2 * n)) - n).clip(1) - 1 for q in (x, y))
    light: Array = LINEAR[image.reshape(-1, 3).take(v * n + u, axis=0).T]
    return light


def look(scene: Scene, lens: Lens, size: int) -> Hits:
    """The nearest surface of every pixel, row by row: arrays (3, size * size)."""
    frame, eye = basis(lens), lens.eye.astype(np.float32)
    steps = ((np.arange(size) + 0.5) / size - 0.5).astype(np.float32) * np.float32(lens.zoom)
    rays = (
        frame[0][:, None, None] * steps - frame[1][:, None, None] * steps[:, None] + frame[2][:, None, None]
    )
    rays = rays.reshape(3, -1)
    to_table = np.where(rays[1] < -1e-5, -eye[1] / np.minimum(rays[1], -1e-5), np.float32(60))
    to_wall = np.where(rays[2] < -1e-5, (scene.wall_z - eye[2]) / np.minimum(rays[2], -1e-5), np.float32(60))
    depth = np.minimum(to_table, to_wall).astype(np.float32)
    who = np.where(to_table <= to_wall, TABLE, WALL).astype(np.int8)
    point = eye[:, None] + rays * depth
    normal, colour = np.zeros_like(rays), np.empty_like(rays)
    on, off = scene.offset
    table, wall = np.flatnonzero(who == TABLE), np.flatnonzero(who == WALL)
    normal[1, table] = 1
    normal[2, wall] = 1
    x, _, z = point[:, table] * np.float32(scene.table_scale)
    colour[:, table] = _tile(scene.table, x + on, z + off)
    x, y, _ = point[:, wall] * np.float32(scene.wall_scale)
    colour[:, wall] = _tile(scene.wall, x + on, off - y)
    gloss = np.where(who == TABLE, scene.table_gloss, 0).astype(np.float32)
    hits = Hits(point, normal, colour, gloss, who)
    for number, thing in enumerate(scene.things):
        _draw(hits, depth, rays, eye, number, thing, lens, size)
    return hits


def _draw(
    hits: Hits, depth: Array, rays: Array, eye: Array, number: int, thing: Placed, lens: Lens, size: int
) -> None:
    """One thing over what is there, where it is nearer."""
    pixels, away = project(corners(thing), lens, size)
    if (away < 0.05).any():
        return
    (x0, y0), (x1, y1) = np.floor(pixels.min(axis=0)).astype(int), np.ceil(pixels.max(axis=0)).astype(int) + 1
    x0, y0, x1, y1 = max(x0, 0), max(y0, 0), min(x1, size), min(y1, size)
    if x0 >= x1 or y0 >= y1:
        return
    window = (np.arange(y0, y1)[:, None] * size + np.arange(x0, x1)).ravel()
    origin = ((eye - thing.at) @ thing.turn).astype(np.float32)
    local = thing.turn.T @ rays.take(window, axis=1)
    t = thing.shape.hit(origin, local)
    near = np.flatnonzero(t < depth[window])
    window, t = window[near], t[near]
    if len(window) == 0:
        return
    inside = origin[:, None] + local[:, near] * t
    hits.colour[:, window], normal = thing.shape.surface(inside)
    hits.normal[:, window] = thing.turn @ normal
    hits.point[:, window] = thing.turn @ inside + thing.at[:, None]
    hits.gloss[window] = thing.gloss
    hits.who[window] = number
    depth[window] = t


def shadows(scene: Scene, hits: Hits, size: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """(share of the lamp that is seen, openness to the room) of every pixel, both (size * size,)."""
    pick = (np.arange(0, size, COARSE)[:, None] * size + np.arange(0, size, COARSE)).ravel()
    point, who = hits.point[:, pick] + np.float32(0.004) * hits.normal[:, pick], hits.who[pick]
    seen = np.zeros(len(pick), np.float32)
    for k in range(SHADOW_RAYS):
        angle = rng.uniform(0, 2 * np.pi, len(pick)) + k
        reach = scene.light.radius * np.sqrt((k + rng.random(len(pick))) / SHADOW_RAYS)
        lamp = scene.light.at[:, None] + np.stack([np.cos(angle) * reach, np.sin(angle) * reach, 0 * angle])
        seen += ~_blocked(scene.things, point, lamp.astype(np.float32), who)
    open_ = np.ones(len(pick), np.float32)
    for number, thing in enumerate(scene.things):
        x, _, z = thing.turn.T @ (point - thing.at[:, None])
        if abs(float(thing.turn[1, 1])) < 0.5:  # it lies on its back
            _, z, _ = thing.turn.T @ (point - thing.at[:, None])
            z = z * (thing.shape.half[2] / thing.shape.half[1])
        gap = thing.shape.beside(x, z)
        near = np.exp(-gap / 0.09) * np.exp(-np.maximum(point[1], 0) / 0.2)
        open_ *= 1 - np.float32(0.72) * near.astype(np.float32) * (who != number)
    foot = np.float32(0.6) + np.float32(0.4) * np.clip(point[1] / np.float32(0.25), 0, 1)
    open_ = np.where(who >= 0, np.minimum(open_, foot), open_)
    return _spread(seen / SHADOW_RAYS, size, 0.9), _spread(open_, size, 0.5)


def _blocked(things: list[Placed], point: Array, lamp: Array, who: Array) -> Array:
    """Whether something stands between the points and the lamp; here all is boxes and balls."""
    blocked = np.zeros(point.shape[1], bool)
    for number, thing in enumerate(things):
        rays = thing.turn.T @ (lamp - point)
        origin = thing.turn.T @ (point - thing.at[:, None])
        if isinstance(thing.shape, Box):
            near, far = slabs(thing.shape.half, origin, rays)
            hit = (near < far) & (far > 0) & (near < 1)
        else:
            hit = _round_shadow(thing.shape, origin, rays)
        blocked |= hit & (who != number)
    return blocked


def _round_shadow(shape: Shape, origin: Array, rays: Array) -> Array:
    """A ball, or the cylinder around a turned body (its lower part, where a bottle is wide)."""
    radius, top = shape.half[0], shape.half[1]
    if isinstance(shape, Ball):
        o, d = origin / shape.half[:, None], rays / shape.half[:, None]
        a, b, c = (d * d).sum(axis=0), (o * d).sum(axis=0), (o * o).sum(axis=0) - 1
        return (b * b - a * c > 0) & (b < 0)
    a, b = rays[0] ** 2 + rays[2] ** 2, origin[0] * rays[0] + origin[2] * rays[2]
    c = origin[0] ** 2 + origin[2] ** 2 - radius * radius
    root = np.sqrt(np.maximum(b * b - a * c, 0))
    t = (-b - root) / np.maximum(a, 1e-9)
    low, high = (origin[1] + rays[1] * q for q in (t, (-b + root) / np.maximum(a, 1e-9)))
    slim = np.float32(0.35) * top if top > 2.2 * radius else top
    return (root > 0) & (b < root) & (np.minimum(low, high) < slim) & (np.maximum(low, high) > -top)


def _spread(coarse: Array, size: int, blur: float) -> Array:
    rows = -(-size // COARSE)
    image = Image.fromarray((coarse.reshape(rows, rows) * 255).astype(np.uint8)).filter(
        ImageFilter.GaussianBlur(blur)
    )
    grown = image.resize((rows * COARSE, rows * COARSE), Image.Resampling.BILINEAR).crop((0, 0, size, size))
    spread: Array = np.asarray(grown, dtype=np.float32).ravel() / 255
    return spread


def shade(scene: Scene, lens: Lens, hits: Hits, lit: Array, open_: Array) -> Array:
    """Light (3, n) that reaches the lens."""
    light = scene.light
    to_lamp = light.at.astype(np.float32)[:, None] - hits.point
    far = np.sqrt((to_lamp * to_lamp).sum(axis=0))
    to_lamp /= far
    facing = (hits.normal * to_lamp).sum(axis=0)
    key = np.maximum(facing, 0) * lit * (36 / (far * far))
    upward = (np.float32(0.5) + np.float32(0.5) * hits.normal[1]) * open_
    above, below = (
        (np.float32(0.35) + np.float32(0.65) * upward) * open_,
        (1 - upward) * open_ * np.float32(0.5),
    )
    picture: Array = hits.colour * np.stack(
        [key * k + above * a + below * b for k, a, b in zip(light.colour, light.ambient, light.bounce)]
    )
    glossy = np.flatnonzero(hits.gloss > 0)
    if len(glossy):
        picture[:, glossy] += _shine(scene, lens, hits, glossy, to_lamp, lit)
    return picture


def _shine(scene: Scene, lens: Lens, hits: Hits, glossy: Array, to_lamp: Array, lit: Array) -> Array:
    """What a glossy skin mirrors: the lamp, a window at the left, the room."""
    normal, light = hits.normal[:, glossy], scene.light
    view = lens.eye.astype(np.float32)[:, None] - hits.point[:, glossy]
    view /= np.sqrt((view * view).sum(axis=0))
    facing = (normal * view).sum(axis=0)
    mirrored = 2 * facing * normal - view
    rim = (1 - np.clip(facing, 0, 1)) ** 4
    strength = hits.gloss[glossy] * (np.float32(0.35) + np.float32(0.65) * rim)
    lamp = np.clip((mirrored * to_lamp[:, glossy]).sum(axis=0), 0, 1) ** 4
    wide = lamp**4
    spot = (np.float32(0.9) * (wide * wide) ** 3 + np.float32(0.35) * wide) * lit[glossy] * np.float32(2.2)
    window = np.clip(1 - np.abs(mirrored[0] + 0.75) * 6, 0, 1) * np.clip(
        1.2 - np.abs(mirrored[1] - 0.15) * 1.6, 0, 1
    )
    room = (
        np.float32(0.25) + np.float32(0.35) * np.clip(mirrored[1], -0.4, 1) + np.float32(1.4) * window
    ) * 1.6
    return np.stack([strength * (spot * k + room * a) for k, a in zip(light.colour, light.ambient)])


def photograph(scene: Scene, lens: Lens, size: int, fine: int, rng: np.random.Generator) -> Image.Image:
    """Render `fine` pixels across, reduce to `size`, then do what a real camera does to a picture."""
    hits = look(scene, lens, fine)
    light = shade(scene, lens, hits, *shadows(scene, hits, fine, rng))
    typical = max(float(np.median(light[1, ::17])), 0.04)
    light *= (np.array(lens.balance, np.float32) * np.float32(lens.exposure * 0.24 / typical**0.75))[:, None]
    encoded = FILM[np.minimum(light * np.float32(len(FILM) / BRIGHTEST), len(FILM) - 1).astype(np.int32)]
    image = Image.fromarray(np.ascontiguousarray(encoded.T).reshape(fine, fine, 3))
    if lens.blur_far > 0:
        image = _focus(image, hits, lens, fine, fine / size)
    return _develop(image.resize((size, size), Image.Resampling.HAMMING), lens, rng)


def _focus(image: Image.Image, hits: Hits, lens: Lens, fine: int, over: float) -> Image.Image:
    """Sharp where things stand, soft behind them."""
    beyond = lens.eye.astype(np.float32)[:, None] - hits.point
    apart = np.sqrt((beyond * beyond).sum(axis=0)) - np.float32(np.linalg.norm(lens.eye - lens.target))
    share = np.clip((apart - np.float32(0.4)) / np.float32(1.6), 0, 1).reshape(fine, fine)
    mask = Image.fromarray((share * 255).astype(np.uint8))
    half = (
        image.reduce(2)
        .filter(ImageFilter.BoxBlur(lens.blur_far * over * 0.7))
        .filter(ImageFilter.BoxBlur(lens.blur_far * over * 0.5))
    )
    return Image.composite(half.resize(image.size, Image.Resampling.BILINEAR), image, mask)


def _develop(image: Image.Image, lens: Lens, rng: np.random.Generator) -> Image.Image:
    size = image.width
    if lens.soft > 0.2:
        image = image.filter(ImageFilter.GaussianBlur(lens.soft))
    pixels = np.asarray(image, dtype=np.float32)
    dx, dy = lens.shake
    steps = int(max(abs(dx), abs(dy)))
    if steps:
        moved = [(round(dy * k / steps), round(dx * k / steps)) for k in range(steps + 1)]
        pixels = np.mean([np.roll(pixels, shift, axis=(0, 1)) for shift in moved], axis=0, dtype=np.float32)
    y, x = np.mgrid[-1 : 1 : size * 1j, -1 : 1 : size * 1j].astype(np.float32)
    pixels = pixels * (1 - np.float32(lens.vignette) * (x * x + y * y) / 2)[..., None]
    coarse = rng.standard_normal((size, size, 1), dtype=np.float32)
    colour = rng.standard_normal((size, size, 3), dtype=np.float32)
    pixels += (
        (coarse * 204 + colour * 128) * np.float32(lens.grain) * np.sqrt(0.25 + np.maximum(pixels, 0) / 255)
    )
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
