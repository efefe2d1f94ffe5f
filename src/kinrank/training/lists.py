"""Training lists from vectors and labels: neighbours found once and kept on disk, tables made per batch.

On disk lie the unit vectors (N, d) and the neighbour rows (N, K), both memory-mapped; a batch of lists
is gathered, changed (projection, noise, fewer classes, fewer positives) and multiplied on the device.
Several feature kinds of the same images are several sets, each ranked in its own feature.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from zipfile import is_zipfile

import numpy as np
import torch
import torch.nn.functional as F
from tqdm import tqdm

from kinrank.errors import InputError
from kinrank.training.batch import ListBatch
from kinrank.training.config import Data
from kinrank.types import Array, unit_rows

BLOCK = 4096  # rows that are normalised or searched at once
RESIDENT_BYTES = 16 << 30  # vectors up to this size stay on the accelerator


@dataclass(frozen=True)
class Labelled:
    """A labelled set as it came: `vectors (N, d)` of any float type, `labels (N,)` of any type."""

    name: str
    vectors: Array
    labels: Array


def read_labelled(path: str | Path) -> Labelled:
    """An `.npz` with `vectors` and `labels`, refused before any work where it cannot train."""
    path = Path(path)
    if path.is_dir() or (path.exists() and not is_zipfile(path)):
        raise InputError(
            f"'{path}' is no .npz; cure: training reads .npz files with vectors (N, d) and labels (N,)"
        )
    try:
        with np.load(path, allow_pickle=False) as file:
            missing = {"vectors", "labels"} - set(file.files)
            if missing:
                raise InputError(f"'{path}' has no {' and no '.join(sorted(missing))}; it has {file.files}")
            found = Labelled(path.stem, file["vectors"], file["labels"])
    except (ValueError, OSError) as error:
        if isinstance(error, InputError | FileNotFoundError):
            raise
        raise InputError(f"'{path}' cannot be read as .npz: {error}") from None
    check_labelled(found)
    return found


def check_labelled(data: Labelled) -> None:
    """Refuse what cannot teach: shapes that do not fit, NaN, zero rows, one label, no label twice."""
    vectors, labels = data.vectors, data.labels
    if vectors.ndim != 2 or labels.ndim != 1 or len(vectors) != len(labels):
        raise InputError(
            f"{data.name}: vectors must be (N, d) and labels (N,), got {vectors.shape} and {labels.shape}"
        )
    if len(vectors) == 0:
        raise InputError(f"{data.name} is empty")
    for start in range(0, len(vectors), BLOCK):
        rows = np.arange(start, min(start + BLOCK, len(vectors)))
        unit_rows(vectors[start : start + BLOCK], f"{data.name}: vectors", rows)
    _, counts = np.unique(labels, return_counts=True)
    if len(counts) == 1:
        raise InputError(
            f"{data.name} has one label only, so nothing is irrelevant; "
            "cure: add images of other classes, or look whether the labels were read right"
        )
    if counts.max() == 1:
        raise InputError(
            f"{data.name}: no label occurs twice, so nothing is relevant; cure: label by object, not by image"
        )


def digest(data: Labelled) -> str:
    """A name for the content: the same vectors and labels give the same."""
    hasher = hashlib.blake2b(digest_size=8)
    for array in (data.vectors, data.labels):
        hasher.update(str((array.shape, array.dtype.str)).encode())
        hasher.update(np.ascontiguousarray(array).data)
    return hasher.hexdigest()


def prepare(data: Labelled, k: int, folder: str | Path, quiet: bool = False) -> Path:
    """Unit vectors, labels and the k nearest of each row on disk; found there again the next time."""
    if k > len(data.vectors) - 1:
        raise InputError(
            f"{data.name} has {len(data.vectors)} images, too few for lists of K={k}; "
            f"cure: a recipe with data.k of at most {len(data.vectors) - 1}, or -k"
        )
    home = Path(folder) / f"{data.name}-{digest(data)}-{k}"
    home.mkdir(parents=True, exist_ok=True)
    if (home / "done.json").is_file():
        return home
    n, d = data.vectors.shape
    kept = np.float16 if data.vectors.dtype == np.float16 else np.float32
    vectors = np.lib.format.open_memmap(home / "vectors.npy", "w+", kept, (n, d))
    for rows in _blocks(n):
        vectors[rows] = unit_rows(data.vectors[rows], data.name)
    vectors.flush()
    np.save(home / "labels.npy", np.unique(data.labels, return_inverse=True)[1].astype(np.int32))
    neighbours = np.lib.format.open_memmap(home / "neighbours.npy", "w+", np.int32, (n, k))
    bar = tqdm(total=n, desc=f"lists of {data.name}", unit="img", disable=quiet or None)
    for rows, found in _nearest(vectors, k):
        neighbours[rows] = found
        bar.update(len(found))
    bar.close()
    neighbours.flush()
    partial = home / "done.part"
    partial.write_text(json.dumps({"images": n, "dims": d, "k": k}), encoding="utf-8")
    os.replace(partial, home / "done.json")
    return home


def _blocks(n: int) -> Iterator[slice]:
    return (slice(start, min(start + BLOCK, n)) for start in range(0, n, BLOCK))


def _nearest(vectors: Array, k: int) -> Iterator[tuple[slice, Array]]:
    """Rows of the k nearest others, by cosine, a block of queries at a time."""
    import faiss

    n, d = vectors.shape
    index: faiss.Index
    if n <= 200_000:
        index = faiss.IndexFlatIP(d)
    else:  # an inverted file; 1/16 of the cells are searched
        cells = int(4 * n**0.5)
        index = faiss.IndexIVFFlat(faiss.IndexFlatIP(d), d, cells, faiss.METRIC_INNER_PRODUCT)
        index.nprobe = max(16, cells // 16)
        sample = np.sort(np.random.default_rng(0).choice(n, min(n, 40 * cells), replace=False))
        index.train(vectors[sample].astype(np.float32))
    for rows in _blocks(n):
        index.add(vectors[rows].astype(np.float32))
    for rows in _blocks(n):
        found = index.search(vectors[rows].astype(np.float32), k + 1)[1]
        own = np.arange(rows.start, rows.stop)[:, None]
        # The image itself goes; where it was not found (equal vectors push it out) the last one goes.
        others = found != own
        others[others.all(axis=1), -1] = False
        found = found[others].reshape(len(found), k)
        if (found < 0).any():
            raise InputError(f"the index found fewer than {k} neighbours of a row; cure: a smaller data.k")
        yield rows, found


class ListSet:
    """Ranked lists of one feature kind, drawn at random and made on the device."""

    def __init__(
        self, home: Path, data: Data, queries: Array | None = None, name: str = "", with_vectors: bool = False
    ) -> None:
        self.home, self.data, self.with_vectors = home, data, with_vectors
        self.name = name or home.name
        self.vectors: Array = np.load(home / "vectors.npy", mmap_mode="r")
        self.neighbours: Array = np.load(home / "neighbours.npy", mmap_mode="r")
        self.labels = torch.from_numpy(np.load(home / "labels.npy").astype(np.int64))
        counts = torch.bincount(self.labels)
        self.queries = torch.from_numpy(np.arange(len(self.labels)) if queries is None else queries)
        self.queries = self.queries[counts[self.labels[self.queries]] > 1]  # alone: nothing to find
        if len(self.queries) == 0:
            raise InputError(f"{self.name}: no image has another one of its label, so there is no query")
        self._resident: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.queries)

    def sample(
        self, batch_size: int, generator: torch.Generator, device: torch.device, number: int = 0
    ) -> ListBatch:
        """Lists of queries drawn at random, none twice while there are enough."""
        if batch_size <= len(self.queries):
            drawn = torch.rand(len(self.queries), generator=generator, device=generator.device)
            picked = drawn.topk(batch_size).indices.cpu()
        else:
            picked = torch.randint(
                len(self.queries), (batch_size,), generator=generator, device=generator.device
            ).cpu()
        return self.lists(self.queries[picked], generator, device)

    def lists(self, queries: torch.Tensor, generator: torch.Generator, device: torch.device) -> ListBatch:
        """The lists of these rows (B,), with the changes that the recipe draws."""
        data = self.data
        k = min(log_uniform(data.k, generator), self.neighbours.shape[1])
        reorders = data.classes[0] < 1 or data.positives or data.dims or data.noise[1] > 0
        reach = self.neighbours.shape[1] if reorders else k
        near = torch.from_numpy(np.ascontiguousarray(self.neighbours[queries.numpy(), :reach])).long()
        rows = torch.cat([queries[:, None], near], dim=1)  # (B, 1 + reach)
        relevant = (self.labels[near] == self.labels[queries][:, None]).to(device)
        vectors = self._gather(rows, device)
        kept = torch.ones_like(relevant)
        if reorders:
            kept = self._kept(near, relevant, generator).to(device)
            vectors = _disturbed(vectors, data, generator)
            vectors, relevant, kept = _ranked_again(vectors, relevant, kept, k)
        mask = F.pad(kept, (1, 0), value=True)
        vectors = vectors * mask[:, :, None]
        similarities = vectors @ vectors.transpose(1, 2)
        if data.anchors:
            similarities[:, :, log_uniform(data.anchors, generator) :] = 0
        return ListBatch(similarities, relevant & kept, mask, vectors if self.with_vectors else None)

    def _gather(self, rows: torch.Tensor, device: torch.device) -> torch.Tensor:
        if device.type != "cpu" and self.vectors.nbytes <= RESIDENT_BYTES:
            if self._resident is None or self._resident.device != device:
                self._resident = torch.from_numpy(np.array(self.vectors)).to(device)
            return self._resident[rows.to(device)].float()
        b, n = rows.shape
        flat = np.asarray(self.vectors[rows.flatten().numpy()]).reshape(b, n, -1)
        return torch.from_numpy(flat).to(device).float()

    def _kept(self, near: torch.Tensor, relevant: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Candidates (B, reach) that stay: those of the classes that take part, and so many positives."""
        data, place = self.data, generator.device
        relevant = relevant.to(place)
        kept = torch.ones_like(relevant)
        if data.classes[0] < 1:
            low, high = data.classes
            share = low + (high - low) * torch.rand(1, generator=generator, device=place)
            draws = torch.rand(int(self.labels.max()) + 1, generator=generator, device=place)
            kept = (draws < share)[self.labels.to(place)[near.to(place)]] | relevant
        if data.positives:
            most = log_uniform(data.positives, generator)
            keys = torch.rand(relevant.shape, generator=generator, device=place).masked_fill(~relevant, 2)
            kept &= ~relevant | (keys.argsort(dim=1).argsort(dim=1) < most)
        return kept


def log_uniform(bounds: tuple[int, int], generator: torch.Generator) -> int:
    """A whole number between the bounds, evenly on a logarithmic scale."""
    low, high = bounds
    if low == high:
        return low
    draw = torch.rand(1, generator=generator, device=generator.device).item()
    return min(high, int(low * ((high + 1) / low) ** draw))


def _disturbed(vectors: torch.Tensor, data: Data, generator: torch.Generator) -> torch.Tensor:
    """Projected at random to fewer dimensions and noised, as the recipe draws; of unit length."""
    place = generator.device
    if data.dims:
        shape = (vectors.shape[2], min(log_uniform(data.dims, generator), vectors.shape[2]))
        matrix = torch.randn(shape, generator=generator, device=place)
        vectors = F.normalize(vectors @ matrix.to(vectors.device), dim=-1)
    if data.noise[1] > 0:
        low, high = data.noise
        level = (low + (high - low) * torch.rand(1, generator=generator, device=place)).to(vectors.device)
        noise = torch.randn(vectors.shape, generator=generator, device=place).to(vectors.device)
        vectors = F.normalize(vectors + level * noise / vectors.shape[2] ** 0.5, dim=-1)
    return vectors


def _ranked_again(
    vectors: torch.Tensor, relevant: torch.Tensor, kept: torch.Tensor, k: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The first k of the kept candidates, by their similarity to the query as it is now."""
    scores = torch.einsum("bd,bkd->bk", vectors[:, 0], vectors[:, 1:]).masked_fill(~kept, -torch.inf)
    order = scores.topk(min(k, scores.shape[1]), dim=1).indices
    rows = F.pad(order + 1, (1, 0))  # the query stays first
    vectors = vectors.gather(1, rows[:, :, None].expand(-1, -1, vectors.shape[2]))
    return vectors, relevant.gather(1, order), kept.gather(1, order)
