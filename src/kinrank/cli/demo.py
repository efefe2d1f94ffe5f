"""`kinrank demo`: the main job in one go, offline."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kinrank.cli.output import json_option, print_json, table
from kinrank.errors import MissingExtraError

if TYPE_CHECKING:
    from kinrank.demo.run import Demo


@click.command("demo")
@click.option("--serve", is_flag=True, help="Then serve the gallery as a web page (extra web).")
@click.option(
    "--out", "folder", default="demo-out", show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Where pictures, gallery and report go; what is there is used again.",
)  # fmt: skip
@click.option("--methods", metavar="SPEC,SPEC,...", help="What to compare with the first round.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the pictures.")
@json_option
def command(serve: bool, folder: Path, methods: str | None, seed: int, as_json: bool) -> None:
    """Render pictures of products, index them, search each among the others, before and after re-ranking.

    Needs no network: the package draws the pictures itself (products from seven sides, in changing light,
    with clutter around them) and embeds them with a network from the extra 'offline'.
    """
    if serve and find_spec("kinrank.web.app") is None:
        raise MissingExtraError("demo --serve", "web")
    from kinrank.demo import run, sheet
    from kinrank.evaluation.run import split_methods

    demo = run.run(folder, _bar, split_methods(methods) if methods else None, seed)
    picture, page = sheet.write(demo)
    if as_json:
        print_json({**demo.as_json(), "picture": str(picture), "page": str(page)})
    else:
        _tell(demo, picture, page)
    if serve:
        from kinrank.cli import root

        root.main(["serve", str(folder / "gallery.kin")], standalone_mode=False)


def _bar(what: str, unit: str) -> Any:
    from tqdm import tqdm

    return tqdm(desc=what, unit=unit, file=sys.stderr, dynamic_ncols=True, leave=False, total=0)


def _tell(demo: Demo, picture: Path, page: Path) -> None:
    from kinrank.evaluation.report import table as compared

    dataset = demo.evaluation.dataset
    labels = {path.parent.name for path in dataset.query_pictures}
    click.echo(
        f"{len(labels)} products, {len(dataset.queries)} pictures of them, "
        f"{len(dataset.pictures) - len(dataset.queries)} of other things; "
        "each of the former searches all the others\n"
    )
    click.echo(table(*compared(demo.evaluation)))
    click.echo("\n" + _steps(demo) + "\n")
    method = demo.compared.method
    header = ["query that", "picture", "AP", "first five", f"AP {method}", "first five"]
    rows = []
    for shown in demo.shown:
        before, after = (_marks(demo.right(shown.query, row)) for row in (demo.first, demo.compared))
        name = demo.name(shown.query)
        rows.append([shown.why, name, f"{shown.before:.1f}", before, f"{shown.after:.1f}", after])
    click.echo(table(header, rows, left=2))
    for note in demo.notes:
        click.echo(f"\n{note}")
    click.echo(f"\nlook at it: {picture}\n            {page}")
    click.echo(f"go on:      kinrank search {demo.folder / 'gallery.kin'} PICTURE")


def _marks(right: list[bool]) -> str:
    return " ".join("+" if good else "." for good in right)


def _steps(demo: Demo) -> str:
    """What each step took; what was there already is said to be."""
    parts = []
    for name, what in (("render", "rendered"), ("embed", "embedded")):
        count, seconds = demo.counts[name], demo.seconds[name]
        each = (
            f"{count} pictures {what} in {seconds:.1f} s ({1e3 * seconds / count:.1f} ms each)"
            if count
            else ""
        )
        parts.append(each or f"no picture {what}: all were there")
    p50 = 1e3 * sorted(demo.compared.seconds)[len(demo.compared.seconds) // 2]
    size = demo.evaluation.dataset.size + 1
    parts.append(f"a search of all {size} with their vectors {demo.search_ms:.2f} ms")
    parts.append(f"re-ranking the first {demo.compared.k} by {demo.compared.method} {p50:.2f} ms")
    return "; ".join(parts)
