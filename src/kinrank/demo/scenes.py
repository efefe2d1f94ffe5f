"""What stands where, under which light, seen from where: one scene for each picture of the demo."""

from __future__ import annotations

import numpy as np
from PIL import Image

from kinrank.demo import surroundings
from kinrank.demo.brands import Product, strangers
from kinrank.demo.camera import Lens, Light, Placed, Scene, look, photograph
from kinrank.demo.shapes import BOXES, LINEAR, Ball, Shape, solid

Array = np.ndarray
SIZE = 256
FINE = 416  # rendered larger and reduced, against jagged edges
ROUGH = 72  # pixels across, to see beforehand whether the target can be seen
VIEWS = 7

GLOSS = {"can": 0.3, "tin": 0.22, "flat": 0.22, "canister": 0.14, "jar": 0.2, "bottle": 0.24, "book": 0.05}
LAMPS = ((1.0, 0.96, 0.9), (1.0, 0.84, 0.66), (0.86, 0.93, 1.0), (1.0, 0.98, 0.96), (1.0, 0.72, 0.48))
FRUIT = ((226, 120, 30), (196, 40, 36), (236, 204, 70), (120, 160, 60), (90, 40, 60))


def yaw(angle: float) -> Array:
    """Turn round the upright axis."""
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]], np.float32)


LYING = np.array([[1, 0, 0], [0, 0, 1], [0, -1, 0]], np.float32)  # the front looks up


def stand(shape: Shape, x: float, z: float, angle: float, gloss: float, lying: bool = False) -> Placed:
    """Put a solid on the table."""
    turn = yaw(angle) @ LYING if lying else yaw(angle)
    lift = float(np.abs(turn[1]) @ shape.half)
    return Placed(shape, turn, np.array([x, lift, z], np.float32), gloss)


def reach(shape: Shape) -> float:
    """Radius of the place that a solid takes on the table."""
    return float(np.hypot(shape.half[0], shape.half[2]))


def clutter(
    rng: np.random.Generator, seed: int, taken: list[tuple[float, float, float]], count: int
) -> list[Placed]:
    """Things of other makers and fruit, beside and behind what is taken already."""
    pool, placed = strangers(seed), []
    for _ in range(count):
        if rng.random() < 0.2:
            r = rng.uniform(0.11, 0.19)
            tone = LINEAR[np.array(FRUIT[int(rng.integers(len(FRUIT)))])]
            shape: Shape = Ball(np.array([r, r * rng.uniform(0.86, 1.0), r], np.float32), tone)
            gloss = 0.12
        else:
            product = pool[int(rng.integers(len(pool)))]
            shape, gloss = solid(product), GLOSS.get(product.kind, 0.08)
        for _ in range(12):
            x, z = rng.uniform(-1.5, 1.5), rng.uniform(-1.4, 0.25)
            if all(np.hypot(x - a, z - b) > (reach(shape) + r) * 0.9 for a, b, r in taken):
                taken.append((x, z, reach(shape)))
                placed.append(stand(shape, x, z, rng.uniform(-0.9, 0.9), gloss))
                break
    return placed


def occluder(rng: np.random.Generator, seed: int, target: Shape, eye: Array) -> Placed:
    """Something low that stands between the lens and one side of the target."""
    if rng.random() < 0.45:
        r = rng.uniform(0.13, 0.2)
        tone = LINEAR[np.array(FRUIT[int(rng.integers(len(FRUIT)))])]
        shape: Shape = Ball(np.array([r, r * 0.93, r], np.float32), tone)
        gloss = 0.12
    else:
        low = [p for p in strangers(seed) if p.kind in ("tin", "flat", "jar", "tea", "wide")]
        product = low[int(rng.integers(len(low)))]
        shape, gloss = solid(product), GLOSS.get(product.kind, 0.08)
    away = reach(target) + reach(shape) + rng.uniform(0.05, 0.25)
    angle = float(np.arctan2(eye[0], eye[2])) + rng.choice([-1, 1]) * rng.uniform(0.35, 0.75)
    return stand(
        shape, away * float(np.sin(angle)), away * float(np.cos(angle)), rng.uniform(-0.7, 0.7), gloss
    )


def light(rng: np.random.Generator, evening: bool) -> Light:
    """A lamp or a window somewhere in front and above, and the room's own light."""
    side, up, far = rng.uniform(-1.2, 1.2), rng.uniform(0.45, 1.2), 6.0
    at = far * np.array([np.sin(side) * np.cos(up), np.sin(up), np.cos(side) * np.cos(up)])
    tint = np.array(LAMPS[4 if evening else int(rng.integers(len(LAMPS)))], np.float32)
    room = np.array(LAMPS[int(rng.integers(4))], np.float32)
    strength, ambient = rng.uniform(0.6, 1.3), rng.uniform(0.1, 0.25) if evening else rng.uniform(0.25, 0.7)
    return Light(
        at.astype(np.float32), rng.uniform(0.3, 1.5), tint * strength, room * ambient, room * ambient * 0.7
    )


def lens(rng: np.random.Generator, view: int, wide: float, height: float) -> Lens:
    """Viewpoints and faults of the camera; the later views are the harder ones."""
    up = {0: rng.uniform(0.1, 0.25), 3: rng.uniform(0.4, 0.62)}.get(view, rng.uniform(0.08, 0.36))
    around, far = rng.uniform(-0.25, 0.25), rng.uniform(2.8, 3.8)
    eye = far * np.array([np.sin(around) * np.cos(up), np.sin(up), np.cos(around) * np.cos(up)])
    fills = {0: rng.uniform(0.8, 0.95), 6: rng.uniform(0.66, 0.78)}.get(view, rng.uniform(0.8, 1.02))
    zoom = max(wide, height) / fills / far
    shift = rng.uniform(-0.06, 0.06, 2) * (0.4 if view == 0 else 1.0) * zoom * far
    target = np.array([shift[0], height / 2 + shift[1], 0.0])
    shaken = view >= 4 and rng.random() < 0.25
    angle = rng.uniform(0, 2 * np.pi)
    return Lens(
        eye=eye.astype(np.float32),
        target=target.astype(np.float32),
        roll=0.0 if view == 0 else float(rng.normal(0, 0.045)),
        zoom=float(zoom),
        blur_far=rng.uniform(0.6, 3.0),
        exposure=float(2 ** rng.normal(0.15, 0.1 if view == 0 else 0.22)),
        balance=tuple(2 ** rng.normal(0, 0.05, 3)),
        vignette=rng.uniform(0.1, 0.45),
        soft=rng.uniform(0.2, 0.7) if view in (4, 6) else rng.uniform(0, 0.5),
        shake=(3 * np.cos(angle), 3 * np.sin(angle)) if shaken else (0, 0),
        grain=rng.uniform(0.004, 0.012) if view != 5 else rng.uniform(0.01, 0.022),
    )


def _turned(rng: np.random.Generator, view: int) -> float:
    """How far the front looks away from the lens."""
    if view in (1, 2):
        return (1 if view == 1 else -1) * rng.uniform(0.3, 0.62)
    return rng.uniform(-0.2, 0.2) if view == 0 else rng.uniform(-0.35, 0.35)


def compose(product: Product | None, view: int, rng: np.random.Generator, seed: int) -> tuple[Scene, Lens]:
    """One arrangement; without a product it shows the clutter alone."""
    table = int(rng.integers(surroundings.choices(True)))
    wall = int(rng.integers(surroundings.choices(False)))
    things: list[Placed] = []
    if product is None:
        camera = lens(rng, int(rng.integers(1, VIEWS)), 1.0, 0.8)
        things = clutter(rng, seed, [], int(rng.integers(4, 8)))
    else:
        shape = solid(product)
        lying = product.kind in BOXES and view == 3 and rng.random() < 0.3
        target = stand(shape, 0, 0, 0, GLOSS.get(product.kind, 0.08), lying)
        camera = lens(rng, view, 2 * float(shape.half[0]), 2 * float(target.at[1]) if not lying else 0.7)
        front = float(np.arctan2(camera.eye[0], camera.eye[2]))
        target = stand(shape, 0, 0, front + _turned(rng, view), target.gloss, lying)
        things = [target]
        taken = [(0.0, 0.0, reach(shape) if not lying else 0.5)]
        if view >= 4 or (view > 0 and rng.random() < 0.3):
            things.append(occluder(rng, seed, shape, camera.eye))
            taken.append((float(things[1].at[0]), float(things[1].at[2]), reach(things[1].shape)))
        things += clutter(rng, seed, taken, int(rng.integers(0, 2) if view == 0 else rng.integers(1, 4)))
    scene = Scene(
        things=things,
        table=surroundings.texture(seed, True, table),
        wall=surroundings.texture(seed, False, wall),
        wall_z=-float(rng.uniform(1.6, 2.4)),
        table_scale=float(rng.uniform(0.35, 0.6)),
        wall_scale=float(rng.uniform(0.2, 0.3)),
        offset=(float(rng.choice([0.5, 1.5]) + rng.uniform(-0.1, 0.1)), float(rng.uniform(0, 2))),
        light=light(rng, view == 5),
        table_gloss=float(rng.choice([0.0, 0.0, 0.05, 0.12])),
    )
    return scene, camera


def visible(scene: Scene, camera: Lens) -> tuple[float, float]:
    """(share of the target that nothing hides, share of the picture that it fills), looked up roughly."""
    alone = Scene(**{**vars(scene), "things": scene.things[:1]})
    whole = int((look(alone, camera, ROUGH).who == 0).sum())
    seen = int((look(scene, camera, ROUGH).who == 0).sum())
    return seen / max(whole, 1), seen / ROUGH**2


def picture(product: Product | None, view: int, seed: int, number: int) -> tuple[Image.Image, int]:
    """(a picture, JPEG quality): the same for the same arguments."""
    rng = np.random.default_rng([seed, 4, number, view])
    for _ in range(8):
        scene, camera = compose(product, view, rng, seed)
        if product is None:
            break
        seen, fills = visible(scene, camera)
        if seen > (0.9 if view == 0 else 0.7) and fills > 0.15:
            break
    image = photograph(scene, camera, SIZE, FINE, rng)
    return image, int(rng.integers(88, 95) if view < 4 else rng.integers(45, 85))
