"""What each pool's slices were used for, looked at again and again since this process began."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Tier
from tidegate.api.meta import ApiModel, ObjectKey
from tidegate.web.fleet import Fleet

EVERY: Final = timedelta(seconds=2)
KEPT: Final = 7_200
"""Looks that are kept of a pool: four hours; older ones are for Prometheus."""


class Sample(ApiModel):
    """One look at a pool."""

    at: datetime
    healthy: int
    """Slices on nodes that take pods."""
    free: int
    realtime: int
    """Slices that pods of this tier had; so the next two."""
    nearline: int
    offline: int
    price: float
    """What one more slice would have earned at the last decision, in value per second."""


class _Look(NamedTuple):
    """The same, in a fifth of the memory: there are thousands of each pool."""

    at: datetime
    healthy: int
    free: int
    realtime: int
    nearline: int
    offline: int
    price: float


class History:
    """The last looks at every pool."""

    def __init__(self, fleet: Fleet, now: Callable[[], datetime]) -> None:
        self._fleet = fleet
        self._now = now
        self._samples: dict[ObjectKey, deque[_Look]] = {}

    async def keep(self) -> None:
        """Looks again and again; a task of the process."""
        while True:
            self.look()
            await asyncio.sleep(EVERY.total_seconds())

    def look(self) -> None:
        """Looks once. A pool that is gone is forgotten."""
        pools = {pool.key: pool for pool in self._fleet.pools.all()}
        for key in self._samples.keys() - pools.keys():
            del self._samples[key]
        for key, pool in pools.items():
            self._samples.setdefault(key, deque(maxlen=KEPT)).append(self._look(pool))

    def of(self, pool: ObjectKey, most: int = KEPT) -> tuple[Sample, ...]:
        """The last looks at a pool, the oldest first; evenly thinned out to `most`."""
        found = tuple(self._samples.get(pool, ()))
        step = -(-len(found) // most) if most else 1
        chosen = found[(len(found) - 1) % step :: step] if found else ()
        return tuple(Sample(**each._asdict()) for each in chosen)

    def _look(self, pool: ComputePool) -> _Look:
        used = {each.name: each.slices for each in pool.status.tiers}
        newest = self._fleet.decisions.get(ObjectKey("", pool.status.last_decision or ""))
        return _Look(
            at=self._now(),
            healthy=pool.status.slices.healthy,
            free=pool.status.slices.free,
            realtime=used.get(Tier.REALTIME.value, 0),
            nearline=used.get(Tier.NEARLINE.value, 0),
            offline=used.get(Tier.OFFLINE.value, 0),
            price=newest.spec.price if newest is not None else 0.0,
        )
