"""Checkpoints in cirtorch's layout, made here with torch: read safely, exported, and the same to 1e-3."""

import json
import pickle

import numpy as np
import pytest

from kinrank.errors import DownloadError, InputError, SpecError
from kinrank.features import pooling
from kinrank.features.backbones import cirtorch
from kinrank.features.backbones.base import open_backbone
from kinrank.features.paper import describe, fitted, resampled
from kinrank.features.whitening import Whitening

torch = pytest.importorskip("torch", reason="the checkpoints are made with torch (extra 'train')")
pytest.importorskip("onnx", reason="needs the extra 'offline'")
nn = torch.nn


class Bottleneck(nn.Module):
    """As in torchvision, by its names: 1 x 1, 3 x 3 with the stride, 1 x 1 to four times the width."""

    def __init__(self, inside, width, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.downsample = None
        if stride != 1 or inside != 4 * width:
            self.downsample = nn.Sequential(
                nn.Conv2d(inside, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(torch.relu(self.bn2(self.conv2(y)))))
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


def resnet(blocks, width):
    stem = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inside, stages = width, []
    for i, count in enumerate(blocks):
        parts = []
        for j in range(count):
            parts.append(Bottleneck(inside, width * 2**i, 2 if i and j == 0 else 1))
            inside = 4 * width * 2**i
        stages.append(nn.Sequential(*parts))
    return nn.Sequential(*stem, *stages), inside


def vgg16(width):
    layers, inside = [], 3
    for v in [1, 1, "M", 2, 2, "M", 4, 4, 4, "M", 8, 8, 8, "M", 8, 8, 8]:
        if v == "M":
            layers.append(nn.MaxPool2d(2, 2))
        else:
            layers += [nn.Conv2d(inside, v * width, 3, padding=1), nn.ReLU()]
            inside = v * width
    return nn.Sequential(*layers), inside


class GeM(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.tensor([2.7]))

    def forward(self, x):
        return nn.functional.avg_pool2d(x.clamp(min=1e-6).pow(self.p), x.shape[-2:]).pow(1 / self.p)


class Net(nn.Module):
    """features -> pool -> L2 (-> whiten -> L2): what the checkpoints are trained as."""

    def __init__(self, trunk, width, pool="gem", whiten=True):
        super().__init__()
        self.features = trunk
        self.pool = GeM() if pool == "gem" else nn.AdaptiveMaxPool2d(1)
        self.whiten = nn.Linear(width, width) if whiten else None

    def forward(self, x):
        o = self.pool(self.features(x)).flatten(1)
        o = o / (o.norm(dim=1, keepdim=True) + 1e-6)
        if self.whiten is not None:
            o = self.whiten(o)
            o = o / (o.norm(dim=1, keepdim=True) + 1e-6)
        return o


ARCHITECTURES = {
    "resnet50": lambda: resnet((3, 4, 6, 3), 4),
    "resnet101": lambda: resnet((3, 4, 23, 3), 4),
    "resnet152": lambda: resnet((3, 8, 36, 3), 4),
    "vgg16": lambda: vgg16(4),
}
META = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "regional": False}


def made(architecture, pool="gem", whiten=True):
    torch.manual_seed(0)
    trunk, width = ARCHITECTURES[architecture]()
    net = Net(trunk, width, pool, whiten)
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
                module.weight.uniform_(0.4, 0.8)
    return net.eval(), width


def save(net, path, meta, legacy):
    state = {"meta": {**META, **meta}, "state_dict": net.state_dict()}
    torch.save(state, path, _use_new_zipfile_serialization=not legacy)
    return path


@pytest.mark.parametrize("legacy", [True, False], ids=["before-1.6", "zip"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_export_gives_what_torch_gives(architecture, legacy, tmp_path):
    net, _ = made(architecture)
    meta = {"architecture": architecture, "pooling": "gem", "whitening": True, "outputdim": 128}
    checkpoint = save(net, tmp_path / "c.pth", meta, legacy)
    model = cirtorch.export(checkpoint, tmp_path / "net.onnx")
    backbone = open_backbone(str(model))
    for shape in ((2, 3, 96, 128), (1, 3, 75, 61)):
        pixels = torch.randn(shape)
        with torch.no_grad():
            expected, maps = net(pixels).numpy(), net.features(pixels).numpy()
        np.testing.assert_allclose(backbone.embed(pixels.numpy()), expected, atol=1e-3)
        got = backbone.session.run(["maps"], {"image": pixels.numpy()})[0]
        np.testing.assert_allclose(got, maps, rtol=1e-3, atol=1e-3 * np.abs(maps).max())
    assert backbone.session.get_modelmeta().custom_metadata_map["power"] == "1.0"


def test_a_published_kind_with_whitening_learned_afterwards(tmp_path):
    """retrievalSfM120k-vgg16-gem: no whitening layer, `Lw` of NumPy arrays in the meta data."""
    net, width = made("vgg16", whiten=False)
    rng = np.random.default_rng(0)
    lw = {"m": rng.normal(size=(width, 1)) * 0.01, "P": rng.normal(size=(width, width))}
    meta = {"architecture": "vgg16", "pooling": "gem", "Lw": {"retrieval-SfM-120k": {"ss": lw, "ms": lw}}}
    checkpoint = save(net, tmp_path / "c.pth", meta, legacy=True)
    assert cirtorch.read(checkpoint).power == pytest.approx(2.7)
    model = cirtorch.export(checkpoint, tmp_path / "v.onnx")
    backbone = open_backbone(str(model))
    whitening = Whitening.load(tmp_path / "v.lw.npz")
    picture = rng.integers(0, 255, (90, 120, 3), dtype=np.uint8)
    from PIL import Image

    vector = describe(backbone, Image.fromarray(picture), size=1024)
    pixels = torch.from_numpy((picture / 255 - META["mean"]) / META["std"]).float().permute(2, 0, 1)[None]
    total = 0
    with torch.no_grad():
        for scale in (1, 2**-0.5, 2**0.5):
            resized = pixels
            if scale != 1:
                resized = nn.functional.interpolate(
                    pixels, scale_factor=scale, mode="bilinear", align_corners=False
                )
            total = total + net(resized)[0].double().pow(2.7)
    expected = (total / 3).pow(1 / 2.7)
    np.testing.assert_allclose(vector, expected / expected.norm(), atol=1e-3)
    slow = lw["P"] @ (vector - lw["m"][:, 0])
    np.testing.assert_allclose(whitening.apply(vector), slow / np.linalg.norm(slow), atol=1e-4)


def test_bare_trunks_and_other_poolings(tmp_path):
    net, _ = made("resnet50", whiten=False)
    torch.save(net.features.state_dict(), tmp_path / "imagenet.pth", _use_new_zipfile_serialization=False)
    pixels = torch.randn(1, 3, 96, 128)
    with torch.no_grad():
        maps = net.features(pixels).numpy()[0]
    for name in ("mac", "spoc", "rmac", "gem"):
        backbone = open_backbone(
            str(cirtorch.export(tmp_path / "imagenet.pth", tmp_path / name, pooling=name))
        )
        expected = pooling.l2(pooling.POOLINGS[name](maps))
        np.testing.assert_allclose(pooling.l2(backbone.embed(pixels.numpy())[0]), expected, atol=1e-3)
    assert json.loads((tmp_path / "rmac.json").read_text())["pooling"] == "rmac"


def test_resampling_and_fitting_are_those_of_the_published_extraction():
    from PIL import Image

    pixels = np.random.default_rng(0).normal(size=(3, 37, 50)).astype(np.float32)
    for scale in (2**-0.5, 2**0.5, 0.5):
        expected = nn.functional.interpolate(
            torch.from_numpy(pixels)[None], scale_factor=scale, mode="bilinear", align_corners=False
        )
        np.testing.assert_allclose(resampled(pixels, scale), expected[0].numpy(), atol=1e-5)
    picture = Image.new("RGB", (2000, 1000))
    assert fitted(picture, 1024).size == (1024, 512)
    assert fitted(picture, 1024, (100, 100, 1100, 600)).size == (512, 256), "the object keeps its scale"
    assert fitted(picture, 4096).size == (2000, 1000), "nothing is enlarged"
    with pytest.raises(InputError, match="holds nothing"):
        fitted(picture, 1024, (3000, 0, 3100, 50))


class Evil:
    def __reduce__(self):
        return print, ("run",)


def test_code_in_a_checkpoint_is_refused(tmp_path, capsys):
    torch.save({"meta": {"x": Evil()}, "state_dict": {}}, tmp_path / "evil.pth")
    torch.save({"meta": Evil()}, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    (tmp_path / "plain.pth").write_bytes(pickle.dumps({"meta": {}}))
    (tmp_path / "cut.pth").write_bytes((tmp_path / "evil.pth").read_bytes()[:200])
    capsys.readouterr()
    for name in ("evil", "old", "plain", "cut"):
        with pytest.raises(InputError):
            cirtorch.read(tmp_path / f"{name}.pth")
    assert "run" not in capsys.readouterr().out
    objects = {"meta": {"architecture": "vgg16", "Lw": np.array([Evil()], dtype=object)}, "state_dict": {}}
    torch.save(objects, tmp_path / "objects.pth", _use_new_zipfile_serialization=False)
    with pytest.raises(InputError, match="only"):
        cirtorch.read(tmp_path / "objects.pth")


def test_a_checkpoint_is_a_backbone_by_its_path(tmp_path):
    net, _ = made("resnet50")
    checkpoint = save(net, tmp_path / "c.pth", {"architecture": "resnet50", "pooling": "gem"}, legacy=False)
    one, again = open_backbone(str(checkpoint)), open_backbone(str(checkpoint))
    assert one.dim == 128 and one.identity == again.identity and (tmp_path / "c.onnx").is_file()
    with pytest.raises(InputError, match="no checkpoint"):
        open_backbone(str(tmp_path / "d.pth"))


def test_what_is_no_such_network_is_named(tmp_path):
    torch.save({"meta": {}, "state_dict": {"a": torch.ones(2)}}, tmp_path / "c.pth")
    with pytest.raises(InputError, match="cirtorch's layout"):
        cirtorch.export(tmp_path / "c.pth", tmp_path / "x")
    assert not (tmp_path / "x.onnx").exists()
    for broken in (
        {"meta": 3, "state_dict": {}},
        {"meta": {"Lw": [1]}, "state_dict": {}},
        {"state_dict": 3},
        7,
    ):
        torch.save(broken, tmp_path / "c.pth")
        with pytest.raises(InputError):
            cirtorch.export(tmp_path / "c.pth", tmp_path / "x")
    torch.save({"state_dict": {"a": torch.ones(1).expand(10**9)}}, tmp_path / "c.pth")
    with pytest.raises(InputError, match="beyond its numbers"):
        cirtorch.read(tmp_path / "c.pth")
    with pytest.raises(SpecError, match="pooling"):
        net, _ = made("resnet50")
        cirtorch.export(save(net, tmp_path / "c.pth", {"pooling": "crow"}, legacy=False), tmp_path / "x")
    with pytest.raises(SpecError, match="gl18-tl-resnet101-gem-w"):
        cirtorch.fetched("gl18")


def test_a_published_network_is_fetched_once_and_exported(tmp_path, monkeypatch):
    """From a server of our own: the checkpoint comes down, and the ONNX file is in the cache."""
    import functools
    import http.server
    import threading

    net, _ = made("resnet50")
    meta = {"architecture": "resnet50", "pooling": "gem", "whitening": True}
    save(net, tmp_path / "thin-0000000.pth", meta, legacy=True)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setitem(cirtorch.PUBLISHED, "thin", f"{url}/thin-0000000.pth")
        monkeypatch.setitem(cirtorch.PUBLISHED, "gone", f"{url}/gone-0000000.pth")
        monkeypatch.setenv("KINRANK_CACHE", str(tmp_path / "cache"))
        model = cirtorch.fetched("thin")
        with pytest.raises(DownloadError, match=r"gone-0000000.pth"):
            cirtorch.fetched("gone")
        server.shutdown()
    assert cirtorch.fetched("thin") == model  # now from the cache
    assert open_backbone(str(model)).embed(np.zeros((1, 3, 64, 64), np.float32)).shape == (1, 128)
