"""Slices to whoever gains most from the next one, until none is left: the answer of last resort, and the repair of rounded ones.

Concave curves make it near the optimum. It needs no solver, and never gives more than there is.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from tidegate.allocation.component import Component, Counts
from tidegate.allocation.standing import Change, Place, Standing, added, better, per_slice, siblings

_Group = tuple[int, str, int, bool]
"""Pool, tier, slices per replica, towards what is held: whatever has these in common moves the pool's own rules alike."""


class Queue:
    """All single additions (`by` 1) or removals (-1) in order of what they bring, best first."""

    def __init__(self, standing: Standing, by: int) -> None:
        self._standing = standing
        self._by = by
        self._versions = [0] * len(standing.places)
        self._groups: dict[_Group, list[tuple[Change, int, int]]] = {}
        self._in_pool: dict[int, list[_Group]] = {}
        for place in standing.places:
            self.refresh(place)

    def refresh(self, place: Place) -> None:
        """Looks at `place` anew."""
        standing = self._standing
        self._versions[place.number] += 1
        count, spot = standing.count(place), standing.spot(place)
        if count + self._by < 0 or (self._by > 0 and not standing.may_grow(place)):
            return
        towards = (count < spot.held) == (self._by > 0) and count != spot.held
        group = (place.pool, standing.worth(place).inference.tier.value, spot.slices, towards)
        if group not in self._groups:
            self._groups[group] = []
            self._in_pool.setdefault(place.pool, []).append(group)
        change = per_slice(standing.brings_alone(place, self._by), spot.slices)
        heappush(self._groups[group], (change, place.number, self._versions[place.number]))

    def best(self, pool: int, *, fitting: int | None = None) -> tuple[Change, Place] | None:
        """The best of a pool, per slice, that takes `fitting` slices at most."""
        found = [
            (per_slice(self._standing.brings(place, self._by), group[2]), place.number, place)
            for group, place in self._tops(pool)
            if fitting is None or group[2] <= fitting
        ]
        if not found:
            return None
        change, _, place = min(found)
        return change, place

    def tops(self, pool: int) -> list[tuple[Change, Place]]:
        """The best of each group of a pool, best first."""
        found = [
            (per_slice(self._standing.brings(place, self._by), group[2]), place.number, place)
            for group, place in self._tops(pool)
        ]
        return [(change, place) for change, _, place in sorted(found)]

    def _tops(self, pool: int) -> Iterator[tuple[_Group, Place]]:
        for group in self._in_pool.get(pool, ()):
            heap = self._groups[group]
            while heap and heap[0][2] != self._versions[heap[0][1]]:
                heappop(heap)
            if heap:
                yield group, self._standing.places[heap[0][1]]


def improve(component: Component, start: Counts) -> Counts:
    """From `start`, which may exceed capacity, to numbers that no single addition, removal or exchange in a pool improves."""
    return _Improvement(Standing(component, start)).run()


class _Improvement:
    def __init__(self, standing: Standing) -> None:
        self._standing = standing
        self._more = Queue(standing, 1)
        self._fewer = Queue(standing, -1)

    def run(self) -> Counts:
        pools = range(len(self._standing.component.pools))
        for pool in pools:
            while self._standing.free(pool) < 0 and self._take(pool):
                pass
        # What is better in one pool may make room or need in another, through an Inference in both.
        settled = False
        while not settled:
            settled = True
            for pool in pools:
                settled = not self._settle(pool) and settled
        return self._standing.counts

    def _settle(self, pool: int) -> bool:
        changed = False
        while self._give(pool) or self._take_useless(pool) or self._exchange(pool):
            changed = True
        return changed

    def _apply(self, place: Place, by: int) -> None:
        self._standing.change(place, by)
        for each in siblings(self._standing, place):
            self._more.refresh(each)
            self._fewer.refresh(each)

    def _take(self, pool: int) -> bool:
        found = self._fewer.best(pool)
        if found is None:
            return False
        self._apply(found[1], -1)
        return True

    def _give(self, pool: int) -> bool:
        found = self._more.best(pool, fitting=self._standing.free(pool))
        if found is None or not better(found[0]):
            return False
        self._apply(found[1], 1)
        return True

    def _take_useless(self, pool: int) -> bool:
        found = self._fewer.best(pool)
        if found is None or not better(found[0]):
            return False
        self._apply(found[1], -1)
        return True

    def _exchange(self, pool: int) -> bool:
        """The best addition for which enough is taken from those who lose least."""
        return any(self._exchange_for(place) for _, place in self._more.tops(pool))

    def _exchange_for(self, place: Place) -> bool:
        standing = self._standing
        change = standing.brings(place, 1)
        self._apply(place, 1)
        taken: list[Place] = []
        while standing.free(place.pool) < 0 or not taken:
            found = self._fewer.best(place.pool)
            if found is None or found[1] == place:
                break
            change = added(change, standing.brings(found[1], -1))
            self._apply(found[1], -1)
            taken.append(found[1])
        if taken and standing.free(place.pool) >= 0 and better(change):
            return True
        for each in reversed(taken):
            self._apply(each, 1)
        self._apply(place, -1)
        return False
