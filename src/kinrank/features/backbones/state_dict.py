"""Reads a PyTorch state dict or checkpoint without torch and without trusting it.

Before version 1.6 such a file is five pickles (magic number, protocol, system, the dict with its tensors by
reference, the storage keys) and then the storages, each as its length and its raw numbers; since then it is
a zip of one pickle and a file of raw numbers a storage. Pickles can call anything; this reader admits ordered
dicts, the call that names a tensor and NumPy arrays of numbers, and nothing else.
"""

from __future__ import annotations

import math
import pickle
import zipfile
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from kinrank.errors import InputError
from kinrank.types import Array

_MAGIC = 0x1950A86A20F9469CFC6C
_KINDS = {"FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2", "LongStorage": "<i8"}


@dataclass(frozen=True)
class _Storage:
    key: str
    dtype: str
    length: int


@dataclass(frozen=True)
class _Tensor:
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def _tensor(storage: _Storage, offset: int, shape: Any, stride: Any, *_: Any) -> _Tensor:
    return _Tensor(storage, int(offset), tuple(map(int, shape)), tuple(map(int, stride)))


def _array_to_fill(*_: Any) -> Array:
    return np.empty(0, np.uint8)  # the pickle then sets shape, type and bytes


def _number_type(code: Any, *_: Any) -> np.dtype[Any]:
    kind = np.dtype(code)
    if kind.kind not in "biuf":
        raise InputError(f"the weights file holds an array of type {kind}; only numbers are admitted")
    return kind


def _number(kind: np.dtype[Any], raw: Any) -> Any:
    raw = raw.encode("latin1") if isinstance(raw, str) else raw
    return np.frombuffer(raw, kind)[0].item()


_NUMPY = {"_reconstruct": _array_to_fill, "ndarray": "ndarray", "dtype": _number_type, "scalar": _number}


class _Reader(pickle.Unpickler):
    """Finds a few kinds of names; every other one is refused before it is imported."""

    def find_class(self, module: str, name: str) -> Any:
        """Ordered dicts, tensors, storages, NumPy arrays."""
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor
        if module == "torch" and name in _KINDS:
            return name
        if module in ("numpy", "numpy.core.multiarray", "numpy._core.multiarray") and name in _NUMPY:
            return _NUMPY[name]
        if (module, name) == ("_codecs", "encode"):
            return _encode
        raise InputError(f"the weights file asks for {module}.{name}; only tensors and dicts are admitted")

    def persistent_load(self, reference: Any) -> _Storage:
        """A storage named by the pickle: its numbers come later in the file."""
        if not isinstance(reference, tuple) or len(reference) < 5 or reference[0] != "storage":
            raise InputError("the weights file refers to something that is not a storage")
        kind, key, length = reference[1], str(reference[2]), int(reference[4])
        return _Storage(key, _KINDS[kind], length)


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "utf-8"):
        raise InputError("the weights file encodes what is not text")
    return text.encode(encoding)


def read_state_dict(path: str | Path) -> dict[str, Array]:
    """Name -> array of every tensor in the file."""
    named = read_checkpoint(path)
    if not isinstance(named, dict):
        raise InputError(f"'{path}' is not a PyTorch state dict")
    return {str(name): value for name, value in named.items() if isinstance(value, np.ndarray)}


def read_checkpoint(path: str | Path) -> Any:
    """What a PyTorch file holds, nested as it is: dicts, lists, numbers, text, and arrays for its tensors."""
    with open(path, "rb") as file:
        try:
            return _from_zip(file) if zipfile.is_zipfile(file) else _from_stream(file, path)
        except InputError:
            raise
        except Exception as error:  # a damaged file can fail in any way
            raise InputError(f"'{path}' is not a readable PyTorch state dict: {error}") from None


def _from_stream(file: BinaryIO, path: str | Path) -> Any:
    file.seek(0)
    if _Reader(file).load() != _MAGIC:
        raise InputError(f"'{path}' is not a PyTorch state dict")
    _Reader(file).load()  # protocol version
    _Reader(file).load()  # byte order and type sizes of the writer
    found = _Reader(file).load()
    keys = _Reader(file).load()
    known = {tensor.storage.key: tensor.storage for tensor in _tensors(found)}
    return _filled(found, _read_storages(file, keys, known))


def _from_zip(file: BinaryIO) -> Any:
    with zipfile.ZipFile(file) as archive:
        members = {name.partition("/")[2]: name for name in archive.namelist()}
        found = _Reader(archive.open(members["data.pkl"])).load()
        storages = {}
        for tensor in _tensors(found):
            kept = tensor.storage
            if kept.key not in storages:
                raw = archive.read(members[f"data/{kept.key}"])
                storages[kept.key] = np.frombuffer(raw, np.dtype(kept.dtype))
    return _filled(found, storages)


def _tensors(value: Any) -> list[_Tensor]:
    if isinstance(value, _Tensor):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for part in inner for tensor in _tensors(part)]


def _filled(value: Any, storages: dict[str, Array]) -> Any:
    if isinstance(value, _Tensor):
        return _array(value, storages)
    if isinstance(value, dict):
        return {key: _filled(part, storages) for key, part in value.items()}
    return [_filled(part, storages) for part in value] if isinstance(value, list | tuple) else value


def _read_storages(file: BinaryIO, keys: Any, known: dict[str, _Storage]) -> dict[str, Array]:
    storages: dict[str, Array] = {}
    for key in keys:
        storage = known[str(key)]
        length = int.from_bytes(file.read(8), "little")
        if length != storage.length:
            raise InputError(f"the weights file holds {length} numbers where it names {storage.length}")
        dtype = np.dtype(storage.dtype)
        raw = file.read(length * dtype.itemsize)
        if len(raw) != length * dtype.itemsize:
            raise InputError("the weights file ends too early; cure: install its package again")
        storages[storage.key] = np.frombuffer(raw, dtype)
    return storages


def _array(tensor: _Tensor, storages: dict[str, Array]) -> Array:
    flat = storages[tensor.storage.key]
    last = tensor.offset + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride))
    repeated = math.prod(tensor.shape) > len(flat)  # a stride of 0 could ask for any amount of memory
    if repeated or min((*tensor.stride, *tensor.shape, tensor.offset, 0)) < 0 or last >= len(flat):
        raise InputError("a tensor of the weights file reaches beyond its numbers")
    strides = [step * flat.itemsize for step in tensor.stride]
    return np.lib.stride_tricks.as_strided(flat[tensor.offset :], tensor.shape, strides).copy()
