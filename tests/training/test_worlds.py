"""Worlds meet their targets; disturbed sets are what they say."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from kinrank.errors import InputError  # noqa: E402
from kinrank.training import worlds  # noqa: E402
from kinrank.training.disturbed import DisturbedSets, beyond, contiguous  # noqa: E402
from kinrank.training.lists import Labelled  # noqa: E402
from kinrank.training.worlds import Dice  # noqa: E402


def dice(seed: int = 0) -> Dice:
    return Dice(torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def made():
    return worlds.make_worlds(8, 400, dice())


def test_unit_vectors_classes_and_distractors(made):
    torch.testing.assert_close(made.vectors.norm(dim=2), torch.ones(8, 400))
    for labels in made.labels:
        sizes = torch.bincount(labels[labels >= 0])
        assert (sizes[:-1] >= 2).all() and sizes.max() <= 400 // 3  # the last class may be cut by the share
    share = (made.labels >= 0).float().mean(dim=1)
    assert (share >= 0.39).all() and share.unique().numel() > 4


def test_the_noise_meets_the_difficulty_that_was_drawn(monkeypatch):
    for target in (0.15, 0.5, 0.85):
        monkeypatch.setattr(worlds, "TARGETS", (target, target))
        made = worlds.make_worlds(8, 400, dice(1))
        fresh = worlds.pick_queries(made.labels, 100, dice(2))
        found = worlds.first_round(made.vectors, made.labels, fresh)
        assert abs(float(found.median()) - target) < 0.08, (target, found)


def test_average_precision_of_the_first_round_is_scikit_learns(made):
    from sklearn.metrics import average_precision_score

    queries = worlds.pick_queries(made.labels, 20, dice(3))
    found = worlds.first_round(made.vectors, made.labels, queries)
    for world in range(2):
        vectors, labels = made.vectors[world].numpy(), made.labels[world].numpy()
        values = []
        for q in queries[world].tolist():
            others = np.arange(len(labels)) != q
            values.append(
                average_precision_score(labels[others] == labels[q], (vectors @ vectors[q])[others])
            )
        assert float(found[world]) == pytest.approx(np.mean(values), abs=1e-4)


def test_queries_have_someone_to_find(made):
    queries = worlds.pick_queries(made.labels, 30, dice(4))
    for labels, rows in zip(made.labels, queries):
        assert len(set(rows.tolist())) == 30
        assert all((labels == labels[r]).sum() > 1 and labels[r] >= 0 for r in rows)


def test_lists_are_the_nearest_others_in_order(made):
    queries = worlds.pick_queries(made.labels, 3, dice(5))
    batch = worlds.lists_of(made.vectors, made.labels, queries, 24)
    assert batch.similarities.shape == (24, 25, 25) and batch.relevant.shape == (24, 24)
    assert (batch.similarities[:, 0, 1:].diff(dim=1) <= 1e-6).all()
    vectors, labels = made.vectors[0], made.labels[0]
    q = int(queries[0, 0])
    scores = (vectors @ vectors[q]).index_fill(0, torch.tensor([q]), -9)
    nearest = scores.argsort(descending=True)[:24]
    torch.testing.assert_close(batch.similarities[0, 0, 1:], scores[nearest])
    assert batch.relevant[0].tolist() == (labels[nearest] == labels[q]).tolist()


def test_the_same_generator_makes_the_same_worlds(made):
    again = worlds.make_worlds(8, 400, dice())
    torch.testing.assert_close(again.vectors, made.vectors, atol=0, rtol=0)
    assert not torch.equal(worlds.make_worlds(8, 400, dice(9)).vectors, made.vectors)


def labelled(name: str, seed: int, dims: int = 16) -> Labelled:
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(12), 15)
    return Labelled(name, rng.normal(size=(12, dims))[labels] + rng.normal(size=(180, dims)), labels)


def test_at_most_so_many_of_each_class_stay():
    labels = torch.tensor([0] * 5 + [1] * 2 + [2] * 9)[torch.randperm(16)]
    over = beyond(labels, 3, dice())
    kept = torch.bincount(labels[~over])
    assert kept.tolist() == [3, 2, 3]
    assert contiguous(torch.tensor([7, -1, 3, 7])).tolist() == [1, -1, 0, 1]


def test_disturbed_sets_give_ranked_lists_that_change_with_the_group():
    source = DisturbedSets([labelled("a", 0), labelled("b", 1, 24)], (8, 64), "seed", nodes=640)
    assert len(source.families) == 1 and len(source.families[0]) == 2  # the same images, two features
    seen = []
    for number in (0, 1, 2, 40):
        batch = source.sample(8, torch.Generator().manual_seed(number), torch.device("cpu"), number)
        assert (batch.similarities[:, 0, 1:].diff(dim=1) <= 1e-5).all()
        torch.testing.assert_close(batch.similarities.diagonal(dim1=1, dim2=2).mean(), torch.tensor(1.0))
        assert batch.relevant.any()
        seen.append(source._made[1][0])
    assert seen[0] is seen[1] and seen[2] is not seen[0]


def test_a_set_with_a_zero_vector_is_refused_by_name():
    bad = labelled("broken", 0)
    bad.vectors[3] = 0
    with pytest.raises(InputError, match=r"broken row 3 is a zero vector"):
        DisturbedSets([bad], (8, 64), "seed")
