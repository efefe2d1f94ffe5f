"""The docs are true: every command line and every Python block in them runs, every verb is told of.

Fenced blocks of README.md and docs/*.md are read. In `sh`, `bash`, `shell` and `console` blocks every line
that starts with `kinrank` (after `$ `, and after VAR=value) is run, all lines of a page in one folder in
their order; `make` targets must exist and `pip install` must name extras that exist. `python` blocks of a
page run one after the other with the same names. What the lines read is prepared under the names in FILES.

`<!-- not run: reason -->` on the line before a block has its command lines checked (verb, options, kinds of
values) but not run, and its Python compiled but not run. The verbs in CHECKED are never run here.
"""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

from kinrank.cli import VERBS, main, root

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
SHELL = {"sh", "bash", "shell", "console"}
CHECKED = {
    "serve": "it serves until it is stopped",
    "train": "it takes hours; its own tests train small",
    "demo": "its own test runs it",
    "bench": "it measures for minutes; its own tests run small sizes",
}


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str
    run: bool

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page; a block inside a list may be indented."""
    lines = page.read_text(encoding="utf-8").splitlines()
    start, fence, run = None, "", True
    for number, line in enumerate(lines):
        opening = re.match(r"\s*(```+|~~~+)\s*([\w-]*)", line)
        if start is None and opening:
            start, fence, language = number, opening[1], opening[2]
            indent = len(line) - len(line.lstrip())
            before = next((text for text in reversed(lines[:number]) if text.strip()), "")
            run = not re.match(r"\s*<!--\s*not run:\s*\S.*-->", before)
        elif start is not None and line.strip() == fence:
            text = "\n".join(row[indent:] for row in lines[start + 1 : number])
            yield Block(page, start + 1, language, text, run)
            start = None
    assert start is None, f"{page}:{start}: a fenced block is never closed"


def command_lines(block: Block) -> Iterator[list[str]]:
    """The commands of a shell block, as words; pipes, redirections and comments cut off."""
    text = block.text.replace("\\\n", " ")
    console = block.language == "console" or any(line.startswith("$ ") for line in text.splitlines())
    for line in text.splitlines():
        if console and not line.startswith("$ "):
            continue  # output
        line = line.removeprefix("$ ").strip()
        words = shlex.split(re.split(r"\s[|>&]|\s2>|;", line)[0], comments=True)
        while words and re.match(r"[A-Z_]+=", words[0]):
            words = words[1:]
        if words:
            yield words


def _picture(path: Path, seed: int) -> None:
    from PIL import Image

    rng = np.random.default_rng(seed)
    small = rng.integers(0, 255, (4, 4, 3), dtype=np.uint8)
    Image.fromarray(small).resize((96, 96), Image.Resampling.BICUBIC).save(path)


def _photos(path: Path) -> None:
    for i in range(6):
        folder = path / ("boats" if i < 3 else "shoes")
        folder.mkdir(parents=True, exist_ok=True)
        _picture(folder / f"{i}.jpg", i)
    shutil.copy(path / "shoes" / "3.jpg", path / "holiday.jpg")


def _gallery(path: Path) -> None:
    main(["index", str(path.parent / "photos"), "-g", str(path)])


def _lists(path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(path, queries=rng.normal(size=(3, 16)), vectors=rng.normal(size=(50, 16)))


def _labelled(path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 10
    np.savez(path, vectors=rng.normal(size=(10, 16))[labels] + 0.5 * rng.normal(size=(60, 16)), labels=labels)


def _revisited(path: Path) -> None:
    import json

    path.mkdir()
    rng = np.random.default_rng(0)
    gnd = [{"bbx": [0, 0, 9, 9], "easy": [q], "hard": [q + 3], "junk": [q + 6]} for q in range(3)]
    truth = {"imlist": [f"i{i}" for i in range(40)], "qimlist": ["a", "b", "c"], "gnd": gnd}
    (path / f"gnd_{path.name}.json").write_text(json.dumps(truth))
    np.savez(path / "features.npz", queries=rng.normal(size=(3, 16)), gallery=rng.normal(size=(40, 16)))


# What the docs may name, and how it is made; names are those of files in the folder where a page runs.
FILES: dict[str, Callable[[Path], None]] = {
    "photos": _photos,
    "photos.kin": _gallery,
    "query.jpg": lambda path: _picture(path, 3),
    "photo.jpg": lambda path: _picture(path, 3),
    "lists.npz": _lists,
    "labelled.npz": _labelled,
    "features.npz": _labelled,
    "roxford5k": _revisited,
}


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to run a page in."""
    path = tmp_path_factory.mktemp("page")
    monkeypatch.chdir(path)
    return path


def prepare(folder: Path, text: str) -> None:
    """Make the files of FILES that a page speaks of."""
    for name, make in FILES.items():
        if re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.])", text) and not (folder / name).exists():
            if name == "photos.kin" and not (folder / "photos").exists():
                _photos(folder / "photos")
            make(folder / name)


def verb(words: list[str], where: object) -> click.Command:
    """The command that a line names."""
    command = root.get_command(click.Context(root), words[0])
    assert command is not None, f"{where}: there is no verb '{words[0]}'; there are {', '.join(VERBS)}"
    return command


def check(words: list[str], where: object) -> None:
    """The verb is there and takes these options and arguments; nothing is run."""
    if not words or words[0].startswith("-"):
        return
    try:
        verb(words, where).make_context(words[0], list(words[1:]))
    except click.exceptions.Exit:
        pass  # --help and --version
    except click.ClickException as error:
        raise AssertionError(f"{where}: kinrank {shlex.join(words)}: {error.format_message()}") from None


def run(words: list[str], where: object) -> None:
    """Run a line as a user would."""
    try:
        main(words)
    except SystemExit as end:
        assert not end.code, f"{where}: 'kinrank {shlex.join(words)}' left with {end.code}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_command_lines(page: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = [block for block in blocks(page) if block.language in SHELL]
    prepare(folder, "\n".join(block.text for block in found if block.run))
    for block in found:
        for program, *words in command_lines(block):
            if program == "kinrank":
                check(words, block)
                if block.run and words and words[0] not in CHECKED:
                    run(words, block)
            elif program == "make":
                targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
                assert {word for word in words if "=" not in word} <= set(targets), f"{block}: make {words}"
            elif program.startswith("pip") or words[:2] == ["-m", "pip"]:
                _check_extras(words, block)
    capsys.readouterr()


def _check_extras(words: list[str], block: Block) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for wanted in re.findall(r"(?:kinrank|\.)\[([\w,-]+)\]", " ".join(words)):
        unknown = set(wanted.split(",")) - set(project["optional-dependencies"])
        assert not unknown, f"{block}: there is no extra {', '.join(unknown)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_python_blocks(page: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = [block for block in blocks(page) if block.language in ("python", "py")]
    prepare(folder, "\n".join(block.text for block in found if block.run))
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in found:
        code = _session(block.text) if ">>>" in block.text else block.text
        compiled = compile(ast.parse("\n" * block.line + code, str(block)), str(block), "exec")
        if block.run:
            exec(compiled, names)
    capsys.readouterr()


def _session(text: str) -> str:
    """The code of an interactive session."""
    return "\n".join(line[4:] for line in text.splitlines() if line[:4] in (">>> ", "... "))


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_has_help(name: str) -> None:
    command = verb([name], "VERBS")
    assert command.help and len(command.help) > 30, f"kinrank {name} says nothing of itself"
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, f"kinrank {name} {option.opts[0]} says nothing of itself"


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_is_in_the_docs(name: str) -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert re.search(rf"kinrank {name}\b", text), f"no page of the docs tells of 'kinrank {name}'"


def test_reading_blocks(tmp_path: Path) -> None:
    """The reader itself: indents, marks, continued lines, pipes, comments and output."""
    page = tmp_path / "x.md"
    page.write_text(
        "a\n```sh\nkinrank list \\\n  --json | head  # all\nOMP_NUM_THREADS=1 kinrank list > out\n```\n"
        "<!-- not run: it needs a server -->\n\n  ```console\n  $ kinrank serve g\n  output\n  ```\n"
    )
    first, second = blocks(page)
    assert list(command_lines(first)) == [["kinrank", "list", "--json"], ["kinrank", "list"]]
    assert first.run and not second.run
    assert list(command_lines(second)) == [["kinrank", "serve", "g"]]
    with pytest.raises(AssertionError, match="no verb 'nosuch'"):
        check(["nosuch"], "here")
    with pytest.raises(AssertionError, match="No such option"):
        check(["evaluate", "x", "--nosuch"], "here")
    with pytest.raises(AssertionError, match="left with 2"):
        run(["evaluate", str(tmp_path / "nothing"), "--methods", "none"], "here")
