"""Samples as files: objects of compressed JSON lines that appear atomically, under names that never repeat."""

import asyncio
import gzip
import io
import os
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol

from tidegate_dataplane.agent.artefacts.uri import ArtefactUri
from tidegate_dataplane.agent.refusals import ArtefactError, DeniedError
from tidegate_dataplane.agent.samples.buffer import BufferedRecord, Portion
from tidegate_dataplane.agent.samples.lines import SampleOrigin, render_line
from tidegate_dataplane.agent.samples.sink import SinkError, WriteOutcome
from tidegate_dataplane.contract import SampleProblem

MAX_RECORDS = 100_000
LEVEL = 3


class FileStore(Protocol):
    """Storage for files."""

    async def put(self, path: str, content: bytes) -> None:
        """Write one file atomically."""
        ...


class ClaimStore:
    """A folder of a mounted claim."""

    def __init__(self, uri: ArtefactUri, root: Path) -> None:
        self._uri = uri
        self._mount = root / uri.authority
        self._folder = self._mount / uri.path

    async def put(self, path: str, content: bytes) -> None:
        """Write under a temporary name, sync, and rename."""
        await asyncio.to_thread(self._write_file, self._folder / path, content)

    def _write_file(self, target: Path, content: bytes) -> None:
        if not self._mount.is_dir():
            raise OSError(f"claim {self._uri.authority} is not mounted in this pod yet")
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.part")
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)


class FileSampleSink:
    """Writes one file per portion; a file that could not be written is retried under the same name."""

    def __init__(
        self,
        uri: ArtefactUri,
        origin: SampleOrigin,
        open_store: Callable[[], FileStore],
        portion: Portion,
        *,
        now: Callable[[], datetime],
    ) -> None:
        self.portion = portion
        self._uri = uri
        self._origin = origin
        self._open_store = open_store
        self._now = now
        self._started = now()
        self._number = 0
        self._unwritten: tuple[str, bytes, tuple[WriteOutcome, ...]] | None = None

    async def write(self, portion: Sequence[BufferedRecord]) -> Sequence[WriteOutcome]:
        """Write the portion's file; until that succeeds the caller passes the same portion."""
        if self._unwritten is None:
            content, fates = await asyncio.to_thread(self._render_content, portion)
            self._number += 1
            self._unwritten = (self._next_name(), content, fates)
        name, content, fates = self._unwritten
        try:
            if WriteOutcome.WRITTEN in fates:
                await self._open_store().put(name, content)
        except ArtefactError as error:
            refused = isinstance(error, DeniedError) or not error.refusal.is_transient
            problem = SampleProblem.SINK_REFUSED if refused else SampleProblem.SINK_UNREACHABLE
            raise SinkError(problem, error.refusal.message) from error
        except OSError as error:
            detail = error.strerror or str(error)
            raise SinkError(
                SampleProblem.SINK_UNREACHABLE, f"{self._uri.text} cannot be written: {detail}"
            ) from error
        self._unwritten = None
        return fates

    async def close(self) -> None:
        """Do nothing: no connection stays open."""

    def _render_content(self, portion: Sequence[BufferedRecord]) -> tuple[bytes, tuple[WriteOutcome, ...]]:
        content, fates = io.BytesIO(), list[WriteOutcome]()
        with gzip.GzipFile(fileobj=content, mode="wb", compresslevel=LEVEL, mtime=0) as file:
            for buffered in portion:
                try:
                    file.write(render_line(buffered.record, self._origin))
                except ValueError:
                    fates.append(WriteOutcome.TOO_LARGE)
                else:
                    fates.append(WriteOutcome.WRITTEN)
        return content.getvalue(), tuple(fates)

    def _next_name(self) -> str:
        """Return `<day>/<hour>/<namespace>.<pod>.<start of the agent>.<number>.jsonl.gz`, with the time of writing."""
        namespace = self._origin.inference.split("/", 1)[0]
        started = self._started.strftime("%Y%m%dT%H%M%S%f")
        return (
            f"{self._now():%Y-%m-%d/%H}/{namespace}.{self._origin.pod}.{started}.{self._number:06}.jsonl.gz"
        )
