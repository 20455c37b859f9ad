"""From a message to an event of one key: its time, its row, or why it is refused."""

import json
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NoReturn

from tidegate_dataplane.contract import (
    Entity,
    EntityKeyType,
    EventField,
    EventFieldType,
    EventStream,
    RefusalReason,
)
from tidegate_dataplane.event_store.rows import encode_integer, encode_text
from tidegate_dataplane.event_store.times import parse_moment
from tidegate_dataplane.features.hashing import hash_text
from tidegate_dataplane.ingester.protobuf_decoder import ProtobufDecoder
from tidegate_dataplane.ingester.refusal import EventRefusedError

MAX_AHEAD_MS: Final = 60_000
"""How far a producer's clock may be ahead of the broker's."""
SECONDS_BELOW: Final = 100_000_000_000
"""A time below is before 1973-03-03 in milliseconds, and most likely in seconds."""
INT64: Final = range(-(2**63), 2**63)
SHOWN_CHARS: Final = 60
_CELL_FORMATS: Final = {EventFieldType.INT64: "q", EventFieldType.FLOAT64: "d", EventFieldType.STRING: "Q"}


@dataclass(frozen=True, slots=True)
class ParsedEvent:
    """An event: the stored forms of its key and its row, and its time in milliseconds since 1970."""

    key: bytes
    time_ms: int
    row: bytes


class EventParser:
    """Parses the messages of one stream."""

    def __init__(self, stream: EventStream, entity: Entity) -> None:
        self._stream = stream
        self._entity = entity
        self._decode: Callable[[bytes], Mapping[str, Any]] = _parse_object
        if stream.protobuf_numbers is not None:
            self._decode = ProtobufDecoder(stream, stream.protobuf_numbers, entity).decode_message
        self._row = struct.Struct("<q" + "".join(_CELL_FORMATS[field.type] for field in stream.fields))

    def parse_event(self, body: bytes) -> ParsedEvent:
        """Return the event in a message.

        Raises:
            EventRefusedError: it has none, or one without the declared fields.
        """
        try:
            return self._parse_document(self._decode(body))
        except EventRefusedError:
            raise
        except Exception as error:  # whatever a message holds, those behind it are read
            message = f"it cannot be read: {type(error).__name__}"
            raise EventRefusedError(RefusalReason.MALFORMED, message) from error

    def check_time(self, time_ms: int, newest_ms: int | None, *, arrived_ms: int, now_ms: int) -> None:
        """Check the time of an event against its arrival at the broker, the newest event of its partition, and now.

        Not against this pod's clock, as far as it can be: all replicas must decide alike, whenever they read.

        Raises:
            EventRefusedError: it is in the future, expired or too late.
        """
        if time_ms > arrived_ms + MAX_AHEAD_MS:
            ahead_s = (time_ms - arrived_ms) / 1000
            _refuse_event(
                RefusalReason.IN_THE_FUTURE,
                f"{self._stream.event_time} is {_format_time(time_ms)}, {ahead_s:.0f} s after the broker got it: at most "
                f"{MAX_AHEAD_MS // 1000} s are taken; correct the producer's clock",
                self._stream.event_time,
            )
        if time_ms <= now_ms - self._stream.ttl_ms:
            hint = (
                "; it looks like seconds, and milliseconds are needed" if 0 < time_ms < SECONDS_BELOW else ""
            )
            raise EventRefusedError(
                RefusalReason.EXPIRED,
                f"{self._stream.event_time} is {_format_time(time_ms)}, older than the ttl of "
                f"{self._stream.ttl_ms // 1000} s{hint}",
                field=self._stream.event_time,
                is_aged=time_ms > arrived_ms - self._stream.ttl_ms,
            )
        if newest_ms is not None and time_ms < newest_ms - self._stream.lateness_ms:
            _refuse_event(
                RefusalReason.TOO_LATE,
                f"{self._stream.event_time} is {_format_time(time_ms)}, {(newest_ms - time_ms) / 1000:.0f} s before the "
                f"newest event; lateness is {self._stream.lateness_ms / 1000:g} s",
                self._stream.event_time,
            )

    def _parse_document(self, document: Mapping[str, Any]) -> ParsedEvent:
        key = self._parse_key(_get_field(document, self._entity.key))
        time_ms = _parse_time(self._stream.event_time, _get_field(document, self._stream.event_time))
        cells = [_parse_cell(field, _get_field(document, field.name)) for field in self._stream.fields]
        return ParsedEvent(key, time_ms, self._row.pack(time_ms, *cells))

    def _parse_key(self, value: object) -> bytes:
        name = self._entity.key
        if self._entity.type is EntityKeyType.INT64:
            if isinstance(value, bool):
                _refuse_type(name, value, "a whole number of 64 bits")
            return encode_integer(_parse_integer(name, value))
        return encode_text(_parse_text(name, value))


def _parse_object(body: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise EventRefusedError(RefusalReason.MALFORMED, f"it is no JSON: {error}"[:200]) from error
    if not isinstance(document, dict):
        _refuse_event(RefusalReason.MALFORMED, "it is no JSON object")
    return document


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _refuse_event(reason: RefusalReason, message: str, field: str = "") -> NoReturn:
    raise EventRefusedError(reason, message, field=field)


def _get_field(document: Mapping[str, Any], name: str) -> object:
    value = document.get(name)
    if value is None:
        has = ", ".join(sorted(map(str, document))[:20])
        _refuse_event(RefusalReason.MISSING_FIELD, f"it has no field {name}; it has {has or 'none'}", name)
    return value


def _parse_cell(field: EventField, value: object) -> int | float:
    match field.type:
        case EventFieldType.INT64:
            return _parse_integer(field.name, value)
        case EventFieldType.FLOAT64:
            if isinstance(value, bool) or not isinstance(value, int | float):
                _refuse_type(field.name, value, "a number")
            return _parse_float(field.name, value)
        case EventFieldType.STRING:
            return hash_text(_parse_text(field.name, value))


def _parse_float(name: str, value: float) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        _refuse_type(name, value, "a number that float64 can hold")
    return number


def _parse_integer(name: str, value: object) -> int:
    """Return an int64; true and false count as 1 and 0."""
    if not isinstance(value, int) or value not in INT64:
        _refuse_type(name, value, "a whole number of 64 bits")
    return int(value)


def _parse_text(name: str, value: object) -> bytes:
    if not isinstance(value, str):
        _refuse_type(name, value, "a string")
    try:
        return value.encode()
    except UnicodeEncodeError:
        _refuse_type(name, value.encode(errors="replace").decode(), "a string in UTF-8")


def _parse_time(name: str, value: object) -> int:
    """Return milliseconds since 1970."""
    if isinstance(value, int) and not isinstance(value, bool):
        return _parse_integer(name, value)
    time_ms = parse_moment(value) if isinstance(value, str) else None
    if time_ms is None:
        _refuse_type(name, value, "milliseconds since 1970, or a time in RFC 3339 with a time zone")
    return time_ms


def _refuse_type(name: str, value: object, needed: str) -> NoReturn:
    shown = ascii(value)
    cut = f"{shown[:SHOWN_CHARS]}…" if len(shown) > SHOWN_CHARS else shown
    _refuse_event(RefusalReason.WRONG_TYPE, f"{name} is {cut}; it must be {needed}", name)


def _format_time(time_ms: int) -> str:
    try:
        return datetime.fromtimestamp(time_ms / 1000).astimezone().isoformat(timespec="seconds")
    except (OverflowError, OSError, ValueError):
        return f"{time_ms} ms"
