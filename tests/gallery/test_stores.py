"""The same laws for every store; a plain list and a full sort say what is right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kinrank.errors import GalleryError, InputError
from kinrank.gallery.gallery import Gallery
from kinrank.spec import reranker
from kinrank.types import unit_rows


def dense(vectors: Any, query: Any, k: int) -> tuple[list[int], list[float]]:
    """Textbook: all cosines in double precision, a full stable sort."""
    x = np.asarray(vectors, np.float64)
    q = np.asarray(query, np.float64)
    cosines = (x @ q) / np.linalg.norm(x, axis=1) / np.linalg.norm(q)
    order = sorted(range(len(x)), key=lambda i: (-cosines[i], i))[:k]
    return order, [float(cosines[i]) for i in order]


@pytest.mark.parametrize("dim", [1, 2, 3, 17, 512, 4096])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_search_is_cosine(make: Any, dim: int, dtype: str) -> None:
    rng = np.random.default_rng(dim)
    vectors = rng.normal(size=(60, dim)) * rng.uniform(1e-3, 1e3, size=(60, 1))
    gallery = make(dim, dtype=dtype)
    gallery.add(np.arange(100, 160), vectors)
    kept = gallery.vectors(np.arange(100, 160))
    tolerance = 1e-6 if dtype == "float32" else 2e-3
    np.testing.assert_allclose(kept, unit_rows(vectors), atol=tolerance)
    assert kept.dtype == np.float32
    query = rng.normal(size=dim)
    for k in (1, 2, 60, 61, 1000):
        found = gallery.search(query, k)
        order, cosines = dense(kept, query, k)
        np.testing.assert_allclose(found.scores, cosines, atol=2e-6)
        if dim > 2:  # below, cosines tie in float32 that differ in float64
            assert (found.ids - 100).tolist() == order
        np.testing.assert_array_equal(found.vectors, gallery.vectors(found.ids))
        np.testing.assert_allclose(found.vectors @ found.query, found.scores, atol=2e-6)


def test_search_ids_agrees_with_search(make: Any) -> None:
    rng = np.random.default_rng(0)
    gallery = make(24)
    gallery.add([f"image {i:03}" for i in range(300)], rng.normal(size=(300, 24)))
    queries = rng.normal(size=(20, 24))
    for k in (1, 7, 300, 999):
        ids, scores = gallery.search_ids(queries, k)
        assert ids.shape == scores.shape == (20, min(k, 300))
        for query, line, values in zip(queries, ids, scores):
            found = gallery.search(query, k)
            np.testing.assert_array_equal(found.ids, line)
            np.testing.assert_array_equal(found.scores, values)


def test_ties_keep_the_order_of_adding(make: Any) -> None:
    """Equal vectors have equal scores to the last bit, also where the list is cut."""
    rng = np.random.default_rng(1)
    one, other = rng.normal(size=(2, 33))
    gallery = make(33)
    numbers = rng.permutation(400)
    for part in np.array_split(numbers, 7):
        gallery.add(part, np.where((part % 3 == 0)[:, None], one, other))
    expected = [n for n in numbers.tolist() if n % 3 == 0]
    for k in (1, 5, 50, 134):
        found = gallery.search(one, k)
        assert found.ids.tolist() == expected[:k]
        assert len(set(found.scores.tolist())) == 1
        assert gallery.search_ids(np.stack([one, one]), k)[0].tolist() == [expected[:k]] * 2


def test_ids_of_both_kinds(make: Any) -> None:
    vectors = np.eye(4)
    numbers = make(4)
    numbers.add([-(2**63), 2**63 - 1, 0, 2**53 + 1], vectors)
    assert numbers.ids().dtype == np.int64
    assert numbers.search(vectors[3], 1).ids.tolist() == [2**53 + 1]
    names = ["", "straße/日本 🖼.jpg", "a'b\"c;--", " x\n"]
    texts = make(4)
    texts.add(names, vectors)
    assert texts.ids().tolist() == names
    assert texts.search(vectors[1], 1).ids.tolist() == [names[1]]
    np.testing.assert_array_equal(texts.vectors(names[::-1]), vectors[::-1])
    assert names[1] in texts and "other" not in texts and 7 not in texts
    assert np.int64(0) in numbers and 5 not in numbers and "0" not in numbers
    for gallery, wrong in ((numbers, ["0"]), (texts, [0])):
        for call in (
            lambda g=gallery, w=wrong: g.add(w, vectors[:1]),
            lambda g=gallery, w=wrong: g.vectors(w),
        ):
            with pytest.raises(InputError, match="one kind of id"):
                call()


def test_life_of_a_gallery(make: Any) -> None:
    """Random adds, replacements and removals against a dict that keeps the order of adding."""
    rng = np.random.default_rng(2)
    gallery, truth = make(8), {}
    states: list[tuple[int, dict[int, bytes]]] = [(gallery.revision, {})]
    for _ in range(40):
        if truth and rng.random() < 0.35:
            gone = rng.choice(list(truth), rng.integers(1, min(len(truth), 20) + 1), replace=False)
            gallery.remove(gone)
            for key in gone.tolist():
                del truth[key]
        else:
            keys = rng.choice(200, rng.integers(1, 40), replace=False)
            rows = rng.normal(size=(len(keys), 8))
            gallery.add(keys, rows, [{"key": int(key), "n": len(states)} for key in keys])
            for key, row in zip(keys.tolist(), unit_rows(rows)):
                truth.pop(key, None)
                truth[key] = (row, {"key": key, "n": len(states)})
        assert gallery.revision > states[-1][0]
        states.append((gallery.revision, {key: row.tobytes() for key, (row, _) in truth.items()}))
        assert len(gallery) == len(truth)
        assert gallery.ids().tolist() == list(truth)
        if truth:
            query = rng.normal(size=8)
            order, _ = dense([row for row, _ in truth.values()], query, 12)
            assert gallery.search(query, 12).ids.tolist() == [list(truth)[i] for i in order]
    some = rng.permutation(list(truth))
    assert gallery.metadata(some) == [truth[key][1] for key in some.tolist()]
    np.testing.assert_array_equal(gallery.vectors(some), [truth[key][0] for key in some.tolist()])
    for size in (1, 7, 1000):
        blocks = list(gallery.blocks(size))
        assert all(len(ids) <= size for ids, _ in blocks)
        np.testing.assert_array_equal(np.concatenate([ids for ids, _ in blocks]), gallery.ids())
        np.testing.assert_array_equal(np.concatenate([v for _, v in blocks]), gallery.vectors(gallery.ids()))
    for revision, then in states:
        added, gone = gallery.changes_since(revision)
        now = states[-1][1]
        assert set(gone.tolist()) == set(then) - set(now)
        changed = {key for key in now if key not in then or then[key] != now[key]}
        # What was replaced by itself counts as replaced too; what is untouched never does.
        assert changed <= set(added.tolist()) <= set(now)
        assert len(added) == len(set(added.tolist()))
    assert [len(part) for part in gallery.changes_since(gallery.revision)] == [0, 0]


BAD = {
    "NaN": (lambda v: v.__setitem__((2, 1), np.nan), r"row 2 \(id 12\) holds NaN"),
    "infinity": (lambda v: v.__setitem__((0, 0), np.inf), r"row 0 \(id 10\) holds NaN or infinity"),
    "zero": (lambda v: v.__setitem__(3, 0), r"row 3 \(id 13\) is a zero vector"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_vectors_are_refused_by_name_and_nothing_is_stored(make: Any, name: str) -> None:
    spoil, message = BAD[name]
    gallery = make(4)
    gallery.add([10], np.ones((1, 4)), [{"kept": True}])
    before, vectors = gallery.revision, np.random.default_rng(0).normal(size=(5, 4))
    spoil(vectors)
    with pytest.raises(InputError, match=message):
        gallery.add(np.arange(10, 15), vectors)
    assert gallery.revision == before and gallery.ids().tolist() == [10]
    assert gallery.metadata([10]) == [{"kept": True}]


def test_bad_calls_are_refused_with_a_reason(make: Any) -> None:
    gallery: Gallery = make(4)
    good = np.eye(4)
    with pytest.raises(GalleryError, match="is empty"):
        gallery.search(good[0], 1)
    calls = {
        "has 5 dimensions|have 5 dimensions": lambda: gallery.add([1], np.ones((1, 5))),
        "3 vectors for 4 ids": lambda: gallery.add([1, 2, 3, 4], good[:3]),
        "ids must be unique: 2": lambda: gallery.add([1, 2, 2, 3], good),
        "must be integers or strings": lambda: gallery.add([1.5, 2, 3, 4], good),
        "shape": lambda: gallery.add([1], good[0]),
        "must be 4 mappings": lambda: gallery.add([1, 2, 3, 4], good, [{}]),
        "metadata of id 2 must be a mapping": lambda: gallery.add([1, 2], good[:2], [{}, ["x"]]),
        "metadata of id 1 cannot be kept as JSON": lambda: gallery.add([1], good[:1], [{"x": object()}]),
        "id 2 cannot be kept as JSON": lambda: gallery.add([1, 2], good[:2], [None, {"x": float("nan")}]),
        "not valid Unicode": lambda: gallery.add(["bad\udc80"], good[:1]),
    }
    for message, call in calls.items():
        with pytest.raises(InputError, match=message):
            call()
    assert len(gallery) == 0 and gallery.revision == 0 and len(gallery.ids()) == 0
    gallery.add([1, 2, 3, 4], good, [{"p": "ä"}, None, {}, {"deep": [1, {"x": None}]}])
    assert gallery.metadata([4, 2, 1]) == [{"deep": [1, {"x": None}]}, {}, {"p": "ä"}]
    for call in (
        lambda: gallery.vectors([1, 9]),
        lambda: gallery.remove([1, 9]),
        lambda: gallery.metadata([9]),
    ):
        with pytest.raises(InputError, match="holds no id 9"):
            call()
    calls = {
        "query has 3 dimensions": lambda: gallery.search(np.ones(3), 1),
        "one dimension": lambda: gallery.search(good, 1),
        "zero vector": lambda: gallery.search(np.zeros(4), 1),
        "NaN": lambda: gallery.search([np.nan, 1, 1, 1], 1),
        "queries has 3 dimensions": lambda: gallery.search_ids(np.ones((2, 3)), 1),
        "k must be": lambda: gallery.search(good[0], 0),
        "revision must be from 0": lambda: gallery.changes_since(99),
        "size must be": lambda: gallery.blocks(0),
    }
    for message, call in calls.items():
        with pytest.raises(InputError, match=message):
            call()
    assert gallery.ids().tolist() == [1, 2, 3, 4]
    gallery.add([], np.zeros((0, 4)))
    gallery.remove([])
    assert gallery.vectors([]).shape == (0, 4) and gallery.revision == 1


@pytest.mark.parametrize("dim", [0, 4097, -1, 2.0, True, "8"])
def test_impossible_dimensions(make: Any, dim: Any) -> None:
    with pytest.raises(InputError, match="from 1 to 4096"):
        make(dim)


def test_unknown_dtype(make: Any) -> None:
    with pytest.raises(InputError, match="float32, float16"):
        make(4, dtype="int8")
    assert make(4, dtype=np.float16).dtype == "float16"


def test_input_is_not_changed_and_any_form_is_read(make: Any) -> None:
    rng = np.random.default_rng(3)
    base = rng.normal(size=(20, 12))
    for number, vectors in enumerate(
        (base, base.astype(np.float16), base.T.copy().T, base[::-1], base.tolist())
    ):
        gallery, before = make(12), np.array(vectors)
        gallery.add(np.arange(20, dtype=np.int32), vectors)
        np.testing.assert_array_equal(np.asarray(vectors), before)
        np.testing.assert_allclose(
            gallery.vectors(np.arange(20)), unit_rows(before), atol=1e-6, err_msg=str(number)
        )
        out = gallery.vectors([3])
        out[:] = 0  # what comes out is the caller's own
        assert np.linalg.norm(gallery.vectors([3])) == pytest.approx(1)


def test_backbone_is_remembered_and_others_are_refused(make: Any) -> None:
    gallery = make(2)
    assert gallery.backbone is None
    gallery.require_backbone("dinov2:a1")
    assert gallery.backbone == "dinov2:a1"
    gallery.add([1], [[1, 0]])
    gallery.require_backbone("dinov2:a1")
    with pytest.raises(GalleryError, match=r"'dinov2:a1', these are made by 'clip:b2'.*cure"):
        gallery.require_backbone("clip:b2")
    own = make(2)
    own.add([1], [[1, 0]])
    with pytest.raises(GalleryError, match="unknown origin"):
        own.require_backbone("clip:b2")
    assert make(2, backbone="clip:b2").backbone == "clip:b2"


def test_closed_gallery_says_so(make: Any) -> None:
    with make(2) as gallery:
        gallery.add([1], [[1, 0]])
        assert "1 x 2" in repr(gallery)
    gallery.close()
    assert "closed" in repr(gallery)
    with pytest.raises(GalleryError, match="is closed"):
        len(gallery)


def test_kind_of_id_stays_when_all_are_gone(make: Any) -> None:
    gallery = make(2)
    gallery.add(["a"], [[1, 0]])
    gallery.remove(["a"])
    assert len(gallery) == 0 and len(gallery.ids()) == 0
    with pytest.raises(GalleryError, match="empty"):
        gallery.search([1, 0], 1)
    with pytest.raises(InputError, match="one kind"):
        gallery.add([1], [[1, 0]])
    gallery.add(["a"], [[0, 1]])
    assert gallery.search([1, 1], 5).ids.tolist() == ["a"]


def test_methods_work_over_every_store(make: Any) -> None:
    """Query expansion searches the gallery again: a neighbour that the list lacks comes in."""
    angles = np.radians([0, 10, 20, 30, 40, 300])
    gallery = make(2)
    gallery.add(list("abcdef"), np.stack([np.cos(angles), np.sin(angles)], 1))
    found = gallery.search([1, 0], 3)
    assert found.ids.tolist() == ["a", "b", "c"]
    assert reranker("aqe:k=3").fit(gallery).relist(found).ids.tolist() == ["b", "a", "c"]


def test_unknown_engine_lists_what_there_is() -> None:
    for call in (lambda: Gallery.open("nosuch://host/x"), lambda: Gallery.create("nosuch://host/x", 4)):
        with pytest.raises(GalleryError, match=r"no store answers to 'nosuch://'.*memory:, a path"):
            call()
    with pytest.raises(GalleryError, match="lives in memory"):
        Gallery.open("memory:")
