"""Features of a revisited data set from its pictures: cropped queries, in order, resumed, then evaluated."""

import json

import numpy as np
import pytest
from PIL import Image

from kinrank.errors import InputError
from kinrank.evaluation import extract
from kinrank.evaluation.datasets import open_dataset
from kinrank.features.backbones.base import open_backbone
from kinrank.features.paper import describe
from kinrank.features.whitening import learn_pca


@pytest.fixture
def folder(tmp_path, conv_network):
    """Six pictures and two queries in the layout of the revisited sets, and a network of one convolution."""
    rng = np.random.default_rng(0)
    (tmp_path / "set" / "jpg").mkdir(parents=True)
    for i in range(6):
        noise = rng.integers(0, 255, (9, 12, 3), dtype=np.uint8)
        Image.fromarray(noise).resize((120, 90)).save(tmp_path / "set" / "jpg" / f"im{i}.jpg")
    gnd = [{"easy": [0], "hard": [1], "junk": [], "bbx": [10.2, 20.0, 90.7, 80.0]}] * 2
    truth = {"imlist": [f"im{i}" for i in range(6)], "qimlist": ["im0", "im3"], "gnd": gnd}
    (tmp_path / "set" / "gnd_toy.json").write_text(json.dumps(truth))
    conv_network(tmp_path / "net.onnx")
    return tmp_path / "set"


def test_queries_are_cropped_and_all_is_in_order(folder):
    backbone = open_backbone(str(folder.parent / "net.onnx"))
    target = extract.extract(folder, backbone, size=64)
    assert target == folder / "net.npz"
    data = np.load(target)
    for i in range(6):
        np.testing.assert_array_equal(
            data["gallery"][i], describe(backbone, folder / "jpg" / f"im{i}.jpg", 64)
        )
    cropped = describe(backbone, folder / "jpg" / "im3.jpg", 64, box=(10.2, 20, 90.7, 80))
    np.testing.assert_array_equal(data["queries"][1], cropped)
    assert np.abs(cropped - data["gallery"][3]).max() > 1e-3
    dataset = open_dataset(folder)
    assert dataset.queries.shape == (2, 16) and dataset.size == 6
    assert sorted(p.name for p in folder.iterdir()) == ["gnd_toy.json", "jpg", "net.npz"]


def test_an_interruption_goes_on_and_another_network_does_not(folder, monkeypatch):
    backbone = open_backbone(str(folder.parent / "net.onnx"))
    calls = []

    def counted(*arguments, **named):
        if len(calls) == 5:
            calls.append(None)
            raise KeyboardInterrupt
        calls.append(arguments[1])
        return describe(*arguments, **named)

    monkeypatch.setattr(extract, "describe", counted)
    with pytest.raises(KeyboardInterrupt):
        extract.extract(folder, backbone, size=64)
    assert not (folder / "net.npz").exists()
    done = len(calls)
    whole = np.load(extract.extract(folder, backbone, size=64))
    assert len(calls) - done == 8 - 5
    monkeypatch.undo()
    again = np.load(extract.extract(folder, backbone, size=64))
    np.testing.assert_array_equal(whole["gallery"], again["gallery"])


def test_whitening_is_applied_to_both(folder):
    backbone = open_backbone(str(folder.parent / "net.onnx"))
    plain = dict(np.load(extract.extract(folder, backbone, size=64)))
    whitening = learn_pca(plain["gallery"], dims=4)
    white = np.load(extract.extract(folder, backbone, size=64, whitening=whitening))
    for key in ("queries", "gallery"):
        np.testing.assert_allclose(white[key], whitening.apply(plain[key]), atol=1e-6)


def test_missing_pictures_are_counted(folder):
    backbone = open_backbone(str(folder.parent / "net.onnx"))
    (folder / "jpg" / "im4.jpg").unlink()
    with pytest.raises(InputError, match=r"lacks 1 of 8 pictures, the first being '.*im4"):
        extract.extract(folder, backbone)
    (folder.parent / "empty").mkdir()
    with pytest.raises(InputError, match=r"gnd_<name>\.pkl"):
        extract.extract(folder.parent / "empty", backbone)
