"""A folder of pictures into a gallery: decoding runs beside embedding, and finished work is skipped.

Decoders (threads; Pillow lets go of the interpreter lock) fill a bounded queue, this thread embeds batch
after batch, and each batch is one commit: an interruption costs at most one batch. What is done is known by
content: the gallery keeps each file's path, size, time and hash. A file whose size and time are as before is
skipped unread, one whose hash is known is not embedded again, a replaced file is.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from kinrank.device import threads
from kinrank.errors import InputError
from kinrank.features.images import MAX_PIXELS, Failure, UnreadableImage, read_image, walk
from kinrank.types import Array

if TYPE_CHECKING:
    from kinrank.gallery.gallery import Gallery

_PAGE = 10_000  # metadata read at a time


class Embedder(Protocol):
    """What is asked of a backbone here."""

    @property
    def identity(self) -> str:
        """What a gallery remembers."""
        ...

    @property
    def preprocess(self) -> Any:
        """RGB picture -> the network's input."""
        ...

    def embed(self, inputs: Array) -> Array:
        """Vectors (n, d)."""
        ...


@dataclass
class Report:
    """What became of a folder."""

    found: int = 0
    embedded: int = 0  # new pictures
    replaced: int = 0  # of these, under an id that held another picture
    copied: int = 0  # content that was embedded under another id
    unchanged: int = 0
    vanished: list[str] = field(default_factory=list)  # ids of this folder without a file
    pruned: int = 0
    failed: list[Failure] = field(default_factory=list)
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**vars(self), "failed": [vars(failure) for failure in self.failed]}


@dataclass(frozen=True)
class _Known:
    """What the gallery holds of a file."""

    path: str
    size: int
    mtime_ns: int
    hash: str


@dataclass
class _Job:
    """One picture on its way: `input` when it must be embedded, otherwise its content is known."""

    id: str
    entry: dict[str, Any]
    input: Array | None = None
    replaces: bool = False


def index_folder(
    folder: str | os.PathLike[str],
    gallery: Gallery,
    backbone: Embedder,
    *,
    batch: int = 32,
    prune: bool = False,
    workers: int | None = None,
    max_pixels: int = MAX_PIXELS,
    begin: Callable[[int], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Bring the gallery to what the folder holds; ids are paths relative to the folder, with `/`.

    `begin(total)` is called when the files are counted, `progress(n)` after each commit with the number of
    pictures that came to an end. Files that vanished stay in the gallery unless `prune`.
    """
    if batch < 1:
        raise InputError(f"batch must be at least 1, got {batch}")
    start = time.perf_counter()
    gallery.require_backbone(backbone.identity)
    report = Report()
    names = list(walk(folder, report.failed.append))
    report.found = len(names)
    if begin is not None:
        begin(len(names))
    work = _Folder(os.path.abspath(folder), gallery, backbone, report, max_pixels)
    with closing(work.jobs(names, workers or threads(), 2 * batch)) as jobs:
        for group in _batches(jobs, batch):
            work.commit([job for job in group if job is not None])
            if progress is not None:
                progress(len(group))
    _settle_vanished(work, names, prune)
    report.seconds = time.perf_counter() - start
    return report


def content_hash(raw: bytes) -> str:
    """What tells one file's content from another's."""
    return hashlib.blake2b(raw, digest_size=16).hexdigest()


class _Folder:
    """The state of one run."""

    def __init__(
        self, root: str, gallery: Gallery, backbone: Embedder, report: Report, max_pixels: int
    ) -> None:
        self.root, self.gallery, self.backbone, self.report = root, gallery, backbone, report
        self.max_pixels = max_pixels
        self.known = _known_files(gallery)
        self.by_hash = {entry.hash: key for key, entry in self.known.items()}

    def jobs(self, names: Sequence[str], workers: int, window: int) -> Generator[_Job | None, None, None]:
        """Decoded pictures in the order of the folder; None for one that needs nothing or failed."""
        pending: deque[Future[_Job | Failure | None]] = deque()
        pool = ThreadPoolExecutor(workers, thread_name_prefix="decoder")
        try:
            for name in names:
                pending.append(pool.submit(self._job, name))
                if len(pending) >= window + workers:
                    yield self._result(pending.popleft())
            while pending:
                yield self._result(pending.popleft())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _result(self, future: Future[_Job | Failure | None]) -> _Job | None:
        result = future.result()
        if isinstance(result, Failure):
            self.report.failed.append(result)
            return None
        if result is None:
            self.report.unchanged += 1
        return result

    def _job(self, name: str) -> _Job | Failure | None:
        """In a decoder's thread: look, read, hash, decode, prepare; as little of it as is needed."""
        path = os.path.join(self.root, name)
        try:
            status = os.stat(path)
            known = self.known.get(name)
            if known is not None and known.path != path:
                if os.path.exists(known.path) and not os.path.samefile(known.path, path):
                    return Failure(path, f"the gallery holds another picture of that id: '{known.path}'")
                known = _Known(path, -1, -1, known.hash)  # the folder has moved; the content decides
            if known is not None and (known.size, known.mtime_ns) == (status.st_size, status.st_mtime_ns):
                return None
            raw = Path(path).read_bytes()
        except OSError as error:
            return Failure(path, error.strerror or str(error))
        digest = content_hash(raw)
        entry = {"path": path, "size": status.st_size, "mtime_ns": status.st_mtime_ns, "hash": digest}
        job = _Job(name, entry, replaces=known is not None and known.hash != digest)
        if digest in self.by_hash:
            return job
        try:
            job.input = self._prepared(raw)
        except UnreadableImage as error:
            return Failure(path, str(error))
        return job

    def _prepared(self, raw: bytes) -> Array:
        prepare = self.backbone.preprocess
        prepared: Array = prepare(read_image(raw, prepare.least, self.max_pixels))
        return prepared

    def commit(self, jobs: list[_Job]) -> None:
        """Embed what must be and put all of it into the gallery at once."""
        ready: list[tuple[_Job, Array]] = []
        fresh = [job for job in jobs if job.input is not None]
        if fresh:
            vectors = self.backbone.embed(np.stack([job.input for job in fresh if job.input is not None]))
            usable = np.isfinite(vectors).all(1) & (np.abs(vectors).max(1) > 0)
            for job, vector, good in zip(fresh, vectors, usable):
                if good:
                    ready.append((job, vector))
                else:
                    self.report.failed.append(
                        Failure(job.entry["path"], "the backbone gives no vector for it")
                    )
        self.report.embedded += len(ready)
        for job in jobs:
            if job.input is None:
                ready.append((job, self._vector_of_content(job)))
        if not ready:
            return
        ids = [job.id for job, _ in ready]
        self.gallery.add(ids, np.stack([vector for _, vector in ready]), [job.entry for job, _ in ready])
        for job, _ in ready:
            self.report.replaced += job.replaces
            self._remember(job)

    def _vector_of_content(self, job: _Job) -> Array:
        source = self.by_hash.get(job.entry["hash"])
        if source is None:  # it was replaced between reading and now
            self.report.embedded += 1
            vector: Array = self.backbone.embed(self._prepared(Path(job.entry["path"]).read_bytes())[None])[0]
            return vector
        if source == job.id:
            self.report.unchanged += 1  # touched or moved, but the same
        else:
            self.report.copied += 1
        return self.gallery.vectors([source])[0]

    def _remember(self, job: _Job) -> None:
        before = self.known.get(job.id)
        self.known[job.id] = _Known(**job.entry)
        if (
            before is not None
            and before.hash != job.entry["hash"]
            and self.by_hash.get(before.hash) == job.id
        ):
            del self.by_hash[before.hash]
        self.by_hash.setdefault(job.entry["hash"], job.id)


def _known_files(gallery: Gallery) -> dict[str, _Known]:
    """What the gallery says of its files; entries that did not come from a folder are not ours."""
    known = {}
    ids = gallery.ids()
    if len(ids) and ids.dtype.kind != "U":
        raise InputError(
            f"the ids of the gallery '{gallery.location}' are numbers, those of pictures are paths; "
            "cure: index the folder into another gallery"
        )
    for start in range(0, len(ids), _PAGE):
        page = ids[start : start + _PAGE]
        for key, entry in zip(page.tolist(), gallery.metadata(page)):
            try:
                known[key] = _Known(entry["path"], entry["size"], entry["mtime_ns"], entry["hash"])
            except KeyError:
                continue
    return known


def _batches(jobs: Iterator[_Job | None], size: int) -> Iterator[list[_Job | None]]:
    """Lists that hold `size` pictures to put in (the last one fewer), or many that need nothing."""
    group: list[_Job | None] = []
    full = 0
    for job in jobs:
        group.append(job)
        full += job is not None
        if full == size or len(group) >= 64 * size:
            yield group
            group, full = [], 0
    if group:
        yield group


def _settle_vanished(work: _Folder, names: Sequence[str], prune: bool) -> None:
    """Ids that came from this folder and have no file there any more."""
    here = set(names)
    hidden = {failure.path.rstrip(os.sep) for failure in work.report.failed}  # files and folders unread
    for key, entry in work.known.items():
        path = os.path.join(work.root, key)
        if key in here or entry.path != path or os.path.exists(path):
            continue
        if not hidden.intersection([path, *map(str, Path(path).parents)]):
            work.report.vanished.append(key)
    if prune and work.report.vanished:
        if not names:
            raise InputError(
                f"the folder '{work.root}' holds no picture at all, so nothing is pruned; "
                "cure: mount its disk, or remove the gallery itself"
            )
        work.gallery.remove(work.report.vanished)
        work.report.pruned = len(work.report.vanished)
