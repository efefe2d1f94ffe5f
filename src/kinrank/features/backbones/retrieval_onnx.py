"""Writes the retrieval networks of cirtorch as ONNX: ResNet or VGG trunk, pooling, L2, whitening, L2.

The names of the tensors are those of the published checkpoints (Radenovic 2019): `features.` numbers the
children of torchvision's network, `pool.p` is GeM's power, `whiten.` the last layer. Depths and widths are
read from the tensors' shapes. No torch: the graph is written node by node, batch norms folded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from kinrank.errors import InputError, MissingExtraError
from kinrank.features.backbones.efficientnet_onnx import OPSET, Graph
from kinrank.types import Array

if TYPE_CHECKING:
    import onnx

_BN_EPSILON = 1e-5
_NORM_EPSILON = 1e-6  # of the L2 norms and of GeM
_VGG16_POOLS = (4, 9, 16, 23)  # children of `features` that halve the map; the last one is left out
POOLINGS = ("gem", "mac", "spoc")  # within the file; others are pooled from its maps


def retrieval_network(state: Mapping[str, Array], pooling: str = "gem") -> onnx.ModelProto:
    """The network `image (n, 3, h, w) -> features (n, d), maps (n, C, h', w')` of a state dict.

    With a pooling that is not in `POOLINGS` (R-MAC) the file gives the maps alone.
    """
    try:
        import onnx
        import onnx.checker
        import onnx.helper
    except ImportError:
        raise MissingExtraError("writing a network as ONNX", "offline") from None
    graph = Graph(dict(state))
    try:
        maps = _resnet(graph) if "features.4.0.conv1.weight" in state else _vgg(graph)
        outputs: list[tuple[str, str, list[int | str]]] = [("maps", maps, [_channels(state), "h2", "w2"])]
        if pooling in POOLINGS:
            outputs.insert(0, ("features", _described(graph, maps, pooling), [_width(state)]))
    except KeyError as error:
        raise InputError(
            f"the weights are those of no ResNet or VGG16 in cirtorch's layout: no {error}"
        ) from None
    for name, inner, _ in outputs:
        graph.nodes.append(graph.make("Identity", [inner], [name], name))
    value, kind = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            graph.nodes,
            "retrieval",
            [value("image", kind, ["n", 3, "h", "w"])],
            [value(name, kind, ["n", *shape]) for name, _, shape in outputs],
            graph.weights,
        ),
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=8,
        producer_name="kinrank",
    )
    onnx.checker.check_model(model)
    return model


def _channels(state: Mapping[str, Array]) -> int:
    """Channels of the trunk's maps."""
    if "features.4.0.conv1.weight" in state:
        last = max(int(name.split(".")[2]) for name in state if name.startswith("features.7."))
        return len(state[f"features.7.{last}.conv3.weight"])
    return len(state["features.28.weight"])


def _width(state: Mapping[str, Array]) -> int:
    return len(state["whiten.weight"]) if "whiten.weight" in state else _channels(state)


def _conv(graph: Graph, x: str, conv: str, norm: str | None, stride: int, relu: bool = True) -> str:
    """A convolution padded to keep the size, its batch norm folded in: w * g / s, b - m * g / s."""
    weight = graph.state[f"{conv}.weight"].astype(np.float64)  # (out, in, k, k)
    if norm is None:
        bias = graph.state[f"{conv}.bias"]
    else:
        gain, shift, mean, variance = (
            graph.state[f"{norm}.{part}"].astype(np.float64)
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        factor = gain / np.sqrt(variance + _BN_EPSILON)
        weight, bias = weight * factor[:, None, None, None], shift - mean * factor
    inputs = [x, graph.constant(f"{conv}.weight", weight), graph.constant(f"{conv}.bias", bias)]
    pads = [weight.shape[2] // 2] * 4
    x = graph.add("Conv", inputs, kernel_shape=weight.shape[2:], strides=[stride, stride], pads=pads)
    return graph.add("Relu", [x]) if relu else x


def _resnet(graph: Graph) -> str:
    """Stem and four stages of bottlenecks; a stage but the first halves the map in its first 3 x 3."""
    x = _conv(graph, "image", "features.0", "features.1", 2)
    x = graph.add("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for stage in range(4, 8):
        blocks = {int(k.split(".")[2]) for k in graph.state if k.startswith(f"features.{stage}.")}
        for block in range(max(blocks) + 1):
            x = _bottleneck(graph, x, f"features.{stage}.{block}", 2 if stage > 4 and block == 0 else 1)
    return x


def _bottleneck(graph: Graph, x: str, name: str, stride: int) -> str:
    """1 x 1, 3 x 3, 1 x 1, added to the input (or its projection) before the last ReLU."""
    inner = _conv(graph, x, f"{name}.conv1", f"{name}.bn1", 1)
    inner = _conv(graph, inner, f"{name}.conv2", f"{name}.bn2", stride)
    inner = _conv(graph, inner, f"{name}.conv3", f"{name}.bn3", 1, relu=False)
    if f"{name}.downsample.0.weight" in graph.state:
        x = _conv(graph, x, f"{name}.downsample.0", f"{name}.downsample.1", stride, relu=False)
    return graph.add("Relu", [graph.add("Add", [inner, x])])


def _vgg(graph: Graph) -> str:
    """Thirteen 3 x 3 convolutions with four halvings between."""
    x = "image"
    for child in range(30):
        if child in _VGG16_POOLS:
            x = graph.add("MaxPool", [x], kernel_shape=[2, 2], strides=[2, 2])
        elif f"features.{child}.weight" in graph.state:
            x = _conv(graph, x, f"features.{child}", None, 1)
        elif child in (0, 28):
            raise KeyError(f"features.{child}.weight")
    return x


def _described(graph: Graph, maps: str, pooling: str) -> str:
    """Pooled, of unit length, and whitened where the checkpoint has the layer."""
    if pooling == "gem":
        power = float(np.ravel(graph.state["pool.p"])[0]) if "pool.p" in graph.state else 3.0
        x = graph.add("Clip", [maps, graph.constant("gem.eps", _NORM_EPSILON)])
        x = graph.add("Pow", [x, graph.constant("gem.p", power)])
        x = graph.add("GlobalAveragePool", [x])
        x = graph.add("Pow", [x, graph.constant("gem.root", 1 / power)])
    else:
        x = graph.add("GlobalMaxPool" if pooling == "mac" else "GlobalAveragePool", [maps])
    x = _unit(graph, graph.add("Flatten", [x]), "pooled.eps")
    if "whiten.weight" in graph.state:
        layer = [
            graph.constant(f"whiten.{part}", graph.state[f"whiten.{part}"]) for part in ("weight", "bias")
        ]
        x = _unit(graph, graph.add("Gemm", [x, *layer], transB=1), "whitened.eps")
    return x


def _unit(graph: Graph, x: str, epsilon: str) -> str:
    length = graph.add("ReduceL2", [x], axes=[1], keepdims=1)
    return graph.add("Div", [x, graph.add("Add", [length, graph.constant(epsilon, _NORM_EPSILON)])])
