"""Greedy solver: give each slice to the replica that gains most from it, until none gains.

It is the answer of last resort and repairs rounded ones. With concave curves its result is near the optimum. It needs
no solver and never assigns more slices than there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from tidegate.allocation.component import Component, Counts
from tidegate.allocation.standing import Change, Place, Standing, added, better, per_slice, siblings

_Group = tuple[int, str, int, bool]
"""Pool, tier, slices per replica, and whether the change leads towards the current replicas.

Changes of one group have the same effect on the pool's own rules.
"""


class Queue:
    """Priority queue of all single additions (`by` 1) or removals (-1), the best first."""

    def __init__(self, state: Standing, by: int) -> None:
        self._state = state
        self._by = by
        self._versions = [0] * len(state.places)
        self._groups: dict[_Group, list[tuple[Change, int, int]]] = {}
        self._in_pool: dict[int, list[_Group]] = {}
        for slot in state.places:
            self.refresh(slot)

    def refresh(self, slot: Place) -> None:
        """Rate the change at `slot` again."""
        state = self._state
        self._versions[slot.number] += 1
        count, option = state.count(slot), state.spot(slot)
        if count + self._by < 0 or (self._by > 0 and not state.may_grow(slot)):
            return
        towards = (count < option.held) == (self._by > 0) and count != option.held
        group = (slot.pool, state.worth(slot).inference.tier.value, option.slices, towards)
        if group not in self._groups:
            self._groups[group] = []
            self._in_pool.setdefault(slot.pool, []).append(group)
        change = per_slice(state.brings_alone(slot, self._by), option.slices)
        heappush(self._groups[group], (change, slot.number, self._versions[slot.number]))

    def best(self, pool: int, *, fitting: int | None = None) -> tuple[Change, Place] | None:
        """Return the best change of a pool, per slice, that takes at most `fitting` slices."""
        candidates = [
            (per_slice(self._state.brings(slot, self._by), group[2]), slot.number, slot)
            for group, slot in self._tops(pool)
            if fitting is None or group[2] <= fitting
        ]
        if not candidates:
            return None
        change, _, slot = min(candidates)
        return change, slot

    def tops(self, pool: int) -> list[tuple[Change, Place]]:
        """Return the best change of each group of a pool, the best first."""
        candidates = [
            (per_slice(self._state.brings(slot, self._by), group[2]), slot.number, slot)
            for group, slot in self._tops(pool)
        ]
        return [(change, slot) for change, _, slot in sorted(candidates)]

    def _tops(self, pool: int) -> Iterator[tuple[_Group, Place]]:
        """Yield each group of a pool with its best slot; drop outdated entries on the way."""
        for group in self._in_pool.get(pool, ()):
            heap = self._groups[group]
            while heap and heap[0][2] != self._versions[heap[0][1]]:
                heappop(heap)
            if heap:
                yield group, self._state.places[heap[0][1]]


def improve(component: Component, start: Counts) -> Counts:
    """Improve `start` until no single addition, removal or exchange within a pool improves it.

    `start` may exceed the capacity; the result does not.
    """
    return _Improvement(Standing(component, start)).run()


class _Improvement:
    """Local search by single additions, removals and exchanges."""

    def __init__(self, state: Standing) -> None:
        self._state = state
        self._additions = Queue(state, 1)
        self._removals = Queue(state, -1)

    def run(self) -> Counts:
        """Free what exceeds the capacity, then improve all pools until none changes."""
        pools = range(len(self._state.component.pools))
        for pool in pools:
            while self._state.free(pool) < 0 and self._take(pool):
                pass
        # A change in one pool may allow or require one in another, through an Inference in both: repeat until none changes.
        is_stable = False
        while not is_stable:
            is_stable = True
            for pool in pools:
                is_stable = not self._settle(pool) and is_stable
        return self._state.counts

    def _settle(self, pool: int) -> bool:
        """Improve one pool and return whether it changed."""
        changed = False
        while self._give(pool) or self._take_useless(pool) or self._exchange(pool):
            changed = True
        return changed

    def _apply(self, slot: Place, by: int) -> None:
        self._state.change(slot, by)
        for sibling in siblings(self._state, slot):
            self._additions.refresh(sibling)
            self._removals.refresh(sibling)

    def _take(self, pool: int) -> bool:
        """Remove the replica of a pool that costs least."""
        best = self._removals.best(pool)
        if best is None:
            return False
        self._apply(best[1], -1)
        return True

    def _give(self, pool: int) -> bool:
        """Add the best replica that fits, if it is an improvement."""
        best = self._additions.best(pool, fitting=self._state.free(pool))
        if best is None or not better(best[0]):
            return False
        self._apply(best[1], 1)
        return True

    def _take_useless(self, pool: int) -> bool:
        """Remove the replica that costs least, if that is an improvement."""
        best = self._removals.best(pool)
        if best is None or not better(best[0]):
            return False
        self._apply(best[1], -1)
        return True

    def _exchange(self, pool: int) -> bool:
        """Make the best addition for which enough replicas of less value can be removed."""
        return any(self._exchange_for(slot) for _, slot in self._additions.tops(pool))

    def _exchange_for(self, slot: Place) -> bool:
        """Add a replica at `slot` and remove others until it fits; undo everything if that is no improvement."""
        state = self._state
        change = state.brings(slot, 1)
        self._apply(slot, 1)
        removed: list[Place] = []
        while state.free(slot.pool) < 0 or not removed:
            cheapest = self._removals.best(slot.pool)
            if cheapest is None or cheapest[1] == slot:
                break
            change = added(change, state.brings(cheapest[1], -1))
            self._apply(cheapest[1], -1)
            removed.append(cheapest[1])
        if removed and state.free(slot.pool) >= 0 and better(change):
            return True
        for removed_slot in reversed(removed):
            self._apply(removed_slot, 1)
        self._apply(slot, -1)
        return False
