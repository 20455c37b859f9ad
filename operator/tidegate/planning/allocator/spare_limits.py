"""How many slices spares may have, and what limits them: demand, floors, ceilings and the pool's policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from tidegate.allocation.node_loss import make_spread
from tidegate.allocation.shared_spares import SpareRules
from tidegate.allocation.snapshot import ModelInput
from tidegate.api.compute_pool import ComputePool, PolicyMode, SharedSpareLimits
from tidegate.api.inference import Tier
from tidegate.api.quantities import parse_quantity
from tidegate.planning.allocator.observed_pool import AllocationObserved
from tidegate.resources.serving_pod import AGENT_MEMORY

_SERVER_MEMORY: Final = "256Mi"
"""What a server without models may take of a spare's memory."""


def read_rules(pool: ComputePool, limits: SharedSpareLimits) -> SpareRules:
    """Return the limits of spares without that of their slices."""
    cpu = pool.spec.slice.cpu
    if cpu is None:
        return SpareRules(0, limits.max_models)
    overhead = parse_quantity(AGENT_MEMORY) + parse_quantity(_SERVER_MEMORY)
    return SpareRules(0, limits.max_models, float(parse_quantity(cpu.memory)), float(overhead))


def limit_slices(
    observed: AllocationObserved, models: Iterable[ModelInput], limits: SharedSpareLimits
) -> tuple[int, str]:
    """Return the most slices that spares may have together, and what limits them: none that an SLO or a floor needs."""
    tiers, inputs = observed.pool.spec.tiers, tuple(models)
    floors = {tier: tiers.bounds_for(tier).floor for tier in Tier}
    realtime, reserved = count_kept_slices(inputs, floors, len(observed.slices.healthy_nodes))
    included = {model.key for model in inputs}
    reserved += sum(member.kept_slices for member in observed.members if str(member.key) not in included)
    usable = max(observed.usable_slices, 0)
    room = max(usable - reserved - realtime, 0)
    reason = (
        f"realtime demand and what other tiers keep need {realtime + reserved} of {usable} slices, which "
        f"leaves {room} for spares: add nodes, or lower the floors"
    )
    ceiling = tiers.realtime.ceiling
    if ceiling is not None and ceiling - realtime < room:
        room = max(ceiling - realtime, 0)
        reason = f"the ceiling of realtime, {ceiling} slices, leaves {room} for spares: raise it"
    if limits.max_slices is not None and limits.max_slices < room:
        room = limits.max_slices
        reason = f"policy.nodeLoss.sharedSpares.maxSlices is {room}: raise it"
    existing = sum(live.planned.slices for live in observed.live_spares)
    if observed.effective_mode is not PolicyMode.AUTO and existing < room:
        room = existing
        reason = f"the pool is in mode {observed.effective_mode.value}, in which no spare starts: set policy.mode: Auto"
    return room, reason


def count_kept_slices(
    models: Iterable[ModelInput], floors: Mapping[Tier, int], nodes: int
) -> tuple[int, int]:
    """Return the slices that spares leave to realtime Inferences, and those that they leave to others."""
    needed: Counter[Tier] = Counter()
    for model in models:
        needed[model.tier] += count_needed(model, nodes)
    realtime = needed.pop(Tier.REALTIME, 0)
    lower_tiers = [tier for tier in Tier if tier is not Tier.REALTIME]
    return realtime, sum(max(needed[tier], floors.get(tier, 0)) for tier in lower_tiers)


def count_needed(model: ModelInput, nodes: int = 1) -> int:
    """Return the slices that nothing may take from a model: for its floor, and for its SLO, node reserve or deadline.

    With an unknown demand that is what it has; with one node it has no node reserve.
    """
    (placement, *_), load, needed = model.placements, model.load, 0
    if load is None:
        needed = model.current_replicas
    elif model.tier.traits.has_slo:
        needed = placement.curve.useful_replicas_for(max(load.rates))
        if model.keeps_node_spare and nodes > 1:
            placed = [item.replicas for item in placement.ready_by_node]
            needed = make_spread(nodes, placed, needed, is_strict=True).count_covering(needed)
    elif load.deadline is not None:
        needed = placement.curve.useful_replicas_for(min(max(load.rates), load.deadline.rate))
    needed = max(needed, model.bounds.floor)
    return placement.slices * (needed if model.bounds.ceiling is None else min(needed, model.bounds.ceiling))
