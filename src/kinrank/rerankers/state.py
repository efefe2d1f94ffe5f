"""Where fitted state lives: `<gallery path>.fit/<gallery mark>/<name>/`, .npy files under one manifest.

The manifest names the files and is replaced in one step, so a reader sees the old state whole or the
new one whole. A gallery without a path (`memory:`) has no folder: its state stays in the process.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from kinrank.errors import InputError, NotFittedError
from kinrank.types import Array, GalleryLike

FORMAT = 1  # of the files; state of another format is built again
_MANIFEST = "manifest.json"
_SUFFIX = ".fit"


def fit_folder(gallery: GalleryLike, name: str) -> Path | None:
    """The folder of one piece of fitted state; None for a gallery that lives in memory or elsewhere.

    It is the gallery's own by its mark: another gallery made at the same path never reads it.
    """
    path = getattr(gallery, "path", None)
    mark = getattr(gallery, "uid", None) or "one"
    return None if path is None else Path(f"{path}{_SUFFIX}") / mark[:12] / name


def spec_name(name: str, **parameters: Any) -> str:
    """`name-<hash>`: the same parameters give the same name."""
    text = json.dumps(parameters, sort_keys=True)
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def save(folder: Path, arrays: dict[str, Array], **meta: Any) -> bool:
    """Write arrays and plain values; the manifest comes last, then the former files go.

    False where nothing can be written (a read-only share, a full disk): the state then lives as long as
    the process, and the next one computes it again.
    """
    stamp = f"{os.getpid()}-{os.urandom(3).hex()}"
    files = {key: f"{key}-{stamp}.npy" for key in arrays}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for key, array in arrays.items():
            np.save(folder / files[key], array, allow_pickle=False)
        draft = folder / f"{_MANIFEST}.{stamp}"
        draft.write_text(json.dumps({"format": FORMAT, "files": files, "meta": meta}))
        os.replace(draft, folder / _MANIFEST)
    except OSError:
        for name in files.values():
            with suppress(OSError):
                (folder / name).unlink(missing_ok=True)
        return False
    for old in folder.glob("*.npy"):
        if old.name not in files.values():
            old.unlink(missing_ok=True)
    if folder.parent.parent.name.endswith(_SUFFIX):
        for former in folder.parent.parent.iterdir():  # state of a gallery that stood at this path before
            if former != folder.parent:
                shutil.rmtree(former, ignore_errors=True)
    return True


def load(folder: Path | None) -> tuple[dict[str, Array], dict[str, Any]] | None:
    """(arrays, mapped from disk; plain values), or None when there is nothing whole to read."""
    if folder is None:
        return None
    try:
        manifest = json.loads((folder / _MANIFEST).read_text())
        if manifest["format"] != FORMAT:
            return None
        arrays = {
            key: np.load(folder / name, mmap_mode="r", allow_pickle=False)
            for key, name in manifest["files"].items()
        }
        return arrays, manifest["meta"]
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None  # absent, half written or damaged: whoever asked builds it again


def require_current(gallery: GalleryLike | None, revision: int, method: str) -> None:
    """Refuse to rank with state that was fitted before the gallery's last change."""
    if gallery is not None and gallery.revision != revision:
        raise NotFittedError(
            f"{method} was fitted at revision {revision} of the gallery, which is now at "
            f"{gallery.revision}; cure: fit(gallery) again (it takes in only what changed)"
        )


def require_origin(gallery: GalleryLike, unknown: Array, dim: int, method: str) -> None:
    """Refuse candidates of another width, or ids `unknown` to the gallery that the method was fitted to."""
    if dim != gallery.dim:
        raise InputError(
            f"the candidates have {dim} dimensions, the gallery that {method} was fitted to has {gallery.dim}"
        )
    if len(unknown):
        raise InputError(
            f"id {unknown[0]!s} is not in the gallery that {method} was fitted to; "
            "cure: fit it to the gallery that the candidates come from"
        )
