"""The same arrays through every format, mapped where they can be; and hostile or broken files refused."""

from __future__ import annotations

import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinrank.errors import InputError
from kinrank.evaluation.feature_files import read_arrays

ROWS = np.random.default_rng(0).normal(size=(700, 512)).astype(np.float32)  # more than a megabyte
QUERIES = ROWS[:5] * 2


def _npz(path: Path) -> None:
    np.savez(path, db=ROWS, query=QUERIES)


def _compressed(path: Path) -> None:
    np.savez_compressed(path, db=ROWS, query=QUERIES)


def _mat5(path: Path) -> None:
    from scipy.io import savemat

    savemat(path, {"db": ROWS, "query": QUERIES, "name": "text"})


def _mat73(path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="reading .mat 7.3 needs the extra 'mat'")
    with h5py.File(path, "w", userblock_size=512) as file:
        file["db"], file["query"] = ROWS.T, QUERIES.T
    with path.open("r+b") as raw:
        raw.write(b"MATLAB 7.3 MAT-file")


def _pkl(path: Path) -> None:
    path.write_bytes(pickle.dumps({"db": ROWS, "query": QUERIES}))


def _pt(path: Path) -> None:
    torch = pytest.importorskip("torch", reason="writing a .pt to read needs the extra 'train'")
    torch.save({"db": torch.tensor(ROWS), "query": torch.tensor(QUERIES.T.copy()).T}, path)


def _safetensors(path: Path) -> None:
    save = pytest.importorskip("safetensors.numpy", reason="writing safetensors needs the extra 'train'")
    save.save_file({"db": ROWS, "query": QUERIES}, path)


WRITERS: dict[str, Callable[[Path], None]] = {
    "a.npz": _npz,
    "compressed.npz": _compressed,
    "five.mat": _mat5,
    "seven.mat": _mat73,
    "a.pkl": _pkl,
    "a.pt": _pt,
    "a.pth": _pt,
    "a.safetensors": _safetensors,
}
MAPPED = {"a.npz", "seven.mat", "a.pt", "a.pth", "a.safetensors"}


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / name)
    arrays = read_arrays(tmp_path / name)
    assert set(arrays) == {"db", "query"}
    np.testing.assert_array_equal(arrays["db"], ROWS)
    np.testing.assert_array_equal(arrays["query"], QUERIES)
    assert isinstance(arrays["db"], np.memmap) == (name in MAPPED)


def test_one_nameless_array(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", ROWS)
    (tmp_path / "b.pkl").write_bytes(pickle.dumps(ROWS))
    for name in ("a.npy", "b.pkl"):
        arrays = read_arrays(tmp_path / name)
        np.testing.assert_array_equal(arrays[""], ROWS)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64", "int64"])
def test_types_of_torch_and_safetensors(kind: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="writing a .pt to read needs the extra 'train'")
    save = pytest.importorskip("safetensors.torch", reason="writing safetensors needs the extra 'train'")
    tensor = torch.arange(12).reshape(3, 4).to(getattr(torch, kind))
    torch.save(tensor, tmp_path / "a.pt")
    save.save_file({"x": tensor}, tmp_path / "a.safetensors")
    torch.save({"part": tensor[1:, ::2]}, tmp_path / "b.pt")
    np.testing.assert_array_equal(read_arrays(tmp_path / "a.pt")[""], np.arange(12).reshape(3, 4))
    np.testing.assert_array_equal(read_arrays(tmp_path / "a.safetensors")["x"], np.arange(12).reshape(3, 4))
    np.testing.assert_array_equal(read_arrays(tmp_path / "b.pt")["part"], [[4, 6], [8, 10]])


class Attack:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.trace}",)


def test_hostile_files_do_nothing(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    body = pickle.dumps({"db": Attack(trace)}, 2)
    (tmp_path / "a.pkl").write_bytes(body)
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("archive/data.pkl", body)
    np.savez(tmp_path / "a.npz", db=np.array([Attack(trace)], dtype=object))
    np.save(tmp_path / "a.npy", np.array([Attack(trace)], dtype=object), allow_pickle=True)
    for suffix in ("pkl", "pt", "npz", "npy"):
        with pytest.raises(InputError):
            read_arrays(tmp_path / f"a.{suffix}")
    assert not trace.exists()


def _pt_of(path: Path, offset: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> Path:
    """A .pt written by hand: a tensor that claims any place and shape over eight numbers."""

    def word(value: str) -> bytes:
        return b"X" + struct.pack("<I", len(value)) + value.encode()

    def numbers(values: tuple[int, ...]) -> bytes:
        return b"(" + b"".join(b"J" + struct.pack("<i", n) for n in values) + b"t"

    storage = b"(" + word("storage") + b"ctorch\nFloatStorage\n" + word("0") + word("cpu") + b"K\x08tQ"
    call = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"J" + struct.pack("<i", offset)
    call += numbers(shape) + numbers(stride) + b"\x89ccollections\nOrderedDict\n)RtR."
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/data.pkl", b"\x80\x02" + call)
        archive.writestr("x/data/0", np.arange(8, dtype="<f4").tobytes())
    return path


def test_tensors_stay_within_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    np.testing.assert_array_equal(read_arrays(_pt_of(path, 2, (2, 3), (3, 1)))[""], [[2, 3, 4], [5, 6, 7]])
    for offset, shape, stride in [
        (3, (2, 3), (3, 1)),
        (0, (9,), (1,)),
        (0, (1 << 30, 1 << 30), (0, 1 << 20)),
        (0, (1 << 30, 1 << 30), (0, 0)),
        (-1, (2,), (1,)),
        (0, (2, 2), (-1, 1)),
        (0, (2, 2), (1,)),
    ]:
        with pytest.raises(InputError):
            read_arrays(_pt_of(path, offset, shape, stride))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.csv", b"1,2", "are read from .npy, .npz, .mat"),
        ("x.npy", b"\x93NUMPY", "cannot be read"),
        ("x.npz", b"PK", "cannot be read"),
        ("x.mat", b"hello", "cannot be read"),
        ("x.pkl", pickle.dumps([1, 2]), "holds a list; needed is an array"),
        ("x.pkl", pickle.dumps({"a": "text"}), "holds no array of numbers"),
        ("x.pt", b"\x80\x02", "PyTorch's old format; cure"),
        ("x.safetensors", struct.pack("<Q", 1 << 60), "no safetensors file"),
        ("x.safetensors", struct.pack("<Q", 2) + b"{]", "cannot be read"),
    ],
)
def test_broken_files_are_refused(name: str, content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=words):
        read_arrays(tmp_path / name)


def test_a_safetensors_that_lies(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    for offsets, shape in [([0, 16], [4]), ([0, 8], [4]), ([-8, 0], [2]), ([0, 8], [-1, -2])]:
        header = b'{"a":{"dtype":"F32","shape":%s,"data_offsets":%s}}' % (
            str(shape).encode(),
            str(offsets).encode(),
        )
        path.write_bytes(struct.pack("<Q", len(header)) + header + b"12345678")
        with pytest.raises(InputError):
            read_arrays(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file"):
        read_arrays(tmp_path / "x.npy")
