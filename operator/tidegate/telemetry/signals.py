"""Where signals come from, and who remembers what is believed between two looks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from tidegate.planning.peaks import Peaks, with_peaks
from tidegate.planning.signals import Beliefs, Look, Patience, Signals, estimate


class SignalSource(Protocol):
    """Something that can be asked what is asked of each Inference: Prometheus, the gateways; for other tiers, streams or jobs."""

    async def look(self) -> Look:
        """One look. Never raises: what went wrong is in the look."""
        ...


class SignalWatch:
    """Looks at a source when it is told to, and says what may be relied on."""

    def __init__(
        self, source: SignalSource, now: Callable[[], datetime], patience: Patience | None = None
    ) -> None:
        self._source = source
        self._now = now
        self._patience = patience or Patience()
        self._beliefs: Beliefs = {}
        self._peaks: Peaks = {}

    async def read(self) -> Signals:
        """What to rely on after one more look."""
        look = await self._source.look()
        now = self._now()
        signals, self._beliefs = estimate(self._beliefs, look, now, self._patience)
        signals, self._peaks = with_peaks(self._peaks, signals, now)
        return signals


class TieredWatch:
    """Requests at the gateways and messages of streams as one; what is wrong with all of it is what is wrong with the gateways."""

    def __init__(self, requests: SignalWatch, streams: SignalWatch) -> None:
        self._requests = requests
        self._streams = streams

    async def read(self) -> Signals:
        """What to rely on after one more look at both."""
        requests, streams = await asyncio.gather(self._requests.read(), self._streams.read())
        # A near-line Inference is asked by its stream, whatever a route sends to it beside that.
        return Signals({**requests.by_key, **streams.by_key}, requests.problem, requests.window)
