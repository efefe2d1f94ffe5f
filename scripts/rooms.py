"""Who imports whom: read from the code, for docs/architecture.md and tests/test_layers.py.

python scripts/rooms.py      prints the picture, as Mermaid
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "kinrank"


@dataclass(frozen=True)
class Import:
    """One import statement: where it stands, what it names, and whether only a type checker reads it."""

    module: str
    target: str
    line: int
    typing_only: bool
    lazy: bool  # inside a function


def modules(source: Path = SOURCE) -> dict[str, Path]:
    """Dotted name -> file of every module of the package."""
    named = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source.parent).with_suffix("").parts
        named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return named


def imports(source: Path = SOURCE) -> list[Import]:
    """Every import in the package, also those inside functions."""
    known = modules(source)
    found = []
    for module, path in known.items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        for node, typing_only, lazy in _walk(ast.parse(path.read_text(encoding="utf-8"))):
            for target in _targets(node, package, known):
                found.append(Import(module, target, node.lineno, typing_only, lazy))
    return found


def _walk(
    tree: ast.AST, typing_only: bool = False, lazy: bool = False
) -> Iterator[tuple[ast.stmt, bool, bool]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, typing_only, lazy
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _walk(node, True, lazy)
        else:
            inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from _walk(node, typing_only, inside)


def _targets(node: ast.stmt, package: str, known: dict[str, Path]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        parent = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        base = ".".join([*parent, node.module] if node.module else parent)
        for alias in node.names:  # `from kinrank.features import pooling` names a module
            yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base


def room(module: str) -> str:
    """`kinrank.gallery.store` -> `gallery`; `kinrank.types` -> `types`; anything else -> its first name."""
    parts = module.split(".")
    if parts[0] != "kinrank":
        return parts[0]
    return parts[1] if len(parts) > 1 else "kinrank"


BASE = ("types", "errors", "device", "registry")  # what everyone may use; left out of the picture's arrows


def edges(source: Path = SOURCE) -> set[tuple[str, str]]:
    """(room, room that it imports), the base left out."""
    pairs = {
        (room(i.module), room(i.target))
        for i in imports(source)
        if i.target.split(".")[0] == "kinrank" and not i.typing_only
    }
    return {
        (a, b) for a, b in pairs if a != b and a not in BASE and b not in BASE and "kinrank" not in (a, b)
    }


def summary(name: str, source: Path = SOURCE) -> str:
    """The first sentence of a room's docstring."""
    path = source / name / "__init__.py" if (source / name).is_dir() else source / f"{name}.py"
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.split("\n")[0].rstrip(".")


def mermaid(source: Path = SOURCE) -> str:
    """The rooms and their imports as a Mermaid graph."""
    drawn = edges(source)
    rooms = sorted({name for pair in drawn for name in pair})
    lines = ["```mermaid", "graph TD"]
    for name in rooms:
        text = summary(name, source).replace('"', "'").replace("`", "'")
        lines.append(f'    {name}["<b>{name}</b><br/>{text}"]')
    lines += [f"    {a} --> {b}" for a, b in sorted(drawn)]
    return "\n".join([*lines, "```"])


if __name__ == "__main__":
    print(mermaid())
