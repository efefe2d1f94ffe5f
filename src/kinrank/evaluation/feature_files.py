"""Arrays out of files of other tools, as data: no code in a file is ever run.

.npy, .npz, .mat (version 5 and 7.3), .pkl of arrays, .pt/.pth of tensors, .safetensors. What a format keeps
uncompressed stays on disk and is memory-mapped.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from kinrank.errors import InputError, MissingExtraError
from kinrank.evaluation import safe_pickle
from kinrank.types import Array

Arrays = dict[str, Array]
_TORCH = {
    "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
    "HalfStorage": "<f2",
    "BFloat16Storage": "bf16",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "<i1",
    "ByteStorage": "<u1",
}
_SAFETENSORS = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "bf16",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "<i1",
    "U8": "<u1",
}


def read_arrays(path: Path) -> Arrays:
    """Every array of a file by its name; a file of one nameless array names it ''."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"'{path}': features are read from {', '.join(READERS)}, not from '{path.suffix}'")
    if not path.is_file():
        raise InputError(f"there is no file '{path}'")
    try:
        arrays = reader(path)
    except (InputError, MissingExtraError):
        raise
    except Exception as error:  # a damaged file can fail in any way
        raise InputError(f"'{path}' cannot be read: {type(error).__name__}: {error}") from None
    if not arrays:
        raise InputError(f"'{path}' holds no array of numbers")
    return arrays


def _npy(path: Path) -> Arrays:
    return {"": np.load(path, mmap_mode="r", allow_pickle=False)}


def _npz(path: Path) -> Arrays:
    arrays: Arrays = {}
    with zipfile.ZipFile(path) as archive, np.load(path, allow_pickle=False) as loaded:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if member.compress_type != zipfile.ZIP_STORED or member.file_size < 1 << 20:
                arrays[name] = loaded[name]
                continue
            with archive.open(member) as stream:
                shape, fortran, dtype, header = _npy_header(stream)
            if dtype.hasobject:
                raise InputError(f"'{path}': '{name}' holds objects, not numbers")
            offset = _stored_at(path, member) + header
            arrays[name] = np.memmap(path, dtype, "r", offset, shape, "F" if fortran else "C")
    return arrays


def _npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, Any, int]:
    form = np.lib.format
    read = form.read_array_header_1_0 if form.read_magic(stream) == (1, 0) else form.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    return shape, fortran, dtype, stream.tell()


def _stored_at(path: Path, member: zipfile.ZipInfo) -> int:
    """Where in an archive the bytes of an uncompressed member begin."""
    with path.open("rb") as file:
        file.seek(member.header_offset + 26)
        name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
    return member.header_offset + 30 + name + extra


def _mat(path: Path) -> Arrays:
    with path.open("rb") as file:
        hdf5 = file.read(10) == b"MATLAB 7.3" or _is_hdf5(path)
    if not hdf5:
        from scipy.io import loadmat

        return {name: value for name, value in loadmat(path).items() if _numbers(value)}
    try:
        import h5py
    except ImportError:
        raise MissingExtraError("a .mat file of version 7.3", "mat") from None
    arrays: Arrays = {}
    with h5py.File(path, "r") as file:
        for name, value in file.items():
            if not isinstance(value, h5py.Dataset) or value.dtype.kind not in "fiu":
                continue
            offset = value.id.get_offset()  # None where it is compressed or in pieces
            whole = value[()] if offset is None else np.memmap(path, value.dtype, "r", offset, value.shape)
            arrays[name] = whole.T  # MATLAB writes columns first
    return arrays


def _is_hdf5(path: Path) -> bool:
    with path.open("rb") as file:
        return any(
            file.seek(start) == start and file.read(8) == b"\x89HDF\r\n\x1a\n" for start in (0, 512, 1024)
        )


def _numbers(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "fiu" and value.ndim <= 2


def _pickled(path: Path) -> Arrays:
    found = safe_pickle.load(path)
    if isinstance(found, np.ndarray):
        return {"": found}
    if not isinstance(found, dict):
        raise InputError(f"'{path}' holds a {type(found).__name__}; needed is an array, or a dict of arrays")
    return {str(name): value for name, value in found.items() if _numbers(value)}


@dataclass(frozen=True)
class _Storage:
    """Numbers of a .pt file, still flat."""

    flat: Array
    bf16: bool


def _torch(path: Path) -> Arrays:
    if not zipfile.is_zipfile(path):
        raise InputError(
            f"'{path}' is of PyTorch's old format; cure: save it again with torch >= 1.6, or as .npz"
        )
    with zipfile.ZipFile(path) as archive:
        members = {member.filename.partition("/")[2]: member for member in archive.infolist()}
        if "data.pkl" not in members:
            raise InputError(f"'{path}' is no PyTorch file of tensors")
        if "byteorder" in members and archive.read(members["byteorder"]).strip() != b"little":
            raise InputError(f"'{path}' was written with another byte order")

        def storage(reference: Any) -> _Storage:
            if not isinstance(reference, tuple) or len(reference) != 5 or reference[0] != "storage":
                raise InputError(f"'{path}' refers to something that is no tensor")
            kind = getattr(reference[1], "name", "")
            member = members.get(f"data/{reference[2]}")
            if kind not in _TORCH or member is None or member.compress_type != zipfile.ZIP_STORED:
                raise InputError(f"'{path}': a tensor of '{kind}' cannot be read")
            dtype = _dtype(_TORCH[kind])
            count = member.file_size // dtype.itemsize
            flat = np.memmap(path, dtype, "r", _stored_at(path, member), (count,)) if count else np.empty(0)
            return _Storage(flat, _TORCH[kind] == "bf16")

        names = {f"torch.{kind}": _no_call for kind in _TORCH} | {"torch._utils._rebuild_tensor_v2": _tensor}
        found = safe_pickle.loads(archive.read(members["data.pkl"]), str(path), names, storage)
    found = {"": found} if isinstance(found, np.ndarray) else found
    if not isinstance(found, dict):
        raise InputError(f"'{path}' holds a {type(found).__name__}; needed is a tensor, or a dict of tensors")
    return {str(name): value for name, value in found.items() if _numbers(value)}


def _no_call(*_: Any) -> Any:
    raise InputError("a storage is made outside the file")


def _tensor(storage: Any, offset: Any, shape: Any, stride: Any, *_: Any) -> Array:
    if not isinstance(storage, _Storage) or any(
        type(n) is not int or n < 0 for n in (offset, *shape, *stride)
    ):
        raise InputError("a tensor is described by what are no numbers")
    last = offset + sum((n - 1) * s for n, s in zip(shape, stride))
    beyond = bool(math.prod(shape)) and last >= len(storage.flat)
    if beyond or len(shape) != len(stride) or math.prod(shape) > len(storage.flat):
        raise InputError("a tensor reaches beyond its numbers")
    flat = storage.flat[offset:]
    dense = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    if tuple(stride) == dense or math.prod(shape) <= 1:
        whole = flat[: math.prod(shape)].reshape(shape)
    else:
        steps = [step * flat.itemsize for step in stride]
        whole = np.lib.stride_tricks.as_strided(flat, shape, steps, writeable=False).copy()
    return _widened(whole) if storage.bf16 else whole


def _safetensors(path: Path) -> Arrays:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(size - 8, 100_000_000):
            raise InputError(f"'{path}' is no safetensors file")
        header = json.loads(file.read(length))
    arrays: Arrays = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] not in _SAFETENSORS:
            continue
        kind, shape, (low, high) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        dtype = _dtype(_SAFETENSORS[kind])
        if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != high - low or low < 0:
            raise InputError(f"'{path}': tensor '{name}' does not fit its bytes")
        if 8 + length + high > size:
            raise InputError(f"'{path}' ends too early; cure: fetch it again")
        empty = math.prod(shape) == 0
        whole = np.empty(shape, dtype) if empty else np.memmap(path, dtype, "r", 8 + length + low, shape)
        arrays[name] = _widened(whole) if kind == "BF16" else whole
    return arrays


def _dtype(code: str) -> np.dtype[Any]:
    return np.dtype("<u2" if code == "bf16" else code)


def _widened(halves: Array) -> Array:
    """bfloat16, which NumPy does not know, as float32."""
    return (halves.astype(np.uint32) << 16).view(np.float32)


READERS: dict[str, Callable[[Path], Arrays]] = {
    ".npy": _npy,
    ".npz": _npz,
    ".mat": _mat,
    ".pkl": _pickled,
    ".pt": _torch,
    ".pth": _torch,
    ".safetensors": _safetensors,
}
