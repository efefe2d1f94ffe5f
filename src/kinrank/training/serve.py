"""A trained model on a GPU, by torch: vectors go there once, and their products are made there.

For `csa:device=cuda` where ONNX Runtime was built without CUDA. A list is hundreds of small steps, so on CUDA
they are recorded once for each shape and played back as one.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kinrank.training.export import Served, load_model
from kinrank.types import Array

SHAPES = 16  # recordings that are kept


class TorchLists:
    """Scores of lists of one length, from their vectors or from their similarities."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.device = device
        self.model = Served(model).to(device).eval()
        self._recorded: OrderedDict[tuple[int, ...], tuple[Any, Tensor, Tensor]] = OrderedDict()

    @classmethod
    def open(cls, folder: Path, device: torch.device) -> TorchLists:
        """The model of a folder."""
        return cls(load_model(folder)[0], device)

    @torch.no_grad()
    def scores(self, inputs: Array, vectors: bool, columns: int | None = None) -> Array:
        """Nodes (B, 1+K, d) when `vectors`, else similarities (B, 1+K, 1+K), to scores (B, K)."""
        given = torch.from_numpy(np.ascontiguousarray(inputs)).to(self.device, non_blocking=True)
        # TF32 keeps ten bits of a product; similarities lie close together and want all of them.
        similarities = given @ given[:, :columns].transpose(1, 2) if vectors else given
        run = self._played if self.device.type == "cuda" else self.model
        found: Array = run(similarities).float().cpu().numpy()
        return found

    def _played(self, similarities: Tensor) -> Tensor:
        shape = tuple(similarities.shape)
        if shape not in self._recorded:
            self._recorded[shape] = self._record(similarities)
            if len(self._recorded) > SHAPES:
                self._recorded.popitem(last=False)
        self._recorded.move_to_end(shape)
        graph, held, scores = self._recorded[shape]
        held.copy_(similarities)
        graph.replay()
        return scores

    def _record(self, similarities: Tensor) -> tuple[Any, Tensor, Tensor]:
        """The steps for one shape; three runs first, so that every kernel and buffer is there."""
        held = similarities.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._forward(held)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            scores = self._forward(held)
        return graph, held, scores

    def _forward(self, similarities: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16):
            scores: Tensor = self.model(similarities)
        return scores
