"""The trained model as a folder: the ONNX graph, the weights, what they are. Checked before it is kept."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import kinrank
from kinrank.device import onnx_session
from kinrank.errors import KinrankError
from kinrank.training.config import Recipe
from kinrank.training.loop import Trained

OPSET = 18  # what ONNX Runtime 1.18 and later run
TOLERANCE = 1e-4
LENGTHS = (2, 7, 33, 100, 257)  # K at which torch and ONNX are compared


class Served(nn.Module):
    """The model as it is served: lists of one length, no padding; its `serve` where it has one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """(B, 1+K, M) -> (B, K)."""
        served: torch.Tensor = getattr(self.model, "serve", self.model)(inputs)
        return served


def write_onnx(model: nn.Module, path: Path) -> None:
    """Write the graph: `similarities (B, 1+K, M)` (or `vectors (B, 1+K, d)`) -> `scores (B, K)`.

    B, K and the number of columns M <= 1+K are free.
    """
    name = input_name(model)
    example = _example(model, 1, getattr(model, "neighbours", 20), np.random.default_rng(0))
    axes = {0: "lists", 1: "items"} | ({2: "columns"} if name == "similarities" else {})
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # tracing warns of every shape that is read, and of its own age
        torch.onnx.export(
            Served(model).eval(),
            (torch.from_numpy(example),),
            str(path),
            input_names=[name],
            output_names=["scores"],
            dynamic_axes={name: axes, "scores": {0: "lists", 1: "candidates"}},
            opset_version=OPSET,
            dynamo=False,
        )


def input_name(model: nn.Module) -> str:
    """What the graph reads."""
    return "vectors" if getattr(model, "needs_vectors", False) else "similarities"


def check_agreement(model: nn.Module, path: Path, lengths: tuple[int, ...] = LENGTHS) -> float:
    """The largest difference between torch and ONNX Runtime over several K; above 1e-4 is refused."""
    session, name = onnx_session(path, "cpu"), input_name(model)
    random = np.random.default_rng(1)
    worst = 0.0
    longest = getattr(model, "neighbours", max(lengths))
    for number, k in enumerate(sorted({min(k, longest) for k in lengths})):
        inputs = _example(model, 1 + number % 2, k, random)
        with torch.no_grad():
            expected = Served(model)(torch.from_numpy(inputs)).float().numpy()
        found = session.run(None, {name: inputs})[0]
        if found.shape != expected.shape:
            raise KinrankError(f"the ONNX graph answers K={k} with shape {found.shape}, not {expected.shape}")
        difference = float(np.abs(found - expected).max() / max(1.0, float(np.abs(expected).max())))
        if not difference <= TOLERANCE:  # NaN too
            raise KinrankError(
                f"torch and ONNX differ by {difference:.2g} at K={k} (at most {TOLERANCE:g} is accepted); "
                "the model was not exported"
            )
        worst = max(worst, difference)
    return worst


def _example(model: nn.Module, lists: int, k: int, random: np.random.Generator) -> np.ndarray:
    """Ranked lists of clustered unit vectors, as the model reads them."""
    dims = getattr(model, "dims", 32)
    centres = random.normal(size=(lists, 5, dims))
    rows = centres[:, random.integers(5, size=1 + k)] + random.normal(size=(lists, 1 + k, dims))
    rows /= np.linalg.norm(rows, axis=2, keepdims=True)
    order = np.argsort(-(rows[:, 1:] @ rows[:, 0, :, None])[..., 0], axis=1)
    rows = np.concatenate([rows[:, :1], np.take_along_axis(rows[:, 1:], order[:, :, None], axis=1)], axis=1)
    table = rows if getattr(model, "needs_vectors", False) else rows @ rows.transpose(0, 2, 1)
    return np.ascontiguousarray(table, dtype=np.float32)


def write_model(
    folder: Path, model: nn.Module, recipe: Recipe, trained: Trained, data: list[dict[str, Any]]
) -> dict[str, Any]:
    """Everything that a model folder holds but its card; returns `config.json`."""
    from safetensors.torch import save_file

    model = model.cpu().float().eval()
    model.load_state_dict({name: value.cpu() for name, value in trained.weights.items()})
    partial = folder / "model.onnx.part"
    write_onnx(model, partial)
    difference = check_agreement(model, partial)
    weights = {name: value.cpu().contiguous() for name, value in trained.weights.items()}
    save_file(weights, str(folder / "model.safetensors.part"))
    config = {
        "kinrank": kinrank.__version__,
        "method": recipe.method,
        "architecture": recipe.architecture,
        "sizes": recipe.model,
        "input": input_name(model),
        "columns": getattr(model, "anchors", None),
        "dims": getattr(model, "dims", None),
        "neighbours": getattr(model, "neighbours", None),
        "parameters": sum(p.numel() for p in model.parameters()),
        "opset": OPSET,
        "seed": recipe.seed,
        "step": trained.step,
        "steps": trained.steps,
        "seconds": round(trained.seconds, 1),
        "device": trained.device,
        "metrics": {"validation": trained.validation, "onnx_difference": difference},
        "data": data,
        "recipe": recipe.as_dict(),
    }
    (folder / "config.json.part").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for name in ("model.safetensors", "model.onnx", "config.json"):  # the config last: it makes a model
        os.replace(folder / f"{name}.part", folder / name)
    return config


def load_model(folder: Path) -> tuple[nn.Module, Recipe]:
    """A trained model with its recipe, to fine-tune or to look at."""
    from safetensors.torch import load_file

    from kinrank.training.config import build_model, from_dict

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    raw = {key: value for key, value in config["recipe"].items() if key != "name"}
    recipe = from_dict(raw, config["recipe"]["name"])
    model: nn.Module = build_model(recipe)
    model.load_state_dict(load_file(str(folder / "model.safetensors")))
    return model.eval(), recipe
