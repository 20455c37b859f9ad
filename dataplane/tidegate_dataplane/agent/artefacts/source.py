"""What every source of artefacts offers: open one file as a stream, list a folder."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Download:
    """A file on its way: its size in bytes where the source says it, and its content in chunks."""

    size: int | None
    chunks: AsyncIterator[bytes]


class Source(Protocol):
    """One place, opened for one artefact; paths are relative to the artefact's URI.

    Both raise ArtefactError: ArtefactNotFound for what is not there, UriNotAllowed for what must not be read,
    FetchFailed for what may pass.
    """

    def open(self, path: str) -> AbstractAsyncContextManager[Download]:
        """Start reading one file."""
        ...

    async def list(self, folder: str) -> tuple[str, ...] | None:
        """Return the paths of the files below `folder`, relative to it; None where there is no listing."""
        ...
