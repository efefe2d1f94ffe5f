"""`kinrank list`: what there is."""

from __future__ import annotations

import click

from kinrank.cli.output import json_option, print_json, table

WHAT = ("rerankers", "stores", "backbones", "datasets", "models")


@click.command("list")
@click.argument("what", required=False, type=click.Choice(WHAT))
@json_option
def command(what: str | None, as_json: bool) -> None:
    """What there is: re-rankers, stores, backbones, data sets, models, and the extra that each needs."""
    from kinrank.registry import describe

    rooms = {room: describe(room) for room in ([what] if what else WHAT)}
    if as_json:
        print_json(rooms)
        return
    for room, rows in rooms.items():
        click.echo(f"\n{room}")
        click.echo(
            table(["name", "extra", "summary"], [[r["name"], r["extra"], r["summary"]] for r in rows], left=3)
        )
