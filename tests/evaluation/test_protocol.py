"""The protocol against a second, slow one written from the definition, and against figures worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinrank import evaluate
from kinrank.errors import InputError


def slow_ap(ranking: list[int], positives: set[int], junk: set[int]) -> float:
    """Average precision, image by image: walk down the list, skip junk, add a trapezoid at each positive."""
    if not positives:
        return float("nan")
    area, seen, found = 0.0, 0, 0
    for image in ranking:
        if image in junk:
            continue
        if image in positives:
            before = 1.0 if seen == 0 else found / seen
            found += 1
            after = found / (seen + 1)
            area += (before + after) / 2 / len(positives)
        seen += 1
    return area


def slow_precision(ranking: list[int], positives: set[int], junk: set[int], k: int) -> float:
    if not positives:
        return float("nan")
    kept = [image for image in ranking if image not in junk]
    hits = [rank for rank, image in enumerate(kept, 1) if image in positives]
    if not hits:
        return 0.0
    depth = min(k, hits[-1])
    return sum(rank <= depth for rank in hits) / depth


@st.composite
def judged(draw: st.DrawFn) -> tuple[list[int], set[int], set[int]]:
    """A ranking by tied scores, cut off or not, with positives that may be absent from it, and junk."""
    size = draw(st.integers(1, 40))
    scores = np.array(draw(st.lists(st.integers(0, 5), min_size=size, max_size=size)))
    order = np.argsort(-scores, kind="stable").tolist()[: draw(st.integers(0, size))]
    kinds = draw(st.lists(st.sampled_from("pjn"), min_size=size + 5, max_size=size + 5))
    positives = {i for i, kind in enumerate(kinds) if kind == "p"}
    return order, positives, {i for i, kind in enumerate(kinds) if kind == "j"}


@given(judged(), st.integers(1, 12))
@settings(max_examples=400, deadline=None)
def test_agrees_with_the_definition(case: tuple[list[int], set[int], set[int]], k: int) -> None:
    ranking, positives, junk = case
    np.testing.assert_allclose(
        evaluate.average_precision(ranking, positives, junk), slow_ap(ranking, positives, junk), atol=1e-12
    )
    np.testing.assert_allclose(
        evaluate.precision_at(ranking, positives, k, junk), slow_precision(ranking, positives, junk, k)
    )


def test_by_hand() -> None:
    # Ranks 1 and 3 of three positives, the third absent: ((1 + 1)/2 + (1/2 + 2/3)/2) / 3.
    assert evaluate.average_precision([7, 1, 8, 2], [7, 8, 99]) == pytest.approx((1 + 7 / 12) / 3)
    # The same when junk stands between, before and after.
    assert evaluate.average_precision([5, 7, 6, 1, 8, 2], [7, 8, 99], [5, 6]) == pytest.approx(19 / 36)
    # The last positive is third, so mP@10 looks at three: 2/3; mP@2 at two: 1/2.
    assert evaluate.precision_at([7, 1, 8, 2], [7, 8], 10) == pytest.approx(2 / 3)
    assert evaluate.precision_at([7, 1, 8, 2], [7, 8], 2) == pytest.approx(1 / 2)
    assert evaluate.average_precision([3, 4], [5]) == 0
    assert evaluate.precision_at([3, 4], [5], 1) == 0


def test_one_positive_has_a_closed_form() -> None:
    # A single positive at rank r: 1 at the top, otherwise 1 / (2 r).
    for rank in range(1, 30):
        ranking = np.arange(30)
        expected = 1.0 if rank == 1 else 1 / (2 * rank)
        assert evaluate.average_precision(ranking, [rank - 1]) == pytest.approx(expected)


def test_means_skip_queries_without_a_positive() -> None:
    rankings = np.array([[0, 1, 2], [2, 1, 0], [1, 0, 2]])
    positives = [[0], [], [0]]
    assert evaluate.mean_average_precision(rankings, positives) == pytest.approx((1 + 1 / 4) / 2)
    assert evaluate.mean_precision_at(rankings, positives, 1) == pytest.approx(1 / 2)
    assert evaluate.mean_precision_at(rankings, positives) == pytest.approx({1: 0.5, 5: 0.75, 10: 0.75})
    assert np.isnan(evaluate.mean_average_precision(rankings, [[], [], []]))


def test_revisited_settings() -> None:
    gnd = [{"easy": [0], "hard": [1], "junk": [2]}, {"easy": [], "hard": [3], "junk": []}]
    rankings = [[2, 1, 0, 3], [0, 1, 2, 3]]
    answer = evaluate.revisited(rankings, gnd)
    # Easy: the first query alone, junk 2 and hard 1 out, so 0 is first.
    # Medium: [1, 0, 3] with both right; [0, 1, 2, 3] with the last right. Hard: 2 and 0 out; the same.
    assert answer["map"] == pytest.approx({"easy": 1.0, "medium": (1 + 1 / 8) / 2, "hard": (1 + 1 / 8) / 2})
    assert answer["mp"]["easy"] == {1: 1.0, 5: 1.0, 10: 1.0}
    assert answer["mp"]["hard"] == pytest.approx({1: 0.5, 5: (1 + 1 / 4) / 2, 10: (1 + 1 / 4) / 2})


def test_leave_one_out_against_the_definition() -> None:
    rng = np.random.default_rng(0)
    labels = np.array([0, 0, 0, 1, 1, 2, 3, 3, 3, 3])
    rankings = np.stack([rng.permutation(10) for _ in labels])
    aps = []
    for i, ranking in enumerate(rankings):
        same = {j for j in range(10) if labels[j] == labels[i] and j != i}
        aps.append(slow_ap([j for j in ranking.tolist() if j != i], same, set()))
    assert evaluate.leave_one_out(rankings, labels)["map"]["all"] == pytest.approx(np.nanmean(aps))
    assert np.isnan(aps[5])  # the label that occurs once is no query


def test_string_ids() -> None:
    assert evaluate.average_precision(np.array(["b", "a"]), ["a"]) == pytest.approx(1 / 4)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: evaluate.average_precision([1, 1], [1]), "twice"),
        (lambda: evaluate.average_precision(["1", "2"], [1]), "never meet"),
        (lambda: evaluate.average_precision([[1, 2]], [1]), "one dimension"),
        (lambda: evaluate.precision_at([1], [1], 0), "at least 1"),
        (lambda: evaluate.mean_average_precision([[1]], [[1], [2]]), "one of each"),
        (lambda: evaluate.leave_one_out([[1]], [0, 0]), "each image is a query"),
    ],
)
def test_bad_input_is_refused(call: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()  # type: ignore[operator]
