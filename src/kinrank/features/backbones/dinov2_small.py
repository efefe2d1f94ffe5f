"""DINOv2 small: self-supervised ViT-S/14, the general choice where a download is possible."""

from __future__ import annotations

from kinrank.features.backbones.base import Backbone
from kinrank.features.download import RemoteFile, fetch
from kinrank.features.preprocess import Preprocess

FILE = RemoteFile(
    url="https://huggingface.co/Xenova/dinov2-small/resolve/c2bb04a51fab207c420665f1946016107bffc701/onnx/model.onnx",
    path="backbones/dinov2-small.onnx",
    sha256="83141175ec78b4ff9a2bb58a4c7c264ba0054d1c2e122e5a8114b79a8d4179ea",
    size=88_459_888,
    licence="Apache-2.0",
)


class DinoV2Small(Backbone):
    """DINOv2 ViT-S/14 (Oquab 2023), 384-d class token; downloads 88 MB on first use."""

    def __init__(self, device: str = "auto") -> None:
        super().__init__(
            "dinov2-small",
            fetch(FILE),
            FILE.sha256,
            Preprocess(size=(224, 224), resize=256),
            pooling="cls",
            output="last_hidden_state",
            device=device,
        )
