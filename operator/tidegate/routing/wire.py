"""Protobuf's wire format, as far as it takes to join messages that are already serialised."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_LENGTH_DELIMITED: Final = 2
_VARINT: Final = 0
_CONTINUES: Final = 0x80
_SHORT: Final = tuple(bytes([value]) for value in range(_CONTINUES))


def varint(value: int) -> bytes:
    """`value` in base 128, least significant group first."""
    if value < _CONTINUES:
        return _SHORT[value]
    encoded = bytearray()
    while value >= _CONTINUES:
        encoded.append(value & (_CONTINUES - 1) | _CONTINUES)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def field(number: int, payload: bytes) -> bytes:
    """One string, bytes or message field; several in a row of one number make a repeated field."""
    return varint(number << 3 | _LENGTH_DELIMITED) + varint(len(payload)) + payload


def text(value: str) -> bytes:
    """A string as it stands in a field, its length before it; without the field's number."""
    data = value.encode()
    return varint(len(data)) + data


def number_field(number: int, value: int) -> bytes:
    """One unsigned integer or enum field."""
    return varint(number << 3 | _VARINT) + varint(value)


def fields(number: int, payloads: Iterable[bytes]) -> bytes:
    """A repeated field whose elements are already serialised."""
    tag = varint(number << 3 | _LENGTH_DELIMITED)
    return b"".join(part for payload in payloads for part in (tag, varint(len(payload)), payload))


def packed_any(type_url: str, *pieces: bytes) -> bytes:
    """A serialised google.protobuf.Any around a serialised message, which may come in pieces: they are copied once."""
    head = field(1, type_url.encode()) + varint(2 << 3 | _LENGTH_DELIMITED) + varint(sum(map(len, pieces)))
    return b"".join((head, *pieces))
