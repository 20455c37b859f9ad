"""Requests that a runner keeps for the compiler: which ones, how many, and that they are read back as they were."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tidegate_dataplane.sampling.kept_requests import (
    FIRST_REQUESTS,
    INTERVAL_S,
    MAX_FILES,
    MAX_REQUEST_BYTES,
    REQUESTS_FOLDER,
    RETRY_S,
    RequestKeeper,
    list_requests,
    read_request,
)


class KeeperWorld:
    """A keeper over a real disk, with a clock that stands still."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now_s = folder, 0.0
        self.wanted = folder / REQUESTS_FOLDER
        self.keeper = RequestKeeper(folder, "ctr_0", lambda: self.now_s)

    def offer(self, **inputs: Any) -> list[Path]:
        """Offer a request, and return the files that are there once it is written."""
        self.keeper.offer_request(inputs)
        self.keeper.finish_writing()
        return list_requests(self.folder)


@pytest.fixture
def world(tmp_path: Path) -> KeeperWorld:
    world = KeeperWorld(tmp_path)
    world.wanted.mkdir()
    return world


def test_the_first_requests_are_kept_and_then_one_a_minute(world: KeeperWorld) -> None:
    for number in range(FIRST_REQUESTS):
        [path] = world.offer(x=np.array([number]))
        assert read_request(path)["x"].tolist() == [number]
        path.unlink()
    assert world.offer(x=np.array([8])) == []
    world.now_s += INTERVAL_S
    assert len(world.offer(x=np.array([9]))) == 1
    assert len(world.offer(x=np.array([10]))) == 1


def test_nothing_is_kept_while_the_compiler_has_not_read_the_others(world: KeeperWorld) -> None:
    other = KeeperWorld(world.folder)
    other.keeper = RequestKeeper(world.folder, "ctr_1", lambda: other.now_s)
    for number in range(MAX_FILES // 2):
        world.offer(x=np.array([number]))
        other.offer(x=np.array([number]))
    files = list_requests(world.folder)
    assert world.offer(x=np.array([9])) == files
    files[0].unlink()
    assert world.offer(x=np.array([9])) == files[1:], "it looks again after a while"
    world.now_s += RETRY_S
    assert len(world.offer(x=np.array([9]))) == MAX_FILES


def test_nothing_is_kept_that_the_compiler_does_not_want(tmp_path: Path) -> None:
    world = KeeperWorld(tmp_path)
    assert world.offer(x=np.array([1])) == []
    assert list(tmp_path.iterdir()) == []
    world.wanted.mkdir()
    world.now_s += RETRY_S
    assert len(world.offer(x=np.array([1]))) == 1


@pytest.mark.parametrize(
    "inputs",
    [
        {"x": np.zeros(MAX_REQUEST_BYTES + 1, np.int8)},
        {"x": np.array(["a" * 1000, *[""] * 2000], dtype=object)},
    ],
    ids=["numbers", "texts of one width"],
)
def test_a_large_request_is_not_kept_and_the_next_one_is(world: KeeperWorld, inputs: dict[str, Any]) -> None:
    assert world.offer(**inputs) == []
    world.now_s += RETRY_S
    assert len(world.offer(x=np.array([1]))) == 1
    assert list(world.folder.glob("requests/.*")) == []


def test_a_request_is_answered_whatever_goes_wrong(
    world: KeeperWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        world.keeper.offer_request({"x": np.array([1])})
    world.keeper.finish_writing()
    world.now_s += RETRY_S
    assert len(world.offer(x=np.array([1]))) == 1


def test_inputs_of_all_types_are_read_back_as_they_were(world: KeeperWorld) -> None:
    inputs = {
        "file": np.array([[1.5, np.nan]], np.float32),
        "a/b": np.array(["", "ü", "a\0", "x" * 300], dtype=object).reshape(2, 2),
        "none": np.zeros((0, 3), np.int64),
        "flag": np.array([True]),
        "scalar": np.array(7, np.int32),
        "no texts": np.array([], dtype=object),
    }
    [path] = world.offer(**inputs)
    read = read_request(path)
    assert list(read) == list(inputs)
    for name, array in inputs.items():
        assert read[name].dtype == array.dtype, name
        assert read[name].shape == array.shape, name
        np.testing.assert_array_equal(read[name], array)


def test_the_request_is_kept_as_it_was_when_it_was_offered(world: KeeperWorld) -> None:
    array = np.array([1, 2])
    world.keeper.offer_request({"x": array})
    array[:] = 9  # the server uses the memory for the next request
    world.keeper.finish_writing()
    assert read_request(list_requests(world.folder)[0])["x"].tolist() == [1, 2]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x93NUMPY", b"no archive"])
def test_a_damaged_file_is_no_request(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ctr-1.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="cannot be read as a request"):
        read_request(path)
