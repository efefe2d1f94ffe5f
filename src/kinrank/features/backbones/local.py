"""Any network in a local ONNX file, with its preprocessing in a sidecar or guessed from its input."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from kinrank.device import onnx_session
from kinrank.errors import InputError
from kinrank.features.backbones.base import Backbone
from kinrank.features.download import sha256
from kinrank.features.preprocess import Preprocess

_DEFAULT_SIZE = 224


class LocalOnnx(Backbone):
    """A network of your own: `path.onnx`, its preprocessing in `path.json` (guessed and told otherwise)."""

    def __init__(self, path: str | os.PathLike[str], device: str = "auto") -> None:
        model = Path(os.path.abspath(path))
        if not model.is_file():
            raise InputError(f"there is no ONNX file '{model}'")
        self.sidecar = model.with_suffix(".json")
        self.guessed = not self.sidecar.exists()
        preprocess, pooling, output = _guess(model) if self.guessed else _from_sidecar(self.sidecar)
        super().__init__(str(model), model, sha256(model), preprocess, pooling, output, device)

    @property
    def how(self) -> str:
        """One line on how pictures are prepared, and where that is said: for showing it."""
        settings = {**json.loads(self.preprocess.to_json()), "pooling": self.pooling, "output": self._output}
        if self.guessed:
            return (
                f"preprocessing guessed from the network's input, write it to '{self.sidecar}' to change or "
                f"fix it: {json.dumps(settings)}"
            )
        return f"preprocessing from '{self.sidecar}': {json.dumps(settings)}"


def _from_sidecar(path: Path) -> tuple[Preprocess, str, str | None]:
    try:
        values: Any = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise InputError(f"the sidecar '{path}' cannot be read as JSON: {error}") from None
    if not isinstance(values, dict):
        raise InputError(f"the sidecar '{path}' must hold one JSON object")
    pooling, output = values.pop("pooling", "none"), values.pop("output", None)
    try:
        return Preprocess.from_dict(values), pooling, output
    except (InputError, TypeError) as error:
        raise InputError(f"the sidecar '{path}': {error}") from None


def _guess(model: Path) -> tuple[Preprocess, str, str | None]:
    """Layout and size from the input's shape, ImageNet's mean, pooling from the output's rank."""
    session = onnx_session(model)
    image, output = session.get_inputs()[0], session.get_outputs()[0]
    shape = image.shape
    if len(session.get_inputs()) != 1 or len(shape) != 4:
        raise InputError(
            f"'{model}' takes {[i.shape for i in session.get_inputs()]}; a backbone takes one input "
            "(n, 3, h, w) or (n, h, w, 3)"
        )
    layout = "nhwc" if shape[3] == 3 and shape[1] != 3 else "nchw"
    height, width = shape[1:3] if layout == "nhwc" else shape[2:]
    if not isinstance(height, int) or not isinstance(width, int):
        height = width = _DEFAULT_SIZE
    rank = len(output.shape or (0, 0))
    pooling = {2: "none", 3: "cls", 4: "gem"}.get(rank, "none")
    return Preprocess(size=(height, width), layout=layout), pooling, output.name
