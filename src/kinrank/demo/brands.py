"""Invented makers and their products: names, colours and what is drawn on them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kinrank.demo.drawing import MOTIFS, Colour, blend

WHITE, INK, CREAM = (250, 249, 245), (34, 32, 36), (244, 236, 219)


@dataclass(frozen=True)
class Brand:
    """What the products of one maker share: a name, two product lines, colours."""

    name: str
    slogan: str
    grounds: tuple[Colour, Colour]  # of either line
    second: Colour
    light: Colour
    layouts: tuple[str, str]
    patterns: tuple[str, str]
    kinds: tuple[str, str]
    flavours: tuple[tuple[str, str, int], ...]  # (name, motif, accent), the first half for the first line


# Kinds are shapes of the room's catalogue (`shapes.py`); two lines a brand, three products each.
BRANDS = (
    Brand("Halden", "Fine foods", ((24, 62, 84), (232, 222, 200)), (226, 170, 70), CREAM, ("badge", "band"),
          ("dots", "waves"), ("box", "tin"),
          (("Sea Salt", "waves", 4), ("Smoked", "burst", 1), ("Wild Dill", "sprig", 3), ("Pepper", "chilli",
           0),
           ("Amber", "fish", 2), ("Nordic", "night", 5))),
    Brand("Mira", "Sparkling", ((232, 88, 72), (244, 240, 232)), (252, 214, 120), WHITE, ("split", "plain"),
          ("none", "dots"), ("can", "bottle"),
          (("Lemon", "citrus", 2), ("Cassis", "berries", 6), ("Peach", "apple", 7), ("Lime", "citrus", 3),
           ("Cherry", "berries", 0), ("Blood Orange", "citrus", 1))),
    Brand("Oat & Co", "Milled slowly", ((238, 222, 190), (104, 74, 50)), (120, 84, 52), WHITE,
          ("plain", "frame"),
          ("lines", "diamonds"), ("tall", "box"),
          (("Oat", "wheat", 2), ("Honey", "comb", 1), ("Cocoa", "beans", 0), ("Rye", "mountains", 4),
           ("Barley", "forest", 3), ("Spelt", "flower", 6))),
    Brand("TORRE", "Caffe dal 1924", ((176, 30, 38), (36, 34, 36)), (40, 34, 34), CREAM, ("band", "badge"),
          ("stripes", "lines"), ("can", "tea"),
          (("Ristretto", "cup", 2), ("Lungo", "beans", 5), ("Decaf", "night", 6), ("Crema", "arcs", 1),
           ("Moka", "mountains", 4), ("Forte", "burst", 0))),
    Brand("verdine", "Garden teas", ((56, 104, 72), (226, 232, 206)), (206, 222, 160), WHITE,
          ("frame", "split"),
          ("leaves", "none"), ("tea", "jar"),
          (("Sencha", "sprig", 3), ("Camomile", "flower", 2), ("Rooibos", "burst", 0), ("Mint", "forest", 4),
           ("Jasmine", "night", 5), ("Nettle", "cup", 6))),
    Brand("Zuzu", "Crunchy!", ((250, 196, 44), (62, 60, 150)), (226, 60, 120), WHITE, ("burst", "split"),
          ("dots", "none"), ("wide", "canister"),
          (("Paprika", "chilli", 0), ("Cheese", "tiles", 1), ("Onion", "apple", 6), ("Hot Lime", "citrus", 3),
           ("BBQ", "burst", 1), ("Salted", "waves", 4))),
    Brand("Aster Press", "a novel", ((226, 218, 202), (48, 66, 110)), (48, 66, 110), WHITE,
          ("cover", "cover"),
          ("none", "none"), ("book", "book"),
          (("The Quiet Tide", "waves", 5), ("Northbound", "mountains", 4), ("A House of Salt", "tiles", 0),
           ("Glass Hours", "arcs", 2), ("The Orchard", "apple", 3), ("Ember Road", "burst", 1))),
    Brand("KLAR", "Hair & body", ((214, 226, 232), (38, 98, 148)), (38, 98, 148), WHITE, ("plain", "badge"),
          ("waves", "dots"), ("bottle", "tall"),
          (("Hydrate", "waves", 5), ("Repair", "sprig", 3), ("Calm", "flower", 6), ("Volume", "arcs", 1),
           ("Daily", "burst", 2), ("Fresh", "citrus", 4))),
    Brand("Dolce Vela", "Cioccolato", ((94, 44, 78), (236, 216, 196)), (236, 190, 150), CREAM,
          ("badge", "frame"),
          ("diamonds", "stripes"), ("box", "flat"),
          (("Noir 72%", "night", 5), ("Hazelnut", "beans", 1), ("Raspberry", "berries", 7), ("Caramel",
           "comb", 2),
           ("Almond", "flower", 4), ("Milk", "cup", 0))),
    Brand("Fjell", "Trail mix", ((30, 36, 46), (206, 214, 214)), (96, 190, 200), WHITE, ("frame", "band"),
          ("lines", "stripes"), ("canister", "can"),
          (("Summit", "mountains", 4), ("Glacier", "waves", 5), ("Ridge", "forest", 3), ("Polar", "fish", 6),
           ("Cairn", "tiles", 1), ("Birch", "sprig", 2))),
    Brand("Papaya Club", "Tropical", ((250, 126, 90), (40, 150, 140)), (40, 150, 140), WHITE,
          ("split", "burst"),
          ("none", "dots"), ("jar", "wide"),
          (("Mango", "apple", 1), ("Guava", "berries", 7), ("Passion", "flower", 6), ("Pineapple", "burst",
           2),
           ("Lychee", "comb", 0), ("Papaya", "citrus", 3))),
    Brand("Field Guide", "Pocket edition", ((60, 86, 70), (120, 60, 50)), (232, 202, 120), CREAM,
          ("cover", "cover"), ("lines", "lines"), ("book", "book"),
          (("Fishes", "fish", 5), ("Woods", "forest", 3), ("Alpine", "mountains", 4), ("Tidal Pools",
           "waves", 6),
           ("Night Sky", "night", 2), ("Ferns", "sprig", 0))),
)  # fmt: skip

ACCENTS: tuple[Colour, ...] = (
    (222, 76, 58), (240, 150, 50), (246, 204, 70), (92, 156, 84), (46, 140, 150), (66, 96, 172), (140, 80,
    150),
    (206, 92, 130),
)  # fmt: skip


@dataclass(frozen=True)
class Product:
    """One thing on the shelf, and all that its packaging is drawn from."""

    key: str
    brand: str
    slogan: str
    flavour: str
    kind: str
    layout: str
    pattern: str
    motif: str
    ground: Colour
    second: Colour
    light: Colour
    accent: Colour
    seed: int


def catalogue() -> list[Product]:
    """The products that are to be found, brand by brand, six each."""
    products = []
    for number, b in enumerate(BRANDS):
        for k, (flavour, motif, accent) in enumerate(b.flavours):
            line = k * 2 // len(b.flavours)
            name = "-".join(f"{b.name} {flavour}".lower().replace("&", "and").replace("%", "").split())
            # Within a line the ground leans towards the flavour, a little or much.
            ground = blend(b.grounds[line], ACCENTS[accent], (0.0, 0.35, 0.6)[k % 3])
            products.append(
                Product(name, b.name, b.slogan, flavour, b.kinds[line], b.layouts[line], b.patterns[line],
                        motif,
                        ground, b.second, b.light, ACCENTS[accent], 100 * number + k)
            )  # fmt: skip
    return products


def strangers(seed: int, count: int = 30) -> list[Product]:
    """Products of other makers for the clutter: never a target, so that nothing in the back betrays one."""
    rng = np.random.default_rng([seed, 2])
    names = ("Novo", "Lumen", "Sol y Mar", "BRIK", "Ondine", "Kesi", "Marlow", "Pico", "Tundra", "Yuki")
    kinds = ("box", "can", "bottle", "tea", "jar", "book", "wide", "tall", "canister", "flat", "tin")
    layouts = ("badge", "split", "plain", "band", "frame", "burst", "cover")
    patterns = ("dots", "lines", "stripes", "none", "diamonds", "waves")
    made = []
    for k in range(count):
        first, second = (ACCENTS[i] for i in rng.permutation(len(ACCENTS))[:2])
        ground = blend(first, (WHITE, INK, (120, 110, 100))[k % 3], 0.55)
        layout, pattern, motif = (str(rng.choice(list(names))) for names in (layouts, patterns, MOTIFS))
        made.append(
            Product(f"stranger-{k}", names[k % 10], "Original", "Classic", kinds[k % 11], layout, pattern,
                    motif,
                    ground, second, CREAM, first, 5000 + k)
        )  # fmt: skip
    return made
