"""What boxes, tins, bottles and books look like, drawn flat: fronts, sides, lids, labels that run round."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from kinrank.demo.brands import INK, WHITE, Product
from kinrank.demo.drawing import MOTIFS, Colour, blend, disc, petal, ring

Size = tuple[int, int]
OVER = 2  # drawn larger and reduced: Pillow's shapes have hard edges


@lru_cache(maxsize=256)
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def write(
    draw: ImageDraw.ImageDraw,
    text: str,
    centre: tuple[float, float],
    room: tuple[float, float],
    fill: Colour,
    weight: float = 0.0,
    spacing: float = 0.0,
) -> None:
    """One line, as large as fits into `room`, around `centre`; `weight` thickens, `spacing` lets out."""
    probe = 100
    widths = [_font(probe).getlength(c) + spacing * probe for c in text]
    size = max(6, int(min(room[0] / max(sum(widths) / probe + weight * 2, 0.01), room[1] / 0.78)))
    stroke = int(size * weight)
    if spacing == 0:
        draw.text(centre, text, fill, _font(size), anchor="mm", stroke_width=stroke, stroke_fill=fill)
        return
    x = centre[0] - (sum(widths) - spacing * probe) / probe * size / 2
    for sign, width in zip(text, widths):
        draw.text((x, centre[1]), sign, fill, _font(size), anchor="lm", stroke_width=stroke, stroke_fill=fill)
        x += width * size / probe


def ink_on(ground: Colour, *choices: Colour) -> Colour:
    """The choice that stands out most."""

    def grey(c: Colour) -> float:
        return 0.3 * c[0] + 0.59 * c[1] + 0.11 * c[2]

    return max(choices or (WHITE, INK), key=lambda c: abs(grey(c) - grey(ground)))


def front(product: Product, size: Size) -> Image.Image:
    """The face that sells it."""
    image, draw, w, h = _canvas(size, product.ground)
    rng = np.random.default_rng(product.seed)
    LAYOUTS[product.layout](product, draw, w, h, rng)
    return image.reduce(OVER)


def side(product: Product, size: Size) -> Image.Image:
    """A narrow face: the name upright, a table of figures, a bar code."""
    image, draw, w, h = _canvas(size, product.ground)
    rng = np.random.default_rng(product.seed + 1)
    pattern(product.pattern, draw, (0, 0, w, h), blend(product.ground, product.second, 0.18))
    draw.rectangle((0, 0, w, h * 0.07), fill=product.accent)
    _upright(image, product.brand, (w * 0.5, h * 0.34), (h * 0.46, w * 0.4), ink_on(product.ground), 0.03)
    plate = (w * 0.14, h * 0.62, w * 0.86, h * 0.95)
    draw.rectangle(plate, fill=WHITE)
    _figures(draw, (plate[0], plate[1], plate[2], h * 0.84), rng)
    _barcode(draw, (plate[0] + w * 0.06, h * 0.855, plate[2] - w * 0.06, h * 0.935), rng)
    return image.reduce(OVER)


def lid(product: Product, size: Size) -> Image.Image:
    """The top."""
    image, draw, w, h = _canvas(size, blend(product.ground, product.accent, 0.75))
    write(draw, product.brand, (w / 2, h / 2), (w * 0.6, h * 0.4), ink_on(product.accent), 0.03)
    return image.reduce(OVER)


def wrap(product: Product, size: Size) -> Image.Image:
    """A label that runs round: the front in the middle, the small print at its back."""
    w, h = size
    image = Image.new("RGB", size, product.ground)
    draw = ImageDraw.Draw(image)
    pattern(product.pattern, draw, (0, 0, w, h), blend(product.ground, product.second, 0.18))
    draw.rectangle((0, 0, w, h * 0.05), fill=product.accent)
    draw.rectangle((0, h * 0.95, w, h), fill=product.accent)
    face = int(w * 0.5)
    image.paste(front(product, (face, h)), ((w - face) // 2, 0))
    panel = side(product, (int(w * 0.2), int(h * 0.84)))
    image.paste(panel, (int(w * 0.02), int(h * 0.08)))
    return image


def _canvas(size: Size, ground: Colour) -> tuple[Image.Image, ImageDraw.ImageDraw, int, int]:
    image = Image.new("RGB", (size[0] * OVER, size[1] * OVER), ground)
    return image, ImageDraw.Draw(image), image.width, image.height


def _upright(
    image: Image.Image,
    text: str,
    centre: tuple[float, float],
    room: tuple[float, float],
    fill: Colour,
    weight: float,
) -> None:
    mask = Image.new("L", (int(room[0]), int(room[1])))
    write(ImageDraw.Draw(mask), text, (room[0] / 2, room[1] / 2), room, 255, weight)  # type: ignore[arg-type]
    mask = mask.transpose(Image.Transpose.ROTATE_90)
    image.paste(fill, (int(centre[0] - mask.width / 2), int(centre[1] - mask.height / 2)), mask)


def _figures(
    draw: ImageDraw.ImageDraw, box: tuple[float, float, float, float], rng: np.random.Generator
) -> None:
    x0, y0, x1, y1 = box
    rows = 9
    for k in range(rows):
        y = y0 + (y1 - y0) * (k + 0.5) / rows
        long = rng.uniform(0.3, 0.55)
        thick = max(1, int((y1 - y0) / rows * (0.5 if k == 0 else 0.28)))
        draw.line((x0 + 4, y, x0 + 4 + (x1 - x0) * long, y), fill=INK, width=thick)
        draw.line((x1 - 4 - (x1 - x0) * 0.16, y, x1 - 4, y), fill=INK, width=thick)


def _barcode(
    draw: ImageDraw.ImageDraw, box: tuple[float, float, float, float], rng: np.random.Generator
) -> None:
    x, stop = box[0], box[2]
    unit = max(1.0, (stop - x) / 60)
    while x < stop - unit:
        wide = unit * int(rng.integers(1, 4))
        draw.rectangle((x, box[1], min(x + wide, stop), box[3]), fill=INK)
        x += wide + unit * int(rng.integers(1, 3))


def pattern(
    name: str, draw: ImageDraw.ImageDraw, box: tuple[float, float, float, float], colour: Colour
) -> None:
    """Fill a rectangle with a repeat."""
    x0, y0, x1, y1 = box
    step = 44.0
    xs, ys = np.arange(x0 - step, x1 + step, step), np.arange(y0 - step, y1 + step, step)
    if name == "stripes":
        for x in xs:
            draw.rectangle((x, y0, x + step / 2, y1), fill=colour)
    elif name == "lines":
        for y in np.arange(y0, y1, step / 2):
            draw.line((x0, y, x1, y), fill=colour, width=3)
    elif name == "waves":
        for y in ys:
            t = np.arange(x0, x1 + 8, 8.0)
            draw.line(list(zip(t.tolist(), (y + 9 * np.sin(t / 14)).tolist())), fill=colour, width=5)
    elif name in ("dots", "diamonds", "leaves"):
        for row, y in enumerate(ys):
            for x in xs + (step / 2 if row % 2 else 0):
                if name == "dots":
                    disc(draw, float(x), float(y), step * 0.17, colour)
                elif name == "diamonds":
                    draw.polygon(ring(float(x), float(y), step * 0.34, 4), fill=colour)
                else:
                    draw.polygon(petal(float(x), float(y), -0.8, step * 0.7, step * 0.3), fill=colour)


def _motif(
    p: Product, draw: ImageDraw.ImageDraw, x: float, y: float, r: float, rng: np.random.Generator, on: Colour
) -> None:
    dark = blend(p.accent, INK, 0.5)
    main = p.accent if abs(sum(p.accent) - sum(on)) > 120 else blend(p.accent, ink_on(on), 0.55)
    MOTIFS[p.motif](draw, x, y, r, [main, dark, blend(p.light, p.accent, 0.1), p.second], rng)


def _badge(p: Product, draw: ImageDraw.ImageDraw, w: int, h: int, rng: np.random.Generator) -> None:
    m = min(w, h)
    pattern(p.pattern, draw, (0, 0, w, h), blend(p.ground, p.second, 0.25))
    draw.rectangle((0, h * 0.86, w, h), fill=p.accent)
    r, cy = min(w * 0.42, h * 0.32), h * 0.46
    disc(draw, w / 2, cy, r, p.second)
    disc(draw, w / 2, cy, r * 0.95, p.ground)
    disc(draw, w / 2, cy, r * 0.9, p.light)
    _motif(p, draw, w / 2, cy + r * 0.22, r * 0.42, rng, p.light)
    write(draw, p.brand, (w / 2, cy - r * 0.42), (r * 1.3, r * 0.42), p.ground, 0.035)
    write(draw, p.slogan.upper(), (w / 2, h * 0.07), (w * 0.6, m * 0.05), p.second, 0, 0.2)
    write(draw, p.flavour, (w / 2, h * 0.93), (w * 0.8, h * 0.075), ink_on(p.accent), 0.03)


def _split(p: Product, draw: ImageDraw.ImageDraw, w: int, h: int, rng: np.random.Generator) -> None:
    draw.polygon([(0, h * 0.62), (w, h * 0.34), (w, h), (0, h)], fill=p.accent)
    draw.polygon([(0, h * 0.60), (w, h * 0.32), (w, h * 0.35), (0, h * 0.63)], fill=p.second)
    _motif(p, draw, w * 0.52, h * 0.6, min(w * 0.34, h * 0.22), rng, p.accent)
    write(draw, p.brand, (w / 2, h * 0.17), (w * 0.8, h * 0.15), ink_on(p.ground), 0.035)
    write(draw, p.slogan.upper(), (w / 2, h * 0.31), (w * 0.5, h * 0.035), ink_on(p.ground), 0, 0.15)
    write(draw, p.flavour, (w / 2, h * 0.9), (w * 0.84, h * 0.085), ink_on(p.accent), 0.03)


def _plain(p: Product, draw: ImageDraw.ImageDraw, w: int, h: int, rng: np.random.Generator) -> None:
    ink = ink_on(p.ground, p.second, INK)
    pattern(p.pattern, draw, (0, h * 0.74, w, h), blend(p.ground, p.accent, 0.35))
    draw.rectangle((0, h * 0.7, w, h * 0.74), fill=p.accent)
    write(draw, p.brand, (w / 2, h * 0.13), (w * 0.78, h * 0.12), ink, 0.03)
    draw.line((w * 0.3, h * 0.215, w * 0.7, h * 0.215), fill=ink, width=4)
    _motif(p, draw, w / 2, h * 0.46, min(w * 0.32, h * 0.2), rng, p.ground)
    plate = (w * 0.12, h * 0.79, w * 0.88, h * 0.92)
    draw.rounded_rectangle(plate, h * 0.02, fill=p.light)
    write(draw, p.flavour, (w / 2, h * 0.855), (w * 0.66, h * 0.085), ink_on(p.light, p.second, INK), 0.02)


def _band(p: Product, draw: ImageDraw.ImageDraw, w: int, h: int, rng: np.random.Generator) -> None:
    pattern(p.pattern, draw, (0, 0, w, h), blend(p.ground, p.second, 0.3))
    draw.rectangle((0, h * 0.14, w, h * 0.4), fill=p.light)
    draw.rectangle((0, h * 0.155, w, h * 0.17), fill=p.accent)
    draw.rectangle((0, h * 0.37, w, h * 0.385), fill=p.accent)
    write(draw, p.brand, (w / 2, h * 0.24), (w * 0.8, h * 0.115), ink_on(p.light, p.ground, p.second), 0.035)
    write(draw, p.slogan, (w / 2, h * 0.335), (w * 0.6, h * 0.032), INK)
    r = min(w * 0.34, h * 0.2)
    disc(draw, w / 2, h * 0.62, r * 1.2, p.light)
    _motif(p, draw, w / 2, h * 0.62, r * 0.85, rng, p.light)
    draw.rectangle((0, h * 0.86, w, h * 0.97), fill=p.accent)
    write(draw, p.flavour.upper(), (w / 2, h * 0.915), (w * 0.7, h * 0.065), ink_on(p.accent), 0.02, 0.08)


def _frame(p: Product, draw: ImageDraw.ImageDraw, w: int, h: int, rng: np.random.Generator) -> None:
    m = min(w, h)
    pattern(p.pattern, draw, (0, 0, w, h), blend(p.ground, p.second, 0.3))
    draw.rectangle((w * 0.1, h * 0.09, w * 0.9, h * 0.91), fill=p.light)
    draw.rectangle((w * 0.13, h * 0.11, w * 0.87, h * 0.89), outline=p.accent, width=max(3, int(m * 0.016)))
    write(draw, p.brand, (w / 2, h * 0.24), (w * 0.62, h * 0.13), p.ground, 0.03, 0.02)
    write(draw, p.slogan.upper(), (w / 2, h * 0.335), (w * 0.5, h * 0.035), p.ground, 0, 0.18)
    _motif(p, draw, w / 2, h * 0.56, min(w * 0.25, h * 0.17), rng, p.light)
    draw.rectangle((w * 0.2, h * 0.75, w * 0.8, h * 0.84), fill=p.accent)
    write(draw, p.flavour, (w / 2, h * 0.795), (w * 0.52, h * 0.062), ink_on(p.accent), 0.02)


def _burst(p: Product, draw: ImageDraw.ImageDraw, w: int, h: int, rng: np.random.Generator) -> None:
    reach = float(np.hypot(w, h))
    for k in range(0, 32, 2):
        a = np.pi * np.array([k, k + 1]) / 16
        rays = [(w / 2 + reach * np.cos(q), h * 0.5 + reach * np.sin(q)) for q in a]
        draw.polygon([(w / 2, h * 0.5), *rays], fill=blend(p.ground, p.accent, 0.55))
    r = min(w, h) * 0.3
    _motif(p, draw, w / 2, h * 0.6, r, rng, p.ground)
    for shift, colour in ((0.012, blend(p.second, INK, 0.6)), (0.0, p.second)):
        write(draw, p.brand, (w * (0.5 + shift), h * (0.22 + shift)), (w * 0.8, h * 0.26), colour, 0.07)
    draw.rounded_rectangle((w * 0.12, h * 0.83, w * 0.88, h * 0.95), h * 0.06, fill=p.accent)
    write(draw, p.flavour, (w / 2, h * 0.89), (w * 0.64, h * 0.08), ink_on(p.accent), 0.04)


def _cover(p: Product, draw: ImageDraw.ImageDraw, w: int, h: int, rng: np.random.Generator) -> None:
    sky, earth = blend(p.accent, p.light, 0.72), blend(p.accent, p.ground, 0.55)
    draw.rectangle((0, 0, w, h), fill=sky if p.pattern == "none" else earth)
    pattern(p.pattern, draw, (0, 0, w, h * 0.3), blend(earth, p.second, 0.16))
    ground = sky if p.pattern == "none" else earth
    _motif(p, draw, w / 2, h * 0.62, min(w * 0.38, h * 0.26), rng, ground)
    ink = ink_on(ground, p.second, INK, p.light)
    words = p.flavour.split(" ")
    middle = (len(words) + 1) // 2
    lines = [" ".join(part) for part in (words[:middle], words[middle:]) if part]
    for k, line in enumerate(lines):
        write(draw, line, (w / 2, h * (0.13 + 0.115 * k)), (w * 0.8, h * 0.095), ink, 0.025)
    draw.rectangle((0, h * 0.915, w, h), fill=p.second)
    write(draw, p.brand.upper(), (w / 2, h * 0.957), (w * 0.7, h * 0.035), ink_on(p.second), 0, 0.14)


LAYOUTS = {
    "badge": _badge, "split": _split, "plain": _plain, "band": _band, "frame": _frame, "burst": _burst,
    "cover": _cover,
}  # fmt: skip
