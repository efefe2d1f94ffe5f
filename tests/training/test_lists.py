"""Lists on disk and in batches, against a direct computation; and what is refused before any work."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kinrank.errors import InputError
from kinrank.training.config import Data, from_dict
from kinrank.training.lists import Labelled, ListSet, prepare, read_labelled
from kinrank.training.sources import Mix, SyntheticWorlds, gather

CPU = torch.device("cpu")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def home(labelled, tmp_path):
    return prepare(read_labelled(labelled), 40, tmp_path / "lists", quiet=True)


def test_neighbours_are_the_exact_ones(labelled, home):
    data = read_labelled(labelled)
    unit = data.vectors / np.linalg.norm(data.vectors, axis=1, keepdims=True)
    scores = unit @ unit.T
    np.fill_diagonal(scores, -2)
    found = np.load(home / "neighbours.npy")
    assert found.shape == (160, 40)
    np.testing.assert_allclose(
        np.take_along_axis(scores, found, axis=1), -np.sort(-scores, axis=1)[:, :40], atol=1e-5
    )


def test_an_image_is_never_its_own_neighbour_even_among_duplicates(tmp_path):
    vectors = np.repeat(np.eye(6, dtype=np.float32), 10, axis=0)  # ten equal vectors of each kind
    home = prepare(Labelled("copies", vectors, np.repeat(np.arange(6), 10)), 12, tmp_path, quiet=True)
    found = np.load(home / "neighbours.npy")
    assert not (found == np.arange(60)[:, None]).any()
    assert all(len(set(row)) == 12 for row in found.tolist())


def test_lists_are_made_once(labelled, home, tmp_path):
    stamp = (home / "neighbours.npy").stat().st_mtime_ns
    assert prepare(read_labelled(labelled), 40, tmp_path / "lists", quiet=True) == home
    assert (home / "neighbours.npy").stat().st_mtime_ns == stamp
    (home / "done.json").unlink()  # a run that was killed on the way
    prepare(read_labelled(labelled), 40, tmp_path / "lists", quiet=True)
    assert (home / "done.json").is_file() and (home / "neighbours.npy").stat().st_mtime_ns != stamp


def test_a_batch_holds_the_cosines_and_labels_of_its_lists(labelled, home):
    data = read_labelled(labelled)
    unit = data.vectors / np.linalg.norm(data.vectors, axis=1, keepdims=True)
    lists = ListSet(home, Data(k=(20, 20)), with_vectors=True)
    batch = lists.lists(torch.tensor([3, 77]), seeded(), CPU)
    neighbours = np.load(home / "neighbours.npy")
    for i, query in enumerate([3, 77]):
        rows = np.concatenate([[query], neighbours[query, :20]])
        np.testing.assert_allclose(batch.similarities[i], unit[rows] @ unit[rows].T, atol=1e-5)
        np.testing.assert_allclose(batch.vectors[i], unit[rows], atol=1e-6)
        assert (batch.relevant[i].numpy() == (data.labels[rows[1:]] == data.labels[query])).all()
    assert batch.mask.all() and batch.similarities.shape == (2, 21, 21)


def test_the_generator_alone_decides_a_batch(home):
    lists = ListSet(home, Data(k=(8, 30), noise=(0.0, 0.5), dims=(4, 16), classes=(0.3, 1.0)))
    one, two, other = (lists.sample(6, seeded(s), CPU) for s in (1, 1, 2))
    assert torch.equal(one.similarities, two.similarities) and torch.equal(one.relevant, two.relevant)
    assert one.similarities.shape != other.similarities.shape or not torch.equal(
        one.similarities, other.similarities
    )


def test_positives_are_capped_and_their_places_filled(home):
    lists = ListSet(home, Data(k=(25, 25), positives=(2, 2)))
    batch = lists.lists(torch.arange(30), seeded(), CPU)
    assert batch.relevant.sum(1).max() == 2 and batch.mask.all()
    first = batch.similarities[:, 0, 1:]
    assert (first.diff(dim=1) <= 1e-6).all()  # still ranked


def test_fewer_classes_leave_ranked_masked_lists(home):
    lists = ListSet(home, Data(k=(40, 40), classes=(0.2, 0.2)))
    batch = lists.lists(torch.arange(40), seeded(), CPU)
    counts = batch.mask.sum(1)
    assert (counts < 41).all()
    for i, count in enumerate(counts.tolist()):
        assert batch.mask[i, :count].all() and not batch.mask[i, count:].any()
        assert not batch.similarities[i, count:].any() and not batch.similarities[i, :, count:].any()
        assert (batch.similarities[i, 0, 1:count].diff() <= 1e-6).all()
    full = ListSet(home, Data(k=(40, 40))).lists(torch.arange(40), seeded(), CPU)
    assert torch.equal(batch.relevant.sum(1), full.relevant.sum(1))  # the query's own class stays


def test_noise_and_projection_rank_again_by_what_they_left(home):
    for data in (Data(k=(30, 30), noise=(0.8, 0.8)), Data(k=(30, 30), dims=(6, 6))):
        batch = ListSet(home, data, with_vectors=True).lists(torch.arange(10), seeded(), CPU)
        assert (batch.similarities[:, 0, 1:].diff(dim=1) <= 1e-6).all()
        np.testing.assert_allclose(batch.vectors.norm(dim=2), 1, atol=1e-5)
        assert batch.vectors.shape[2] == (6 if data.dims else 16)


def test_unused_anchors_are_zero(home):
    batch = ListSet(home, Data(k=(20, 20), anchors=(5, 5))).lists(torch.arange(4), seeded(), CPU)
    assert batch.similarities[:, :, :5].all() and not batch.similarities[:, :, 5:].any()


def test_lengths_are_drawn_log_uniformly_within_bounds(home):
    lists = ListSet(home, Data(k=(4, 32)))
    lengths = np.array([lists.sample(1, seeded(s), CPU).relevant.shape[1] for s in range(400)])
    assert lengths.min() == 4 and lengths.max() == 32
    assert 0.4 < (lengths < np.sqrt(4 * 32)).mean() < 0.62


def test_a_mix_draws_by_its_shares(home):
    short, long = ListSet(home, Data(k=(5, 5))), ListSet(home, Data(k=(9, 9)))
    mix = Mix([short, long], [1, 3])
    lengths = [mix.sample(1, seeded(s), CPU).relevant.shape[1] for s in range(300)]
    assert 0.65 < np.mean(np.array(lengths) == 9) < 0.85


def test_worlds_are_shared_by_their_number_and_differ_by_seed():
    made = SyntheticWorlds((12, 12), "a", worlds=2, items=(300, 300))
    one, two, late = (made.sample(8, seeded(5), CPU, number) for number in (0, 1, 4))
    assert torch.equal(one.similarities, two.similarities)  # the same worlds, the same draw of lists
    assert not torch.equal(one.similarities, late.similarities)
    other = SyntheticWorlds((12, 12), "b", worlds=2, items=(300, 300)).sample(8, seeded(5), CPU, 0)
    assert not torch.equal(one.similarities, other.similarities)
    assert one.similarities.shape[1:] == (13, 13) and one.relevant.any()


def test_held_out_classes_are_in_no_training_list(labelled, tiny, tmp_path):
    material = gather(from_dict(tiny, "tiny"), [labelled], [], tmp_path / "lists", quiet=True)
    (judge,) = material.validation.values()
    judged = {int(judge.labels[q]) for q in judge.queries}
    # things.npz numbers its classes 0 ... 19, so both sets' numbers are of the same classes.
    data = read_labelled(labelled)
    kept = data.vectors[~np.isin(data.labels, list(judged))]
    kept = kept / np.linalg.norm(kept, axis=1, keepdims=True)
    assert len(judged) == 5
    np.testing.assert_allclose(material.source.vectors, kept, atol=1e-6)


def refused(tmp_path, tiny, match, **arrays):
    path = tmp_path / "bad.npz"
    np.savez(path, **arrays)
    with pytest.raises(InputError, match=match):
        gather(from_dict(tiny, "tiny"), [path], [], tmp_path / "none", quiet=True)
    assert not (tmp_path / "none").exists()  # refused before any work


def test_bad_data_is_refused_before_any_work(tmp_path, tiny, clusters):
    vectors, labels = clusters()
    nan = vectors.copy()
    nan[5, 2] = np.nan
    zero = vectors.copy()
    zero[7] = 0
    refused(tmp_path, tiny, "row 5.*NaN", vectors=nan, labels=labels)
    refused(tmp_path, tiny, "row 7.*zero", vectors=zero, labels=labels)
    refused(tmp_path, tiny, "one label only", vectors=vectors, labels=np.zeros(len(labels)))
    refused(tmp_path, tiny, "no label occurs twice", vectors=vectors, labels=np.arange(len(labels)))
    refused(tmp_path, tiny, "must be \\(N, d\\)", vectors=vectors, labels=labels[:-1])
    refused(tmp_path, tiny, "has no labels", vectors=vectors)
    refused(tmp_path, tiny, "is empty", vectors=vectors[:0], labels=labels[:0])
    tiny["data"]["k"] = [200, 200]
    refused(tmp_path, tiny, "too few for K=200.*cure", vectors=vectors, labels=labels)
    tiny["data"]["k"] = [8, 24]
    few = labels < 2
    refused(tmp_path, tiny, "too few to keep some.*--validation", vectors=vectors[few], labels=labels[few])


def test_objects_in_an_npz_are_not_unpickled(tmp_path, tiny):
    refused(tmp_path, tiny, "cannot be read", vectors=np.array([{}], dtype=object), labels=np.zeros(1))
