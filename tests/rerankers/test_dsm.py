"""Deep spatial matching: the affine map is found from one match, and pictures find themselves."""

import numpy as np
import pytest

from kinrank.errors import InputError
from kinrank.features.regions import region_features
from kinrank.rerankers.dsm import DSM, one_match_affine, same_words


def test_pairs_of_equal_words():
    rng = np.random.default_rng(0)
    one, two = rng.integers(0, 9, 40), rng.integers(3, 14, 50)
    slow = [(i, j) for i in range(40) for j in range(50) if one[i] == two[j]]
    assert sorted(map(tuple, same_words(one, two).tolist())) == slow
    assert same_words(one[:0], two).shape == (0, 2)


def test_one_match_finds_the_upright_map_and_its_inliers():
    rng = np.random.default_rng(1)
    linear, shift = np.array([[1.2, 0.0], [0.15, 0.9]]), np.array([4.0, -2.0])
    source = np.column_stack(
        [rng.uniform(0, 40, (80, 2)), rng.uniform(1, 3, 80), rng.uniform(-1, 1, 80), rng.uniform(1, 3, 80)]
    )
    target = source.copy()
    target[:, :2] = source[:, :2] @ linear.T + shift
    for i, (a, b, c) in enumerate(source[:, 2:]):
        moved = linear @ np.array([[a, 0], [b, c]])
        target[i, 2:] = moved[0, 0], moved[1, 0], moved[1, 1]
    strangers = rng.random(80) < 0.4
    target[strangers, :2] = rng.uniform(0, 40, (strangers.sum(), 2))
    kept = one_match_affine(source, target, residual=0.5)
    assert kept[~strangers].all()
    error = np.linalg.norm(source[:, :2] @ linear.T + shift - target[:, :2], axis=1)
    assert (error[kept] < 0.6).all()
    huge = target.copy()
    huge[:, :2] *= 9
    huge[:, 2:] *= 9
    assert not one_match_affine(source, huge, residual=0.5).any(), "scale changes beyond 3 are not asked"


def maps_of(image):
    """Maps of a fixed bank of 40 random filters over a picture, as a convolution leaves them."""
    from scipy.ndimage import gaussian_filter

    rng = np.random.default_rng(7)
    grey = gaussian_filter(image.astype(np.float32), 1.5)
    orders = [(0, 1), (1, 0), (1, 1), (0, 2), (2, 0), (2, 1), (1, 2)]
    base = np.stack([gaussian_filter(grey, 3, order) for order in orders])
    base = base[:, 2::5, 2::5]
    base /= base.std(axis=(1, 2), keepdims=True)
    return np.maximum(np.einsum("cb,bhw->chw", rng.normal(size=(40, len(base))), base) - 1.5, 0)


def scene(seed):
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:240, :320]
    image = np.zeros((240, 320))
    for _ in range(40):
        cx, cy, r, grey = rng.uniform(0, 320), rng.uniform(0, 240), rng.uniform(6, 30), rng.uniform(-1, 1)
        image += grey * (((x - cx) ** 2 + ((y - cy) * rng.uniform(0.5, 2)) ** 2) < r * r)
    return 100 * image


def shifted(image):
    """The scene from elsewhere: 15 percent larger, moved by a tenth."""
    from scipy.ndimage import affine_transform

    return affine_transform(image, np.diag([1 / 1.15] * 2), offset=(10, 14), order=1, mode="nearest")


def described(image):
    return region_features([maps_of(image), maps_of(image[::2, ::2])], image.shape)


def test_a_scene_finds_itself_among_others():
    scenes = [scene(seed) for seed in range(4)]
    queries = [described(image) for image in scenes]
    seen = [described(shifted(image)) for image in scenes]
    method = DSM(features={})
    table = np.array([[method.agreement(a, b) for b in seen] for a in queries])
    assert (table.argmax(axis=1) == np.arange(4)).all()
    assert np.diag(table).min() > 1.5 * table[~np.eye(4, dtype=bool)].max()


def test_the_network_of_the_core_gives_maps(tmp_path, conv_network):
    """A network with pooled output: its maps are what enters the pooling."""
    from onnx import TensorProto, helper, save

    from kinrank.features.local import LocalStore, extract_local

    conv_network(tmp_path / "small.onnx", 24, 7, 6)
    from PIL import Image

    picture = scene(3)
    picture = np.clip(128 + picture, 0, 255).astype(np.uint8)
    Image.fromarray(picture).save(tmp_path / "a.png")
    Image.fromarray(picture[10:, 15:]).save(tmp_path / "b.png")
    model = str(tmp_path / "small.onnx")
    extract_local([("a", tmp_path / "a.png")], tmp_path / "d", kind="dsm", model=model, size=320)
    store = LocalStore.open(tmp_path / "d")
    assert len(store["a"]) > 50
    method = DSM(str(tmp_path / "d")).with_query(tmp_path / "b.png")  # by the same network and size
    assert method.agreement(method.query, store["a"]) > 20
    mean = helper.make_node("ReduceMean", ["image"], ["features"], axes=[2, 3], keepdims=0)
    taken = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, "h", "w"])
    given = helper.make_tensor_value_info("features", TensorProto.FLOAT, ["n", 3])
    flat = helper.make_graph([mean], "flat", [taken], [given])
    opset = [helper.make_opsetid("", 17)]
    save(helper.make_model(flat, opset_imports=opset, ir_version=8), tmp_path / "flat.onnx")
    with pytest.raises(InputError, match="no global pooling"):
        extract_local(
            [("a", tmp_path / "a.png")], tmp_path / "e", kind="dsm", model=str(tmp_path / "flat.onnx")
        )
