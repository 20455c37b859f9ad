"""Compute a plan's features for arrays of entity keys, from tables, events and the request itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias, assert_never

import numpy as np

from tidegate_dataplane.contract import (
    AS_OF,
    Bucketize,
    Clip,
    Cross,
    Dwell,
    EventFieldType,
    EventFilter,
    EventSequence,
    EventSession,
    EventStream,
    Feature,
    FeaturePlan,
    FieldRef,
    Hash,
    Log,
    Lookup,
    Ratio,
    TimeSince,
    ValueOrigin,
    Window,
    WindowRef,
    list_filters,
    list_references,
)
from tidegate_dataplane.features import hashing, transforms, windows
from tidegate_dataplane.features.errors import FeatureError
from tidegate_dataplane.features.events import (
    Array,
    EventReader,
    EventSource,
    Positions,
    SelectedEvents,
    SeparateSources,
    Times,
)
from tidegate_dataplane.features.inputs import check_field, check_keys, check_times, get_input
from tidegate_dataplane.features.mapped_table import MappedTable, TableRecords, map_tables
from tidegate_dataplane.features.references import EventOperation, check_fields
from tidegate_dataplane.features.table_layout import find_key_tables, name_feature, name_hash


@dataclass(frozen=True, slots=True)
class _VisibleEvents:
    """The events of one stream that rows see: `events` and `as_of` have one entry for rows that see the same.

    `positions` [n] has the entry of each row.
    """

    events: SelectedEvents
    as_of: Times
    positions: Positions


WindowKey: TypeAlias = tuple[str, EventFilter | None, int, int]
"""Stream, filter, and the `over_ms` and `every_ms` of a window."""


@dataclass(slots=True)
class _Call:
    """What one call computes from, for its n rows; `results` has the features so far, [n, k].

    `filtered` and `windows` have the events, and `hashes` the hashes of keys and fields, that features have read so far, since
    several often read the same.
    """

    keys: Mapping[str, Array]
    records: Mapping[str, TableRecords]
    events: Mapping[str, _VisibleEvents]
    request: Mapping[str, Array]
    results: dict[str, Array] = field(default_factory=dict[str, Array])
    filtered: dict[tuple[str, EventFilter], _VisibleEvents] = field(
        default_factory=dict[tuple[str, EventFilter], _VisibleEvents]
    )
    windows: dict[WindowKey, SelectedEvents] = field(default_factory=dict[WindowKey, SelectedEvents])
    hashes: dict[FieldRef, hashing.Hashes] = field(default_factory=dict[FieldRef, hashing.Hashes])


class FeatureEngine:
    """Computes one plan over its tables and events. Online and offline use differ only in where these come from.

    Everything that depends on a table's row alone is computed once, when the table is converted: a request then costs one
    search and one gather per table. Features over events are computed for each row, as of its time.
    """

    def __init__(
        self,
        plan: FeaturePlan,
        tables: Mapping[str, MappedTable],
        events: Mapping[str, EventSource] | EventReader | None = None,
    ) -> None:
        """`events` has the source of each stream of the plan, by name, or reads them all at once.

        Raises:
            FeatureError: the plan and the tables or the streams do not fit.
        """
        self._plan = plan
        self._tables = tables
        self._events = (
            SeparateSources(events or {}) if events is None or isinstance(events, Mapping) else events
        )
        if missing := {stream.name for stream in plan.streams} - self._events.stream_names:
            raise FeatureError(f"stream {min(missing)!r} has no events here")
        check_fields(plan)
        self._filters = _parse_filters(plan)
        self._entities = {entity.name: entity for entity in plan.entities}
        self._key_tables = find_key_tables(plan)

    @classmethod
    def from_files(
        cls,
        plan: FeaturePlan,
        paths: Mapping[str, Path],
        events: Mapping[str, EventSource] | EventReader | None = None,
        instances: int = 1,
    ) -> "FeatureEngine":
        """Make the engine from the converted file of each table, by name, and the events of each stream.

        `instances` processes of a pod do so.

        Raises:
            FeatureError: the plan and the tables or the streams do not fit.
        """
        check_fields(plan)
        return cls(plan, map_tables(plan, paths, instances), events)

    def compute_features(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return every feature, [n, k], for `inputs`, [n] or [n, 1] each, named as the plan's inputs.

        Features over events are those of the time in the input AS_OF, in milliseconds since 1970, which a plan with streams
        needs.

        Raises:
            FeatureError: an input is missing, of another type or of another length than the others.
        """
        call = self._begin_call(inputs)
        for feature in self._plan.features:
            call.results[feature.name] = self._compute_feature(feature, call)
        return call.results

    def _begin_call(self, inputs: Mapping[str, Array]) -> _Call:
        keys: dict[str, Array] = {}
        input_names = {spec.name for spec in self._plan.inputs}
        for entity in self._entities.values():
            if entity.key in input_names:
                keys[entity.name] = check_keys(entity, get_input(inputs, entity.key))
        request = {
            declared.name: check_field(declared, get_input(inputs, declared.name))
            for declared in self._plan.request
        }
        columns = {**keys, **request}
        if self._plan.streams:
            columns[AS_OF] = check_times(get_input(inputs, AS_OF))
        lengths = {name: len(values) for name, values in columns.items()}
        if len(set(lengths.values())) > 1:
            raise FeatureError(f"the inputs differ in length: {lengths}")
        records = {
            table.name: self._tables[table.name].read_records(keys[table.entity])
            for table in self._plan.tables
            if table.entity in keys
        }
        events = self._select_events(keys, columns[AS_OF]) if self._plan.streams else {}
        return _Call(keys, records, events, request)

    def _select_events(self, keys: Mapping[str, Array], times: Times) -> dict[str, _VisibleEvents]:
        """Return the events of each stream that each row sees; `keys` [n] are those of each entity."""
        streams = self._plan.streams
        distinct = {entity: _find_distinct(keys[entity]) for entity in {stream.entity for stream in streams}}
        read = self._events.read_streams({stream.name: distinct[stream.entity][0] for stream in streams})
        return {
            stream.name: _limit_events(stream, read[stream.name], distinct[stream.entity][1], times)
            for stream in streams
        }

    def _compute_feature(self, feature: Feature, call: _Call) -> Array:
        match feature:
            case Lookup():
                return _read_stored(feature, call)
            case Bucketize() if feature.field.table is not None:
                return _read_stored(feature, call)
            case Bucketize():
                values = self._read_values(feature.field, call)
                present = np.ones(len(values), dtype=bool)
                return transforms.assign_buckets(values, present, feature.boundaries)[:, None]
            case Hash(padded=True):
                hashes = self._hash_values(feature.field, call)
                return hashing.to_padded_bucket(hashes, feature.buckets)[:, None]
            case Hash() | Cross():
                parts = [self._hash_values(reference, call) for reference in list_references(feature)]
                return hashing.to_bucket(hashing.combine_hashes(parts), feature.buckets)[:, None]
            case EventSequence() | Window() | Ratio() | TimeSince() | EventSession() | Dwell():
                return _narrow_floats(self._compute_over_events(feature, call))
            case Log():
                return _narrow_floats(transforms.take_logarithm(self._read_values(feature.field, call)))[
                    :, None
                ]
            case Clip():
                values = self._read_values(feature.field, call)
                return _narrow_floats(transforms.clip_values(values, feature.minimum, feature.maximum))[
                    :, None
                ]
            case _:
                assert_never(feature)

    def _compute_over_events(self, feature: EventOperation, call: _Call) -> Array:
        match feature:
            case EventSequence():
                visible = self._filter_events(feature.field.stream or "", feature.filter, call)
                return windows.list_sequence(visible.events, feature)[visible.positions]
            case Window():
                return self._aggregate_window(feature.window, call, feature.default)[:, None]
            case Ratio():
                return self._divide_windows(feature, call)[:, None]
            case TimeSince():
                visible = self._filter_events(feature.stream, feature.filter, call)
                values = windows.measure_age(visible.events, visible.as_of, feature.default)[:, None]
            case EventSession():
                visible = call.events[feature.stream]
                values = windows.measure_session(
                    visible.events, visible.as_of, feature.gap_ms, feature.measure
                )[:, None]
            case Dwell():
                visible = call.events[feature.stream]
                values = windows.list_dwell_times(
                    visible.events, visible.as_of, feature.last, feature.limit_ms
                )
            case _:
                assert_never(feature)
        return values[visible.positions]

    def _aggregate_window(self, window: WindowRef, call: _Call, default: str = "0") -> Array:
        stream = window.field.stream or ""
        visible = self._filter_events(stream, window.filter, call)
        key = (stream, window.filter, window.over_ms, window.every_ms)
        if key not in call.windows:
            call.windows[key] = windows.limit_to_window(visible.events, window, visible.as_of)
        values = windows.aggregate_events(call.windows[key], window.field.column, window.aggregate, default)
        return values[visible.positions]

    def _divide_windows(self, feature: Ratio, call: _Call) -> Array:
        numerator = self._aggregate_window(feature.numerator, call) + feature.prior * feature.weight
        denominator = self._aggregate_window(feature.denominator, call) + feature.weight
        defined = denominator != 0
        return np.where(defined, numerator / np.where(defined, denominator, 1.0), feature.prior)

    def _filter_events(self, stream: str, event_filter: EventFilter | None, call: _Call) -> _VisibleEvents:
        """Return the events of a stream that a filter lets through, found once for all features of a call."""
        visible = call.events[stream]
        if event_filter is None:
            return visible
        key = (stream, event_filter)
        if key not in call.filtered:
            events = visible.events.select_values(event_filter.column, self._filters[key])
            call.filtered[key] = replace(visible, events=events)
        return call.filtered[key]

    def _read_values(self, reference: FieldRef, call: _Call) -> Array:
        """Return the key, the field of the request or the feature that a reference names, [n]."""
        if reference.origin is ValueOrigin.REQUEST:
            return call.request[reference.column]
        if reference.origin is ValueOrigin.FEATURE:
            return call.results[reference.column][:, 0]
        return call.keys[reference.entity]

    def _hash_values(self, reference: FieldRef, call: _Call) -> hashing.Hashes:
        if reference.table is not None:
            return call.records[reference.table].values[name_hash(reference.column)]
        if reference not in call.hashes:
            call.hashes[reference] = self._compute_hashes(reference, call)
        return call.hashes[reference]

    def _compute_hashes(self, reference: FieldRef, call: _Call) -> hashing.Hashes:
        values = self._read_values(reference, call)
        if values.dtype != np.object_:
            return hashing.hash_numbers(values)
        if reference.origin is not None or reference.entity not in self._key_tables:
            return hashing.hash_strings(values.tolist())
        table = self._key_tables[reference.entity]
        records = call.records[table]
        hashes = records.values[name_hash(self._entities[reference.entity].key)]
        unknown = np.flatnonzero(records.rows == records.row_count)
        if not len(unknown):
            return hashes
        hashes = hashes.copy()
        hashes[unknown] = hashing.hash_strings(values[unknown].tolist())
        return hashes


def _read_stored(feature: Lookup | Bucketize, call: _Call) -> Array:
    return call.records[feature.field.table or ""].values[name_feature(feature.name)]


def _limit_events(
    stream: EventStream, events: SelectedEvents, positions: Positions, times: Times
) -> _VisibleEvents:
    """Return the events that each row sees: those that are not expired, at most as many as the stream stores."""
    if (times[1:] == times[:-1]).all():
        times = times[: len(events.starts)]
    else:
        events, positions = events.take_keys(positions), np.arange(len(times))
    visible = events.limit_times(times - stream.ttl_ms, times).limit_counts(stream.max_events)
    return _VisibleEvents(visible, times, positions)


def _narrow_floats(values: Array) -> Array:
    """Return floating-point numbers as float32, the type of such features, and integers unchanged."""
    if values.dtype != np.float64:
        return values
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def _parse_filters(plan: FeaturePlan) -> dict[tuple[str, EventFilter], Array]:
    """Return the values that each filter lets through, in the type of its column."""
    types = {(stream.name, field.name): field.type for stream in plan.streams for field in stream.fields}
    filters: dict[tuple[str, EventFilter], Array] = {}
    for feature in plan.features:
        for stream, event_filter in list_filters(feature):
            kind = types.get((stream, event_filter.column))
            if kind is EventFieldType.STRING:
                filters[stream, event_filter] = hashing.hash_strings(
                    value.encode() for value in event_filter.values
                )
            elif kind is EventFieldType.INT64:
                filters[stream, event_filter] = np.array(
                    [int(value) for value in event_filter.values], dtype=np.int64
                )
            else:
                raise FeatureError(
                    f"feature {feature.name!r} filters by {event_filter.column!r} of stream {stream!r}, which must be an int64 or a "
                    "string"
                )
    return filters


def _find_distinct(keys: Array) -> tuple[Array, Positions]:
    """Return the distinct keys, and for each row the position of its key among them."""
    if len(keys) and keys.dtype != np.object_ and (keys == keys[0]).all():
        return keys[:1], np.zeros(len(keys), dtype=np.intp)
    distinct, positions = np.unique(keys, return_inverse=True)
    return distinct, positions.reshape(-1).astype(np.intp, copy=False)
