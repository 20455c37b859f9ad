"""What every source of artefacts offers: open one file as a stream, list a folder."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Resume:
    """Where a broken download stopped, and the validator that tells whether the file is still the same.

    `size` is that of the whole file where it was said.
    """

    start: int
    validator: str
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Download:
    """A file on its way.

    `size` is that of the whole file in bytes where the source says it, `chunks` its content from byte `start` on.
    `validator` changes whenever the content does (a strong ETag); without one a download cannot be resumed.
    `sha256` is what the source itself promises of the content.
    `counted` is False for a copy within the pod, which is no progress of the download.
    """

    size: int | None
    chunks: AsyncIterator[bytes]
    start: int = 0
    validator: str | None = None
    sha256: str | None = None
    counted: bool = True


class Source(Protocol):
    """One place, opened for one artefact; paths are relative to the artefact's URI.

    Both raise ArtefactError: ArtefactNotFound for what is not there, UriNotAllowed for what must not be read,
    FetchFailed for what may pass.
    """

    def open(self, path: str, resume: Resume | None = None) -> AbstractAsyncContextManager[Download]:
        """Start reading one file; with `resume` from there on, or from the beginning if the file has changed."""
        ...

    async def list(self, folder: str) -> tuple[str, ...] | None:
        """Return the paths of the files below `folder`, relative to it; None where there is no listing."""
        ...
