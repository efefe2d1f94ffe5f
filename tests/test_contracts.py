"""The same laws over every registered re-ranker, alone and in chains.

A new method needs no test here: it is found in the registry. A method that works on the whole
gallery is fitted to one in memory; one that needs more than a gallery (local features, say) gets a
line in PREPARED (prepared.py); one whose trained model is not there must say how to train it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import kinrank
from kinrank.errors import InputError, KinrankError, NotFittedError
from kinrank.registry import registry
from kinrank.rerankers.base import Reranker, rerank_head
from kinrank.rerankers.chain import Chain
from kinrank.spec import reranker
from kinrank.types import Candidates, Ranking, as_ids
from prepared import PREPARED

NAMES = list(registry("rerankers"))
CHAINS = [f"{name}+affinity" for name in NAMES] + [f"aqe:k=3+{name}" for name in NAMES]
SPECS = NAMES + CHAINS


@cache
def untrained(spec: str) -> str | None:
    """What a method says whose trained model is missing; None when it has all it needs."""
    vectors = np.eye(3, 4, dtype=np.float32) + 0.1
    for name in (part.partition(":")[0] for part in spec.split("+")):
        if name in PREPARED:
            continue
        try:
            method = reranker(name)
            if not method.needs_fit:
                method.rerank(Candidates.from_vectors(vectors[0], vectors))
        except KinrankError as error:
            if "train" in str(error):
                return str(error)
            raise
    return None


class Maker:
    """Builds the method of a spec, ready to rank lists that come from (ids, vectors)."""

    def __init__(self, spec: str, gallery_type: Any) -> None:
        self.spec, self.gallery_type = spec, gallery_type

    def __call__(self, ids: Any, vectors: Any, spec: str | None = None) -> Reranker:
        stages = [
            PREPARED[part](ids, vectors) if part in PREPARED else reranker(part)
            for part in (spec or self.spec).split("+")
        ]
        method = stages[0] if len(stages) == 1 else Chain(stages)
        return method.fit(self.gallery_type(vectors, ids)) if method.needs_fit else method


@pytest.fixture(params=SPECS)
def make(request: pytest.FixtureRequest, memory_gallery: Any) -> Maker:
    if untrained(request.param):
        pytest.skip(
            f"{request.param}: no trained model is there (test_untrained_says_how checks what it says)"
        )
    return Maker(request.param, memory_gallery)


@pytest.fixture(params=NAMES)
def make_single(request: pytest.FixtureRequest, memory_gallery: Any) -> Maker:
    if untrained(request.param):
        pytest.skip(
            f"{request.param}: no trained model is there (test_untrained_says_how checks what it says)"
        )
    return Maker(request.param, memory_gallery)


@pytest.fixture(scope="module")
def world(clusters: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(ids, vectors, query) with structure: 96 vectors of 12 classes, the query near one of them."""
    vectors, _ = clusters(seed=3)
    rng = np.random.default_rng(4)
    query = vectors[5] + 0.5 * rng.normal(size=vectors.shape[1]) / np.sqrt(vectors.shape[1])
    return np.arange(100, 100 + len(vectors)), vectors, query.astype(np.float32)


def by_id(ranking: Ranking) -> np.ndarray:
    """Scores in the order of the sorted ids, standardised, so that two rankings can be compared."""
    scores = ranking.scores[np.argsort(ranking.ids)].astype(np.float64)
    return (scores - scores.mean()) / (scores.std() + 1e-6)


def assert_same(left: Ranking, right: Ranking) -> None:
    """The same ids with the same scores, up to rounding."""
    assert sorted(left.ids.tolist()) == sorted(right.ids.tolist())
    np.testing.assert_allclose(by_id(left), by_id(right), atol=5e-3)


def test_the_answer_is_a_permutation(make: Maker, world: Any) -> None:
    ids, vectors, query = world
    candidates = Candidates.from_vectors(query, vectors, ids, k=40)
    ranking = make(ids, vectors).rerank(candidates)
    assert isinstance(ranking, Ranking)
    assert sorted(ranking.ids.tolist()) == sorted(candidates.ids.tolist())
    assert ranking.scores.dtype == np.float32
    assert (np.diff(ranking.scores) <= 0).all()


def test_the_same_input_gives_the_same_answer(make: Maker, world: Any) -> None:
    ids, vectors, query = world
    candidates = Candidates.from_vectors(query, vectors, ids, k=40)
    method = make(ids, vectors)
    first, second, other = (m.rerank(candidates) for m in (method, method, make(ids, vectors)))
    for again in (second, other):
        assert first.ids.tolist() == again.ids.tolist()
        assert first.scores.tolist() == again.scores.tolist()


def test_many_at_once_are_as_one_by_one(make: Maker, world: Any) -> None:
    ids, vectors, query = world
    lists = [
        Candidates.from_vectors(q, vectors, ids, k)
        for q, k in ((query, 40), (vectors[7], 40), (vectors[9], 7))
    ]
    method = make(ids, vectors)
    answers = method.rerank_many(iter(lists))
    assert len(answers) == len(lists)
    for answer, candidates in zip(answers, lists):
        assert_same(answer, method.rerank(candidates))
    assert method.rerank_many([]) == []


def test_equal_scores_keep_the_first_order(make_single: Maker, world: Any) -> None:
    """Copies of one vector are equal for any method that ranks by vectors; numbers are exact in binary."""
    block = np.zeros((24, 8), np.float32)
    block[:12, 0] = 1
    block[12:, 1] = 1
    ids = np.arange(24)[::-1].copy()
    query = np.array([1, 0, 0, 0, 0, 0, 0, 0], np.float32)
    candidates = Candidates.from_vectors(query, block, ids)
    ranking = make_single(ids, block).rerank(candidates)
    place = {value: i for i, value in enumerate(candidates.ids.tolist())}
    places = np.array([place[value] for value in ranking.ids.tolist()])
    tied = np.diff(ranking.scores) == 0
    assert (np.diff(places)[tied] > 0).all()


def test_the_tail_is_kept(make: Maker, world: Any) -> None:
    ids, vectors, query = world
    candidates = Candidates.from_vectors(query, vectors, ids, k=50)
    method = make(ids, vectors)
    ranking = rerank_head(method, candidates, k=20)
    assert len(ranking) == 50
    assert ranking.ids[20:].tolist() == candidates.ids[20:].tolist()
    assert ranking.ids[:20].tolist() == method.rerank(candidates.head(20)).ids.tolist()
    assert (np.diff(ranking.scores) <= 0).all()


def test_the_input_is_not_touched(make: Maker, world: Any) -> None:
    ids, vectors, query = (array.copy() for array in world)
    candidates = Candidates.from_vectors(query, vectors, ids, k=40)
    before = [a.copy() for a in (candidates.ids, candidates.scores, candidates.vectors, candidates.query)]
    make(ids, vectors).rerank(candidates)
    for array, copy in zip((ids, vectors, query), world):
        assert (array == copy).all()
    for array, copy in zip((candidates.ids, candidates.scores, candidates.vectors, candidates.query), before):
        assert (array == copy).all()


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_shortest_lists(make: Maker, world: Any, k: int) -> None:
    ids, vectors, query = world
    candidates = Candidates.from_vectors(query, vectors, ids, k=k)
    ranking = make(ids, vectors).rerank(candidates)
    assert sorted(ranking.ids.tolist()) == sorted(candidates.ids.tolist())


@pytest.mark.parametrize("size", [1, 2, 5])
def test_k_beyond_the_gallery(make: Maker, world: Any, size: int) -> None:
    ids, vectors, query = world[0][:size], world[1][:size], world[2]
    candidates = Candidates.from_vectors(query, vectors, ids, k=1000)
    assert len(candidates) == size
    ranking = rerank_head(make(ids, vectors), candidates, k=1000)
    assert sorted(ranking.ids.tolist()) == sorted(ids.tolist())


def test_duplicates_of_the_query(make: Maker, world: Any) -> None:
    ids, vectors, query = world
    vectors = vectors.copy()
    vectors[[3, 11, 17, 60]] = query / np.linalg.norm(query)
    candidates = Candidates.from_vectors(query, vectors, ids, k=40)
    ranking = make(ids, vectors).rerank(candidates)
    assert sorted(ranking.ids.tolist()) == sorted(candidates.ids.tolist())


def test_a_list_of_nothing_but_the_query(make: Maker) -> None:
    vectors = np.tile(np.array([[3.0, 4.0, 0.0]], np.float32), (9, 1))
    ranking = make(np.arange(9), vectors).rerank(Candidates.from_vectors(vectors[0], vectors))
    assert sorted(ranking.ids.tolist()) == list(range(9))


@pytest.mark.parametrize("form", ["float16", "float64", "strided", "fortran", "scaled"])
def test_other_forms_of_the_same_numbers(make_single: Maker, world: Any, form: str) -> None:
    ids, vectors, query = world
    vectors, query = vectors.astype(np.float16), query.astype(np.float16)  # exact in every form
    plain = vectors.astype(np.float32), query.astype(np.float32)
    strided = np.repeat(plain[0], 2, axis=1)[:, ::2]
    assert not strided.flags.c_contiguous
    other = {
        "float16": (vectors, query),
        "float64": (plain[0].astype(np.float64), plain[1].astype(np.float64)),
        "strided": (strided, np.repeat(plain[1], 3)[::3]),
        "fortran": (np.asfortranarray(plain[0]), plain[1]),
        "scaled": (plain[0] * 1000, plain[1] * 0.001),
    }[form]
    method = make_single(ids, plain[0])
    expected = kinrank.rerank(plain[1], plain[0], ids, method=method, k=40)
    answer = kinrank.rerank(other[1], other[0], ids, method=method, k=40)
    assert_same(answer, expected)


@pytest.mark.parametrize("kind", ["int32", "unicode", "object"])
def test_ids_are_only_names(make_single: Maker, world: Any, kind: str) -> None:
    ids, vectors, query = world
    names = {
        "int32": ids.astype(np.int32),
        "unicode": np.array([f"Küche/bild {i} 猫.jpg" for i in ids]),
        "object": np.array([f"p{i}" for i in ids], dtype=object),
    }[kind]
    numbered = make_single(ids, vectors).rerank(Candidates.from_vectors(query, vectors, ids, 40))
    named = make_single(names, vectors).rerank(Candidates.from_vectors(query, vectors, names, 40))
    to_name = dict(zip(ids.tolist(), as_ids(names).tolist()))
    assert named.ids.tolist() == [to_name[i] for i in numbered.ids.tolist()]
    assert named.ids.dtype.kind == ("i" if kind == "int32" else "U")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 0.0])
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_bad_numbers_are_refused_by_name(make_single: Maker, world: Any, bad: float, kind: Any) -> None:
    ids, vectors, query = world
    method = make_single(ids, vectors)
    broken = vectors.astype(kind)
    if bad == 0:
        broken[6] = 0
    else:
        broken[6, 2] = bad
    with pytest.raises(InputError, match=r"vectors row 6 \(id 106\).*(zero vector|NaN or infinity)"):
        kinrank.rerank(query, broken, ids, method=method)
    with pytest.raises(InputError, match=r"query row 0.*(zero vector|NaN or infinity)"):
        kinrank.rerank(broken[6], vectors, ids, method=method)


def test_a_wrong_dimension_is_refused(make_single: Maker, world: Any) -> None:
    ids, vectors, query = world
    with pytest.raises(InputError, match="the query has 23 dimensions, the vectors have 24"):
        kinrank.rerank(query[:-1], vectors, ids, method=make_single(ids, vectors))


def test_none_changes_nothing_in_a_chain(make_single: Maker, world: Any) -> None:
    ids, vectors, query = world
    spec = make_single.spec
    if spec in PREPARED:
        pytest.skip("needs more than a gallery")
    candidates = Candidates.from_vectors(query, vectors, ids, k=40)
    alone = make_single(ids, vectors).rerank(candidates)
    for chain in (f"none+{spec}", f"{spec}+none"):
        assert_same(make_single(ids, vectors, chain).rerank(candidates), alone)


@pytest.mark.parametrize("name", NAMES)
def test_methods_that_need_the_gallery_say_so(name: str, world: Any) -> None:
    if untrained(name):
        pytest.skip("no trained model is there")
    ids, vectors, query = world
    method = PREPARED[name](ids, vectors) if name in PREPARED else reranker(name)
    candidates = Candidates.from_vectors(query, vectors, ids, k=40)
    if method.needs_fit:
        with pytest.raises(NotFittedError, match=r"fit"):
            method.rerank(candidates)
        with pytest.raises(NotFittedError, match=r"fit"):
            reranker(f"none+{name}").rerank(candidates)
    else:
        assert len(method.rerank(candidates)) == 40


@pytest.mark.parametrize("name", NAMES)
def test_fit_returns_the_method(name: str, world: Any, memory_gallery: Any) -> None:
    if untrained(name) or name in PREPARED:
        pytest.skip("needs more than a gallery")
    ids, vectors, query = world
    gallery = memory_gallery(vectors, ids)
    method = reranker(name)
    assert method.fit(gallery) is method
    candidates = gallery.search(query, 40)
    assert sorted(method.rerank(candidates).ids.tolist()) == sorted(candidates.ids.tolist())
    assert len(method.relist(candidates)) == 40, "a chain's next stage gets a list of the same length"


@pytest.mark.parametrize("name", NAMES)
def test_candidates_from_elsewhere(name: str, world: Any, memory_gallery: Any) -> None:
    """A list that is not from the fitted gallery is ranked whole or refused in words; nothing else."""
    if untrained(name) or name in PREPARED:
        pytest.skip("needs more than a gallery")
    ids, vectors, query = world
    method = reranker(name).fit(memory_gallery(vectors, ids))
    for list_ids, rows in ((ids + 5000, vectors), (ids, vectors[:, :12])):
        candidates = Candidates.from_vectors(query[: rows.shape[1]], rows, list_ids, k=30)
        try:
            ranking = method.rerank(candidates)
        except KinrankError as error:
            assert len(str(error)) > 20
            continue
        assert sorted(ranking.ids.tolist()) == sorted(candidates.ids.tolist())


@pytest.mark.parametrize("name", NAMES)
def test_similarities_alone(name: str, world: Any) -> None:
    """What `needs_vectors` promises is kept: the list is ranked, or refused with the cure."""
    if untrained(name) or name in PREPARED:
        pytest.skip("needs more than a list")
    ids, vectors, query = world
    method = reranker(name)
    if method.needs_fit:
        pytest.skip("works on the whole gallery")
    whole = Candidates.from_vectors(query, vectors, ids, k=40)
    table = Candidates.from_similarities(whole.affinity(), whole.ids)
    if method.needs_vectors:
        with pytest.raises(InputError, match="needs vectors"):
            method.rerank(table)
    else:
        assert_same(method.rerank(table), method.rerank(whole))


@pytest.mark.parametrize("name", NAMES)
def test_untrained_says_how(name: str) -> None:
    said = untrained(name)
    if said is None:
        pytest.skip("has all it needs")
    assert "\n" not in said
    assert "kinrank train" in said


@pytest.mark.parametrize("name", NAMES)
def test_every_method_says_what_it_is(name: str) -> None:
    from kinrank.registry import load

    method = load("rerankers", name)
    first = (method.__doc__ or "").strip().splitlines()[0]
    assert len(first) > 10
    assert first.endswith(".")
    assert issubclass(method, Reranker)
