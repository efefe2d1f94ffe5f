"""Truncated columns of (I - alpha S)^-1, one a node: made in parts, stored, brought up to date exactly."""

from __future__ import annotations

import shutil
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kinrank.rerankers import state
from kinrank.rerankers.local_flow import local_flow
from kinrank.rerankers.manifold import GalleryMatrix, carried_rows
from kinrank.types import Array

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

CHUNK = 4096  # columns between two marks of progress; an interrupted fit resumes after the last


@dataclass(frozen=True, eq=False)
class Columns:
    """`nodes (N, n)` int32, rising, -1 where a flow reaches fewer; `flows (N, n)` float32."""

    nodes: Array
    flows: Array
    ids: Array
    revision: int
    matrix: csr_matrix  # the S they were made from

    def take(self, rows: Array) -> tuple[Array, Array]:
        """(nodes (q, n), flows (q, n)) of these columns."""
        return np.asarray(self.nodes[rows]), np.asarray(self.flows[rows])

    @classmethod
    def of(
        cls, source: GalleryMatrix, folder: Path | None, former: Columns | None, **parameters: Any
    ) -> Columns:
        """The columns at the revision of `source`: loaded, brought up to date, or made."""
        if folder is not None:
            former = _stored(folder) or former
        if former is not None and former.revision > source.graph.revision:
            former = None  # another gallery stands at this path
        if former is not None and _same(former, source):
            return former
        made = _make(source, folder, former, parameters)
        if folder is not None and _store(folder, made):
            return _stored(folder) or made
        return made


def column(matrix: csr_matrix, node: int, n: int, alpha: float, iterations: int, tolerance: float) -> Any:
    """(nodes, flow) of one column, nodes rising: where flow from `node` goes, and how much of it stays."""
    nodes, flow = local_flow(matrix, np.array([node]), np.ones(1), n, alpha, iterations, tolerance)
    order = np.argsort(nodes)
    return nodes[order], flow[order]


def _same(former: Columns, source: GalleryMatrix) -> bool:
    return (
        former.revision == source.graph.revision
        and np.array_equal(former.ids, source.graph.ids)
        and (former.matrix != source.matrix).nnz == 0
    )


def _make(source: GalleryMatrix, folder: Path | None, former: Columns | None, parameters: Any) -> Columns:
    matrix, size, n = source.matrix, len(source), min(parameters["n"], len(source))
    kept = np.full(size, -1, np.int64)  # the former column of each node whose column still holds
    renumbered = np.zeros(0, np.int32)
    if former is not None and former.nodes.shape[1] == n:
        kept, renumbered = _unchanged(former, source)
    nodes, flows, done = _tables(folder, source, n)
    with _progress(size) as bar:
        for number, start in enumerate(range(0, size, CHUNK)):
            rows = np.arange(start, min(start + CHUNK, size))
            if not done[number]:
                old = kept[rows] >= 0
                if former is not None and old.any():
                    nodes[rows[old]] = renumbered[former.nodes[kept[rows[old]]]]
                    flows[rows[old]] = former.flows[kept[rows[old]]]
                for row in rows[~old]:
                    part, flow = column(matrix, row, **parameters)
                    nodes[row, : len(part)], flows[row, : len(part)] = part, flow
                    bar.update(1)
                _mark(nodes, flows, done, number)
            bar.n = int(rows[-1]) + 1
            bar.refresh()
    return Columns(nodes, flows, source.graph.ids, source.graph.revision, matrix)


def _unchanged(former: Columns, source: GalleryMatrix) -> tuple[Array, Array]:
    """(former column of each node or -1, new row of each former row with -1 for -1).

    A column is made from the rows of S that it reaches, so it holds when none of those has changed.
    """
    ids = source.graph.ids
    added, _ = source.gallery.changes_since(former.revision)
    to_new, changed = carried_rows(former.matrix, former.ids, source.matrix, ids, added)
    survivors = np.flatnonzero(to_new[:-1] >= 0)
    stale = np.append(~np.isin(np.arange(len(former.ids)), survivors), False)  # the last answers for -1
    stale[survivors] |= changed[to_new[survivors]]
    kept = np.full(len(ids), -1, np.int64)
    for start in range(0, len(former.ids), CHUNK):
        part = np.asarray(former.nodes[start : start + CHUNK])
        holds = np.flatnonzero(~stale[part].any(1)) + start
        kept[to_new[holds]] = holds
    return kept, to_new


def _fingerprint(source: GalleryMatrix) -> int:
    matrix = source.matrix
    mark = zlib.crc32(np.ascontiguousarray(source.graph.ids).data)
    for array in (matrix.indptr, matrix.indices, matrix.data):
        mark = zlib.crc32(np.ascontiguousarray(array).data, mark)
    return mark


def _tables(folder: Path | None, source: GalleryMatrix, n: int) -> tuple[Array, Array, Array]:
    """(nodes, flows, which parts are done): mapped and resumed where there is a place, else in memory."""
    size = len(source)
    parts = np.zeros(-(-size // CHUNK), bool)
    if folder is not None:
        try:
            return _drafts(folder, source, (size, n), parts)
        except OSError:  # a read-only share, a full disk
            shutil.rmtree(_draft(folder, source), ignore_errors=True)
    return np.full((size, n), -1, np.int32), np.zeros((size, n), np.float32), parts


def _draft(folder: Path, source: GalleryMatrix) -> Path:
    return folder / f"draft-{_fingerprint(source):08x}"


def _drafts(
    folder: Path, source: GalleryMatrix, shape: tuple[int, int], parts: Array
) -> tuple[Array, Array, Array]:
    from numpy.lib.format import open_memmap

    draft = _draft(folder, source)
    for other in folder.glob("draft-*"):
        if other != draft:
            shutil.rmtree(other, ignore_errors=True)
    draft.mkdir(parents=True, exist_ok=True)
    if (draft / "done.npy").exists():
        kept = [np.load(draft / f"{name}.npy", mmap_mode="r+") for name in ("nodes", "flows")]
        done = np.load(draft / "done.npy")
        if all(table.shape == shape for table in kept) and done.shape == parts.shape:
            return kept[0], kept[1], done
    if shutil.disk_usage(draft).free < 8 * shape[0] * shape[1]:
        raise OSError("no room")  # a mapped file that outgrows its disk would end the process
    nodes = open_memmap(draft / "nodes.npy", "w+", np.int32, shape)
    flows = open_memmap(draft / "flows.npy", "w+", np.float32, shape)
    for start in range(0, shape[0], CHUNK):
        nodes[start : start + CHUNK] = -1
    return nodes, flows, parts


def _mark(nodes: Array, flows: Array, done: Array, number: int) -> None:
    done[number] = True
    if isinstance(nodes, np.memmap) and isinstance(flows, np.memmap):
        draft = Path(str(nodes.filename)).parent
        with suppress(OSError):  # another process may have finished the same state and tidied up
            nodes.flush()
            flows.flush()
            np.save(draft / "done.draft.npy", done)
            (draft / "done.draft.npy").replace(draft / "done.npy")


def _stored(folder: Path) -> Columns | None:
    from scipy.sparse import csr_matrix

    found = state.load(folder)
    if found is None:
        return None
    arrays, meta = found
    size = len(arrays["ids"])
    matrix = csr_matrix((arrays["data"], arrays["indices"], arrays["indptr"]), shape=(size, size))
    return Columns(arrays["nodes"], arrays["flows"], arrays["ids"], meta["revision"], matrix)


def _store(folder: Path, columns: Columns) -> bool:
    matrix = columns.matrix
    arrays = {"nodes": columns.nodes, "flows": columns.flows, "ids": columns.ids}
    arrays |= {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr}
    saved = state.save(folder, arrays, revision=columns.revision)
    if saved:
        for draft in folder.glob("draft-*"):
            shutil.rmtree(draft, ignore_errors=True)
    return saved


def _progress(total: int) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, desc="flows", unit=" items", delay=1, leave=False)
