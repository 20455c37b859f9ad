"""Turn what caches and signals hold about one pool into the solver's input, an AllocationSnapshot."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import ceil, inf
from typing import Final

from tidegate.allocation import snapshot as solver
from tidegate.allocation.curves import CapacityCurve, linear_curve
from tidegate.allocation.errors import MAX_AMOUNT, InvalidInputError
from tidegate.allocation.snapshot import AllocationSnapshot, DemandInput, HorizonStep, ReplicaBounds, TierRule
from tidegate.api.compute_override import OverrideKind
from tidegate.api.compute_pool import PolicyMode
from tidegate.api.durations import parse_duration
from tidegate.api.inference import Tier
from tidegate.api.meta import ObjectKey
from tidegate.api.nearline import NearlineSpec
from tidegate.planning.allocator.event_calendar import EventDemand
from tidegate.planning.allocator.forecasts import ForecastPeak, raise_to_expected
from tidegate.planning.allocator.move_budget import compute_move_budget
from tidegate.planning.allocator.node_losses import is_strict, list_ready_by_node, price_node_loss
from tidegate.planning.allocator.observed_pool import AllocationObserved, PoolMember
from tidegate.planning.allocator.other_pools import narrow_bounds, reduce_demand
from tidegate.planning.allocator.signals import Signal
from tidegate.planning.allocator.stream_demand import find_deadline
from tidegate.planning.allocator.value_mix import ValueMix
from tidegate.planning.batch.remaining_shards import compute_urgency, count_remaining_shards
from tidegate.planning.pools.overrides import bound_replicas, select_for_target

HORIZON_STEPS: Final = (HorizonStep(600.0),)
"""One step of ten minutes, with the present rate or the highest that is expected within the lead of the Inference."""
_UNKNOWN: Final = linear_curve(1.0)
"""The curve of an Inference of unknown capacity: it keeps its replicas, whatever the curve."""
_POLLING_SHARE: Final = 0.05
"""Demand of a stream without any count, as a share of what one replica answers."""


@dataclass(frozen=True, slots=True)
class AllocationView:
    """The solver's input, and the members that could not be part of it, with the reason."""

    snapshot: AllocationSnapshot
    excluded: Mapping[ObjectKey, str]


def build_allocation_view(observed: AllocationObserved) -> AllocationView:
    """Build the snapshot of one pool.

    A member with an impossible number, or one that is not wholly in this pool, is excluded and keeps its slices.
    So is one that the pool refuses: no other member gives slices for it.
    """
    inputs: list[solver.ModelInput] = []
    excluded: dict[ObjectKey, str] = {}
    excluded_slices = 0
    for member in observed.members:
        if member.refusal and not member.assigned_replicas:
            excluded[member.key] = member.refusal
            excluded_slices += member.kept_slices
            continue
        try:
            if member.excluded_reason:
                raise InvalidInputError(f"inference {member.key}", member.excluded_reason)
            inputs.append(_make_model_input(observed, member))
        except InvalidInputError as error:
            excluded[member.key] = str(error)
            excluded_slices += member.kept_slices
    pool = _make_pool_input(observed, excluded_slices)
    dwell = parse_duration(observed.pool.spec.policy.dwell)
    snapshot = AllocationSnapshot((pool,), tuple(inputs), HORIZON_STEPS, dwell_s=dwell / timedelta(seconds=1))
    return AllocationView(snapshot, excluded)


def _make_pool_input(observed: AllocationObserved, excluded_slices: int) -> solver.PoolInput:
    spec = observed.pool.spec
    budget = compute_move_budget(observed.pool, observed.slices.healthy, observed.decisions, observed.now)
    healthy = [node for node in observed.slices.nodes if node.healthy_slices]
    return solver.PoolInput(
        observed.name,
        max(
            observed.allocatable_slices
            - excluded_slices
            - sum(_count_unfillable(observed, tier) for tier in Tier),
            0,
        ),
        nodes=len(healthy),
        spares=spec.tiers.realtime.warm_spares,
        tiers=tuple(_make_tier_rule(observed, tier) for tier in Tier),
        budget=budget.remaining if budget is not None else None,
        hold=observed.effective_mode is PolicyMode.HOLD or observed.is_held,
        price=_find_price(observed),
        node_loss=price_node_loss(observed.pool),
    )


def _make_tier_rule(observed: AllocationObserved, tier: Tier) -> TierRule:
    """Return the bounds of a tier for its members alone: shared spares count in those of realtime."""
    bounds = observed.pool.spec.tiers.bounds_for(tier)
    spares = observed.charged_spare_slices if tier is Tier.REALTIME else 0
    floor = max(bounds.floor - spares - _count_unfillable(observed, tier), 0)
    return TierRule(tier, floor, None if bounds.ceiling is None else max(bounds.ceiling - spares, floor))


def _count_unfillable(observed: AllocationObserved, tier: Tier) -> int:
    """Return the slices of a tier's floor that neither its members nor shared spares use: they stay reserved for the tier."""
    fillable = sum(
        member.replica_slices * _count_usable_replicas(member)
        for member in observed.members
        if member.inference.spec.tier is tier
    )
    spares = observed.charged_spare_slices if tier is Tier.REALTIME else 0
    return max(observed.pool.spec.tiers.bounds_for(tier).floor - spares - fillable, 0)


def _count_usable_replicas(member: PoolMember) -> int:
    """Return the most replicas that a member can use with its present spec."""
    scaling, shards = member.inference.spec.scaling, count_remaining_shards(member.inference)
    if scaling is None:
        return member.asked_replicas
    if member.other_pools:
        return max(scaling.max_replicas - sum(pool.replicas for pool in member.other_pools), 0)
    return scaling.max_replicas if shards is None else min(scaling.max_replicas, shards)


def _make_model_input(observed: AllocationObserved, member: PoolMember) -> solver.ModelInput:
    spec, signal = member.inference.spec, observed.signals.by_key.get(member.key)
    bounds = bound_member(observed, member, member.assigned_replicas)
    curve, load = _estimate_demand(member, signal, observed.now)
    event = observed.event_demands.get(member.key) if member.can_be_forecast else None
    if load is not None and member.can_be_forecast:
        load = raise_to_expected(load, _find_forecast(observed, member), event)
    if load is not None and member.other_pools and member.inference.spec.tier.traits.counts_requests:
        load = reduce_demand(load, curve.rate_at(member.assigned_replicas), member.other_pools)
    if (correction := observed.corrections.get(member.key)) is not None:
        curve = correction.apply_to(curve)
    if load is not None and signal is not None and not signal.fresh:
        bounds = _protect_assigned(bounds, member.assigned_replicas, "its signals are stale")
    if load is not None and event is not None:
        bounds = protect_in_event(bounds, member.assigned_replicas, event)
    assigned = (
        member.assigned_replicas if member.is_scaled else min(member.assigned_replicas, member.asked_replicas)
    )
    ready = min(member.ready, assigned)
    up_s, down_s = (_measure_seconds_since(observed, member, direction) for direction in (_is_rise, _is_fall))
    placement = solver.PlacementInput(
        observed.name,
        curve,
        slices=member.replica_slices,
        replicas=solver.ReplicaCounts(
            ready=ready,
            loading=assigned - ready,
            draining=member.draining_replicas + member.assigned_replicas - assigned,
            spare=member.warm_spares,
        ),
        load_s=solver.DEFAULT_LOAD_S if member.times.load_s is None else member.times.load_s,
        drain_s=solver.DEFAULT_DRAIN_S if member.times.drain_s is None else member.times.drain_s,
        since_up_s=up_s,
        since_down_s=down_s,
        ready_by_node=list_ready_by_node(member.claim, observed.slices.healthy_nodes),
    )
    mix = observed.mixes.get(member.key, ValueMix(float(spec.value.per_request)))
    if load is not None:
        load = replace(load, classes=mix.classes)
    return solver.ModelInput(
        str(member.key),
        spec.tier,
        (placement,),
        load,
        bounds,
        mix.mean,
        keeps_node_spare=is_strict(observed.pool, member.inference),
        has_shared_spare=str(member.key) in observed.spare_plan.covered,
    )


def _find_forecast(observed: AllocationObserved, member: PoolMember) -> ForecastPeak | None:
    lead, peak = observed.find_lead(member), observed.forecasts.get(member.key)
    return None if lead is None or peak is None else ForecastPeak(peak, lead)


def _find_price(observed: AllocationObserved) -> float:
    """Return the price of a slice: of the last solve, or after a restart of the newest decision."""
    if observed.price is not None:
        return min(observed.price, MAX_AMOUNT)
    return min(observed.decisions[0].spec.price, MAX_AMOUNT) if observed.decisions else 0.0


def bound_member(observed: AllocationObserved, member: PoolMember, replicas: int) -> ReplicaBounds:
    """Return the bounds of a member of which `replicas` are where they are to be bounded, beside those in its other pools."""
    scaling = (member.all_pools or member.inference).spec.scaling
    if scaling is not None:
        overrides = select_for_target(observed.active_overrides, OverrideKind.INFERENCE, member.key)
        total = replicas + sum(pool.replicas for pool in member.other_pools)
        bounds = narrow_bounds(bound_replicas(scaling, total, overrides), replicas, member.other_pools)
        return _limit_to_shards(member, bounds)
    number = member.asked_replicas
    preempts = member.inference.spec.tier.traits.preempts
    return ReplicaBounds(
        number if preempts else min(number, replicas), number, "spec.replicas", "spec.replicas"
    )


def count_protected_replicas(observed: AllocationObserved, member: PoolMember) -> int:
    """Return the replicas that nothing may take from a member; all that it has, if it is excluded from decisions."""
    if member.excluded_reason or (member.refusal and not member.assigned_replicas):
        return ceil(member.occupied_slices / member.replica_slices)
    return bound_member(observed, member, member.assigned_replicas).floor


def _limit_to_shards(member: PoolMember, bounds: ReplicaBounds) -> ReplicaBounds:
    """Limit the bounds of a batch to its remaining shards: more replicas than that would have no work."""
    shards = count_remaining_shards(member.inference)
    if shards is None or (bounds.ceiling is not None and bounds.ceiling <= shards):
        return bounds
    return replace(
        bounds, floor=min(bounds.floor, shards), ceiling=shards, ceiling_source="the shards that are left"
    )


def _estimate_demand(
    member: PoolMember, signal: Signal | None, now: datetime
) -> tuple[CapacityCurve, DemandInput | None]:
    """Return the curve and the demand of a member; an unknown demand is None, and the member keeps its replicas."""
    spec = member.inference.spec
    if not spec.tier.traits.counts_requests and spec.scaling is not None:
        # It uses every free slice, as far as it has work for it.
        slices = linear_curve(float(member.replica_slices))
        return slices, DemandInput(
            (slices.rate_at(_count_usable_replicas(member)),), (compute_urgency(member.inference, now),)
        )
    if (curve := member.capacity_curve) is None:
        return _UNKNOWN, None
    if spec.nearline is not None:
        return curve, _estimate_stream_demand(member, spec.nearline, signal, curve)
    if signal is None or (not signal.fresh and not spec.tier.traits.has_slo):
        return curve, None
    return curve, DemandInput((signal.demand_per_s * member.claim.demand_share,))


def _estimate_stream_demand(
    member: PoolMember, nearline: NearlineSpec, signal: Signal | None, curve: CapacityCurve
) -> DemandInput | None:
    """Return the demand of a stream, which its own pods count: without a pod, nothing shows whether there is work.

    So the demand is never below a small share of a replica, which gets it a pod unless other work is worth more.
    """
    floor_per_s = _POLLING_SHARE * curve.rate_at(1)
    deadline = find_deadline(nearline, signal, floor_per_s, member.times.load_s)
    if signal is not None and signal.fresh:
        needed_per_s = floor_per_s if deadline is None else deadline.rate
        return DemandInput((max(signal.demand_per_s, needed_per_s),), deadline=deadline)
    return DemandInput((floor_per_s,), deadline=deadline) if member.assigned_replicas == 0 else None


def protect_in_event(bounds: ReplicaBounds, replicas: int, event: EventDemand) -> ReplicaBounds:
    """Raise the floor to what an Inference has if the demand before an event is unknown."""
    if event.baseline_per_s is not None:
        return bounds
    return _protect_assigned(bounds, replicas, f"its demand before {event.event} is unknown")


def _protect_assigned(bounds: ReplicaBounds, replicas: int, reason: str) -> ReplicaBounds:
    """Raise the floor to what a member has: stale signals may raise a real-time Inference, and never lower it."""
    ceiling = bounds.ceiling if bounds.ceiling is not None else replicas
    floor = min(max(bounds.floor, replicas), ceiling)
    if floor == bounds.floor:
        return bounds
    return replace(bounds, floor=floor, floor_source=f"what it holds, since {reason},")


def _is_rise(before: int, after: int) -> bool:
    return after > before


def _is_fall(before: int, after: int) -> bool:
    return after < before


def _measure_seconds_since(
    observed: AllocationObserved, member: PoolMember, direction: Callable[[int, int], bool]
) -> float:
    """Return the seconds since a decision last raised or lowered a member; infinite if no recorded decision did."""
    name = str(member.key)
    for decision in observed.decisions:
        if not decision.should_execute or decision is observed.current_decision:
            continue
        for move in decision.spec.moves:
            if move.inference == name and direction(move.before, move.after):
                return max((observed.now - decision.spec.at) / timedelta(seconds=1), 0.0)
    return inf
