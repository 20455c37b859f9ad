"""Frames of messages between two processes: eight bytes of length, then the message."""

from __future__ import annotations

from typing import Final

LENGTH_BYTES: Final = 8


def encode_frame(payload: bytes) -> bytes:
    """Return `payload` with its length before it."""
    return len(payload).to_bytes(LENGTH_BYTES, "big") + payload
