"""What the docs quote from the code is current, and their picture is there and small."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import refresh_docs  # noqa: E402  (the script finds its neighbour beside it)

QUICK_BLOCKS = {"README.md": {"methods", "pages"}, "docs/architecture.md": {"rooms"}}


def test_the_quick_blocks_are_current() -> None:
    assert refresh_docs.stale() == [], "cure: make docs, or scripts/refresh_docs.py methods pages rooms"


@pytest.mark.parametrize("page", QUICK_BLOCKS)
def test_the_blocks_are_where_they_should_be(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"<!-- refresh: (\w+) -->", text))
    assert named >= QUICK_BLOCKS[page]
    assert len(named) == text.count("<!-- /refresh -->")


def test_a_stale_block_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "README.md"
    page.write_text("a\n<!-- refresh: pages -->\nold\n<!-- /refresh -->\nb\n", encoding="utf-8")
    monkeypatch.setattr(refresh_docs, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "one.md").write_text("# One\n", encoding="utf-8")
    assert refresh_docs.stale() == ["README.md"]
    assert refresh_docs.main(["pages"]) == 0
    assert page.read_text() == "a\n<!-- refresh: pages -->\n- [One](docs/one.md)\n<!-- /refresh -->\nb\n"
    assert refresh_docs.stale() == []
    assert refresh_docs.main(["nothing"]) == 2


def test_the_readme_shows_a_real_run() -> None:
    """The quoted run has the rows and the words that the demo prints, in its own form."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    quoted = refresh_docs.BLOCK.search(text)
    assert quoted is not None
    assert quoted[2] == "demo"
    said = quoted[0]
    assert re.search(r"^none +\d+ +\d+\.\d +\d+\.\d", said, re.MULTILINE)
    for words in ("gained most", "lost most", "pictures rendered in", "pictures embedded in"):
        assert words in said


def test_pictures_are_small_and_readable() -> None:
    pictures = sorted((ROOT / "docs" / "images").iterdir())
    assert refresh_docs.IMAGE in pictures
    for path in pictures:
        assert path.stat().st_size <= refresh_docs.LIMIT, path.name
        with Image.open(path) as image:
            image.load()


def test_links_lead_somewhere() -> None:
    for page in refresh_docs.documents():
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[\w-]+)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"
