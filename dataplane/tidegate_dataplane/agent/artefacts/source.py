"""Interface of every source of artefacts: open one file as a stream, list a folder."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from tidegate_dataplane.agent.artefacts.uri import ArtefactUri
from tidegate_dataplane.contract import DesiredState

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Position at which a download broke off, and the validator that identifies the content.

    `size` is that of the whole file, if known.
    """

    start: int
    validator: str
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Download:
    """An open download of one file.

    `size` is that of the whole file in bytes, if the source declares it; `chunks` its content from byte `start` on.
    `validator` changes whenever the content does (a strong ETag); without one a download cannot be resumed.
    `sha256` is the digest that the source declares.
    `counted` is False for a copy within the pod, which is no progress of the download.
    """

    size: int | None
    chunks: AsyncIterator[bytes]
    start: int = 0
    validator: str | None = None
    sha256: str | None = None
    counted: bool = True


class ArtefactSource(Protocol):
    """A source, opened for one artefact; paths are relative to the artefact's URI.

    All methods raise ArtefactError: ArtefactNotFound for a missing file, UriNotAllowed for one that must not be read,
    FetchFailed for an error that may pass.
    """

    def open(self, path: str, resume: ResumePoint | None = None) -> AbstractAsyncContextManager[Download]:
        """Start reading one file; with `resume` from there on, or from the beginning if the file has changed."""
        ...

    async def list(self, folder: str) -> tuple[str, ...] | None:
        """Return the paths of the files below `folder`, relative to it; None if the source has no listing."""
        ...

    async def identify_content(self, path: str) -> str:
        """Return a text that changes whenever the content of one file does, without reading it."""
        ...


OpenSource = Callable[[ArtefactUri, DesiredState], ArtefactSource]
"""Opens the source of a URI for an order."""
