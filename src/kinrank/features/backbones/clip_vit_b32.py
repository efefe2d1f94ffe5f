"""CLIP ViT-B/32: the image tower with its projection; knows what things are called."""

from __future__ import annotations

from kinrank.features.backbones.base import Backbone
from kinrank.features.download import RemoteFile, fetch
from kinrank.features.preprocess import Preprocess

FILE = RemoteFile(
    url="https://huggingface.co/Qdrant/clip-ViT-B-32-vision/resolve/e0c24ed0fa57fa3e4f97f30de74c51d944036ace/model.onnx",
    path="backbones/clip-vit-b32.onnx",
    sha256="c68d3d9a200ddd2a8c8a5510b576d4c94d1ae383bf8b36dd8c084f94e1fb4d63",
    size=351_686_194,
    licence="MIT",
)


class ClipViTB32(Backbone):
    """CLIP ViT-B/32 (Radford 2021), 512-d image embedding; downloads 352 MB on first use."""

    def __init__(self, device: str = "auto") -> None:
        super().__init__(
            "clip-vit-b32",
            fetch(FILE),
            FILE.sha256,
            Preprocess(
                size=(224, 224),
                mean=(0.48145466, 0.4578275, 0.40821073),
                std=(0.26862954, 0.26130258, 0.27577711),
            ),
            output="image_embeds",
            device=device,
        )
