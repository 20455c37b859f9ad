"""The steps from what is held to what was decided, in an order in which no step exceeds capacity, breaks a real-time floor or sheds demand.

Promote spares, start what fits, drain and stop, start the rest; again for what had to wait for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidegate.allocation.assignment import Action
from tidegate.allocation.component import Component, Counts
from tidegate.allocation.worth import Spot, Worth
from tidegate.api.inference import Tier

_ORDER = {Tier.REALTIME: 0, Tier.NEARLINE: 1, Tier.OFFLINE: 2}
_SAME = 1e-9


@dataclass(frozen=True, slots=True)
class Step:
    """`replicas` of a spot are started, promoted or stopped in a wave."""

    wave: int
    action: Action
    worth: Worth
    spot: Spot
    replicas: int


@dataclass(slots=True)
class _Standing:
    """A spot on its way: what serves or loads, what is ready, what is left to start (positive) or to stop."""

    worth: Worth
    spot: Spot
    held: int
    ready: int
    left: int
    spare: int


@dataclass(frozen=True, slots=True)
class _Kept:
    """What of an Inference stays ready while others of its replicas load: so many, and those that serve `rate` per second."""

    replicas: int
    rate: float


def order(component: Component, target: Counts) -> tuple[list[Step], list[tuple[Worth, Spot, int]]]:
    """The steps, and what cannot be done without breaking something in between (Inference, spot, replicas left)."""
    return _Ordering(component, target).run()


class _Ordering:
    def __init__(self, component: Component, target: Counts) -> None:
        self._component = component
        self._spots = [
            _Standing(
                worth,
                spot,
                spot.held,
                spot.placement.replicas.ready,
                count - spot.held,
                spot.placement.replicas.spare,
            )
            for worth, counts in zip(component.worths, target, strict=True)
            for spot, count in zip(worth.spots, counts, strict=True)
        ]
        self._spots.sort(key=lambda each: (_ORDER[each.worth.inference.tier], -each.worth.density))
        self._kept = {
            worth: _kept(worth, counts) for worth, counts in zip(component.worths, target, strict=True)
        }
        self._steps: list[Step] = []
        self._occupied = dict.fromkeys(component.pool_index, 0)
        for each in self._spots:
            draining = each.spot.placement.replicas.draining
            self._occupied[each.spot.pool] += (each.held + draining + each.spare) * each.spot.slices
        self._draining = dict.fromkeys(component.pool_index, 0)
        for each in self._spots:
            self._draining[each.spot.pool] += each.spot.placement.replicas.draining * each.spot.slices

    def run(self) -> tuple[list[Step], list[tuple[Worth, Spot, int]]]:
        wave = 0
        self._promote()
        self._stop_spares()
        while any(each.left for each in self._spots):
            done = len(self._steps)
            self._start(wave)
            stopped = self._stop(wave)
            waits = any(self._draining.values()) or any(each.ready < each.held for each in self._spots)
            if len(self._steps) == done and not waits:
                break
            self._end_wave(stopped)
            wave += 1
        return self._steps, [(each.worth, each.spot, each.left) for each in self._spots if each.left]

    def _promote(self) -> None:
        for each in self._spots:
            count = min(each.spare, max(each.left, 0))
            if count:
                self._steps.append(Step(0, Action.PROMOTE, each.worth, each.spot, count))
                each.spare -= count
                each.left -= count
                each.held += count
                each.ready += count

    def _stop_spares(self) -> None:
        """Those beyond what the pool wants, where others need the room."""
        for pool in self._component.pools:
            here = [each for each in self._spots if each.spot.pool == pool.name]
            needed = sum(max(each.left, 0) * each.spot.slices for each in here)
            freed = sum(max(-each.left, 0) * each.spot.slices for each in here)
            lacking = self._occupied[pool.name] - self._draining[pool.name] + needed - freed - pool.slices
            for each in reversed(here):
                count = min(each.spare, -(-lacking // each.spot.slices)) if lacking > 0 else 0
                if count > 0:
                    self._steps.append(Step(0, Action.STOP_SPARE, each.worth, each.spot, count))
                    each.spare -= count
                    lacking -= count * each.spot.slices
                    self._draining[pool.name] += count * each.spot.slices

    def _start(self, wave: int) -> None:
        slices = {pool.name: pool.slices for pool in self._component.pools}
        for each in self._spots:
            room = slices[each.spot.pool] - self._occupied[each.spot.pool]
            count = min(max(each.left, 0), max(room, 0) // each.spot.slices)
            if count:
                self._steps.append(Step(wave, Action.START, each.worth, each.spot, count))
                self._occupied[each.spot.pool] += count * each.spot.slices
                each.left -= count
                each.held += count

    def _stop(self, wave: int) -> dict[str, int]:
        """Stops what may be stopped; slices that it frees when it is gone, by pool."""
        freed: dict[str, int] = {}
        for each in reversed(self._spots):
            count = min(max(-each.left, 0), self._may_stop(each))
            if count:
                self._steps.append(Step(wave, Action.STOP, each.worth, each.spot, count))
                each.left += count
                each.held -= count
                # Those that still load go first: they serve nobody.
                each.ready = min(each.ready, each.held)
                freed[each.spot.pool] = freed.get(each.spot.pool, 0) + count * each.spot.slices
        return freed

    def _may_stop(self, each: _Standing) -> int:
        """How many of it may go before others are ready: a real-time Inference keeps its floor and what it serves."""
        if each.worth.inference.tier is not Tier.REALTIME or not any(self._rising(each.worth)):
            return each.held
        others = [other for other in self._spots if other.worth is each.worth and other is not each]
        kept = self._kept[each.worth]
        rate = kept.rate - sum(other.spot.placement.curve.at(other.ready) for other in others)
        serving = each.spot.placement.curve.needed(rate) if rate > _SAME else 0
        floor = kept.replicas - sum(other.ready for other in others)
        stays = max(each.ready if serving is None else serving, floor)
        return max(each.ready - stays, 0) + (each.held - each.ready)

    def _rising(self, worth: Worth) -> Iterator[bool]:
        """Whether replicas of it elsewhere are not there yet; else its floor is given up on purpose."""
        for other in self._spots:
            if other.worth is worth:
                yield other.left > 0 or other.ready < other.held

    def _end_wave(self, freed: dict[str, int]) -> None:
        for pool, slices in freed.items():
            self._occupied[pool] -= slices
        for pool, slices in self._draining.items():
            self._occupied[pool] -= slices
            self._draining[pool] = 0
        for each in self._spots:
            each.ready = each.held


def _kept(worth: Worth, target: Sequence[int]) -> _Kept:
    """Floor and present demand, as far as what is ready now holds them; what the target gives up is given up on purpose."""
    ready = [spot.placement.replicas.ready for spot in worth.spots]
    load = worth.inference.load
    present = load.rates[0] if load is not None else 0.0
    rate = min(present, sum(worth.rates(ready)), sum(worth.rates(target)))
    return _Kept(min(worth.floor, sum(ready)), rate)
