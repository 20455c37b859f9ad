"""Parquet over ranges of files: footers for the plan, and a shard's rows as one stream of tables."""

import io
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]  # publishes no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from tidegate_dataplane.batch.errors import TableError
from tidegate_dataplane.batch.plan import InputFile, Segment
from tidegate_dataplane.batch.store import Source

ENDING: Final = ".parquet"
FIRST_READ: Final = 64 << 10
"""Bytes that are read of a file's end at once: most footers are smaller."""
ROWS_AT_ONCE: Final = 8_192

Wait = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine to its end."""


class RangeFile(io.RawIOBase):
    """A file of a store, seekable, whose bytes are read when they are asked for."""

    def __init__(self, source: Source, path: str, wait: Wait) -> None:
        self._source, self._path, self._wait = source, path, wait
        self._position = 0
        self.size = int(wait(source.size(path)))
        self._tail_start = max(self.size - FIRST_READ, 0)
        self._tail: bytes = wait(source.read_range(path, self._tail_start, self.size - self._tail_start))

    def readable(self) -> bool:
        """It is read."""
        return True

    def seekable(self) -> bool:
        """From any place."""
        return True

    def tell(self) -> int:
        """Where the next byte is read."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Read from there on."""
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = origin + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """Return so many bytes; fewer at the end."""
        left = max(self.size - self._position, 0)
        length = left if size is None or size < 0 else min(size, left)
        start, self._position = self._position, self._position + length
        if length and start >= self._tail_start:
            return self._tail[start - self._tail_start :][:length]
        content: bytes = self._wait(self._source.read_range(self._path, start, length))
        if len(content) != length:
            raise TableError(f"{self._path} ended at byte {start + len(content)} of {self.size}: it changed")
        return content


@contextmanager
def opened(source: Source, where: str, path: str, wait: Wait) -> Generator[Any]:
    """A ParquetFile of the store's file; `where` is the URI that its path is relative to.

    Raises:
        TableError: it is no Parquet file, or becomes none while it is read.
    """
    try:
        # Arrow copies from a buffer of ours in its own thread otherwise, where nothing could be awaited.
        with pq.ParquetFile(pa.PythonFile(RangeFile(source, path, wait)), pre_buffer=False) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        said = str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
        raise TableError(
            f"{_at(where, path)} cannot be read as Parquet: {said}; replace the file, and start the run anew"
        ) from error


def table_files(paths: Sequence[str]) -> tuple[str, ...]:
    """The files of a table: .parquet, none hidden and none below a folder whose name begins with _ or a dot."""
    return tuple(
        path
        for path in sorted(paths)
        if path.endswith(ENDING) and not any(part.startswith(("_", ".")) for part in path.split("/"))
    )


def measured(source: Source, where: str, path: str, wait: Wait) -> InputFile:
    """The size and rows of one file, by its footer."""
    with opened(source, where, path, wait) as file:
        rows = int(file.metadata.num_rows)
    return InputFile(path=path, size=int(wait(source.size(path))), rows=rows)


def rows_of(
    source: Source, where: str, segment: Segment, columns: Sequence[str], wait: Wait
) -> Iterator[Any]:
    """The rows of one segment as tables of these columns, read row group by row group.

    Raises:
        TableError: a column is not there, or the file is not the one of the plan.
    """
    known = segment.file
    with opened(source, where, known.path, wait) as file:
        if int(file.metadata.num_rows) != known.rows or int(wait(source.size(known.path))) != known.size:
            raise TableError(
                f"{_at(where, known.path)} changed since the run began (it had {known.rows} rows in {known.size} bytes): "
                "put tables into new files, and start the run anew"
            )
        there = file.schema_arrow.names
        for column in columns:
            if column not in there:
                raise TableError(
                    f"{_at(where, known.path)} has no column {column!r}; it has {', '.join(sorted(there)[:50])}"
                )
        yield from _within(file, segment, list(columns))


def _within(file: Any, segment: Segment, columns: list[str]) -> Iterator[Any]:
    first, groups, skip = 0, list[int](), 0
    for group in range(file.metadata.num_row_groups):
        count = int(file.metadata.row_group(group).num_rows)
        if first < segment.end and segment.start < first + count:
            if not groups:
                skip = segment.start - first
            groups.append(group)
        first += count
    left = segment.end - segment.start
    batches = file.iter_batches(ROWS_AT_ONCE, row_groups=groups, columns=columns, use_threads=False)
    for batch in batches:
        table = _plain(pa.Table.from_batches([batch]))
        table = table.slice(skip, left)
        skip = max(skip - batch.num_rows, 0)
        left -= table.num_rows
        if table.num_rows:
            yield table
        if left == 0:
            return


def _plain(table: Any) -> Any:
    """Without dictionaries, which would differ from file to file, and without what other tools wrote into the schema."""
    for index, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(index, field.name, table.column(index).cast(field.type.value_type))
    return table.replace_schema_metadata(None)


def _at(where: str, path: str) -> str:
    return f"{where.rstrip('/')}/{path}"


class RowStream:
    """The rows of several segments in order, taken in pieces of any size."""

    def __init__(self, tables: Iterator[Any]) -> None:
        self._tables = tables
        self._rest: Any = None

    def take(self, count: int) -> Any:
        """Return the next `count` rows as one table.

        Raises:
            TableError: there are fewer, or the files differ in the types of the columns.
        """
        taken, rows = [], 0
        while rows < count:
            table = self._rest if self._rest is not None else next(self._tables, None)
            if table is None:
                raise TableError(f"the table ended {count - rows} rows early: start the run anew")
            piece = table.slice(0, count - rows)
            self._rest = table.slice(piece.num_rows) if piece.num_rows < table.num_rows else None
            taken.append(piece)
            rows += piece.num_rows
        try:
            return pa.concat_tables(taken).combine_chunks()
        except pa.ArrowInvalid as error:
            said = str(error).strip().splitlines()[0][:300]
            raise TableError(
                f"the files of the table differ in the types of their columns: {said}"
            ) from error
