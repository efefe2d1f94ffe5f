"""Pickles read as data: containers, numbers, strings and numpy arrays; anything else is refused unrun.

A pickle is a program for a small machine. This is that machine with its teeth drawn: it knows the
operations that build plain values and no others, finds no global but the handful that NumPy writes for an
array, and never calls those: shape, type and bytes are checked, then the array is made here.
"""

from __future__ import annotations

import io
import math
import pickle
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from kinrank.errors import InputError

MAX_STEPS = 50_000_000  # a file of a few bytes a step can otherwise grow a hundredfold in memory
_DTYPE = re.compile(r"[<>|=]?(?:[biufcSUV][0-9]{1,9}|\?)\Z")
_SCALARS = (str, bytes, int, float, complex, bool, type(None), np.generic)
_MACHINE: Any = pickle._Unpickler  # the one in Python


class _Refused(Exception):
    """Something in the pickle that is not plain data."""


def load(path: str | Path) -> Any:
    """The plain value in a pickle file."""
    return loads(Path(path).read_bytes(), str(path))


def loads(
    data: bytes,
    name: str = "pickle",
    more: Mapping[str, Callable[..., Any]] | None = None,
    persistent: Callable[[Any], Any] | None = None,
) -> Any:
    """The plain value in a pickle's bytes; `name` is for messages.

    A reader of a richer format passes `more`, global names and what stands for them, and `persistent`,
    which resolves references to what lies outside the pickle. Both are code of ours, never the file's.
    """
    try:
        return _Plain(data, {**_KNOWN, **(more or {})}, persistent).load()
    except _Refused as error:
        raise InputError(
            f"'{name}' is refused: {error}; only containers, numbers, strings and numpy arrays are read "
            "from pickles; cure: store the data as .json or .npz"
        ) from None
    except Exception as error:  # a broken program can fail in any way
        raise InputError(f"'{name}' is not a readable pickle ({type(error).__name__}: {error})") from None


class _DType:
    """A number or string type while its byte order is still to come."""

    def __init__(self, code: Any, align: Any = False, copy: Any = True) -> None:
        code = code.decode("latin1") if isinstance(code, bytes) else code
        if not isinstance(code, str) or not _DTYPE.match(code):
            raise _Refused(f"it holds an array of type {str(code)[:40]!r} (no objects)")
        self.dtype = np.dtype(code)
        if self.dtype.kind == "V" or self.dtype.itemsize == 0:
            raise _Refused(f"it holds an array of type {code!r}")

    def set_state(self, state: Any) -> None:
        """Take the byte order; a type with fields, subarrays or metadata is refused."""
        if not isinstance(state, tuple) or len(state) < 5 or any(part is not None for part in state[2:5]):
            raise _Refused("it holds a structured array")
        order: Any = state[1].decode("latin1") if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "=", "|"):
            raise _Refused(f"byte order {str(order)[:20]!r}")
        self.dtype = self.dtype.newbyteorder(order)


def _checked(shape: Any, kind: Any, raw: Any) -> tuple[tuple[int, ...], np.dtype[Any], bytes]:
    if not isinstance(kind, _DType) or not isinstance(raw, bytes | bytearray | str):
        raise _Refused("it holds an array of objects")
    data = raw.encode("latin1") if isinstance(raw, str) else bytes(raw)
    if not isinstance(shape, tuple) or len(shape) > 32 or any(type(n) is not int or n < 0 for n in shape):
        raise _Refused(f"an array's shape is {str(shape)[:40]}")
    if math.prod(shape) * kind.dtype.itemsize != len(data) or max(shape, default=0) > max(len(data), 1 << 31):
        raise _Refused(f"an array of shape {str(shape)[:60]} comes with {len(data)} bytes")
    return shape, kind.dtype, data


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1", "utf-8", "utf8"):
        raise _Refused("it calls _codecs.encode with what is not text")
    return text.encode(encoding)


def _empty_array(subtype: Any, shape: Any, kind: Any) -> np.ndarray:
    if not (isinstance(subtype, Global) and subtype.name == "ndarray"):
        raise _Refused("it holds a subclass of an array")
    return np.empty(0, np.uint8)


def _scalar(kind: Any, raw: Any) -> Any:
    _, dtype, data = _checked((), kind, raw)
    return np.frombuffer(data, dtype)[0]


def _from_buffer(raw: Any, kind: Any, shape: Any, order: Any) -> np.ndarray:
    shape, dtype, data = _checked(shape, kind, raw)
    return np.frombuffer(data, dtype).reshape(shape, order="F" if order == "F" else "C").copy(order="K")


def _set(items: Any = ()) -> set[Any]:
    if not isinstance(items, list | tuple) or not all(isinstance(x, _SCALARS) for x in items):
        raise _Refused("a set holds more than numbers and strings")
    return set(items)


def _complex(real: Any, imaginary: Any) -> complex:
    if not (type(real) is type(imaginary) is float):
        raise _Refused("a complex number is made of what are no numbers")
    return complex(real, imaginary)


def _no_bytes() -> bytes:
    return b""


def _ndarray(*_: Any) -> Any:
    raise _Refused("it calls numpy.ndarray")


def _ordered(items: Any = ()) -> dict[Any, Any]:
    if not isinstance(items, list | tuple) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], _SCALARS) for pair in items
    ):
        raise _Refused("a dictionary's keys are more than numbers and strings")
    return dict(items)


class Global:
    """A name that a pickle may use, and what stands for it here."""

    __slots__ = ("call", "name")

    def __init__(self, name: str, call: Callable[..., Any]) -> None:
        self.name, self.call = name, call


_KNOWN: dict[str, Callable[..., Any]] = {
    "numpy.ndarray": _ndarray,
    "numpy.dtype": _DType,
    "_codecs.encode": _encode,
    "collections.OrderedDict": _ordered,
    **{
        f"{root}.{name}": call
        for root in ("builtins", "__builtin__")
        for name, call in (("set", _set), ("complex", _complex), ("bytes", _no_bytes))
    },
    **{
        f"{root}.{name}": call
        for root in ("numpy.core", "numpy._core")
        for name, call in (
            ("multiarray._reconstruct", _empty_array),
            ("multiarray.scalar", _scalar),
            ("numeric._frombuffer", _from_buffer),
        )
    },
}
_REFUSED_OPCODES = (
    *("EXT1", "EXT2", "EXT4", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "PERSID"),
    *("NEXT_BUFFER", "READONLY_BUFFER", "FROZENSET"),
)


class _Plain(_MACHINE):
    """The machine; whatever could call or look up something is replaced or refused."""

    dispatch: ClassVar[dict[int, Callable[..., None]]] = dict(_MACHINE.dispatch)

    def __init__(
        self, data: bytes, known: Mapping[str, Callable[..., Any]], persistent: Callable[[Any], Any] | None
    ) -> None:
        super().__init__(io.BytesIO(data), encoding="latin1")
        self.known, self.persistent = known, persistent

    def load(self) -> Any:
        """Run the program to its STOP."""
        self._unframer = pickle._Unframer(self._file_read, self._file_readline)  # type: ignore[attr-defined]
        self.read, self.readline = self._unframer.read, self._unframer.readline
        self.readinto = self._unframer.readinto
        self.metastack: list[Any] = []
        self.stack: list[Any] = []
        self.proto = 0
        self.append = self.stack.append
        try:
            for _ in range(MAX_STEPS):
                key = self.read(1)
                if not key:
                    raise EOFError("it ends too early")
                self.dispatch[key[0]](self)
        except pickle._Stop as stop:  # type: ignore[attr-defined]
            return stop.value
        raise _Refused(f"it has more than {MAX_STEPS} steps")

    def find_class(self, module: Any, name: Any) -> Global:
        """Only the names that NumPy writes for an array, and those of the format."""
        if f"{module}.{name}" not in self.known:
            raise _Refused(f"it asks for {str(module)[:60]}.{str(name)[:60]}")
        return Global(name, self.known[f"{module}.{name}"])

    def load_binpersid(self) -> None:
        """A reference to what lies outside; only where the format has such."""
        if self.persistent is None:
            raise _Refused("it refers to what is not in it")
        self.append(self.persistent(self.stack.pop()))

    def load_reduce(self) -> None:
        """A call; only of a known name."""
        arguments, known = self.stack.pop(), self.stack.pop()
        if not isinstance(known, Global) or not isinstance(arguments, tuple):
            raise _Refused("it calls something that is not a name")
        self.append(known.call(*arguments))

    def load_build(self) -> None:
        """An object's state: arrays and their types have one, nothing else here has."""
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, _DType):
            target.set_state(state)
        elif type(target) is np.ndarray and isinstance(state, tuple) and len(state) == 5:
            shape, dtype, data = _checked(state[1], state[2], state[4])
            plain: Any = target
            plain.__setstate__((1, shape, dtype, bool(state[3]), data))
        else:
            raise _Refused(f"it sets the state of a {type(target).__name__}")

    def load_bytearray8(self) -> None:
        """Bytes as they are there, never as many as the header claims."""
        size = int.from_bytes(self.read(8), "little")
        data = self.read(size)
        if len(data) != size:
            raise EOFError("it ends too early")
        self.append(bytearray(data))

    def load_setitem(self) -> None:
        """d[key] = value, for a plain key (the hash of a deep tuple would overrun the stack)."""
        value, key = self.stack.pop(), self.stack.pop()
        self._into(self.stack[-1], [(key, value)])

    def load_setitems(self) -> None:
        """Many of them."""
        items = self.pop_mark()
        self._into(self.stack[-1], list(zip(items[::2], items[1::2], strict=True)))

    @staticmethod
    def _into(target: Any, pairs: list[tuple[Any, Any]]) -> None:
        if type(target) is not dict:
            raise _Refused(f"it sets an item of a {type(target).__name__}")
        target.update(_ordered(pairs))

    def load_dict(self) -> None:
        """A dictionary from what follows the mark."""
        items = self.pop_mark()
        self.append(_ordered(list(zip(items[::2], items[1::2], strict=True))))

    def load_additems(self) -> None:
        """Elements of a set."""
        items = self.pop_mark()
        if type(self.stack[-1]) is not set:
            raise _Refused(f"it adds to a {type(self.stack[-1]).__name__}")
        self.stack[-1].update(_set(items))

    def _extend(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise _Refused(f"it appends to a {type(self.stack[-1]).__name__}")
        self.stack[-1].extend(items)

    def load_append(self) -> None:
        """One element of a list."""
        item = self.stack.pop()
        self._extend([item])

    def load_appends(self) -> None:
        """Many of them."""
        items = self.pop_mark()
        self._extend(items)

    def refuse(self) -> None:
        """An operation that makes more than plain data."""
        raise _Refused("it makes objects")

    for _opcode, _handler in {
        "REDUCE": load_reduce,
        "BUILD": load_build,
        "BINPERSID": load_binpersid,
        "BYTEARRAY8": load_bytearray8,
        "SETITEM": load_setitem,
        "SETITEMS": load_setitems,
        "DICT": load_dict,
        "ADDITEMS": load_additems,
        "APPEND": load_append,
        "APPENDS": load_appends,
        **dict.fromkeys(_REFUSED_OPCODES, refuse),
    }.items():
        dispatch[getattr(pickle, _opcode)[0]] = _handler
    del _opcode, _handler
