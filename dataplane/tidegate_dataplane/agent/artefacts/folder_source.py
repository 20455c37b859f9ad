"""Sources file: and pvc: folders of this pod, read without leaving their root."""

import asyncio
import errno
import os
import stat
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tidegate_dataplane.agent.artefacts.source import CHUNK_BYTES, Download, ResumePoint
from tidegate_dataplane.agent.artefacts.uri import ArtefactUri
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.contract import FailureReason, UriScheme

MAX_FILES = 10_000
_LOST_AND_FOUND = "lost+found"
"""The file system's own at the top of a claim, which root alone may list."""


class FolderSource:
    """Reads below `base`; links are followed only inside `root`."""

    def __init__(self, root: Path, base: Path, uri: str) -> None:
        self._root = root
        self._base = base
        self._uri = uri

    @asynccontextmanager
    async def open(self, path: str, resume: ResumePoint | None = None) -> AsyncGenerator[Download, None]:
        """Start reading one file, always from its beginning."""
        del resume
        descriptor, size = await asyncio.to_thread(self._open_file, path)
        try:
            yield Download(size, self._read_chunks(descriptor, path))
        finally:
            os.close(descriptor)

    async def list(self, folder: str) -> tuple[str, ...]:
        """Return the paths of the files below `folder`, relative to it."""
        return await asyncio.to_thread(self._list_files, folder)

    async def size(self, path: str) -> int:
        """Return the size of one file in bytes."""
        descriptor, size = await asyncio.to_thread(self._open_file, path)
        os.close(descriptor)
        return size

    async def identify_content(self, path: str) -> str:
        """Return what changes when a file is written or replaced: its time, its size and its number."""
        descriptor, _ = await asyncio.to_thread(self._open_file, path)
        status = os.fstat(descriptor)
        os.close(descriptor)
        return f"{status.st_mtime_ns}-{status.st_size}-{status.st_ino}"

    async def read_range(self, path: str, start: int, length: int) -> bytes:
        """Return `length` bytes of one file from `start` on."""
        descriptor, _ = await asyncio.to_thread(self._open_file, path)
        try:
            return await asyncio.to_thread(os.pread, descriptor, length, start)
        except OSError as error:
            raise _unreadable_file(self._uri, path, error) from error
        finally:
            os.close(descriptor)

    def _resolve_path(self, path: str) -> Path:
        root = self._root.resolve()
        try:
            resolved = (self._base / path).resolve(strict=True)
        except (OSError, RuntimeError) as error:
            raise ArtefactError(
                FailureReason.ARTEFACT_NOT_FOUND, f"there is no {self._uri.rstrip('/')}/{path}"
            ) from error
        if not resolved.is_relative_to(root):
            raise ArtefactError(
                FailureReason.URI_NOT_ALLOWED,
                f"{self._uri.rstrip('/')}/{path} is a link out of {self._root}; put the file itself there",
            )
        return resolved

    def _open_file(self, path: str) -> tuple[int, int]:
        resolved = self._resolve_path(path)
        try:
            descriptor = os.open(resolved, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise _unreadable_file(self._uri, path, error) from error
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise ArtefactError(FailureReason.ARTEFACT_INVALID, f"{self._uri}/{path} is not a regular file")
        return descriptor, status.st_size

    async def _read_chunks(self, descriptor: int, path: str) -> AsyncIterator[bytes]:
        while True:
            try:
                chunk = await asyncio.to_thread(os.read, descriptor, CHUNK_BYTES)
            except OSError as error:
                raise _unreadable_file(self._uri, path, error) from error
            if not chunk:
                return
            yield chunk

    def _list_files(self, folder: str) -> tuple[str, ...]:
        top = self._resolve_path(folder)
        root = self._root.resolve()

        def raise_unlisted(error: OSError) -> None:
            # Left out silently, its files would be missing from a table that is whole by all other signs.
            path = os.path.normpath(Path(folder) / os.path.relpath(error.filename or top, top))
            raise _unreadable_file(self._uri, path, error, "listed") from error

        try:
            if not stat.S_ISDIR(top.stat().st_mode):
                return ()
        except OSError as error:
            raise_unlisted(error)
        paths: list[str] = []
        for directory, folders, names in os.walk(top, onerror=raise_unlisted, followlinks=False):
            if Path(directory) == root and _LOST_AND_FOUND in folders:
                folders.remove(_LOST_AND_FOUND)
            paths += [str((Path(directory) / name).relative_to(top)) for name in names]
            if len(paths) > MAX_FILES:
                raise ArtefactError(
                    FailureReason.ARTEFACT_INVALID, f"{self._uri}/{folder} holds more than {MAX_FILES} files"
                )
        return tuple(sorted(paths))


def folder_source(uri: ArtefactUri, *, file_root: Path, pvc_root: Path) -> FolderSource:
    """Return the source for a file: or pvc: URI.

    Raises:
        ArtefactError: UriNotAllowed if the URI lies outside the folders of this pod.
    """
    if uri.scheme is UriScheme.PVC:
        root = pvc_root / uri.authority
        if "/" in uri.authority or not root.is_dir():
            raise ArtefactError(
                FailureReason.URI_NOT_ALLOWED, f"claim {uri.authority!r} of {uri} is not mounted in this pod"
            )
        return FolderSource(root, root / uri.path, uri.text)
    if not file_root.is_dir():
        raise ArtefactError(
            FailureReason.URI_NOT_ALLOWED,
            f"{uri} is not allowed: this cluster serves no local models (the chart's models.hostPath is empty)",
        )
    base = Path("/") / uri.path
    if not base.is_relative_to(file_root):
        raise ArtefactError(
            FailureReason.URI_NOT_ALLOWED, f"{uri} is not allowed: file: URIs start with file://{file_root}/"
        )
    return FolderSource(file_root, base, uri.text)


def _unreadable_file(uri: str, path: str, error: OSError, verb: str = "read") -> ArtefactError:
    if error.errno in (errno.EACCES, errno.EPERM):
        return ArtefactError(
            FailureReason.FETCH_FAILED,
            f"{uri}/{path} may not be {verb} by user {os.getuid()}: make it readable",
        )
    return ArtefactError(FailureReason.FETCH_FAILED, f"{uri}/{path} cannot be {verb}: {error.strerror}")
