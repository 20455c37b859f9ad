"""A bounded cache whose entries expire."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


class ExpiringCache(Generic[KeyT, ValueT]):
    """Cache of the latest `most` entries, each with its own expiry; `monotonic` is in seconds."""

    def __init__(self, max_entries: int, monotonic: Callable[[], float]) -> None:
        self._max_entries = max_entries
        self._monotonic = monotonic
        self._entries: OrderedDict[KeyT, tuple[float, ValueT]] = OrderedDict()

    def get(self, key: KeyT) -> ValueT | None:
        """Return the value of a key; None if there is none, or if it has expired."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        expiry_s, value = entry
        if expiry_s <= self._monotonic():
            del self._entries[key]
            return None
        self._entries.move_to_end(key)
        return value

    def put(self, key: KeyT, value: ValueT, seconds: float) -> None:
        """Store a value that expires after `seconds`."""
        self._entries[key] = (self._monotonic() + seconds, value)
        self._entries.move_to_end(key)
        while len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)
