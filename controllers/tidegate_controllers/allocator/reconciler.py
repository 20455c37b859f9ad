"""The allocator: regularly decides how many slices of a pool each Inference gets, and executes the decision."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from tidegate.api.allocation_decision import DecisionTrigger
from tidegate.api.compute_pool import ComputePool
from tidegate.api.durations import parse_duration
from tidegate.api.meta import ObjectKey
from tidegate.exporters.allocator import AllocatorMetrics
from tidegate.kube.fence import Fence
from tidegate.planning.allocator.freeze import find_next_begin
from tidegate.planning.allocator.observed_pool import AllocationObserved
from tidegate.planning.allocator.pool_status import PoolAllocation, summarise_allocation
from tidegate.planning.allocator.spare_plan import PoolSparePlan
from tidegate.planning.pools.overrides import END_MARGIN, find_next_end
from tidegate.runtime.clock import Clock
from tidegate.telemetry.tracing import start_span
from tidegate_controllers.allocator.autoscalers import AutoscalerLimits
from tidegate_controllers.allocator.executor import DecisionExecutor
from tidegate_controllers.allocator.observer import PoolObserver
from tidegate_controllers.allocator.solver import PoolSolver

_SYNC_REQUEUE: Final = timedelta(milliseconds=200)
_PROGRESS_REQUEUE: Final = timedelta(seconds=1)
"""Requeue delay while a decision is being executed."""


class AllocationResults:
    """The last result of each pool's allocator, for the status of the ComputePool; empty after a restart until the pool is reconciled."""

    def __init__(self, wake: Callable[[ObjectKey], None]) -> None:
        """Call `wake` with each pool whose result changes."""
        self._wake = wake
        self._results: dict[ObjectKey, PoolAllocation] = {}

    def get(self, pool: ObjectKey) -> PoolAllocation | None:
        """Return the last result; None if there is none."""
        return self._results.get(pool)

    def put(self, pool: ObjectKey, result: PoolAllocation) -> None:
        """Take the result of a reconcile."""
        if self._results.get(pool) != result:
            self._results[pool] = result
            self._wake(pool)

    def forget(self, pool: ObjectKey) -> None:
        """Forget a deleted pool."""
        self._results.pop(pool, None)

    def clear(self) -> None:
        """Forget everything when a new term begins, since another leader may have decided in between."""
        self._results.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocator:
    """Observe, solve, write a new decision, take its next step: one pass over one pool."""

    observer: PoolObserver
    solver: PoolSolver
    executor: DecisionExecutor
    autoscalers: AutoscalerLimits
    results: AllocationResults
    metrics: AllocatorMetrics
    fence: Fence
    clock: Clock

    async def reconcile(self, key: ObjectKey) -> timedelta | None:
        """Decide if that is due, and execute the current decision; return when to requeue the pool."""
        pool = self.observer.pools.get(key)
        if pool is None or pool.metadata.deletion_timestamp is not None:
            self.solver.forget_pool(key)
            self.observer.forget_pool(key)
            self.results.forget(key)
            self.observer.spares.forget_pool(key)
            return None
        interval = parse_duration(pool.spec.policy.interval)
        self.metrics.show_due(
            key.name, interval_s=interval.total_seconds(), now_s=self.clock.now().timestamp()
        )
        self.observer.occupancy.start_watching()
        if not self.observer.occupancy.has_synced:
            return _SYNC_REQUEUE
        started_s = self.clock.monotonic()

        # 1. Observe the pool, its Inferences and its decisions.
        observed = self.observer.observe_pool(pool)
        self.metrics.overrides.labels(observed.name).set(_count_active_overrides(observed))

        # 2. Clean up outside of decisions: clear the allocation of Inferences without spec.scaling, and bound autoscalers.
        # This comes before 3, which returns early for a pool without scaled Inferences.
        await self.executor.clear_allocations(observed)
        await self.autoscalers.limit_autoscalers(observed, self.fence)

        # 3. Skip the solve if nothing is scaled, or if no node is healthy: scaling down would then free no slice.
        if not observed.scaled_members:
            await self.executor.abandon_decision(observed, "no Inference of the pool has spec.scaling")
            self.observer.spares.put_plan(key, PoolSparePlan())
        if not observed.scaled_members or not any(node.healthy_slices for node in observed.slices.nodes):
            self.solver.suspend_pool(observed)
            newest = observed.decisions[0].metadata.name if observed.decisions else None
            self.results.put(key, PoolAllocation(observed.effective_mode, newest))
            return interval

        # 4. Solve if that is due, and write the decision.
        trigger = self.solver.find_due_trigger(observed)
        if trigger is None:
            self.solver.refresh_inputs(observed)
        else:
            with start_span("decide", {"tidegate.pool": observed.name}):
                await self._decide_pool(observed, trigger)

        # 5. Take the next step of the current decision, from a fresh observation, since solving may have taken seconds.
        await self.executor.execute_decision(self._observe_again(pool))
        self.solver.put_executed(key)

        # 6. Report what the step has changed, in the status of the ComputePool.
        observed, last = self._observe_again(pool), self.solver.get_last(key)
        self.results.put(key, summarise_allocation(observed, last.assignment, last.excluded, last.forecasts))
        if trigger is not None:
            self.metrics.tick_seconds.labels(observed.name).observe(self.clock.monotonic() - started_s)
        return self._requeue_after(observed)

    async def _decide_pool(self, observed: AllocationObserved, trigger: DecisionTrigger) -> None:
        """Solve, and write the decision if it differs from the current one."""
        # 1. Stop a decision that the pool's mode does not allow to execute any more, even if the solve below fails.
        if not observed.effective_mode.executes_decisions:
            await self.executor.abandon_decision(
                observed, f"spec.policy.mode is now {observed.effective_mode.value}"
            )
        # 2. Read the demand, then observe again: the read may take seconds, and step 1 may have written statuses.
        signals = await self.solver.read_signals(parse_duration(observed.pool.spec.policy.interval))
        observed = self.observer.observe_pool(observed.pool)
        observed = replace(observed, signals=self.solver.hold_peaks(observed, signals))
        # 3. Solve, and write what is new.
        neighbours = self.observer.observe_group(observed, self.solver.list_deciding(observed))
        neighbours = self.solver.read_neighbours(neighbours, signals)
        solve, decision = await self.solver.solve_pool(observed, trigger, neighbours)
        if decision is not None:
            await self.executor.write_decision(observed, decision)
        # 4. Store the solve last, so that the next reconcile solves again if the decision could not be written.
        self.solver.put_last(observed.pool.key, solve)
        self.observer.spares.put_plan(observed.pool.key, solve.observed.spare_plan)

    def _observe_again(self, pool: ComputePool) -> AllocationObserved:
        last = self.solver.get_last(pool.key).observed
        return replace(
            self.observer.observe_pool(pool), signals=last.signals, event_demands=last.event_demands
        )

    def _requeue_after(self, observed: AllocationObserved) -> timedelta:
        delay = max(self.solver.time_until_due(observed), timedelta())
        if observed.current_decision is not None and observed.current_decision.should_execute:
            delay = min(delay, _PROGRESS_REQUEUE)
        changes = (
            find_next_end(observed.active_overrides),
            observed.freeze.until if observed.freeze is not None else None,
            find_next_begin(observed.pool.spec.policy.freeze, observed.now),
            observed.calendar.find_next_change(observed.now),
        )
        soonest = min((change for change in changes if change is not None), default=None)
        if soonest is None:
            return delay
        return min(delay, max(soonest - observed.now, timedelta()) + END_MARGIN)


def _count_active_overrides(observed: AllocationObserved) -> int:
    """Return how many active overrides target the pool or one of its Inferences."""
    keys = {member.key for member in observed.members} | {observed.pool.key}
    return sum(override.spec.target.key in keys for override in observed.active_overrides)
