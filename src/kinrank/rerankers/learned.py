"""A trained model's folder, opened when it is first asked: `model.onnx` beside its `config.json`."""

from __future__ import annotations

import json
import threading
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinrank.errors import InputError
from kinrank.registry import load, registry, unknown
from kinrank.types import Array

if TYPE_CHECKING:
    import onnxruntime


def model_folder(model: str, method: str) -> Path:
    """The folder of a model that is named in `kinrank.models` or given as a path."""
    if model in registry("models"):
        return Path(load("models", model).folder)
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    shipped = registry("models")
    if model == method:
        raise InputError(
            f"{method} has no shipped model in this build; cure: train one with "
            f"'kinrank train DATASET.npz -o MODEL' and use {method}:model=MODEL"
        )
    raise InputError(
        f"{unknown('model', model, shipped)}, and no folder has that name; "
        f"cure: {method}:model=FOLDER with what 'kinrank train' wrote"
    )


class LearnedModel:
    """The ONNX graph of a folder; nothing is read before the first use, and threads may share it."""

    def __init__(self, model: str, method: str, device: str = "auto") -> None:
        self.model, self.method, self.device = model, method, device
        self._lock = threading.Lock()
        self._session: onnxruntime.InferenceSession | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"model": self.model, "method": self.method, "device": self.device}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @cached_property
    def folder(self) -> Path:
        """Where the model is; complains when it is nowhere."""
        return model_folder(self.model, self.method)

    @cached_property
    def config(self) -> dict[str, Any]:
        """`config.json`, checked to be of this method."""
        path = self.folder / "config.json"
        try:
            config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputError(
                f"'{self.folder}' holds no config.json, so it is no model; cure: give the folder that "
                "'kinrank train' wrote"
            ) from None
        except (ValueError, UnicodeDecodeError) as error:
            raise InputError(f"'{path}' is not JSON: {error}") from None
        if config.get("method") != self.method:
            raise InputError(
                f"'{self.folder}' is a model of '{config.get('method')}', not of '{self.method}'"
            )
        return config

    @property
    def session(self) -> onnxruntime.InferenceSession:
        """The ONNX Runtime session, made once."""
        with self._lock:
            if self._session is None:
                from kinrank.device import onnx_session

                path = self.folder / "model.onnx"
                if not path.is_file():
                    raise InputError(f"'{self.folder}' holds no model.onnx; cure: finish the training")
                self._session = onnx_session(path, self.device)
            return self._session

    def run(self, **inputs: Array) -> Array:
        """The graph's first output for named inputs."""
        output: Array = self.session.run(None, inputs)[0]
        return output
