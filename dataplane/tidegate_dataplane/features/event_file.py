"""Events of a file as a source of the feature engine, for the features that a past request would have had."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # publishes no types
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from tidegate_dataplane.contract import Entity, EntityKeyType, EventField, EventFieldType, EventStream
from tidegate_dataplane.event_store.rows import CELL_TYPES, TIME, order_cells
from tidegate_dataplane.event_store.times import parse_moment
from tidegate_dataplane.features import hashing
from tidegate_dataplane.features.columns import decode_column, is_string
from tidegate_dataplane.features.errors import FeatureError
from tidegate_dataplane.features.events import Array, Positions, SelectedEvents, Times, split_cells


@dataclass(frozen=True, slots=True)
class EventColumns:
    """Events in any order, [m] each: keys, times in milliseconds since 1970, and fields by name.

    Strings are bytes objects, as keys of the engine's inputs are.
    """

    keys: Array
    times: Times
    fields: Mapping[str, Array]

    def select_events(self, mask: Array) -> "EventColumns":
        """Return the events for which `mask` [m] is true."""
        fields = {name: values[mask] for name, values in self.fields.items()}
        return EventColumns(self.keys[mask], self.times[mask], fields)

    @classmethod
    def join_parts(cls, parts: Sequence["EventColumns"], stream: EventStream) -> "EventColumns":
        """Return the events of all parts, which have the fields of the stream."""
        empty = np.empty(0, dtype=np.int64)
        return cls(
            np.concatenate([part.keys for part in parts] or [empty]),
            np.concatenate([part.times for part in parts] or [empty]),
            {
                field.name: np.concatenate([part.fields[field.name] for part in parts] or [empty])
                for field in stream.fields
            },
        )


class RecordedEvents:
    """All events of one stream, in memory, by key and time."""

    def __init__(self, stream: EventStream, entity: Entity, events: EventColumns) -> None:
        """Sort events by their keys and times."""
        keys = events.keys
        distinct, owners = np.unique(keys, return_inverse=True)
        cells = _make_cells(stream, events)
        by_time = order_cells(cells)
        order = by_time[np.argsort(owners[by_time], kind="stable")]
        self._times, self._columns = split_cells(cells[order], stream.fields)
        counts = np.bincount(owners, minlength=len(distinct))
        # An unknown key has no events, behind all others.
        self._ends = np.append(np.cumsum(counts), len(keys))
        self._starts = np.append(self._ends[:-1] - counts, len(keys))
        self._keys = distinct
        is_text = entity.type is EntityKeyType.STRING
        self._places = {key: place for place, key in enumerate(distinct.tolist())} if is_text else None

    def read_events(self, keys: Array) -> SelectedEvents:
        """Return the events of each key; int64 or bytes objects [n] in."""
        places = self._find_places(keys)
        return SelectedEvents(self._times, self._columns, self._starts[places], self._ends[places])

    def _find_places(self, keys: Array) -> Positions:
        """Return the place of each key among the distinct ones, [n]; their number for an unknown one."""
        unknown = len(self._keys)
        if self._places is not None:
            text_places = map(self._places.get, keys.tolist(), repeat(unknown))
            return np.fromiter(text_places, dtype=np.intp, count=len(keys))
        places = np.searchsorted(self._keys, keys)
        # Behind the last key nothing is equal.
        is_equal = np.append(self._keys, 0)[places] == keys
        return np.where(is_equal & (places < unknown), places, unknown)


def list_event_columns(stream: EventStream, entity: Entity) -> list[str]:
    """Return the columns of a file of events: the key, the time and the fields of the stream."""
    return list(dict.fromkeys([entity.key, stream.event_time, *(field.name for field in stream.fields)]))


def read_events(path: Path, stream: EventStream, entity: Entity) -> RecordedEvents:
    """Read the events of a stream from Parquet files: one file, or all in a folder.

    The columns have the names of the stream's fields, its key and its event time.

    Raises:
        FeatureError: a column is missing, has another type or nulls.
    """
    names = list_event_columns(stream, entity)
    try:
        available = pq.ParquetDataset(path).schema.names
        if missing := [name for name in names if name not in available]:
            raise FeatureError(
                f"the events of {stream.name!r} have no column {missing[0]!r}; they have {', '.join(available[:50])}"
            )
        table = pq.read_table(path, columns=names)
    except (pa.ArrowException, OSError) as error:
        raise FeatureError(f"the events of {stream.name!r} cannot be read as Parquet: {error}") from error
    return RecordedEvents(stream, entity, read_event_columns(table, stream, entity))


def read_event_columns(table: Any, stream: EventStream, entity: Entity) -> EventColumns:
    """Return the events of an Arrow table with the columns of the stream.

    Raises:
        FeatureError: a column has another type or nulls.
    """
    key_type = EventFieldType.STRING if entity.type is EntityKeyType.STRING else EventFieldType.INT64
    return EventColumns(
        _read_column(table, stream, EventField(name=entity.key, type=key_type)),
        _read_times(table, stream),
        {field.name: _read_column(table, stream, field) for field in stream.fields},
    )


def parse_times(column: Any, name: str) -> Times:
    """Return milliseconds since 1970 of a column of timestamps, integers in milliseconds, or texts in RFC 3339.

    Raises:
        FeatureError: it holds something else, or nulls.
    """
    if column.null_count:
        raise FeatureError(f"column {name!r} has {column.null_count} nulls")
    kind = column.type
    if pa.types.is_timestamp(kind):
        milliseconds = pc.cast(column, pa.timestamp("ms", tz=kind.tz), safe=False)
        return np.asarray(pc.cast(milliseconds, pa.int64()))
    if pa.types.is_integer(kind):
        return np.asarray(pc.cast(column, pa.int64()))
    if is_string(kind):
        return np.array([_parse_text(text, name) for text in column.to_pylist()], dtype=np.int64)
    raise FeatureError(f"column {name!r} holds {kind}, and times are needed")


def _parse_text(text: str, name: str) -> int:
    time_ms = parse_moment(text)
    if time_ms is None:
        raise FeatureError(f"column {name!r} has {text!r}, which is no time in RFC 3339 with a time zone")
    return time_ms


def _make_cells(stream: EventStream, events: EventColumns) -> Array:
    """Return the rows of all events in the form of the store, [m, 1 + fields]."""
    cells = np.empty((len(events.times), 1 + len(stream.fields)), dtype=TIME)
    cells[:, 0] = events.times
    for index, field in enumerate(stream.fields, 1):
        values = events.fields[field.name]
        if field.type is EventFieldType.STRING:
            values = hashing.hash_strings(values.tolist())
        cells[:, index] = values.astype(CELL_TYPES[field.type]).view(TIME)
    return cells


def _read_times(table: Any, stream: EventStream) -> Times:
    return parse_times(table.column(stream.event_time).combine_chunks(), stream.event_time)


def _read_column(table: Any, stream: EventStream, field: EventField) -> Array:
    column = decode_column(table.column(field.name))
    place = f"the events of {stream.name!r}, column {field.name!r}"
    if column.null_count:
        raise FeatureError(f"{place}: {column.null_count} nulls; every event has every field")
    kind = column.type
    if field.type is EventFieldType.STRING:
        if not (is_string(kind) or pa.types.is_binary(kind)):
            raise FeatureError(f"{place} holds {kind}, and strings are needed")
        texts = np.empty(len(column), dtype=object)
        texts[:] = pc.cast(column, pa.large_binary()).to_pylist()
        return texts
    integral = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    if not integral and not (pa.types.is_floating(kind) and field.type is EventFieldType.FLOAT64):
        raise FeatureError(f"{place} holds {kind}, and {field.type} is needed")
    target = pa.int64() if field.type is EventFieldType.INT64 else pa.float64()
    try:
        values = np.asarray(pc.cast(column, target))
    except pa.ArrowInvalid as error:
        raise FeatureError(f"{place}: {error}") from error
    if not np.isfinite(values).all():
        raise FeatureError(f"{place}: NaN and infinite numbers are no values of events")
    return values
