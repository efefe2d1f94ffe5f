"""Files from the net, whole or not at all: resumed when cut, checked against a pinned SHA-256.

The cache is `$KINRANK_CACHE`, else `$XDG_CACHE_HOME/kinrank`, else `~/.cache/kinrank`.
"""

from __future__ import annotations

import hashlib
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO

from kinrank.errors import DownloadError

_BLOCK = 1 << 18
_TRIES = 3


@dataclass(frozen=True)
class RemoteFile:
    """Where a file is to be had, and what it must be."""

    url: str
    path: str  # within the cache
    sha256: str  # the whole of it, its beginning where no more is published, "" where it is not known
    size: int  # 0 where it is not known: then the server's word is taken
    licence: str

    @property
    def target(self) -> Path:
        """Where it lies, or will."""
        return cache_folder() / self.path


def cache_folder() -> Path:
    """Where kinrank keeps what it can make or fetch again."""
    own = os.environ.get("KINRANK_CACHE")
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kinrank"


@contextmanager
def written(target: Path) -> Iterator[Path]:
    """A path to write to that becomes `target` when the block ends well, and vanishes otherwise."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        yield part
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def fetch(file: RemoteFile, wait: float = 1.0) -> Path:
    """The file's path; downloaded first when it is not there. A file put there by hand is checked once.

    A download that was cut goes on where it stopped, in this call (three tries, `wait` seconds apart) or in
    the next one. On a terminal it shows how far it is.
    """
    target = file.target
    if target.exists():
        _check_once(file, target)
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    with _locked(part, file) as handle:
        try:
            _download_patiently(file, handle, wait)
        except DownloadError:
            if part.stat().st_size == 0:
                part.unlink()
            raise
        _verify(file, part, "what was downloaded")
        os.replace(part, target)
    _stamp(target)
    return target


def _download_patiently(file: RemoteFile, part: BinaryIO, wait: float) -> None:
    for attempt in range(1, _TRIES + 1):
        try:
            _download(file, part)
            return
        except (OSError, HTTPException) as error:  # urllib's errors are OSErrors
            part.flush()
            if attempt == _TRIES or not _worth_retrying(error):
                raise _failed(file, _reason(error)) from None
            time.sleep(wait * attempt)


def _download(file: RemoteFile, part: BinaryIO) -> None:
    """What is missing of the file, appended; from the beginning where the server cannot send a part."""
    have = part.seek(0, os.SEEK_END)
    if file.size and have > file.size:
        have = part.truncate(0)
    if have and have == file.size:
        return
    from tqdm import tqdm

    request = urllib.request.Request(file.url, headers={"User-Agent": "kinrank"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    with urllib.request.urlopen(request, timeout=30) as answer:
        if have and answer.status != 206:
            have = part.truncate(0)
        size = file.size or have + int(answer.headers.get("Content-Length") or 0)
        with tqdm(total=size or None, initial=have, unit="B", unit_scale=True, disable=None) as bar:
            while block := answer.read(_BLOCK):
                part.write(block)
                have += len(block)
                if size and have > size:
                    raise _failed(file, f"the server sends more than {size} bytes: another file")
                bar.update(len(block))
    part.flush()
    if have < size:
        raise ConnectionError(f"the connection ended after {have} of {size} bytes")


def _worth_retrying(error: BaseException) -> bool:
    if isinstance(error, urllib.error.HTTPError):
        return error.code in (408, 429) or error.code >= 500
    # A cut connection may come back; a name that cannot be resolved or a full disk will not.
    return isinstance(error, HTTPException | ConnectionError | TimeoutError)


def _reason(error: BaseException) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answers {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return f"the server cannot be reached ({error.reason})"
    return str(error) or type(error).__name__


def _failed(file: RemoteFile, why: str) -> DownloadError:
    return DownloadError(
        f"could not download {file.url}: {why}; cure: run it again where there is a network (it goes on "
        f"where it stopped), or fetch that file elsewhere and put it at {file.target}"
    )


def _verify(file: RemoteFile, path: Path, what: str) -> None:
    digest = sha256(path)
    if not digest.startswith(file.sha256):
        kept = ""
        if path != file.target:
            path.unlink()  # nothing of it can be gone on with
        else:
            kept = f" of {path}; delete it or put the right file there"
        raise DownloadError(
            f"{what} is not the file that kinrank was made for: SHA-256 {digest} in place of "
            f"{file.sha256}{kept} ({file.url})"
        )


def sha256(path: Path) -> str:
    """The checksum of a file."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _check_once(file: RemoteFile, target: Path) -> None:
    """Hash once: afterwards a stamp with size and time of what passed is enough."""
    stamp = _stamp_path(target)
    if stamp.exists() and stamp.read_text() == _mark(target):
        return
    _verify(file, target, f"'{target}'")
    _stamp(target)


def _stamp(target: Path) -> None:
    with written(_stamp_path(target)) as part:
        part.write_text(_mark(target))


def _stamp_path(target: Path) -> Path:
    return target.with_name(f"{target.name}.checked")


def _mark(target: Path) -> str:
    status = target.stat()
    return f"{status.st_size} {status.st_mtime_ns}"


@contextmanager
def _locked(part: Path, file: RemoteFile) -> Iterator[BinaryIO]:
    """The part file, held by this process alone (where the system has locks on files)."""
    with open(part, "ab") as handle:
        try:
            import fcntl
        except ImportError:  # Windows
            yield handle
            return
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DownloadError(
                f"another process is downloading {file.url}; cure: wait until it is done, then run it again"
            ) from None
        yield handle
