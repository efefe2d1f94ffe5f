"""The report of a comparison: a page with a table, plots and pictures, and the figures as JSON."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kinrank.errors import MissingExtraError
from kinrank.evaluation.pictures import contact_sheet, gains, show_setting
from kinrank.evaluation.plots import plot_all
from kinrank.evaluation.run import Evaluation

SHOWN = 3  # queries that gained most, and as many that lost most

ROWS = "Above the first round, below re-ranked; query gold, right green, wrong red, junk grey."
_CAPTIONS = {
    "map": "Mean average precision.",
    "latency": "Milliseconds that re-ranking one list takes.",
    "gains": "What each query gained or lost against the first row.",
    "gained": f"The queries that gained most. {ROWS}",
    "lost": f"The queries that lost most. {ROWS}",
}
_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:75em;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse}td,th{padding:.25em .7em;border-bottom:1px solid #ddd;text-align:right}
td:first-child,th:first-child{text-align:left}img{max-width:100%}
figure{margin:1.5em 0}figcaption{color:#555}code{background:#f3f3f3}"""


def write(evaluation: Evaluation, folder: Path) -> list[Path]:
    """Write `index.html`, `evaluation.json`, plots and (where the files are there) pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    data = evaluation.as_json()
    data["average_precision"] = {
        f"{row.method}@{row.k}": {name: [_number(x) for x in values] for name, values in row.ap.items()}
        for row in evaluation.rows
    }
    written = [folder / "evaluation.json"]
    written[0].write_text(json.dumps(data, indent=1), encoding="utf-8")
    notes = []
    try:
        written += plot_all(evaluation, folder)
    except MissingExtraError as error:
        notes.append(f"No plots: {error}.")
    sheets = _sheets(evaluation, folder)
    if not sheets:
        notes.append("No pictures: the files of the images are not beside the data set.")
    written += sheets
    header, cells = table(evaluation)
    body = [html_table(header, cells), *(f"<p>{html.escape(note)}</p>" for note in notes)]
    body += [picture(path, _CAPTIONS.get(path.stem.partition("_")[0], "")) for path in written[1:]]
    written.append(page(folder / "index.html", f"{evaluation.dataset.name}: methods side by side", body))
    return written


def table(evaluation: Evaluation) -> tuple[list[str], list[list[Any]]]:
    """Header and cells of the comparison: mAP of every setting, mP@1, 5, 10 of the main one."""
    rows = [row.as_json() for row in evaluation.rows]
    setting = show_setting(evaluation.rows[0])
    several = len(rows[0]["map"]) > 1
    header = ["method", "K"]
    header += [f"mAP {name[0].upper()}" for name in rows[0]["map"]] if several else ["mAP"]
    header += [f"mP@{k}{' ' + setting[0].upper() if several else ''}" for k in rows[0]["mp"][setting]]
    header += ["ms p50", "ms p95", "MB"]
    cells = []
    for row in rows:
        figures = [*row["map"].values(), *row["mp"][setting].values()]
        latency = [f"{row['latency_ms'][p]:.3g}" for p in ("p50", "p95")]
        shown = ["-" if value is None else f"{value:.1f}" for value in figures]
        cells.append([row["method"], row["k"], *shown, *latency, f"{row['memory_mb']:.0f}"])
    return header, cells


def html_table(header: Sequence[Any], cells: Sequence[Sequence[Any]]) -> str:
    """A table, everything escaped."""

    def line(values: Sequence[Any], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(str(v))}</{tag}>" for v in values) + "</tr>"

    return "<table>" + line(header, "th") + "".join(line(row, "td") for row in cells) + "</table>"


def picture(path: Path, caption: str = "") -> str:
    """An image that lies beside the page."""
    name, says = html.escape(path.name), html.escape(caption)
    return f'<figure><img src="{name}" alt="{says or name}"><figcaption>{says}</figcaption></figure>'


def page(path: Path, title: str, body: Sequence[str]) -> Path:
    """One page that needs nothing from elsewhere."""
    name = html.escape(title)
    head = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{name}</title><style>{_STYLE}</style>'
    )
    path.write_text("\n".join([head, f"<h1>{name}</h1>", *body, "</html>\n"]), encoding="utf-8")
    return path


def _sheets(evaluation: Evaluation, folder: Path) -> list[Path]:
    first, *others = evaluation.rows
    written = []
    for number, row in enumerate(others, 1):
        order = [query for query, _ in gains(row, first, show_setting(row))]
        for what, queries in (("gained", order[:SHOWN]), ("lost", order[::-1][:SHOWN])):
            sheet = contact_sheet(evaluation, row, first, queries)
            if sheet is not None:
                written.append(folder / f"{what}_{number}_{row.method.partition(':')[0]}_{row.k}.png")
                sheet.save(written[-1])
    return written


def _number(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 6)
