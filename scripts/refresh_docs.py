"""Writes what the docs quote: every block between `<!-- refresh: NAME -->` and `<!-- /refresh -->`.

    python scripts/refresh_docs.py [NAME ...]     all of them, or those named
    python scripts/refresh_docs.py --check        says which of the quick ones are out of date, leaves with 1

No figure in the docs is typed by hand: `demo` runs `kinrank demo` in an empty folder, the others read the
code and are quick.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import rooms

ROOT = Path(__file__).resolve().parents[1]
IMAGE = ROOT / "docs" / "images" / "demo.jpg"
LIMIT = 300_000  # bytes of a picture that is committed
BLOCK = re.compile(r"(<!-- refresh: (\w+) -->\n).*?(<!-- /refresh -->)", re.DOTALL)


def demo() -> str:
    """What the first run of the demo prints; its sheet becomes docs/images/demo.jpg."""
    with tempfile.TemporaryDirectory() as folder:
        ran = subprocess.run(
            [sys.executable, "-m", "kinrank", "demo"],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        _picture(Path(folder) / "demo-out" / "before_after.png")
    return f"```text\n{ran.stdout.strip()}\n```"


def _picture(sheet: Path) -> None:
    from PIL import Image

    IMAGE.parent.mkdir(parents=True, exist_ok=True)
    with Image.open(sheet) as opened:
        image = opened.convert("RGB")
        image.thumbnail((1280, 1280), Image.Resampling.LANCZOS)
    for quality in range(92, 40, -4):
        image.save(IMAGE, quality=quality, optimize=True)
        if IMAGE.stat().st_size <= LIMIT:
            return


def methods() -> str:
    """A row a re-ranker, from the registry."""
    from kinrank.registry import load, registry

    rows = ["| spec | what it does | works on | it may harm |", "|---|---|---|---|"]
    for name in registry("rerankers"):
        method = load("rerankers", name)
        summary = method.__doc__.strip().splitlines()[0].rstrip(".")
        needs_fit = method.__dict__.get("needs_fit", method.needs_fit)
        where = (
            "the gallery"
            if needs_fit is True
            else "the list"
            if method.needs_vectors
            else "similarities alone"
        )
        rows.append(
            f"| `{name}` | {summary} | {where} | {method.reports_harm or ''} |".replace("|  |", "| |")
        )
    return "\n".join(rows)


def pages() -> str:
    """The docs, by their first heading."""
    lines = []
    for path in sorted((ROOT / "docs").glob("*.md")):
        title = next(
            line[2:] for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("# ")
        )
        lines.append(f"- [{title}](docs/{path.name})")
    return "\n".join(lines)


def graph() -> str:
    """The rooms and who imports whom."""
    return rooms.mermaid()


QUICK: dict[str, Callable[[], str]] = {"methods": methods, "pages": pages, "rooms": graph}
ALL = {**QUICK, "demo": demo}


def documents() -> list[Path]:
    """Every page that may hold a block."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def refreshed(text: str, made: dict[str, str]) -> str:
    """The page with the blocks in `made` replaced."""

    def block(match: re.Match[str]) -> str:
        name = match[2]
        if name not in ALL:
            raise SystemExit(f"unknown block '{name}'; there are: {', '.join(ALL)}")
        return f"{match[1]}{made[name]}\n{match[3]}" if name in made else match[0]

    return BLOCK.sub(block, text)


def stale() -> list[str]:
    """Pages whose quick blocks are not what the code says."""
    made = {name: make() for name, make in QUICK.items()}
    return [
        path.relative_to(ROOT).as_posix()
        for path in documents()
        if path.exists() and refreshed(text := path.read_text(encoding="utf-8"), made) != text
    ]


def main(arguments: list[str]) -> int:
    """Refresh, or check."""
    if arguments == ["--check"]:
        old = stale()
        for name in old:
            print(f"{name} is out of date; cure: make docs")
        return 1 if old else 0
    unknown = set(arguments) - ALL.keys()
    if unknown:
        print(f"unknown block '{unknown.pop()}'; there are: {', '.join(ALL)}", file=sys.stderr)
        return 2
    made = {name: ALL[name]() for name in arguments or ALL}
    for path in documents():
        if path.exists():
            text = path.read_text(encoding="utf-8")
            path.write_text(refreshed(text, made), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
