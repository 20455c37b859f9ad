"""Protobuf's wire format in a few lines, so that tests do not encode with the library that decodes."""

from __future__ import annotations

import struct
from collections.abc import Mapping

CLICK_NUMBERS = {"user_id": 1, "ts": 2, "item_id": 3, "click": 4, "price": 17, "page": 2**29 - 1}
VARINT, FIXED64, BYTES = 0, 1, 2


def encode_varint(value: int) -> bytes:
    """A number of 64 bits, in groups of seven."""
    value &= 2**64 - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_field(number: int, value: object) -> bytes:
    """A field with the wire type of its Python type."""
    if isinstance(value, float):
        return encode_varint(number << 3 | FIXED64) + struct.pack("<d", value)
    if isinstance(value, int):
        return encode_varint(number << 3 | VARINT) + encode_varint(value)
    body = value if isinstance(value, bytes) else str(value).encode()
    return encode_varint(number << 3 | BYTES) + encode_varint(len(body)) + body


def encode_click(message: Mapping[str, object], numbers: Mapping[str, int] = CLICK_NUMBERS) -> bytes:
    """A click as a producer of proto3 sends it: what is 0 or empty is left out."""
    return b"".join(encode_field(numbers[name], value) for name, value in message.items() if value)
