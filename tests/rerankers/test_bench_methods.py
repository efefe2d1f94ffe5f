"""The benchmark of the methods, on small sizes: what it compares is the same, and every row is there."""

from __future__ import annotations

from pathlib import Path

from kinrank.benchmarks import methods
from kinrank.benchmarks.page import write
from kinrank.registry import registry


def test_kreciprocal_finds_the_published_order() -> None:
    _dense, ours = methods.against_published(size=600, dim=64, count=6, k=300)
    assert ours["same place in the top 100"] == "100.00 %"


def test_a_row_for_every_list_method() -> None:
    rows = {row["method"]: row for row in methods.on_lists(k=60, dim=16, turns=2)}
    assert {"similarities alone", "aqe", "kreciprocal", "gcr"} <= set(rows)
    assert set(rows) - {"similarities alone"} <= set(registry("rerankers"))
    assert all(row["ms"] > 0 for row in rows.values())


def test_rows_as_the_gallery_grows() -> None:
    rows = methods.as_the_gallery_grows(sizes=(1500,), specs=("alphadba+alphaqe", "kreciprocal"))
    assert [row["N"] for row in rows] == [1500, 1500]
    assert all(row["fit again s"] < row["fit s"] + 0.5 for row in rows)


def test_a_page_has_all_tables(tmp_path: Path) -> None:
    write(tmp_path / "p.md", "Title", "How.", {"a": [{"x": 1}, {"y": 2}], "b": {"c": [{"z": 3}]}})
    text = (tmp_path / "p.md").read_text()
    assert text.startswith("# Title")
    for part in ("## a\n", "| x | y |", "|  | 2 |", "## b\n", "### c\n", "| z |"):
        assert part in text
