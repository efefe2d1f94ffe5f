"""Before and after, to look at: a sheet as in the paper's figure, and a page around it."""

from __future__ import annotations

import html
import os
from pathlib import Path
from typing import TYPE_CHECKING

from kinrank.demo.run import Demo, Shown
from kinrank.evaluation.pictures import COLOURS, contact_sheet
from kinrank.evaluation.report import html_table, page, table

if TYPE_CHECKING:
    from PIL import Image

HEAD, MARGIN = 44, 16
INK, QUIET = "#222222", "#777777"


def caption(demo: Demo, shown: Shown) -> str:
    """One line over a query's two rows."""
    return (
        f"{shown.why}: {demo.name(shown.query)}   "
        f"average precision {shown.before:.1f} first, {shown.after:.1f} after {demo.compared.method}"
    )


def draw(demo: Demo) -> Image.Image:
    """Each query at the left, its first ten answers before (above) and after (below), green where right."""
    from PIL import Image, ImageDraw, ImageFont

    strips = []
    for shown in demo.shown:
        strip = contact_sheet(demo.evaluation, demo.compared, demo.first, [shown.query])
        assert strip is not None, "the demo's pictures lie where the data set says"
        strips.append(strip)
    width = strips[0].width + 2 * MARGIN
    sheet = Image.new("RGB", (width, sum(HEAD + s.height for s in strips) + HEAD + MARGIN), "white")
    pen, top = ImageDraw.Draw(sheet), 0
    for shown, strip in zip(demo.shown, strips):
        pen.text(
            (MARGIN + 8, top + HEAD - 10), caption(demo, shown), INK, ImageFont.load_default(19), anchor="ls"
        )
        sheet.paste(strip, (MARGIN, top + HEAD))
        top += HEAD + strip.height
    legend = "query at the left; first round above, re-ranked below; green: the same product"
    pen.text((MARGIN + 8, top + 26), legend, QUIET, ImageFont.load_default(16), anchor="ls")
    return sheet


def write(demo: Demo) -> tuple[Path, Path]:
    """(before_after.png, index.html) in the demo's folder."""
    picture = demo.folder / "before_after.png"
    draw(demo).save(picture)
    header, cells = table(demo.evaluation)
    counts = f"{len(demo.first.ap['all'])} queries among {demo.evaluation.dataset.size + 1} pictures"
    body = [
        f"<p>{counts}; every picture of a product searches all the others.</p>",
        html_table(header, cells),
    ]
    body += [f"<p>{html.escape(note)}</p>" for note in demo.notes]
    for shown in demo.shown:
        body.append(f"<h2>{html.escape(caption(demo, shown))}</h2>")
        body += [
            _row(demo, shown, "first round", demo.first),
            _row(demo, shown, demo.compared.method, demo.compared),
        ]
    body.append(f'<p>All of it as one picture: <a href="{picture.name}">{picture.name}</a></p>')
    return picture, page(demo.folder / "index.html", "kinrank demo: before and after", body)


def _row(demo: Demo, shown: Shown, name: str, row: object) -> str:
    dataset = demo.evaluation.dataset
    assert dataset.query_pictures
    tiles = [_tile(demo, dataset.query_pictures[shown.query], "query")]
    answers = row.first[shown.query]  # type: ignore[attr-defined]
    positives = set(dataset.settings["all"].positives[shown.query].tolist())
    tiles += [_tile(demo, dataset.pictures[i], "right" if int(i) in positives else "wrong") for i in answers]
    return f"<h3>{html.escape(name)}</h3><div>{''.join(tiles)}</div>"


def _tile(demo: Demo, path: Path, verdict: str) -> str:
    source = html.escape(Path(os.path.relpath(path, demo.folder)).as_posix())
    title = html.escape(f"{path.parent.name}/{path.stem}: {verdict}")
    return (
        f'<img src="{source}" title="{title}" alt="{title}" width="104" height="104" '
        f'style="border:5px solid {COLOURS[verdict]};margin:2px">'
    )
