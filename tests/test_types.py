"""Candidates and Ranking: what they accept, what they refuse, and in which words."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kinrank.errors import InputError
from kinrank.types import Candidates, Ranking, as_ids, stable_order, unit_rows


def some(n: int = 5, d: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=d), rng.normal(size=(n, d))


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(
        st.sampled_from([np.float16, np.float32, np.float64]),
        st.tuples(st.integers(1, 6), st.integers(1, 9)),
        elements=st.floats(-100, 100, width=16).filter(lambda x: x == 0 or abs(x) > 1e-3),
    )
)
def test_unit_rows_agree_with_double_precision(array: np.ndarray) -> None:
    lengths = np.sqrt((array.astype(np.float64) ** 2).sum(axis=1))
    if (lengths == 0).any():
        with pytest.raises(InputError, match="zero vector"):
            unit_rows(array)
        return
    rows = unit_rows(array)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(rows, array / lengths[:, None].astype(np.float64), atol=2e-7)


@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1e30, 3e38])
def test_unit_rows_survive_huge_and_tiny_values(scale: float) -> None:
    rows = unit_rows(np.array([[3.0, 4.0]]) / 5 * scale)
    np.testing.assert_allclose(rows, [[0.6, 0.8]], rtol=1e-6)


def test_unit_rows_of_whole_numbers_and_of_nothing() -> None:
    np.testing.assert_allclose(unit_rows(np.array([[3, -4]])), [[0.6, -0.8]], rtol=1e-6)
    assert unit_rows(np.zeros((0, 7))).shape == (0, 7)


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (np.zeros(4), r"shape \(n, d\) with d >= 1, got \(4,\)"),
        (np.zeros((2, 0)), "d >= 1"),
        (np.array([["a", "b"]]), "real numbers"),
        (np.array([[1j, 1]]), "real numbers"),
        (np.array([[True, False]]), "real numbers"),
        ([[1.0, 2.0], [np.nan, 1.0]], "row 1 holds NaN"),
        ([[1.0, 2.0], [0.0, -np.inf]], "row 1 holds NaN or infinity"),
        ([[0.0, 0.0]], "row 0 is a zero vector"),
    ],
)
def test_unit_rows_refuse(vectors: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        unit_rows(vectors)


@pytest.mark.parametrize(
    ("ids", "kind", "values"),
    [
        ([3, 1], np.int64, [3, 1]),
        (np.array([7, 8], np.uint8), np.int64, [7, 8]),
        (["b", "ä"], None, ["b", "ä"]),
        (np.array(["x", "long"], dtype=object), None, ["x", "long"]),
        ([], np.int64, []),
    ],
)
def test_ids_in_one_of_two_kinds(ids: Any, kind: Any, values: list[Any]) -> None:
    array = as_ids(ids)
    assert array.tolist() == values
    assert array.dtype == kind if kind else array.dtype.kind == "U"


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[1, 2]], "one dimension"),
        ([1.5, 2.0], "integers or strings.*cure"),
        ([True, False], "integers or strings"),
        (np.array([1, "a"], dtype=object), "integers or strings"),
        ([b"raw"], "integers or strings"),
        (np.array([2**63], np.uint64), "does not fit"),
    ],
)
def test_ids_of_another_kind_are_refused(ids: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        as_ids(ids)


def test_from_vectors_ranks_by_cosine() -> None:
    query, vectors = some(50, 6)
    candidates = Candidates.from_vectors(query, vectors * 9, k=20)
    cosines = vectors @ query / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query)
    assert candidates.ids.tolist() == np.argsort(-cosines)[:20].tolist()
    np.testing.assert_allclose(candidates.scores, np.sort(cosines)[::-1][:20], atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(candidates.vectors, axis=1), 1, atol=1e-6)


def test_equal_cosines_keep_the_order_given() -> None:
    candidates = Candidates.from_vectors([1, 0], [[0, 1], [1, 0], [0, 1], [1, 0]], ids=["d", "c", "b", "a"])
    assert candidates.ids.tolist() == ["c", "a", "d", "b"]
    assert stable_order([1, 2, 2, 1]).tolist() == [1, 2, 0, 3]


def test_values_are_frozen() -> None:
    candidates = Candidates.from_vectors(*some())
    with pytest.raises(dataclasses.FrozenInstanceError):
        candidates.ids = np.arange(5)  # type: ignore[misc]
    for array in (candidates.ids, candidates.scores, candidates.vectors, candidates.query):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_freezing_leaves_the_callers_arrays_writable() -> None:
    ids, scores = np.arange(2), np.array([1, 0.5], np.float32)
    vectors, query = np.eye(2, dtype=np.float32), np.array([1, 0], np.float32)
    Candidates(ids, scores, vectors, query)
    for array in (ids, scores, vectors, query):
        assert array.flags.writeable


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": [1.0, 0.5]}, r"scores must have shape \(3,\)"),
        ({"scores": [0.1, 0.5, 0.9]}, "best first"),
        ({"scores": [1.0, np.nan, 0.1]}, r"scores\[1\] is NaN"),
        ({"ids": [1, 2, 2]}, "unique: 2 occurs 2 times"),
        ({"ids": [1, 2]}, "scores must have shape"),
        ({"vectors": np.eye(4)}, "4 vectors for 3 ids"),
        ({"query": [1.0, 0.0]}, "the query has 2 dimensions, the vectors have 3"),
        ({"query": np.eye(3)}, "query must have one dimension"),
        ({"query": [0.0, 0.0, 0.0]}, "query row 0 is a zero vector"),
    ],
)
def test_candidates_refuse(change: dict[str, Any], message: str) -> None:
    good = {"ids": [1, 2, 3], "scores": [1.0, 0.5, 0.1], "vectors": np.eye(3), "query": [1.0, 0.0, 0.0]}
    Candidates(**good)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=message):
        Candidates(**{**good, **change})  # type: ignore[arg-type]


def test_an_empty_list_names_the_cure() -> None:
    with pytest.raises(InputError, match=r"empty; cure"):
        Candidates([], [], np.zeros((0, 3)), [1.0, 0, 0])  # type: ignore[arg-type]


@pytest.mark.parametrize("k", [0, -1, 1.5, True, "3"])
def test_k_is_a_whole_number(k: Any) -> None:
    with pytest.raises(InputError, match="whole number of at least 1"):
        Candidates.from_vectors(*some(), k=k)


def test_head_and_take() -> None:
    candidates = Candidates.from_vectors(*some(9))
    assert candidates.head(None) is candidates
    assert candidates.head(99) is candidates
    assert candidates.head(4).ids.tolist() == candidates.ids[:4].tolist()
    taken = candidates.take(np.array([2, 0]), np.array([5.0, 4.0]))
    assert taken.ids.tolist() == candidates.ids[[2, 0]].tolist()
    assert (taken.vectors == candidates.vectors[[2, 0]]).all()


def test_similarities_say_the_same_as_vectors() -> None:
    whole = Candidates.from_vectors(*some(12))
    shuffled = np.random.default_rng(1).permutation(12)
    rows = np.concatenate([whole.query[None], whole.vectors[shuffled]])
    table = Candidates.from_similarities(rows @ rows.T, whole.ids[shuffled])
    assert table.ids.tolist() == whole.ids.tolist()
    assert not table.has_vectors
    np.testing.assert_allclose(table.affinity(), whole.affinity(), atol=1e-6)
    np.testing.assert_allclose(table.head(5).affinity(), whole.head(5).affinity(), atol=1e-6)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (np.zeros((3, 4)), r"\(1 \+ K, 1 \+ K\)"),
        (np.zeros((1, 1)), r"\(1 \+ K, 1 \+ K\)"),
        (np.full((3, 3), np.nan), "finite"),
    ],
)
def test_similarities_refused(table: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Candidates.from_similarities(table)
    with pytest.raises(InputError, match="2 candidates, but there are 3 ids"):
        Candidates.from_similarities(np.eye(3), ids=[1, 2, 3])


@pytest.mark.parametrize(
    ("ids", "scores", "message"),
    [
        ([1, 2], [0.1, 0.2], "best first"),
        ([1, 1], [0.2, 0.1], "unique"),
        ([1, 2], [0.2], "shape"),
        ([1, 2], [np.inf, 0.1], r"scores\[0\]"),
    ],
)
def test_rankings_refuse(ids: Any, scores: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Ranking(ids, scores)
