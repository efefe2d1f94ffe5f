"""Downloads against a real server on the loopback: cut, resumed, wrong, missing."""

from __future__ import annotations

import fcntl
import hashlib
from pathlib import Path
from typing import Any

import pytest

from kinrank.errors import DownloadError
from kinrank.features.download import RemoteFile, cache_folder, fetch

BODY = bytes(range(256)) * 4000  # 1 MB: several blocks


def remote(server: Any, body: bytes = BODY, size: int | None = None) -> RemoteFile:
    server.files["model.onnx"] = body
    digest = hashlib.sha256(BODY).hexdigest()
    return RemoteFile(server.url("model.onnx"), "backbones/m.onnx", digest, size or len(BODY), "MIT")


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KINRANK_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache/kinrank"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_folder() == tmp_path / "x/kinrank"
    monkeypatch.setenv("KINRANK_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"


def test_fetched_once(server: Any) -> None:
    file = remote(server)
    assert fetch(file).read_bytes() == BODY
    server.files.clear()
    assert fetch(file) == file.target  # no server needed any more
    assert server.requests == [None]
    assert sorted(p.name for p in file.target.parent.iterdir()) == ["m.onnx", "m.onnx.checked"]


def test_goes_on_after_a_cut_connection(server: Any) -> None:
    file = remote(server)
    server.cut_after = [300_000, 400_000]
    assert fetch(file, wait=0).read_bytes() == BODY
    assert server.requests == [None, "bytes=300000-", "bytes=700000-"]


def test_goes_on_in_the_next_call(server: Any) -> None:
    file = remote(server)
    server.cut_after = [100_000, 0, 0]
    with pytest.raises(DownloadError, match=r"ended after 100000 of 1024000 bytes.*goes on where it stopped"):
        fetch(file, wait=0)
    assert not file.target.exists()
    assert fetch(file).read_bytes() == BODY
    assert server.requests[-1] == "bytes=100000-"


def test_a_server_without_ranges_starts_again(server: Any) -> None:
    file = remote(server)
    server.ranges = False
    server.cut_after = [500_000]
    assert fetch(file, wait=0).read_bytes() == BODY


def test_a_wrong_checksum_leaves_nothing(server: Any) -> None:
    file = remote(server, b"x" + BODY[1:])
    with pytest.raises(DownloadError, match=rf"SHA-256 [0-9a-f]{{64}} in place of {file.sha256}"):
        fetch(file)
    assert list(file.target.parent.iterdir()) == []


def test_another_size_is_refused(server: Any) -> None:
    file = remote(server, BODY + b"more")
    with pytest.raises(DownloadError, match="more than 1024000 bytes"):
        fetch(file)
    server.files["model.onnx"] = BODY
    assert fetch(file).read_bytes() == BODY  # what was too long is thrown away


def test_missing_on_the_server(server: Any) -> None:
    file = remote(server)
    server.files.clear()
    with pytest.raises(DownloadError, match="answers 404") as caught:
        fetch(file)
    assert server.requests == [None]  # not tried again
    assert file.url in str(caught.value) and str(file.target) in str(caught.value)


def test_offline_says_where_to_put_the_file(server: Any) -> None:
    file = remote(server)
    server.server.shutdown()
    server.server.server_close()
    with pytest.raises(DownloadError, match=r"cannot be reached.*put it at") as caught:
        fetch(file)
    assert file.url in str(caught.value) and str(file.target) in str(caught.value)
    file.target.write_bytes(BODY)  # by hand, as the message says
    assert fetch(file) == file.target


def test_a_file_put_there_by_hand_is_checked(server: Any) -> None:
    file = remote(server)
    file.target.parent.mkdir(parents=True)
    file.target.write_bytes(b"another network")
    with pytest.raises(DownloadError, match=r"is not the file.*delete it or put the right file there"):
        fetch(file)
    assert file.target.read_bytes() == b"another network"  # it is the user's: not deleted
    file.target.write_bytes(BODY)
    assert fetch(file) == file.target
    file.target.write_bytes(BODY[:-1] + b"!")  # damaged later on
    with pytest.raises(DownloadError):
        fetch(file)


def test_two_downloads_at_once(server: Any) -> None:
    file = remote(server)
    file.target.parent.mkdir(parents=True)
    with open(file.target.with_name("m.onnx.part"), "ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(DownloadError, match="another process is downloading"):
            fetch(file)
    assert fetch(file).read_bytes() == BODY
