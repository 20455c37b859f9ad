"""Convert tables to files that are mapped into memory, block by block: memory does not grow with the table.

`python -m tidegate_dataplane.features.convert` converts one, ordered by a ConversionOrder as JSON on stdin.
"""

import errno
import os
import resource
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from tidegate_dataplane.contract import FeaturePlan
from tidegate_dataplane.features import hashing
from tidegate_dataplane.features.conversion import ConversionOrder, ConversionResult, DiskBound
from tidegate_dataplane.features.errors import DiskFullError, FeatureError
from tidegate_dataplane.features.key_writer import (
    KeySpill,
    WrittenIndex,
    estimate_index,
    measure_index,
    write_all,
    write_index,
)
from tidegate_dataplane.features.mapped_table import MappedTable, map_table, read_ahead
from tidegate_dataplane.features.references import check_fields
from tidegate_dataplane.features.table_file import RECORDS_OFFSET, TableHeader, read_header, write_header
from tidegate_dataplane.features.table_keys import count_key_words, hash_words, make_words, read_text
from tidegate_dataplane.features.table_layout import (
    KEY_FIELD,
    TableLayout,
    list_layouts,
    name_feature,
    name_hash,
)
from tidegate_dataplane.features.tables import ParquetRows, TableBlock, count_block_rows

MAX_ROWS = 1_000_000_000
"""Rows of a table; an index numbers fewer than 2^32. With one column, they take 3 to 15 minutes of a processor.

A conversion has an hour.
"""
MEMORY_BYTES = 512 << 20
"""Memory that the process of a conversion may allocate beside its libraries; the agent's container has 1 GiB for both."""
SEEDS = 8
"""Two of many keys may have one hash: then another seed is tried, which happens once in 10,000 tables of 50 million keys."""


class TableRows(Protocol):
    """The rows of a table, which can be read again."""

    def count_rows(self, columns: Sequence[str]) -> int:
        """Return their number; FeatureError if a column is missing."""
        ...

    def read_blocks(self, columns: Sequence[str], block_rows: int) -> Iterator[Any]:
        """Yield them in order, as record batches of Arrow with at most `block_rows` rows and the same types."""
        ...


def convert_file(order: ConversionOrder) -> ConversionResult:
    """Convert a table; the file appears complete and synced to the disk, or not at all."""
    part = order.target.with_name(f".{order.target.name}.part")
    try:
        check_fields(order.plan)
        layout = list_layouts(order.plan)[order.table]
        rows = ParquetRows(order.parquet, order.table)
        with part.open("w+b", buffering=0) as file:
            write_table(file, rows, layout, part.parent, order.disk, order.sha256, is_lasting=True)
            size = read_header(file).size
        part.replace(order.target)
        _sync_folder(order.target.parent)
    except DiskFullError as error:
        return ConversionResult(error=str(error), needed_bytes=error.needed_bytes)
    except FeatureError as error:
        return ConversionResult(error=str(error))
    except MemoryError:
        return ConversionResult(
            error=f"table {order.table!r} needs more than {MEMORY_BYTES >> 20} MiB of memory when it is converted: write shorter "
            "lists and texts, or smaller pages and row groups"
        )
    finally:
        part.unlink(missing_ok=True)
    return ConversionResult(size=size)


def convert_temporarily(layout: TableLayout, rows: TableRows, disk: DiskBound) -> MappedTable:
    """Return a table as one that is mapped from a file without a name, which is gone with its last reader.

    The file is in the folder for temporary files ($TMPDIR), and its pages are read when they are used.

    Raises:
        FeatureError: the rows do not fit the layout, or the disk is full.
    """
    with tempfile.TemporaryFile(buffering=0) as file:
        write_table(file, rows, layout, Path(tempfile.gettempdir()), disk)
        return map_table(file, layout)


def open_parquet_tables(plan: FeaturePlan, paths: Mapping[str, Path]) -> dict[str, MappedTable]:
    """Convert the Parquet file, or the folder of files, of each table of a plan, by name.

    Raises:
        FeatureError: as `convert_temporarily`, and if a file is no Parquet file.
    """
    check_fields(plan)
    tables = {
        name: convert_temporarily(layout, ParquetRows(paths[name], name), _OWN_DISK)
        for name, layout in list_layouts(plan).items()
    }
    read_ahead(tables.values())
    return tables


def write_table(
    file: BinaryIO,
    rows: TableRows,
    layout: TableLayout,
    folder: Path,
    disk: DiskBound,
    source: str = "",
    *,
    is_lasting: bool = False,
) -> None:
    """Write a converted table to an empty file in `folder`; a lasting one is synced to the disk, its header last.

    Raises:
        FeatureError: the rows do not fit the layout, or the table is larger than allowed.
        DiskFullError: naming the bytes that are needed and those that are free.
    """
    needed = 0
    try:
        count = rows.count_rows(layout.source_columns)
        if count > MAX_ROWS:
            raise FeatureError(
                f"table {layout.table!r} has {count:,} rows, and {MAX_ROWS:,} are possible: split it into several tables"
            )
        key_words = _count_key_words(rows, layout) if layout.has_text_keys else 0
        needed = _estimate_bytes(layout, count, key_words)
        writer = _TableWriter(file, layout, folder, key_words, disk)
        writer.check_size(RECORDS_OFFSET + (count + 1) * layout.make_dtype(key_words).itemsize)
        if needed > disk.measure_room(folder):
            raise _report_full_disk(layout.table, needed, folder, disk)
        header = writer.write_rows(rows, source)
        if is_lasting:
            os.fsync(file.fileno())
        write_header(file, header)
        if is_lasting:
            os.fsync(file.fileno())
    except OSError as error:
        if error.errno in _FULL:
            raise _report_full_disk(layout.table, needed, folder, disk) from error
        raise FeatureError(f"table {layout.table!r} cannot be converted: {error}") from error


def _estimate_bytes(layout: TableLayout, rows: int, key_words: int) -> int:
    """Return the most bytes on the disk that a conversion needs: the file, and what is written beside it."""
    records = (rows + 1) * layout.make_dtype(key_words).itemsize
    return records + estimate_index(rows, are_keys=not layout.has_text_keys) + (1 << 16)


def _count_key_words(rows: TableRows, layout: TableLayout) -> int:
    """Return the words of the longest string key."""
    key = layout.entity.key
    blocks = rows.read_blocks([key], count_block_rows(0))
    longest = [TableBlock(block, layout.table).measure_text(key) for block in blocks]
    return count_key_words(max(longest, default=0))


class _TableWriter:
    """Writes the records of one table, and the index of its keys."""

    def __init__(
        self, file: BinaryIO, layout: TableLayout, folder: Path, key_words: int, disk: DiskBound
    ) -> None:
        self._file = file
        self._layout = layout
        self._folder = folder
        self._key_words = key_words
        self._dtype = layout.make_dtype(key_words)
        self._block_rows = count_block_rows(self._dtype.itemsize)
        self._disk = disk
        self._seed = 0

    def check_size(self, size: int) -> None:
        """Raise FeatureError if a file of this many bytes is larger than allowed."""
        limit = self._disk.max_bytes
        if limit is not None and size > limit:
            raise FeatureError(
                f"table {self._layout.table!r} takes at least {size:,} bytes of disk when it is converted, and {limit:,} "
                f"are left to it {self._disk.allowed}: {self._disk.size_remedy}"
            )

    def write_rows(self, rows: TableRows, source: str) -> TableHeader:
        """Write all but the header, and return that; FeatureError if the rows do not fit the layout, OSError as the disk does."""
        unknown = self._layout.make_unknown(self._dtype, hashing.MISSING)
        self._file.seek(RECORDS_OFFSET)
        spill = self._write_records(rows)
        try:
            write_all(self._file, unknown)
            offset = -(-self._file.tell() // 64) * 64
            spill, index = self._write_index(spill, offset)
            count = spill.count
        finally:
            spill.free_disk()
        return TableHeader(
            source=source,
            layout=self._layout.compute_digest(),
            rows=count,
            record_bytes=self._dtype.itemsize,
            key_words=self._key_words,
            seed=self._seed,
            first_key=index.first_key,
            homes=index.homes,
            index_offset=offset,
            size=self._file.seek(0, os.SEEK_END),
        )

    def _write_records(self, rows: TableRows) -> KeySpill:
        """Write the record of each row; return the tokens of their keys."""
        entity, nulls = self._layout.entity, 0
        spill = KeySpill(self._folder)
        try:
            for content in rows.read_blocks(self._layout.source_columns, self._block_rows):
                block = TableBlock(content, self._layout.table)
                nulls += block.count_nulls(entity.key)
                records = self._make_records(block)
                write_all(self._file, records)
                if not self._layout.has_text_keys:
                    spill.append_tokens(block.read_integer_keys(entity).view(np.uint64))
                else:
                    spill.append_tokens(hash_words(records[KEY_FIELD], self._seed))
            if nulls:
                raise FeatureError(
                    f"table {self._layout.table!r}, key column {entity.key!r} has {nulls} nulls of {spill.count} rows"
                )
        except BaseException:
            spill.free_disk()
            raise
        return spill

    def _make_records(self, block: TableBlock) -> Any:
        records = np.zeros(block.row_count, dtype=self._dtype)
        if self._layout.has_text_keys:
            keys = block.read_text_keys(self._layout.entity)
            records[KEY_FIELD], _ = make_words(keys, self._key_words)
        for column in self._layout.hashed:
            records[name_hash(column)] = block.hash_column(column)
        for feature in self._layout.features:
            records[name_feature(feature.name)] = block.compute_values(feature)
        return records

    def _write_index(self, spill: KeySpill, offset: int) -> tuple[KeySpill, WrittenIndex]:
        """Write the index, with another seed while two keys have one hash; return the tokens that it has."""
        are_keys = not self._layout.has_text_keys
        self.check_size(offset + measure_index(spill, are_keys=are_keys))
        for _ in range(SEEDS):
            self._file.truncate(offset)
            self._file.seek(offset)
            index = write_index(self._file, spill, are_keys=are_keys)
            if not index.duplicates:
                return spill, index
            if are_keys:
                raise self._report_duplicates(index.duplicates, [str(key.token) for key in index.examples])
            key_words = [self._read_words(row) for key in index.examples for row in key.rows]
            pairs = zip(key_words[::2], key_words[1::2], strict=True)
            if names := [read_text(first) for first, second in pairs if (first == second).all()]:
                raise self._report_duplicates(index.duplicates, names)
            self._seed += 1
            spill = self._spill_again(spill)
        raise FeatureError(f"table {self._layout.table!r} has keys with the same hash for {SEEDS} seeds")

    def _read_words(self, row: int) -> Any:
        """Return the words of a row's key."""
        self._file.seek(RECORDS_OFFSET + row * self._dtype.itemsize)
        return np.frombuffer(self._file.read(self._dtype.itemsize), dtype=self._dtype)[KEY_FIELD][0]

    def _spill_again(self, earlier: KeySpill) -> KeySpill:
        """Return the tokens with another seed, from the records."""
        count = earlier.count
        earlier.free_disk()
        spill = KeySpill(self._folder)
        size = self._dtype.itemsize
        for start in range(0, count, self._block_rows):
            self._file.seek(RECORDS_OFFSET + start * size)
            content = self._file.read(min(self._block_rows, count - start) * size)
            key_words = np.frombuffer(content, dtype=self._dtype)[KEY_FIELD]
            spill.append_tokens(hash_words(key_words, self._seed))
        return spill

    def _report_duplicates(self, count: int, examples: Sequence[str]) -> FeatureError:
        return FeatureError(
            f"table {self._layout.table!r} has {count} keys in more than one row, such as {', '.join(examples)}: "
            "a lookup needs one row per key"
        )


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_OWN_DISK = DiskBound(disk_remedy="free space in the folder for temporary files, set TMPDIR to another")


def _report_full_disk(table: str, needed: int, folder: Path, disk: DiskBound) -> DiskFullError:
    reserve = f" beside a reserve of {disk.reserve_share:.0%} of the disk" if disk.reserve_share else ""
    return DiskFullError(
        f"table {table!r} needs {needed:,} bytes of disk when it is converted, and {disk.measure_room(folder):,} are free"
        f"{reserve}: {disk.disk_remedy}, or read fewer columns of the table",
        needed,
    )


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _convert_order() -> int:
    """Execute the order on stdin, and write its result to stdout."""
    # Requests come first: the server has the same processors.
    os.nice(10)
    _limit_memory()
    result = convert_file(ConversionOrder.model_validate_json(sys.stdin.buffer.read()))
    sys.stdout.write(result.model_dump_json())
    return 0


def _limit_memory() -> None:
    """Let allocations fail in this process, so that the kernel does not end the container."""
    # What libraries have reserved depends on the number of processors, and is hardly used.
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    bound = (int(lines["VmData"].split()[0]) << 10) + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))


if __name__ == "__main__":
    sys.exit(_convert_order())
