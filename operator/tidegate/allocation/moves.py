"""Order of the moves from the current replicas to the target.

No move exceeds capacity, breaks a real-time floor or drops demand. Promote spares, start what fits, drain and stop, start
the rest; then again for what had to wait.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidegate.allocation.assignment import MoveAction
from tidegate.allocation.component import Component, Counts
from tidegate.allocation.utility import ModelUtility, PoolOption
from tidegate.api.inference import Tier

_TIER_ORDER = {tier: number for number, tier in enumerate(Tier)}
_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class MoveStep:
    """Start, promotion or stop of `replicas` of one option in a wave."""

    wave: int
    action: MoveAction
    utility: ModelUtility
    option: PoolOption
    replicas: int


@dataclass(slots=True)
class _OptionState:
    """State of an option between moves; `remaining` replicas are still to start (positive) or to stop (negative).

    `current` replicas serve or load, `ready` of them serve.
    """

    utility: ModelUtility
    option: PoolOption
    current: int
    ready: int
    remaining: int
    spare: int


@dataclass(frozen=True, slots=True)
class _ReadyMinimum:
    """Replicas and rate that an Inference keeps ready while others of its replicas load."""

    replicas: int
    rate: float


def order_moves(
    component: Component, target: Counts
) -> tuple[list[MoveStep], list[tuple[ModelUtility, PoolOption, int]]]:
    """Return the ordered moves, and the changes that no order can make (Inference, option, replicas left)."""
    return _MoveOrdering(component, target).run()


class _MoveOrdering:
    """Ordering of the moves of one component."""

    def __init__(self, component: Component, target: Counts) -> None:
        self._component = component
        self._states = [
            _OptionState(
                utility,
                option,
                option.current,
                option.placement.replicas.ready,
                count - option.current,
                option.placement.replicas.spare,
            )
            for utility, counts in zip(component.utilities, target, strict=True)
            for option, count in zip(utility.options, counts, strict=True)
        ]
        self._states.sort(
            key=lambda state: (_TIER_ORDER[state.utility.model.tier], -state.utility.value_density)
        )
        self._states_of: defaultdict[ModelUtility, list[_OptionState]] = defaultdict(list)
        for state in self._states:
            self._states_of[state.utility].append(state)
        self._minimums = {
            utility: _ready_minimum(utility, counts)
            for utility, counts in zip(component.utilities, target, strict=True)
        }
        self._steps: list[MoveStep] = []
        self._occupied = dict.fromkeys(component.pool_index, 0)
        for state in self._states:
            draining = state.option.placement.replicas.draining
            self._occupied[state.option.pool] += (
                state.current + draining + state.spare
            ) * state.option.slices
        self._draining = dict.fromkeys(component.pool_index, 0)
        for state in self._states:
            self._draining[state.option.pool] += (
                state.option.placement.replicas.draining * state.option.slices
            )

    def run(self) -> tuple[list[MoveStep], list[tuple[ModelUtility, PoolOption, int]]]:
        """Return the ordered moves and the changes that remain."""
        wave = 0
        self._promote_spares()
        self._stop_spares()
        while any(state.remaining for state in self._states):
            steps_before = len(self._steps)
            self._start_replicas(wave)
            freed = self._stop_replicas(wave)
            is_waiting = any(self._draining.values()) or any(
                state.ready < state.current for state in self._states
            )
            if len(self._steps) == steps_before and not is_waiting:
                break
            self._end_wave(freed)
            wave += 1
        return self._steps, [
            (state.utility, state.option, state.remaining) for state in self._states if state.remaining
        ]

    def _promote_spares(self) -> None:
        """Promote spares of the options that scale up."""
        for state in self._states:
            count = min(state.spare, max(state.remaining, 0))
            if count:
                self._steps.append(MoveStep(0, MoveAction.PROMOTE, state.utility, state.option, count))
                state.spare -= count
                state.remaining -= count
                state.current += count
                state.ready += count

    def _stop_spares(self) -> None:
        """Stop spares where other options need their slices."""
        for pool in self._component.pools:
            in_pool = [state for state in self._states if state.option.pool == pool.name]
            needed = sum(max(state.remaining, 0) * state.option.slices for state in in_pool)
            freed = sum(max(-state.remaining, 0) * state.option.slices for state in in_pool)
            missing = self._occupied[pool.name] - self._draining[pool.name] + needed - freed - pool.slices
            for state in reversed(in_pool):
                count = min(state.spare, -(-missing // state.option.slices)) if missing > 0 else 0
                if count > 0:
                    self._steps.append(MoveStep(0, MoveAction.STOP_SPARE, state.utility, state.option, count))
                    state.spare -= count
                    missing -= count * state.option.slices
                    self._draining[pool.name] += count * state.option.slices

    def _start_replicas(self, wave: int) -> None:
        """Start the replicas that fit now."""
        slices = {pool.name: pool.slices for pool in self._component.pools}
        for state in self._states:
            free = slices[state.option.pool] - self._occupied[state.option.pool]
            count = min(max(state.remaining, 0), max(free, 0) // state.option.slices)
            if count:
                self._steps.append(MoveStep(wave, MoveAction.START, state.utility, state.option, count))
                self._occupied[state.option.pool] += count * state.option.slices
                state.remaining -= count
                state.current += count

    def _stop_replicas(self, wave: int) -> dict[str, int]:
        """Stop the replicas that may stop now; return the slices that this frees at the end of the wave, by pool."""
        freed: dict[str, int] = {}
        for state in reversed(self._states):
            count = min(max(-state.remaining, 0), self._count_stoppable(state))
            if count:
                self._steps.append(MoveStep(wave, MoveAction.STOP, state.utility, state.option, count))
                state.remaining += count
                state.current -= count
                # Replicas that still load stop first: they serve no requests.
                state.ready = min(state.ready, state.current)
                freed[state.option.pool] = freed.get(state.option.pool, 0) + count * state.option.slices
        return freed

    def _count_stoppable(self, state: _OptionState) -> int:
        """Return how many replicas may stop before others are ready.

        An Inference with an SLO keeps its floor and the rate that it serves.
        """
        if not state.utility.model.tier.traits.has_slo or not any(self._iter_pending(state.utility)):
            return state.current
        siblings = [sibling for sibling in self._states_of[state.utility] if sibling is not state]
        minimum = self._minimums[state.utility]
        rate = minimum.rate - sum(
            sibling.option.placement.curve.rate_at(sibling.ready) for sibling in siblings
        )
        needed = state.option.placement.curve.replicas_for(rate) if rate > _TOLERANCE else 0
        floor = minimum.replicas - sum(sibling.ready for sibling in siblings)
        must_stay = max(state.ready if needed is None else needed, floor)
        return max(state.ready - must_stay, 0) + (state.current - state.ready)

    def _iter_pending(self, utility: ModelUtility) -> Iterator[bool]:
        """Yield for each option of an Inference whether some of its replicas are still to start or to load.

        If none is, the Inference scales down, and its floor is given up on purpose.
        """
        for state in self._states_of[utility]:
            yield state.remaining > 0 or state.ready < state.current

    def _end_wave(self, freed: dict[str, int]) -> None:
        """Free the slices of stopped replicas, and count those that loaded as ready."""
        for pool, slices in freed.items():
            self._occupied[pool] -= slices
        for pool, slices in self._draining.items():
            self._occupied[pool] -= slices
            self._draining[pool] = 0
        for state in self._states:
            state.ready = state.current


def _ready_minimum(utility: ModelUtility, target: Sequence[int]) -> _ReadyMinimum:
    """Return the floor and the present demand, as far as the ready replicas meet them now.

    What the target itself gives up is not kept.
    """
    ready = [option.placement.replicas.ready for option in utility.options]
    load = utility.model.load
    present = load.rates[0] if load is not None else 0.0
    rate = min(present, sum(utility.rates_at(ready)), sum(utility.rates_at(target)))
    return _ReadyMinimum(min(utility.floor, sum(ready)), rate)
