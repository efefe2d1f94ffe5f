"""Little motifs for the packaging: each fills a square of an image, in the colours that it is given."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import ImageDraw

Colour = tuple[int, int, int]
Point = tuple[float, float]
Motif = Callable[[ImageDraw.ImageDraw, float, float, float, list[Colour], np.random.Generator], None]


def blend(a: Colour, b: Colour, share: float) -> Colour:
    """`share` of b in a."""
    mixed = [round(x + (y - x) * share) for x, y in zip(a, b)]
    return mixed[0], mixed[1], mixed[2]


def disc(draw: ImageDraw.ImageDraw, x: float, y: float, r: float, fill: Colour) -> None:
    """A filled circle."""
    draw.ellipse((x - r, y - r, x + r, y + r), fill=fill)


def petal(x: float, y: float, angle: float, length: float, width: float, steps: int = 14) -> list[Point]:
    """A leaf's outline that starts at (x, y) and points along `angle`."""
    t = np.linspace(0, np.pi, steps)
    along = (1 - np.cos(t)) / 2 * length
    side = np.sin(t) ** 1.3 * width / 2
    along, side = np.concatenate([along, along[::-1]]), np.concatenate([side, -side[::-1]])
    c, s = np.cos(angle), np.sin(angle)
    return list(zip((x + along * c - side * s).tolist(), (y + along * s + side * c).tolist()))


def ring(x: float, y: float, r: float, n: int, start: float = 0.0) -> list[Point]:
    """The corners of a regular polygon."""
    a = start + np.arange(n) * 2 * np.pi / n
    return list(zip((x + r * np.cos(a)).tolist(), (y + r * np.sin(a)).tolist()))


def citrus(draw, x, y, r, colours, rng) -> None:  # type: ignore[no-untyped-def]
    """A slice of lemon or orange with a leaf behind it."""
    skin, flesh, light, _ = colours
    draw.polygon(
        petal(x + r * 0.4, y - r * 0.5, -0.9, r * 1.1, r * 0.6), fill=blend(light, (40, 120, 60), 0.8)
    )
    disc(draw, x, y, r, skin)
    disc(draw, x, y, r * 0.9, light)
    for k in range(10):
        a = k * np.pi / 5
        tip = petal(x + r * 0.1 * np.cos(a), y + r * 0.1 * np.sin(a), a, r * 0.74, r * 0.42)
        draw.polygon(tip, fill=blend(flesh, light, 0.12 * (k % 2)))


def berries(draw, x, y, r, colours, rng) -> None:  # type: ignore[no-untyped-def]
    """A bunch of round fruit with a highlight each."""
    main, dark, light, _ = colours
    draw.polygon(petal(x, y - r * 0.7, -0.6, r, r * 0.5), fill=(60, 130, 70))
    draw.polygon(petal(x, y - r * 0.7, -2.4, r, r * 0.5), fill=(80, 150, 80))
    for row, count in enumerate((4, 3, 4, 2)):
        for k in range(count):
            bx, by = x + (k - (count - 1) / 2) * r * 0.48, y + (row - 1.2) * r * 0.42
            disc(draw, bx, by, r * 0.29, blend(main, dark, rng.uniform(0, 0.6)))
            disc(draw, bx - r * 0.08, by - r * 0.09, r * 0.08, light)


def sprig(draw, x, y, r, colours, rng) -> None:  # type: ignore[no-untyped-def]
    """A stem with pairs of leaves."""
    main, dark, _, _ = colours
    draw.line((x, y + r, x, y - r * 0.7), fill=dark, width=max(2, int(r * 0.07)))
    for k in range(5):
        ky, size = y + r * (0.75 - 0.36 * k), r * (0.85 - 0.09 * k)
        draw.polygon(petal(x, ky, -0.6, size, size * 0.42), fill=main)
        draw.polygon(petal(x, ky, np.pi + 0.6, size, size * 0.42), fill=blend(main, dark, 0.35))
    draw.polygon(petal(x, y - r * 0.6, -np.pi / 2, r * 0.55, r * 0.28), fill=main)


def mountains(draw, x, y, r, colours, rng) -> None:  # type: ignore[no-untyped-def]
    """Peaks with snow under a low sun."""
    main, dark, light, accent = colours
    disc(draw, x + r * 0.35, y - r * 0.45, r * 0.4, accent)
    for dx, h, c in ((-0.5, 1.0, dark), (0.45, 0.85, main), (0.0, 1.25, blend(main, dark, 0.5))):
        px, top, foot = x + dx * r, y + r * 0.8 - h * r, y + r * 0.8
        draw.polygon([(px - h * r * 0.7, foot), (px, top), (px + h * r * 0.7, foot)], fill=c)
        snow = top + h * r * 0.28
        draw.polygon(
            [(px - h * r * 0.19, snow), (px, top), (px + h * r * 0.19, snow), (px, snow - r * 0.08)],
            fill=light,
        )


def waves(draw, x, y, r, colours, rng) -> None:  # type: ignore[no-untyped-def]
    """Rows of scales, as in Japanese prints."""
    main, dark, light, accent = colours
    disc(draw, x, y - r * 0.35, r * 0.55, accent)
    for row in range(4):
        for k in range(-2, 3):
            wx, wy = x + (k + 0.5 * (row % 2)) * r * 0.5, y + r * (0.25 + 0.24 * row)
            for q, c in ((0.27, dark), (0.2, light), (0.14, main)):
                disc(draw, wx, wy, r * q, c)


def burst(draw, x, y, r, colours, rng) -> None:  # type: ignore[no-untyped-def]
    """A sun with many rays."""
    main, dark, light, _ = colours
    points = [p for pair in zip(ring(x, y, r, 18), ring(x, y, r * 0.66, 18, np.pi / 18)) for p in pair]
    draw.polygon(points, fill=main)
    disc(draw, x, y, r * 0.52, light)
    disc(draw, x, y, r * 0.42, dark)


def beans(draw, x, y, r, colours, rng) -> None:  # type: ignore[no-untyped-def]
    """Coffee beans, thrown."""
    main, dark, light, _ = colours
    for k in range(9):
        a, d = k * 2.4, r * 0.28 * np.sqrt(k)
        bx, by, turn = x + d * np.cos(a), y + d * np.sin(a), rng.uniform(0, 6.3)
        sx, sy = bx - r * 0.3 * np.cos(turn), by - r * 0.3 * np.sin(turn)
        draw.polygon(petal(sx, sy, turn, r * 0.6, r * 0.44), fill=blend(main, dark, rng.uniform(0, 0.7)))
        ex, ey = bx + r * 0.22 * np.cos(turn), by + r * 0.22 * np.sin(turn)
        draw.line((2 * bx - ex, 2 * by - ey, ex, ey), fill=light, width=max(1, int(r * 0.05)))


def fish(draw, x, y, r, colours, rng) -> None:  # type: ignore[no-untyped-def]
    """Three fish, one below the other."""
    main, dark, light, accent = colours
    for k, c in enumerate((main, accent, dark)):
        fx, fy = x + (k % 2 - 0.5) * r * 0.3, y + (k - 1) * r * 0.62
        draw.polygon(petal(fx - r * 0.75, fy, 0.0, r * 1.3, r * 0.56), fill=c)
        draw.polygon(
            [(fx + r * 0.38, fy), (fx + r * 0.85, fy - r * 0.26), (fx + r * 0.85, fy + r * 0.26)], fill=c
        )
        disc(draw, fx - r * 0.45, fy - r * 0.06, r * 0.07, light)


def wheat(draw, x, y, r, colours, rng) -> None:  # type: ignore[no-untyped-def]
    """Three ears of grain."""
    main, dark, _, _ = colours
    for lean in (-0.35, 0.0, 0.35):
        tip = np.array([x + lean * 2.2 * r * 0.6, y - r * 0.8])
        foot = np.array([x, y + r])
        draw.line((*foot, *tip), fill=dark, width=max(2, int(r * 0.05)))
        angle = float(np.arctan2(tip[1] - foot[1], tip[0] - foot[0]))
        for k in range(6):
            at = foot + (tip - foot) * (0.42 + 0.115 * k)
            for side, c in ((-0.55, main), (0.55, blend(main, dark, 0.3))):
                draw.polygon(petal(at[0], at[1], angle + side, r * 0.36, r * 0.16), fill=c)


def flower(draw, x, y, r, colours, rng) -> None:  # type: ignore[no-untyped-def]
    """A blossom of two rings of petals."""
    main, dark, light, accent = colours
    for count, size, c in ((9, 1.0, dark), (9, 0.8, main), (7, 0.5, light)):
        for k in range(count):
            a = k * 2 * np.pi / count + size
            draw.polygon(petal(x, y, a, r * size, r * size * 0.5), fill=blend(c, light, 0.1 * (k % 2)))
    disc(draw, x, y, r * 0.2, accent)


def night(draw, x, y, r, colours, rng) -> None:  # type: ignore[no-untyped-def]
    """A crescent and stars on a dark disc."""
    _, dark, light, accent = colours
    disc(draw, x, y, r, dark)
    disc(draw, x - r * 0.1, y, r * 0.55, light)
    disc(draw, x + r * 0.12, y - r * 0.12, r * 0.5, dark)
    for _ in range(9):
        a, d, s = rng.uniform(0, 6.3), r * rng.uniform(0.6, 0.9), r * rng.uniform(0.04, 0.1)
        sx, sy = x + d * np.cos(a), y + d * np.sin(a)
        draw.polygon(
            [p for z in zip(ring(sx, sy, s, 4), ring(sx, sy, s / 3, 4, 0.8)) for p in z], fill=accent
        )


def cup(draw, x, y, r, colours, rng) -> None:  # type: ignore[no-untyped-def]
    """A cup with steam over it."""
    main, dark, light, _ = colours
    disc(draw, x + r * 0.62, y + r * 0.2, r * 0.3, main)
    disc(draw, x + r * 0.62, y + r * 0.2, r * 0.17, light)
    draw.rounded_rectangle((x - r * 0.7, y - r * 0.2, x + r * 0.6, y + r * 0.75), r * 0.3, fill=main)
    draw.ellipse((x - r * 0.7, y - r * 0.36, x + r * 0.6, y - r * 0.04), fill=dark)
    for k in (-0.35, 0.0, 0.3):
        line = [(x + r * (k + 0.09 * np.sin(q * 1.2)), y - r * (0.42 + 0.09 * q)) for q in range(7)]
        draw.line(line, fill=dark, width=max(2, int(r * 0.07)), joint="curve")


def comb(draw, x, y, r, colours, rng) -> None:  # type: ignore[no-untyped-def]
    """Cells of a honeycomb."""
    main, dark, light, accent = colours
    for q in range(-2, 3):
        for p in range(-2, 3):
            if abs(p + q) < 3:
                c = [main, accent, blend(main, light, 0.4)][int(rng.integers(3))]
                hx, hy = x + r * 0.39 * (p + q / 2), y + r * 0.34 * q
                draw.polygon(ring(hx, hy, r * 0.22, 6, np.pi / 6), fill=dark)
                draw.polygon(ring(hx, hy, r * 0.18, 6, np.pi / 6), fill=c)


def apple(draw, x, y, r, colours, rng) -> None:  # type: ignore[no-untyped-def]
    """An apple or pear with a leaf."""
    main, dark, light, _ = colours
    slim = rng.uniform(0.62, 0.9)
    draw.ellipse((x - r * 0.9, y - r * 0.35, x + r * 0.9, y + r), fill=main)
    draw.ellipse((x - r * slim, y - r * 0.75, x + r * slim, y + r * 0.75), fill=main)
    draw.ellipse((x - r * 0.5, y - r * 0.35, x - r * 0.2, y + r * 0.3), fill=blend(main, light, 0.6))
    draw.line((x, y - r * 0.6, x + r * 0.12, y - r * 1.0), fill=dark, width=max(2, int(r * 0.09)))
    draw.polygon(petal(x + r * 0.08, y - r * 0.8, -0.3, r * 0.8, r * 0.36), fill=(70, 140, 70))


def chilli(draw, x, y, r, colours, rng) -> None:  # type: ignore[no-untyped-def]
    """A curved pod, and its flame."""
    main, dark, light, accent = colours
    for k in range(12):
        t = k / 11
        px, py = x - r * 0.7 + 1.4 * r * t, y - r * 0.5 + r * 1.1 * t**2
        disc(draw, px, py, r * (0.36 - 0.3 * t), blend(main, dark, t * 0.7))
    disc(draw, x - r * 0.75, y - r * 0.58, r * 0.22, (70, 130, 60))
    draw.polygon(petal(x + r * 0.3, y + r * 0.1, -np.pi / 2, r * 1.1, r * 0.5), fill=accent)
    draw.polygon(petal(x + r * 0.3, y + r * 0.1, -np.pi / 2, r * 0.6, r * 0.25), fill=light)


def tiles(draw, x, y, r, colours, rng) -> None:  # type: ignore[no-untyped-def]
    """Quarter circles and triangles on a grid."""
    n = int(rng.integers(3, 5))
    s = 2 * r / n
    for i in range(n):
        for j in range(n):
            a, b = (colours[k] for k in rng.permutation(4)[:2])
            x0, y0 = x - r + i * s, y - r + j * s
            draw.rectangle((x0, y0, x0 + s, y0 + s), fill=a)
            corner, turn = [(x0, y0), (x0 + s, y0), (x0 + s, y0 + s), (x0, y0 + s)], int(rng.integers(4))
            cx, cy = corner[turn]
            if rng.random() < 0.6:
                draw.pieslice((cx - s, cy - s, cx + s, cy + s), turn * 90, turn * 90 + 90, fill=b)
            else:
                draw.polygon([corner[turn], corner[(turn + 1) % 4], corner[(turn + 3) % 4]], fill=b)


def arcs(draw, x, y, r, colours, rng) -> None:  # type: ignore[no-untyped-def]
    """A rainbow of rings, cut by the horizon."""
    for k, q in enumerate(np.linspace(1, 0.25, int(rng.integers(4, 7)))):
        c = colours[k % 4]
        draw.pieslice(
            (x - r * q, y + r * 0.6 - 2 * r * q * 0.8, x + r * q, y + r * 0.6 + 0.1), 180, 360, fill=c
        )
    draw.rectangle((x - r, y + r * 0.55, x + r, y + r * 0.62), fill=colours[1])


def forest(draw, x, y, r, colours, rng) -> None:  # type: ignore[no-untyped-def]
    """Firs in three depths."""
    main, dark, light, accent = colours
    disc(draw, x - r * 0.3, y - r * 0.5, r * 0.3, accent)
    for row, c in enumerate((blend(main, light, 0.5), main, dark)):
        for k in range(4):
            tx = x + (k - 1.5 + 0.4 * (row % 2)) * r * 0.5 + rng.uniform(-1, 1) * r * 0.08
            foot, h = y + r * (0.35 + 0.3 * row), r * rng.uniform(0.7, 1.1)
            for part in (0.0, 0.3, 0.55):
                w = h * 0.3 * (1 - part * 0.8)
                draw.polygon(
                    [(tx - w, foot - part * h), (tx, foot - part * h - h * 0.5), (tx + w, foot - part * h)],
                    fill=c,
                )


MOTIFS: dict[str, Motif] = {
    "citrus": citrus, "berries": berries, "sprig": sprig, "mountains": mountains, "waves": waves,
    "burst": burst, "beans": beans, "fish": fish, "wheat": wheat, "flower": flower, "night": night,
    "cup": cup, "comb": comb, "apple": apple, "chilli": chilli, "tiles": tiles, "arcs": arcs,
    "forest": forest,
}  # fmt: skip
