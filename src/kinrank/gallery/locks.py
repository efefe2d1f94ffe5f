"""Locks between processes that vanish with their holder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from kinrank.errors import GalleryError


class Lock:
    """An exclusive lock on a file; the operating system lets go of it when its process ends, however."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._file is not None

    def acquire(self, wait: bool = False) -> bool:
        """Take the lock; False when another holds it and `wait` is off."""
        if self.held:
            return True
        try:
            self.path.parent.mkdir(exist_ok=True)
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise GalleryError(f"'{self.path}' cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(file)
            return False
        except BaseException:
            os.close(file)
            raise
        os.ftruncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
        self._file = file
        return True

    def holder(self) -> str:
        """The process that holds it, as it wrote itself down."""
        try:
            return self.path.read_text().strip() or "unknown"
        except OSError:
            return "unknown"

    def release(self) -> None:
        """Let go."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __del__(self) -> None:
        self.release()
