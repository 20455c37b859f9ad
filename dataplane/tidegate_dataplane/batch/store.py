"""Read and write the folders of tables: s3:, gs:, a mounted claim or a folder of the node."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tidegate_dataplane.agent.artefacts.credentials import SecretCredentials
from tidegate_dataplane.agent.artefacts.folder_source import folder_source
from tidegate_dataplane.agent.artefacts.object_store import open_object_store
from tidegate_dataplane.agent.artefacts.uri import ArtefactUri, parse_uri
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.agent.settings import AgentSettings
from tidegate_dataplane.batch.errors import TableError
from tidegate_dataplane.contract import TABLE_SCHEMES, WRITABLE_SCHEMES, FailureReason


class TableSource(Protocol):
    """A folder that can be read by ranges of files."""

    async def list(self, folder: str) -> tuple[str, ...]:
        """Return the paths of the files below `folder`, relative to it."""
        ...

    async def size(self, path: str) -> int:
        """Return the size of one file, in bytes."""
        ...

    async def read_range(self, path: str, start: int, length: int) -> bytes:
        """Return `length` bytes of one file, from `start` on."""
        ...


class TableSink(TableSource, Protocol):
    """A folder that can be written."""

    async def put(self, path: str, content: bytes) -> None:
        """Write one file, whole or not at all."""
        ...

    async def create(self, path: str, content: bytes) -> bool:
        """Write one file unless it exists; return whether it was written."""
        ...


class ClaimFolder:
    """A folder of a claim that is mounted for writing."""

    def __init__(self, uri: ArtefactUri, root: Path) -> None:
        self._mount = root / uri.authority
        self._folder = self._mount / uri.path
        self._uri = uri
        self._source = folder_source(uri, file_root=root, pvc_root=root)

    async def list(self, folder: str) -> tuple[str, ...]:
        """Return the paths of the files below `folder`, relative to it."""
        return await self._source.list(folder)

    async def size(self, path: str) -> int:
        """Return the size of one file, in bytes."""
        return await self._source.size(path)

    async def read_range(self, path: str, start: int, length: int) -> bytes:
        """Return `length` bytes of one file, from `start` on."""
        return await self._source.read_range(path, start, length)

    async def put(self, path: str, content: bytes) -> None:
        """Write under a temporary name, sync to disk, and rename."""
        await self._publish_file(path, content, lambda temporary, target: temporary.replace(target))

    async def create(self, path: str, content: bytes) -> bool:
        """Write one file unless it exists; return whether it was written.

        It is published by a hard link, which fails if the name exists.
        """
        try:
            await self._publish_file(path, content, _link_file)
        except FileExistsError:
            return False
        return True

    async def _publish_file(self, path: str, content: bytes, publish: Callable[[Path, Path], object]) -> None:
        try:
            await asyncio.to_thread(self._write_file, self._folder / path, content, publish)
        except FileExistsError:
            raise
        except OSError as error:
            uri = f"{self._uri.text.rstrip('/')}/{path}"
            raise ArtefactError(
                FailureReason.FETCH_FAILED, f"{uri} cannot be written: {error.strerror or error}"
            ) from error

    def _write_file(self, target: Path, content: bytes, publish: Callable[[Path, Path], object]) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Two pods of one shard may write the same file at the same time, so each uses its own temporary name.
        temporary = target.with_name(f".{target.name}.{os.urandom(4).hex()}")
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            publish(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)


def _link_file(temporary: Path, target: Path) -> None:
    os.link(temporary, target)


def open_source(uri: str, settings: AgentSettings, credentials: SecretCredentials) -> TableSource:
    """Open the folder from which a table is read.

    Raises:
        TableError: tables cannot be read from URIs of this scheme.
        ArtefactError: the URI is refused.
    """
    parsed = parse_uri(uri)
    if parsed.scheme not in TABLE_SCHEMES:
        raise TableError(f"tables cannot be read from {uri}: use s3://, gs:// or pvc://")
    if parsed.scheme.traits.is_mounted:
        return folder_source(parsed, file_root=settings.file_root, pvc_root=settings.pvc_root)
    return open_object_store(parsed, settings, credentials)


def open_sink(uri: str, settings: AgentSettings, credentials: SecretCredentials) -> TableSink:
    """Open the folder to which results are written.

    Raises:
        TableError: results cannot be written to URIs of this scheme.
        ArtefactError: the URI is refused.
    """
    parsed = parse_uri(uri)
    if parsed.scheme not in WRITABLE_SCHEMES:
        raise TableError(f"results cannot be written to {uri}: use s3://, gs:// or pvc://")
    if parsed.scheme.traits.is_mounted:
        return ClaimFolder(parsed, settings.batch_pvc_root)
    return open_object_store(parsed, settings, credentials)


async def read_file(source: TableSource, path: str) -> bytes | None:
    """Return the content of a small file, None if it does not exist."""
    try:
        return await source.read_range(path, 0, await source.size(path))
    except ArtefactError as error:
        if error.refusal.reason is FailureReason.ARTEFACT_NOT_FOUND:
            return None
        raise
