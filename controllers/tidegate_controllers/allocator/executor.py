"""Executes allocation decisions: writes them, takes their steps, and writes the allocations of Inferences."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakValueDictionary

import structlog

from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.meta import ObjectKey
from tidegate.errors import PermanentError
from tidegate.exporters.allocator import AllocatorMetrics
from tidegate.kube.fence import Fence
from tidegate.kube.kinds import ALLOCATION_DECISION, INFERENCE
from tidegate.kube.port import ClusterApi, Manifest
from tidegate.kube.store import ObjectStore
from tidegate.planning.allocator.decision import find_expired
from tidegate.planning.allocator.decision_steps import (
    DecisionStep,
    ReclaimedSlices,
    TargetReplicas,
    make_allocation,
    make_failed_outcome,
    plan_next_step,
    revert_targets,
)
from tidegate.planning.allocator.observed_pool import AllocationObserved
from tidegate.telemetry.tracing import DECISION, Attributes, add_attributes, mark_failed, start_span
from tidegate_controllers.allocator.observer import PoolObserver

FIELD_MANAGER: Final = "tidegate-allocator"
_CONCURRENT_WRITES: Final = 16
"""Statuses that are written at the same time."""

log: Final = structlog.stdlib.get_logger()


@dataclass(slots=True, kw_only=True)
class DecisionExecutor:
    """Writes decisions and allocations as FIELD_MANAGER, and remembers for one term what it has counted and cleared."""

    cluster: ClusterApi
    observer: PoolObserver
    fence: Fence
    metrics: AllocatorMetrics
    _reclaimed: dict[str, dict[ObjectKey, ReclaimedSlices]] = field(default_factory=dict, init=False)
    _cleared: dict[ObjectKey, str] = field(default_factory=dict, init=False)
    _write_locks: WeakValueDictionary[ObjectKey, asyncio.Lock] = field(
        default_factory=WeakValueDictionary, init=False
    )

    async def clear_allocations(self, observed: AllocationObserved) -> None:
        """Remove our allocation, once, from Inferences that have a fixed number of replicas again.

        A later allocation of another writer stays.
        """
        for member in observed.members:
            if member.is_scaled or member.inference.status.allocation is None:
                self._cleared.pop(member.key, None)
            elif self._cleared.get(member.key) != member.inference.metadata.uid:
                await self._apply_status(member.key, {})
                self._cleared[member.key] = member.inference.metadata.uid

    async def abandon_decision(self, observed: AllocationObserved, reason: str) -> None:
        """End a decision in execution, because the pool's decisions may not be executed any more."""
        decision = _find_unfinished(observed)
        if decision is not None:
            await self._write_allocations(revert_targets(observed), decision)
            await self._end_decision(decision, make_failed_outcome(observed, decision, reason))

    async def write_decision(self, observed: AllocationObserved, body: Manifest) -> None:
        """Write a new decision, end the decision that it replaces, and delete the expired ones."""
        name = body["metadata"]["name"]
        add_attributes({DECISION: name})
        # 1. End the decision in execution first: at no time may two decisions be unfinished.
        superseded = _find_unfinished(observed)
        if superseded is not None:
            reason = f"superseded by {name} before it was complete"
            await self._end_decision(superseded, make_failed_outcome(observed, superseded, reason))
            self._reclaimed.pop(superseded.metadata.name, None)
        # 2. Write the new one, and put it into the cache at once: its first step follows in this reconcile.
        stored = await self.cluster.apply(body, self.fence)
        self._decision_store.observe("MODIFIED", stored)
        self._count_decision(observed, AllocationDecision.parse(stored))
        # 3. Delete the expired ones last, so that a failure does not delay the new one.
        for expired in find_expired(self.observer.list_decisions(observed.name)):
            await self.cluster.delete(
                ALLOCATION_DECISION, expired.key, uid=expired.metadata.uid, fence=self.fence
            )
            _forget_deleted(self._decision_store, expired.key)

    async def execute_decision(self, observed: AllocationObserved) -> None:
        """Take the next step of the current decision, and end it after its last one."""
        current = observed.current_decision
        if current is None or not current.should_execute:
            return
        step = plan_next_step(observed, current, self._reclaimed.get(current.metadata.name))
        await self._write_allocations(step.writes, current)
        self._record_reclaims(current, step)
        if step.outcome is not None:
            await self._end_decision(current, step.outcome)

    def _count_decision(self, observed: AllocationObserved, decision: AllocationDecision) -> None:
        mode, spec = decision.spec.mode.value, decision.spec
        self.metrics.decisions.labels(observed.name, mode).inc()
        for move in spec.moves:
            direction = "up" if move.after > move.before else "down"
            moved = abs(move.after - move.before) * move.slices
            self.metrics.moved_slices.labels(observed.name, mode, move.tier.value, direction).inc(moved)
        log.info(
            "decided", pool=observed.name, decision=decision.metadata.name, moves=spec.move_count, mode=mode
        )

    def _record_reclaims(self, decision: AllocationDecision, step: DecisionStep) -> None:
        """Record once how long each Inference took to give up its slices."""
        counted = self._reclaimed.setdefault(decision.metadata.name, {})
        for key, reclaim in step.reclaimed.items():
            if key not in counted:
                counted[key] = reclaim
                self.metrics.reclaim_seconds.labels(reclaim.tier.value).observe(reclaim.seconds)
        if step.outcome is not None:
            self._reclaimed.pop(decision.metadata.name, None)

    async def _write_allocations(
        self, targets: Mapping[ObjectKey, TargetReplicas], decision: AllocationDecision
    ) -> None:
        """Write the statuses that one step of a decision changes, some at a time, since there may be a thousand."""
        waiting = iter(targets.items())

        async def write() -> None:
            for key, target in waiting:
                attributes: Attributes = {
                    DECISION: decision.metadata.name,
                    "tidegate.inference": str(key),
                    "tidegate.replicas": target.replicas,
                }
                with start_span("allocate", attributes):
                    await self._write_allocation(key, target, decision)

        writers = [asyncio.ensure_future(write()) for _ in range(min(_CONCURRENT_WRITES, len(targets)))]
        try:
            # The first error is raised; the other writers are cancelled before the next reconcile.
            await asyncio.gather(*writers)
        finally:
            for writer in writers:
                writer.cancel()
            await asyncio.gather(*writers, return_exceptions=True)

    async def _write_allocation(
        self, key: ObjectKey, target: TargetReplicas, decision: AllocationDecision
    ) -> None:
        """Write the allocation of one Inference.

        With several pools, each allocation is a part of one status, so these writes wait for each other.
        """
        name = decision.metadata.name
        try:
            async with self._write_locks.setdefault(key, asyncio.Lock()):
                allocation = make_allocation(
                    self.observer.inferences.get(key), decision.spec.pool, target, name
                )
                await self._apply_status(key, {"allocation": {**allocation, "epoch": self.fence.epoch}})
        except PermanentError as error:
            # A refused status must not block the others; the next reconcile retries.
            log.warning("allocation_refused", inference=str(key), error=str(error))
            mark_failed(str(error))
        else:
            log.info(
                "allocated", inference=str(key), replicas=target.replicas, spares=target.spares, decision=name
            )

    async def _apply_status(self, key: ObjectKey, status: Manifest) -> None:
        inferences = self.observer.inferences
        inference = inferences.get(key)
        if inference is None:
            return
        stored = await self.cluster.apply_status(
            INFERENCE, key, status, uid=inference.metadata.uid, fence=self.fence
        )
        if stored is not None:
            inferences.store.observe("MODIFIED", stored)

    async def _end_decision(self, decision: AllocationDecision, status: Manifest) -> None:
        stored = await self.cluster.apply_status(
            ALLOCATION_DECISION, decision.key, status, uid=decision.metadata.uid, fence=self.fence
        )
        if stored is not None:
            self._decision_store.observe("MODIFIED", stored)
        else:
            _forget_deleted(self._decision_store, decision.key)

    @property
    def _decision_store(self) -> ObjectStore:
        return self.observer.decisions.store


def _find_unfinished(observed: AllocationObserved) -> AllocationDecision | None:
    """Return the newest decision if it is being executed."""
    newest = next(iter(observed.decisions), None)
    return newest if newest is not None and newest.should_execute and not newest.is_finished else None


def _forget_deleted(store: ObjectStore, key: ObjectKey) -> None:
    body = store.get(key)
    if body is not None:
        store.observe("DELETED", body)
