"""A long add is killed at a hundred random moments; afterwards the gallery is what was reported."""

from __future__ import annotations

import os
import random
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from kinrank.gallery.gallery import Gallery

KILLS = 100
WRITER = Path(__file__).with_name("killed_writer.py")
_names = runpy.run_path(str(WRITER))
batch, DIM = _names["batch"], _names["DIM"]


def check(gallery: Gallery, reported: int) -> int:
    """The gallery holds exactly the reported batches, or also the one under way, and that whole."""
    held = gallery.revision
    assert reported <= held <= reported + 1
    right = {int(key): number for number in range(held) for key in batch(number)[0]}
    ids = gallery.ids()
    assert sorted(ids.tolist()) == sorted(right) and len(gallery) == len(right)
    assert [entry["batch"] for entry in gallery.metadata(ids)] == [right[key] for key in ids.tolist()]
    for number in range(max(0, held - 3), held):
        keys, vectors = batch(number)
        kept = np.array([right[int(key)] == number for key in keys])
        units = vectors[kept] / np.linalg.norm(vectors[kept], axis=1, keepdims=True)
        np.testing.assert_allclose(gallery.vectors(keys[kept]), units, atol=1e-6)
        assert gallery.search(units[-1], 1).ids.tolist() == [int(keys[kept][-1])]
    return held


def test_killed_at_a_hundred_random_moments(tmp_path: Path) -> None:
    path = tmp_path / "g.kin"
    Gallery.create(path, DIM).close()
    chance, held, steps = random.Random(0), 0, []
    server = subprocess.Popen(
        [sys.executable, str(WRITER), str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdin is not None and server.stdout is not None
    try:
        for _ in range(KILLS):
            server.stdin.write(f"{held}\n")
            server.stdin.flush()
            writer = int(server.stdout.readline())
            assert server.stdout.readline() == "ready\n"
            reported = chance.randrange(4)
            for _ in range(reported):
                assert server.stdout.readline() == "committed\n"
            time.sleep(chance.uniform(0, 0.02))  # a commit takes about as long
            os.kill(writer, signal.SIGKILL)
            lines = iter(server.stdout.readline, f"end {int(signal.SIGKILL)}\n")
            reported += sum(line == "committed\n" for line in lines)
            with Gallery.open(path) as gallery:
                now = check(gallery, held + reported)
            steps.append(now - held)
            held = now
    finally:
        server.kill()
        server.communicate()
    assert held > KILLS and len(set(steps)) > 3, "the kills must meet real work at different moments"
