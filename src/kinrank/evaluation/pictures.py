"""What a method did, to look at: the first answers before and after, green where right, red where not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kinrank.evaluation.run import Evaluation, Row

if TYPE_CHECKING:
    from PIL import Image

SIDE, EDGE, GAP = 120, 5, 6
COLOURS = {"right": "#2e9e41", "wrong": "#d03030", "junk": "#9a9a9a", "query": "#e0b000"}


def gains(row: Row, first: Row, setting: str) -> list[tuple[int, float]]:
    """(query, change of its average precision) from the most gained to the most lost."""
    change = row.ap[setting] - first.ap[setting]
    judged = np.flatnonzero(~np.isnan(change))
    return [(int(q), float(change[q])) for q in judged[np.argsort(-change[judged], kind="stable")]]


def show_setting(row: Row) -> str:
    """The setting to look at: medium where there is one."""
    return "medium" if "medium" in row.ap else next(iter(row.ap))


def contact_sheet(evaluation: Evaluation, row: Row, first: Row, queries: list[int]) -> Image.Image | None:
    """Two lines a query: the first ten of the first round, and of the method; None without pictures."""
    dataset = evaluation.dataset
    if not dataset.pictures or not dataset.query_pictures or row.first is None or first.first is None:
        return None
    if not any(dataset.query_pictures[q].is_file() for q in queries):
        return None
    from PIL import Image

    columns = 1 + row.first.shape[1]
    step = SIDE + 2 * EDGE + GAP
    sheet = Image.new("RGB", (columns * step + GAP, len(queries) * (2 * step + GAP)), "white")
    for number, query in enumerate(queries):
        top = number * (2 * step + GAP) + GAP
        box = dataset.boxes[query] if dataset.boxes else None
        sheet.paste(_tile(dataset.query_pictures[query], "query", box), (GAP, top))
        for line, ids in enumerate((first.first[query], row.first[query])):
            for column, image in enumerate(ids, 1):
                tile = _tile(dataset.pictures[image], _verdict(evaluation, row, query, int(image)))
                sheet.paste(tile, (column * step + GAP, top + line * step))
    return sheet


def _verdict(evaluation: Evaluation, row: Row, query: int, image: int) -> str:
    judgement = evaluation.dataset.settings[show_setting(row)]
    if image in judgement.positives[query]:
        return "right"
    return "junk" if image in judgement.junk[query] else "wrong"


def _tile(path: Path, verdict: str, box: tuple[float, float, float, float] | None = None) -> Image.Image:
    from PIL import Image, ImageDraw, ImageOps

    tile = Image.new("RGB", (SIDE + 2 * EDGE,) * 2, COLOURS[verdict])
    try:
        with Image.open(path) as opened:
            picture = opened.convert("RGB")
    except (OSError, Image.DecompressionBombError):
        picture = Image.new("RGB", (SIDE, SIDE), "#dddddd")  # a picture that is missing or damaged
        box = None
    if box is not None:
        width = max(2, max(picture.size) // 60)
        ImageDraw.Draw(picture).rectangle(box, outline=COLOURS["query"], width=width)
    tile.paste(ImageOps.pad(picture, (SIDE, SIDE), color="white"), (EDGE, EDGE))
    return tile
