"""Data sets of pictures in miniatures of their official layouts: who asks, who is right, what lies where."""

import pickle

import numpy as np
import pytest
from PIL import Image

from kinrank.errors import InputError
from kinrank.evaluation.datasets import open_dataset
from kinrank.evaluation.extract import extract, picture_set


def draw(path, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 255, (6, 8, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((80, 60)).save(path)


def write(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def right(pictures, setting="all"):
    """query -> the names of its positives and of its junk."""
    asked = [pictures.gallery[i] for i in pictures.own] if pictures.own is not None else pictures.queries
    judgement = pictures.settings[setting]
    named = lambda rows: {pictures.gallery[i].name for i in rows}  # noqa: E731
    return {
        query.name: (named(good), named(bad))
        for query, good, bad in zip(asked, judgement.positives, judgement.junk)
    }


def test_folders(tmp_path):
    for name in (
        "cat/1.jpg",
        "cat/2.jpg",
        "dog/3.png",
        "dog/4.jpg",
        "dog/5.JPG",
        "alone/6.jpg",
        "cat/notes.txt",
    ):
        draw(tmp_path / name) if not name.endswith("txt") else write(tmp_path / name, "x")
    found = picture_set(tmp_path)
    assert len(found.gallery) == 6 and found.labels.tolist() == ["alone", "cat", "cat", "dog", "dog", "dog"]
    assert right(found) == {
        "1.jpg": ({"2.jpg"}, set()),
        "2.jpg": ({"1.jpg"}, set()),
        "3.png": ({"4.jpg", "5.JPG"}, set()),
        "4.jpg": ({"3.png", "5.JPG"}, set()),
        "5.JPG": ({"3.png", "4.jpg"}, set()),
    }


def test_cub(tmp_path):
    files = [("001.Albatross/a1.jpg", 1), ("101.Pelican/b1.jpg", 101), ("101.Pelican/b2.jpg", 101)]
    write(tmp_path / "images.txt", *(f"{i} {name}" for i, (name, _) in enumerate(files, 1)))
    write(tmp_path / "image_class_labels.txt", *(f"{i} {c}" for i, (_, c) in enumerate(files, 1)))
    found = picture_set(tmp_path)
    assert right(found) == {"b1.jpg": ({"b2.jpg"}, set()), "b2.jpg": ({"b1.jpg"}, set())}
    assert found.gallery[0] == tmp_path / "images" / "101.Pelican" / "b1.jpg"
    assert [p.name for p in picture_set(tmp_path, "train").gallery] == ["a1.jpg"]
    write(tmp_path / "image_class_labels.txt", "1 1")
    with pytest.raises(InputError, match="different images"):
        picture_set(tmp_path)


def test_online_products(tmp_path):
    head = "image_id class_id super_class_id path"
    write(tmp_path / "Ebay_train.txt", head, "1 1 1 bicycle_final/1_0.JPG", "2 1 1 bicycle_final/1_1.JPG")
    write(tmp_path / "Ebay_test.txt", head, "3 11319 1 chair_final/9_0.JPG", "4 11319 1 chair_final/9_1.JPG")
    assert right(picture_set(tmp_path)) == {"9_0.JPG": ({"9_1.JPG"}, set()), "9_1.JPG": ({"9_0.JPG"}, set())}
    assert picture_set(tmp_path, "train").labels.tolist() == [1, 1]
    write(tmp_path / "Ebay_test.txt", "a b", "1 2")
    with pytest.raises(InputError, match="no column 'path'"):
        picture_set(tmp_path)


@pytest.mark.parametrize("layout", ["Eval and Img", "flat"])
def test_in_shop(tmp_path, layout):
    table = tmp_path / ("Eval/list_eval_partition.txt" if layout != "flat" else "list_eval_partition.txt")
    write(
        table,
        "5",
        "image_name item_id evaluation_status",
        "img/WOMEN/Dresses/id_1/01_1.jpg id_1 query",
        "img/WOMEN/Dresses/id_1/01_2.jpg id_1 gallery",
        "img/MEN/Denim/id_2/02_1.jpg                 id_2        gallery",
        "img/MEN/Denim/id_3/03_1.jpg id_3 train",
        "img/MEN/Denim/id_3/03_2.jpg id_3 train",
    )
    root = tmp_path / "Img" if layout != "flat" else tmp_path
    draw(root / "img/WOMEN/Dresses/id_1/01_1.jpg")
    found = picture_set(tmp_path)
    assert right(found) == {"01_1.jpg": ({"01_2.jpg"}, set())}
    assert found.queries == [root / "img/WOMEN/Dresses/id_1/01_1.jpg"] and found.queries[0].is_file()
    assert len(found.gallery) == 2
    assert picture_set(tmp_path, "train").labels.tolist() == ["id_3", "id_3"]


def test_market(tmp_path):
    for name in (
        "query/0001_c1s1_000001_00.jpg",
        "bounding_box_test/0001_c1s1_000002_01.jpg",  # the same camera: junk
        "bounding_box_test/0001_c2s1_000003_01.jpg",
        "bounding_box_test/0002_c2s1_000004_01.jpg",
        "bounding_box_test/0000_c3s1_000005_01.jpg",  # a distractor
        "bounding_box_test/-1_c3s1_000006_01.jpg",  # no person
        "bounding_box_train/0007_c1s1_000007_01.jpg",
        "bounding_box_train/0007_c2s1_000008_01.jpg",
    ):
        draw(tmp_path / name)
    junk = {"-1_c3s1_000006_01.jpg", "0001_c1s1_000002_01.jpg"}
    assert right(picture_set(tmp_path)) == {"0001_c1s1_000001_00.jpg": ({"0001_c2s1_000003_01.jpg"}, junk)}
    assert picture_set(tmp_path, "train").labels.tolist() == [7, 7]
    draw(tmp_path / "query/unnamed.jpg")
    with pytest.raises(InputError, match="0001_c1s1_000151_01"):
        picture_set(tmp_path)


def test_retrieval_sfm(tmp_path):
    cids = ["a" * 26 + f"{i:06x}" for i in range(5)]
    part = {"cids": cids, "cluster": [3, 3, 4, 4, 9], "qidxs": [0, 2], "pidxs": [1, 3], "bbxs": [None] * 5}
    (tmp_path / "retrieval-SfM-120k.pkl").write_bytes(pickle.dumps({"train": part, "val": part}, 2))
    found = picture_set(tmp_path)
    assert found.gallery[1] == tmp_path / "ims" / "01" / "00" / "00" / cids[1]
    assert right(found)[cids[0]] == ({cids[1]}, set()) and len(right(found)) == 4
    assert picture_set(tmp_path, "train").pairs.tolist() == [[0, 1], [2, 3]]

    class Evil:
        def __reduce__(self):
            return print, ("run",)

    (tmp_path / "retrieval-SfM-120k.pkl").write_bytes(pickle.dumps({"val": Evil()}))
    with pytest.raises(InputError, match="refused"):
        picture_set(tmp_path)


def test_google_landmarks(tmp_path):
    write(tmp_path / "index.csv", "id", "0abc000000000000", "1def000000000000", "2345000000000000")
    write(
        tmp_path / "retrieval_solution_v2.1.csv",
        "id,images,Usage",
        "aaa1000000000000,0abc000000000000 2345000000000000,Public",
        "bbb2000000000000,1def000000000000,Private",
        "ccc3000000000000,None,Ignored",
    )
    write(
        tmp_path / "train_clean.csv",
        "landmark_id,images",
        "7,d1d1000000000000 d2d2000000000000",
        "8,d3d3000000000000",
    )
    found = picture_set(tmp_path)
    assert found.gallery[0] == tmp_path / "index/0/a/b/0abc000000000000.jpg"
    assert found.queries[0] == tmp_path / "test/a/a/a/aaa1000000000000.jpg" and len(found.queries) == 2
    assert [len(p) for p in found.settings["public"].positives] == [2, 0]
    assert [len(p) for p in found.settings["private"].positives] == [0, 1]
    train = picture_set(tmp_path, "train")
    assert train.labels.tolist() == [7, 7, 8] and train.own.tolist() == [0, 1]
    write(tmp_path / "retrieval_solution_v2.1.csv", "id,images,Usage", "aaa1000000000000,ffff,Public")
    with pytest.raises(InputError, match=r"not in index.csv"):
        picture_set(tmp_path)


@pytest.fixture
def ilias(tmp_path):
    core = tmp_path / "ilias_core"
    for i, name in enumerate(("bold_bimp_000", "zippy_999")):
        number = name[-3:]
        draw(core / name / "query" / f"Q{number}_00.jpg", i)
        write(core / name / "query" / f"Q{number}_00_bbox.txt", "10 5 40 30", "20 10 50 20")
        write(core / name / "query" / f"T{number}.txt", "a thing")
        for j in range(2):
            draw(core / name / "pos" / f"P{number}_0{j}.jpg", i + 10)
            write(core / name / "pos" / f"P{number}_0{j}_bbox.txt", "0 0 9 9")
    return tmp_path


def test_ilias(ilias):
    found = picture_set(ilias)
    assert right(found) == {
        "Q000_00.jpg": ({"P000_00.jpg", "P000_01.jpg"}, set()),
        "Q999_00.jpg": ({"P999_00.jpg", "P999_01.jpg"}, set()),
    }
    assert found.boxes[0] == (10, 5, 70, 35), "what encloses both boxes"
    with pytest.raises(InputError, match="no training split"):
        picture_set(ilias, "train")


@pytest.fixture
def network(tmp_path_factory, conv_network):
    from kinrank.features.backbones.base import open_backbone

    return open_backbone(str(conv_network(tmp_path_factory.mktemp("network") / "net.onnx", 12)))


def test_queries_against_a_gallery_from_pictures_to_figures(ilias, network):
    from kinrank.evaluation.run import evaluate

    with pytest.raises(InputError, match="kinrank index --dataset"):
        open_dataset(ilias)
    assert extract(ilias, network, size=80) == ilias / "net.npz"
    np.save(ilias / "distractors.npy", np.random.default_rng(1).normal(size=(3, 12)).astype(np.float16))
    dataset = open_dataset(ilias)
    assert dataset.size == 4 + 3 and dataset.boxes is not None
    rows = evaluate(dataset, ["none"]).as_json()["rows"]
    assert 0 < rows[0]["map"]["all"] <= 100


def test_pictures_that_ask_for_each_other_from_pictures_to_figures(tmp_path, network):
    for i, name in enumerate(("a/1.jpg", "a/2.jpg", "b/3.jpg", "b/4.jpg", "c/5.jpg")):
        draw(tmp_path / "set" / name, i // 2)
    target = extract(tmp_path / "set", network, size=80)
    for path in (tmp_path / "set", target):  # the folder, and the file by itself
        dataset = open_dataset(path)
        assert dataset.size == 4 and len(dataset.queries) == 4
        assert [p.name for p in dataset.query_pictures] == ["1.jpg", "2.jpg", "3.jpg", "4.jpg"]
        assert all(p.is_file() for p in dataset.query_pictures)
    draw(tmp_path / "set" / "c" / "6.jpg")
    with pytest.raises(InputError, match="5 vectors for 6 pictures"):
        open_dataset(tmp_path / "set")
