"""ComputePool: its status, from the nodes that it selects and the pods on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidegate.api.compute_override import ComputeOverride
from tidegate.api.compute_pool import ComputePool, ComputePoolStatus, SliceCounts, TierUse
from tidegate.api.conditions import Condition, ConditionType, ObservedCondition, merge
from tidegate.api.inference import Tier
from tidegate.api.reasons import Reason
from tidegate.planning.overrides import (
    JUST_AFTER,
    next_end,
    override_conditions,
    override_events,
    without_overrides,
)
from tidegate.planning.plan import Event, EventType, Plan
from tidegate.planning.pool_allocation import PoolAllocation
from tidegate.planning.pool_slices import PoolSlices
from tidegate.planning.room import amount_text
from tidegate.planning.serving_status import Verdict, condition, standing
from tidegate.planning.sharing_health import CHECK_EVERY, SharingPlan
from tidegate.resources.slices import slice_requests

_NAMED = 3
"""Nodes that a message names; the number says how many there are."""


@dataclass(frozen=True, slots=True)
class PoolObserved:
    """Everything that planning a ComputePool needs to know."""

    pool: ComputePool
    now: datetime
    slices: PoolSlices
    overrides: Sequence[ComputeOverride] = ()
    """Those of the pool that are in force."""
    allocation: PoolAllocation | None = None
    """What its allocator last came to; None while it has not looked in this term, so that what was said stays."""
    sharing: SharingPlan | None = None
    """The plan for its GPU sharing; None without GPU sharing or node agents."""


def plan_pool(observed: PoolObserved) -> Plan:
    """The status of a pool. It has no children: what it stands for are nodes, which are the administrator's."""
    pool, slices = observed.pool, observed.slices
    generation = pool.metadata.generation
    healthy, ready = health(slices), readiness(pool, slices)
    said = (
        *standing(ready, generation),
        condition(ConditionType.HEALTHY, healthy, generation),
        *_sharing(observed),
        *_sharing_health(observed),
        *override_conditions(observed.overrides, generation),
        *_allocation(observed),
    )
    before = without_overrides(observed.overrides, _without_sharing(observed, _without_allocation(observed)))
    merged = merge(before, said, observed.now)
    allocation, ends = observed.allocation, next_end(observed.overrides)
    status = ComputePoolStatus(
        observed_generation=generation,
        nodes=len(slices.nodes),
        slices=SliceCounts(total=slices.total, healthy=slices.healthy, free=slices.free),
        tiers=tuple(TierUse(name=tier.value, slices=slices.used(tier.value)) for tier in Tier),
        mode=allocation.mode if allocation is not None else pool.status.mode,
        last_decision=(allocation and allocation.last_decision) or pool.status.last_decision,
        faulty_nodes=observed.sharing.faulty if observed.sharing is not None else (),
        conditions=tuple(ObservedCondition.model_validate(item) for item in merged),
    )
    events = (
        *_events(pool, healthy),
        *override_events(pool.status.conditions, status.conditions),
        *(change.event for change in (observed.sharing.changes if observed.sharing is not None else ())),
    )
    return Plan(status=status.dump(), events=events, requeue_after=_next_look(observed, ends))


def _next_look(observed: PoolObserved, ends: datetime | None) -> timedelta | None:
    """When an override ends, or the nodes' GPU sharing is to be checked again."""
    looks = [] if ends is None else [max(ends - observed.now, timedelta()) + JUST_AFTER]
    if observed.sharing is not None:
        looks.append(CHECK_EVERY)
    return min(looks, default=None)


def _allocation(observed: PoolObserved) -> tuple[Condition, ...]:
    """What its allocator came to, where it has something to decide."""
    found, generation = observed.allocation, observed.pool.metadata.generation
    if found is None or found.allocated is None or found.signals is None:
        return ()
    return (
        condition(ConditionType.ALLOCATED, found.allocated, generation),
        condition(ConditionType.SIGNALS_FRESH, found.signals, generation),
    )


def _without_allocation(observed: PoolObserved) -> tuple[ObservedCondition, ...]:
    """Nothing is said about an allocator that has nothing to decide."""
    conditions = observed.pool.status.conditions
    if observed.allocation is None or observed.allocation.allocated is not None:
        return conditions
    gone = {ConditionType.ALLOCATED.value, ConditionType.SIGNALS_FRESH.value}
    return tuple(each for each in conditions if each.type not in gone)


def _sharing_health(observed: PoolObserved) -> tuple[Condition, ...]:
    sharing = observed.sharing
    if sharing is None or sharing.verdict is None:
        return ()
    generation = observed.pool.metadata.generation
    return (condition(ConditionType.SHARING_HEALTHY, sharing.verdict, generation),)


def _without_sharing(
    observed: PoolObserved, conditions: Sequence[ObservedCondition]
) -> tuple[ObservedCondition, ...]:
    """Drop the condition SharingHealthy if no node agents run."""
    if observed.sharing is not None:
        return tuple(conditions)
    return tuple(each for each in conditions if each.type != ConditionType.SHARING_HEALTHY.value)


def health(slices: PoolSlices) -> Verdict:
    """Whether every node of the pool takes pods, on all of its devices."""
    faulty, failing = slices.faulty, slices.failing
    whole = _nodes(len(slices.nodes))
    if not faulty and not failing:
        return Verdict(True, Reason.NODES_HEALTHY, f"{whole} take pods")
    counts = [f"{len(faulty)} of {whole} take no pods"] if faulty else []
    if failing:
        counts.append(f"{len(failing)} of {whole} have devices that failed")
    named = [
        f"node {node.node} {node.fault or node.failed}" for node in (*faulty[:_NAMED], *failing[:_NAMED])
    ]
    if failing:
        named.append("look at the logs of the device plugin there")
    message = (
        f"{', '.join(counts)}, {slices.healthy} of {slices.total} slices are healthy: {'; '.join(named)}"
    )
    return Verdict(False, Reason.NODES_UNHEALTHY, message)


def _sharing(observed: PoolObserved) -> tuple[Condition, ...]:
    """Whether every node shares itself out as the pool says; nothing where there is nothing to configure."""
    pool, slices = observed.pool, observed.slices
    if pool.spec.slice.mps is None:
        return ()
    wrong = slices.unshared
    verdict = Verdict(True, Reason.SHARING_CONFIGURED, f"{_nodes(len(slices.nodes))} share their GPUs out")
    if wrong:
        first = wrong[0]
        runs = sum(first.used.values())
        pods = f"; {runs} slices of it are in use" if runs else ""
        message = (
            f"{len(wrong)} of {_nodes(len(slices.nodes))}; the first is node {first.node}, which "
            f"{first.unconfigured}{pods}"
        )
        verdict = Verdict(False, Reason.SHARING_NOT_CONFIGURED, message)
    return (condition(ConditionType.SHARING_CONFIGURED, verdict, pool.metadata.generation),)


def readiness(pool: ComputePool, slices: PoolSlices) -> Verdict:
    """Whether pods can be placed in the pool; if not, the first thing that keeps them out."""
    labels = ",".join(f"{name}={value}" for name, value in sorted(pool.spec.node_selector.items()))
    if slices.shared:
        node, other = next(iter(slices.shared.items()))
        message = (
            f"{_nodes(len(slices.shared))} with labels {labels} belong to an older pool, first node {node} to ComputePool "
            f"{other}: change spec.nodeSelector here or there"
        )
        return Verdict(False, Reason.NODES_OVERLAP, message, stalled=True)
    if not slices.nodes:
        message = f"no node has the labels {labels}: run kubectl label node <name> {labels.replace(',', ' ')}, or correct spec.nodeSelector"
        return Verdict(False, Reason.NO_NODES, message, stalled=True)
    if len(slices.faulty) == len(slices.nodes):
        found = health(slices)
        return Verdict(False, found.reason, found.message)
    if slices.healthy == 0:
        asks = " and ".join(
            f"{name} {amount_text(name, size)}"
            for name, size in slice_requests(pool).items()
            if name != "pods"
        )
        message = (
            f"a slice asks for {asks}, and none of {_nodes(len(slices.nodes))} has that beside what runs there from "
            "outside the pool: make spec.slice smaller, or add larger nodes"
        )
        return Verdict(False, Reason.SLICE_TOO_LARGE, message, stalled=True)
    floors = pool.spec.tiers.floors
    if floors > slices.total:
        each = ", ".join(f"{tier.value} {pool.spec.tiers.of(tier).floor}" for tier in Tier)
        message = (
            f"the floors are {floors} slices together ({each}), the pool has {slices.total}: "
            "lower spec.tiers, or add nodes"
        )
        return Verdict(False, Reason.FLOORS_EXCEED_POOL, message, stalled=True)
    return Verdict(True, Reason.POOL_READY, f"{slices.total} slices on {_nodes(len(slices.nodes))}")


def _events(pool: ComputePool, healthy: Verdict) -> tuple[Event, ...]:
    """One for each turn of the pool's health; the status has the figures."""
    before = next((c for c in pool.status.conditions if c.type == ConditionType.HEALTHY.value), None)
    was = before is None or before.status.value == "True"
    if was == healthy.holds:
        return ()
    kind = EventType.NORMAL if healthy.holds else EventType.WARNING
    return (Event(kind, healthy.reason.value, healthy.message),)


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
