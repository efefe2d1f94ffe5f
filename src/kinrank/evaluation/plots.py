"""Plots of a comparison, by matplotlib (extra `plots`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinrank.errors import MissingExtraError
from kinrank.evaluation.pictures import gains, show_setting
from kinrank.evaluation.run import Evaluation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def figure(width: float = 8, height: float = 4.5) -> tuple[Figure, Axes]:
    """A figure that needs no display."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("plots", "plots") from None
    made = Figure(figsize=(width, height), layout="constrained")
    return made, made.subplots()


def lines(
    path: Path, curves: Mapping[str, Sequence[tuple[float, float]]], x: str, y: str, logarithmic: bool = False
) -> Path:
    """Named curves of (x, y) in one picture; a name that ends in "(published)" is dashed."""
    made, axes = figure()
    for name, points in curves.items():
        dashed = "--" if name.endswith("(published)") else "-"
        axes.plot(*zip(*sorted(points)), dashed, marker="o", label=name)
    if logarithmic:
        axes.set_xscale("log", base=2)
    axes.set(xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    if curves:
        axes.legend(fontsize="small")
    made.savefig(path, dpi=120)
    return path


def plot_all(evaluation: Evaluation, folder: Path) -> list[Path]:
    """mAP and latency of every method, over K where there are several, and gain and loss by query."""
    rows = [row.as_json() for row in evaluation.rows]
    several = len({row["k"] for row in rows}) > 1
    written = [_bars(rows, folder / "map.png")] if not several else _over_k(rows, folder)
    changed = _changes(evaluation, folder / "gains.png")
    return written + ([changed] if changed else [])


def _bars(rows: list[dict[str, Any]], path: Path) -> Path:
    made, axes = figure(8, 1.5 + 0.45 * len(rows) * len(rows[0]["map"]))
    settings = list(rows[0]["map"])
    thick = 0.8 / len(settings)
    for i, setting in enumerate(settings):
        spots = [r + (i - (len(settings) - 1) / 2) * thick for r in range(len(rows))]
        bars = axes.barh(spots, [row["map"][setting] or 0 for row in rows], thick, label=setting)
        axes.bar_label(bars, fmt="%.1f", padding=2, fontsize="small")
    axes.set_yticks(range(len(rows)), [row["method"] for row in rows])
    axes.invert_yaxis()
    axes.set(xlabel="mAP (%)", xlim=(0, 108))
    axes.legend(fontsize="small")
    made.savefig(path, dpi=120)
    return path


def _over_k(rows: list[dict[str, Any]], folder: Path) -> list[Path]:
    accuracy: dict[str, list[tuple[float, float]]] = {}
    speed: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        for setting, value in row["map"].items():
            accuracy.setdefault(f"{row['method']} {setting}", []).append((row["k"], value or 0))
        speed.setdefault(row["method"], []).append((row["k"], row["latency_ms"]["p50"]))
    return [
        lines(folder / "map_over_k.png", accuracy, "K", "mAP (%)", logarithmic=True),
        lines(folder / "latency_over_k.png", speed, "K", "ms a query (median)", logarithmic=True),
    ]


def _changes(evaluation: Evaluation, path: Path) -> Path | None:
    first, *others = evaluation.rows
    if not others:
        return None
    made, axes = figure()
    setting = show_setting(first)
    for row in others:
        axes.plot([100 * change for _, change in gains(row, first, setting)], label=f"{row.method} K={row.k}")
    axes.axhline(0, color="black", lw=0.8)
    axes.set(xlabel="queries, most gained first", ylabel=f"AP against {first.method}, {setting} (points)")
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
    made.savefig(path, dpi=120)
    return path
