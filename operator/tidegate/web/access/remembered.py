"""Answers that are good for a while: a bounded memory with an end for each."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


class Remembered(Generic[KeyT, ValueT]):
    """The newest `most` answers; `monotonic` is in seconds."""

    def __init__(self, most: int, monotonic: Callable[[], float]) -> None:
        self._most = most
        self._monotonic = monotonic
        self._answers: OrderedDict[KeyT, tuple[float, ValueT]] = OrderedDict()

    def get(self, key: KeyT) -> ValueT | None:
        """The answer, unless there is none or its time is over."""
        found = self._answers.get(key)
        if found is None:
            return None
        if found[0] <= self._monotonic():
            del self._answers[key]
            return None
        self._answers.move_to_end(key)
        return found[1]

    def put(self, key: KeyT, value: ValueT, seconds: float) -> None:
        """Good for so many seconds."""
        self._answers[key] = (self._monotonic() + seconds, value)
        self._answers.move_to_end(key)
        while len(self._answers) > self._most:
            self._answers.popitem(last=False)
