"""The allocator: regularly decides how many slices of a pool each Inference gets, and executes the decision."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, Protocol

import structlog

from tidegate.allocation.assignment import Assignment
from tidegate.allocation.snapshot import AllocationSnapshot
from tidegate.allocation.spares import choose_warm_spares
from tidegate.api.allocation_decision import AllocationDecision, DecisionTrigger
from tidegate.api.compute_pool import ComputePool
from tidegate.api.durations import parse_duration
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.errors import PermanentError
from tidegate.exporters.allocator import AllocatorMetrics
from tidegate.exporters.solver_inputs import SolverInput, SolverInputs
from tidegate.kube.fence import Fence
from tidegate.kube.kinds import ALLOCATION_DECISION, INFERENCE
from tidegate.kube.occupancy import NodeOccupancy
from tidegate.kube.pool_slices_cache import PoolSlicesCache
from tidegate.kube.port import ClusterApi, Manifest
from tidegate.kube.store import ObjectStore
from tidegate.kube.typed_cache import TypedCache
from tidegate.planning.allocator.corrections import Corrections, update_corrections
from tidegate.planning.allocator.decision import (
    SolvedAllocation,
    find_expired,
    plan_decision,
    sort_newest_first,
)
from tidegate.planning.allocator.decision_steps import (
    DecisionStep,
    TargetReplicas,
    make_failed_outcome,
    plan_next_step,
    revert_targets,
)
from tidegate.planning.allocator.freeze import find_freeze, find_next_begin
from tidegate.planning.allocator.pool_status import PoolAllocation, summarise_allocation
from tidegate.planning.allocator.predictions import predict_outcome
from tidegate.planning.allocator.signals import Signals
from tidegate.planning.allocator.snapshot_builder import AllocationObserved, PoolMember, build_allocation_view
from tidegate.planning.allocator.triggers import DecisionInputs, find_trigger, resolve_trigger
from tidegate.planning.batch.remaining_shards import count_remaining_shards
from tidegate.planning.inference.deployments import LiveWorkload
from tidegate.planning.pools.claims import PoolClaim
from tidegate.planning.pools.overrides import END_MARGIN, find_next_end
from tidegate.planning.pools.pool_claims import refuse_claim
from tidegate.resources.names import POOL_LABEL, to_label_value
from tidegate.runtime.clock import Clock
from tidegate.telemetry.tracing import DECISION, Attributes, add_attributes, mark_failed, start_span
from tidegate_controllers.allocations import AllocationResults
from tidegate_controllers.autoscalers import AutoscalerLimits
from tidegate_controllers.overrides import OverrideIndex
from tidegate_controllers.placements import Placements
from tidegate_controllers.stores import Stores

FIELD_MANAGER: Final = "tidegate-allocator"
_SYNC_REQUEUE: Final = timedelta(milliseconds=200)
_PROGRESS_REQUEUE: Final = timedelta(seconds=1)
"""Requeue delay while a decision is being executed."""

_CONCURRENT_WRITES: Final = 16
"""Statuses that are written at the same time."""

log: Final = structlog.stdlib.get_logger()


class AllocationSolver(Protocol):
    """Solves assignments; runtime.solver_process.SolverProcess in a cluster."""

    async def solve(self, snapshot: AllocationSnapshot) -> Assignment:
        """Return an assignment that can be executed; never fails."""
        ...


class DemandSource(Protocol):
    """The demand of every Inference; telemetry's SignalReader in a cluster."""

    async def read(self) -> Signals:
        """Return the signals that are reliable now. Never raises."""
        ...


@dataclass(frozen=True, slots=True)
class AllocatorDependencies:
    """What the allocator needs besides the caches, and what outlives a term; `cluster` writes as FIELD_MANAGER."""

    cluster: ClusterApi
    solver: AllocationSolver
    demand: DemandSource
    autoscalers: AutoscalerLimits
    questions: SolverInputs
    metrics: AllocatorMetrics


@dataclass(frozen=True, slots=True)
class PoolCaches:
    """The caches of pools, their slices and their claims."""

    pools: TypedCache[ComputePool]
    inferences: TypedCache[Inference]
    decisions: TypedCache[AllocationDecision]
    views: PoolSlicesCache
    occupancy: NodeOccupancy
    placements: Placements
    overrides: OverrideIndex


@dataclass(frozen=True, slots=True)
class _LastSolve:
    """When a pool was last solved, from which inputs, and with which result."""

    started_s: float
    circumstances: DecisionInputs
    assignment: Assignment
    left_out: dict[ObjectKey, str]
    signals: Signals


class Allocator:
    """Observe, solve, write a new decision, take its next step: one pass over one pool."""

    def __init__(
        self,
        parts: AllocatorDependencies,
        stores: Stores,
        caches: PoolCaches,
        allocations: AllocationResults,
        fence: Fence,
        clock: Clock,
    ) -> None:
        self._parts = parts
        self._stores = stores
        self._caches = caches
        self._allocations = allocations
        self._fence = fence
        self._clock = clock
        self._last_solves: dict[ObjectKey, _LastSolve] = {}
        self._reclaimed: dict[str, set[ObjectKey]] = {}
        self._last_read: tuple[float, Signals] | None = None
        self._corrections: dict[ObjectKey, Corrections] = {}
        self._cleared: dict[ObjectKey, str] = {}

    async def reconcile(self, key: ObjectKey) -> timedelta | None:
        """Decide if that is due, and execute the current decision; return when to requeue the pool."""
        pool = self._caches.pools.get(key)
        if pool is None or pool.metadata.deletion_timestamp is not None:
            self._last_solves.pop(key, None)
            self._corrections.pop(key, None)
            self._parts.metrics.forget_pool(key.name)
            self._allocations.forget(key)
            self._parts.questions.forget(key)
            return None
        interval = parse_duration(pool.spec.policy.interval)
        metrics = self._parts.metrics
        metrics.show_due(key.name, interval_s=interval.total_seconds(), now_s=self._clock.now().timestamp())
        self._caches.occupancy.start_watching()
        if not self._caches.occupancy.has_synced:
            return _SYNC_REQUEUE
        started_at = self._clock.monotonic()
        observed = self._observe_pool(pool)
        self._parts.metrics.overrides.labels(pool.metadata.name).set(len(_active_overrides(observed)))
        await self._clear_allocations(observed)
        await self._parts.autoscalers.limit_autoscalers(observed, self._fence)
        if not observed.scaled_members:
            await self._abandon_decision(observed, "no Inference of the pool has spec.scaling")
        if not observed.scaled_members or not any(node.healthy_slices for node in observed.slices.nodes):
            # Skip the solve: nothing is autoscaled, or no node is healthy and scaling down would free no slice.
            if not observed.scaled_members:
                self._clear_corrections(key)
            self._parts.questions.forget(key)
            self._parts.metrics.hide_pool(observed.name)
            newest = observed.decisions[0].metadata.name if observed.decisions else None
            self._allocations.put(key, PoolAllocation(observed.effective_mode, newest))
            return interval
        last = self._last_solves.get(key)
        due = self._due_trigger(observed, last, interval)
        if last is None or due is not None:
            with start_span("decide", {"tidegate.pool": observed.name}):
                last = await self._decide_pool(observed, last, due or DecisionTrigger.STARTED)
        else:
            # Take the current nodes as a basis, so that the loss of one that joined since is noticed.
            last = replace(last, circumstances=DecisionInputs.from_observed(observed))
        self._last_solves[key] = last
        await self._execute_decision(self._observe_again(pool, last))
        observed = self._observe_again(pool, last)
        self._allocations.put(key, summarise_allocation(observed, last.assignment, last.left_out))
        if due is not None:
            seconds = self._clock.monotonic() - started_at
            self._parts.metrics.tick_seconds.labels(pool.metadata.name).observe(seconds)
        return self._requeue_after(observed, last, interval)

    def _requeue_after(
        self, observed: AllocationObserved, last: _LastSolve, interval: timedelta
    ) -> timedelta:
        due = max(interval - self._time_since(last), timedelta())
        if observed.standing_decision is not None and observed.standing_decision.should_execute:
            due = min(due, _PROGRESS_REQUEUE)
        changes = (
            find_next_end(observed.active_overrides),
            observed.freeze.until if observed.freeze is not None else None,
            find_next_begin(observed.pool.spec.policy.freeze, observed.now),
        )
        soonest = min((change for change in changes if change is not None), default=None)
        return due if soonest is None else min(due, max(soonest - observed.now, timedelta()) + END_MARGIN)

    def _due_trigger(
        self, observed: AllocationObserved, last: _LastSolve | None, interval: timedelta
    ) -> DecisionTrigger | None:
        """Return why a decision is due now; None if it is not."""
        if last is None:
            return DecisionTrigger.STARTED
        event = find_trigger(last.circumstances, DecisionInputs.from_observed(observed))
        return event or (DecisionTrigger.INTERVAL if self._time_since(last) >= interval else None)

    def _time_since(self, last: _LastSolve) -> timedelta:
        return timedelta(seconds=self._clock.monotonic() - last.started_s)

    async def _decide_pool(
        self, observed: AllocationObserved, last: _LastSolve | None, due: DecisionTrigger
    ) -> _LastSolve:
        """Solve, and write the decision if it differs from the standing one.

        The first solve of a process may lack demand; then the predecessor's decision, made with better data, goes on.
        """
        if not observed.effective_mode.executes_decisions:
            await self._abandon_decision(observed, f"spec.policy.mode is now {observed.effective_mode.value}")
        signals = await self._read_demand(parse_duration(observed.pool.spec.policy.interval))
        observed = self._apply_corrections(replace(self._observe_pool(observed.pool), signals=signals))
        circumstances = DecisionInputs.from_observed(observed)
        due = resolve_trigger(due, last.circumstances if last is not None else None, circumstances)
        add_attributes({"tidegate.trigger": due.value})
        view = build_allocation_view(observed)
        self._parts.questions.put(
            observed.pool.key, SolverInput(observed.now, observed.effective_mode, view.snapshot)
        )
        started_at = self._clock.monotonic()
        assignment = await self._parts.solver.solve(view.snapshot)
        seconds = self._clock.monotonic() - started_at
        add_attributes({"tidegate.method": assignment.method.value, "tidegate.solve_seconds": seconds})
        metrics, pool = self._parts.metrics, observed.name
        metrics.solve_seconds.labels(pool).observe(seconds)
        metrics.solves.labels(pool, assignment.method.value).inc()
        metrics.show_decided(pool, now_s=self._clock.now().timestamp(), signals_usable=not signals.problem)
        spares = choose_warm_spares(view.snapshot, assignment)
        solved = SolvedAllocation(
            assignment, predict_outcome(view.snapshot, assignment), due, seconds, spares
        )
        body = plan_decision(observed, solved)
        lacks_demand = (
            due is DecisionTrigger.STARTED
            and bool(signals.problem)
            and observed.standing_decision is not None
        )
        if body is not None and not lacks_demand:
            await self._write_decision(observed, body)
        return _LastSolve(started_at, circumstances, assignment, dict(view.excluded), signals)

    def _clear_corrections(self, key: ObjectKey) -> None:
        if self._corrections.pop(key, None) is not None:
            self._parts.metrics.show_corrections(key.name, {})

    def _apply_corrections(self, observed: AllocationObserved) -> AllocationObserved:
        """Return the observation with capacities corrected by what production shows."""
        key = observed.pool.key
        updated = self._corrections[key] = update_corrections(self._corrections.get(key, {}), observed)
        factors = {member: state.correction for member, state in updated.items()}
        self._parts.metrics.show_corrections(
            observed.name, {str(member): correction.factor for member, correction in factors.items()}
        )
        return replace(observed, corrections=factors)

    async def _read_demand(self, interval: timedelta) -> Signals:
        """Read the demand, at most once per half interval.

        Pools that decide at about the same time share one read: rates over less than half an interval would be noise.
        """
        now = self._clock.monotonic()
        if self._last_read is None or now - self._last_read[0] >= interval.total_seconds() / 2:
            self._last_read = now, await self._parts.demand.read()
        return self._last_read[1]

    async def _abandon_decision(self, observed: AllocationObserved, reason: str) -> None:
        """End a decision that is being executed when nothing may be executed any more."""
        for newest in observed.decisions[:1]:
            if newest.should_execute and not newest.is_finished:
                await self._write_allocations(revert_targets(observed), newest)
                await self._end_decision(newest, make_failed_outcome(observed, newest, reason))

    async def _write_decision(self, observed: AllocationObserved, body: Manifest) -> None:
        name = body["metadata"]["name"]
        add_attributes({DECISION: name})
        for newest in observed.decisions[:1]:
            if newest.should_execute and not newest.is_finished:
                await self._end_decision(
                    newest,
                    make_failed_outcome(observed, newest, f"superseded by {name} before it was complete"),
                )
                self._reclaimed.pop(newest.metadata.name, None)
        stored = await self._parts.cluster.apply(body, self._fence)
        self._stores.decisions.observe("MODIFIED", stored)
        written = AllocationDecision.parse(stored)
        metrics, mode = self._parts.metrics, written.spec.mode.value
        metrics.decisions.labels(observed.name, mode).inc()
        for move in written.spec.moves:
            direction = "up" if move.after > move.before else "down"
            moved = abs(move.after - move.before) * move.slices
            metrics.moved_slices.labels(observed.name, mode, move.tier.value, direction).inc(moved)
        log.info("decided", pool=observed.name, decision=name, moves=written.spec.move_count, mode=mode)
        for old in find_expired(self._list_decisions(observed.name)):
            await self._parts.cluster.delete(
                ALLOCATION_DECISION, old.key, uid=old.metadata.uid, fence=self._fence
            )
            self._forget_deleted(self._stores.decisions, old.key)

    async def _execute_decision(self, observed: AllocationObserved) -> None:
        standing = observed.standing_decision
        if standing is None or not standing.should_execute:
            return
        progress = plan_next_step(observed, standing)
        await self._write_allocations(progress.writes, standing)
        self._record_reclaims(standing, progress)
        if progress.outcome is not None:
            await self._end_decision(standing, progress.outcome)

    def _record_reclaims(self, decision: AllocationDecision, progress: DecisionStep) -> None:
        """Record once how long each Inference took to give up its slices."""
        counted = self._reclaimed.setdefault(decision.metadata.name, set())
        for key, reclaim in progress.reclaimed.items():
            if key not in counted:
                counted.add(key)
                self._parts.metrics.reclaim_seconds.labels(reclaim.tier.value).observe(reclaim.seconds)
        if progress.outcome is not None:
            self._reclaimed.pop(decision.metadata.name, None)

    async def _clear_allocations(self, observed: AllocationObserved) -> None:
        """Remove our allocation, once, from Inferences that have a fixed number of replicas again.

        A later allocation of another writer stays.
        """
        for member in observed.members:
            if member.is_scaled or member.inference.status.allocation is None:
                self._cleared.pop(member.key, None)
            elif self._cleared.get(member.key) != member.inference.metadata.uid:
                await self._apply_status(member.key, {})
                self._cleared[member.key] = member.inference.metadata.uid

    async def _write_allocations(
        self, shares: Mapping[ObjectKey, TargetReplicas], decision: AllocationDecision
    ) -> None:
        """Write what one step of a decision changes, some statuses at a time, since there may be a thousand."""
        waiting = iter(shares.items())

        async def write() -> None:
            for key, share in waiting:
                attributes: Attributes = {
                    DECISION: decision.metadata.name,
                    "tidegate.inference": str(key),
                    "tidegate.replicas": share.replicas,
                }
                with start_span("allocate", attributes):
                    await self._write_allocation(key, share, decision)

        writers = [asyncio.ensure_future(write()) for _ in range(min(_CONCURRENT_WRITES, len(shares)))]
        try:
            # The first error is raised; the other writers are cancelled before the next reconcile.
            await asyncio.gather(*writers)
        finally:
            for writer in writers:
                writer.cancel()
            await asyncio.gather(*writers, return_exceptions=True)

    async def _write_allocation(
        self, key: ObjectKey, share: TargetReplicas, decision: AllocationDecision
    ) -> None:
        """Write the allocation of one Inference."""
        name = decision.metadata.name
        spares = {"spares": share.spares} if share.spares else {}
        allocation = {"replicas": share.replicas, **spares, "decision": name, "epoch": self._fence.epoch}
        try:
            await self._apply_status(key, {"allocation": allocation})
        except PermanentError as error:
            # A refused status must not block the others; the next reconcile retries.
            log.warning("allocation_refused", inference=str(key), error=str(error))
            mark_failed(str(error))
        else:
            log.info(
                "allocated", inference=str(key), replicas=share.replicas, spares=share.spares, decision=name
            )

    async def _apply_status(self, key: ObjectKey, status: Manifest) -> None:
        inference = self._caches.inferences.get(key)
        if inference is None:
            return
        stored = await self._parts.cluster.apply_status(
            INFERENCE, key, status, uid=inference.metadata.uid, fence=self._fence
        )
        if stored is not None:
            self._stores.inferences.observe("MODIFIED", stored)

    async def _end_decision(self, decision: AllocationDecision, status: Manifest) -> None:
        stored = await self._parts.cluster.apply_status(
            ALLOCATION_DECISION, decision.key, status, uid=decision.metadata.uid, fence=self._fence
        )
        if stored is not None:
            self._stores.decisions.observe("MODIFIED", stored)
        else:
            self._forget_deleted(self._stores.decisions, decision.key)

    @staticmethod
    def _forget_deleted(store: ObjectStore, key: ObjectKey) -> None:
        body = store.get(key)
        if body is not None:
            store.observe("DELETED", body)

    def _observe_again(self, pool: ComputePool, last: _LastSolve) -> AllocationObserved:
        return replace(self._observe_pool(pool), signals=last.signals)

    def _observe_pool(self, pool: ComputePool) -> AllocationObserved:
        name = pool.metadata.name
        slices = self._caches.views.get_slices(pool)
        healthy = slices.healthy_nodes
        members: list[PoolMember] = []
        serving_elsewhere = leaving = 0
        for claim in self._caches.placements.list_claims(name):
            inference = self._caches.inferences.get(claim.key)
            if inference is None or not _asks_for_pool(inference, name):
                leaving += claim.count_slices(0, healthy)
                continue
            unhealthy = [share for node, share in claim.nodes.items() if node not in healthy]
            serving_elsewhere += sum(share.ready for share in unhealthy)
            lost = sum(share.not_ready for share in unhealthy)
            excluded = _exclusion_reason(inference, claim, self._caches.placements.find_workload(claim.key))
            refusal = refuse_claim(pool, slices, claim)
            refused = refusal.message if refusal is not None else ""
            members.append(PoolMember(inference, claim, claim.ready, excluded, refused, lost))
        now = self._clock.now()
        return AllocationObserved(
            pool=pool,
            now=now,
            freeze=find_freeze(pool.spec.policy.freeze, now),
            slices=slices,
            members=tuple(members),
            departing_slices=leaving,
            faulty_node_slices=serving_elsewhere,
            overrides=self._caches.overrides.list_all(),
            decisions=self._list_decisions(name),
        )

    def _list_decisions(self, pool: str) -> tuple[AllocationDecision, ...]:
        """Return the decisions of one pool.

        The label may be a hash of a long name, and anyone may have set it, so the spec is checked.
        """
        bodies = self._stores.decisions.by_label(POOL_LABEL, to_label_value(pool))
        keys = (ObjectKey("", body["metadata"]["name"]) for body in bodies)
        decisions = (self._caches.decisions.get(key) for key in keys)
        return sort_newest_first(
            decision for decision in decisions if decision is not None and decision.spec.pool == pool
        )


def _asks_for_pool(inference: Inference, pool: str) -> bool:
    placement = inference.spec.placement
    deleted = inference.metadata.deletion_timestamp is not None
    return not deleted and placement is not None and placement.pool == pool


def _exclusion_reason(inference: Inference, claim: PoolClaim, live: LiveWorkload | None) -> str:
    """Return why an Inference is excluded from decisions now; empty if it is not."""
    if live is None:
        # A completed batch needs no Job.
        is_missing = inference.status.allocation is not None and count_remaining_shards(inference) != 0
        return "its Deployment or Job does not exist" if is_missing else ""
    if live.replicas and (live.pool != to_label_value(_pool_name(inference)) or live.slices != claim.slices):
        return "its pods are in another pool or of another size, and are replaced here as there is room"
    return ""


def _pool_name(inference: Inference) -> str:
    return inference.spec.placement.pool if inference.spec.placement is not None else ""


def _active_overrides(observed: AllocationObserved) -> tuple[str, ...]:
    keys = {member.key for member in observed.members} | {observed.pool.key}
    return tuple(
        override.metadata.name for override in observed.active_overrides if override.spec.target.key in keys
    )
