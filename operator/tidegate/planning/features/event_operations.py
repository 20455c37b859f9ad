"""Compile streams of events, and the operations that read them."""

from datetime import timedelta
from typing import Final, TypeAlias

from tidegate.api.durations import parse_duration
from tidegate.api.event_streams import SourceStream
from tidegate.api.feature_compute import FeatureSource
from tidegate.api.feature_operations import (
    DwellOperation,
    EventFilterSpec,
    EventWindow,
    RatioOperation,
    SequenceOperation,
    SessionOperation,
    TimeSinceOperation,
    WindowOperation,
)
from tidegate.errors import InvalidSpecError
from tidegate.planning.features.field_scope import EventColumn, FieldScope, make_output
from tidegate.resources.brokers import make_kafka_order
from tidegate_dataplane import contract
from tidegate_dataplane.contract import Aggregate, EventFieldType, SessionMeasure

EventOperation: TypeAlias = (
    SequenceOperation
    | WindowOperation
    | RatioOperation
    | TimeSinceOperation
    | SessionOperation
    | DwellOperation
)

_RESERVED_NUMBERS: Final = range(19_000, 20_000)
_MILLISECOND: Final = timedelta(milliseconds=1)
_INT64: Final = range(-(2**63), 2**63)
_COUNTS: Final = frozenset({Aggregate.COUNT, Aggregate.DISTINCT})
_DTYPES: Final = {EventFieldType.INT64: "INT64", EventFieldType.FLOAT64: "FP32"}


def make_event_stream(source: FeatureSource, key: str, path: str) -> contract.EventStream | None:
    """Return the order to read a source whose entity has the key `key`; None for a table.

    Raises InvalidSpecError for numbers of Protobuf that are not those of the key, the time and the fields.
    """
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
        protobuf_numbers=_number_fields(stream, key, f"{path}.stream.protobuf.numbers"),
    )


def make_dead_letters(source: FeatureSource) -> contract.EventDeadLetters | None:
    """Return where the refused events of a source go; None if they go nowhere."""
    letters = source.stream.dead_letters if source.stream is not None else None
    if letters is None:
        return None
    return contract.EventDeadLetters(source=source.name, target=letters.target_name, reasons=letters.reasons)


def _number_fields(stream: SourceStream, key: str, path: str) -> dict[str, int] | None:
    """Return the number of each field in Protobuf; None for JSON."""
    if stream.protobuf is None:
        return None
    numbers = stream.protobuf.numbers
    names = [key, stream.event_time, *(field.name for field in stream.fields)]
    missing = [name for name in names if name not in numbers]
    if missing:
        message = f"has no number for '{missing[0]}'; give one to {', '.join(dict.fromkeys(names))}"
        raise InvalidSpecError(message, path=path)
    unknown = sorted(numbers.keys() - set(names))
    if unknown:
        message = (
            f"'{unknown[0]}' is not a field of the stream; its fields are {', '.join(dict.fromkeys(names))}"
        )
        raise InvalidSpecError(message, path=path)
    by_number: dict[int, str] = {}
    for name, number in sorted(numbers.items()):
        if number in _RESERVED_NUMBERS:
            raise InvalidSpecError(f"{number} of '{name}' is reserved by Protobuf", path=path)
        if number in by_number:
            raise InvalidSpecError(f"'{by_number[number]}' and '{name}' both have {number}", path=path)
        by_number[number] = name
    return {name: numbers[name] for name in dict.fromkeys(names)}


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
        case TimeSinceOperation(source=source, default=default, filter=event_filter):
            since = contract.TimeSince(
                name=name,
                entity=scope.find_entity(source, f"{path}.source"),
                stream=source,
                default=float(default),
                filter=_compile_filter(event_filter, source, scope, f"{path}.filter"),
            )
            return since, make_output(name, "FP32")
        case SessionOperation(source=source, gap=gap, measure=measure):
            session = contract.EventSession(
                name=name,
                entity=scope.find_entity(source, f"{path}.source"),
                stream=source,
                gap_ms=_to_milliseconds(gap),
                measure=measure,
            )
            return session, make_output(name, "INT64" if measure is SessionMeasure.EVENTS else "FP32")
        case DwellOperation():
            return _compile_dwell(name, operation, scope, path), make_output(name, "FP32", operation.last)


def _compile_sequence(
    name: str, sequence: SequenceOperation, scope: FieldScope, path: str
) -> tuple[contract.EventSequence, str]:
    """Return the operation and the type of its output.

    Raises InvalidSpecError for a string without buckets, for more events than the stream stores, and for padding that the
    type does not have.
    """
    column = scope.resolve_event_field(sequence.field, f"{path}.field")
    _check_last(sequence.last, column.stream, column.ref.stream, f"{path}.last")
    if sequence.buckets is None and column.type is EventFieldType.STRING:
        message = f"is required, because '{sequence.field}' is a string"
        raise InvalidSpecError(message, path=f"{path}.buckets")
    dtype = "INT64" if sequence.buckets is not None else _DTYPES[column.type]
    _check_whole(sequence.pad, dtype, f"{path}.pad")
    operation = contract.EventSequence(
        name=name,
        field=column.ref,
        last=sequence.last,
        pad=sequence.pad,
        buckets=sequence.buckets,
        filter=_compile_filter(sequence.filter, column.ref.stream, scope, f"{path}.filter"),
    )
    return operation, dtype


def _compile_dwell(name: str, dwell: DwellOperation, scope: FieldScope, path: str) -> contract.Dwell:
    """Return the operation; raises InvalidSpecError for more events than the stream stores."""
    source = scope.find_stream_source(dwell.source, f"{path}.source")
    _check_last(dwell.last, source.stream, source.name, f"{path}.last")
    return contract.Dwell(
        name=name,
        entity=source.entity,
        stream=source.name,
        last=dwell.last,
        limit_ms=_to_milliseconds(dwell.limit),
    )


def _check_last(last: int, stream: SourceStream, name: str | None, path: str) -> None:
    if last > stream.max_events:
        raise InvalidSpecError(f"must be at most maxEvents of stream {name}, {stream.max_events}", path=path)


def _compile_filter(
    event_filter: EventFilterSpec | None, stream: str | None, scope: FieldScope, path: str
) -> contract.EventFilter | None:
    """Return the filter; raises InvalidSpecError for another stream's field, and for values that it cannot have."""
    if event_filter is None:
        return None
    column = scope.resolve_event_field(event_filter.field, f"{path}.field")
    if column.ref.stream != stream:
        message = f"must be a field of stream {stream}, whose events are read"
        raise InvalidSpecError(message, path=f"{path}.field")
    if column.type is EventFieldType.FLOAT64:
        message = f"'{event_filter.field}' is a float64, which has no exact values: name an int64 or a string"
        raise InvalidSpecError(message, path=f"{path}.field")
    for index, value in enumerate(event_filter.values):
        if column.type is EventFieldType.INT64 and not _is_int64(value):
            message = f"'{value}' is no whole number of 64 bits, and '{event_filter.field}' is an int64"
            raise InvalidSpecError(message, path=f"{path}.values[{index}]")
    return contract.EventFilter(column=column.ref.column, values=event_filter.values)


def _is_int64(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) <= 19 and int(text) in _INT64


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
        filter=_compile_filter(window.filter, column.ref.stream, scope, f"{path}.filter"),
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
