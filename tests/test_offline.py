"""Nothing leaves the machine unasked, and nothing is left in the user's home."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kinrank.registry import registry

WORK = """
import os, socket
def refuse(*_): raise AssertionError("a connection was asked for")
socket.socket.connect = refuse
import numpy as np, kinrank
vectors = np.random.default_rng(0).normal(size=(40, 16))
with kinrank.Gallery.create("g.kin", dim=16) as gallery:
    gallery.add(np.arange(40), vectors)
    found = gallery.search(vectors[3], k=20)
kinrank.rerank(vectors[0], vectors[1:], method=os.environ["METHOD"])
print("done")
"""


@pytest.mark.parametrize("method", ["kreciprocal", *registry("models")])
def test_the_home_folder_stays_empty(method: str, tmp_path: Path) -> None:
    """ONNX Runtime keeps an identifier there, and sends events, unless it is told not to."""
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "ORT_")) and k != "CI"}
    answer = subprocess.run(
        [sys.executable, "-c", WORK],
        cwd=work,
        env={**kept, "HOME": str(home), "METHOD": method},
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip() == "done"
    assert [path.name for path in home.rglob("*")] == []
