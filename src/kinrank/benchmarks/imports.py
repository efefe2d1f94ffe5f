"""What a newcomer waits for before anything happens: import, help, and the room that the core takes."""

from __future__ import annotations

import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from statistics import median
from typing import Any

ROUNDS = 7
LIMITS = {"import kinrank": 0.2, "kinrank --help": 0.3}  # seconds
CORE_LIMIT = 350.0  # megabytes


def run() -> dict[str, list[dict[str, Any]]]:
    """Seconds (beside a bare interpreter, interleaved) and megabytes."""
    commands = {
        "python -c pass": ["-c", "pass"],
        "import kinrank": ["-c", "import kinrank"],
        "kinrank --help": ["-m", "kinrank", "--help"],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(ROUNDS):
        for name, arguments in commands.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
            seconds[name].append(time.perf_counter() - start)
    bare = median(seconds["python -c pass"])
    times = [
        {"command": name, "median s": median(taken), "beyond python s": median(taken) - bare}
        | {"limit s": LIMITS.get(name), "ok": name not in LIMITS or median(taken) < LIMITS[name]}
        for name, taken in seconds.items()
    ]
    sizes = [{"package": name} | megabytes(name) for name in core_packages()]
    total: dict[str, Any] = {"package": f"all (limit {CORE_LIMIT:.0f})"}
    for key in ("MB", "MB without bytecode"):
        total[key] = sum(row[key] for row in sizes)
    return {"seconds": times, "core install": [*sizes, total]}


def core_packages() -> list[str]:
    """kinrank and what its core needs, also through others; extras left out."""
    found: list[str] = []
    todo = ["kinrank"]
    while todo:
        name = todo.pop(0).lower().replace("_", "-")
        if name in found:
            continue
        try:
            needs = distribution(name).requires or []
        except PackageNotFoundError:  # for another system or Python
            continue
        found.append(name)
        todo += [_name(line) for line in needs if ";" not in line]
    return found


def _name(requirement: str) -> str:
    for stop, sign in enumerate(requirement):
        if not (sign.isalnum() or sign in "-_."):
            return requirement[:stop]
    return requirement


def megabytes(package: str) -> dict[str, float]:
    """Size of one distribution's installed files; pip compiles bytecode unless told `--no-compile`."""
    paths = [Path(str(path.locate())) for path in distribution(package).files or []]
    sizes = {path: path.stat().st_size / 1e6 for path in paths if path.is_file()}
    lean = sum(size for path, size in sizes.items() if path.suffix != ".pyc")
    return {"MB": sum(sizes.values()), "MB without bytecode": lean}
