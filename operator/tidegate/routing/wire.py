"""Protobuf's wire format, as far as it takes to join messages that are already serialised."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Final

_LENGTH_DELIMITED: Final = 2
_VARINT: Final = 0
_CONTINUES: Final = 0x80
_SHORT: Final = tuple(bytes([value]) for value in range(_CONTINUES))


def varint(value: int) -> bytes:
    """Encode `value` in base 128, least significant group first."""
    if value < _CONTINUES:
        return _SHORT[value]
    encoded = bytearray()
    while value >= _CONTINUES:
        encoded.append(value & (_CONTINUES - 1) | _CONTINUES)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


# The tags that fit into two bytes; no field that we write has a larger number.
_TAGS: Final = tuple(varint(number << 3 | _LENGTH_DELIMITED) for number in range(2048))


def field(number: int, payload: bytes) -> bytes:
    """Encode one string, bytes or message field; several in a row with one number make a repeated field."""
    size = len(payload)
    return _TAGS[number] + (_SHORT[size] if size < _CONTINUES else varint(size)) + payload


def number_field(number: int, value: int) -> bytes:
    """Encode one unsigned integer or enum field."""
    return varint(number << 3 | _VARINT) + varint(value)


def fields(number: int, payloads: Iterable[bytes]) -> bytes:
    """Encode a repeated field whose elements are already serialised."""
    return b"".join([field(number, payload) for payload in payloads])


def packed_any(type_url: str, *pieces: bytes) -> bytes:
    """Wrap a serialised message in a google.protobuf.Any; the message may come in pieces, which are copied once."""
    return b"".join((_head(type_url), varint(sum(map(len, pieces))), *pieces))


@cache
def _head(type_url: str) -> bytes:
    return field(1, type_url.encode()) + _TAGS[2]
