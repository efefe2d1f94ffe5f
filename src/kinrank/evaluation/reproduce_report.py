"""The reproduced tables as text and as a page with plots and pictures."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kinrank.errors import MissingExtraError
from kinrank.evaluation import paper
from kinrank.evaluation.pictures import contact_sheet, gains
from kinrank.evaluation.plots import lines
from kinrank.evaluation.report import ROWS, SHOWN, html_table, page, picture
from kinrank.evaluation.reproduce import Cell, Filled, Reproduction, Runner
from kinrank.evaluation.run import DEFAULT_K, Evaluation

_AXES = {"table1": "K", "table2": "L"}


def rows_of(name: str, rows: Sequence[Filled]) -> tuple[list[str], list[list[str]]]:
    """Header and cells of a table; columns that nobody has a figure for are left out."""
    names = list(dict.fromkeys(column for row in rows for column in row.cells))
    used = [n for n in names if any(_figure(row.cells.get(n)) for row in rows)]
    cells = [[row.label, *(_figure(row.cells.get(n)) or "-" for n in used)] for row in rows]
    return [f"{name}: {paper.TABLES[name].title}", *used], cells


def _figure(cell: Cell | None) -> str:
    """`77.9 (80.3, -2.4)`: measured, published, difference."""
    if cell is None or (cell.measured is None and cell.published is None):
        return ""
    if cell.published is None:
        return f"{cell.measured:.1f}"
    if cell.measured is None:
        return f"- ({cell.published:.1f})"
    return f"{cell.measured:.1f} ({cell.published:.1f}, {cell.difference:+.1f})"


def missing_of(result: Reproduction) -> tuple[list[str], list[list[str]]]:
    """Header and cells of what is missing."""
    header = ["missing", "what", "size", "SHA-256", "from"]
    rows = [
        [w.path, w.what, _size(w.size), (w.sha256 or "not known")[:16], w.origin]
        for w in result.folder.missing.values()
    ]
    return header, rows


def _size(size: int | None) -> str:
    if size is None:
        return "not known"
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def write(runner: Runner, folder: Path) -> Path:
    """`index.html` with tables, plots and pictures, and `reproduction.json`."""
    result = runner.result
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "reproduction.json").write_text(json.dumps(result.as_json(), indent=1), encoding="utf-8")
    body = [
        "<p>Measured, and in brackets published and the difference. mAP in percent.</p>",
        *(f"<p>{html.escape(note)}</p>" for note in result.folder.notes),
    ]
    for name, rows in result.tables.items():
        body.append(html_table(*rows_of(name, rows)))
        try:
            body += [picture(path) for path in _plots(name, rows, folder)]
        except MissingExtraError as error:
            body.append(f"<p>No plots: {html.escape(str(error))}.</p>")
    if "figures" in result.tables:
        body += [picture(path, caption) for path, caption in _pictures(runner, folder)]
    if result.failed:
        body.append(html_table(["could not run", "why"], list(result.failed.items())))
    if result.folder.missing:
        body.append(html_table(*missing_of(result)))
    return page(folder / "index.html", "CSA: measured beside published", body)


def _plots(name: str, rows: Sequence[Filled], folder: Path) -> list[Path]:
    """Curves where a table runs over a number; bars are left to the table."""
    written = []
    kinds = [("", "mAP (%)", _accuracy), ("_latency", "ms a query", _named("ms a query"))]
    kinds.append(("_memory", "MB", _named("MB")))
    groups = sorted({row.curve for row in rows if row.curve}) if name == "figures" else [""]
    for group in groups:
        chosen = [row for row in rows if row.x is not None and (not group or row.curve == group)]
        for suffix, y, pick in kinds:
            curves: dict[str, list[tuple[float, float]]] = {}
            for row in chosen:
                for label, cell in pick(row):
                    for figure, what in ((cell.measured, ""), (cell.published, " (published)")):
                        if figure is not None and row.x is not None:
                            curves.setdefault(f"{row.curve} {label}{what}", []).append((row.x, figure))
            if curves:
                path = folder / f"{name}{'_' + group if group else ''}{suffix}.png"
                written.append(lines(path, curves, _AXES.get(name, group), y, group != "lambda"))
    return written


def _accuracy(row: Filled) -> list[tuple[str, Cell]]:
    names = {paper.heading(column) for column in paper.columns((paper.PLAIN, paper.MILLION))}
    return [(name, cell) for name, cell in row.cells.items() if name in names]


def _named(name: str) -> Any:
    return lambda row: [("", row.cells[name])] if name in row.cells else []


def _pictures(runner: Runner, folder: Path) -> list[tuple[Path, str]]:
    """The first ten before and after, for the queries that gained most and that lost most."""
    written = []
    for data in paper.DATASETS:
        column = (data, paper.PLAIN, "medium")
        dataset = runner.folder.dataset(data, paper.PLAIN, paper.MAIN)
        before = runner.measure("none", column, DEFAULT_K)
        after = runner.measure(runner.spec("{csa}") or "affinity", column, DEFAULT_K)
        after = after or runner.measure("affinity", column, DEFAULT_K)
        if dataset is None or before is None or after is None:
            continue
        order = [query for query, _ in gains(after, before, "medium")]
        for what, queries in (("gained", order[:SHOWN]), ("lost", order[::-1][:SHOWN])):
            sheet = contact_sheet(Evaluation(dataset, [before, after]), after, before, queries)
            if sheet is not None:
                path = folder / f"{data}_{what}.png"
                sheet.save(path)
                caption = f"{paper.DATASETS[data]}: the queries that {what} most by {after.method}. {ROWS}"
                written.append((path, caption))
    return written
