"""The preparation of pictures against the step-by-step way of the networks' own recipes."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from kinrank.errors import InputError
from kinrank.features.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess


def noise(width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng(3).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def normalised(image: Image.Image, mean: object = IMAGENET_MEAN, std: object = IMAGENET_STD) -> np.ndarray:
    return ((np.asarray(image) / 255 - np.array(mean)) / np.array(std)).transpose(2, 0, 1)


def test_resize_then_crop_in_one_step() -> None:
    image = noise(512, 512)
    steps = image.resize((256, 256), Image.Resampling.BICUBIC).crop((16, 16, 240, 240))
    got = Preprocess(size=(224, 224), resize=256)(image)
    assert (got.dtype, got.shape) == (np.float32, (3, 224, 224))
    np.testing.assert_allclose(got, normalised(steps), atol=1e-5)


def test_crop_takes_the_middle_of_a_long_picture() -> None:
    image = noise(128, 64)
    got = Preprocess(size=(64, 64))(image)
    np.testing.assert_allclose(got, normalised(image.crop((32, 0, 96, 64))), atol=1e-5)


def test_stretch_and_layouts() -> None:
    image = noise(64, 48)
    steps = image.resize((30, 20), Image.Resampling.BILINEAR)
    how = {"size": (20, 30), "fit": "stretch", "interpolation": "bilinear"}
    chw = Preprocess(**how)(image)
    np.testing.assert_allclose(chw, normalised(steps), atol=1e-5)
    np.testing.assert_array_equal(Preprocess(**how, layout="nhwc")(image), chw.transpose(1, 2, 0))
    bgr = Preprocess(**how, mean=0, std=1, scale=255, channels="bgr")(image)
    np.testing.assert_allclose(bgr, np.asarray(steps, np.float32).transpose(2, 0, 1)[::-1], atol=1e-3)


def test_pad_keeps_all_of_it() -> None:
    image = noise(80, 40)
    got = Preprocess(size=(40, 40), fit="pad", mean=0.2, std=1)(image) + 0.2
    middle = np.asarray(image.resize((40, 20), Image.Resampling.BICUBIC)) / 255
    np.testing.assert_allclose(got[:, 10:30], middle.transpose(2, 0, 1), atol=1e-5)
    np.testing.assert_allclose(got[:, :10], 0.2, atol=1e-5)


@pytest.mark.parametrize("size", [(1, 1), (1, 900), (900, 1), (3, 2)])
@pytest.mark.parametrize("fit", ["crop", "stretch", "pad"])
def test_odd_sizes(size: tuple[int, int], fit: str) -> None:
    got = Preprocess(size=(24, 32), resize=40 if fit == "crop" else None, fit=fit)(noise(*size))
    assert got.shape == (3, 24, 32)
    assert np.isfinite(got).all()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"size": 0}, "size"),
        ({"size": [224, 224, 3]}, "size"),
        ({"mean": [0.5]}, "mean must be three numbers"),
        ({"std": 0}, "std must be positive"),
        ({"fit": "squash"}, "'squash'; there are: crop, stretch, pad"),
        ({"resize": 100}, "smaller than size"),
        ({"normalise": True}, "unknown key 'normalise'; there are: size"),
    ],
)
def test_bad_values_are_named(values: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Preprocess.from_dict(values)
