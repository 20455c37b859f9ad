"""Divide the Inferences that several pools share: the snapshot of all pools that they connect, and each pool's part of the answer.

Each pool's allocator solves its group when it decides, on what the caches have then. It takes its own part as the demand that the
others leave, and decides about that by itself, so that decisions, budgets and reasons remain those of one pool.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from tidegate.allocation.assignment import Assignment
from tidegate.allocation.snapshot import AllocationSnapshot, ModelInput, PlacementInput, PoolInput
from tidegate.api.compute_override import OverrideKind
from tidegate.api.durations import parse_duration
from tidegate.api.meta import ObjectKey
from tidegate.planning.allocator.node_losses import is_strict
from tidegate.planning.allocator.observed_pool import AllocationObserved, PoolMember
from tidegate.planning.allocator.other_pools import follow_division, limit_growth
from tidegate.planning.allocator.snapshot_builder import HORIZON_STEPS, bound_member, build_allocation_view
from tidegate.planning.pools.overrides import select_for_target

MAX_POOLS: Final = 12
"""Pools that one solve is about, the nearest to the one that decides, because each pool's tick solves the whole group."""


@dataclass(frozen=True, slots=True)
class PoolGroup:
    """Pools that share Inferences, as one input of the solver."""

    snapshot: AllocationSnapshot
    shared: Mapping[ObjectKey, ModelInput]
    """The Inferences that the solve divides among pools."""


@dataclass(frozen=True, slots=True)
class _Place:
    """What an Inference has in one pool of the group."""

    observed: AllocationObserved
    member: PoolMember


def list_neighbours(observed: AllocationObserved) -> tuple[str, ...]:
    """Return the pools that a pool's Inferences connect it with, by name.

    One that can be divided nowhere connects none, so its owner does not make the group of others larger.
    """
    movable = (member for member in observed.members if _can_move(observed, member))
    return tuple(sorted({other.name for member in movable for other in member.other_pools}))


def build_group(observed: AllocationObserved, neighbours: Sequence[AllocationObserved]) -> PoolGroup | None:
    """Return the group of a pool; None if none of its Inferences can be divided among it and others.

    An Inference that cannot be divided now is an Inference of its own in each pool, as in the decision about that pool alone.
    """
    pools = sorted((observed, *neighbours), key=lambda item: item.name)
    shared = _find_shared(pools)
    if not any(observed.name in places for places in shared.values()):
        return None
    inputs: dict[tuple[str, str], ModelInput] = {}
    pool_inputs: list[PoolInput] = []
    free: dict[str, int] = {}
    for pool in pools:
        members: list[PoolMember] = []
        for member in pool.members:
            places = shared.get(member.key, {})
            # Where it is not divided, its replicas in all other pools count, since its part of the demand is solved apart.
            members.append(_leave_outside(member, places if pool.name in places else {}))
        view = build_allocation_view(replace(pool, members=tuple(members)))
        pool_inputs += view.snapshot.pools
        dwell_s = view.snapshot.dwell_s
        inputs.update(
            {(model.key, pool.name): _end_dwell(model, dwell_s) for model in view.snapshot.inferences}
        )
        free[pool.name] = max(pool.free_slices, 0)
    merged: dict[ObjectKey, ModelInput] = {}
    for key, places in shared.items():
        models = {name: inputs.pop((str(key), name)) for name in places if (str(key), name) in inputs}
        if models:
            merged[key] = _merge_models(models, places, free)
    alone = [replace(model, key=f"{key} in {pool}") for (key, pool), model in inputs.items()]
    snapshot = AllocationSnapshot(
        tuple(pool_inputs),
        (*merged.values(), *alone),
        HORIZON_STEPS,
        dwell_s=max(parse_duration(pool.pool.spec.policy.dwell).total_seconds() for pool in pools),
    )
    return PoolGroup(snapshot, merged)


def divide_members(
    observed: AllocationObserved, group: PoolGroup, assignment: Assignment
) -> AllocationObserved:
    """Return the pool with what the group's assignment gives its Inferences in the other pools."""
    counts = {(item.inference, item.pool): item.replicas for item in assignment.replicas}
    members: list[PoolMember] = []
    for member in observed.members:
        model = group.shared.get(member.key)
        if model is not None:
            current = {item.pool: item.replicas.current for item in model.placements}
            divided = {pool: counts[model.key, pool] for pool in current}
            limited = limit_growth(current, divided, model.bounds.ceiling)
            elsewhere = {pool: count for pool, count in limited.items() if pool != observed.name}
            member = replace(member, other_pools=follow_division(member.other_pools, elsewhere))
        members.append(member)
    return replace(observed, members=tuple(members))


def _find_shared(pools: Sequence[AllocationObserved]) -> Mapping[ObjectKey, Mapping[str, _Place]]:
    """Return where each Inference that can be divided is, by pool; those of one pool are left out."""
    by_key: dict[ObjectKey, dict[str, _Place]] = {}
    for pool in pools:
        for member in pool.members:
            if _can_be_divided(pool, member):
                by_key.setdefault(member.key, {})[pool.name] = _Place(pool, member)
    return {key: places for key, places in sorted(by_key.items()) if len(places) > 1}


def _can_be_divided(observed: AllocationObserved, member: PoolMember) -> bool:
    """Return whether replicas of a member may move between pools now: its demand is known too, and nothing holds it."""
    signal, event = observed.signals.by_key.get(member.key), observed.event_demands.get(member.key)
    overrides = select_for_target(observed.active_overrides, OverrideKind.INFERENCE, member.key)
    return (
        _can_move(observed, member)
        and signal is not None
        and signal.fresh
        and (event is None or event.baseline_per_s is not None)
        and not any(override.spec.hold for override in overrides)
    )


def _can_move(observed: AllocationObserved, member: PoolMember) -> bool:
    """Return whether replicas of a member may move between pools, whatever the demand.

    A strict one has to hold a reserve in each pool, which only that pool's own solve computes.
    """
    return (
        member.all_pools is not None
        and member.inference.spec.tier.traits.counts_requests
        and not member.lacks_capacity
        and not member.excluded_reason
        and not member.refusal
        and not is_strict(observed.pool, member.inference)
    )


def _end_dwell(model: ModelInput, dwell_s: float) -> ModelInput:
    """Return a model of one pool that has no recent move if its own pool's dwell is over: that of the group is the longest."""
    placements = tuple(
        replace(
            item,
            since_up_s=inf if item.since_up_s >= dwell_s else item.since_up_s,
            since_down_s=inf if item.since_down_s >= dwell_s else item.since_down_s,
        )
        for item in model.placements
    )
    return replace(model, placements=placements)


def _leave_outside(member: PoolMember, places: Mapping[str, _Place]) -> PoolMember:
    """Return a member with the pools that the solve does not divide it among."""
    outside = tuple(other for other in member.other_pools if other.name not in places)
    return replace(member, other_pools=outside) if places else member


def _merge_models(
    models: Mapping[str, ModelInput], places: Mapping[str, _Place], free: dict[str, int]
) -> ModelInput:
    """Return one Inference with a placement in each of its pools, those that come first in its list preferred.

    What it has decided and not started is taken from the `free` slices of each pool.
    """
    first = places[next(iter(models))]
    inference = first.member.all_pools or first.member.inference
    listed = inference.spec.placement.pool_shares if inference.spec.placement is not None else ()
    ranks = {share.name: rank for rank, share in enumerate(listed)}
    placements = tuple(
        replace(_assume_decided(models[name].placements[0], places[name], free), rank=ranks.get(name, 0))
        for name in models
    )
    total = sum(placement.replicas.current for placement in placements)
    loads = [model.load for model in models.values() if model.load is not None]
    outside = _leave_outside(first.member, places)
    return replace(
        models[first.observed.name],
        placements=placements,
        # Forecasts and events are the policy of each pool: the highest demand counts.
        load=max(loads, key=lambda load: load.rates, default=None),
        bounds=bound_member(first.observed, outside, total),
    )


def _assume_decided(placement: PlacementInput, place: _Place, free: dict[str, int]) -> PlacementInput:
    """Return a placement with the replicas that its pool's allocator has decided, where they have no slices yet or still have some."""
    allocation, counts = place.member.inference.status.allocation, placement.replicas
    if allocation is None:
        return placement
    room = free[placement.pool] // placement.slices
    started = min(max(allocation.replicas - counts.current, 0), room)
    free[placement.pool] -= started * placement.slices
    stopped = max(counts.current - allocation.replicas, 0)
    loading = max(counts.loading - stopped, 0)
    counts = replace(
        counts,
        ready=counts.ready - (stopped - (counts.loading - loading)),
        loading=loading + started,
        draining=counts.draining + stopped,
    )
    return replace(placement, replicas=counts)
