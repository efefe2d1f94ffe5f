"""`kinrank search`: a picture in, the gallery's answer out, with what moved."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import click

from kinrank.cli.output import json_option, print_json, table
from kinrank.errors import InputError

if TYPE_CHECKING:
    from kinrank.gallery.gallery import Gallery
    from kinrank.search import Hit
    from kinrank.types import Array


@click.command("search")
@click.argument("gallery", metavar="GALLERY")
@click.argument("image", metavar="IMAGE")
@click.option(
    "--rerank", "spec", metavar="SPEC", help="The method, such as csa or aqe:k=5+csa; none for none."
)
@click.option(
    "-k", "--k", type=click.IntRange(min=1), default=1024, show_default=True, help="Re-rank the first K."
)
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, help="Show the first N.")
@click.option("--backbone", metavar="NAME", help="What embeds IMAGE; the gallery's own by default.")
@json_option
def command(
    gallery: str, image: str, spec: str | None, k: int, top: int, backbone: str | None, as_json: bool
) -> None:
    """Search GALLERY for pictures like IMAGE, a file or an id of the gallery, and re-rank the answer."""
    from kinrank.api import DEFAULT
    from kinrank.gallery.gallery import Gallery
    from kinrank.search import fitted, search

    with Gallery.open(gallery) as opened:
        query, picture, embedded = _query(opened, image, backbone)
        method = fitted(spec or DEFAULT, opened)
        answer = search(opened, query, method, k, top, picture)
    timing = {"embed": embedded, **answer.timing_ms}
    if as_json:
        print_json({"query": image, "results": [vars(hit) for hit in answer.hits], "timing_ms": timing})
        return
    rows = [[hit.id, hit.rank, hit.first_rank, _moved(hit), f"{hit.score:.4f}"] for hit in answer.hits]
    click.echo(table(["picture", "rank", "was", "moved", "score"], rows))
    click.echo(
        f"\n{spec or DEFAULT} over the first {len(answer.first)} of {gallery}; "
        + ", ".join(f"{step} {ms:.1f} ms" for step, ms in timing.items())
    )


def _query(gallery: Gallery, image: str, backbone: str | None) -> tuple[Array, Any, float]:
    """The query's vector, its picture (None for an id without a file), and the milliseconds it took.

    Loading the network is not counted: who serves queries does it once.
    """
    from kinrank.features.backbones.base import open_for
    from kinrank.features.images import read_image

    if os.path.exists(image):
        network = open_for(gallery, backbone)
        start = time.perf_counter()
        try:
            picture = read_image(image, network.preprocess.least)
        except InputError as error:
            raise InputError(f"'{image}' cannot be read: {error}") from None
        return network.embed_images([picture])[0], image, 1e3 * (time.perf_counter() - start)
    start = time.perf_counter()
    kind = gallery.ids()[:1].dtype.kind
    key: Any = int(image) if kind == "i" and image.lstrip("-").isdigit() else image
    if key not in gallery:
        raise InputError(f"'{image}' is neither a file nor an id of the gallery '{gallery.location}'")
    path = gallery.metadata([key])[0].get("path")
    vector = gallery.vectors([key])[0]
    return vector, path if path and os.path.exists(path) else None, 1e3 * (time.perf_counter() - start)


def _moved(hit: Hit) -> str:
    if hit.first_rank is None:
        return "new"
    steps = hit.first_rank - hit.rank
    return f"+{steps}" if steps > 0 else str(steps) if steps else "="
