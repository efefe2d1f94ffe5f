"""How much memory a piece of work took at its height."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_STATUS = Path("/proc/self/status")
_before_resets = 0.0


class Peak:
    """Megabytes by which resident memory rose: at its height, and what stayed when the work was done."""

    mb: float = 0.0
    kept_mb: float = 0.0


@contextmanager
def watched() -> Iterator[Peak]:
    """Measure the rise of resident memory over a block of code.

    Linux lets a process reset its own high-water mark, so each block is measured by itself; elsewhere
    only what exceeds everything before it shows.
    """
    global _before_resets
    peak = Peak()
    _before_resets = max(_before_resets, _highest())
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        before = _highest()
    else:
        before = _status("VmRSS")
    yield peak
    peak.mb = max(0.0, _highest() - before)
    peak.kept_mb = max(0.0, _status("VmRSS") - before) if _STATUS.exists() else peak.mb


def allocated_mb(work: Callable[[], object]) -> float:
    """What Python and NumPy allocated at the height of one call, freed memory that was used again included.

    Resident memory does not show what fits into what an earlier step had left; this does, but libraries
    written in C++ are not counted.
    """
    import tracemalloc

    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1] / (1 << 20)
    finally:
        tracemalloc.stop()


def highest_mb() -> float:
    """The process's high-water mark since its start, in megabytes, whatever `watched` has reset."""
    return max(_before_resets, _highest())


def _highest() -> float:
    if _STATUS.exists():
        return _status("VmHWM")
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
        1 << 20 if sys.platform == "darwin" else 1024
    )


def _status(name: str) -> float:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1024
    return 0.0
