"""CSA, one query from candidate vectors to order: ours beside the published architecture in eager PyTorch.

The published form is written here from the paper (K = 1024, L = 512, d = 2048, two layers, 768 = 12 x 64),
in float32, as anyone would run it. Ours are the same sizes through the core's runtime, and the shipped model.

    kinrank bench csa [--full] [--json]
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from tqdm import tqdm

from kinrank.device import onnx_session, threads
from kinrank.errors import MissingExtraError
from kinrank.evaluation.memory import watched
from kinrank.rerankers.base import Reranker
from kinrank.spec import reranker
from kinrank.types import Array, Candidates, Ranking, stable_order, unit_rows

ROUNDS = 15
PAPER = {"anchors": 512, "width": 768, "layers": 2, "heads": 12}
LENGTHS = (128, 256, 384, 512, 768, 1024, 1280, 1536)


def run(full: bool = False) -> dict[str, Any]:
    """The published size side by side, the shipped model over K, batches; `full`: the published over K, L."""
    results: dict[str, Any] = {"threads": threads()}
    results["one query, K = 1024, L = 512, d = 2048"] = side_by_side()
    results["shipped model over K, d = 512"] = shipped_over_k()
    results["many queries, shipped model, d = 512"] = batches()
    if full:
        results["published size over K (L = 512)"] = published_over([(k, 512) for k in LENGTHS])
        results["published size over L (K = 1024)"] = published_over([(1024, n) for n in (64, 128, 256, 512)])
    return results


def clustered_list(k: int, d: int, seed: int = 0) -> Candidates:
    """A list as a search gives it: neighbours of a query in a space of overlapping clusters."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(20, d))
    rows = centres[rng.integers(20, size=k)] + 1.5 * rng.normal(size=(k, d))
    return Candidates.from_vectors(centres[0] + rng.normal(size=d), unit_rows(rows))


def times(cases: dict[str, Callable[[], Any]], rounds: int = ROUNDS) -> dict[str, float]:
    """Median milliseconds of each case, the cases taking turns so that noise falls on all."""
    taken: dict[str, list[float]] = {name: [] for name in cases}
    for round_ in tqdm(range(rounds + 2), leave=False, unit="round"):
        for name, case in cases.items():
            time.sleep(0.1)  # threads of the case before still spin, and would be charged to this one
            start = time.perf_counter()
            case()
            if round_ >= 2:  # the first rounds warm up
                taken[name].append((time.perf_counter() - start) * 1000)
    return {name: median(values) for name, values in taken.items()}


def side_by_side() -> list[dict[str, Any]]:
    """Latency and order against eager PyTorch of the published architecture."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError("the published form in PyTorch", "train") from None
    torch.set_num_threads(threads())
    candidates = clustered_list(1024, 2048)
    eager = Published(**PAPER).eval()
    nodes = torch.from_numpy(np.concatenate([candidates.query[None], candidates.vectors]))

    def published() -> Array:
        with torch.no_grad():
            scores: Array = eager(nodes).numpy()
        return scores

    shipped = reranker("csa")
    with tempfile.TemporaryDirectory() as folder:
        graphs = {name: onnx_session(path) for name, path in _graphs(eager, Path(folder)).items()}
        cases: dict[str, Callable[[], Array]] = {"published, eager PyTorch fp32": published}
        for name, session in graphs.items():
            cases[f"published, ONNX {name}"] = partial(_through, session, candidates)
        cases["shipped csa"] = lambda: shipped.score(candidates)
        taken = times(cases)
    base = taken["published, eager PyTorch fp32"]
    reference = published()
    return [
        {
            "case": name,
            "ms": ms,
            "times as fast": base / ms,
            "Kendall tau": _tau(reference, cases[name]()) if "published" in name else None,
        }
        for name, ms in taken.items()
    ]


def shipped_over_k(d: int = 512) -> list[dict[str, Any]]:
    """Latency and memory of the shipped model over the length of the list."""
    method = reranker("csa")
    lists = {f"K = {k}": clustered_list(k, d) for k in (32, 100, *LENGTHS)}
    taken = times({name: partial(method.rerank, c) for name, c in lists.items()})
    rows = []
    for name, candidates in lists.items():
        with watched() as memory:
            method.rerank(candidates)
        rows.append({"list": name, "ms": taken[name], "peak MB": memory.mb})
    return rows


def batches(count: int = 32) -> list[dict[str, Any]]:
    """Queries a second, one at a time and through `rerank_many`."""
    method = reranker("csa")
    rows = []
    for k in (100, 256, 1024):
        lists = [clustered_list(k, 512, seed) for seed in range(count)]
        cases: dict[str, Callable[[], Any]] = {
            "one": partial(_one_by_one, method, lists),
            "many": partial(method.rerank_many, lists),
        }
        taken = times(cases, 5)
        speed = {name: count * 1000 / ms for name, ms in taken.items()}
        rows.append(
            {"K": k, "one at a time /s": speed["one"], "rerank_many /s": speed["many"],
             "ratio": speed["many"] / speed["one"]}
        )  # fmt: skip
    return rows


def published_over(sizes: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """The published size over K and L: eager PyTorch beside ONNX, milliseconds."""
    return [_published_at(k, anchors) for k, anchors in sizes]


def _published_at(k: int, anchors: int) -> dict[str, Any]:
    import torch

    candidates = clustered_list(k, 2048)
    eager = Published(**{**PAPER, "anchors": anchors}).eval()
    nodes = torch.from_numpy(np.concatenate([candidates.query[None], candidates.vectors]))
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        session = onnx_session(_graphs(eager, Path(folder))["fp32"])
        cases: dict[str, Callable[[], Any]] = {
            "eager": lambda: eager(nodes),
            "onnx": partial(_through, session, candidates, anchors),
        }
        taken = times(cases, 5)
    return {"K": k, "L": anchors, "eager ms": taken["eager"], "ONNX fp32 ms": taken["onnx"]}


def _one_by_one(method: Reranker, lists: list[Candidates]) -> list[Ranking]:
    return [method.rerank(c) for c in lists]


def _through(session: Any, candidates: Candidates, anchors: int = 512) -> Array:
    scores: Array = session.run(None, {"affinity": _affinity(candidates, anchors)})[0]
    return scores


def _affinity(candidates: Candidates, anchors: int) -> Array:
    """(1 + K, L), zero-padded where the list is shorter than L."""
    nodes = np.concatenate([candidates.query[None], candidates.vectors])
    table = nodes @ nodes[:anchors].T
    return np.pad(table, ((0, 0), (0, anchors - table.shape[1])))


def _tau(one: Array, other: Array) -> float:
    from scipy.stats import kendalltau

    return float(kendalltau(stable_order(one).argsort(), stable_order(other).argsort()).statistic)


def _graphs(model: Any, folder: Path) -> dict[str, Path]:
    """The encoder as ONNX, in float32 and with int8 weights."""
    import warnings

    import torch
    from onnxruntime.quantization import QuantType, quantize_dynamic

    paths = {"fp32": folder / "fp32.onnx", "int8": folder / "int8.onnx"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model.encoder, (torch.zeros(9, model.anchors),), str(paths["fp32"]), input_names=["affinity"],
            output_names=["scores"], dynamic_axes={"affinity": {0: "items"}, "scores": {0: "candidates"}},
            opset_version=18, dynamo=False,
        )  # fmt: skip
        quantize_dynamic(paths["fp32"], paths["int8"], weight_type=QuantType.QInt8, per_channel=True)
    return paths


def Published(anchors: int, width: int, layers: int, heads: int) -> Any:
    """The paper's architecture from its equations 2 to 7; random weights, since none were released."""
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inputs, self.outputs = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.inputs(x).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            x = x + self.norm_1(self.outputs(mixed))
            return x + self.norm_2(self.feed(x))

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(anchors, width)
            self.layers = nn.ModuleList(Layer() for _ in range(layers))

        def forward(self, affinity: torch.Tensor) -> torch.Tensor:
            x = self.project(affinity)[None]
            for layer in self.layers:
                x = layer(x)
            y = nn.functional.normalize(x[0], dim=-1)
            return y[1:] @ y[0]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.anchors, self.encoder = anchors, Encoder()

        def forward(self, nodes: torch.Tensor) -> torch.Tensor:
            affinity = nodes @ nodes[: self.anchors].T
            padded = nn.functional.pad(affinity, (0, self.anchors - affinity.shape[1]))
            scores: torch.Tensor = self.encoder(padded)
            return scores

    torch.manual_seed(0)
    return Model()
