"""The examples of CONTRIBUTING.md: each is put in its file's place, gets its line, and works."""

from __future__ import annotations

import json
import re
import sys
import types
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinrank.cli import main
from kinrank.gallery.gallery import Gallery
from kinrank.registry import ROOMS
from kinrank.spec import reranker
from kinrank.types import Candidates

PAGE = (Path(__file__).resolve().parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(
    r"`src/(kinrank/[\w/]+)\.py`:\n\n```python\n(.*?)```\n\nThe line: `\"(\w+)\": \"([\w.:]+)\",`", re.S
)
FOUND = {name: (path.replace("/", "."), code, target) for path, code, name, target in EXAMPLE.findall(PAGE)}


@pytest.fixture
def added(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The example of that name, as if its file and its line were there."""
    module_name, code, target = FOUND[request.param]
    module = types.ModuleType(module_name)
    monkeypatch.setitem(sys.modules, module_name, module)
    exec(compile(code, module_name, "exec"), module.__dict__)
    assert target.partition(":")[0] == module_name
    room = next(name for name, place in ROOMS.items() if module_name.startswith(place + "."))
    monkeypatch.setitem(import_module(ROOMS[room]).REGISTRY, request.param, target)
    return module


def test_there_is_one_of_each() -> None:
    rooms = {
        room for room, place in ROOMS.items() for name, _, _ in FOUND.values() if name.startswith(place + ".")
    }
    assert rooms == {"rerankers", "stores", "backbones", "datasets"}
    assert PAGE.count("```python") == len(FOUND)


@pytest.mark.parametrize("added", ["mutual"], indirect=True)
def test_a_reranker(added: types.ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    main(["list", "rerankers", "--json"])
    listed = {row["name"]: row["summary"] for row in json.loads(capsys.readouterr().out)["rerankers"]}
    assert listed["mutual"].startswith("Candidates that have the query")
    rng = np.random.default_rng(0)
    vectors, query = rng.normal(size=(40, 8)), rng.normal(size=8)
    candidates = Candidates.from_vectors(query, vectors)
    ranking = reranker("aqe:k=3+mutual:k=5").rerank(candidates)
    assert sorted(ranking.ids.tolist()) == list(range(40))
    # Those in front have the query among their five nearest, counted one by one.
    front = reranker("mutual:k=5").rerank(candidates)
    unit = candidates.vectors
    for key, score in zip(front.ids.tolist(), front.scores.tolist()):
        row = candidates.ids.tolist().index(key)
        others = sum(
            float(unit[row] @ unit[j]) > float(unit[row] @ candidates.query) for j in range(40) if j != row
        )
        assert (score > 1) == (others < 5)


@pytest.mark.parametrize("added", ["session"], indirect=True)
def test_a_store(added: types.ModuleType) -> None:
    with Gallery.create("session://a", dim=3) as gallery:
        gallery.add(["x", "y"], np.eye(3)[:2])
    again = Gallery.open("session://a")
    assert again.search([0.0, 1.0, 0.1], k=1).ids.tolist() == ["y"]
    with pytest.raises(Exception, match="cure: create it first"):
        Gallery.open("session://b")


@pytest.mark.parametrize("added", ["thumbnail"], indirect=True)
def test_a_backbone(
    added: types.ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("onnx", reason="needs the extra 'offline'")
    monkeypatch.setenv("KINRANK_CACHE", str(tmp_path / "cache"))
    from PIL import Image

    (tmp_path / "photos").mkdir()
    for i, colour in enumerate(("red", "green", "blue")):
        Image.new("RGB", (40, 30), colour).save(tmp_path / "photos" / f"{i}.png")
    main(["index", str(tmp_path / "photos"), "-g", str(tmp_path / "small.kin"), "--backbone", "thumbnail"])
    Image.new("RGB", (50, 50), (10, 120, 20)).save(tmp_path / "query.png")
    capsys.readouterr()
    main(["search", str(tmp_path / "small.kin"), str(tmp_path / "query.png"), "--rerank", "none", "--json"])
    assert json.loads(capsys.readouterr().out)["results"][0]["id"] == "1.png"


@pytest.mark.parametrize("added", ["table"], indirect=True)
def test_a_data_set(added: types.ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["1,1,0,0.1", "1,1,0.2,0", "2,0,1,0.1", "2,0.1,1,0"]
    (tmp_path / "photos.csv").write_text("\n".join(lines))
    main(["evaluate", str(tmp_path / "photos.csv"), "--methods", "none", "--json"])
    answer: Any = json.loads(capsys.readouterr().out)
    assert answer["queries"] == 4
    assert answer["rows"][0]["map"] == {"all": 100.0}
