"""The comparison: every method on the same lists, full rankings, figures that follow from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinrank import evaluate as protocol
from kinrank.errors import InputError, SpecError
from kinrank.evaluation import memory, report, run
from kinrank.evaluation.datasets import open_dataset
from kinrank.evaluation.run import completed, evaluate, split_methods, uses_gallery
from kinrank.evaluation.saved import SavedRankings
from kinrank.spec import reranker
from kinrank.types import unit_rows


def rankings_of(dataset: Any, methods: list[str], ks: list[int]) -> tuple[Any, dict[str, np.ndarray]]:
    kept: dict[str, list[np.ndarray]] = {}
    answer = evaluate(dataset, methods, ks, keep=lambda name, low, r: kept.setdefault(name, []).append(r))
    return answer, {name: np.concatenate(parts) for name, parts in kept.items()}


@pytest.mark.parametrize(
    ("text", "specs"),
    [
        ("none", ["none"]),
        ("none,csa", ["none", "csa"]),
        ("none,alphaqe:k=5,alpha=2,csa", ["none", "alphaqe:k=5,alpha=2", "csa"]),
        ("adba:k=3+aqe:k=2,dfs:k=5,alpha=0.9+csa", ["adba:k=3+aqe:k=2", "dfs:k=5,alpha=0.9+csa"]),
        ("csa:model='a,b=c',none", ["csa:model='a,b=c'", "none"]),
        ("none, aqe:k=3, none", ["none", "aqe:k=3"]),
    ],
)
def test_specs_with_commas_of_their_own(text: str, specs: list[str]) -> None:
    assert split_methods(text) == specs


@pytest.mark.parametrize("text", ["", "none,,csa", "none,"])
def test_no_spec_between_commas(text: str) -> None:
    with pytest.raises(InputError, match="names no method"):
        split_methods(text)


def test_leave_one_out_first_round_by_hand(labelled: Path) -> None:
    dataset = open_dataset(labelled)
    answer, rankings = rankings_of(dataset, ["none"], [10])
    vectors = unit_rows(np.load(labelled)["vectors"])
    for i, ranking in zip(dataset.own, rankings["none"]):
        scores = vectors @ vectors[i]
        others = [j for j in np.argsort(-scores, kind="stable") if j != i]
        np.testing.assert_allclose(scores[ranking], scores[others], atol=1e-6)
        assert i not in ranking and len(set(ranking)) == 48
    labels = np.load(labelled)["labels"]
    full = np.zeros((49, 48), np.int64)
    full[dataset.own] = rankings["none"]
    full[48] = np.arange(48)
    expected = protocol.leave_one_out(full, labels)
    row = answer.as_json()["rows"][0]
    assert row["map"]["all"] == pytest.approx(100 * expected["map"]["all"], abs=1e-3)
    assert row["mp"]["all"]["5"] == pytest.approx(100 * expected["mp"]["all"][5], abs=1e-3)


def test_revisited_figures_follow_from_the_saved_rankings(revisited: Path, tmp_path: Path) -> None:
    dataset = open_dataset(revisited)
    with SavedRankings(tmp_path / "deep" / "r.npz", 5, dataset.size) as saved:
        answer = evaluate(dataset, ["none", "aqe:k=3", "affinity"], [20], keep=saved.keep)
    stored = np.load(tmp_path / "deep" / "r.npz")
    assert stored.files == ["none", "aqe:k=3", "affinity"]
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["r.npz"]
    import pickle

    gnd = pickle.loads((revisited / "gnd_mini.pkl").read_bytes())["gnd"]
    for row in answer.as_json()["rows"]:
        rankings = stored[row["method"]]
        assert (np.sort(rankings, axis=1) == np.arange(100)).all()
        expected = protocol.revisited(rankings, gnd)
        for setting in ("easy", "medium", "hard"):
            assert row["map"][setting] == pytest.approx(100 * expected["map"][setting], abs=1e-3)
            for k in (1, 5, 10):
                assert row["mp"][setting][str(k)] == pytest.approx(100 * expected["mp"][setting][k], abs=1e-3)


def test_the_tail_keeps_its_first_order(revisited: Path) -> None:
    _, rankings = rankings_of(open_dataset(revisited), ["none", "affinity"], [20])
    first, second = rankings["none"], rankings["affinity"]
    assert (first[:, :20] != second[:, :20]).any()
    np.testing.assert_array_equal(np.sort(first[:, :20]), np.sort(second[:, :20]))
    np.testing.assert_array_equal(first[:, 20:], second[:, 20:])


def test_a_second_search_brings_new_images(revisited: Path) -> None:
    dataset = open_dataset(revisited)
    _, rankings = rankings_of(dataset, ["none", "aqe:k=3"], [6])
    new = [set(b[:6]) - set(a[:6]) for a, b in zip(rankings["none"], rankings["aqe:k=3"])]
    assert any(new), "aqe searched the gallery again and should have found something else"
    fitted = reranker("aqe:k=3").fit(dataset.gallery)
    expected = fitted.relist(dataset.gallery.search(dataset.queries[2], 6))
    np.testing.assert_array_equal(rankings["aqe:k=3"][2][:6], expected.ids)


def test_completed() -> None:
    # Row 4 is the query itself: a second search found it, and it is dropped.
    order = np.array([3, 1, 0, 2])
    np.testing.assert_array_equal(completed(np.array([4, 0, 3]), order, 5), [0, 3, 1, 2])


def test_several_k_and_a_k_beyond_the_gallery(revisited: Path) -> None:
    answer, rankings = rankings_of(open_dataset(revisited), ["affinity"], [5, 10**6, 50])
    assert [row.k for row in answer.rows] == [5, 50, 100]
    assert list(rankings) == ["affinity@5", "affinity@50", "affinity@100"]


def test_figures_are_those_of_real_work(revisited: Path) -> None:
    row = evaluate(open_dataset(revisited), ["affinity"], [50]).as_json()["rows"][0]
    assert 0 < row["latency_ms"]["p50"] <= row["latency_ms"]["p95"]


def test_memory_sees_what_was_held() -> None:
    with memory.watched() as peak:
        np.ones(20 << 20).sum()
    assert 140 < peak.mb < 400
    assert peak.kept_mb < 100
    highest = memory.highest_mb()
    with memory.watched():
        pass  # it resets the system's own mark
    assert memory.highest_mb() >= highest >= peak.mb
    assert 160 < memory.allocated_mb(lambda: np.ones(20 << 20).sum()) < 162


def test_geometry_sees_the_pictures(tmp_path: Path) -> None:
    """Weak vectors, and pictures that tell: one texture a class, seen through another window each time."""
    pytest.importorskip("cv2", reason="local features need the extra 'local'")
    from PIL import Image

    from kinrank.cli import main
    from kinrank.features.local import companion

    rng = np.random.default_rng(0)
    names = []
    for label in range(4):
        small = Image.fromarray(rng.integers(0, 255, (40, 40), dtype=np.uint8))
        texture = small.resize((400, 400), Image.Resampling.BICUBIC)
        for view in range(3):
            corner = 20 * view
            names.append(f"{label}_{view}.png")
            (tmp_path / "pictures").mkdir(exist_ok=True)
            texture.crop((corner, corner, corner + 300, corner + 300)).save(tmp_path / "pictures" / names[-1])
    vectors = rng.normal(size=(12, 16))
    np.savez(tmp_path / "pictures" / "set.npz", vectors=vectors, labels=np.arange(12) // 3, paths=names)
    main(["index", str(tmp_path / "pictures"), "-g", str(tmp_path / "p.kin"), "--local", "--json"])
    features = companion(tmp_path / "p.kin")
    dataset = open_dataset(tmp_path / "pictures" / "set.npz")
    specs = ["none", f"ransac:features='{features}'", f"aqe:k=1+ransac:features='{features}'"]
    first, *rows = evaluate(dataset, specs, [12]).as_json()["rows"]
    assert first["map"]["all"] < 60
    assert rows[0]["map"]["all"] > 99 and rows[1]["map"]["all"] > 90


def test_who_uses_the_gallery() -> None:
    assert not uses_gallery(reranker("none"))
    assert not uses_gallery(reranker("affinity"))
    assert uses_gallery(reranker("affinity+aqe"))


def test_unknown_methods_and_lengths(revisited: Path) -> None:
    with pytest.raises(SpecError, match="unknown"):
        evaluate(open_dataset(revisited), ["nosuch"])
    with pytest.raises(InputError, match="at least 1"):
        evaluate(open_dataset(revisited), ["none"], [0])


def test_distractors_lower_the_answer_and_are_never_right(revisited: Path) -> None:
    before = evaluate(open_dataset(revisited), ["none"]).as_json()["rows"][0]["map"]["medium"]
    near = np.load(revisited / "features.npz")["queries"].repeat(20, axis=0)
    near = near + 0.3 * np.random.default_rng(0).normal(size=near.shape)
    np.save(revisited / "distractors.npy", near.astype(np.float16))
    after = evaluate(open_dataset(revisited), ["none"]).as_json()["rows"][0]["map"]["medium"]
    assert after < before - 20


def test_blocks_change_nothing(labelled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = open_dataset(labelled)
    whole = rankings_of(dataset, ["none", "aqe:k=2"], [10])[1]
    monkeypatch.setattr(run, "BLOCK_BYTES", 4 * 49 * 7)
    small = rankings_of(dataset, ["none", "aqe:k=2"], [10])[1]
    for name, rankings in whole.items():
        np.testing.assert_array_equal(rankings, small[name])


def test_report(revisited: Path, tmp_path: Path) -> None:
    from PIL import Image

    (revisited / "jpg").mkdir()
    for name in [*(f"image_{i:03}" for i in range(100)), *(f"query_{i}" for i in range(5))]:
        Image.new("RGB", (64, 48), "navy").save(revisited / "jpg" / f"{name}.jpg")
    (revisited / "jpg" / "image_000.jpg").write_bytes(b"damaged")
    answer = evaluate(open_dataset(revisited), ["none", "affinity"], [20])
    written = report.write(answer, tmp_path / "out")
    names = {path.name for path in written}
    assert {"evaluation.json", "map.png", "gains.png", "index.html", "gained_1_affinity_20.png"} <= names
    page = (tmp_path / "out" / "index.html").read_text()
    assert all(name in page for name in names if name.endswith(".png"))
    stored = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert len(stored["average_precision"]["affinity@20"]["hard"]) == 5
    with Image.open(tmp_path / "out" / "gained_1_affinity_20.png") as sheet:
        colours = {colour for _, colour in sheet.getcolors(1 << 20)}
    assert (46, 158, 65) in colours and (208, 48, 48) in colours  # borders of right and of wrong ones
    several = evaluate(open_dataset(revisited), ["affinity"], [5, 20])
    names = {path.name for path in report.write(several, tmp_path / "two")}
    assert {"map_over_k.png", "latency_over_k.png"} <= names


@pytest.mark.shared
def test_the_real_roxford(shared_data: Path) -> None:
    row = evaluate(open_dataset(shared_data / "roxford5k"), ["none"]).as_json()["rows"][0]
    assert {name: round(value, 1) for name, value in row["map"].items()} == {
        "easy": 28.9,
        "medium": 21.1,
        "hard": 4.6,
    }


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "map_", "first"), [("grocery_effl0", 36.7, 94.2), ("omniglot_effl0", 28.5, 62.5)]
)
def test_the_real_labelled_sets(shared_data: Path, name: str, map_: float, first: float) -> None:
    # The published figures are those of every fifth image.
    row = evaluate(open_dataset(shared_data / f"{name}.npz"), ["none"], [1]).rows[0]
    assert round(100 * row.ap["all"][::5].mean(), 1) == map_
    assert round(100 * row.precision["all"][::5, 0].mean(), 1) == first
