"""The demo's pictures: the same for a seed, all different, written once, and gone on with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kinrank.demo import pictures
from kinrank.demo.brands import BRANDS, catalogue, strangers
from kinrank.demo.camera import Lens, Light, Placed, Scene, look
from kinrank.demo.packaging import LAYOUTS, front, wrap
from kinrank.demo.scenes import SIZE, VIEWS, compose, picture, visible
from kinrank.demo.shapes import BOXES, TURNED, Ball, Box, Turned, solid

Array = np.ndarray


def test_there_are_enough_products_and_views() -> None:
    products = catalogue()
    assert len(products) >= 60
    assert VIEWS >= 6
    assert len({p.key for p in products}) == len(products)
    assert len(pictures.jobs()) == len({name for _, _, name in pictures.jobs()})


def test_products_are_told_apart_by_their_fronts_alone() -> None:
    fronts = {p.key: front(p, (60, 90)).tobytes() for p in catalogue()}
    assert len(set(fronts.values())) == len(fronts)


def test_every_brand_names_what_there_is() -> None:
    kinds = BOXES.keys() | TURNED.keys()
    for brand in BRANDS:
        assert set(brand.kinds) <= kinds
        assert set(brand.layouts) <= LAYOUTS.keys()
    assert {p.kind for p in strangers(0)} <= kinds
    assert {p.key for p in strangers(0)}.isdisjoint(p.key for p in catalogue())


def test_a_label_has_the_size_asked_for() -> None:
    for product in catalogue()[::9]:
        assert wrap(product, (300, 120)).size == (300, 120)


def test_a_picture_depends_on_its_seed_and_place_alone() -> None:
    product = catalogue()[7]
    first, quality = picture(product, 2, seed=0, number=7)
    picture(catalogue()[20], 5, seed=0, number=20)  # what was drawn before does not matter
    again, same = picture(product, 2, seed=0, number=7)
    assert (first.tobytes(), quality) == (again.tobytes(), same)
    assert first.size == (SIZE, SIZE)
    assert picture(product, 3, seed=0, number=7)[0].tobytes() != first.tobytes()
    assert picture(product, 2, seed=1, number=7)[0].tobytes() != first.tobytes()


def test_pictures_are_exposed() -> None:
    """Neither black nor white, and with contrast."""
    for number in (0, 13, 30, 50):
        pixels = np.asarray(picture(catalogue()[number], number % VIEWS, 0, number)[0], dtype=float)
        assert 40 < pixels.mean() < 215
        assert pixels.std() > 20


def test_the_target_can_be_seen() -> None:
    rng = np.random.default_rng(0)
    for number in (3, 40):
        scene, lens = compose(catalogue()[number], 0, rng, 0)
        seen, fills = visible(scene, lens)
        assert 0 < seen <= 1
        assert fills > 0.1


@pytest.fixture
def lens() -> Lens:
    return Lens(np.array([0.0, 0.5, 4.0]), np.array([0.0, 0.5, 0.0]), 0.0, 0.6)


def scene(*things: Placed) -> Scene:
    grey = np.full((8, 8, 3), 128, np.uint8)
    light = Light(np.array([0.0, 6.0, 1.0]), 0.5, np.ones(3), np.ones(3), np.ones(3))
    return Scene(list(things), grey, grey, -3.0, 0.5, 0.5, (0.0, 0.0), light)


def test_the_camera_sees_a_box_as_geometry_says(lens: Lens) -> None:
    """A cube of side 1 whose front is 3.5 away: 1 / 3.5 / zoom of the picture's height, squared."""
    faces = [np.full((2, 2, 3), 40 * k, np.uint8) for k in range(6)]
    cube = Placed(
        Box(np.full(3, 0.5, np.float32), faces), np.eye(3, dtype=np.float32), np.array([0, 0.5, 0.0])
    )
    size = 200
    hits = look(scene(cube), lens, size)
    side = size / 3.5 / lens.zoom
    assert abs((hits.who == 0).sum() - side**2) < 4 * side
    front_rows = hits.who == 0
    np.testing.assert_allclose(hits.point[2, front_rows], 0.5, atol=1e-4)  # the front face hides the others
    np.testing.assert_allclose(
        hits.normal[:, front_rows], np.array([[0], [0], [1]]) * np.ones(front_rows.sum())
    )


def test_rays_meet_round_bodies_where_their_equations_say() -> None:
    rng = np.random.default_rng(0)
    rays = rng.normal(size=(3, 4000)).astype(np.float32) * np.array([[0.25], [0.3], [1]], np.float32)
    rays[2] = -np.abs(rays[2]) - 0.2
    origin = np.array([0.1, 0.2, 3.0], np.float32)
    ball = Ball(np.array([0.5, 0.3, 0.4], np.float32), np.ones(3))
    t = ball.hit(origin, rays)
    points = origin[:, None] + rays[:, np.isfinite(t)] * t[np.isfinite(t)]
    np.testing.assert_allclose(((points / ball.half[:, None]) ** 2).sum(axis=0), 1, atol=1e-3)
    tube = Turned(
        np.array([-0.5, 0.5], np.float32), np.array([0.3, 0.3], np.float32), np.zeros((4, 8, 3), np.uint8)
    )
    t = tube.hit(origin, rays)
    x, y, z = origin[:, None] + rays[:, np.isfinite(t)] * t[np.isfinite(t)]
    on_side = np.abs(np.hypot(x, z) - 0.3) < 1e-3
    on_lid = np.abs(np.abs(y) - 0.5) < 1e-3
    assert len(x) > 100
    assert (on_side | on_lid).all()
    assert (on_side & (np.abs(y) <= 0.501)).sum() > 50


@pytest.mark.parametrize("kind", sorted(BOXES.keys() | TURNED.keys()))
def test_normals_look_outwards(kind: str) -> None:
    product = next(p for p in (*catalogue(), *strangers(0)) if p.kind == kind)
    shape = solid(product)
    rays = np.random.default_rng(1).normal(size=(3, 3000)).astype(np.float32) * 0.25
    rays[2] = -1
    origin = np.array([0.2, 0.3, 2.0], np.float32)
    t = shape.hit(origin, rays)
    hit = np.isfinite(t)
    colour, normal = shape.surface(origin[:, None] + rays[:, hit] * t[hit])
    np.testing.assert_allclose((normal**2).sum(axis=0), 1, atol=1e-3)
    assert ((normal * rays[:, hit]).sum(axis=0) < 1e-3).mean() > 0.99
    assert (colour >= 0).all()


def few(monkeypatch: pytest.MonkeyPatch, count: int = 4) -> None:
    """A small set of pictures in place of all."""
    chosen = pictures.jobs()[:count]
    monkeypatch.setattr(pictures, "jobs", lambda: chosen)
    monkeypatch.setattr(pictures, "threads", lambda: 1)


def test_what_is_there_is_not_rendered_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few(monkeypatch)
    assert pictures.write_pictures(tmp_path) == 4
    files = sorted(tmp_path.glob("*/*.jpg"))
    before = [f.read_bytes() for f in files]
    assert pictures.write_pictures(tmp_path) == 0
    files[1].unlink()
    ticks: list[int] = []
    assert pictures.write_pictures(tmp_path, progress=ticks.append) == 1
    assert sum(ticks) == 1
    assert [f.read_bytes() for f in files] == before
    assert not list(tmp_path.glob("*/*.part"))
    for file in files:
        with Image.open(file) as image:
            assert image.format == "JPEG"


def test_another_seed_is_rendered_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few(monkeypatch, 2)
    pictures.write_pictures(tmp_path, seed=0)
    before = [f.read_bytes() for f in sorted(tmp_path.glob("*/*.jpg"))]
    more = next(tmp_path.glob("*/*.jpg")).with_name("99.jpg")  # of a version that made more
    more.write_bytes(before[0])
    assert pictures.write_pictures(tmp_path, seed=1) == 2
    assert not more.exists()
    assert [f.read_bytes() for f in sorted(tmp_path.glob("*/*.jpg"))] != before
