"""Divides the Inferences that several pools share, by one solve over all pools that they connect."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from tidegate.allocation.assignment import Assignment, SolveMethod
from tidegate.allocation.snapshot import AllocationSnapshot
from tidegate.api.meta import ObjectKey
from tidegate.planning.allocator.pool_group import build_group, divide_members
from tidegate.planning.allocator.signals import Signals
from tidegate.planning.allocator.snapshot_builder import AllocationObserved


class AllocationSolver(Protocol):
    """Solves assignments; runtime.solver_process.SolverProcess in a cluster."""

    async def solve(self, snapshot: AllocationSnapshot) -> Assignment:
        """Return an assignment that can be executed; never fails."""
        ...


@dataclass(frozen=True, slots=True)
class DividedPool:
    """A pool with what its Inferences are to have in others; `note` says why they were not divided, else it is empty."""

    observed: AllocationObserved
    note: str = ""


@dataclass(slots=True)
class PoolGroups:
    """Remembers from which inputs each pool was last decided, for one term: the others take part with these."""

    solver: AllocationSolver
    _decided: dict[ObjectKey, AllocationObserved] = field(
        default_factory=dict[ObjectKey, AllocationObserved], init=False
    )

    async def divide_pool(
        self, observed: AllocationObserved, neighbours: Sequence[AllocationObserved]
    ) -> DividedPool:
        """Solve a pool with the others of its group, and return it with their part.

        A pool that has not been decided since this process leads is left out, as its demand has not been read. If the solver
        gives only a greedy answer, no replica moves between pools for it.
        """
        solved_pools = [
            self._update_other(observed, other) for other in neighbours if other.pool.key in self._decided
        ]
        group = build_group(observed, solved_pools) if solved_pools else None
        if group is None:
            return DividedPool(observed)
        assignment = await self.solver.solve(group.snapshot)
        if assignment.method is SolveMethod.GREEDY:
            names = ", ".join(other.name for other in solved_pools)
            return DividedPool(observed, f"not solved together with {names}: {assignment.note}")
        return DividedPool(divide_members(observed, group, assignment))

    def put_decided(self, observed: AllocationObserved, price: float) -> None:
        """Take what a pool was decided from, with the price that the solve has found."""
        self._decided[observed.pool.key] = replace(observed, price=price)

    def forget_pool(self, pool: ObjectKey) -> None:
        """Forget a pool that was deleted, or that needs no solve now."""
        self._decided.pop(pool, None)

    def _update_other(self, observed: AllocationObserved, other: AllocationObserved) -> AllocationObserved:
        """Return another pool as it is now, with the demand and capacities that it was last decided from.

        Of the Inferences that it shares with this pool, the demand that was just read counts.
        """
        last = self._decided[other.pool.key]
        by_key = {**last.signals.by_key, **observed.signals.by_key}
        return replace(
            other,
            signals=Signals(by_key, last.signals.problem),
            price=last.price,
            corrections=last.corrections,
            forecasts=last.forecasts,
            event_demands=last.event_demands,
            mixes={**last.mixes, **observed.mixes},
        )
