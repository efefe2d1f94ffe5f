"""Writes EfficientNet-Lite as an ONNX file from its state dict: batch norms folded, pooled activations out.

Tan & Le 2019; the Lite variants have no squeeze-and-excitation and ReLU6 in place of Swish, so the network
is convolutions, clips and additions. Widths and kernels are read from the tensors' shapes; only the
strides, which shapes do not tell, are stated here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kinrank.errors import InputError, MissingExtraError
from kinrank.types import Array

if TYPE_CHECKING:
    import onnx

_EPSILON = 1e-3  # of the batch norms
_STAGE_STRIDES = (1, 2, 2, 2, 1, 2, 1)
_STAGE_BLOCKS = {1: (1, 3, 3, 4, 4, 5, 1)}  # lite1: 1, 2, 2, 3, 3, 4, 1 times 1.1, ends fixed, rounded up
OPSET = 17


class Graph:
    """Nodes and weights as they are added; each call returns the name of its output."""

    def __init__(self, state: dict[str, Array]) -> None:
        import onnx.helper
        import onnx.numpy_helper

        self.make, self.to_tensor = onnx.helper.make_node, onnx.numpy_helper.from_array
        self.state = state
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.bounds = [self.constant("zero", 0.0), self.constant("six", 6.0)]

    def constant(self, name: str, value: float | Array) -> str:
        """A named weight."""
        self.weights.append(self.to_tensor(np.asarray(value, np.float32), name))
        return name

    def add(self, kind: str, inputs: list[str], **attributes: Any) -> str:
        """A node with one output."""
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(self.make(kind, inputs, [name], name, **attributes))
        return name

    def conv(self, x: str, conv: str, norm: str, stride: int = 1, relu: bool = True) -> str:
        """A convolution with its batch norm folded in: w * g / s, b - m * g / s."""
        weight = self.state[f"{conv}.weight"].astype(np.float64)  # (out, in / groups, k, k)
        gain, bias, mean, variance = (
            self.state[f"{norm}.{part}"].astype(np.float64)
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        factor = gain / np.sqrt(variance + _EPSILON)
        inputs = [
            x,
            self.constant(f"{conv}.weight", weight * factor[:, None, None, None]),
            self.constant(f"{conv}.bias", bias - mean * factor),
        ]
        depthwise = weight.shape[1] == 1
        x = self.add(
            "Conv",
            inputs,
            kernel_shape=weight.shape[2:],
            strides=[stride, stride],
            group=weight.shape[0] if depthwise else 1,
            auto_pad="SAME_UPPER",
        )
        return self.add("Clip", [x, *self.bounds]) if relu else x


def efficientnet_lite(state: dict[str, Array], variant: int = 1, gem: float | None = None) -> onnx.ModelProto:
    """The network `image (n, 3, h, w) -> features (n, 1280)`; `gem` is the power of a generalised mean."""
    try:
        import onnx
        import onnx.checker
        import onnx.helper
    except ImportError:
        raise MissingExtraError("writing the network of efficientnet-lite1", "offline") from None
    try:
        graph = Graph(state)
        x = graph.conv("image", "_conv_stem", "_bn0", 2)
        block = 0
        for blocks, stride in zip(_STAGE_BLOCKS[variant], _STAGE_STRIDES):
            for position in range(blocks):
                x = _block(graph, x, f"_blocks.{block}", stride if position == 0 else 1)
                block += 1
        x = graph.conv(x, "_conv_head", "_bn1")
    except KeyError as error:
        raise InputError(f"the weights are not those of EfficientNet-Lite{variant}: no {error}") from None
    graph.add("Flatten", [_pool(graph, x, gem)])
    graph.nodes[-1].output[0] = "features"
    width = len(state["_bn1.weight"])
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            graph.nodes,
            f"efficientnet-lite{variant}",
            [onnx.helper.make_tensor_value_info("image", onnx.TensorProto.FLOAT, ["n", 3, "h", "w"])],
            [onnx.helper.make_tensor_value_info("features", onnx.TensorProto.FLOAT, ["n", width])],
            graph.weights,
        ),
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=8,  # what onnxruntime 1.18 reads
        producer_name="kinrank",
    )
    onnx.checker.check_model(model)
    return model


def _block(graph: Graph, x: str, name: str, stride: int) -> str:
    """Inverted bottleneck: expand, depthwise, project; added to its input where shapes agree."""
    before = x
    if f"{name}._expand_conv.weight" in graph.state:
        x = graph.conv(x, f"{name}._expand_conv", f"{name}._bn0")
    x = graph.conv(x, f"{name}._depthwise_conv", f"{name}._bn1", stride)
    x = graph.conv(x, f"{name}._project_conv", f"{name}._bn2", relu=False)
    project = graph.state[f"{name}._project_conv.weight"]
    first = f"{name}._expand_conv.weight"
    width_in = graph.state[first].shape[1] if first in graph.state else project.shape[1]
    return graph.add("Add", [x, before]) if stride == 1 and width_in == project.shape[0] else x


def _pool(graph: Graph, x: str, gem: float | None) -> str:
    if gem is None:
        return graph.add("GlobalAveragePool", [x])
    # Radenovic 2019: (mean max(x, eps)^p)^(1/p)
    x = graph.add("Clip", [x, graph.constant("eps", 1e-6)])
    power = graph.constant("power", gem)
    x = graph.add("GlobalAveragePool", [graph.add("Pow", [x, power])])
    return graph.add("Pow", [x, graph.constant("root", 1 / gem)])
