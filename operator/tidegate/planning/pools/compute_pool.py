"""Plan the status of a ComputePool from its nodes and the pods on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidegate.api.compute_override import ComputeOverride
from tidegate.api.compute_pool import ComputePool, ComputePoolStatus, SliceCounts, TierUsage
from tidegate.api.conditions import Condition, ConditionType, ObservedCondition, merge_conditions
from tidegate.api.inference import Tier
from tidegate.api.reasons import Reason
from tidegate.api.shared_spares import SharedSparesStatus
from tidegate.planning.allocator.pool_status import PoolAllocation
from tidegate.planning.gpu_sharing.health import CHECK_EVERY, SharingPlan
from tidegate.planning.inference.node_resources import format_amount
from tidegate.planning.inference.serving_status import Verdict, kstatus_conditions, make_condition
from tidegate.planning.plan import Event, EventType, ReconcilePlan
from tidegate.planning.pools.overrides import (
    END_MARGIN,
    drop_override_condition,
    find_next_end,
    make_override_conditions,
    make_override_events,
)
from tidegate.planning.pools.pool_slices import PoolSlices
from tidegate.resources.slices import sum_slice_requests

_NAMED = 3
"""Nodes that a message names, beside their number."""


@dataclass(frozen=True, slots=True)
class PoolObserved:
    """Everything that the plan of a ComputePool depends on."""

    pool: ComputePool
    now: datetime
    slices: PoolSlices
    overrides: Sequence[ComputeOverride] = ()
    """The active overrides of the pool."""
    allocation: PoolAllocation | None = None
    """The allocator's last result; None before its first run as leader, so that its conditions stay as they are."""
    sharing: SharingPlan | None = None
    """The plan for its GPU sharing; None without GPU sharing or node agents."""
    shared_spares: SharedSparesStatus | None = None
    """The spares that its Inferences share; None if none asks for one."""


def plan_pool(observed: PoolObserved) -> ReconcilePlan:
    """Plan the status of a pool. It has no children: its nodes belong to the administrator."""
    pool, slices = observed.pool, observed.slices
    generation = pool.metadata.generation
    healthy, ready = judge_health(slices), judge_readiness(pool, slices)
    conditions = (
        *kstatus_conditions(ready, generation),
        make_condition(ConditionType.HEALTHY, healthy, generation),
        *_check_sharing_configured(observed),
        *_check_sharing_healthy(observed),
        *make_override_conditions(observed.overrides, generation),
        *_make_allocation_conditions(observed),
    )
    before = drop_override_condition(observed.overrides, _drop_sharing(observed, _drop_allocation(observed)))
    merged = merge_conditions(before, conditions, observed.now)
    allocation, ends = observed.allocation, find_next_end(observed.overrides)
    status = ComputePoolStatus(
        observed_generation=generation,
        nodes=len(slices.nodes),
        slices=SliceCounts(total=slices.total, healthy=slices.healthy, free=slices.free),
        tiers=tuple(TierUsage(name=tier.value, slices=slices.count_used(tier.value)) for tier in Tier),
        imbalance_percent=slices.imbalance_percent,
        mode=allocation.mode if allocation is not None else pool.status.mode,
        last_decision=(allocation and allocation.last_decision) or pool.status.last_decision,
        shared_spares=observed.shared_spares,
        faulty_nodes=observed.sharing.faulty if observed.sharing is not None else (),
        conditions=tuple(ObservedCondition.model_validate(item) for item in merged),
    )
    events = (
        *_make_events(pool, healthy),
        *make_override_events(pool.status.conditions, status.conditions),
        *(change.to_event for change in (observed.sharing.changes if observed.sharing is not None else ())),
    )
    return ReconcilePlan(
        status=status.dump(), events=events, requeue_after=_find_requeue_delay(observed, ends)
    )


def _find_requeue_delay(observed: PoolObserved, ends: datetime | None) -> timedelta | None:
    """Return the time until an override ends or GPU sharing is checked again."""
    delays = [] if ends is None else [max(ends - observed.now, timedelta()) + END_MARGIN]
    if observed.sharing is not None:
        delays.append(CHECK_EVERY)
    return min(delays, default=None)


def _make_allocation_conditions(observed: PoolObserved) -> tuple[Condition, ...]:
    """Return the conditions of the pool's allocator, if it has something to decide."""
    allocation, generation = observed.allocation, observed.pool.metadata.generation
    if allocation is None or allocation.allocated_verdict is None or allocation.signals_verdict is None:
        return ()
    verdicts = {
        ConditionType.ALLOCATED: allocation.allocated_verdict,
        ConditionType.SIGNALS_FRESH: allocation.signals_verdict,
        ConditionType.FORECASTING: allocation.forecast_verdict,
        ConditionType.EVENTS_PLANNED: allocation.events_verdict,
    }
    return tuple(
        make_condition(kind, verdict, generation) for kind, verdict in verdicts.items() if verdict is not None
    )


def _drop_allocation(observed: PoolObserved) -> tuple[ObservedCondition, ...]:
    """Drop the allocator's conditions if it has nothing to decide, or to forecast."""
    conditions, allocation = observed.pool.status.conditions, observed.allocation
    if allocation is None:
        return conditions
    dropped: set[str] = set()
    if allocation.allocated_verdict is None:
        dropped = {ConditionType.ALLOCATED.value, ConditionType.SIGNALS_FRESH.value}
    if allocation.forecast_verdict is None:
        dropped.add(ConditionType.FORECASTING.value)
    if allocation.events_verdict is None:
        dropped.add(ConditionType.EVENTS_PLANNED.value)
    return tuple(item for item in conditions if item.type not in dropped)


def _check_sharing_healthy(observed: PoolObserved) -> tuple[Condition, ...]:
    sharing = observed.sharing
    if sharing is None or sharing.verdict is None:
        return ()
    generation = observed.pool.metadata.generation
    return (make_condition(ConditionType.SHARING_HEALTHY, sharing.verdict, generation),)


def _drop_sharing(
    observed: PoolObserved, conditions: Sequence[ObservedCondition]
) -> tuple[ObservedCondition, ...]:
    """Drop the condition SharingHealthy if no node agents run."""
    if observed.sharing is not None:
        return tuple(conditions)
    return tuple(item for item in conditions if item.type != ConditionType.SHARING_HEALTHY.value)


def judge_health(slices: PoolSlices) -> Verdict:
    """Return whether every node of the pool takes pods, on all of its devices."""
    faulty, failing = slices.faulty_nodes, slices.failing_nodes
    all_nodes = _format_nodes(len(slices.nodes))
    if not faulty and not failing:
        return Verdict(True, Reason.NODES_HEALTHY, f"{all_nodes} take pods")
    counts = [f"{len(faulty)} of {all_nodes} take no pods"] if faulty else []
    if failing:
        counts.append(f"{len(failing)} of {all_nodes} have devices that failed")
    named = [
        f"node {node.node} {node.fault or node.failed_devices}"
        for node in (*faulty[:_NAMED], *failing[:_NAMED])
    ]
    if failing:
        named.append("look at the logs of the device plugin there")
    message = (
        f"{', '.join(counts)}, {slices.healthy} of {slices.total} slices are healthy: {'; '.join(named)}"
    )
    return Verdict(False, Reason.NODES_UNHEALTHY, message)


def _check_sharing_configured(observed: PoolObserved) -> tuple[Condition, ...]:
    """Return the condition SharingConfigured: whether every node shares its GPUs as the pool says; none without MPS."""
    pool, slices = observed.pool, observed.slices
    if pool.spec.slice.mps is None:
        return ()
    wrong = slices.misconfigured
    verdict = Verdict(
        True, Reason.SHARING_CONFIGURED, f"{_format_nodes(len(slices.nodes))} share their GPUs out"
    )
    if wrong:
        first = wrong[0]
        runs = sum(first.used.values())
        pods = f"; {runs} of its slices are assigned" if runs else ""
        message = (
            f"{len(wrong)} of {_format_nodes(len(slices.nodes))}; the first is node {first.node}, which "
            f"{first.misconfiguration}{pods}"
        )
        verdict = Verdict(False, Reason.SHARING_NOT_CONFIGURED, message)
    return (make_condition(ConditionType.SHARING_CONFIGURED, verdict, pool.metadata.generation),)


def judge_readiness(pool: ComputePool, slices: PoolSlices) -> Verdict:
    """Return whether pods can be placed in the pool; if not, the first thing that prevents it."""
    labels = ",".join(f"{name}={value}" for name, value in sorted(pool.spec.node_selector.items()))
    if slices.overlapping_nodes:
        node, other = next(iter(slices.overlapping_nodes.items()))
        message = (
            f"{_format_nodes(len(slices.overlapping_nodes))} with labels {labels} belong to an older pool, first node {node} to ComputePool "
            f"{other}: change spec.nodeSelector here or there"
        )
        return Verdict(False, Reason.NODES_OVERLAP, message, stalled=True)
    if not slices.nodes:
        message = f"no node has the labels {labels}: run kubectl label node <name> {labels.replace(',', ' ')}, or correct spec.nodeSelector"
        return Verdict(False, Reason.NO_NODES, message, stalled=True)
    if len(slices.faulty_nodes) == len(slices.nodes):
        verdict = judge_health(slices)
        return Verdict(False, verdict.reason, verdict.message)
    if slices.healthy == 0:
        asks = " and ".join(
            f"{name} {format_amount(name, size)}"
            for name, size in sum_slice_requests(pool).items()
            if name != "pods"
        )
        message = (
            f"a slice asks for {asks}, and none of {_format_nodes(len(slices.nodes))} has that beside what runs there from "
            "outside the pool: make spec.slice smaller, or add larger nodes"
        )
        return Verdict(False, Reason.SLICE_TOO_LARGE, message, stalled=True)
    floors = pool.spec.tiers.total_floor
    if floors > slices.total:
        tier_floors = ", ".join(f"{tier.value} {pool.spec.tiers.bounds_for(tier).floor}" for tier in Tier)
        message = (
            f"the floors are {floors} slices together ({tier_floors}), the pool has {slices.total}: "
            "lower spec.tiers, or add nodes"
        )
        return Verdict(False, Reason.FLOORS_EXCEED_POOL, message, stalled=True)
    return Verdict(True, Reason.POOL_READY, f"{slices.total} slices on {_format_nodes(len(slices.nodes))}")


def _make_events(pool: ComputePool, healthy: Verdict) -> tuple[Event, ...]:
    """Return an Event if the pool's health has changed; the status has the figures."""
    before = next((item for item in pool.status.conditions if item.type == ConditionType.HEALTHY.value), None)
    was_healthy = before is None or before.status.value == "True"
    if was_healthy == healthy.holds:
        return ()
    kind = EventType.NORMAL if healthy.holds else EventType.WARNING
    return (Event(kind, healthy.reason.value, healthy.message),)


def _format_nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
