"""A page of the docs from what a benchmark returned: one section a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def markdown(rows: list[dict[str, Any]]) -> str:
    """A table with a column for each key of any row, in the order of their first appearance."""
    header = list(dict.fromkeys(key for row in rows for key in row))
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    lines += ["| " + " | ".join(str(row.get(key, "")) for key in header) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def write(path: Path, title: str, text: str, tables: dict[str, Any]) -> None:
    """Title, a paragraph on how the page is made, and the tables; a mapping of tables is a chapter."""
    path.write_text(f"# {title}\n\n{text}\n" + _chapter(tables, 2), encoding="utf-8")


def _chapter(tables: dict[str, Any], level: int) -> str:
    text = ""
    for name, rows in tables.items():
        body = _chapter(rows, level + 1) if isinstance(rows, dict) else f"\n{markdown(rows)}"
        text += f"\n{'#' * level} {name}\n{body}"
    return text
