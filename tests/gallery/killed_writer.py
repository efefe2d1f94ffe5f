"""A program that writes a gallery and is killed; run by test_killed.py, one process forked per kill.

It imports once and forks, so that a kill costs milliseconds: `python killed_writer.py GALLERY` reads the
number of the first batch from stdin, and its child says `ready` and then `committed` after every `add`.
"""

from __future__ import annotations

import os
import sys

import numpy as np

DIM, BATCH = 16, 20


def batch(number: int) -> tuple[np.ndarray, np.ndarray]:
    """The ids and vectors of one batch, the same in every process; each replaces half of the one before."""
    ids = np.arange(number * BATCH // 2, number * BATCH // 2 + BATCH)
    return ids, np.random.default_rng(number).normal(size=(BATCH, DIM))


def write(path: str, first: int) -> None:
    """Add batch after batch and report each when `add` has returned."""
    from kinrank.gallery.gallery import Gallery

    gallery = Gallery.open(path)
    os.write(1, b"ready\n")
    for number in range(first, first + 100_000):
        ids, vectors = batch(number)
        gallery.add(ids, vectors, [{"batch": number}] * BATCH)
        os.write(1, b"committed\n")


def serve(path: str) -> None:
    """Fork a writer for every line read, name its process, and say when it is dead."""
    from kinrank.gallery.stores import embedded

    embedded.APPEND_BYTES = 4 * BATCH * DIM * 4  # so that kills meet the derived files too
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os.write(1, f"{os.getpid()}\n".encode())
            write(path, int(line))
        _, status = os.waitpid(child, 0)
        os.write(1, f"end {os.WTERMSIG(status)}\n".encode())


if __name__ == "__main__":
    serve(sys.argv[1])
