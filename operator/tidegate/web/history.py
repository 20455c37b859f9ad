"""What each pool's slices were used for and what was asked of it: this process's own looks, and what Prometheus has from before."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple, Protocol, TypeVar

from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Tier
from tidegate.api.meta import ApiModel, ObjectKey
from tidegate.reports.demand import tiers_of
from tidegate.reports.plan import PlanReport
from tidegate.telemetry.pool_series import Moment, PoolSeries
from tidegate.web.fleet import Fleet

EVERY: Final = timedelta(seconds=2)
WINDOW: Final = timedelta(hours=4)
"""What is older is for Prometheus."""
KEPT: Final = int(WINDOW / EVERY)
"""Looks that are kept of a pool."""
_ONLINE: Final = (Tier.REALTIME, Tier.NEARLINE)


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


class DemandSample(ApiModel):
    """What was asked of a pool, as its allocator saw it."""

    at: datetime
    slices: int
    """Slices that were to be shared out."""
    realtime: int
    """Slices that would have served all that was asked of this tier; so the next two."""
    nearline: int
    offline: int
    demand: float
    """Requests per second that were asked of real-time and near-line Inferences."""
    serves: float
    """Those of them that the replicas which were there served within the SLO."""
    unknown: int
    """Inferences whose demand nobody knew: they are in none of the sums."""


class PastState(StrEnum):
    """What Prometheus said of the time before this process."""

    NOBODY = "Nobody"
    """None is named that could be asked."""
    ASKED = "Asked"
    SILENT = "Silent"
    """It did not answer; it is asked again."""
    EMPTY = "Empty"
    """It knows nothing of the pool."""
    KNOWN = "Known"


@dataclass(frozen=True, slots=True)
class Reach:
    """How far back it is known what a pool's slices were used for, and from whom."""

    since: datetime | None
    """Of the oldest sample; None while there is none."""
    looking_since: datetime | None
    """Since when this process looks itself."""
    past: PastState
    outlived: bool = False
    """This process has looked for longer than the window: what was before is shown no more."""


class _Look(NamedTuple):
    """A Sample in a fifth of the memory: there are thousands of each pool."""

    at: datetime
    healthy: int
    free: int
    realtime: int
    nearline: int
    offline: int
    price: float


class _Asked(NamedTuple):
    """A DemandSample, likewise."""

    at: datetime
    slices: int
    realtime: int
    nearline: int
    offline: int
    demand: float
    serves: float
    unknown: int


class _Timed(Protocol):
    @property
    def at(self) -> datetime: ...


_TimedT = TypeVar("_TimedT", bound=_Timed)


@dataclass(slots=True)
class _Pool:
    past: PastState
    began: datetime | None = None
    """When this process first looked at it; None before that."""
    looks: deque[_Look] = field(default_factory=lambda: deque(maxlen=KEPT))
    before: tuple[_Look, ...] = ()
    """From Prometheus: of the time before the first look of this process."""
    told_until: datetime | None = None
    """What Prometheus has from before that is known already."""
    asked: tuple[_Asked, ...] = ()


class History:
    """The last four hours of every pool."""

    def __init__(self, fleet: Fleet, now: Callable[[], datetime], *, asks: bool = False) -> None:
        """`asks`: whether a Prometheus is asked about the time before."""
        self._fleet = fleet
        self._now = now
        self._unasked = PastState.ASKED if asks else PastState.NOBODY
        self._pools: dict[ObjectKey, _Pool] = {}

    async def keep(self) -> None:
        """Looks again and again; a task of the process."""
        while True:
            self.look()
            await asyncio.sleep(EVERY.total_seconds())

    def look(self) -> None:
        """Looks once. A pool that is gone is forgotten."""
        pools = {pool.key: pool for pool in self._fleet.pools.all()}
        for key in self._pools.keys() - pools.keys():
            del self._pools[key]
        for key, pool in pools.items():
            found = self._pools.setdefault(key, self._new())
            found.began = found.began or self._now()
            found.looks.append(self._look(pool))

    def pools(self) -> tuple[ObjectKey, ...]:
        """Those that were looked at."""
        return tuple(self._pools)

    def of(self, pool: ObjectKey, most: int = KEPT) -> tuple[Sample, ...]:
        """What its slices were used for, the oldest first; thinned out to `most`, evenly over the time."""
        found = self._pools.get(pool, self._new())
        looks = (*self._recent(found.before), *found.looks)
        return tuple(Sample(**each._asdict()) for each in _thinned(looks, most))

    def demand_of(self, pool: ObjectKey, most: int = KEPT) -> tuple[DemandSample, ...]:
        """What was asked of it, likewise."""
        found = self._recent(self._pools.get(pool, self._new()).asked)
        return tuple(DemandSample(**each._asdict()) for each in _thinned(found, most))

    def reach(self, pool: ObjectKey) -> Reach:
        """How far back `of` goes."""
        found = self._pools.get(pool, self._new())
        own = found.looks[0].at if found.looks else None
        before = self._recent(found.before)
        outlived = found.began is not None and found.began <= self._now() - WINDOW
        return Reach(before[0].at if before else own, own, found.past, outlived)

    def answered(self, pool: ComputePool, report: PlanReport) -> None:
        """The allocator has been asked how things are: what it said of demand is kept."""
        tiers = {each.tier: each for each in tiers_of(report.asked, pool)}
        self._take_asked(
            pool.key,
            [
                _Asked(
                    at=report.seen,
                    slices=report.slices,
                    realtime=tiers[Tier.REALTIME].wanted,
                    nearline=tiers[Tier.NEARLINE].wanted,
                    offline=tiers[Tier.OFFLINE].wanted,
                    demand=sum(tiers[tier].demand for tier in _ONLINE),
                    serves=sum(tiers[tier].serves for tier in _ONLINE),
                    unknown=sum(each.unknown for each in tiers.values()),
                )
            ],
        )

    def told_until(self, pool: ObjectKey) -> datetime | None:
        """Up to when nothing more need be asked about a pool; None for one that was made, or made anew, since."""
        return self._pools.get(pool, self._new()).told_until

    def told(self, pool: ObjectKey, past: Sequence[Moment], until: datetime | None = None) -> None:
        """Prometheus has answered about a pool: what it has from before the first look counts, and all it has of demand.

        `until` is up to when it has said all that it knows.
        """
        found = self._pools.get(pool)
        if found is None:
            return
        began = found.looks[0].at if found.looks else self._now()
        known = {each.at: each for each in found.before}
        known |= {each.at: each for each in map(_past_look, past) if each is not None and each.at < began}
        found.before = self._recent(tuple(known[at] for at in sorted(known)))
        self._take_asked(pool, [each for each in map(_past_asked, past) if each is not None])
        found.told_until = until
        found.past = PastState.KNOWN if found.before else PastState.EMPTY

    def silent(self, pool: ObjectKey) -> None:
        """Prometheus has not answered; what it said earlier stays."""
        found = self._pools.get(pool)
        if found is not None and found.past is not PastState.KNOWN:
            found.past = PastState.SILENT

    def _take_asked(self, pool: ObjectKey, asked: Iterable[_Asked]) -> None:
        found = self._pools.get(pool)
        if found is None:
            return
        known = {each.at: each for each in (*found.asked, *asked)}
        found.asked = self._recent(tuple(known[at] for at in sorted(known)))[-KEPT:]

    def _recent(self, found: tuple[_TimedT, ...]) -> tuple[_TimedT, ...]:
        """Without what is older than the window."""
        return found[bisect_right(found, self._now() - WINDOW, key=lambda each: each.at) :]

    def _new(self) -> _Pool:
        return _Pool(self._unasked)

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


def _past_look(moment: Moment) -> _Look | None:
    """None where nobody led whom Prometheus could ask."""
    healthy, free = (moment.of(PoolSeries.COUNTED, state) for state in ("healthy", "free"))
    if healthy is None or free is None:
        return None
    used = {tier: int(moment.of(PoolSeries.SLICES, tier.value) or 0) for tier in Tier}
    return _Look(
        at=moment.at,
        healthy=int(healthy),
        free=int(free),
        realtime=used[Tier.REALTIME],
        nearline=used[Tier.NEARLINE],
        offline=used[Tier.OFFLINE],
        price=moment.of(PoolSeries.PRICE) or 0.0,
    )


def _past_asked(moment: Moment) -> _Asked | None:
    """None where the allocator had decided about nobody."""
    slices = moment.of(PoolSeries.SHARED_OUT)
    if slices is None:
        return None

    def total(series: PoolSeries, tiers: Iterable[Tier]) -> float:
        return sum(moment.of(series, tier.value) or 0.0 for tier in tiers)

    return _Asked(
        at=moment.at,
        slices=int(slices),
        realtime=int(total(PoolSeries.WANTED, (Tier.REALTIME,))),
        nearline=int(total(PoolSeries.WANTED, (Tier.NEARLINE,))),
        offline=int(total(PoolSeries.WANTED, (Tier.OFFLINE,))),
        demand=total(PoolSeries.DEMAND, _ONLINE),
        serves=total(PoolSeries.SERVABLE, _ONLINE),
        unknown=int(total(PoolSeries.UNKNOWN, Tier)),
    )


def _thinned(found: Sequence[_TimedT], most: int) -> Sequence[_TimedT]:
    """At most `most` (2 or more): the first, the last, and between them the last before each of so many even steps of time."""
    if len(found) <= most:
        return found
    times = [each.at for each in found]
    step = (times[-1] - times[0]) / (most - 1)
    places = {bisect_right(times, times[0] + number * step) - 1 for number in range(most - 1)}
    return [found[place] for place in sorted(places | {len(found) - 1})]
