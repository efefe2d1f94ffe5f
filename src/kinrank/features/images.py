"""Pictures off the disk: found in a fixed order, decoded whatever they are, and never fatal.

A file that cannot be decoded raises `UnreadableImage` with a reason in one line; who reads a folder
collects these and goes on.
"""

from __future__ import annotations

import io
import os
import stat
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kinrank.errors import InputError
from kinrank.types import Array

if TYPE_CHECKING:
    from PIL import Image

_COMMON = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".tif", ".tiff", ".bmp")
SUFFIXES = frozenset((*_COMMON, ".heic", ".heif", ".avif"))
MAX_PIXELS = 178_956_970  # Pillow's own limit against decompression bombs: 512 MB as RGB
_LARGE = 50_000_000  # pixels: many decoders at work on such pictures would fill the memory
_lock = threading.Lock()
_one_at_a_time = threading.Lock()


class UnreadableImage(InputError):
    """A file that is no picture, is damaged or is too large; the message is the reason."""


@dataclass(frozen=True)
class Failure:
    """A file that could not be used, and why."""

    path: str
    reason: str


def walk(folder: str | os.PathLike[str], failed: Callable[[Failure], None]) -> Iterator[str]:
    """Paths of the pictures under a folder, relative to it, with `/`; always in the same order.

    A folder's own files come first, by name, then its folders.
    Names that begin with a dot are passed over. A link to a folder is followed once, and not at all where it
    leads back into the folder that is walked. What cannot be listed or is no regular file goes to `failed`.
    """
    root = os.path.abspath(folder)
    if not os.path.isdir(root):
        what = "is a file, not a folder" if os.path.exists(root) else "does not exist"
        raise InputError(f"the folder '{os.fspath(folder)}' {what}")
    inside = os.path.realpath(root)
    seen = {_identity(root)}
    stack = [""]
    while stack:
        relative = stack.pop()
        try:
            with os.scandir(os.path.join(root, relative)) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            failed(Failure(os.path.join(root, relative), error.strerror or str(error)))
            continue
        folders = []
        for entry in entries:
            if entry.name.startswith("."):
                continue
            name = f"{relative}/{entry.name}" if relative else entry.name
            if entry.is_dir():
                if _may_enter(entry, inside, seen):
                    folders.append(name)
            elif os.path.splitext(entry.name)[1].lower() in SUFFIXES:
                reason = _not_usable(entry)
                if reason:
                    failed(Failure(_printable(entry.path), reason))
                else:
                    yield name
        stack.extend(reversed(folders))


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _may_enter(entry: os.DirEntry[str], inside: str, seen: set[tuple[int, int]]) -> bool:
    if entry.is_symlink():
        target = os.path.realpath(entry.path)
        if target == inside or target.startswith(inside + os.sep) or inside.startswith(target + os.sep):
            return False  # its pictures come under their own names, or it would contain the folder itself
    identity = _identity(entry.path)
    if identity in seen:
        return False
    seen.add(identity)
    return True


def _not_usable(entry: os.DirEntry[str]) -> str | None:
    try:
        entry.name.encode()
    except UnicodeEncodeError:
        return "its name is not valid UTF-8; cure: rename it"
    try:
        mode = entry.stat().st_mode
    except OSError as error:
        return "the link leads nowhere" if entry.is_symlink() else error.strerror or str(error)
    return None if stat.S_ISREG(mode) else "it is not a regular file"


def _printable(path: str) -> str:
    return path.encode(errors="surrogateescape").decode(errors="backslashreplace")


def read_image(
    source: str | os.PathLike[str] | bytes, least: int | None = None, max_pixels: int = MAX_PIXELS
) -> Image.Image:
    """A picture as upright RGB with 8 bits a channel; the first frame where there are several.

    `source` is a path or a file's bytes. With `least`, a large JPEG is decoded at 1/2, 1/4 or 1/8 of its
    size, as long as both sides stay half as long again: what is resampled from it later hardly differs.
    """
    raw = source if isinstance(source, bytes) else _read(source)
    if not raw:
        raise UnreadableImage("the file is empty")
    try:
        image = _open(raw)
        if least is not None:
            image.draft("RGB", (3 * least // 2, 3 * least // 2))
        _check_size(image, max_pixels)
        with _one_at_a_time if image.width * image.height > _LARGE else nullcontext():
            image.load()
            return _rgb(_upright(image))
    except UnreadableImage:
        raise
    except MemoryError:
        raise UnreadableImage("it does not fit into the memory") from None
    except Exception as error:  # Pillow's decoders raise whatever the damage leads to
        raise UnreadableImage(_reason(error)) from None


def allow_pixels(count: int) -> None:
    """Let pictures of that many pixels through in this process: Pillow has a limit of its own."""
    from PIL import Image

    if count > MAX_PIXELS:
        Image.MAX_IMAGE_PIXELS = count


def _read(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UnreadableImage(f"'{os.fspath(path)}': {error.strerror or error}") from None


def _reason(error: Exception) -> str:
    name = type(error).__name__
    if name == "UnidentifiedImageError":
        return "it is not a picture of a known format"
    if name == "DecompressionBombError":
        return f"it is larger than the limit against decompression bombs ({error})"
    return f"it is damaged: {str(error) or name}"


def _open(raw: bytes) -> Image.Image:
    from PIL import Image

    with _lock:  # the first call makes the decoders known
        if not Image._initialized:
            warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
            warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")  # odd EXIF and the like
            Image.init()
    if raw[4:8] == b"ftyp" and not raw[8:12].startswith(b"avi"):
        _know_heif()
    return Image.open(io.BytesIO(raw))


def _know_heif() -> None:
    """Pillow reads HEIC with a plug-in; without it the reason names the cure."""
    try:
        import pillow_heif
    except ImportError:
        raise UnreadableImage("HEIC needs the extra 'heic': pip install 'kinrank[heic]'") from None
    with _lock:
        pillow_heif.register_heif_opener()


def _check_size(image: Image.Image, max_pixels: int) -> None:
    width, height = image.size
    if width * height > max_pixels:
        raise UnreadableImage(
            f"it has {width} x {height} pixels, more than the limit of {max_pixels / 1e6:.0f} million "
            "against decompression bombs; cure: make it smaller, or raise --max-pixels if you trust it"
        )


def _upright(image: Image.Image) -> Image.Image:
    """Turned as its EXIF orientation says; a damaged EXIF block does not cost the picture."""
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # a damaged block raises anything
        return image


def _rgb(image: Image.Image) -> Image.Image:
    """RGB of 8 bits; what is transparent lies on white."""
    from PIL import Image

    if image.mode == "RGB":
        return image
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_to_bytes(np.asarray(image))).convert("RGB")
    if "A" in image.mode or "a" in image.mode or "transparency" in image.info:
        picture = image.convert("RGBA")
        page = Image.new("RGBA", picture.size, "white")
        page.alpha_composite(picture)
        return page.convert("RGB")
    return image.convert("RGB")


def _to_bytes(values: Array) -> Array:
    """Grey values of 16 or 32 bits, or real numbers, as 0 ... 255."""
    if values.dtype == np.uint16:
        return (values >> 8).astype(np.uint8)
    values = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0).clip(0)
    # Nothing in the file says what white is: the smallest usual range that holds the brightest value.
    white: Any = next((w for w in (1.0, 255.0, 65535.0) if values.max() <= w), values.max())
    if white == 1.0 and np.array_equal(values, values.round()):
        white = 255.0
    return (values * (255 / white)).round().astype(np.uint8)
