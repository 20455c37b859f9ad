"""Read signals from their sources, and keep the estimates between two scrapes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from tidegate.planning.peaks import Peaks, with_peaks
from tidegate.planning.signals import Beliefs, Look, Patience, Signals, estimate


class SignalSource(Protocol):
    """A source of the demand for each Inference: Prometheus, the gateways, or the agents of near-line pods."""

    async def look(self) -> Look:
        """Return the current readings. Never raises: failures are part of the result."""
        ...


class SignalWatch:
    """Reader of one source that turns its readings into estimates."""

    def __init__(
        self, source: SignalSource, now: Callable[[], datetime], patience: Patience | None = None
    ) -> None:
        self._source = source
        self._now = now
        self._patience = patience or Patience()
        self._estimates: Beliefs = {}
        self._peaks: Peaks = {}

    async def read(self) -> Signals:
        """Return the estimates after one more scrape."""
        observed = await self._source.look()
        now = self._now()
        signals, self._estimates = estimate(self._estimates, observed, now, self._patience)
        signals, self._peaks = with_peaks(self._peaks, signals, now)
        return signals


class TieredWatch:
    """Reader that merges the signals of gateways and streams; a problem of the gateways counts as a problem of all."""

    def __init__(self, requests: SignalWatch, streams: SignalWatch) -> None:
        self._requests = requests
        self._streams = streams

    async def read(self) -> Signals:
        """Return the estimates of both sources after one more scrape of each."""
        requests, streams = await asyncio.gather(self._requests.read(), self._streams.read())
        # The demand for a near-line Inference is its stream's, even if a route sends requests to it as well.
        return Signals({**requests.by_key, **streams.by_key}, requests.problem, requests.window)
