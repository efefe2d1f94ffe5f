"""What the trained methods share: a model's folder, opened when it is first asked, and lists through it."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kinrank.device import one_blas_thread, serves_by_torch, threads, torch_device
from kinrank.errors import InputError, SpecError
from kinrank.registry import load, registry, unknown
from kinrank.rerankers.base import Reranker, falling, with_tail
from kinrank.types import Array, Candidates, Ranking, stable_order

if TYPE_CHECKING:
    import onnxruntime

# Similarities in one call of the graph. A CPU is fastest while they stay in its cache, a GPU when it is full.
CPU_BATCH = 1_000_000
GPU_BATCH = 16_000_000


def model_folder(model: str, method: str, spec: str | None = None) -> Path:
    """The folder of a model that is named in `kinrank.models` or given as a path.

    `method` is what it was trained for, `spec` the name of the method that asks.
    """
    spec = spec or method
    if model in registry("models"):
        return Path(load("models", model).folder)
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    shipped = registry("models")
    if model == method:
        recipe = "universal" if method == "csa" else method
        raise InputError(
            f"{spec} has no shipped model; cure: train one with "
            f"'kinrank train DATASET.npz -o MODEL --recipe {recipe}' and use {spec}:model=MODEL"
        )
    raise InputError(
        f"{unknown('model', model, shipped)}, and no folder has that name; "
        f"cure: {spec}:model=FOLDER with what 'kinrank train' wrote"
    )


LARGE = 4_000_000  # weights from which a call of the graph is worth several threads

_opening = threading.Lock()


@lru_cache(maxsize=8)
def _opened(path: Path, written: int, device: str, workers: int) -> onnxruntime.InferenceSession:
    """One session for all that ask for the same file: opening it takes longer than many lists."""
    from kinrank.device import onnx_session

    return onnx_session(path, device, workers)


class LearnedModel:
    """The ONNX graph of a folder; nothing is read before the first use, and threads may share it."""

    def __init__(self, model: str, method: str, device: str = "auto", spec: str | None = None) -> None:
        self.model, self.method, self.device, self.spec = model, method, device, spec or method

    def __getstate__(self) -> dict[str, Any]:
        return {"model": self.model, "method": self.method, "device": self.device, "spec": self.spec}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @cached_property
    def folder(self) -> Path:
        """Where the model is; complains when it is nowhere."""
        return model_folder(self.model, self.method, self.spec)

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

    @cached_property
    def digest(self) -> str:
        """A name for the graph's content: what was computed with another graph is not this one's."""
        return hashlib.sha256((self.folder / "model.onnx").read_bytes()).hexdigest()[:12]

    def session(self, workers: int | None = None) -> onnxruntime.InferenceSession:
        """The session with so many threads to a call; None: one for a small graph, all for a large one.

        The steps of a small graph are too short to share: measured on two cores, a second thread gains
        nothing at any K and waits for its turn when the machine has other work.
        """
        if workers is None and self.config.get("parameters", LARGE) < LARGE:
            workers = 1
        path = self.folder / "model.onnx"
        if not path.is_file():
            raise InputError(f"'{self.folder}' holds no model.onnx; cure: finish the training")
        with _opening:
            return _opened(path, path.stat().st_mtime_ns, self.device, workers or threads())

    @cached_property
    def on_torch(self) -> Any:
        """The model on a GPU by torch, where ONNX Runtime has no CUDA and torch does; None otherwise."""
        if self.device != "cuda" or not serves_by_torch():
            return None
        serve = import_module("kinrank.training.serve")  # the room with torch; by name, as registries do
        return serve.TorchLists.open(self.folder, torch_device("cuda"))

    def run(self, workers: int | None = None, **inputs: Array) -> Array:
        """The graph's first output for named inputs."""
        output: Array = self.session(workers).run(None, inputs)[0]
        return output


class SimilarityModel(Reranker):
    """A trained graph from the similarities of a list to its scores; the methods name themselves."""

    needs_vectors = False

    def __init__(self, model: str, method: str, limit: int, device: str) -> None:
        if limit < 2:
            raise SpecError(f"limit must be at least 2 candidates, got {limit}")
        self.learned = LearnedModel(model, method, device)
        self.limit = limit  # beyond it the head is re-ranked and the tail kept

    def similarities(self, candidates: Candidates) -> Array:
        """What the graph reads of a list: (1+K, 1+K), or its first columns where the model needs no more."""
        columns = self.learned.config.get("columns")
        if columns is None or columns > len(candidates) or not candidates.has_vectors:
            table = candidates.affinity()
            return table if columns is None else table[:, :columns]
        nodes = np.concatenate([candidates.query[None], candidates.vectors])
        return nodes @ nodes[:columns].T

    def score(self, candidates: Candidates) -> Array:
        """The graph's scores; a list of one stays as it is."""
        if len(candidates) == 1:
            return candidates.scores
        return self._run([candidates])[0]

    def relist(self, candidates: Candidates) -> Candidates:
        """The head in its new order; what lies beyond the limit follows as it was."""
        if len(candidates) <= self.limit:
            return super().relist(candidates)
        head = candidates.head(self.limit)
        scores = falling(head, self.score(head))
        order = stable_order(scores)
        whole = _ranking(head, scores, candidates)
        return candidates.take(np.concatenate([order, np.arange(self.limit, len(candidates))]), whole.scores)

    def rerank_many(self, lists: Iterable[Candidates]) -> list[Ranking]:
        """Lists of one length share a call of the graph, and each core of a CPU has calls of its own."""
        lists = list(lists)
        by_length: dict[int, list[int]] = defaultdict(list)
        for position, candidates in enumerate(lists):
            self.check(candidates)
            by_length[min(len(candidates), self.limit)].append(position)
        on_gpu = bool(lists) and self._on_gpu()
        workers = 1 if on_gpu else max(1, min(threads(), len(lists)))
        parts: list[list[int]] = []
        for length, positions in by_length.items():
            most = max(1, (GPU_BATCH if on_gpu else CPU_BATCH) // (length + 1) ** 2)
            step = min(most, -(-len(positions) // workers))
            parts += [positions[start : start + step] for start in range(0, len(positions), step)]

        def answers(part: list[int]) -> list[Ranking]:
            heads = [lists[p].head(self.limit) for p in part]
            alone = len(heads[0]) == 1
            rows = [c.scores for c in heads] if alone else self._run(heads, 1 if workers > 1 else None)
            return [_ranking(head, row, lists[p]) for p, head, row in zip(part, heads, rows)]

        if workers == 1:
            found = [answers(part) for part in parts]
        else:
            with one_blas_thread(), ThreadPoolExecutor(workers) as pool:
                found = list(pool.map(answers, parts))
        placed = {p: ranking for part, some in zip(parts, found) for p, ranking in zip(part, some)}
        return [placed[p] for p in range(len(lists))]

    def _on_gpu(self) -> bool:
        return (
            self.learned.on_torch is not None
            or self.learned.session().get_providers()[0] != "CPUExecutionProvider"
        )

    def _run(self, lists: list[Candidates], workers: int | None = None) -> Array:
        """Scores (B, K) of lists of one length."""
        if self.learned.on_torch is not None:
            return self._on_torch(lists)
        tables = [self.similarities(c) for c in lists]
        stacked = np.stack(tables) if len(tables) > 1 else tables[0][None]
        return self.learned.run(workers, similarities=stacked)

    def _on_torch(self, lists: list[Candidates]) -> Array:
        vectors = all(c.has_vectors for c in lists)
        if vectors:
            inputs = np.stack([np.concatenate([c.query[None], c.vectors]) for c in lists])
        else:
            inputs = np.stack([self.similarities(c) for c in lists])
        scores: Array = self.learned.on_torch.scores(inputs, vectors, self.learned.config.get("columns"))
        return scores


def _ranking(head: Candidates, scores: Array, candidates: Candidates) -> Ranking:
    scores = falling(head, scores)
    order = stable_order(scores)
    return with_tail(Ranking(head.ids[order], scores[order]), candidates)
