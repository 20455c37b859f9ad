from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import shutil
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tidegate_dataplane.agent.artefacts.node_cache import CachedSource, NodeCache
from tidegate_dataplane.agent.artefacts.source import Download, ResumePoint
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.contract import FailureReason


class Store:
    """A source of files by path, which counts the bytes that were read of it."""

    def __init__(self, **files: bytes) -> None:
        self.files = files
        self.sent = 0
        self.broken_after: int | None = None
        self.denied = False

    @asynccontextmanager
    async def open(self, path: str, resume: ResumePoint | None = None) -> AsyncGenerator[Download, None]:
        if self.denied:
            raise ArtefactError(FailureReason.FETCH_FAILED, "denied")
        content = self.files[path]
        start = resume.start if resume else 0

        async def chunks() -> AsyncIterator[bytes]:
            for index in range(start, len(content), 10):
                if self.broken_after is not None and index >= self.broken_after:
                    raise ArtefactError(FailureReason.FETCH_FAILED, "broken")
                self.sent += len(content[index : index + 10])
                yield content[index : index + 10]

        yield Download(len(content), chunks(), start=start, validator=f'"{hash(content)}"')

    async def list(self, folder: str) -> tuple[str, ...]:
        del folder
        return tuple(self.files)

    async def identify_content(self, path: str) -> str:
        return f'"{hash(self.files[path])}"'


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeCache:
    usage = type("usage", (), {"free": 10**12, "total": 10**12})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    return NodeCache(tmp_path / "cache", 250)


async def read(cache: NodeCache, store: Store, path: str = "a", origin: str = "s3://models/ctr") -> bytes:
    async with CachedSource(store, cache, origin).open(path) as download:
        return b"".join([chunk async for chunk in download.chunks])


def blobs(cache: NodeCache) -> set[str]:
    return {blob.name for blob in (cache.root / "blobs").iterdir()}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


A, B, C = (letter * 100 for letter in (b"a", b"b", b"c"))


async def test_the_second_pod_reads_no_byte_from_the_source(cache: NodeCache) -> None:
    store = Store(a=A)

    assert await read(cache, store) == A
    assert await read(cache, store) == A
    assert store.sent == len(A)


async def test_who_the_source_denies_gets_nothing_from_the_cache(cache: NodeCache) -> None:
    store = Store(a=A)
    await read(cache, store)
    store.denied = True

    with pytest.raises(ArtefactError):
        await read(cache, store)


async def test_a_file_that_was_published_again_is_fetched(cache: NodeCache) -> None:
    await read(cache, Store(a=A))

    assert await read(cache, Store(a=B)) == B


async def test_the_same_path_of_another_place_is_another_file(cache: NodeCache) -> None:
    first, second = Store(a=A), Store(a=A)
    await read(cache, first)
    await read(cache, second, origin="s3://models/ctr http://another-endpoint")

    assert second.sent == len(A)


async def test_a_damaged_file_is_fetched_again(cache: NodeCache) -> None:
    store = Store(a=A)
    await read(cache, store)
    (cache.root / "blobs" / sha256(A)).write_bytes(b"x" * 100)

    assert await read(cache, store) == A
    assert store.sent == 2 * len(A)
    assert (cache.root / "blobs" / sha256(A)).read_bytes() == A


async def test_what_was_used_longest_ago_goes_first(cache: NodeCache) -> None:
    store = Store(a=A, b=B, c=C)
    await read(cache, store, "a")
    await read(cache, store, "b")
    for age, content in ((200, A), (100, B)):
        os.utime(cache.root / "blobs" / sha256(content), (1e9 - age, 1e9 - age))
    await read(cache, store, "a")  # used again, so b is the oldest now

    await read(cache, store, "c")

    assert blobs(cache) == {sha256(A), sha256(C)}


async def test_a_file_larger_than_the_cache_is_passed_on_and_evicts_nobody(cache: NodeCache) -> None:
    big = bytes(1000)
    await read(cache, Store(a=A))

    assert await read(cache, Store(a=big)) == big
    assert blobs(cache) == {sha256(A)}


async def test_a_broken_download_is_not_kept(cache: NodeCache) -> None:
    store = Store(a=A)
    store.broken_after = 50
    with pytest.raises(ArtefactError):
        await read(cache, store)

    assert blobs(cache) == set()
    assert list((cache.root / "incoming").iterdir()) == []


async def test_a_full_disk_costs_the_cache_and_not_the_model(
    cache: NodeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("usage", (), {"free": 50, "total": 1000})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)

    assert await read(cache, Store(a=A)) == A
    assert blobs(cache) == set()


async def test_a_folder_that_may_not_be_written_costs_the_cache_and_not_the_model(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert await read(NodeCache(tmp_path / "file", 1000), Store(a=A)) == A


async def test_the_room_of_a_killed_agent_is_taken_back_and_that_of_a_living_one_is_not(
    cache: NodeCache,
) -> None:
    living, killed = cache.begin_entry(100), cache.begin_entry(100)
    assert living is not None
    assert killed is not None
    fcntl.flock(killed._descriptor, fcntl.LOCK_UN)  # as the kernel does

    assert cache.begin_entry(150) is not None
    assert living._path.exists()
    assert not killed._path.exists()


async def test_the_bound_counts_what_is_on_its_way(cache: NodeCache) -> None:
    assert cache.begin_entry(200) is not None
    assert cache.begin_entry(100) is None


async def test_many_agents_at_once_stay_within_the_bound_and_each_gets_its_file(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path / "cache", 250)
    contents = {str(number): bytes([number]) * 100 for number in range(12)}
    store = Store(**contents)

    got = await asyncio.gather(*(read(cache, store, path) for path in (*contents, *contents)))

    assert got == [*contents.values(), *contents.values()]
    kept = list((cache.root / "blobs").iterdir())
    assert kept
    assert sum(blob.stat().st_size for blob in kept) <= 250
    assert all(sha256(blob.read_bytes()) == blob.name for blob in kept)


async def test_a_look_at_the_source_neither_reads_nor_fills_the_cache(cache: NodeCache) -> None:
    store = Store(a=A)

    assert await CachedSource(store, cache, "s3://models/ctr").identify_content("a") == f'"{hash(A)}"'
    assert store.sent == 0
    assert not (cache.root / "blobs").exists()
