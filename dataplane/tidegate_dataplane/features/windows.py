"""Aggregates and sequences of the events of keys."""

from typing import Any

import numpy as np
import numpy.typing as npt

from tidegate_dataplane.contract import Aggregate, EventSequence, WindowRef
from tidegate_dataplane.features import hashing
from tidegate_dataplane.features.events import Positions, SelectedEvents, Times

Values = npt.NDArray[Any]


def limit_to_window(events: SelectedEvents, window: WindowRef, as_of: Times) -> SelectedEvents:
    """Return the events in the window that ends at each row's time `as_of`, [n]."""
    end = as_of - as_of % window.every_ms if window.every_ms else as_of
    return events.limit_times(end - window.over_ms, end)


def aggregate_events(
    events: SelectedEvents, column: str, aggregate: Aggregate, default: float | int
) -> Values:
    """Return the aggregate of a column for each key, [n]: int64 or float64.

    Of no events, Count, Sum and Distinct are 0 and the others `default`. Floating-point numbers are added in the order of
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
    fill = 0 if aggregate is Aggregate.SUM else default
    result = np.full(len(counts), fill, dtype=aggregates.dtype)
    result[present] = aggregates
    return result


def list_sequence(events: SelectedEvents, feature: EventSequence) -> Values:
    """Return the values of the newest events, the newest first, [n, last]: int64 or float64."""
    values = events.columns[feature.field.column]
    if feature.buckets is not None:
        values = 1 + hashing.to_bucket(hashing.hash_numbers(values), feature.buckets - 1)
    pad = float(feature.pad) if values.dtype == np.float64 else int(feature.pad)
    positions = events.ends[:, None] - 1 - np.arange(feature.last)
    inside = positions >= events.starts[:, None]
    result = np.full(positions.shape, pad, dtype=values.dtype)
    result[inside] = values[positions[inside]]
    return result


def measure_age(events: SelectedEvents, as_of: Times, default: float) -> Values:
    """Return the seconds from the newest event of each key to `as_of`, [n] float64."""
    present = events.event_counts > 0
    result = np.full(len(as_of), default, dtype=np.float64)
    result[present] = (as_of[present] - events.times[events.ends[present] - 1]) / 1000.0
    return result


def _reduce_segments(events: SelectedEvents, values: Values, aggregate: Aggregate) -> Values:
    """Return the sum, mean, minimum or maximum of each segment, of which none is empty."""
    if not len(events.starts):
        kind = np.float64 if aggregate is Aggregate.MEAN else values.dtype
        return np.zeros(0, dtype=kind)
    flat, offsets = _flatten_segments(events)
    gathered = values[flat]
    if aggregate is Aggregate.MIN:
        return np.minimum.reduceat(gathered, offsets)
    if aggregate is Aggregate.MAX:
        return np.maximum.reduceat(gathered, offsets)
    sums = np.add.reduceat(gathered, offsets)
    return sums / events.event_counts if aggregate is Aggregate.MEAN else sums


def _count_distinct(events: SelectedEvents, values: Values) -> Values:
    flat, _ = _flatten_segments(events)
    keys = np.repeat(np.arange(len(events.starts)), events.event_counts)
    gathered = values[flat]
    order = np.lexsort((gathered, keys))
    keys, gathered = keys[order], gathered[order]
    is_new = np.ones(len(keys), dtype=bool)
    is_new[1:] = (keys[1:] != keys[:-1]) | (gathered[1:] != gathered[:-1])
    return np.bincount(keys[is_new], minlength=len(events.starts)).astype(np.int64)


def _flatten_segments(events: SelectedEvents) -> tuple[Positions, Positions]:
    """Return the positions of all segments one after the other, and where each begins among them."""
    counts = events.event_counts
    offsets = np.cumsum(counts) - counts
    flat = np.repeat(events.starts - offsets, counts) + np.arange(int(counts.sum()))
    return flat, offsets
