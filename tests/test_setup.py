"""`make demo` and `make test` from any path; what cannot work says so in a line."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("sh", "make", "cat", "cksum", "cut", "dirname", "sed", "printf", "rm", "grep", "tail")

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make, as the README says")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that set a checkout up, under a name with all sorts of signs."""
    folder = tmp_path / "a  folder's é 猫 $HOME `x`"
    (folder / "scripts").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "README.md", "LICENSE", "scripts/setup"):
        shutil.copy2(ROOT / name, folder / name)
    package = folder / "src" / "kinrank"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    return folder


def clean(**more: str) -> dict[str, str]:
    """The environment without what an outer make or pip has put there."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS", "PIP_", "KINRANK_"))}
    return {**kept, **more}


def ran(command: list[str], cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=clean(**environment))


@pytest.mark.parametrize("how", ["inside", "-C", "-f"])
@pytest.mark.parametrize("target", ["demo", "test"])
def test_make_finds_its_folder(checkout: Path, tmp_path: Path, how: str, target: str) -> None:
    """The recipes go to the folder of the Makefile, from wherever make is called."""
    (checkout / "scripts" / "setup").write_text('#!/bin/sh\necho "in $(pwd) for $1"\nexit 3\n')
    command, cwd = {
        "inside": (["make", target], checkout),
        "-C": (["make", "-C", str(checkout), target], tmp_path),
        "-f": (["make", "-f", str(checkout / "Makefile"), target], tmp_path),
    }[how]
    answer = ran(command, cwd)
    assert answer.returncode != 0
    extra = {"demo": "offline", "test": "dev"}[target]
    assert f"in {checkout} for {extra}" in answer.stdout


def test_caches_stay_in_the_folder(checkout: Path, tmp_path: Path) -> None:
    (checkout / "scripts" / "setup").write_text(
        '#!/bin/sh\necho "$KINRANK_CACHE|$PIP_CACHE_DIR|$MPLCONFIGDIR"\nexit 3\n'
    )
    answer = ran(["make", "-f", str(checkout / "Makefile"), "demo"], tmp_path)
    places = answer.stdout.strip().split("|")
    assert len(places) == 3
    assert all(Path(place).is_relative_to(checkout) for place in places)


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """A PATH with the tools that setup needs, and no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)
    return str(folder)


def test_no_python_says_so_in_a_line(checkout: Path, bare: str) -> None:
    answer = ran(["scripts/setup"], checkout, PATH=bare)
    assert answer.returncode == 1
    assert len(answer.stderr.splitlines()) == 1
    assert "Python 3.11 or newer with venv is needed and not found; cure: apt install" in answer.stderr
    assert not (checkout / ".venv").exists()
    made = ran(["make", "demo"], checkout, PATH=bare)
    assert made.returncode != 0
    assert "Python 3.11 or newer" in made.stderr


def test_an_old_python_is_not_taken(checkout: Path, bare: str) -> None:
    for name in ("python3", "python3.11"):
        old = Path(bare) / name
        old.write_text("#!/bin/sh\nexit 1\n")  # what an older one answers to the question after its version
        old.chmod(0o755)
    answer = ran(["scripts/setup"], checkout, PATH=bare)
    assert answer.returncode == 1
    assert "Python 3.11 or newer with venv is needed" in answer.stderr


def test_no_venv_says_so_in_a_line(checkout: Path, bare: str) -> None:
    new = Path(bare) / "python3.11"
    new.write_text('#!/bin/sh\n[ "$1" = -m ] && exit 1\nexit 0\n')  # Debian's python3 without python3-venv
    new.chmod(0o755)
    answer = ran(["scripts/setup"], checkout, PATH=bare)
    assert answer.returncode == 1
    assert len(answer.stderr.splitlines()) == 1
    assert "cure: apt install python3-venv" in answer.stderr
    assert not (checkout / ".venv").exists()


def test_no_network_says_so_in_a_line(checkout: Path) -> None:
    answer = ran(
        ["make", "demo"],
        checkout,
        PIP_CONFIG_FILE=os.devnull,
        PIP_INDEX_URL="http://127.0.0.1:9/simple",  # nothing listens there
        PIP_RETRIES="0",
    )
    assert answer.returncode != 0
    said = [line for line in answer.stderr.splitlines() if not line.startswith(("make", "installing"))]
    assert len(said) == 1
    assert "the installation failed (is there a network?)" in said[0]
    assert ".venv/install.log" in said[0]
    assert not list((checkout / ".venv").glob(".kinrank-*")), "a failed installation must not pass for done"


def test_setup_is_done_once_and_again_after_a_move(checkout: Path, bare: str) -> None:
    """A stand-in for pip counts the installations: one a place, set of extras and pyproject.toml."""
    python = checkout / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\ncase "$*" in *install*) echo once >>count;; esac\n')
    python.chmod(0o755)

    def installed(folder: Path, *extras: str) -> int:
        assert ran(["scripts/setup", *extras], folder, PATH=bare).returncode == 0
        return len((folder / "count").read_text().splitlines())

    assert [installed(checkout), installed(checkout)] == [1, 1]
    assert [installed(checkout, "dev"), installed(checkout, "dev"), installed(checkout)] == [2, 2, 2]
    moved = checkout.rename(checkout.with_name("moved"))
    assert [installed(moved, "dev"), installed(moved, "dev")] == [3, 3]
    with (moved / "pyproject.toml").open("a") as project:
        project.write("\n# a change\n")
    assert installed(moved, "dev") == 4


def test_ci_is_the_readmes_command() -> None:
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith("make test")
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert os.access(ROOT / "scripts" / "setup", os.X_OK)
