"""Read signals from their sources, and keep the estimates between two scrapes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from tidegate.planning.allocator.signals import (
    MetricsScrape,
    RateEstimates,
    Signals,
    StalenessPolicy,
    estimate_signals,
)


class SignalSource(Protocol):
    """A source of the demand for each Inference: Prometheus, the gateways, or the agents of near-line pods."""

    async def scrape_signals(self) -> MetricsScrape:
        """Return the current readings. Never raises: failures are part of the result."""
        ...


class SignalReader:
    """Reader of one source that turns its readings into estimates."""

    def __init__(
        self, source: SignalSource, now: Callable[[], datetime], patience: StalenessPolicy | None = None
    ) -> None:
        self._source = source
        self._now = now
        self._patience = patience or StalenessPolicy()
        self._estimates: RateEstimates = {}

    async def read(self) -> Signals:
        """Return the estimates after one more scrape."""
        observed = await self._source.scrape_signals()
        now = self._now()
        signals, self._estimates = estimate_signals(self._estimates, observed, now, self._patience)
        return signals


class MergedSignalReader:
    """Reader that merges the signals of gateways and streams; a problem of the gateways counts as a problem of all."""

    def __init__(self, requests: SignalReader, streams: SignalReader) -> None:
        self._requests = requests
        self._streams = streams

    async def read(self) -> Signals:
        """Return the estimates of both sources after one more scrape of each."""
        requests, streams = await asyncio.gather(self._requests.read(), self._streams.read())
        # The demand for a near-line Inference is its stream's, even if a route sends requests to it as well.
        return Signals({**requests.by_key, **streams.by_key}, requests.problem, requests.window)
