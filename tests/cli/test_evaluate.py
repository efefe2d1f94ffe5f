"""`kinrank evaluate` and `kinrank rerank` as a user runs them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kinrank
from kinrank.cli import main


@pytest.fixture
def kin(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command line; exit code, stdout and stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        try:
            main([str(argument) for argument in arguments])
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def dataset(tmp_path: Path, clusters: Any) -> Path:
    vectors, labels = clusters(6, 5, 12, 0.5, 1)
    path = tmp_path / "set.npz"
    np.savez(path, vectors=vectors, labels=labels)
    return path


def test_evaluate_prints_the_shape_of_the_contract(kin: Any, dataset: Path) -> None:
    code, out, _ = kin("evaluate", dataset, "--methods", "none,alphaqe:k=2,alpha=1", "-k", 20, "--json")
    answer = json.loads(out)
    assert code == 0
    assert (answer["dataset"], answer["queries"]) == ("set", 30)
    assert [row["method"] for row in answer["rows"]] == ["none", "alphaqe:k=2,alpha=1"]
    for row in answer["rows"]:
        assert row["map"].keys() == {"all"} and 20 < row["map"]["all"] <= 100
        assert row["mp"].keys() == {"all"} and row["mp"]["all"].keys() == {"1", "5", "10"}
        assert row["latency_ms"].keys() == {"p50", "p95"}


def test_evaluate_prints_a_table_and_writes_files(kin: Any, dataset: Path, tmp_path: Path) -> None:
    ranking, pages = tmp_path / "r.npz", tmp_path / "pages"
    code, out, _ = kin(
        "evaluate",
        dataset,
        "--methods",
        "none,aqe",
        "--k",
        "5,10",
        "--save-ranking",
        ranking,
        "--report",
        pages,
    )
    assert code == 0
    assert "set: 30 queries, 29 images" in out and str(pages / "index.html") in out
    assert len([line for line in out.splitlines() if line.startswith("aqe ")]) == 2
    assert np.load(ranking)["none@5"].shape == (30, 29)
    assert (pages / "index.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("none.npz",), "there is no data set at"),
        (("SET", "--methods", "nosuch"), "unknown reranker 'nosuch'"),
        (("SET", "--methods", "aqe:k=two"), "not a whole number"),
        (("SET", "--methods", "none,"), "names no method"),
        (("SET", "-k", "ten"), "not a whole number"),
        (("SET", "-k", "0"), "at least 1"),
    ],
)
def test_evaluate_refuses_in_a_line(kin: Any, dataset: Path, arguments: tuple[str, ...], words: str) -> None:
    code, out, err = kin("evaluate", *(str(dataset) if a == "SET" else a for a in arguments))
    assert code != 0 and not out
    assert words in err and "Traceback" not in err


@pytest.fixture
def lists(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "lists.npz", queries=rng.normal(size=(3, 8)), vectors=rng.normal(size=(20, 8)))
    return tmp_path / "lists.npz"


def test_rerank_is_the_python_call(kin: Any, lists: Path) -> None:
    code, out, _ = kin("rerank", lists, "--rerank", "aqe:k=2", "-k", 10, "--json")
    rankings = json.loads(out)["rankings"]
    data = np.load(lists)
    expected = kinrank.rerank_many(data["queries"], data["vectors"], method="aqe:k=2", k=10)
    assert code == 0 and len(rankings) == 3
    for found, wanted in zip(rankings, expected):
        assert found.keys() == {"ids", "scores"}
        assert found["ids"] == wanted.ids.tolist()
        np.testing.assert_allclose(found["scores"], wanted.scores, atol=1e-6)


def test_rerank_own_lists_with_own_ids(kin: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    ids = np.array([[f"q{q}-{i}" for i in range(6)] for q in range(2)])
    vectors = rng.normal(size=(2, 6, 8))
    np.savez(tmp_path / "a.npz", queries=rng.normal(size=(2, 8)), vectors=vectors, ids=ids)
    _, out, _ = kin("rerank", tmp_path / "a.npz", "--rerank", "none", "--json")
    assert [set(r["ids"]) for r in json.loads(out)["rankings"]] == [set(row) for row in ids.tolist()]
    np.savez(tmp_path / "b.npz", query=vectors[0, 0], vectors=vectors[0], ids=ids[0])
    code, out, _ = kin("rerank", tmp_path / "b.npz", "--rerank", "none", "-o", tmp_path / "out.npz")
    assert (code, out) == (0, "")
    assert np.load(tmp_path / "out.npz")["ids"][0, 0] == "q0-0"
    _, out, _ = kin("rerank", tmp_path / "b.npz", "--rerank", "none")
    assert out.splitlines()[2].split()[:2] == ["1", "q0-0"]


def test_rerank_by_similarities_alone(kin: Any, tmp_path: Path) -> None:
    rows = np.random.default_rng(2).normal(size=(9, 4))
    np.savez(tmp_path / "s.npz", similarities=rows @ rows.T)
    code, out, _ = kin("rerank", tmp_path / "s.npz", "--rerank", "affinity", "--json")
    assert code == 0
    assert sorted(json.loads(out)["rankings"][0]["ids"]) == list(range(8))
    code, _, err = kin("rerank", tmp_path / "s.npz", "--rerank", "aqe")
    assert code == 2 and "needs vectors" in err


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"vectors": np.ones((3, 4))}, "one of query and queries"),
        ({"query": np.ones(4), "queries": np.ones((1, 4)), "vectors": np.ones((3, 4))}, "one of query and"),
        ({"query": np.ones(5), "vectors": np.ones((3, 4))}, "5 dimensions"),
        ({"queries": np.ones(4), "vectors": np.ones((3, 4))}, "queries (Q, d)"),
        ({"queries": np.ones((2, 4)), "vectors": np.ones((3, 5, 4))}, "a list each"),
        ({"query": np.ones(4), "vectors": np.full((3, 4), np.nan)}, "NaN"),
        ({"query": np.ones(4), "vectors": np.ones((3, 4)), "ids": np.arange(2)}, "2"),
        (
            {"queries": np.ones((2, 4)), "vectors": np.ones((2, 3, 4)), "ids": np.ones((3, 3), int)},
            "one each is needed",
        ),
        ({"other": np.ones(4)}, "nothing of these"),
    ],
)
def test_rerank_refuses_in_a_line(kin: Any, tmp_path: Path, arrays: dict[str, Any], words: str) -> None:
    np.savez(tmp_path / "x.npz", **arrays)
    code, out, err = kin("rerank", tmp_path / "x.npz", "--rerank", "none")
    assert code == 2 and not out
    assert words in err and "Traceback" not in err


def test_rerank_without_a_file(kin: Any, tmp_path: Path) -> None:
    code, _, err = kin("rerank", tmp_path / "nothing.npz", "--rerank", "none")
    assert code == 2 and "there is no file" in err


def test_rerank_fits_what_works_on_a_gallery(kin: Any, tmp_path: Path, clusters: Any) -> None:
    """GSS learns on the vectors that all queries share; lists of their own are no gallery."""
    vectors, _ = clusters(6, 8, 12, 0.5, 2)
    ids = np.array([f"p{i}" for i in range(len(vectors) - 2)])
    np.savez(tmp_path / "shared.npz", queries=vectors[:2], vectors=vectors[2:], ids=ids)
    code, out, err = kin("rerank", tmp_path / "shared.npz", "--rerank", "gss", "-k", 20, "--json")
    assert code == 0, err
    assert all(sorted(r["ids"]) == sorted(ids.tolist()) for r in json.loads(out)["rankings"])
    np.savez(tmp_path / "own.npz", queries=vectors[:2], vectors=vectors[2:22].reshape(2, 10, 12))
    code, _, err = kin("rerank", tmp_path / "own.npz", "--rerank", "gss")
    assert code == 2 and "works on a whole gallery; cure: give vectors (N, d)" in err
