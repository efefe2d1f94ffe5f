"""What survives a kill: one file, renamed into place, with all that the next step depends on.

Random numbers are not in it: every batch draws from seeds made of (recipe seed, step, part of the
batch), so the position in the training is the state of all generators.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch

from kinrank.errors import InputError


def seed_of(*parts: object) -> int:
    """A seed that depends on all parts and on nothing else."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=7).digest())


def save(path: Path, state: dict[str, Any]) -> None:
    """Write beside, flush to the disk, rename: the old file or the new one is there, never a half."""
    partial = path.with_suffix(".part")
    with open(partial, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def load(path: Path, device: torch.device) -> dict[str, Any]:
    """The state of an interrupted training; only tensors and plain values are read."""
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # torch raises many kinds for a damaged file
        raise InputError(
            f"the checkpoint '{path}' cannot be read: {str(error).splitlines()[0]}; "
            "cure: delete it and train from the start"
        ) from None
    return state


class Log:
    """`metrics.jsonl`: a line for every report, cut back to the checkpoint on resume."""

    def __init__(self, path: Path, step: int) -> None:
        self.path = path
        kept = [row for row in read_log(path) if row["step"] <= step] if step else []
        path.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")

    def write(self, **row: Any) -> None:
        """Append a line."""
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def read_log(path: Path) -> list[dict[str, Any]]:
    """The rows of a log; a last line that was cut off in writing is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows
