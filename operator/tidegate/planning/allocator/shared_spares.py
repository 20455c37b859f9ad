"""Plan the spares that the Inferences of a pool share: how many, on which nodes, with which models, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from datetime import datetime
from itertools import chain
from math import ceil, inf
from typing import Final, NamedTuple

from tidegate.allocation.curves import linear_curve
from tidegate.allocation.node_loss import make_spread
from tidegate.allocation.shared_spares import (
    NodeShares,
    SharedSpare,
    SpareRules,
    measure_node_shares,
    plan_shared_spares,
)
from tidegate.allocation.snapshot import ModelInput
from tidegate.api.compute_pool import ComputePool, PolicyMode, SharedSpareLimits
from tidegate.api.inference import ArtefactFormat, Inference, Tier
from tidegate.api.quantities import parse_quantity
from tidegate.planning.allocator.node_losses import is_shared
from tidegate.planning.allocator.snapshot_builder import AllocationObserved, PoolMember, count_excluded_slices
from tidegate.planning.allocator.spare_cover import judge_cover, list_kept
from tidegate.planning.allocator.spare_plan import LoadedModel, PlannedSpare, PoolSparePlan
from tidegate.planning.inference.node_resources import format_amount
from tidegate.resources.artefact import find_volume_claims
from tidegate.resources.pod import AGENT_MEMORY
from tidegate.resources.shared_spare import make_spare_name

_SHAREABLE: Final = frozenset({ArtefactFormat.ONNX, ArtefactFormat.TORCH_EXPORT, ArtefactFormat.TENSORRT})
_NO_NODE: Final = "?"
"""Begins the place of replicas that have no node yet: whatever took them, their requests come to the spare."""
_LEAST_SHARE: Final = 0.05
"""Demand that counts for a model without requests, as a share of what a replica serves: it is loaded on a spare as well."""
_NAMED: Final = 3
_ROUNDING: Final = 1e-6
_SERVER_MEMORY: Final = "256Mi"
"""What a server without models may take of a spare's memory."""


def keep_spares(observed: AllocationObserved) -> PoolSparePlan:
    """Return the spares that exist, for a pool whose demand is not known yet."""
    covered = {f"{live.planned.namespace}/{name}" for live in observed.live_spares for name in live.serving}
    return PoolSparePlan(tuple(live.planned for live in observed.live_spares), covered=frozenset(covered))


def plan_pool_spares(observed: AllocationObserved, models: Iterable[ModelInput]) -> PoolSparePlan:
    """Plan the spares of a pool for the demand in `models`, the solver's inputs about its members.

    Only Inferences of one namespace share a pod. Within the limit of slices the existing spares of all namespaces come first, and
    then new ones, in the order of the namespaces' names.
    """
    shared = [member for member in observed.members if is_shared(observed.pool, member.inference)]
    if not shared and not observed.live_spares:
        return PoolSparePlan()
    by_key = {model.key: model for model in models}
    slice_limits = observed.pool.spec.policy.node_loss.shared_spares or SharedSpareLimits()
    limits = _read_rules(observed.pool, slice_limits)
    names: dict[tuple[str, str], str] = {}
    uncovered: dict[str, str] = {}
    shares: dict[str, list[NodeShares]] = {}
    serving = {f"{live.planned.namespace}/{name}" for live in observed.live_spares for name in live.serving}
    for member in shared:
        key, model = str(member.key), by_key.get(str(member.key))
        reason = _find_obstacle(observed, member)
        name = member.inference.served_name
        first = key if reason else names.setdefault((member.key.namespace, name), key)
        if first != key:
            reason = f"its model is called {name} like that of {first}, and a server has one of a name: change spec.model.name"
        # One that decisions leave out keeps what serves for it, and gets nothing new.
        if reason or (model is None and key not in serving):
            uncovered[key] = reason or "the allocator leaves it out of its decisions"
            continue
        shares.setdefault(member.key.namespace, []).append(_measure_member(observed, member, model, limits))
    room, obstacle = _limit_slices(observed, by_key.values(), slice_limits)
    spares: list[PlannedSpare] = []
    kept_models: dict[LoadedModel, datetime] = {}
    nodes, staying = _NodeRoom(observed), list_kept(observed)
    existing = _list_useful(observed, shares, nodes)
    for namespace in sorted({*shares, *(live.planned.namespace for live in observed.live_spares)}):
        available = max(room - sum(spare.slices for spare in spares if spare.node in nodes.free), 0)
        own = sum(spare.slices for spare in existing if spare.namespace == namespace)
        later = [spare for spare in existing if spare.namespace > namespace]
        of_others = sum(spare.slices for spare in later)
        rules = replace(limits, slices=max(available - of_others, min(own, available)))
        members = shares.get(namespace, [])
        planned, missing, own_kept = _plan_namespace(
            observed, namespace, members, rules, nodes, later, staying
        )
        spares += nodes.take_slices(planned)
        kept_models |= own_kept
        for inference in members:
            if inference.key in missing:
                uncovered[inference.key] = _explain_missing(observed, inference, rules, obstacle)
    if observed.effective_mode is not PolicyMode.AUTO:
        spares += _list_dropped(observed, spares)
    needed = {
        inference.key: inference.spares_needed
        for inference in chain.from_iterable(shares.values())
        if inference.key not in uncovered
    }
    cover = judge_cover(observed, spares, needed)
    plan = PoolSparePlan(tuple(spares), dict(sorted(uncovered.items())), *cover, kept_models)
    # No other pod can have the slices of a spare on a node that takes none: they are not reserved.
    return replace(plan, excess_slices=max(plan.count_slices(nodes.free) - room, 0))


class _NodeRoom:
    """Slices of healthy nodes for spares, less those of the namespaces that were planned before."""

    def __init__(self, observed: AllocationObserved) -> None:
        healthy = [node for node in observed.slices.nodes if node.healthy_slices]
        self.free = {node.node: node.free_slices for node in healthy}
        self.sizes = {node.node: node.healthy_slices for node in healthy}
        self._placed = {live.planned.place for live in observed.live_spares if live.is_placed}

    def take_slices(self, spares: Iterable[PlannedSpare]) -> Sequence[PlannedSpare]:
        """Leave the slices of spares to them, and return the spares, with which of them find these free.

        Those of a spare that has a pod there are not free any more.
        """
        taken: list[PlannedSpare] = []
        for spare in spares:
            is_placed = spare.place in self._placed
            if spare.node in self.sizes:
                self.sizes[spare.node] -= spare.slices
            taken.append(replace(spare, starts=is_placed or self.free.get(spare.node, 0) >= spare.slices))
            if not is_placed and spare.node in self.free:
                self.free[spare.node] -= spare.slices
        return taken


def _list_useful(
    observed: AllocationObserved, shares: Mapping[str, Sequence[NodeShares]], nodes: _NodeRoom
) -> Sequence[PlannedSpare]:
    """Return the spares that exist on nodes that take pods, and have a model that needs one."""
    needy = {item.key for item in chain.from_iterable(shares.values()) if item.spares_needed}
    return [
        live.planned
        for live in observed.live_spares
        if live.planned.node in nodes.free
        and any(f"{live.planned.namespace}/{name}" in needy for name in live.planned.models)
    ]


def _list_dropped(observed: AllocationObserved, spares: Sequence[PlannedSpare]) -> Sequence[PlannedSpare]:
    """Return the spares that exist and are not planned any more: no held pool stops one whose node is there."""
    planned = {(spare.namespace, spare.number) for spare in spares}
    return [
        live.planned
        for live in observed.live_spares
        if (live.planned.namespace, live.planned.number) not in planned
        and live.planned.node in observed.slices.healthy_nodes
    ]


class _NamespacePlan(NamedTuple):
    spares: Sequence[PlannedSpare]
    uncovered: Sequence[str]
    kept_models: Mapping[LoadedModel, datetime]


def _plan_namespace(
    observed: AllocationObserved,
    namespace: str,
    inferences: Sequence[NodeShares],
    rules: SpareRules,
    room: _NodeRoom,
    later: Iterable[PlannedSpare],
    kept_models: Mapping[LoadedModel, datetime],
) -> _NamespacePlan:
    """Plan the spares of one namespace; `later` are existing spares of others, and `kept_models` those of the whole pool."""
    nodes, sizes = room.free, dict(room.sizes)
    for spare in later:
        sizes[spare.node] -= spare.slices
    absent = {inference.key for inference in inferences if inference.missing}
    outside: Counter[str] = Counter()
    current: list[SharedSpare] = []
    for live in observed.live_spares:
        planned = live.planned
        if planned.namespace != namespace:
            continue
        # A spare on a node that takes no new pods stays as long as it serves for replicas, and then until others have its models.
        is_absent = any(f"{namespace}/{name}" in absent for name in live.serving)
        closes = planned.node not in nodes and not is_absent
        if planned.node not in nodes:
            if not (is_absent or live.is_ready):
                continue
            outside[planned.node] += planned.slices
        # One that waits for slices goes to another node as soon as that has some.
        if live.is_placed or nodes.get(planned.node, 0) >= planned.slices or not any(nodes.values()):
            keys, loaded, staying = (
                [f"{namespace}/{name}" for name in names]
                for names in (
                    planned.models,
                    live.serving,
                    [name for place, name in kept_models if place == planned.place and not closes],
                )
            )
            current.append(
                SharedSpare(
                    planned.number,
                    planned.node,
                    planned.slices,
                    tuple(keys),
                    frozenset(loaded),
                    frozenset(staying),
                    closes,
                )
            )
    rules = replace(rules, slices=rules.slices + outside.total())
    plan = plan_shared_spares(inferences, (*nodes, *outside), rules, current, nodes, {**sizes, **outside})
    pool, by_key = observed.name, {inference.key: inference for inference in inferences}
    planned_spares = [
        PlannedSpare(
            make_spare_name(pool, spare.number),
            namespace,
            spare.number,
            spare.node,
            spare.slices,
            tuple(key.partition("/")[2] for key in spare.models),
            _explain_spare(spare, by_key),
        )
        for spare in sorted(plan.spares, key=lambda spare: spare.number)
    ]
    still_kept = {
        ((namespace, spare.number, spare.node), key.partition("/")[2])
        for spare in plan.spares
        for key in spare.kept_models
    }
    return _NamespacePlan(planned_spares, plan.uncovered, {model: kept_models[model] for model in still_kept})


def _find_obstacle(observed: AllocationObserved, member: PoolMember) -> str:
    """Return why a member can have no shared spare, whatever room there is; empty if it can."""
    spec = member.inference.spec
    if observed.pool.spec.slice.cpu is None:
        return "a process on a shared GPU has one slice, so no spare has several models: set nodeLoss Priced or Strict"
    if member.has_several_pools:
        return "it runs in several pools, and a spare belongs to one: set nodeLoss Priced or Strict"
    if spec.model.format not in _SHAREABLE:
        return (
            f"format {spec.model.format.value} runs code of its own, which could read the other models: export it as ONNX, or "
            "set nodeLoss Priced or Strict"
        )
    own = {
        "spec.logging": spec.logging is not None,
        "spec.model.secretName": spec.model.secret_name is not None,
        "spec.serviceAccountName": spec.service_account_name is not None,
        "a volume claim in spec.model.uri": bool(find_volume_claims((spec.model.uri,))),
    }
    named = [name for name, is_set in own.items() if is_set]
    if named:
        return f"a shared pod has nothing of one Inference, and this one has {' and '.join(named)}: set nodeLoss Priced or Strict"
    return ""


def _measure_member(
    observed: AllocationObserved, member: PoolMember, model: ModelInput | None, rules: SpareRules
) -> NodeShares:
    """Return what the loss of each node takes from a member; without a known demand its replicas count as fully busy.

    Only the replicas that demand and bounds need count. Replicas without a healthy node, such as those of a node that was just
    lost, count until they have been replaced.
    """
    healthy = observed.slices.healthy_nodes
    counts: dict[str, int] = {}
    ready: dict[str, int] = {}
    for node, share in member.claim.nodes.items():
        if node in healthy and share.slices >= member.replica_slices:
            counts[node] = share.slices // member.replica_slices
            ready[node] = share.ready // member.replica_slices
    missing = member.assigned_replicas - sum(counts.values())
    if missing > 0:
        counts[f"{_NO_NODE}{member.key}"] = missing
    curve, rate = linear_curve(1.0), inf
    if model is not None and model.load is not None:
        curve = model.placements[0].curve
        rate = max(*model.load.rates, _LEAST_SHARE * curve.rate_at(1))
        spare_nodes = {
            live.planned.node
            for live in observed.live_spares
            if live.planned.namespace == member.key.namespace and member.key.name in live.planned.models
        }
        needed = _count_needed(model) // member.replica_slices
        _drop_surplus(counts, ready, sum(counts.values()) - needed, spare_nodes)
    shares = measure_node_shares(curve, rate, counts, str(member.key), member.replica_slices, ready)
    return replace(shares, model_bytes=_find_bytes(member.inference, member.replica_slices, rules))


def _drop_surplus(counts: dict[str, int], ready: dict[str, int], surplus: int, spare_nodes: Set[str]) -> None:
    """Leave out replicas beyond those that demand needs, so that a reserve of its own is no reason to have no spare.

    The first are those that do not serve, then those of the fullest nodes; of equal ones, those beside its spares, which can stay.
    """

    def rank_node(node: str) -> tuple[bool, int, bool]:
        return counts[node] > ready.get(node, 0), counts[node], node in spare_nodes

    for _ in range(surplus):
        node = max(sorted(counts), key=rank_node)
        counts[node] -= 1
        ready[node] = min(ready.get(node, 0), counts[node])


def _find_bytes(inference: Inference, slices: int, rules: SpareRules) -> float:
    """Return the memory of the largest version that replicas have measured; without one, an even share of a spare.

    With that share for each, a spare has room for as many models as it may have, and for one to load.
    """
    measured = max((version.bytes for version in inference.status.versions.memory), default=0)
    if measured:
        return float(measured)
    room = rules.limit_bytes(slices)
    return 0.0 if room == inf else float(room // (rules.max_models + 1))


def _read_rules(pool: ComputePool, limits: SharedSpareLimits) -> SpareRules:
    """Return the limits of spares without that of their slices."""
    cpu = pool.spec.slice.cpu
    if cpu is None:
        return SpareRules(0, limits.max_models)
    overhead = parse_quantity(AGENT_MEMORY) + parse_quantity(_SERVER_MEMORY)
    return SpareRules(0, limits.max_models, float(parse_quantity(cpu.memory)), float(overhead))


def _limit_slices(
    observed: AllocationObserved, models: Iterable[ModelInput], limits: SharedSpareLimits
) -> tuple[int, str]:
    """Return the most slices that spares may have together, and what limits them: none that an SLO or a floor needs."""
    tiers, inputs = observed.pool.spec.tiers, tuple(models)
    floors = {tier: tiers.bounds_for(tier).floor for tier in Tier}
    realtime, reserved = count_kept_slices(inputs, floors, len(observed.slices.healthy_nodes))
    included = {model.key for model in inputs}
    reserved += sum(
        count_excluded_slices(member) for member in observed.members if str(member.key) not in included
    )
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
        needed[model.tier] += _count_needed(model, nodes)
    realtime = needed.pop(Tier.REALTIME, 0)
    lower_tiers = [tier for tier in Tier if tier is not Tier.REALTIME]
    return realtime, sum(max(needed[tier], floors.get(tier, 0)) for tier in lower_tiers)


def _count_needed(model: ModelInput, nodes: int = 1) -> int:
    """Return the slices that nothing may take from a model: for its floor, and for its SLO, node reserve or deadline.

    With an unknown demand that is what it has; with one node it has no node reserve.
    """
    (placement, *_), load, needed = model.placements, model.load, 0
    if load is None:
        needed = model.current_replicas
    elif model.tier.traits.has_slo:
        needed = placement.curve.replicas_for(max(load.rates)) or 0
        if model.keeps_node_spare and nodes > 1:
            placed = [item.replicas for item in placement.ready_by_node]
            needed = make_spread(nodes, placed, needed).count_covering(needed)
    elif load.deadline is not None:
        needed = placement.curve.replicas_for(min(max(load.rates), load.deadline.rate)) or 0
    needed = max(needed, model.bounds.floor)
    return placement.slices * (needed if model.bounds.ceiling is None else min(needed, model.bounds.ceiling))


def _explain_missing(
    observed: AllocationObserved, inference: NodeShares, rules: SpareRules, obstacle: str
) -> str:
    healthy = observed.slices.healthy_nodes
    if healthy <= inference.busy_by_node.keys():
        nodes = "the only healthy node" if len(healthy) == 1 else f"all {len(healthy)} healthy nodes"
        return f"it has replicas on {nodes}, so a spare would be lost with some of them: add nodes"
    largest = max(
        (
            node.healthy_slices
            for node in observed.slices.nodes
            if node.healthy_slices and node.node not in inference.busy_by_node
        ),
        default=0,
    )
    if inference.slices > largest:
        return (
            f"it needs a spare with {inference.slices} slices, and the nodes without its replicas have at most {largest}: "
            "add a larger node, or give its replicas fewer slices"
        )
    room = rules.limit_bytes(inference.slices)
    if 2 * inference.model_bytes > room:
        size, limit = (
            format_amount("memory", parse_quantity(f"{count:.0f}")) for count in (inference.model_bytes, room)
        )
        return f"its model has {size}, and a spare with {inference.slices} slices has {limit} for two versions of it: make slices larger"
    spares = "1 spare" if inference.spares_needed == 1 else f"{inference.spares_needed} spares"
    return f"it needs {spares} with {inference.slices} slices each, and {obstacle}"


def _explain_spare(spare: SharedSpare, by_key: Mapping[str, NodeShares]) -> str:
    """Return which node's loss takes most of a spare, and whose requests then come to it."""
    if spare.closes:
        return f"node {spare.node} takes no new pods: its models stay until other spares have loaded them"
    if spare.kept_models.issuperset(spare.models):
        return "nothing needs its models any more: they stay for policy.dwell"
    inferences = [by_key[key] for key in spare.models if key not in spare.kept_models]
    nodes = {node for inference in inferences for node in inference.busy_by_node}
    if not nodes:
        return "its models move to other spares, and stay until these have loaded them"

    def list_parts(node: str) -> list[tuple[float, str]]:
        # In tenths: a text that follows every request would have the pool's status written again and again.
        parts = [
            (
                ceil(10 * inference.busy_by_node[node] / inference.spares_needed - _ROUNDING) / 10,
                inference.key.partition("/")[2],
            )
            for inference in inferences
            if inference.busy_by_node.get(node)
        ]
        return sorted(parts, key=lambda part: (-part[0], part[1]))

    node = max(sorted(nodes), key=lambda place: sum(busy for busy, _ in list_parts(place)))
    parts = list_parts(node)
    named = ", ".join(f"{name} ({busy:.2g})" for busy, name in parts[:_NAMED])
    rest = f" and {len(parts) - _NAMED} more" if len(parts) > _NAMED else ""
    total = sum(busy for busy, _ in parts)
    if node.startswith(_NO_NODE):
        return f"replicas of {named}{rest} have no node yet: {total:.2g} busy replicas' requests come here"
    return f"the loss of node {node} takes {total:.2g} busy replicas of {named}{rest}, and no other node's takes more"
