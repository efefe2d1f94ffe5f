"""Writes the demo's pictures: `<product>/<view>.jpg`, and the `_clutter` that nothing is to be found in."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from kinrank.demo.brands import catalogue
from kinrank.demo.scenes import VIEWS, picture
from kinrank.device import threads

CLUTTER = 60  # pictures
CLUTTER_FOLDER = "_clutter"
MANIFEST = "pictures.json"


def jobs() -> list[tuple[int, int, str]]:
    """(product or -1, view, path) of every picture; one product's pictures stand together."""
    things = [(k, view, f"{p.key}/{view}.jpg") for k, p in enumerate(catalogue()) for view in range(VIEWS)]
    return things + [(-1, k, f"{CLUTTER_FOLDER}/{k:02d}.jpg") for k in range(CLUTTER)]


def write_pictures(
    folder: Path,
    seed: int = 0,
    begin: Callable[[int], None] = lambda total: None,
    progress: Callable[[int], None] = lambda n: None,
) -> int:
    """Render what is not there yet into `folder`; returns how many were rendered.

    Each picture depends on the seed and its place alone, so several processes share the work and an
    interrupted run goes on. What another version of the renderer, or another seed, made is made anew.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stamp = {"seed": seed, "renderer": _renderer()}
    before = _read(folder / MANIFEST)
    kept = before == stamp
    if not kept:
        if before is not None:  # another renderer's or seed's must not pass for this one's
            for path in folder.glob("*/*.jpg"):
                path.unlink()
        (folder / MANIFEST).write_text(json.dumps(stamp), encoding="utf-8")
    todo = [job for job in jobs() if not (kept and (folder / job[2]).is_file())]
    begin(len(todo))
    groups = [todo[i : i + VIEWS] for i in range(0, len(todo), VIEWS)]
    for done in _each(folder, seed, groups):
        progress(done)
    return len(todo)


def _each(folder: Path, seed: int, groups: list[list[tuple[int, int, str]]]) -> Iterator[int]:
    workers = min(threads(), len(groups))
    if workers < 2:
        yield from (_render(folder, seed, group) for group in groups)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(_render, folder, seed, group) for group in groups]
        try:
            yield from (future.result() for future in futures)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _render(folder: Path, seed: int, group: list[tuple[int, int, str]]) -> int:
    products = catalogue()
    for number, view, name in group:
        product = products[number] if number >= 0 else None
        image, quality = picture(product, view, seed, number if number >= 0 else len(products))
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        part = path.with_suffix(".part")
        image.save(part, "JPEG", quality=quality)
        os.replace(part, path)
    return len(group)


def _renderer() -> str:
    """A fingerprint of the code that draws."""
    names = ("brands", "camera", "drawing", "packaging", "scenes", "shapes", "surroundings")
    sources = [Path(__file__).with_name(f"{name}.py").read_bytes() for name in names]
    return hashlib.blake2b(b"".join(sources), digest_size=8).hexdigest()


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
