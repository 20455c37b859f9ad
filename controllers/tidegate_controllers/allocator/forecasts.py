"""Forecasts the demand of each pool with spec.policy.forecast, and reads its history in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from importlib import import_module
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from tidegate.api.compute_pool import ForecastPolicy
from tidegate.api.meta import ObjectKey
from tidegate.planning.allocator.forecasts import DemandForecasts, RateHistory
from tidegate.planning.allocator.observed_pool import AllocationObserved
from tidegate.runtime.clock import Clock

if TYPE_CHECKING:
    from tidegate.planning.allocator.pool_forecaster import PoolForecaster

log: Final = structlog.stdlib.get_logger()

_READ_AGAIN_S: Final = 600.0
"""The shortest time between two reads of one pool's history: after a failure, or because Inferences were added."""


class HistorySource(Protocol):
    """The rates of the last weeks; telemetry's PrometheusRateHistory in a cluster."""

    async def read_history(
        self, keys: frozenset[ObjectKey], now: datetime, length: timedelta = ...
    ) -> RateHistory:
        """Return the rates of some Inferences until now; without `length` all that a forecast uses. Never raises."""
        ...


@dataclass(slots=True)
class _HistoryRead:
    """A read of some Inferences' history, and its result when it has ended."""

    pool: ObjectKey
    keys: frozenset[ObjectKey]
    result: RateHistory | None = None


@dataclass(slots=True)
class _PoolState:
    forecaster: PoolForecaster | None = None
    """None until the first tick."""
    read_keys: frozenset[ObjectKey] = frozenset()
    """The Inferences whose history has been read."""
    current_read: _HistoryRead | None = None
    next_read_s: float = -inf
    has_failed: bool = False


@dataclass(slots=True)
class AllocationForecasts:
    """Remembers each pool's rates and models, for one term; without `source` a history begins with the term."""

    source: HistorySource | None
    clock: Clock
    _states: dict[ObjectKey, _PoolState] = field(default_factory=dict, init=False)
    _reads: asyncio.Queue[_HistoryRead] = field(default_factory=asyncio.Queue, init=False)

    async def read_histories(self) -> None:
        """Read the histories that pools need, one at a time, until cancelled."""
        if self.source is None:
            return
        while True:
            read = await self._reads.get()
            read.result = await self.source.read_history(read.keys, self.clock.now())

    async def forecast_pool(self, observed: AllocationObserved) -> DemandForecasts | None:
        """Take the pool's signals, and return the demand that is expected; None if the pool forecasts nothing."""
        pool, policy = observed.pool.key, observed.pool.spec.policy.forecast
        if policy is None:
            self.forget_pool(pool)
            return None
        keys = frozenset(observed.forecast_leads)
        state = self._states.setdefault(pool, _PoolState())
        histories = self._take_history(state, keys)
        self._request_history(pool, state, keys)
        # In a thread: loading NumPy and fitting some models take tens of milliseconds each.
        forecasts = await asyncio.to_thread(_forecast_demand, state, policy, observed, histories)
        return replace(forecasts, is_pending=state.current_read is not None)

    def forget_pool(self, pool: ObjectKey) -> None:
        """Forget a pool that was deleted, or that forecasts nothing."""
        self._states.pop(pool, None)

    def _take_history(self, state: _PoolState, keys: frozenset[ObjectKey]) -> Sequence[RateHistory]:
        """Return the history that was read since the last tick, if any."""
        state.read_keys &= keys
        read = state.current_read
        if read is None or read.result is None:
            return ()
        state.current_read = None
        state.next_read_s = self.clock.monotonic() + _READ_AGAIN_S
        if not read.result.problem:
            state.read_keys |= read.keys & keys
        elif not state.has_failed:
            state.has_failed = True
            log.warning("history_unreadable", pool=read.pool.name, problem=read.result.problem)
        return (read.result,)

    def _request_history(self, pool: ObjectKey, state: _PoolState, keys: frozenset[ObjectKey]) -> None:
        unread = keys - state.read_keys
        is_due = self.clock.monotonic() >= state.next_read_s
        if self.source is not None and unread and is_due and state.current_read is None:
            state.current_read = _HistoryRead(pool, unread)
            self._reads.put_nowait(state.current_read)


def _forecast_demand(
    state: _PoolState, policy: ForecastPolicy, observed: AllocationObserved, histories: Sequence[RateHistory]
) -> DemandForecasts:
    if (forecaster := state.forecaster) is None:
        # NumPy takes 18 MiB, which a process without forecasts does not need.
        module = import_module("tidegate.planning.allocator.pool_forecaster")
        forecaster = state.forecaster = module.PoolForecaster(policy)
    for history in histories:
        forecaster.add_history(history)
    return forecaster.forecast_demand(policy, observed.forecast_leads, observed.signals, observed.now)
