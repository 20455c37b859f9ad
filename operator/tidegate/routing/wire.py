"""Protobuf's wire format, as far as it takes to join messages that are already serialised."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Final

_LENGTH_DELIMITED: Final = 2
_VARINT: Final = 0
_CONTINUES: Final = 0x80
_SHORT: Final = tuple(bytes([value]) for value in range(_CONTINUES))


def encode_varint(value: int) -> bytes:
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
_TAGS: Final = tuple(encode_varint(number << 3 | _LENGTH_DELIMITED) for number in range(2048))


def encode_field(number: int, payload: bytes) -> bytes:
    """Encode one string, bytes or message field; several in a row with one number make a repeated field."""
    size = len(payload)
    return _TAGS[number] + (_SHORT[size] if size < _CONTINUES else encode_varint(size)) + payload


def encode_number(number: int, value: int) -> bytes:
    """Encode one unsigned integer or enum field."""
    return encode_varint(number << 3 | _VARINT) + encode_varint(value)


def encode_fields(number: int, payloads: Iterable[bytes]) -> bytes:
    """Encode a repeated field whose elements are already serialised."""
    return b"".join([encode_field(number, payload) for payload in payloads])


def encode_any(type_url: str, *pieces: bytes) -> bytes:
    """Wrap a serialised message in a google.protobuf.Any; the message may come in pieces, which are copied once."""
    return b"".join((_encode_any_head(type_url), encode_varint(sum(map(len, pieces))), *pieces))


@cache
def _encode_any_head(type_url: str) -> bytes:
    return encode_field(1, type_url.encode()) + _TAGS[2]
