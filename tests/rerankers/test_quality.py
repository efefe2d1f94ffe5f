"""The table of all methods over all data sets, on a small set of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinrank.benchmarks import quality
from kinrank.evaluation.datasets import open_dataset


@pytest.fixture
def folder(tmp_path: Path, clusters: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    vectors, labels = clusters(classes=10, size=12, dim=24, noise=0.6, seed=12)
    np.savez(tmp_path / "small.npz", vectors=vectors, labels=labels)
    monkeypatch.setenv("KINRANK_DATA", str(tmp_path))
    monkeypatch.setattr(quality, "EVERY", 12)
    return tmp_path


def test_queries_are_held_out(folder: Path) -> None:
    whole = open_dataset(folder / "small.npz")
    part = quality.held_out(whole, 12)
    assert len(part.queries) == 10
    assert len(part.gallery) == 110
    assert part.own is None
    assert (part.gallery.scores(part.queries).max(axis=1) < 0.999).all()
    labels = np.load(folder / "small.npz")["labels"]
    stays = np.setdiff1d(np.arange(120), np.arange(0, 120, 12))
    for query, positives in zip(range(0, 120, 12), part.settings["all"].positives):
        assert (labels[stays][positives] == labels[query]).all()
        assert len(positives) == (labels[stays] == labels[query]).sum()


def test_a_row_a_method(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "registry", lambda room: ["none", "adba", "csa:model=nowhere", "ransac"])
    monkeypatch.setattr(quality, "CHAINS", ("adba+aqe",))
    tables = quality.run()
    (rows,) = tables.values()
    assert [row["method"] for row in rows] == ["none", "adba", "csa:model=nowhere", "adba+aqe"]
    assert 0 < rows[0]["mAP"] <= 100
    assert rows[1]["by mAP"] == pytest.approx(rows[1]["mAP"] - rows[0]["mAP"], abs=0.11)
    assert "nowhere" in rows[2]["said"]
    text = quality.markdown(tables)
    assert "| `adba+aqe` |" in text


def test_without_data_it_says_where_to_put_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINRANK_DATA", str(tmp_path))
    assert "KINRANK_DATA" in quality.run()["quality"][0]["said"]
