"""Select the rates that may enter a history: those that are fresh, and that an earlier scrape confirms."""

from __future__ import annotations

from collections.abc import Iterator, Set
from datetime import datetime

from tidegate.api.meta import ObjectKey
from tidegate.planning.allocator.signals import Signal, Signals


class ConfirmedSignals:
    """Remembers when each Inference was first read."""

    def __init__(self) -> None:
        self._first_reads: dict[ObjectKey, datetime] = {}

    def select_confirmed(self, keys: Set[ObjectKey], signals: Signals) -> Iterator[tuple[ObjectKey, Signal]]:
        """Yield the signals of the Inferences `keys` that are fresh and confirmed.

        The first rate of an Inference has nothing to be compared with, so it does not count either, nor what overlaps it.
        """
        present = {key: signal for key, signal in signals.by_key.items() if key in keys}
        self._first_reads = {
            key: self._first_reads.get(key, signal.read_at) for key, signal in present.items()
        }
        for key, signal in present.items():
            first = self._first_reads[key]
            is_compared = signal.read_at > first and signal.read_at - first >= signals.window
            if is_compared and signal.fresh and not signal.held_reason:
                yield key, signal
