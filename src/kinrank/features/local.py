"""Local features: what stands where in a picture, for the methods that check geometry.

A picture is some hundred points, each with a descriptor of 128 bytes (RootSIFT, Arandjelovic 2012). They
are kept in a folder beside the gallery, by id: shards of plain `.npy` files, memory-mapped when read, and
a `.json` a shard that is written last, so that a shard is there whole or not at all.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from kinrank.errors import GalleryError, InputError, MissingExtraError, SpecError
from kinrank.registry import unknown
from kinrank.types import Array

_SHARD = 64  # pictures; what an interruption can cost at most
_SCALE = 512.0  # RootSIFT entries lie in [0, 1] and seldom above a half: 512 x fits into a byte


@dataclass(frozen=True, eq=False)
class LocalFeatures:
    """The n local features of one picture.

    `points (n, P)` float32: x and y in pixels from the picture's centre, then what the kind adds (size and
    angle in degrees for RootSIFT, an ellipse for DSM); `descriptors (n, D)` uint8; `shape` height, width.
    """

    points: Array
    descriptors: Array
    shape: tuple[int, int]

    def __len__(self) -> int:
        return len(self.points)


def rootsift(image: Any, size: int = 1024, count: int = 1000) -> LocalFeatures:
    """The `count` strongest RootSIFT features of a picture (a path, a PIL image or an array (H, W[, 3])).

    The longer side is brought down to `size` pixels first; smaller pictures stay as they are.
    """
    cv2 = opencv()
    grey = _grey(image, size)
    found, raw = cv2.SIFT_create(nfeatures=count).detectAndCompute(grey, None)
    height, width = grey.shape
    if raw is None:
        return LocalFeatures(np.zeros((0, 4), np.float32), np.zeros((0, 128), np.uint8), (height, width))
    strongest = np.argsort([-point.response for point in found], kind="stable")[:count]
    points = np.array([(*found[i].pt, found[i].size, found[i].angle) for i in strongest], np.float32)
    points[:, :2] -= (width / 2, height / 2)
    raw = raw[strongest]
    root = np.sqrt(raw / np.maximum(raw.sum(axis=1, keepdims=True), 1e-12))
    return LocalFeatures(points, np.minimum(np.rint(_SCALE * root), 255).astype(np.uint8), (height, width))


KINDS = {"rootsift": "kinrank.features.local:rootsift", "dsm": "kinrank.features.regions:dsm_regions"}


def extractor(kind: str) -> Callable[..., LocalFeatures]:
    """What makes local features of a kind; its keyword arguments are the settings of a folder."""
    if kind not in KINDS:
        raise SpecError(unknown("kind of local features", kind, KINDS))
    module, _, name = KINDS[kind].partition(":")
    made: Callable[..., LocalFeatures] = getattr(import_module(module), name)
    return made


def settings_of(kind: str, **settings: Any) -> dict[str, Any]:
    """The settings of a folder: the kind, and all arguments of its extractor with their defaults."""
    parameters = list(inspect.signature(extractor(kind)).parameters.values())[1:]
    known = {p.name: p.default for p in parameters}
    for key in settings:
        if key not in known:
            raise SpecError(unknown(f"setting of {kind}", key, known))
    return {"kind": kind, **known, **settings}


def opencv() -> Any:
    """The module cv2, or the line that says how to get it."""
    try:
        import cv2
    except ImportError:
        raise MissingExtraError("geometric verification", "local") from None
    return cv2


def companion(gallery: str | Path, kind: str = "rootsift") -> Path:
    """The folder beside a gallery that holds its local features of a kind."""
    path = Path(gallery)
    return path.with_name(path.name + (".local" if kind == "rootsift" else f".{kind}"))


@dataclass(eq=False)
class LocalStore(Mapping[str, LocalFeatures]):
    """A folder of local features by id (the id as text); `store[str(id)]` reads from the memory map."""

    folder: Path
    settings: dict[str, Any] = field(default_factory=dict)  # kind, and what it was extracted with
    _places: dict[str, tuple[int, int, int, tuple[int, int], Any]] = field(default_factory=dict, repr=False)
    _maps: dict[int, tuple[Array, Array]] = field(default_factory=dict, repr=False)

    @classmethod
    def open(cls, folder: str | Path) -> LocalStore:
        """The store in a folder; a missing one says how it is made."""
        folder = Path(folder)
        if not (folder / "local.json").is_file():
            raise GalleryError(
                f"'{folder}' holds no local features; cure: kinrank index FOLDER -g GALLERY --local or --dsm"
            )
        return cls._read(folder)

    @classmethod
    def create(cls, folder: str | Path, settings: dict[str, Any]) -> LocalStore:
        """The store in a folder, made if missing; one that holds features of other settings is refused."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        about = folder / "local.json"
        if not about.is_file():
            _write_json(about, settings)
        store = cls._read(folder)
        if store.settings != settings:
            raise InputError(
                f"'{folder}' holds features made with {store.settings}, not {settings}; "
                "cure: take the same settings, or another folder"
            )
        return store

    @classmethod
    def _read(cls, folder: Path) -> LocalStore:
        try:
            store = cls(folder, json.loads((folder / "local.json").read_text()))
            for path in sorted(folder.glob("[0-9]*.json")):
                store._enter(int(path.stem), json.loads(path.read_text()))
        except (ValueError, KeyError) as error:
            raise GalleryError(
                f"'{folder}' is damaged ({error}); cure: delete it and extract again"
            ) from None
        return store

    def _enter(self, shard: int, table: dict[str, list[Any]]) -> None:
        ends = np.cumsum(table["counts"]).tolist()
        for key, end, count, shape, stamp in zip(
            table["ids"], ends, table["counts"], table["shapes"], table["stamps"]
        ):
            self._places[key] = (shard, end - count, end, (shape[0], shape[1]), stamp)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __getitem__(self, key: str) -> LocalFeatures:
        shard, start, end, shape, _ = self._places[key]
        if shard not in self._maps:
            names = (self.folder / f"{shard:06d}.{part}.npy" for part in ("points", "descriptors"))
            try:
                points, descriptors = (np.load(name, mmap_mode="r") for name in names)
            except (OSError, ValueError) as error:
                raise GalleryError(
                    f"'{self.folder}' is damaged ({error}); cure: delete it and extract again"
                ) from None
            self._maps[shard] = points, descriptors
        points, descriptors = self._maps[shard]
        return LocalFeatures(points[start:end].astype(np.float32), np.asarray(descriptors[start:end]), shape)

    def stamp(self, key: str) -> Any:
        """What `add` noted of the source of this id; None when it is not there."""
        place = self._places.get(key)
        return None if place is None else place[4]

    def add(self, features: Mapping[str, LocalFeatures], stamps: Mapping[str, Any] | None = None) -> None:
        """Write one shard; an id that was there is replaced."""
        if not features:
            return
        taken = [int(path.name[:6]) for path in self.folder.glob("[0-9]*.npy")]
        shard = max(taken, default=-1) + 1
        values = list(features.values())
        name = f"{self.folder}/{shard:06d}"
        np.save(f"{name}.points.npy", np.concatenate([v.points for v in values]).astype(np.float16))
        np.save(f"{name}.descriptors.npy", np.concatenate([v.descriptors for v in values]))
        table: dict[str, list[Any]] = {
            "ids": list(features),
            "counts": [len(v) for v in values],
            "shapes": [list(v.shape) for v in values],
            "stamps": [(stamps or {}).get(key) for key in features],
        }
        _write_json(Path(f"{name}.json"), table)
        self._enter(shard, table)


@dataclass(frozen=True)
class Extracted:
    """What `extract_local` did: how many it made, how many were there, and what it could not read."""

    made: int
    skipped: int
    unreadable: list[tuple[str, str]]


def extract_local(
    images: Iterable[tuple[Any, str | Path]],
    folder: str | Path,
    kind: str = "rootsift",
    progress: bool = False,
    **settings: Any,
) -> Extracted:
    """Local features of pictures (id, path) into a folder; what is there and unchanged is skipped.

    A picture that cannot be read is reported and left out. Interrupted work is kept up to the last shard.
    """
    from tqdm import tqdm

    from kinrank.features.images import UnreadableImage

    extract = extractor(kind)
    store = LocalStore.create(folder, settings_of(kind, **settings))
    arguments = {key: value for key, value in store.settings.items() if key != "kind"}
    batch: dict[str, LocalFeatures] = {}
    stamps: dict[str, Any] = {}
    made, skipped, unreadable = 0, 0, []
    try:
        for identity, path in tqdm(images, desc="local features", unit="image", disable=not progress):
            key = str(identity)
            try:
                stamp = _stamp(path)
                if store.stamp(key) == stamp:
                    skipped += 1
                    continue
                batch[key], stamps[key] = extract(path, **arguments), stamp
            except (OSError, UnreadableImage) as error:
                unreadable.append((str(path), str(error)))
                continue
            made += 1
            if len(batch) == _SHARD:
                store.add(batch, stamps)
                batch, stamps = {}, {}
    finally:
        store.add(batch, stamps)
    return Extracted(made, skipped, unreadable)


def _stamp(path: str | Path) -> list[int]:
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns]


def _write_json(path: Path, data: Any) -> None:
    fresh = path.with_suffix(".tmp")
    fresh.write_text(json.dumps(data, ensure_ascii=False))
    fresh.replace(path)


def _grey(image: Any, size: int) -> Array:
    """A picture as grey values (H, W) uint8, its longer side at most `size`."""
    from PIL import Image as images

    if isinstance(image, str | Path):
        from kinrank.features.images import read_image

        picture = read_image(image, least=size)
    else:
        picture = images.fromarray(image) if isinstance(image, np.ndarray) else image
    scale = size / max(picture.size)
    if scale < 1:
        width, height = (max(1, round(side * scale)) for side in picture.size)
        picture = picture.convert("L").resize((width, height), images.Resampling.LANCZOS)
    return np.asarray(picture.convert("L"))
