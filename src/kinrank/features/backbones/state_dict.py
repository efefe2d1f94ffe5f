"""Reads a PyTorch state dict (the format of before version 1.6) without torch and without trusting it.

Such a file is five pickles (magic number, protocol, system, the dict with its tensors by reference, the
storage keys) and then the storages, each as its length and its raw numbers. Pickles can call anything; this
reader admits ordered dicts and the call that names a tensor, and nothing else.
"""

from __future__ import annotations

import pickle
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


class _Reader(pickle.Unpickler):
    """Finds three kinds of names; every other one is refused before it is imported."""

    def find_class(self, module: str, name: str) -> Any:
        """Ordered dicts, tensors, storages."""
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor
        if module == "torch" and name in _KINDS:
            return name
        raise InputError(f"the weights file asks for {module}.{name}; only tensors and dicts are admitted")

    def persistent_load(self, reference: Any) -> _Storage:
        """A storage named by the pickle: its numbers come later in the file."""
        if not isinstance(reference, tuple) or len(reference) < 5 or reference[0] != "storage":
            raise InputError("the weights file refers to something that is not a storage")
        kind, key, length = reference[1], str(reference[2]), int(reference[4])
        return _Storage(key, _KINDS[kind], length)


def read_state_dict(path: str | Path) -> dict[str, Array]:
    """Name -> array of every tensor in the file."""
    with open(path, "rb") as file:
        try:
            if _Reader(file).load() != _MAGIC:
                raise InputError(f"'{path}' is not a PyTorch state dict of the old format")
            _Reader(file).load()  # protocol version
            _Reader(file).load()  # byte order and type sizes of the writer
            named = _Reader(file).load()
            keys = _Reader(file).load()
            tensors = {str(name): value for name, value in named.items() if isinstance(value, _Tensor)}
            storages = _read_storages(file, keys, {t.storage.key: t.storage for t in tensors.values()})
            return {name: _array(tensor, storages) for name, tensor in tensors.items()}
        except (pickle.UnpicklingError, EOFError, AttributeError, IndexError, KeyError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"'{path}' is not a readable PyTorch state dict: {error}") from None


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
    if min((*tensor.stride, *tensor.shape, tensor.offset, 0)) < 0 or last >= len(flat):
        raise InputError("a tensor of the weights file reaches beyond its numbers")
    strides = [step * flat.itemsize for step in tensor.stride]
    return np.lib.stride_tricks.as_strided(flat[tensor.offset :], tensor.shape, strides).copy()
