"""How results leave the command line: a table for eyes, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def print_json(data: Any) -> None:
    """One JSON document on stdout."""
    click.echo(json.dumps(data, ensure_ascii=False, indent=2, default=_plain))


def table(header: Sequence[str], rows: Sequence[Sequence[Any]], left: int = 1) -> str:
    """Aligned text: the first `left` columns to the left, the others to the right; floats with two digits."""
    cells = [[_cell(value) for value in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = []
    for row in cells:
        parts = [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))]
        lines.append("  ".join(parts).rstrip())
    lines.insert(1, "  ".join("-" * w for w in widths))
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    """NumPy scalars and arrays as Python's own."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)
