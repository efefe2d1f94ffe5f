"""One way to look a name up in a room's registry: `name -> "module:object"`, imported when asked for."""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import Any

from kinrank.errors import SpecError

ROOMS = {
    "rerankers": "kinrank.rerankers",
    "stores": "kinrank.gallery.stores",
    "backbones": "kinrank.features.backbones",
    "datasets": "kinrank.evaluation.datasets",
    "models": "kinrank.models",
}


def registry(room: str) -> dict[str, str]:
    """The names of a room and where each lives."""
    table: dict[str, str] = import_module(ROOMS[room]).REGISTRY
    return table


def load(room: str, name: str) -> Any:
    """The object behind a name; an unknown name lists what there is."""
    table = registry(room)
    if name not in table:
        raise SpecError(unknown(f"{room[:-1]}", name, table))
    module, _, attribute = table[name].partition(":")
    return getattr(import_module(module), attribute)


def unknown(kind: str, name: str, known: Any) -> str:
    """'unknown re-ranker ...; did you mean ...? there are: ...'."""
    close = difflib.get_close_matches(name, list(known), n=1)
    hint = f" (did you mean '{close[0]}'?)" if close else ""
    return f"unknown {kind} '{name}'{hint}; there are: {', '.join(known) or 'none'}"


def describe(room: str) -> list[dict[str, Any]]:
    """A row a name: summary (the first line of its docstring) and the extra that it needs."""
    rows = []
    for name in registry(room):
        entry = load(room, name)
        summary = (entry.__doc__ or "").strip().splitlines()[0] if entry.__doc__ else ""
        rows.append({"name": name, "summary": summary, "extra": getattr(entry, "extra", None)})
    return rows
