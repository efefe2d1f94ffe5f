"""Table tops and walls: textures made from noise, and the light that falls on them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

Array = np.ndarray
SIZE = 512


def noise(rng: np.random.Generator, cells: tuple[int, int], octaves: int = 4, fade: float = 0.5) -> Array:
    """Smooth noise (SIZE, SIZE) in [0, 1]; `cells` are the grains of the coarsest octave, down and across."""
    total, weight = np.zeros((SIZE, SIZE), np.float32), 1.0
    for octave in range(octaves):
        grid = rng.random((cells[0] * 2**octave + 1, cells[1] * 2**octave + 1)).astype(np.float32)
        grown = Image.fromarray(grid).resize((SIZE, SIZE), Image.Resampling.BICUBIC)
        total += weight * np.asarray(grown)
        weight *= fade
    total -= total.min()
    scaled: Array = total / total.max()
    return scaled


def _mix(a: tuple[int, int, int], b: tuple[int, int, int], share: Array) -> Array:
    return np.array(a) + (np.array(b) - np.array(a)) * share[..., None]


def wood(rng: np.random.Generator) -> Array:
    """Planks with grain."""
    tones = [((92, 58, 36), (158, 110, 70)), ((178, 140, 98), (222, 190, 148)), ((60, 42, 34), (104, 76, 56)),
             ((196, 176, 150), (230, 216, 194))][int(rng.integers(4))]  # fmt: skip
    grain = noise(rng, (3, 24), 4, 0.7)
    bent = noise(rng, (2, 6), 3)
    rings = 0.5 + 0.5 * np.sin((np.arange(SIZE)[None] / 9) + bent * 26)
    share = np.clip(0.55 * grain + 0.3 * rings + 0.15 * bent, 0, 1)
    planks = _mix(*tones, share)
    count = int(rng.integers(3, 6))
    for k in range(count):
        a, b = k * SIZE // count, (k + 1) * SIZE // count
        planks[:, a:b] = np.roll(planks[:, a:b], int(rng.integers(SIZE)), axis=0) * rng.uniform(0.86, 1.08)
        planks[:, a : a + 3] *= 0.45
    return planks


def marble(rng: np.random.Generator) -> Array:
    """White or dark stone with veins."""
    ground, vein = [((236, 234, 230), (120, 122, 130)), ((44, 46, 50), (190, 186, 176)),
                    ((214, 222, 214), (86, 116, 104))][int(rng.integers(3))]  # fmt: skip
    ridges = [
        np.clip(1 - np.abs(noise(rng, (c, c), 5, 0.55) - 0.5) * s, 0, 1) ** 3 for c, s in ((2, 16), (4, 26))
    ]
    return _mix(ground, vein, np.clip(0.75 * ridges[0] + 0.35 * ridges[1] + 0.12 * noise(rng, (5, 5)), 0, 1))


def linen(rng: np.random.Generator) -> Array:
    """Woven cloth, plain or checked."""
    tones = [((198, 190, 174), (226, 220, 206)), ((92, 108, 122), (124, 140, 152)),
             ((170, 72, 64), (196, 98, 88)), ((216, 196, 150), (238, 222, 184))]  # fmt: skip
    pair = tones[int(rng.integers(4))]
    y, x = np.mgrid[:SIZE, :SIZE]
    weave = 0.25 * (np.sin(x * 1.6) + np.sin(y * 1.6)) + 0.5
    cloth = _mix(*pair, np.clip(0.55 * weave + 0.45 * noise(rng, (40, 40), 3), 0, 1))
    if rng.random() < 0.5:
        width = int(rng.integers(30, 64))
        check = ((x // width) % 2).astype(float) + ((y // width) % 2)
        cloth = cloth * (1 - 0.22 * check[..., None])
    return cloth


def concrete(rng: np.random.Generator) -> Array:
    """Grey with pores."""
    stone = _mix((118, 116, 114), (176, 174, 170), noise(rng, (4, 4), 6, 0.62))
    return stone * (1 - 0.3 * (rng.random((SIZE, SIZE, 1)) > 0.995))


def terrazzo(rng: np.random.Generator) -> Array:
    """Chips of stone in a pale ground."""
    image = Image.new("RGB", (SIZE, SIZE), (226, 220, 210))
    draw = ImageDraw.Draw(image)
    tones = [(160, 84, 66), (66, 84, 92), (206, 166, 110), (120, 120, 112), (90, 60, 56)]
    for _ in range(420):
        x, y, r = rng.uniform(0, SIZE), rng.uniform(0, SIZE), rng.uniform(3, 13)
        angles = np.sort(rng.uniform(0, 2 * np.pi, 6))
        draw.polygon(
            [(x + r * np.cos(a), y + r * np.sin(a)) for a in angles], fill=tones[int(rng.integers(5))]
        )
    return np.asarray(image, dtype=np.float32)


def ceramic(rng: np.random.Generator) -> Array:
    """Glazed tiles with joints."""
    tone = [(228, 230, 226), (120, 164, 160), (46, 74, 96), (206, 150, 130), (200, 204, 190)][
        int(rng.integers(5))
    ]
    n = int(rng.integers(4, 8))
    y, x = np.mgrid[:SIZE, :SIZE]
    high = SIZE // n // 2 if rng.random() < 0.6 else SIZE // n
    row = y // high
    shifted = (x + (row % 2) * (SIZE // n // 2)) % SIZE
    shades = rng.uniform(0.88, 1.06, size=(SIZE // high + 2, n + 2))
    wall = np.array(tone) * shades[row, shifted * n // SIZE][..., None]
    joint = (y % high < 3) | (shifted % (SIZE // n) < 3)
    wall[joint] = np.array([176, 172, 164])
    return wall


def plaster(rng: np.random.Generator) -> Array:
    """A painted wall."""
    tone = np.array([(214, 206, 192), (150, 170, 172), (190, 140, 116), (96, 106, 98), (224, 222, 220),
                     (66, 72, 88), (220, 196, 150)][int(rng.integers(7))])  # fmt: skip
    return tone * (0.9 + 0.16 * noise(rng, (3, 3), 6, 0.6))[..., None]


def bokeh(rng: np.random.Generator) -> Array:
    """Lights far behind, out of focus."""
    image = Image.new("RGB", (SIZE, SIZE), (26, 24, 30))
    for _ in range(60):
        layer = Image.new("RGB", (SIZE, SIZE))
        x, y, r = rng.uniform(0, SIZE), rng.uniform(0, SIZE), rng.uniform(10, 34)
        warm = [(190, 120, 50), (200, 160, 100), (90, 120, 180), (180, 70, 60), (120, 160, 120)][
            int(rng.integers(5))
        ]
        ImageDraw.Draw(layer).ellipse((x - r, y - r, x + r, y + r), fill=warm)
        image = Image.blend(image, Image.fromarray(np.maximum(np.asarray(image), np.asarray(layer))), 0.55)
    return np.asarray(image.filter(ImageFilter.GaussianBlur(2)), dtype=np.float32)


def shelf(rng: np.random.Generator) -> Array:
    """A shelf full of things, too far away to be read."""
    image = Image.new("RGB", (SIZE, SIZE), (58, 48, 42))
    draw = ImageDraw.Draw(image)
    for row in range(4):
        foot, x = (row + 1) * SIZE // 4 - 12, 4.0
        while x < SIZE:
            wide, high = rng.uniform(14, 58), rng.uniform(60, 108)
            tone = tuple(int(v) for v in rng.integers(50, 226, 3))
            draw.rectangle((x, foot - high, x + wide, foot), fill=tone)
            light = tuple(min(255, v + 60) for v in tone)
            draw.rectangle(
                (x + wide * 0.15, foot - high * 0.7, x + wide * 0.85, foot - high * 0.4), fill=light
            )
            x += wide + rng.uniform(1, 12)
        draw.rectangle((0, foot, SIZE, foot + 12), fill=(126, 98, 72))
    return np.asarray(image.filter(ImageFilter.GaussianBlur(5)), dtype=np.float32)


TABLES = (wood, marble, linen, concrete, terrazzo, wood, ceramic, linen)
WALLS = (plaster, shelf, bokeh, ceramic, plaster, wood, shelf, concrete)
VARIANTS = 3  # of each, for one seed


@lru_cache(maxsize=64)
def texture(seed: int, table: bool, number: int) -> Array:
    """One of the table tops or walls of a seed, as bytes (SIZE, SIZE, 3)."""
    makers = TABLES if table else WALLS
    made = makers[number % len(makers)](np.random.default_rng([seed, 3, int(table), number]))
    return np.clip(made, 0, 255).astype(np.uint8)


def choices(table: bool) -> int:
    """How many table tops, or walls, there are."""
    return VARIANTS * len(TABLES if table else WALLS)
