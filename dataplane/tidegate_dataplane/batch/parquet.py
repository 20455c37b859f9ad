"""Read Parquet files by ranges: their footers for the plan, and a shard's rows as a stream of tables."""

import io
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]  # publishes no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from tidegate_dataplane.batch.errors import MissingColumnError, TableError
from tidegate_dataplane.batch.plan import FileSegment, InputFile
from tidegate_dataplane.batch.store import TableSource

FILE_SUFFIX: Final = ".parquet"
TAIL_BYTES: Final = 64 << 10
"""Bytes at the end of a file that are read first: most footers are smaller."""
MAX_BATCH_ROWS: Final = 8_192

Wait = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine to its end."""


class RangeFile(io.RawIOBase):
    """A seekable file of a store, whose bytes are read on demand."""

    def __init__(self, source: TableSource, path: str, wait: Wait) -> None:
        self._source, self._path, self._wait = source, path, wait
        self._position = 0
        self.size = int(wait(source.size(path)))
        self._tail_start = max(self.size - TAIL_BYTES, 0)
        self._tail: bytes = wait(source.read_range(path, self._tail_start, self.size - self._tail_start))

    def readable(self) -> bool:
        """Return that the file can be read."""
        return True

    def seekable(self) -> bool:
        """Return that the file can be read from any position."""
        return True

    def tell(self) -> int:
        """Return the position of the next byte."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position of the next byte, and return it."""
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = origin + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """Return `size` bytes, fewer at the end of the file; all that follow if `size` is negative or None.

        Raises:
            TableError: the file became shorter.
        """
        remaining = max(self.size - self._position, 0)
        length = remaining if size is None or size < 0 else min(size, remaining)
        start, self._position = self._position, self._position + length
        if length and start >= self._tail_start:
            return self._tail[start - self._tail_start :][:length]
        content: bytes = self._wait(self._source.read_range(self._path, start, length))
        if len(content) != length:
            raise TableError(f"{self._path} ended at byte {start + len(content)} of {self.size}: it changed")
        return content


@contextmanager
def open_parquet(source: TableSource, folder_uri: str, path: str, wait: Wait) -> Generator[Any]:
    """Open a file of the store as a ParquetFile; `folder_uri` is the URI of the folder of `path`.

    Raises:
        TableError: the file is no Parquet file, or changes while it is read.
    """
    try:
        # With pre_buffer, Arrow would read in threads of its own, in which `wait` cannot run.
        with pq.ParquetFile(pa.PythonFile(RangeFile(source, path, wait)), pre_buffer=False) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        reason = str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
        raise TableError(
            f"{_file_uri(folder_uri, path)} cannot be read as Parquet: {reason}; replace the file, and start a new run"
        ) from error


def select_table_files(paths: Sequence[str]) -> tuple[str, ...]:
    """Return the Parquet files of a table, without those whose name or folder begins with an underscore or a dot."""
    return tuple(
        path
        for path in sorted(paths)
        if path.endswith(FILE_SUFFIX) and not any(part.startswith(("_", ".")) for part in path.split("/"))
    )


def measure_file(source: TableSource, folder_uri: str, path: str, wait: Wait) -> InputFile:
    """Return the size and the number of rows of one file, from its footer."""
    with open_parquet(source, folder_uri, path, wait) as file:
        rows = int(file.metadata.num_rows)
    return InputFile(path=path, size=int(wait(source.size(path))), rows=rows)


def read_segment(
    source: TableSource, folder_uri: str, segment: FileSegment, columns: Sequence[str], wait: Wait
) -> Iterator[Any]:
    """Yield the rows of one segment as tables of these columns, row group by row group.

    Raises:
        MissingColumnError: the file lacks a column.
        TableError: the file has changed since the plan was made.
    """
    planned = segment.file
    with open_parquet(source, folder_uri, planned.path, wait) as file:
        if (
            int(file.metadata.num_rows) != planned.rows
            or int(wait(source.size(planned.path))) != planned.size
        ):
            raise TableError(
                f"{_file_uri(folder_uri, planned.path)} changed since the run began (it had {planned.rows} rows in {planned.size} bytes): "
                "put tables into new files, and start a new run"
            )
        available = file.schema_arrow.names
        for column in columns:
            if column not in available:
                raise MissingColumnError(
                    f"{_file_uri(folder_uri, planned.path)} has no column {column!r}; it has {', '.join(sorted(available)[:50])}",
                    column,
                )
        yield from _read_rows(file, segment, list(columns))


def _read_rows(file: Any, segment: FileSegment, columns: list[str]) -> Iterator[Any]:
    first, groups, skip = 0, list[int](), 0
    for group in range(file.metadata.num_row_groups):
        count = int(file.metadata.row_group(group).num_rows)
        if first < segment.end and segment.start < first + count:
            if not groups:
                skip = segment.start - first
            groups.append(group)
        first += count
    remaining = segment.end - segment.start
    batches = file.iter_batches(MAX_BATCH_ROWS, row_groups=groups, columns=columns, use_threads=False)
    for batch in batches:
        table = _simplify_schema(pa.Table.from_batches([batch]))
        table = table.slice(skip, remaining)
        skip = max(skip - batch.num_rows, 0)
        remaining -= table.num_rows
        if table.num_rows:
            yield table
        if remaining == 0:
            return


def _simplify_schema(table: Any) -> Any:
    """Return the table without dictionaries, which differ between files, and without metadata of other tools."""
    for index, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(index, field.name, table.column(index).cast(field.type.value_type))
    return table.replace_schema_metadata(None)


def _file_uri(folder_uri: str, path: str) -> str:
    return f"{folder_uri.rstrip('/')}/{path}"


class RowStream:
    """The rows of several segments in order, which can be taken in pieces of any size."""

    def __init__(self, tables: Iterator[Any]) -> None:
        self._tables = tables
        self._rest: Any = None

    def take_rows(self, count: int) -> Any:
        """Return the next `count` rows as one table.

        Raises:
            TableError: fewer rows are left, or the files differ in the types of the columns.
        """
        pieces, rows = [], 0
        while rows < count:
            table = self._rest if self._rest is not None else next(self._tables, None)
            if table is None:
                raise TableError(f"the table ended {count - rows} rows early: start a new run")
            piece = table.slice(0, count - rows)
            self._rest = table.slice(piece.num_rows) if piece.num_rows < table.num_rows else None
            pieces.append(piece)
            rows += piece.num_rows
        try:
            return pa.concat_tables(pieces).combine_chunks()
        except pa.ArrowInvalid as error:
            reason = str(error).strip().splitlines()[0][:300]
            raise TableError(
                f"the files of the table differ in the types of their columns: {reason}"
            ) from error
