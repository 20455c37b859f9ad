"""Aggregates and sequences of the events of keys."""

from typing import Any

import numpy as np
import numpy.typing as npt

from tidegate_dataplane.contract import Aggregate, EventSequence, SessionMeasure, WindowRef
from tidegate_dataplane.features import hashing
from tidegate_dataplane.features.events import Positions, SelectedEvents, Times

Values = npt.NDArray[Any]


def limit_to_window(events: SelectedEvents, window: WindowRef, as_of: Times) -> SelectedEvents:
    """Return the events in the window that ends at each row's time `as_of`, [n]."""
    end = as_of - as_of % window.every_ms if window.every_ms else as_of
    return events.limit_times(end - window.over_ms, end)


def aggregate_events(events: SelectedEvents, column: str, aggregate: Aggregate, default: str = "0") -> Values:
    """Return the aggregate of a column for each key, [n]: int64 or float64.

    Of no events, Count, Sum and Distinct are 0 and the others `default`. A sum of int64 wraps around. Floating-point numbers are added in the order of
    events, so that the same events have the same sum to the last bit wherever it is computed.
    """
    counts = events.event_counts
    if aggregate is Aggregate.COUNT:
        return counts.astype(np.int64)
    values = events.columns[column]
    if aggregate is Aggregate.DISTINCT:
        return _count_distinct(events, values)
    present = counts > 0
    if aggregate is Aggregate.LAST:
        aggregates = values[events.ends[present] - 1]
    else:
        aggregates = _reduce_segments(events.take_keys(np.flatnonzero(present)), values, aggregate)
    fill = "0" if aggregate is Aggregate.SUM else default
    result = np.full(len(counts), _parse_number(fill, aggregates.dtype), dtype=aggregates.dtype)
    result[present] = aggregates
    return result


def list_sequence(events: SelectedEvents, feature: EventSequence) -> Values:
    """Return the values of the newest events, the newest first, [n, last]: int64 or float64."""
    positions = events.ends[:, None] - 1 - np.arange(feature.last)
    inside = positions >= events.starts[:, None]
    values = events.columns[feature.field.column][positions[inside]]
    if feature.buckets is not None:
        values = hashing.to_padded_bucket(hashing.hash_numbers(values), feature.buckets)
    result = np.full(positions.shape, _parse_number(feature.pad, values.dtype), dtype=values.dtype)
    result[inside] = values
    return result


def measure_age(events: SelectedEvents, as_of: Times, default: float) -> Values:
    """Return the seconds from the newest event of each key to `as_of`, [n] float64."""
    present = events.event_counts > 0
    result = np.full(len(as_of), default, dtype=np.float64)
    result[present] = (as_of[present] - events.times[events.ends[present] - 1]) / 1000.0
    return result


def measure_session(events: SelectedEvents, as_of: Times, gap_ms: int, measure: SessionMeasure) -> Values:
    """Return the number of events of each key's current session (int64), or its seconds until `as_of` (float64), [n]."""
    present = np.flatnonzero(events.event_counts > 0)
    current = present[as_of[present] - events.times[events.ends[present] - 1] <= gap_ms]
    firsts = _find_session_starts(events.take_keys(current), gap_ms)
    is_count = measure is SessionMeasure.EVENTS
    result = np.zeros(len(as_of), dtype=np.int64 if is_count else np.float64)
    result[current] = (
        events.ends[current] - firsts if is_count else (as_of[current] - events.times[firsts]) / 1000.0
    )
    return result


def list_dwell_times(events: SelectedEvents, as_of: Times, last: int, limit_ms: int) -> Values:
    """Return the seconds from each of the newest events to the next, the newest first, [n, last] float64, padded with 0."""
    positions = events.ends[:, None] - 1 - np.arange(last)
    inside = positions >= events.starts[:, None]
    times = np.zeros(positions.shape, dtype=np.int64)
    times[inside] = events.times[positions[inside]]
    following = np.concatenate([as_of[:, None], times[:, :-1]], axis=1)
    return np.where(inside, np.minimum(following - times, limit_ms) / 1000.0, 0.0)


def _find_session_starts(events: SelectedEvents, gap_ms: int) -> Positions:
    """Return the position of the first event of the last session of each key; each key has events."""
    flat, offsets = events.flatten_positions()
    if not len(flat):
        return offsets
    times = events.times[flat]
    begins = np.ones(len(flat), dtype=bool)
    begins[1:] = times[1:] - times[:-1] > gap_ms
    begins[offsets] = True
    return flat[np.maximum.reduceat(np.where(begins, np.arange(len(flat)), 0), offsets)]


def _parse_number(text: str, dtype: np.dtype[Any]) -> int | float:
    return float(text) if dtype == np.float64 else int(text)


def _reduce_segments(events: SelectedEvents, values: Values, aggregate: Aggregate) -> Values:
    """Return the sum, mean, minimum or maximum of each segment; no segment is empty."""
    if not len(events.starts):
        kind = np.float64 if aggregate is Aggregate.MEAN else values.dtype
        return np.zeros(0, dtype=kind)
    flat, offsets = events.flatten_positions()
    gathered = values[flat]
    if aggregate is Aggregate.MEAN:
        return np.add.reduceat(gathered.astype(np.float64), offsets) / events.event_counts
    if aggregate is Aggregate.MIN:
        return np.minimum.reduceat(gathered, offsets)
    if aggregate is Aggregate.MAX:
        return np.maximum.reduceat(gathered, offsets)
    return np.add.reduceat(gathered, offsets)


def _count_distinct(events: SelectedEvents, values: Values) -> Values:
    flat, _ = events.flatten_positions()
    keys = np.repeat(np.arange(len(events.starts)), events.event_counts)
    gathered = values[flat]
    order = np.lexsort((gathered, keys))
    keys, gathered = keys[order], gathered[order]
    is_new = np.ones(len(keys), dtype=bool)
    is_new[1:] = (keys[1:] != keys[:-1]) | (gathered[1:] != gathered[:-1])
    return np.bincount(keys[is_new], minlength=len(events.starts)).astype(np.int64)
