"""The published retrieval networks of cirtorch (Radenovic, MIT): checkpoint in, one ONNX file out.

`export` reads a checkpoint safely (no code in it is run, torch is not needed) and writes what the core runs:
`NAME.onnx`, and beside it `NAME.json` with its preprocessing, so that `--backbone NAME.onnx` just works.
A whitening learned after the training (`Lw`) goes into `NAME.lw.npz`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kinrank.errors import InputError, SpecError
from kinrank.features.backbones.local import LocalOnnx
from kinrank.features.backbones.retrieval_onnx import POOLINGS, retrieval_network
from kinrank.features.backbones.state_dict import read_checkpoint
from kinrank.features.download import RemoteFile, cache_folder, fetch, written
from kinrank.features.pooling import POOLINGS as ALL_POOLINGS
from kinrank.features.preprocess import IMAGENET_MEAN, IMAGENET_STD
from kinrank.features.whitening import Whitening
from kinrank.registry import unknown
from kinrank.types import Array

_ROOT = "http://cmp.felk.cvut.cz/cnnimageretrieval/data/networks"
_SFM = f"{_ROOT}/retrieval-SfM-120k/retrievalSfM120k"
PUBLISHED: dict[str, str] = {
    "gl18-tl-resnet50-gem-w": f"{_ROOT}/gl18/gl18-tl-resnet50-gem-w-83fdc30.pth",
    "gl18-tl-resnet101-gem-w": f"{_ROOT}/gl18/gl18-tl-resnet101-gem-w-a4d43db.pth",
    "gl18-tl-resnet152-gem-w": f"{_ROOT}/gl18/gl18-tl-resnet152-gem-w-21278d5.pth",
    "retrievalSfM120k-vgg16-gem": f"{_SFM}-vgg16-gem-b4dcdc6.pth",
    "retrievalSfM120k-resnet101-gem": f"{_SFM}-resnet101-gem-b80fb85.pth",
    "imagenet-caffe-vgg16": f"{_ROOT}/imagenet/imagenet-caffe-vgg16-features-d369c8e.pth",
    "imagenet-caffe-resnet50": f"{_ROOT}/imagenet/imagenet-caffe-resnet50-features-ac468af.pth",
    "imagenet-caffe-resnet101": f"{_ROOT}/imagenet/imagenet-caffe-resnet101-features-10a101d.pth",
    "imagenet-caffe-resnet152": f"{_ROOT}/imagenet/imagenet-caffe-resnet152-features-1011020.pth",
}


_NORMALISED = (("mean", IMAGENET_MEAN), ("std", IMAGENET_STD))


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A retrieval network: its tensors, how it pools, what its pictures are normalised with."""

    state: Mapping[str, Array]
    pooling: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    whitening: Mapping[str, Any]  # training set -> {"ss", "ms"} -> Whitening, where learned afterwards

    @property
    def power(self) -> float:
        """What vectors of several scales are averaged with: GeM's p, or 1 after a whitening layer."""
        if self.pooling != "gem" or "whiten.weight" in self.state:
            return 1.0
        return float(np.ravel(self.state.get("pool.p", np.array([3.0])))[0])


def read(path: str | Path, pooling: str | None = None) -> Checkpoint:
    """A checkpoint `{"meta", "state_dict"}`, or the bare features of a trunk (pooled by GeM with p = 3)."""
    found = read_checkpoint(path)
    if not isinstance(found, dict):
        raise InputError(f"'{path}' is no checkpoint of a retrieval network")
    if "state_dict" not in found:
        state = {f"features.{name}": value for name, value in found.items() if isinstance(value, np.ndarray)}
        return Checkpoint(state, pooling or "gem", IMAGENET_MEAN, IMAGENET_STD, {})
    meta, state = found.get("meta", {}), found["state_dict"]
    if not isinstance(meta, dict) or not isinstance(state, dict):
        raise InputError(
            f"'{path}' is no checkpoint of a retrieval network: meta and state_dict must be dicts"
        )
    if meta.get("local_whitening") or meta.get("regional"):
        raise InputError(f"'{path}' whitens locally or by region, which is not read; take one that does not")
    try:
        mean, std = (tuple(map(float, meta.get(name, default))) for name, default in _NORMALISED)
        learned = {
            str(name): {kind: _whitening(lw) for kind, lw in kinds.items()}
            for name, kinds in meta.get("Lw", {}).items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"'{path}': its meta data are not cirtorch's ({type(error).__name__}: {error})"
        ) from None
    arrays = {str(name): value for name, value in state.items() if isinstance(value, np.ndarray)}
    return Checkpoint(arrays, pooling or str(meta.get("pooling", "gem")), mean, std, learned)


def _whitening(learned: Mapping[str, Any]) -> Whitening:
    return Whitening(np.ravel(learned["m"]), np.asarray(learned["P"]))


def export(checkpoint: str | Path, target: str | Path, pooling: str | None = None, size: int = 1024) -> Path:
    """Write `target` (.onnx), its sidecar and its whitening from a checkpoint; returns the path of the ONNX.

    `size` is the longer side of the pictures that the sidecar asks for; the network takes any.
    """
    target = Path(target).with_suffix(".onnx")
    network = read(checkpoint, pooling)
    if network.pooling not in ALL_POOLINGS:
        raise SpecError(unknown("pooling", network.pooling, ALL_POOLINGS))
    model = retrieval_network(network.state, network.pooling)
    note = model.metadata_props.add()
    note.key, note.value = "power", repr(network.power)
    sidecar: dict[str, Any] = {"size": [size, size], "fit": "pad", "interpolation": "lanczos"}
    sidecar |= {"mean": network.mean, "std": network.std}
    inside = network.pooling in POOLINGS
    sidecar |= {"output": "features"} if inside else {"output": "maps", "pooling": network.pooling}
    for kinds in list(network.whitening.values())[-1:]:  # the last training set is the largest
        kinds["ms" if "ms" in kinds else "ss"].save(target.with_suffix(".lw.npz"))
    with written(target.with_suffix(".json")) as part:
        part.write_text(json.dumps(sidecar), encoding="utf-8")
    with written(target) as part:
        part.write_bytes(model.SerializeToString())
    return target


def exported(checkpoint: str | Path) -> Path:
    """The ONNX file beside a checkpoint; written when it is not there or older."""
    checkpoint = Path(checkpoint)
    if not checkpoint.is_file():
        raise InputError(f"there is no checkpoint '{checkpoint}'")
    target = checkpoint.with_suffix(".onnx")
    if not target.exists() or target.stat().st_mtime < checkpoint.stat().st_mtime:
        export(checkpoint, target)
    return target


def fetched(name: str) -> Path:
    """The ONNX file of a published network, in the cache; made from its checkpoint when it is not there.

    Where the checkpoint cannot be downloaded the error says where to put it by hand.
    """
    if name not in PUBLISHED:
        raise SpecError(unknown("published network", name, PUBLISHED))
    target = cache_folder() / "backbones" / f"{name}.onnx"
    if target.exists() and target.with_suffix(".json").exists():
        return target
    return export(fetch(_remote(PUBLISHED[name])), target)


def _remote(url: str) -> RemoteFile:
    # Neither sizes nor whole checksums are published, and the seven signs in the names are not said to be
    # the start of one: what is read is checked by its layout, and no code in it is run.
    return RemoteFile(url, f"checkpoints/{url.rpartition('/')[2]}", "", 0, "MIT")


class _Published(LocalOnnx):
    """A published network by its name: fetched, exported, and then an ONNX file like any other."""

    extra = "offline"
    published = ""

    def __init__(self, device: str = "auto") -> None:
        super().__init__(fetched(self.published), device)
        self.name = self.published


class GL18ResNet50(_Published):
    """ResNet-50 + GeM trained on Google Landmarks 2018 (Radenovic 2019), 2048-d; downloads its checkpoint."""

    published = "gl18-tl-resnet50-gem-w"


class GL18ResNet101(_Published):
    """ResNet-101 + GeM trained on Google Landmarks 2018, 2048-d: R-GeM of the paper; downloads."""

    published = "gl18-tl-resnet101-gem-w"


class GL18ResNet152(_Published):
    """ResNet-152 + GeM trained on Google Landmarks 2018, 2048-d; downloads."""

    published = "gl18-tl-resnet152-gem-w"


class SfmVGG16(_Published):
    """VGG16 + GeM trained on retrieval-SfM-120k, 512-d: V-GeM of the paper, to be whitened; downloads."""

    published = "retrievalSfM120k-vgg16-gem"
