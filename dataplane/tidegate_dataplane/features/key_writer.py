"""Write the index of a converted table's keys, in memory that does not grow with the table, and in time that grows as it does.

The index is written in windows. The keys are divided into one partition for each window first, on the disk.
"""

import contextlib
import tempfile
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from tidegate_dataplane.features.table_keys import (
    BUCKET_WORDS,
    EMPTY,
    SLOTS,
    Rows,
    Tokens,
    choose_homes,
    mix_tokens,
)

DENSE_FACTOR: Final = 4
"""A range of keys up to this many times wider than their number gets an entry per possible key."""
WINDOW_KEYS: Final = 1 << 21
"""Keys that are put in order at once, which takes about 100 MB."""
PAIR: Final = np.dtype([("token", "<u8"), ("row", "<u4")])
"""A key in a partition: 12 bytes."""
EXAMPLES: Final = 3
"""Keys in several rows that a message names."""
_KEYS_PER_BUCKET: Final = 4
_CHUNK_KEYS: Final = 1 << 19


@dataclass(frozen=True, slots=True)
class WrittenIndex:
    """How to search the index, how many tokens several rows have, and two of the rows of some of these tokens."""

    first_key: int | None
    homes: int
    duplicates: int = 0
    examples: tuple["RepeatedToken", ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class RepeatedToken:
    """A token that several rows have, two of them; `rank` orders examples."""

    rank: int
    token: int
    rows: tuple[int, int]


class KeySpill:
    """The tokens of a table's rows, in the order of the rows, in a temporary file that no crash leaves behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = _open_temporary(folder)
        self.count = 0
        self._first = np.iinfo(np.int64).max
        self._last = np.iinfo(np.int64).min

    def append_tokens(self, tokens: Tokens) -> None:
        """Add the tokens of the next rows."""
        if not len(tokens):
            return
        keys = tokens.view(np.int64)
        self._first, self._last = min(self._first, int(keys.min())), max(self._last, int(keys.max()))
        write_all(self._file, tokens)
        self.count += len(tokens)

    def read_chunks(self) -> Iterator[tuple[int, Tokens]]:
        """Yield the row of the first of some tokens, with the tokens."""
        self._file.seek(0)
        row = 0
        while content := self._file.read(8 * _CHUNK_KEYS):
            tokens = np.frombuffer(content, dtype=np.uint64)
            yield row, tokens
            row += len(tokens)

    def find_range(self) -> tuple[int, int]:
        """Return the first and the number of possible keys, of tokens that are integer keys; (0, 0) without any."""
        return (int(self._first), int(self._last) - int(self._first) + 1) if self.count else (0, 0)

    def free_disk(self) -> None:
        """Free the disk."""
        self._file.close()


class Partitions:
    """The tokens of a spill with their rows, in a partition for each window of an index.

    Each token is read twice and written once, however many partitions there are; with one, nothing is written.
    """

    def __init__(self, spill: KeySpill, count: int, find_windows: Callable[[Tokens], Rows]) -> None:
        """Divide the tokens into `count` partitions; `find_windows` returns the partition of each, [n]."""
        self._spill = spill
        self._file: BinaryIO | None = None
        self._ends = np.full(count, spill.count, dtype=np.int64)
        if count > 1:
            self._file = _open_temporary(spill.folder)
            try:
                self._write_pairs(self._file, find_windows)
            except BaseException:
                self.free_disk()
                raise

    def read_chunks(self, number: int) -> Iterator[tuple[Tokens, Rows]]:
        """Yield tokens of a partition with their rows, in the order of the rows."""
        if self._file is None:
            for row, tokens in self._spill.read_chunks():
                yield tokens, np.arange(row, row + len(tokens))
            return
        place, end = (int(self._ends[number - 1]) if number else 0), int(self._ends[number])
        while place < end:
            self._file.seek(PAIR.itemsize * place)
            pairs = np.frombuffer(self._file.read(PAIR.itemsize * min(_CHUNK_KEYS, end - place)), dtype=PAIR)
            yield np.ascontiguousarray(pairs["token"]), pairs["row"].astype(np.intp)
            place += len(pairs)

    def free_disk(self) -> None:
        """Free the disk."""
        if self._file is not None:
            self._file.close()

    def _write_pairs(self, file: BinaryIO, find_windows: Callable[[Tokens], Rows]) -> None:
        count = len(self._ends)
        sizes = np.zeros(count, dtype=np.int64)
        for _, tokens in self._spill.read_chunks():
            sizes += np.bincount(find_windows(tokens), minlength=count)
        self._ends = np.cumsum(sizes)
        places = self._ends - sizes
        for row, tokens in self._spill.read_chunks():
            windows = find_windows(tokens)
            # Of so few bits, numpy sorts in linear time.
            order = np.argsort(windows.astype(np.uint16 if count <= 1 << 16 else np.uint32), kind="stable")
            pairs = np.empty(len(tokens), dtype=PAIR)
            pairs["token"], pairs["row"] = tokens[order], order + row
            sizes = np.bincount(windows, minlength=count)
            ends = np.cumsum(sizes)
            for number in np.flatnonzero(sizes).tolist():
                file.seek(PAIR.itemsize * int(places[number]))
                write_all(file, pairs[ends[number] - sizes[number] : ends[number]])
            places += sizes


@contextlib.contextmanager
def divide_tokens(
    spill: KeySpill, count: int, find_windows: Callable[[Tokens], Rows]
) -> Generator[Partitions]:
    """Divide tokens into partitions, whose disk is free afterwards."""
    partitions = Partitions(spill, count, find_windows)
    try:
        yield partitions
    finally:
        partitions.free_disk()


def _open_temporary(folder: Path) -> BinaryIO:
    # Not in the memory of a /tmp: the folder is where the table goes.
    return tempfile.TemporaryFile(dir=folder, buffering=0)


def write_index(file: BinaryIO, spill: KeySpill, *, are_keys: bool) -> WrittenIndex:
    """Write the index at the file's position; `are_keys`: the tokens are integer keys, which may be dense."""
    first, span = spill.find_range()
    if _is_dense(spill, span, are_keys=are_keys):
        return _write_dense(file, spill, first, span)
    return _write_buckets(file, spill, are_keys=are_keys)


def _is_dense(spill: KeySpill, span: int, *, are_keys: bool) -> bool:
    return are_keys and span <= DENSE_FACTOR * spill.count + 1024


def _count_homes(spill: KeySpill) -> int:
    return max(-(-spill.count // _KEYS_PER_BUCKET), 1)


def measure_index(spill: KeySpill, *, are_keys: bool) -> int:
    """Return the bytes of the index that `write_index` writes, without a few for keys that find their bucket full."""
    _, span = spill.find_range()
    if _is_dense(spill, span, are_keys=are_keys):
        return 4 * span
    return 8 * BUCKET_WORDS * _count_homes(spill)


def estimate_index(rows: int, *, are_keys: bool) -> int:
    """Return the most bytes of the index of `rows` keys, with the tokens and, if it has several windows, their partitions."""
    entries = DENSE_FACTOR * rows + 1024 if are_keys else rows
    pair_bytes = PAIR.itemsize if entries > WINDOW_KEYS else 0
    return rows * (8 * BUCKET_WORDS // _KEYS_PER_BUCKET + 8 + pair_bytes)


def write_all(file: BinaryIO, values: npt.NDArray[Any]) -> None:
    """Write an array; a file without buffer may take less at a time."""
    remaining = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
    while remaining:
        remaining = remaining[file.write(remaining) or 0 :]


def _write_dense(file: BinaryIO, spill: KeySpill, first: int, span: int) -> WrittenIndex:
    repeated_keys: list[int] = []
    count = 0
    size = WINDOW_KEYS

    def find_windows(tokens: Tokens) -> Rows:
        return ((tokens.view(np.int64) - first) // size).astype(np.intp)

    with divide_tokens(spill, -(-span // size), find_windows) as partitions:
        for number, start in enumerate(range(0, span, size)):
            window = np.full(min(size, span - start), EMPTY, dtype=np.uint32)
            is_repeated = np.zeros(len(window), dtype=bool)
            for tokens, token_rows in partitions.read_chunks(number):
                positions, rows = tokens.view(np.int64) - (first + start), token_rows.astype(np.uint32)
                is_repeated[positions[window[positions] != EMPTY]] = True
                window[positions] = rows
                is_repeated[positions[window[positions] != rows]] = True
            count += int(is_repeated.sum())
            repeated_keys += [first + start + int(place) for place in np.flatnonzero(is_repeated)[:EXAMPLES]]
            write_all(file, np.where(window == EMPTY, np.uint32(spill.count), window))
    examples = tuple(RepeatedToken(key, key, (0, 0)) for key in repeated_keys[:EXAMPLES])
    return WrittenIndex(first, span, count, examples)


def _write_buckets(file: BinaryIO, spill: KeySpill, *, are_keys: bool) -> WrittenIndex:
    homes = _count_homes(spill)
    step = max(WINDOW_KEYS // _KEYS_PER_BUCKET, 1)
    writer = _BucketWriter(file, are_keys=are_keys)

    def find_windows(tokens: Tokens) -> Rows:
        return choose_homes(mix_tokens(tokens), homes) // step

    with divide_tokens(spill, -(-homes // step), find_windows) as partitions:
        for number, start in enumerate(range(0, homes, step)):
            tokens, rows = _read_window(partitions, number)
            writer.write_window(tokens, rows, homes, start, min(start + step, homes))
    writer.write_overflow(homes)
    return WrittenIndex(None, homes, writer.duplicates, tuple(writer.examples))


def _read_window(partitions: Partitions, number: int) -> tuple[Tokens, Rows]:
    """Return the tokens of a partition with their rows, in the order of their mixed tokens; of each, at least the first two."""
    tokens, rows = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.intp)
    limit = 2 * WINDOW_KEYS
    for more_tokens, more_rows in partitions.read_chunks(number):
        tokens, rows = np.concatenate([tokens, more_tokens]), np.concatenate([rows, more_rows])
        if len(tokens) > limit:
            # A key in millions of rows: two of them suffice to refuse it.
            tokens, rows = _keep_pairs(tokens, rows)
            limit = max(limit, 2 * len(tokens))
    order = np.argsort(mix_tokens(tokens), kind="stable")
    return tokens[order], rows[order]


def _keep_pairs(tokens: Tokens, rows: Rows) -> tuple[Tokens, Rows]:
    """Return the tokens without those that have come twice before, and their rows, in the same order."""
    order = np.argsort(tokens, kind="stable")
    ordered = tokens[order]
    is_kept = np.ones(len(ordered), dtype=bool)
    is_kept[2:] = ordered[2:] != ordered[:-2]
    places = np.sort(order[is_kept])
    return tokens[places], rows[places]


class _BucketWriter:
    """Gives each token the first free slot from its home on: slots are written in order, and none is moved.

    Tokens come in the order of their homes, so slot i is max(8 * home i, slot i-1 + 1), a running maximum.
    """

    def __init__(self, file: BinaryIO, *, are_keys: bool) -> None:
        self._file = file
        self._are_keys = are_keys
        self._next_slot = 0
        self._tokens = np.empty(0, dtype=np.uint64)
        self._rows = np.empty(0, dtype=np.intp)
        self._slots = np.empty(0, dtype=np.intp)
        self.duplicates = 0
        self.examples: list[RepeatedToken] = []

    def write_window(self, tokens: Tokens, rows: Rows, homes: int, start: int, end: int) -> None:
        """Write the buckets [start, end), whose tokens these are; what they have no room for is written with the next ones."""
        self._record_duplicates(tokens, rows)
        steps = np.arange(len(tokens))
        firsts = SLOTS * choose_homes(mix_tokens(tokens), homes) - steps
        slots = np.maximum(np.maximum.accumulate(firsts), self._next_slot) + steps if len(steps) else steps
        if len(slots):
            self._next_slot = int(slots[-1]) + 1
        self._tokens = np.concatenate([self._tokens, tokens])
        self._rows = np.concatenate([self._rows, rows])
        self._slots = np.concatenate([self._slots, slots])
        self._write_buckets(start, end)

    def _record_duplicates(self, tokens: Tokens, rows: Rows) -> None:
        places = np.flatnonzero(tokens[1:] == tokens[:-1])
        # Of equal tokens, the first two rows: the order is stable.
        places = places[np.append(True, np.diff(places) > 1)[: len(places)]]
        self.duplicates += len(places)
        ranks = tokens.view(np.int64)[places] if self._are_keys else rows[places]
        for place in places[np.argsort(ranks)[:EXAMPLES]].tolist():
            key = int(tokens.view(np.int64)[place])
            pair = int(rows[place]), int(rows[place + 1])
            self.examples.append(RepeatedToken(key if self._are_keys else pair[0], key, pair))
        self.examples = sorted(self.examples)[:EXAMPLES]

    def write_overflow(self, start: int) -> None:
        """Write what the last bucket had no room for, and an empty bucket at which every search ends."""
        self._write_buckets(start, max(-(-self._next_slot // SLOTS), start) + 1)

    def _write_buckets(self, start: int, end: int) -> None:
        count = int(np.searchsorted(self._slots, SLOTS * end))
        content = np.zeros((end - start, BUCKET_WORDS), dtype=np.uint64)
        rows = content.view(np.uint32)
        rows[:, 2 * SLOTS :] = EMPTY
        buckets, slots = np.divmod(self._slots[:count] - SLOTS * start, SLOTS)
        content[buckets, slots] = self._tokens[:count]
        rows[buckets, 2 * SLOTS + slots] = self._rows[:count]
        write_all(self._file, content)
        self._tokens, self._rows = self._tokens[count:], self._rows[count:]
        self._slots = self._slots[count:]
