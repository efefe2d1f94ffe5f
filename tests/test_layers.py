"""Who may import whom, read from the code: the house of docs/architecture.md stays as it is drawn."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


def script(name: str) -> ModuleType:
    """A script of the project as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


rooms = script("rooms")
IMPORTS = rooms.imports()
BASE = set(rooms.BASE)

# room -> the rooms that it may import besides the base; typing-only imports are free
MAY: dict[str, set[str]] = {
    "types": set(),
    "errors": set(),
    "registry": set(),
    "device": set(),
    "features": set(),
    "gallery": set(),
    "rerankers": {"features"},  # geometric methods read local features; a gallery comes in as an object
    "models": set(),
    "spec": {"rerankers"},
    "api": {"rerankers", "spec"},
    "search": {"rerankers", "spec"},
    "evaluate": {"evaluation"},
    "evaluation": {"rerankers", "spec", "gallery", "features"},
    "training": {"evaluation", "rerankers", "spec"},
    "demo": {"api", "evaluation", "features", "gallery", "rerankers", "spec", "search"},
    "__main__": {"cli"},
}
FREE = {"cli", "web", "benchmarks"}  # the outermost rooms, which nobody imports
LOOK_FOR_TORCH = {
    "kinrank.device",
    "kinrank.cli.train",
}  # inside a function, to pick it or to miss it politely


def own() -> list[object]:
    """Imports of the package's own modules that run."""
    return [i for i in IMPORTS if i.target.split(".")[0] == "kinrank" and not i.typing_only]


def where(entry: object) -> str:
    return f"{entry.module}:{entry.line} imports {entry.target}"  # type: ignore[attr-defined]


def test_every_room_has_a_rule() -> None:
    there = {rooms.room(name) for name in rooms.modules()} - {"kinrank"}
    assert there - FREE - MAY.keys() == set(), "a new room: say in MAY whom it may import"


def test_rooms_import_only_whom_they_may() -> None:
    wrong = [
        where(i)
        for i in own()
        if (here := rooms.room(i.module)) not in FREE | {"kinrank"}
        and rooms.room(i.target) not in MAY[here] | BASE | {here}
        and i.target != "kinrank"
    ]
    assert wrong == []


def test_the_protocol_stands_alone() -> None:
    """Figures can be checked without the rest: only the base."""
    wrong = [
        where(i)
        for i in own()
        if i.module == "kinrank.evaluation.protocol" and rooms.room(i.target) not in BASE
    ]
    assert wrong == []


def test_nobody_imports_the_outermost_rooms() -> None:
    """Command line and page use everything and are used by nothing; `serve` alone starts the page."""
    wrong = []
    for i in own():
        here, there = rooms.room(i.module), rooms.room(i.target)
        if there in FREE and here != there:
            allowed = {
                "cli": i.module == "kinrank.__main__",
                "web": i.module == "kinrank.cli.serve",
                "benchmarks": i.module == "kinrank.cli.bench",
            }
            if not allowed[there]:
                wrong.append(where(i))
    assert wrong == []


def test_torch_only_where_models_are_trained_and_timed() -> None:
    wrong = [
        where(i)
        for i in IMPORTS
        if i.target.split(".")[0] == "torch"
        and rooms.room(i.module) not in ("training", "benchmarks")
        and not (i.module in LOOK_FOR_TORCH and i.lazy)
        and not i.typing_only
    ]
    assert wrong == []
    assert any(i.target == "torch" for i in IMPORTS if rooms.room(i.module) == "training"), (
        "the rule sees torch"
    )


def test_training_is_imported_by_its_verb_alone() -> None:
    wrong = [
        where(i)
        for i in own()
        if rooms.room(i.target) == "training"
        and rooms.room(i.module) not in ("training", "cli", "benchmarks")
    ]
    assert wrong == []


def test_leaves_are_imported_absolutely() -> None:
    """No relative import, and nothing but its version from the package's root."""
    relative, root = [], []
    for name, path in rooms.modules().items():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if line.lstrip().startswith("from ."):
                relative.append(f"{name}:{number}")
            if line.lstrip().startswith("from kinrank import") and name != "kinrank":
                imported = {part.strip() for part in line.split("import", 1)[1].split(",")}
                if not imported <= {"__version__", "evaluate"}:
                    root.append(f"{name}:{number} {line.strip()}")
    assert relative == []
    assert root == []


@pytest.mark.parametrize("forbidden", ["utils", "util", "helpers", "misc", "common"])
def test_no_room_for_odds_and_ends(forbidden: str) -> None:
    assert not [name for name in rooms.modules() if name.rpartition(".")[2] == forbidden]


def test_no_module_is_longer_than_four_hundred_lines() -> None:
    long = {
        name: lines
        for name, path in rooms.modules().items()
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 400
    }
    assert long == {}


def test_the_import_reader_sees_what_python_does() -> None:
    """The reader of the code, against the modules that Python itself has loaded for one of them."""
    import subprocess

    code = "import sys, kinrank.search; print(*(m for m in sys.modules if m.startswith('kinrank.')))"
    loaded = set(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
    )
    eager: dict[str, set[str]] = {}
    for i in own():
        if not i.lazy:
            eager.setdefault(i.module, set()).add(i.target)
    reached, todo = set(), ["kinrank.search"]
    while todo:
        module = todo.pop()
        if module in reached or module == "kinrank":
            continue
        reached.add(module)
        todo += eager.get(module, set())
        if "." in module.removeprefix("kinrank."):
            todo.append(module.rpartition(".")[0])
    assert reached == loaded
