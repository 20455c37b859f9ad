"""Events of keys as arrays, whether they come from a pod's store or from a file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tidegate_dataplane.contract import EventField, EventStream
from tidegate_dataplane.event_store.rows import CELL_TYPES, TIME, Cells, count_row_bytes

Array = npt.NDArray[Any]
Positions = npt.NDArray[np.intp]
Times = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SelectedEvents:
    """The events of n keys: those of key i are at the positions starts[i] … ends[i] - 1, the oldest first.

    `times` [m] are milliseconds since 1970; `columns` [m] by field are int64, float64, or uint64 hashes of strings.
    """

    times: Times
    columns: Mapping[str, Array]
    starts: Positions
    ends: Positions

    @property
    def event_counts(self) -> Positions:
        """Return the number of events of each key, [n]."""
        return self.ends - self.starts

    def limit_times(self, after: Times, until: Times) -> "SelectedEvents":
        """Return the events later than `after` and not later than `until`, [n] each."""
        ends = find_first_after(self.times, self.starts, self.ends, until)
        starts = find_first_after(self.times, self.starts, ends, after)
        return replace(self, starts=starts, ends=ends)

    def limit_counts(self, limit: int) -> "SelectedEvents":
        """Return the newest `limit` events of each key."""
        return replace(self, starts=np.maximum(self.starts, self.ends - limit))

    def flatten_positions(self) -> tuple[Positions, Positions]:
        """Return the positions of all events, key by key, and where each key begins among them, [n]."""
        counts = self.event_counts
        offsets = np.cumsum(counts) - counts
        return np.repeat(self.starts - offsets, counts) + np.arange(int(counts.sum())), offsets

    def select_values(self, column: str, values: Array) -> "SelectedEvents":
        """Return the events that have one of the values in a column."""
        flat, _ = self.flatten_positions()
        matches = np.isin(self.columns[column][flat], values)
        owners = np.repeat(np.arange(len(self.starts)), self.event_counts)[matches]
        selected = flat[matches]
        counts = np.bincount(owners, minlength=len(self.starts))
        ends = np.cumsum(counts)
        columns = {name: array[selected] for name, array in self.columns.items()}
        return SelectedEvents(self.times[selected], columns, ends - counts, ends)

    def take_keys(self, positions: Positions) -> "SelectedEvents":
        """Return the events of the keys at `positions`."""
        return replace(self, starts=self.starts[positions], ends=self.ends[positions])


class EventSource(Protocol):
    """Where the events of one stream come from."""

    def read_events(self, keys: Array) -> SelectedEvents:
        """Return the events of each key; int64 or bytes objects [n] in."""
        ...


class EventReader(Protocol):
    """Reads the events of several streams at once."""

    @property
    def stream_names(self) -> frozenset[str]:
        """Return the streams that it reads."""
        ...

    def read_streams(self, keys: Mapping[str, Array]) -> Mapping[str, SelectedEvents]:
        """Return the events of the keys of each stream; int64 or bytes objects [n] in."""
        ...


@dataclass(frozen=True, slots=True)
class SeparateSources:
    """Reads each stream from a source of its own."""

    sources: Mapping[str, EventSource]

    @property
    def stream_names(self) -> frozenset[str]:
        """Return the streams that it reads."""
        return frozenset(self.sources)

    def read_streams(self, keys: Mapping[str, Array]) -> Mapping[str, SelectedEvents]:
        """Return the events of the keys of each stream."""
        return {name: self.sources[name].read_events(values) for name, values in keys.items()}


def split_cells(cells: Cells, fields: Sequence[EventField]) -> tuple[Times, Mapping[str, Array]]:
    """Return the times and the columns of rows [m, 1 + fields]."""
    columns = {
        field.name: cells[:, index].view(CELL_TYPES[field.type]) for index, field in enumerate(fields, 1)
    }
    return cells[:, 0], columns


def join_rows(stream: EventStream, rows_of_keys: Sequence[bytes]) -> SelectedEvents:
    """Return the events in the stored rows of each key."""
    row_bytes = count_row_bytes(stream.fields)
    counts = np.fromiter(map(len, rows_of_keys), dtype=np.intp, count=len(rows_of_keys)) // row_bytes
    cells = np.frombuffer(b"".join(rows_of_keys), dtype=TIME).reshape(-1, 1 + len(stream.fields))
    times, columns = split_cells(cells, stream.fields)
    ends = np.cumsum(counts)
    return SelectedEvents(times, columns, ends - counts, ends)


def find_first_after(times: Times, starts: Positions, ends: Positions, limits: Times) -> Positions:
    """Return for each segment the first position with a time after its limit, else the segment's end; [n] each."""
    filled = np.flatnonzero(starts < ends)
    if not len(filled):
        return starts
    # Most requests are about now, and most windows are longer than what there is: then no search is needed.
    if (times[ends[filled] - 1] <= limits[filled]).all():
        return np.maximum(starts, ends)
    if (times[starts[filled]] > limits[filled]).all():
        return starts
    low, high = starts.copy(), np.maximum(starts, ends)
    while (searching := low < high).any():
        middle = (low + high) >> 1
        before = searching & (times[np.where(searching, middle, 0)] <= limits)
        low = np.where(before, middle + 1, low)
        high = np.where(searching & ~before, middle, high)
    return low
