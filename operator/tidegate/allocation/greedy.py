"""Greedy solver: give each slice to the replica that gains most from it, until none gains.

It is the answer of last resort and repairs rounded ones. With concave curves its result is near the optimum. It needs
no solver and never assigns more slices than there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from tidegate.allocation.component import Component, Counts
from tidegate.allocation.state import (
    AllocationState,
    Change,
    OptionSlot,
    add_changes,
    is_improvement,
    iter_siblings,
    per_slice,
)

_Group = tuple[int, str, int, bool]
"""Pool, tier, slices per replica, and whether the change leads towards the current replicas.

Changes of one group have the same effect on the pool's own rules.
"""


class ChangeQueue:
    """Priority queue of all single additions (`by` 1) or removals (-1), the best first."""

    def __init__(self, state: AllocationState, by: int) -> None:
        self._state = state
        self._by = by
        self._versions = [0] * len(state.slots)
        self._groups: dict[_Group, list[tuple[Change, int, int]]] = {}
        self._in_pool: dict[int, list[_Group]] = {}
        for slot in state.slots:
            self.refresh_slot(slot)

    def refresh_slot(self, slot: OptionSlot) -> None:
        """Rate the change at `slot` again."""
        state = self._state
        self._versions[slot.number] += 1
        count, option = state.get_count(slot), state.get_option(slot)
        if count + self._by < 0 or (self._by > 0 and not state.can_scale_up(slot)):
            return
        towards = (count < option.current) == (self._by > 0) and count != option.current
        group = (slot.pool, state.get_utility(slot).model.tier.value, option.slices, towards)
        if group not in self._groups:
            self._groups[group] = []
            self._in_pool.setdefault(slot.pool, []).append(group)
        change = per_slice(state.marginal_change_alone(slot, self._by), option.slices)
        heappush(self._groups[group], (change, slot.number, self._versions[slot.number]))

    def best_change(self, pool: int, *, fitting: int | None = None) -> tuple[Change, OptionSlot] | None:
        """Return the best change of a pool, per slice, that takes at most `fitting` slices."""
        candidates = [
            (per_slice(self._state.marginal_change(slot, self._by), group[2]), slot.number, slot)
            for group, slot in self._iter_groups(pool)
            if fitting is None or group[2] <= fitting
        ]
        if not candidates:
            return None
        change, _, slot = min(candidates)
        return change, slot

    def best_by_group(self, pool: int) -> list[tuple[Change, OptionSlot]]:
        """Return the best change of each group of a pool, the best first."""
        candidates = [
            (per_slice(self._state.marginal_change(slot, self._by), group[2]), slot.number, slot)
            for group, slot in self._iter_groups(pool)
        ]
        return [(change, slot) for change, _, slot in sorted(candidates)]

    def _iter_groups(self, pool: int) -> Iterator[tuple[_Group, OptionSlot]]:
        """Yield each group of a pool with its best slot; drop outdated entries on the way."""
        for group in self._in_pool.get(pool, ()):
            heap = self._groups[group]
            while heap and heap[0][2] != self._versions[heap[0][1]]:
                heappop(heap)
            if heap:
                yield group, self._state.slots[heap[0][1]]


def improve_counts(component: Component, start: Counts) -> Counts:
    """Improve `start` until no single addition, removal or exchange within a pool improves it.

    `start` may exceed the capacity; the result does not.
    """
    return _LocalSearch(AllocationState(component, start)).run()


class _LocalSearch:
    """Local search by single additions, removals and exchanges."""

    def __init__(self, state: AllocationState) -> None:
        self._state = state
        self._additions = ChangeQueue(state, 1)
        self._removals = ChangeQueue(state, -1)

    def run(self) -> Counts:
        """Free what exceeds the capacity, then improve all pools until none changes."""
        pools = range(len(self._state.component.pools))
        for pool in pools:
            while self._state.free_slices(pool) < 0 and self._remove_cheapest(pool):
                pass
        # A change in one pool may allow or require one in another, through an Inference in both: repeat until none changes.
        is_stable = False
        while not is_stable:
            is_stable = True
            for pool in pools:
                is_stable = not self._improve_pool(pool) and is_stable
        return self._state.counts

    def _improve_pool(self, pool: int) -> bool:
        """Improve one pool and return whether it changed."""
        changed = False
        while self._add_best(pool) or self._remove_useless(pool) or self._exchange_best(pool):
            changed = True
        return changed

    def _apply_change(self, slot: OptionSlot, by: int) -> None:
        self._state.change_count(slot, by)
        for sibling in iter_siblings(self._state, slot):
            self._additions.refresh_slot(sibling)
            self._removals.refresh_slot(sibling)

    def _remove_cheapest(self, pool: int) -> bool:
        """Remove the replica of a pool that costs least."""
        best = self._removals.best_change(pool)
        if best is None:
            return False
        self._apply_change(best[1], -1)
        return True

    def _add_best(self, pool: int) -> bool:
        """Add the best replica that fits, if it is an improvement."""
        best = self._additions.best_change(pool, fitting=self._state.free_slices(pool))
        if best is None or not is_improvement(best[0]):
            return False
        self._apply_change(best[1], 1)
        return True

    def _remove_useless(self, pool: int) -> bool:
        """Remove the replica that costs least, if that is an improvement."""
        best = self._removals.best_change(pool)
        if best is None or not is_improvement(best[0]):
            return False
        self._apply_change(best[1], -1)
        return True

    def _exchange_best(self, pool: int) -> bool:
        """Make the best addition for which enough replicas of less value can be removed."""
        return any(self._try_exchange(slot) for _, slot in self._additions.best_by_group(pool))

    def _try_exchange(self, slot: OptionSlot) -> bool:
        """Add a replica at `slot` and remove others until it fits; undo everything if that is no improvement."""
        state = self._state
        change = state.marginal_change(slot, 1)
        self._apply_change(slot, 1)
        removed: list[OptionSlot] = []
        while state.free_slices(slot.pool) < 0 or not removed:
            cheapest = self._removals.best_change(slot.pool)
            if cheapest is None or cheapest[1] == slot:
                break
            change = add_changes(change, state.marginal_change(cheapest[1], -1))
            self._apply_change(cheapest[1], -1)
            removed.append(cheapest[1])
        if removed and state.free_slices(slot.pool) >= 0 and is_improvement(change):
            return True
        for removed_slot in reversed(removed):
            self._apply_change(removed_slot, 1)
        self._apply_change(slot, -1)
        return False
