"""Compile streams of events, and the operations that read them."""

from datetime import timedelta
from typing import Final, TypeAlias

from tidegate.api.durations import parse_duration
from tidegate.api.event_streams import SourceStream
from tidegate.api.feature_compute import FeatureSource
from tidegate.api.feature_operations import (
    EventWindow,
    RatioOperation,
    SequenceOperation,
    TimeSinceOperation,
    WindowOperation,
)
from tidegate.errors import InvalidSpecError
from tidegate.planning.features.field_scope import EventColumn, FieldScope, make_output
from tidegate.resources.brokers import make_kafka_order
from tidegate_dataplane import contract
from tidegate_dataplane.contract import Aggregate, EventFieldType

EventOperation: TypeAlias = SequenceOperation | WindowOperation | RatioOperation | TimeSinceOperation

_MILLISECOND: Final = timedelta(milliseconds=1)
_COUNTS: Final = frozenset({Aggregate.COUNT, Aggregate.DISTINCT})
_DTYPES: Final = {EventFieldType.INT64: "INT64", EventFieldType.FLOAT64: "FP32"}


def make_event_stream(source: FeatureSource) -> contract.EventStream | None:
    """Return the order to read a source; None for a table."""
    stream = source.stream
    if stream is None:
        return None
    return contract.EventStream(
        name=source.name,
        entity=source.entity,
        nats=_make_nats_order(stream),
        kafka=make_kafka_order(stream.kafka) if stream.kafka is not None else None,
        event_time=stream.event_time,
        fields=tuple(contract.EventField(name=field.name, type=field.type) for field in stream.fields),
        lateness_ms=_to_milliseconds(stream.lateness),
        ttl_ms=_to_milliseconds(stream.ttl),
        max_events=stream.max_events,
    )


def compile_event_operation(
    name: str, operation: EventOperation, scope: FieldScope, path: str
) -> tuple[contract.Feature, contract.TensorSpec]:
    """Return a feature over events with its output; `path` is the operation's place in the spec.

    Raises InvalidSpecError for a field that the operation cannot read, or a bound beyond those of its stream.
    """
    match operation:
        case SequenceOperation():
            sequence, dtype = _compile_sequence(name, operation, scope, path)
            return sequence, make_output(name, dtype, operation.last)
        case WindowOperation():
            window, dtype = _compile_window(name, operation, scope, path)
            return window, make_output(name, dtype)
        case RatioOperation():
            return _compile_ratio(name, operation, scope, path), make_output(name, "FP32")
        case TimeSinceOperation(source=stream, default=default):
            entity = scope.find_entity(stream, f"{path}.source")
            since = contract.TimeSince(name=name, entity=entity, stream=stream, default=float(default))
            return since, make_output(name, "FP32")


def _compile_sequence(
    name: str, sequence: SequenceOperation, scope: FieldScope, path: str
) -> tuple[contract.EventSequence, str]:
    """Return the operation and the type of its output.

    Raises InvalidSpecError for a string without buckets, for more events than the stream stores, and for padding that the
    type does not have.
    """
    column = scope.resolve_event_field(sequence.field, f"{path}.field")
    if sequence.last > column.stream.max_events:
        message = f"must be at most maxEvents of stream {column.ref.stream}, {column.stream.max_events}"
        raise InvalidSpecError(message, path=f"{path}.last")
    if sequence.buckets is None and column.type is EventFieldType.STRING:
        message = f"is required, because '{sequence.field}' is a string"
        raise InvalidSpecError(message, path=f"{path}.buckets")
    dtype = "INT64" if sequence.buckets is not None else _DTYPES[column.type]
    _check_whole(sequence.pad, dtype, f"{path}.pad")
    operation = contract.EventSequence(
        name=name, field=column.ref, last=sequence.last, pad=sequence.pad, buckets=sequence.buckets
    )
    return operation, dtype


def _compile_window(
    name: str, window: WindowOperation, scope: FieldScope, path: str
) -> tuple[contract.Window, str]:
    """Return the operation and the type of its output.

    Raises InvalidSpecError as `_compile_events` does, and for a default that the type does not have.
    """
    ref, dtype = _compile_events(window, scope, path)
    _check_whole(window.default, dtype, f"{path}.default")
    return contract.Window(name=name, window=ref, default=window.default), dtype


def _compile_ratio(name: str, ratio: RatioOperation, scope: FieldScope, path: str) -> contract.Ratio:
    """Return the operation; raises InvalidSpecError as `_compile_events` does."""
    numerator, _ = _compile_events(ratio.numerator, scope, f"{path}.numerator")
    denominator, _ = _compile_events(ratio.denominator, scope, f"{path}.denominator")
    return contract.Ratio(
        name=name,
        numerator=numerator,
        denominator=denominator,
        prior=float(ratio.prior),
        weight=float(ratio.weight),
    )


def _compile_events(window: EventWindow, scope: FieldScope, path: str) -> tuple[contract.WindowRef, str]:
    """Return the window and the type of its aggregate.

    Raises InvalidSpecError for a window that is longer than events are stored, and for arithmetic with strings.
    """
    column = scope.resolve_event_field(window.field, f"{path}.field")
    # A window that ends up to `every` before the request begins as much earlier.
    reach = parse_duration(window.over) + parse_duration(window.every or "0s")
    if reach > parse_duration(column.stream.ttl):
        length = "over and every together" if window.every is not None else "over"
        message = f"{length} must not be longer than ttl of stream {column.ref.stream}, {column.stream.ttl}"
        raise InvalidSpecError(message, path=f"{path}.over")
    ref = contract.WindowRef(
        field=column.ref,
        aggregate=window.aggregate,
        over_ms=_to_milliseconds(window.over),
        every_ms=_to_milliseconds(window.every) if window.every is not None else 0,
    )
    return ref, _find_dtype(column, window, path)


def _find_dtype(column: EventColumn, window: EventWindow, path: str) -> str:
    if window.aggregate in _COUNTS:
        return "INT64"
    if column.type is EventFieldType.STRING:
        message = f"must be Count or Distinct, because '{window.field}' is a string"
        raise InvalidSpecError(message, path=f"{path}.aggregate")
    return "FP32" if window.aggregate is Aggregate.MEAN else _DTYPES[column.type]


def _check_whole(text: str, dtype: str, path: str) -> None:
    if dtype == "INT64" and "." in text:
        message = "must be a whole number, because the feature is an INT64"
        raise InvalidSpecError(message, path=path)


def _make_nats_order(stream: SourceStream) -> contract.NatsEvents | None:
    nats = stream.nats
    if nats is None:
        return None
    return contract.NatsEvents(
        url=nats.url, stream=nats.stream, subject=nats.subject, secret=nats.secret_name or ""
    )


def _to_milliseconds(text: str) -> int:
    return parse_duration(text) // _MILLISECOND
