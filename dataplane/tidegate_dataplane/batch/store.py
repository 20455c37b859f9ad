"""Where tables lie: s3:, gs:, a mounted claim or the node's folder; read by range, and files appear whole or not at all."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from tidegate_dataplane.agent.artefacts.credentials import SecretCredentials
from tidegate_dataplane.agent.artefacts.folder_source import folder_source
from tidegate_dataplane.agent.artefacts.object_store import ObjectSource
from tidegate_dataplane.agent.artefacts.uri import ArtefactUri, UriScheme, parse_uri
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.agent.settings import AgentSettings
from tidegate_dataplane.batch.errors import TableError
from tidegate_dataplane.contract import FailureReason

READABLE: Final = (UriScheme.FILE, UriScheme.PVC, UriScheme.S3, UriScheme.GS)
WRITABLE: Final = (UriScheme.PVC, UriScheme.S3, UriScheme.GS)


class Source(Protocol):
    """A folder that can be read."""

    async def list(self, folder: str) -> tuple[str, ...]:
        """Return the paths of the files below `folder`, relative to it."""
        ...

    async def size(self, path: str) -> int:
        """Return the bytes of one file."""
        ...

    async def read_range(self, path: str, start: int, length: int) -> bytes:
        """Return so many bytes of one file."""
        ...


class Sink(Source, Protocol):
    """A folder that can be written."""

    async def put(self, path: str, content: bytes) -> None:
        """Write one file: afterwards it is there whole, or not at all."""
        ...

    async def create(self, path: str, content: bytes) -> bool:
        """The same, where none of the name is there; return False, and change nothing, where one is."""
        ...


class Claim:
    """A folder of a claim that is mounted to be written."""

    def __init__(self, uri: ArtefactUri, root: Path) -> None:
        self._mount = root / uri.authority
        self._folder = self._mount / uri.path
        self._uri = uri
        self._source = folder_source(uri, file_root=root, pvc_root=root)

    async def list(self, folder: str) -> tuple[str, ...]:
        """Return the paths of the files below `folder`, relative to it."""
        return await self._source.list(folder)

    async def size(self, path: str) -> int:
        """Return the bytes of one file."""
        return await self._source.size(path)

    async def read_range(self, path: str, start: int, length: int) -> bytes:
        """Return so many bytes of one file."""
        return await self._source.read_range(path, start, length)

    async def put(self, path: str, content: bytes) -> None:
        """Write under another name, bring it to disk, and rename it."""
        await self._written(path, content, lambda part, target: part.replace(target))

    async def create(self, path: str, content: bytes) -> bool:
        """The same, with a link, which fails where the name is taken."""
        try:
            await self._written(path, content, _link)
        except FileExistsError:
            return False
        return True

    async def _written(self, path: str, content: bytes, publish: Callable[[Path, Path], object]) -> None:
        try:
            await asyncio.to_thread(self._write, self._folder / path, content, publish)
        except FileExistsError:
            raise
        except OSError as error:
            where = f"{self._uri.text.rstrip('/')}/{path}"
            raise ArtefactError(
                FailureReason.FETCH_FAILED, f"{where} cannot be written: {error.strerror or error}"
            ) from error

    def _write(self, target: Path, content: bytes, publish: Callable[[Path, Path], object]) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Two pods of one shard may write the same file for a moment: each has a name of its own for the unfinished one.
        part = target.with_name(f".{target.name}.{os.urandom(4).hex()}")
        try:
            with part.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            publish(part, target)
        finally:
            part.unlink(missing_ok=True)


def _link(part: Path, target: Path) -> None:
    os.link(part, target)


def open_source(uri: str, settings: AgentSettings, credentials: SecretCredentials) -> Source:
    """Return the folder that a table is read from.

    Raises:
        TableError: its scheme is none that tables are read from.
        ArtefactError: the URI is refused.
    """
    parsed = parse_uri(uri)
    if parsed.scheme not in READABLE:
        raise TableError(f"tables cannot be read from {uri}: use s3://, gs:// or pvc://")
    if parsed.scheme in (UriScheme.FILE, UriScheme.PVC):
        return folder_source(parsed, file_root=settings.file_root, pvc_root=settings.pvc_root)
    return _object_store(parsed, settings, credentials)


def open_sink(uri: str, settings: AgentSettings, credentials: SecretCredentials) -> Sink:
    """Return the folder that results are written to.

    Raises:
        TableError: its scheme is none that results are written to.
        ArtefactError: the URI is refused.
    """
    parsed = parse_uri(uri)
    if parsed.scheme not in WRITABLE:
        raise TableError(f"results cannot be written to {uri}: use s3://, gs:// or pvc://")
    if parsed.scheme is UriScheme.PVC:
        return Claim(parsed, settings.batch_pvc_root)
    return _object_store(parsed, settings, credentials)


def _object_store(uri: ArtefactUri, settings: AgentSettings, credentials: SecretCredentials) -> ObjectSource:
    return ObjectSource(
        uri,
        credentials,
        allow_loopback=settings.allow_loopback,
        stall_timeout_s=settings.stall_timeout_s,
    )


async def content(source: Source, path: str) -> bytes | None:
    """Return a whole small file, None where there is none."""
    try:
        return await source.read_range(path, 0, await source.size(path))
    except ArtefactError as error:
        if error.refusal.reason is FailureReason.ARTEFACT_NOT_FOUND:
            return None
        raise
