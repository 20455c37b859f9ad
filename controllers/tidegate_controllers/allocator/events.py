"""Plans the demand of each pool's events, and reads from history what it was before them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import Final

import structlog

from tidegate.api.meta import ObjectKey
from tidegate.planning.allocator.confirmed_signals import ConfirmedSignals
from tidegate.planning.allocator.event_baselines import EventBaselines
from tidegate.planning.allocator.event_calendar import BASELINE_WINDOW, EventDemand
from tidegate.planning.allocator.observed_pool import AllocationObserved
from tidegate.runtime.clock import Clock
from tidegate_controllers.allocator.forecasts import HistorySource

log: Final = structlog.stdlib.get_logger()

_READ_AGAIN_S: Final = 600.0
"""The shortest time between two reads of one pool's history."""
_TIMEOUT_S: Final = 10.0


@dataclass(slots=True)
class _EventState:
    confirmed: ConfirmedSignals = field(default_factory=ConfirmedSignals)
    baselines: EventBaselines = field(default_factory=EventBaselines)
    next_read_s: float = -inf


@dataclass(slots=True)
class AllocationEvents:
    """Remembers each pool's rates and baselines, for one term; without `source` it has no rates from before the term."""

    source: HistorySource | None
    clock: Clock
    _states: dict[ObjectKey, _EventState] = field(default_factory=dict, init=False)

    async def plan_pool(self, observed: AllocationObserved) -> Mapping[ObjectKey, EventDemand]:
        """Take the pool's signals, and return what its events bring the Inferences that one is near to.

        Controllers that start during an event wait up to ten seconds for the demand before it: what they would decide
        without it would take away the replicas that were started for the event.
        """
        pool, keys = observed.pool.key, observed.expectable_keys
        if not observed.pool.spec.policy.events:
            self.forget_pool(pool)
            return {}
        state = self._states.setdefault(pool, _EventState())
        for key, signal in state.confirmed.select_confirmed(keys, observed.signals):
            state.baselines.add_rate(key, signal.read_at, signal.offered_per_s)
        demands = state.baselines.plan_demand(observed.calendar, keys, observed.now)
        unknown = {key: demand for key, demand in demands.items() if demand.baseline_per_s is None}
        if self.source is None or not unknown or self.clock.monotonic() < state.next_read_s:
            return demands
        ends = {demand.quiet_until for demand in unknown.values() if demand.quiet_until is not None}
        if not ends:
            return demands
        state.next_read_s = self.clock.monotonic() + _READ_AGAIN_S
        await self._read_history(self.source, state.baselines, pool, unknown, ends)
        return state.baselines.plan_demand(observed.calendar, keys, observed.now)

    def forget_pool(self, pool: ObjectKey) -> None:
        """Forget a pool that was deleted, or that has no events."""
        self._states.pop(pool, None)

    async def _read_history(
        self,
        source: HistorySource,
        baselines: EventBaselines,
        pool: ObjectKey,
        unknown: Mapping[ObjectKey, EventDemand],
        ends: Set[datetime],
    ) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                for end in sorted(ends):
                    keys: Set[ObjectKey] = {
                        key for key, demand in unknown.items() if demand.quiet_until == end
                    }
                    history = await source.read_history(frozenset(keys), end, BASELINE_WINDOW)
                    baselines.add_history(history)
                    if history.problem:
                        log.warning("baseline_unreadable", pool=pool.name, problem=history.problem)
        except TimeoutError:
            log.warning("baseline_unreadable", pool=pool.name, problem=f"no answer within {_TIMEOUT_S:g} s")
