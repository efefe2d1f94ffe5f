"""What is imported, and when: nothing heavy before it is used (`kinrank bench imports` measures it)."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from kinrank.cli import VERBS

_CODE = """
import sys
before = set(sys.modules)
{}
print(__import__("json").dumps(sorted(set(sys.modules) - before)))
"""


def imported(code: str) -> list[str]:
    """Modules that a fresh interpreter imports when it runs the code."""
    answer = subprocess.run([sys.executable, "-c", _CODE.format(code)], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    modules: list[str] = json.loads(answer.stdout.splitlines()[-1])
    return modules


def from_outside(modules: list[str]) -> set[str]:
    """The installed packages among them."""
    return {name.partition(".")[0] for name in modules} - set(sys.stdlib_module_names) - {"kinrank"}


HELP = """
from kinrank.cli import root
try:
    root.main({!r}, prog_name="kinrank")
except SystemExit:
    pass
"""


def test_import_kinrank_imports_nothing_else() -> None:
    modules = imported("import kinrank")
    assert from_outside(modules) == set()
    assert [name for name in modules if name.startswith("kinrank")] == ["kinrank"]


def test_names_are_imported_when_used() -> None:
    assert from_outside(imported("import kinrank; kinrank.Candidates; kinrank.Gallery")) == {"numpy"}
    assert from_outside(imported("import kinrank; kinrank.reranker('aqe:k=3+affinity')")) <= {"numpy"}


def test_a_gallery_needs_numpy_and_nothing_else_until_it_is_large() -> None:
    code = (
        "import kinrank, tempfile, pathlib\n"
        "with tempfile.TemporaryDirectory() as folder:\n"
        "    gallery = kinrank.Gallery.create(pathlib.Path(folder) / 'g.kin', 2)\n"
        "    gallery.add([1, 2], [[1, 0], [0, 1]])\n"
        "    assert gallery.search([1, 0], 1).ids.tolist() == [1]\n"
        "    gallery.close()"
    )
    assert from_outside(imported(code)) == {"numpy"}


def test_help_imports_the_command_line_library_alone() -> None:
    modules = imported(HELP.format(["--help"]))
    assert {"click"} <= from_outside(modules)
    assert not from_outside(modules) & {"numpy", "scipy", "faiss", "onnxruntime", "PIL", "tqdm", "torch"}


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_imports_nothing_heavy(verb: str) -> None:
    modules = from_outside(imported(HELP.format([verb, "--help"])))
    assert not modules & {"scipy", "faiss", "onnxruntime", "PIL", "torch", "matplotlib"}
