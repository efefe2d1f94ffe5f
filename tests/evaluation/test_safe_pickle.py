"""What is plain comes back as it was; what is hostile is refused, and nothing of it is run."""

from __future__ import annotations

import collections
import os
import pickle
import resource
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinrank.errors import InputError
from kinrank.evaluation import safe_pickle

PLAIN = {
    "imlist": ["all_souls_000013", "ünïcode"],
    "numbers": [0, -1, 2**70, 1.5, True, None, 3 + 4j, b"bytes", b""],
    "nested": {"a": ({"b": [1, (2, 3)]},), 5: {1, 2}},
    "ordered": collections.OrderedDict(x=1),
    "array": np.arange(12, dtype=np.float32).reshape(3, 4),
    "fortran": np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3)),
    "big endian": np.arange(3, dtype=">i4"),
    "strings": np.array(["a", "bc"]),
    "bools": np.array([True, False]),
    "empty": np.zeros((0, 4), np.float16),
    "scalar": np.float64(2.5),
}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_comes_back(protocol: int) -> None:
    back = safe_pickle.loads(pickle.dumps(PLAIN, protocol))
    assert back.keys() == PLAIN.keys()
    for name, value in PLAIN.items():
        if isinstance(value, np.ndarray):
            assert type(back[name]) is np.ndarray
            assert back[name].dtype in (value.dtype, value.dtype.newbyteorder("="))
            np.testing.assert_array_equal(back[name], value)
        else:
            assert back[name] == value, name


def test_old_names_of_numpy(tmp_path: Path) -> None:
    data = pickle.dumps(PLAIN["array"], 2).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    (tmp_path / "a.pkl").write_bytes(data)
    np.testing.assert_array_equal(safe_pickle.load(tmp_path / "a.pkl"), PLAIN["array"])


def test_shared_and_cyclic_values() -> None:
    one: list[Any] = [1]
    both = safe_pickle.loads(pickle.dumps({"a": one, "b": one}))
    assert both["a"] is both["b"]
    loop: list[Any] = []
    loop.append(loop)
    back = safe_pickle.loads(pickle.dumps(loop))
    assert back[0] is back


class Calls:
    """Pickles to a call of any function."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call


def _numpy_object_array(tmp: Path) -> Any:
    return np.array([Calls(os.system, (f"touch {tmp}",)), 1], dtype=object)


ATTACKS = {
    "os.system": lambda tmp: Calls(os.system, (f"touch {tmp}",)),
    "eval": lambda tmp: Calls(eval, (f"open({str(tmp)!r}, 'w')",)),
    "open": lambda tmp: Calls(open, (str(tmp), "w")),
    "getattr": lambda tmp: Calls(getattr, ("x", "upper")),
    "numpy.load": lambda tmp: Calls(np.load, (str(tmp),)),
    "numpy.fromfile": lambda tmp: Calls(np.fromfile, (__file__, np.uint8)),
    "numpy memmap writes": lambda tmp: Calls(np.memmap, (str(tmp), np.uint8, "w+", 0, (4,))),
    "numpy.ndarray": lambda tmp: Calls(np.ndarray, ((1 << 40,),)),
    "numpy.zeros": lambda tmp: Calls(np.zeros, ((1 << 40,),)),
    "numpy exec": lambda tmp: Calls(
        __import__("numpy.testing").testing.runstring, (f"open({str(tmp)!r})", {})
    ),
    "object array": _numpy_object_array,
    "bytearray of any size": lambda tmp: Calls(bytearray, (1 << 40,)),
    "a class": lambda tmp: collections.Counter("aab"),
    "a function": lambda tmp: print,
    "a path": lambda tmp: Path("/"),
    "a set of tuples": lambda tmp: {(1, 2)},
    "a tuple as a key": lambda tmp: {(1, 2): 3},
    "a structured array": lambda tmp: np.zeros(2, dtype=[("a", "i4"), ("b", "f4")]),
    "a date": lambda tmp: np.array(["2020-01-01"], dtype="M8[D]"),
    "a masked array": lambda tmp: np.ma.masked_array([1, 2], [True, False]),
}


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize("name", ATTACKS)
def test_hostile_pickles_do_nothing(name: str, protocol: int, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    data = pickle.dumps(ATTACKS[name](trace), protocol)
    with pytest.raises(InputError, match="refused"):
        safe_pickle.loads(data)
    assert not trace.exists()


def program(body: bytes) -> bytes:
    """A pickle written by hand."""
    return b"\x80\x04" + body + b"."


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def array_state(shape: bytes, code: str, raw: bytes) -> bytes:
    """numpy's array pickle with a shape, type and bytes of the attacker's choice."""
    dtype = b"cnumpy\ndtype\n(" + text(code) + b"\x89\x88tR"
    start = b"cnumpy._core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85C\x01btR"
    return start + b"(K\x01" + shape + dtype + b"\x89B" + struct.pack("<I", len(raw)) + raw + b"tb"


HAND_MADE = {
    "global by stack": program(text("os") + text("system") + b"\x93" + text("true") + b"\x85R"),
    "INST": program(b"(" + text("true") + b"ios\nsystem\n"),
    "OBJ": program(b"(cos\nsystem\n" + text("true") + b"o"),
    "NEWOBJ": program(b"cbuiltins\nobject\n)\x81"),
    "EXT": program(b"\x82\x01"),
    "persistent id": program(b"Pname\n"),
    "dotted name": program(b"cnumpy\ndtype.__init__.__globals__\n"),
    "state on a name": program(b"cnumpy\ndtype\n}" + text("call") + text("x") + b"sb"),
    "state on a list": program(b"]}" + text("x") + b"K\x01sb"),
    "call what is no name": program(text("upper") + b")R"),
    "append to a name": program(b"cnumpy\ndtype\nK\x01a"),
    "codec": program(b"c_codecs\nencode\n" + text("x") + text("rot13") + b"\x86R"),
    "shape without bytes": program(array_state(b"(\x8a\x06" + b"\xff" * 5 + b"\x00t", "f4", b"abcd")),
    "negative shape": program(array_state(b"(J\xff\xff\xff\xfft", "f4", b"abcd")),
    "object type": program(array_state(b"K\x01\x85", "O8", b"\x00" * 8)),
    "void type": program(array_state(b"K\x01\x85", "V8", b"\x00" * 8)),
    "type of no size": program(array_state(b"(\x8a\x06" + b"\xff" * 5 + b"\x00t", "S0", b"")),
    "type in words": program(array_state(b"K\x01\x85", "i4,O", b"\x00" * 8)),
}


def test_the_hand_made_array_is_right() -> None:
    data = program(array_state(b"K\x02\x85", "i2", b"\x01\x00\x02\x00"))
    np.testing.assert_array_equal(safe_pickle.loads(data), [1, 2])
    assert list(pickle.loads(data)) == [1, 2]


@pytest.mark.parametrize("name", HAND_MADE)
def test_hand_made_programs_are_refused(name: str) -> None:
    with pytest.raises(InputError):
        safe_pickle.loads(HAND_MADE[name])


HUGE = {
    "bytes8": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 44) + b"x.",
    "bytearray8": b"\x80\x05\x96" + struct.pack("<Q", 1 << 44) + b"x.",
    "text8": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 44) + b"x.",
    "frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 44) + b"K\x01",
    "long4": b"\x80\x04\x8b" + struct.pack("<i", (1 << 31) - 1) + b"x.",
    "memo": b"\x80\x04K\x01r\xff\xff\xff\xff0.",
    "digits": b"I" + b"9" * 100_000 + b"\n.",
    "deep": b"\x80\x04" + b"]" * 200_000 + b"a" * 200_000 + b".",
    "deep key": b"\x80\x04})" + b"\x85" * 300_000 + b"K\x01s.",
    "empty": b"",
    "cut": pickle.dumps(PLAIN)[:-40],
    "noise": bytes(range(256)),
}


@pytest.mark.parametrize("name", HUGE)
def test_claims_of_size_cost_nothing(name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError):
        safe_pickle.loads(HUGE[name])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kilobytes


def test_laughing_lists_stay_small() -> None:
    # Each list holds the one before ten times: as text 10^30 items, as shared references 300.
    data = b"\x80\x04]" + b"".join(b"q%c(" % i + b"h%c" % i * 10 + b"l" for i in range(30)) + b"."
    assert len(safe_pickle.loads(data)) == 10


def test_a_refusal_names_file_and_cure(tmp_path: Path) -> None:
    path = tmp_path / "gnd_bad.pkl"
    path.write_bytes(pickle.dumps(Calls(os.system, ("true",))))
    with pytest.raises(InputError, match=r"gnd_bad.pkl.*asks for posix.system.*cure: store the data as"):
        safe_pickle.load(path)
