"""What a newcomer waits for before anything happens: import, help, and the room that the core takes."""

from __future__ import annotations

import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, distribution
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
    sizes = {name: megabytes(name) for name in core_packages()}
    total = sum(size for size in sizes.values())
    rooms: list[dict[str, Any]] = [{"package": name, "MB": size} for name, size in sizes.items()]
    rooms.append({"package": f"all (limit {CORE_LIMIT:.0f})", "MB": total})
    return {"seconds": times, "core install": rooms}


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


def megabytes(package: str) -> float:
    """Size of the installed files of one distribution."""
    files = distribution(package).files or []
    paths = [path.locate() for path in files]
    return sum(path.stat().st_size for path in paths if path.is_file()) / 1e6  # type: ignore[attr-defined]
