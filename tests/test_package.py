"""The package: what is in the wheel and the sdist, and that the wheel works outside the checkout."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OUR_WEIGHTS = "kinrank/models/"  # our own trained models; weights of others are never packed
WEIGHTS = (".onnx", ".pth", ".pt", ".bin", ".safetensors", ".npz", ".npy", ".pkl", ".mat")
LIMIT = 30_000_000  # bytes of the wheel


def build(kind: str, folder: Path) -> Path:
    """Call the build backend as pip does, without its isolation: nothing is downloaded."""
    pytest.importorskip("hatchling", reason="needs hatchling, which the extra 'dev' installs")
    code = f"import hatchling.build as b; b.build_{kind}({str(folder)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("*.whl" if kind == "wheel" else "*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The files of an sdist, without its top folder."""
    with tarfile.open(build("sdist", tmp_path_factory.mktemp("sdist"))) as archive:
        return [name.partition("/")[2] for name in archive.getnames()]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel in it; what it depends on is lent by the one that runs this test."""
    folder = tmp_path_factory.mktemp("elsewhere") / "an environment"
    venv.create(folder, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(folder), "platbase": str(folder)}))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    # Paths are appended after the wheel's own; the checkout itself must not be among them.
    lent = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    (site / "lent.pth").write_text("\n".join(dict.fromkeys(lent)) + "\n")
    return folder


def run(installed: Path, *arguments: str, cwd: Path) -> str:
    """Run that environment's Python away from the checkout."""
    python = installed / "bin" / "python"
    # -I: neither the folder nor PYTHONPATH; .pth files of the lent folder (an editable install) do not count.
    answer = subprocess.run([str(python), "-I", *arguments], cwd=cwd, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"kinrank"}
    packed = {name for name in names if name.endswith(".py")}
    there = {p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src" / "kinrank").rglob("*.py")}
    assert packed == there
    assert "kinrank/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert wheel.stat().st_size < LIMIT


def test_no_weights_of_others_are_packed(wheel: Path) -> None:
    weights = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(WEIGHTS)]
    assert [name for name in weights if not name.startswith(OUR_WEIGHTS)] == []
    for name in weights:  # every model of ours has its card and its settings beside it
        folder = name.rpartition("/")[0]
        assert (ROOT / "src" / folder / "config.json").is_file()
        assert (ROOT / "src" / folder / "card.md").is_file()


def test_nothing_else_that_is_committed_is_weights() -> None:
    try:
        listed = subprocess.run(
            ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    weights = [name for name in listed.splitlines() if name.endswith(WEIGHTS)]
    assert [name for name in weights if not name.startswith("src/" + OUR_WEIGHTS)] == []


def test_the_sdist_holds_what_a_packager_needs(sdist: list[str]) -> None:
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile",
                 "constraints.txt", "scripts/setup", "scripts/rooms.py", "src/kinrank/__init__.py",
                 "tests/conftest.py", "tests/test_contracts.py", "docs/architecture.md"):  # fmt: skip
        assert name in sdist, name
    assert not [name for name in sdist if name.startswith((".venv", "demo-out", ".cache", ".git/"))]


def test_the_metadata_is_whole(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    text = archive.read(next(n for n in archive.namelist() if n.endswith("METADATA"))).decode()
    assert "License-Expression: Apache-2.0" in text
    assert "Requires-Python: >=3.11" in text
    core = [line for line in text.splitlines() if line.startswith("Requires-Dist") and "extra ==" not in line]
    assert core
    assert not [line for line in core if "torch" in line]


def test_it_works_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    code = (
        "import kinrank, numpy as np; print(kinrank.__file__);"
        "r = kinrank.rerank(np.eye(4)[0] + .1, np.eye(4) + .1, method='aqe:k=2'); print(r.ids.tolist())"
    )
    place, ids = run(installed, "-c", code, cwd=tmp_path).splitlines()
    assert Path(place).is_relative_to(installed)
    assert sorted(eval(ids)) == [0, 1, 2, 3]
    assert "kreciprocal" in run(installed, "-m", "kinrank", "list", "rerankers", cwd=tmp_path)


def test_its_models_came_with_it(installed: Path, tmp_path: Path) -> None:
    from kinrank.registry import registry

    if not registry("models"):
        pytest.skip("no model is shipped")
    code = (
        "import kinrank, numpy as np; v = np.random.default_rng(0).normal(size=(30, 8));"
        "r = kinrank.rerank(v[0], v[1:]); assert sorted(r.ids.tolist()) == list(range(29)); print('ranked')"
    )
    assert run(installed, "-c", code, cwd=tmp_path).strip() == "ranked"


def test_the_command_is_declared(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    entry = archive.read(next(n for n in archive.namelist() if n.endswith("entry_points.txt"))).decode()
    assert "kinrank = kinrank.cli:main" in entry
