"""`kinrank bench`: how fast and how large, as ratios side by side."""

from __future__ import annotations

import inspect
from typing import Any

import click

from kinrank.cli.output import json_option, print_json, table


@click.command("bench")
@click.argument("what", required=False)
@click.option("--full", is_flag=True, help="Also measure what takes minutes and gigabytes.")
@json_option
def command(what: str | None, full: bool, as_json: bool) -> None:
    """Measure speed and memory: WHAT names one benchmark; all are run when none is named."""
    from kinrank.benchmarks import REGISTRY
    from kinrank.errors import SpecError
    from kinrank.registry import unknown

    if what is not None and what not in REGISTRY:
        raise SpecError(unknown("benchmark", what, REGISTRY))
    results = {}
    for name in [what] if what else REGISTRY:
        click.echo(f"bench {name} ...", err=True)
        results[name] = _run(REGISTRY[name], full)
        if not as_json:
            click.echo(f"\n{name}")
            click.echo(_text(results[name]))
    if as_json:
        print_json(results[what] if what else results)


def _run(place: str, full: bool) -> Any:
    from importlib import import_module

    module, _, attribute = place.partition(":")
    run = getattr(import_module(module), attribute)
    return run(full=full) if "full" in inspect.signature(run).parameters else run()


def _text(data: Any) -> str:
    """A table of rows; the tables of a mapping one after the other; anything else as it is."""
    if isinstance(data, dict):
        plain = {key: value for key, value in data.items() if not isinstance(value, dict | list)}
        parts = [table(["", ""], list(plain.items()))] if plain else []
        parts += [f"{key}\n{_text(value)}" for key, value in data.items() if key not in plain]
        return "\n\n".join(parts)
    if isinstance(data, list) and data and all(isinstance(row, dict) for row in data):
        header = list(dict.fromkeys(key for row in data for key in row))
        return table(header, [[row.get(key) for key in header] for row in data])
    return str(data)
