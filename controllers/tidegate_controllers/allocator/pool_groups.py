"""Divides the Inferences that several pools share, by one solve over all pools that they connect."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Protocol

import structlog

from tidegate.allocation.assembly import SolveLimits
from tidegate.allocation.assignment import Assignment, SolveMethod
from tidegate.allocation.snapshot import AllocationSnapshot
from tidegate.api.durations import parse_duration
from tidegate.api.meta import ObjectKey
from tidegate.planning.allocator.observed_pool import AllocationObserved
from tidegate.planning.allocator.pool_group import build_group, divide_members
from tidegate.planning.allocator.signals import Signals

MAX_GAP: Final = 0.003
"""Distance from the optimum, as a share of the value, beyond which an answer divides nothing: it would move replicas for less."""
_LIMITS: Final = SolveLimits(seconds=0.5)
_PAUSE: Final = timedelta(minutes=5)
"""Time for which a group is not solved again after an answer that divides nothing, since the next one would cost as much."""
_MIN_TURN: Final = timedelta(seconds=30)
"""Age up to which a pool's last decision counts at least; a busy machine may need so long for one round of pools."""

log: Final = structlog.stdlib.get_logger()


class AllocationSolver(Protocol):
    """Solves assignments; runtime.solver_process.SolverProcess in a cluster."""

    async def solve(
        self, snapshot: AllocationSnapshot, limits: SolveLimits | None = None, *, outwait: bool = True
    ) -> Assignment:
        """Return an assignment that can be executed; never fails.

        Without `outwait`, a late answer is given up, and says nothing about the time that others take.
        """
        ...


@dataclass(frozen=True, slots=True)
class DividedPool:
    """A pool with what its Inferences are to have in others; `note` says why they were not divided, or not in the best way."""

    observed: AllocationObserved
    note: str = ""


@dataclass(slots=True)
class PoolGroups:
    """Remembers from which inputs each pool was last decided, for one term: the others take part with these."""

    solver: AllocationSolver
    _decided: dict[ObjectKey, AllocationObserved] = field(
        default_factory=dict[ObjectKey, AllocationObserved], init=False
    )
    _paused: dict[tuple[str, ...], tuple[datetime, str]] = field(
        default_factory=dict[tuple[str, ...], tuple[datetime, str]], init=False
    )
    """Until when a group is not solved, and why, by the names of its pools."""

    def list_deciding(self, observed: AllocationObserved) -> frozenset[str]:
        """Return the pools that decide at least half as often as this one and have executed it of late, by name.

        Others may start their part much later, or never.
        """
        slowest = _get_turn(observed)
        return frozenset(
            last.name
            for last in self._decided.values()
            if _get_interval(last) <= slowest and observed.now - last.now <= _get_turn(last)
        )

    async def divide_pool(
        self, observed: AllocationObserved, neighbours: Sequence[AllocationObserved]
    ) -> DividedPool:
        """Solve a pool with the others of its group, and return it with their part.

        If the answer is greedy, or farther than MAX_GAP from the optimum, no replica moves between pools for it, and the group
        is not solved again for a while. The same holds for an error in what other teams own: the pool decides alone.
        """
        partners = [
            self._update_other(observed, other) for other in neighbours if other.pool.key in self._decided
        ]
        names = ", ".join(other.name for other in partners)
        paused_until, note = self._paused.get(_name_pools(observed, partners), (observed.now, ""))
        if not partners or observed.now < paused_until:
            return DividedPool(observed, note if partners else "")
        try:
            group = build_group(observed, partners)
            if group is None:
                return DividedPool(observed)
            assignment = await self.solver.solve(group.snapshot, _LIMITS, outwait=False)
            divided = divide_members(observed, group, assignment)
        except Exception as error:
            log.error("pools_not_divided", pool=observed.name, partners=names, exc_info=error)
            return self._pause_group(
                observed, partners, f"not solved together with {names}: {type(error).__name__}"
            )
        gap = assignment.gap or 0.0
        if assignment.method is SolveMethod.GREEDY or gap > MAX_GAP:
            reason = assignment.note or f"the answer may be {gap:.1%} from the optimum"
            return self._pause_group(observed, partners, f"not solved together with {names}: {reason}")
        return DividedPool(divided, assignment.note and f"solved together with {names}: {assignment.note}")

    def _pause_group(
        self, observed: AllocationObserved, partners: Sequence[AllocationObserved], note: str
    ) -> DividedPool:
        current = {names: pause for names, pause in self._paused.items() if observed.now < pause[0]}
        self._paused = {**current, _name_pools(observed, partners): (observed.now + _PAUSE, note)}
        return DividedPool(observed, note)

    def put_decided(self, observed: AllocationObserved, price: float) -> None:
        """Take what a pool was decided from once that decision is executed, with the price that the solve has found."""
        self._decided[observed.pool.key] = replace(observed, price=price)

    def forget_pool(self, pool: ObjectKey) -> None:
        """Forget a pool that was deleted, or that needs no solve now."""
        self._decided.pop(pool, None)

    def _update_other(self, observed: AllocationObserved, other: AllocationObserved) -> AllocationObserved:
        """Return another pool as it is now, with the capacities and the expected demand that it was last decided from.

        The demand is what was just read; only of an Inference that this lacks, what the pool was last decided from.
        """
        last = self._decided[other.pool.key]
        by_key = {**last.signals.by_key, **other.signals.by_key, **observed.signals.by_key}
        return replace(
            other,
            signals=Signals(by_key, other.signals.problem),
            price=last.price,
            corrections=last.corrections,
            forecasts=last.forecasts,
            event_demands=last.event_demands,
            mixes={**last.mixes, **observed.mixes},
        )


def _get_interval(observed: AllocationObserved) -> timedelta:
    return parse_duration(observed.pool.spec.policy.interval)


def _get_turn(observed: AllocationObserved) -> timedelta:
    """Return the time for which a decision of a pool counts: two of its intervals."""
    return max(2 * _get_interval(observed), _MIN_TURN)


def _name_pools(observed: AllocationObserved, partners: Sequence[AllocationObserved]) -> tuple[str, ...]:
    return observed.name, *(other.name for other in partners)
