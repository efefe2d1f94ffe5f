"""What every backbone is: a network in ONNX Runtime, how it wants its pictures, how its output is pooled."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from kinrank.device import onnx_session
from kinrank.errors import InputError
from kinrank.features import pooling as places
from kinrank.features.preprocess import Preprocess
from kinrank.types import Array

if TYPE_CHECKING:
    from PIL import Image

POOLINGS = ("none", "cls", *places.POOLINGS)


class Backbone:
    """Pictures in, vectors (n, d) out. An adapter sets the class attributes and hands its file on.

    `name` is what the command line calls it; `identity` adds a fingerprint of weights, preprocessing and
    pooling, and is what a gallery remembers: vectors of two identities cannot be compared.
    """

    extra: ClassVar[str | None] = None  # the optional dependency group that it needs

    def __init__(
        self,
        name: str,
        model: str | Path,
        checksum: str,
        preprocess: Preprocess,
        pooling: str = "none",
        output: str | None = None,
        device: str = "auto",
    ) -> None:
        if pooling not in POOLINGS:
            raise InputError(f"unknown pooling '{pooling}'; there are: {', '.join(POOLINGS)}")
        self.name = name
        self.model = Path(model)
        self.preprocess = preprocess
        self.pooling = pooling
        self.session = onnx_session(model, device)
        self._input = self.session.get_inputs()[0]
        self._output = self._named_output(output)
        text = f"{checksum} {preprocess.to_json()} {pooling} {self._output}"
        self.fingerprint = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
        self._dim: int | None = None

    @property
    def identity(self) -> str:
        """Name and fingerprint, `dinov2-small#0123456789ab`."""
        return f"{self.name}#{self.fingerprint}"

    @property
    def dim(self) -> int:
        """Dimensions of the vectors; found by embedding one grey picture where the file does not say."""
        told = next(o.shape for o in self.session.get_outputs() if o.name == self._output)
        if self.pooling == "none" and len(told) == 2 and isinstance(told[1], int):
            return told[1]
        if self._dim is None:
            from PIL import Image

            height, width = self.preprocess.size
            self._dim = self.embed(self.preprocess(Image.new("RGB", (width, height), "grey"))[None]).shape[1]
        return self._dim

    def embed(self, inputs: Array) -> Array:
        """Vectors (n, d) float32, as pooled, of n prepared pictures."""
        fixed = self._input.shape[0]
        if not isinstance(fixed, int) or fixed < 1:
            return self._run(inputs)
        # A network of a fixed batch is fed in such batches, the last one filled up.
        parts = []
        for start in range(0, len(inputs), fixed):
            part = inputs[start : start + fixed]
            filled = np.concatenate([part, np.repeat(part[-1:], fixed - len(part), axis=0)])
            parts.append(self._run(filled)[: len(part)])
        return np.concatenate(parts)

    def embed_images(self, images: list[Image.Image]) -> Array:
        """Vectors (n, d) of RGB pictures."""
        return self.embed(np.stack([self.preprocess(image) for image in images]))

    def _run(self, inputs: Array) -> Array:
        dtype = np.float16 if self._input.type == "tensor(float16)" else np.float32
        output = self.session.run([self._output], {self._input.name: inputs.astype(dtype, copy=False)})[0]
        return pool(np.asarray(output, dtype=np.float32), self.pooling)

    def _named_output(self, name: str | None) -> str:
        names = [output.name for output in self.session.get_outputs()]
        if name is not None and name not in names:
            raise InputError(f"the network has no output '{name}'; there are: {', '.join(names)}")
        return name or names[0]


def pool(output: Array, pooling: str) -> Array:
    """One vector an image (n, d) from a map (n, d, h, w), tokens (n, tokens, d) or vectors (n, d)."""
    if pooling == "none":
        flat = output.reshape(len(output), -1)
        if output.ndim > 2 and flat.shape[1] != max(output.shape[1:]):
            raise InputError(
                f"the network gives an output of shape {output.shape}, not one vector an image; "
                f"cure: name a pooling in the sidecar: {', '.join(POOLINGS[1:])}"
            )
        return flat
    if pooling == "cls":
        if output.ndim != 3:
            raise InputError(f"pooling 'cls' needs tokens (n, tokens, d), the network gives {output.shape}")
        return output[:, 0]
    if output.ndim == 3:  # tokens as a map of one row
        output = output.transpose(0, 2, 1)[:, :, None]
    if output.ndim != 4:
        raise InputError(f"pooling '{pooling}' needs a map (n, d, h, w), the network gives {output.shape}")
    return places.POOLINGS[pooling](output)


def open_backbone(name: str, device: str = "auto") -> Backbone:
    """The backbone of that name, or the one in a local ONNX file (`path.onnx`) or checkpoint (`path.pth`)."""
    from kinrank.registry import load

    name, _ = _parts(name)
    if name.lower().endswith(".pth"):
        from kinrank.features.backbones.cirtorch import exported

        name = str(exported(name))
    if name.lower().endswith(".onnx"):
        from kinrank.features.backbones.local import LocalOnnx

        return LocalOnnx(name, device=device)
    make: Callable[..., Backbone] = load("backbones", name)
    return make(device=device)


def open_for(gallery: Any, name: str | None = None, device: str = "auto") -> Backbone:
    """The backbone that made a gallery's vectors; with `name`, that one, refused unless it is the same."""
    kept = gallery.backbone
    if kept is None and name is None:
        raise InputError(
            f"the gallery '{gallery.location}' does not know what made its vectors; "
            "cure: name the backbone with --backbone"
        )
    file, mark = _parts(kept or "")
    if name is None and file.lower().endswith(".onnx") and not os.path.exists(file):
        raise InputError(
            f"the network '{file}' of this gallery is not there any more; "
            "cure: say where it is now with --backbone PATH"
        )
    by_name = name is not None and not name.lower().endswith(".onnx")
    if by_name and kept is not None and file != name:
        gallery.require_backbone(name)  # refused now, not after a download
    backbone = open_backbone(name or kept, device)
    # A file that only moved is the same network.
    gallery.require_backbone(kept if mark == backbone.fingerprint else backbone.identity)
    return backbone


def _parts(identity: str) -> tuple[str, str]:
    """Name and fingerprint of an identity; a mere name has no fingerprint."""
    match = re.fullmatch(r"(.*)#([0-9a-f]{12})", identity, re.DOTALL)
    return (match[1], match[2]) if match else (identity, "")
