"""Content-addressed, bounded cache of artefact files on the node, shared by its pods and verified at every read.

A file is found by its origin, path and validator, so a pod gets it only after the source has answered that pod's own
credentials with the same validator. The content is hashed at each read and must match the blob's name, a sha256.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from tidegate_dataplane.agent.artefacts.checksum import hash_file
from tidegate_dataplane.agent.artefacts.source import CHUNK_BYTES, ArtefactSource, Download, ResumePoint

log = structlog.get_logger()

# Share of the node's disk that stays free whatever `max_bytes` allows, so that the cache causes no eviction of pods.
MIN_FREE_SHARE = 0.10


@dataclass(frozen=True, slots=True)
class NodeCache:
    """Files are `<root>/blobs/<sha256>`; `<root>/names/<key>` contains the sha256 of the file with that key.

    Any number of agents share one folder: files appear by a rename, and one agent evicts at a time.
    After any error of the disk the file is not cached.
    """

    root: Path
    max_bytes: int

    def find_blob(self, key: str) -> Path | None:
        """Return the blob of the cache key `key` and mark it as used now; None if there is none."""
        with contextlib.suppress(OSError):
            digest = (self.root / "names" / key).read_text()
            blob = self.root / "blobs" / Path(digest).name
            os.utime(blob)
            return blob
        return None

    def find_time_added(self, key: str) -> float | None:
        """Return when the file of the cache key `key` was added, in seconds since 1970; None if there is none."""
        with contextlib.suppress(OSError):
            return (self.root / "names" / key).stat().st_mtime
        return None

    def find_intact(self, key: str) -> Path | None:
        """Return the blob of the cache key `key` if its content matches its digest; remove it otherwise."""
        blob = self.find_blob(key)
        if blob is None:
            return None
        try:
            intact = hash_file(blob) == blob.name
        except OSError:
            return None
        if not intact:
            self.discard_blob(blob)
        return blob if intact else None

    def discard_blob(self, blob: Path) -> None:
        """Remove a blob whose content does not match its digest."""
        log.warning("node_cache_damaged", blob=blob.name)
        with contextlib.suppress(OSError):
            blob.unlink()

    def begin_entry(self, size: int) -> "CacheEntry | None":
        """Make room for a file of `size` bytes and return its entry; None if it does not fit."""
        if size > self.max_bytes:
            return None
        with contextlib.suppress(OSError):
            for folder in ("blobs", "names", "incoming"):
                (self.root / folder).mkdir(parents=True, exist_ok=True)
            with self._exclusive_lock():
                if not self._make_room(size):
                    return None
                descriptor, path = tempfile.mkstemp(dir=self.root / "incoming")
                fcntl.flock(descriptor, fcntl.LOCK_EX)  # as long as this agent lives
                os.ftruncate(descriptor, size)  # its full size counts towards max_bytes from now on
                return CacheEntry(self, Path(path), descriptor)
        return None

    def add_blob(self, part: Path, digest: str, key: str) -> None:
        """Move a complete file into the cache under its digest and its key."""
        with contextlib.suppress(OSError), self._exclusive_lock():
            part.replace(self.root / "blobs" / digest)
            temporary = self.root / "names" / f".{key}"
            temporary.write_text(digest)
            temporary.replace(self.root / "names" / key)

    def _make_room(self, size: int) -> bool:
        """Remove the least recently used files until `size` more bytes fit."""
        self._remove_leftovers()
        blobs = sorted((self.root / "blobs").iterdir(), key=lambda blob: blob.stat().st_mtime)
        used = sum(file.stat().st_size for file in (*blobs, *(self.root / "incoming").iterdir()))
        while blobs and not self._has_room_for(used, size):
            oldest = blobs.pop(0)
            used -= oldest.stat().st_size
            oldest.unlink()
            log.info("node_cache_evicted", blob=oldest.name)
        return self._has_room_for(used, size)

    def _has_room_for(self, used: int, size: int) -> bool:
        disk = shutil.disk_usage(self.root)
        return used + size <= self.max_bytes and disk.free - size >= disk.total * MIN_FREE_SHARE

    def _remove_leftovers(self) -> None:
        """Remove keys without a blob, and partial files of agents that were killed."""
        for key in (self.root / "names").iterdir():
            if not (self.root / "blobs" / key.read_text()).exists():
                key.unlink(missing_ok=True)
        for part in (self.root / "incoming").iterdir():
            with part.open("rb") as file, contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # unlocked: its agent has ended
                part.unlink()

    @contextmanager
    def _exclusive_lock(self) -> Generator[None, None, None]:
        with (self.root / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # released by the kernel, whatever becomes of the agent
            yield


class CacheEntry:
    """A file that is written to the cache while the pod receives it."""

    def __init__(self, cache: NodeCache, path: Path, descriptor: int) -> None:
        self._cache = cache
        self._path = path
        self._descriptor = descriptor
        self._hasher = hashlib.sha256()
        self._failed = False

    def append(self, chunk: bytes) -> None:
        """Add a chunk; a full disk ends the caching and not the download."""
        if self._failed:
            return
        try:
            written = os.write(self._descriptor, chunk)
            self._failed = written < len(chunk)
        except OSError:
            self._failed = True
        self._hasher.update(chunk)

    def finish(self, key: str, *, complete: bool, expected_sha256: str | None) -> None:
        """Add the file to the cache if it is complete and matches the expected digest; drop it otherwise."""
        os.close(self._descriptor)
        digest = self._hasher.hexdigest()
        if complete and not self._failed and expected_sha256 in (None, digest):
            self._cache.add_blob(self._path, digest, key)
        self._path.unlink(missing_ok=True)


class CachedSource:
    """A source whose files are read from the node's cache, and written to it when they are missing there."""

    def __init__(
        self, source: ArtefactSource, cache: NodeCache, origin: str, *, by_digest: bool = False
    ) -> None:
        """Cache files of `origin`.

        `by_digest`: paths are content digests from the manifest that the origin has just returned, so cached files need no
        further request to the source.
        """
        self._by_digest = by_digest
        self._source = source
        self._cache = cache
        self._origin = origin

    async def list(self, folder: str) -> tuple[str, ...] | None:
        """Return the listing of the source itself."""
        return await self._source.list(folder)

    async def identify_content(self, path: str) -> str:
        """Return what the source itself answers."""
        return await self._source.identify_content(path)

    @asynccontextmanager
    async def open(self, path: str, resume: ResumePoint | None = None) -> AsyncGenerator[Download, None]:
        """Start reading one file; ask the source first, unless the path is the digest of the content."""
        blob = await self._find_by_digest(path) if self._by_digest else None
        if blob is None:
            async with self._open_source(path, resume) as (download, blob):
                if blob is None:
                    yield download
                    return
        # After the source is closed: no connection stays open while files are copied.
        yield Download(blob.stat().st_size, _read_blob(blob), validator=f'"{blob.name}"', sha256=blob.name)

    @asynccontextmanager
    async def _open_source(
        self, path: str, resume: ResumePoint | None
    ) -> AsyncGenerator[tuple[Download, Path | None], None]:
        """Open the file at the source; yield its download and the cached copy, or a download that also fills the cache, and None."""
        opened = self._source.open(path) if resume is None else self._source.open(path, resume)
        async with opened as download:
            validator = download.validator or download.sha256
            if download.start or not validator or not download.counted:
                yield download, None
                return
            key = self._make_key(path, path if self._by_digest else validator)
            blob = await asyncio.to_thread(self._cache.find_intact, key)
            if blob is not None:
                yield download, blob
                return
            async with self._keep_copy(download, key) as cached_download:
                yield cached_download, None

    async def _find_by_digest(self, digest: str) -> Path | None:
        return await asyncio.to_thread(self._cache.find_intact, self._make_key(digest, digest))

    def _make_key(self, path: str, validator: str) -> str:
        return hashlib.sha256(f"{self._origin}\n{path}\n{validator}".encode()).hexdigest()

    @asynccontextmanager
    async def _keep_copy(self, download: Download, key: str) -> AsyncGenerator[Download, None]:
        entry = None
        if download.size is not None:
            entry = await asyncio.to_thread(self._cache.begin_entry, download.size)
        if entry is None:
            yield download
            return
        arrived = _ByteCount()
        try:
            chunks = _copy_chunks(download.chunks, entry, arrived)
            yield Download(download.size, chunks, validator=download.validator, sha256=download.sha256)
        finally:
            entry.finish(key, complete=arrived.size == download.size, expected_sha256=download.sha256)


@dataclass(slots=True)
class _ByteCount:
    size: int = 0


async def _copy_chunks(
    chunks: AsyncIterator[bytes], entry: CacheEntry, arrived: _ByteCount
) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        await asyncio.to_thread(entry.append, chunk)
        arrived.size += len(chunk)
        yield chunk


async def _read_blob(blob: Path) -> AsyncIterator[bytes]:
    with await asyncio.to_thread(blob.open, "rb") as file:
        while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
            yield chunk
