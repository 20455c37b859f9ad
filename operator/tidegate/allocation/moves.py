"""Order of the moves from the current replicas to the target.

No move exceeds capacity, breaks a real-time floor or drops demand. Promote spares, start what fits, drain and stop, start
the rest; then again for what had to wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidegate.allocation.assignment import Action
from tidegate.allocation.component import Component, Counts
from tidegate.allocation.worth import Spot, Worth
from tidegate.api.inference import Tier

_TIER_ORDER = {Tier.REALTIME: 0, Tier.NEARLINE: 1, Tier.OFFLINE: 2}
_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Step:
    """Start, promotion or stop of `replicas` of one option in a wave."""

    wave: int
    action: Action
    worth: Worth
    spot: Spot
    replicas: int


@dataclass(slots=True)
class _Standing:
    """State of an option between moves; `remaining` replicas are still to start (positive) or to stop (negative).

    `current` replicas serve or load, `ready` of them serve.
    """

    worth: Worth
    spot: Spot
    held: int
    ready: int
    left: int
    spare: int


@dataclass(frozen=True, slots=True)
class _Kept:
    """Replicas and rate that an Inference keeps ready while others of its replicas load."""

    replicas: int
    rate: float


def order(component: Component, target: Counts) -> tuple[list[Step], list[tuple[Worth, Spot, int]]]:
    """Return the ordered moves, and the changes that no order can make (Inference, option, replicas left)."""
    return _Ordering(component, target).run()


class _Ordering:
    """Ordering of the moves of one component."""

    def __init__(self, component: Component, target: Counts) -> None:
        self._component = component
        self._states = [
            _Standing(
                utility,
                option,
                option.held,
                option.placement.replicas.ready,
                count - option.held,
                option.placement.replicas.spare,
            )
            for utility, counts in zip(component.worths, target, strict=True)
            for option, count in zip(utility.spots, counts, strict=True)
        ]
        self._states.sort(key=lambda state: (_TIER_ORDER[state.worth.inference.tier], -state.worth.density))
        self._minimums = {
            utility: _kept(utility, counts) for utility, counts in zip(component.worths, target, strict=True)
        }
        self._steps: list[Step] = []
        self._occupied = dict.fromkeys(component.pool_index, 0)
        for state in self._states:
            draining = state.spot.placement.replicas.draining
            self._occupied[state.spot.pool] += (state.held + draining + state.spare) * state.spot.slices
        self._draining = dict.fromkeys(component.pool_index, 0)
        for state in self._states:
            self._draining[state.spot.pool] += state.spot.placement.replicas.draining * state.spot.slices

    def run(self) -> tuple[list[Step], list[tuple[Worth, Spot, int]]]:
        """Return the ordered moves and the changes that remain."""
        wave = 0
        self._promote()
        self._stop_spares()
        while any(state.left for state in self._states):
            steps_before = len(self._steps)
            self._start(wave)
            freed = self._stop(wave)
            is_waiting = any(self._draining.values()) or any(
                state.ready < state.held for state in self._states
            )
            if len(self._steps) == steps_before and not is_waiting:
                break
            self._end_wave(freed)
            wave += 1
        return self._steps, [(state.worth, state.spot, state.left) for state in self._states if state.left]

    def _promote(self) -> None:
        """Promote spares of the options that scale up."""
        for state in self._states:
            count = min(state.spare, max(state.left, 0))
            if count:
                self._steps.append(Step(0, Action.PROMOTE, state.worth, state.spot, count))
                state.spare -= count
                state.left -= count
                state.held += count
                state.ready += count

    def _stop_spares(self) -> None:
        """Stop spares where other options need their slices."""
        for pool in self._component.pools:
            in_pool = [state for state in self._states if state.spot.pool == pool.name]
            needed = sum(max(state.left, 0) * state.spot.slices for state in in_pool)
            freed = sum(max(-state.left, 0) * state.spot.slices for state in in_pool)
            missing = self._occupied[pool.name] - self._draining[pool.name] + needed - freed - pool.slices
            for state in reversed(in_pool):
                count = min(state.spare, -(-missing // state.spot.slices)) if missing > 0 else 0
                if count > 0:
                    self._steps.append(Step(0, Action.STOP_SPARE, state.worth, state.spot, count))
                    state.spare -= count
                    missing -= count * state.spot.slices
                    self._draining[pool.name] += count * state.spot.slices

    def _start(self, wave: int) -> None:
        """Start the replicas that fit now."""
        slices = {pool.name: pool.slices for pool in self._component.pools}
        for state in self._states:
            free = slices[state.spot.pool] - self._occupied[state.spot.pool]
            count = min(max(state.left, 0), max(free, 0) // state.spot.slices)
            if count:
                self._steps.append(Step(wave, Action.START, state.worth, state.spot, count))
                self._occupied[state.spot.pool] += count * state.spot.slices
                state.left -= count
                state.held += count

    def _stop(self, wave: int) -> dict[str, int]:
        """Stop the replicas that may stop now; return the slices that this frees at the end of the wave, by pool."""
        freed: dict[str, int] = {}
        for state in reversed(self._states):
            count = min(max(-state.left, 0), self._may_stop(state))
            if count:
                self._steps.append(Step(wave, Action.STOP, state.worth, state.spot, count))
                state.left += count
                state.held -= count
                # Replicas that still load stop first: they serve no requests.
                state.ready = min(state.ready, state.held)
                freed[state.spot.pool] = freed.get(state.spot.pool, 0) + count * state.spot.slices
        return freed

    def _may_stop(self, state: _Standing) -> int:
        """Return how many replicas may stop before others are ready.

        A real-time Inference keeps its floor and the rate that it serves.
        """
        if state.worth.inference.tier is not Tier.REALTIME or not any(self._rising(state.worth)):
            return state.held
        siblings = [
            sibling for sibling in self._states if sibling.worth is state.worth and sibling is not state
        ]
        minimum = self._minimums[state.worth]
        rate = minimum.rate - sum(sibling.spot.placement.curve.at(sibling.ready) for sibling in siblings)
        needed = state.spot.placement.curve.needed(rate) if rate > _TOLERANCE else 0
        floor = minimum.replicas - sum(sibling.ready for sibling in siblings)
        must_stay = max(state.ready if needed is None else needed, floor)
        return max(state.ready - must_stay, 0) + (state.held - state.ready)

    def _rising(self, utility: Worth) -> Iterator[bool]:
        """Yield for each option of an Inference whether some of its replicas are still to start or to load.

        If none is, the Inference scales down, and its floor is given up on purpose.
        """
        for state in self._states:
            if state.worth is utility:
                yield state.left > 0 or state.ready < state.held

    def _end_wave(self, freed: dict[str, int]) -> None:
        """Free the slices of stopped replicas, and count those that loaded as ready."""
        for pool, slices in freed.items():
            self._occupied[pool] -= slices
        for pool, slices in self._draining.items():
            self._occupied[pool] -= slices
            self._draining[pool] = 0
        for state in self._states:
            state.ready = state.held


def _kept(utility: Worth, target: Sequence[int]) -> _Kept:
    """Return the floor and the present demand, as far as the ready replicas meet them now.

    What the target itself gives up is not kept.
    """
    ready = [option.placement.replicas.ready for option in utility.spots]
    load = utility.inference.load
    present = load.rates[0] if load is not None else 0.0
    rate = min(present, sum(utility.rates(ready)), sum(utility.rates(target)))
    return _Kept(min(utility.floor, sum(ready)), rate)
