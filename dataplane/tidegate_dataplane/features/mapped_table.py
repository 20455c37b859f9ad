"""Look keys up in a converted table that is mapped into memory, and shared with all processes that map it.

The kernel reads pages when they are first used and drops them when memory is short. A file that was removed stays readable until
its last reader ends.
"""

import contextlib
import mmap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from tidegate_dataplane.contract import FeaturePlan
from tidegate_dataplane.features.errors import FeatureError
from tidegate_dataplane.features.table_file import RECORDS_OFFSET, TableHeader, read_header
from tidegate_dataplane.features.table_keys import DenseIndex, HashedIndex, Rows, hash_words, make_words
from tidegate_dataplane.features.table_layout import KEY_FIELD, TableLayout, list_layouts

RECENT_KEYS: Final = 1 << 16
"""String keys of a table whose rows all processes of a version remember: to find one again takes a tenth of the time of a search."""
MAX_RECENT_BYTES: Final = 255
READ_AHEAD_SHARE: Final = 0.5
"""Share of the available memory up to which tables are read at once when they are mapped, all of them together."""
_MADV_POPULATE_READ: Final = 22
"""Of Linux; Python has no name for it before 3.14."""


@dataclass(frozen=True, slots=True)
class TableRecords:
    """The record of each key, [n] with the fields of the layout, and its row, [n], `row_count` for unknown keys."""

    values: npt.NDArray[Any]
    rows: Rows
    row_count: int


class MappedTable:
    """A converted table, read-only."""

    def __init__(self, content: mmap.mmap, header: TableHeader, layout: TableLayout, max_recent: int) -> None:
        """`max_recent` is the number of string keys whose rows are remembered."""
        self._content = content
        self._header = header
        self._dtype = layout.make_dtype(header.key_words)
        self._has_text_keys = layout.has_text_keys
        self._recent: dict[bytes, int] = {}
        self._max_recent = max_recent
        count = (header.rows + 1) * header.record_bytes // 8
        records = np.frombuffer(content, dtype=np.uint64, count=count, offset=RECORDS_OFFSET)
        self._records = records.reshape(header.rows + 1, -1)
        self._index: DenseIndex | HashedIndex
        if header.first_key is not None:
            entries = np.frombuffer(content, np.uint32, header.homes, header.index_offset)
            self._index = DenseIndex(entries, header.first_key, header.rows)
        else:
            buckets = np.frombuffer(content, np.uint64, -1, header.index_offset)
            self._index = HashedIndex(buckets, header.homes, header.rows)

    @property
    def row_count(self) -> int:
        """Return the number of rows, which is also the row of unknown keys."""
        return self._header.rows

    @property
    def size_bytes(self) -> int:
        """Return the size of the file."""
        return self._header.size

    def read_whole(self) -> None:
        """Read the whole file into the page cache."""
        try:
            self._content.madvise(_MADV_POPULATE_READ)
        except OSError:
            # Linux before 5.14.
            self._content.madvise(mmap.MADV_WILLNEED)

    def read_on_use(self) -> None:
        """Let the kernel read no more than what is asked for."""
        # Keys are all over the table: reading ahead would evict pages that are used.
        self._content.madvise(mmap.MADV_RANDOM)

    def read_records(self, keys: npt.NDArray[np.generic]) -> TableRecords:
        """Return the record of each key; keys are int64 [n], or an object array of bytes [n]."""
        if not self.row_count:
            return self._take_records(np.zeros(len(keys), dtype=np.intp))
        if not self._has_text_keys:
            tokens = np.ascontiguousarray(keys, dtype=np.int64).view(np.uint64)
            return self._take_records(self._index.find_rows(tokens))
        return self._take_records(self._find_texts(keys.tolist()))

    def _find_texts(self, keys: list[bytes]) -> Rows:
        """Return the row of each string key, [n]."""
        try:
            return np.fromiter(map(self._recent.__getitem__, keys), dtype=np.intp, count=len(keys))
        except KeyError:
            rows = np.fromiter(map(self._recent.get, keys, repeat(-1)), dtype=np.intp, count=len(keys))
        positions = np.flatnonzero(rows < 0)
        searched = [keys[position] for position in positions.tolist()]
        rows[positions] = self._search_texts(searched)
        if len(self._recent) > self._max_recent - len(searched):
            self._recent.clear()
        for key, row in zip(searched[: self._max_recent], rows[positions].tolist(), strict=False):
            if len(key) <= MAX_RECENT_BYTES:
                self._recent[key] = row
        return rows

    def _search_texts(self, keys: list[bytes]) -> Rows:
        key_words, fits = make_words(keys, self._header.key_words)
        rows = self._index.find_rows(hash_words(key_words, self._header.seed))
        stored = self._records.take(rows, axis=0).view(self._dtype).reshape(len(rows))[KEY_FIELD]
        return np.where(fits & (stored == key_words).all(axis=1), rows, self.row_count)

    def _take_records(self, rows: Rows) -> TableRecords:
        values = self._records.take(rows, axis=0).view(self._dtype)
        return TableRecords(values.reshape(len(rows)), rows, self.row_count)


def map_table(file: BinaryIO, layout: TableLayout, instances: int = 1) -> MappedTable:
    """Map an open converted table; the file may be closed and removed afterwards. `instances` processes map it.

    Raises:
        FeatureError: it is not the complete conversion of a table with this layout.
    """
    try:
        header = read_header(file)
        if header.layout != layout.compute_digest():
            raise FeatureError("it was converted for another plan")
        content = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    except (FeatureError, OSError) as error:
        raise FeatureError(f"the converted table {layout.table!r} cannot be read: {error}") from error
    return MappedTable(content, header, layout, RECENT_KEYS // instances)


def read_ahead(tables: Iterable[MappedTable]) -> None:
    """Read tables that fit into memory together at once, the smallest first; of others, no more than what is asked for."""
    room = _read_available_bytes() * READ_AHEAD_SHARE
    for table in sorted(tables, key=lambda table: table.size_bytes):
        room -= table.size_bytes
        if room >= 0:
            table.read_whole()
        else:
            table.read_on_use()


def _read_available_bytes() -> int:
    """Return the memory that the container may use at most, and no more than the node has available."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(lines["MemAvailable"].split()[0]) << 10
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            available = min(available, int(Path(path).read_text()))
    return available


def map_tables(plan: FeaturePlan, paths: Mapping[str, Path], instances: int = 1) -> dict[str, MappedTable]:
    """Map the converted file of each table of a plan, by name. `instances` processes map them.

    Raises:
        FeatureError: as `map_table`, and if a file is missing.
    """
    tables: dict[str, MappedTable] = {}
    for name, layout in list_layouts(plan).items():
        try:
            with paths[name].open("rb") as file:
                tables[name] = map_table(file, layout, instances)
        except OSError as error:
            raise FeatureError(f"the converted table {name!r} cannot be read: {error}") from error
    read_ahead(tables.values())
    return tables
