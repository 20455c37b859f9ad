"""Plan the spares that the Inferences of a pool share: how many, on which nodes, with which models, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain
from typing import NamedTuple

from tidegate.allocation.shared_spares import NodeShares, SharedSpare, SpareRules, plan_shared_spares
from tidegate.allocation.snapshot import ModelInput
from tidegate.api.compute_pool import PolicyMode, SharedSpareLimits
from tidegate.planning.allocator.node_losses import is_shared
from tidegate.planning.allocator.observed_pool import AllocationObserved
from tidegate.planning.allocator.spare_cover import judge_cover, list_kept
from tidegate.planning.allocator.spare_limits import limit_slices, read_rules
from tidegate.planning.allocator.spare_members import find_obstacle, measure_member
from tidegate.planning.allocator.spare_plan import LoadedModel, PlannedSpare, PoolSparePlan
from tidegate.planning.allocator.spare_reasons import explain_missing, explain_spare
from tidegate.resources.shared_spare import make_spare_name


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
    limits = read_rules(observed.pool, slice_limits)
    names: dict[tuple[str, str], str] = {}
    uncovered: dict[str, str] = {}
    shares: dict[str, list[NodeShares]] = {}
    serving = {f"{live.planned.namespace}/{name}" for live in observed.live_spares for name in live.serving}
    for member in shared:
        key, model = str(member.key), by_key.get(str(member.key))
        reason = find_obstacle(observed, member)
        name = member.inference.served_name
        first = key if reason else names.setdefault((member.key.namespace, name), key)
        if first != key:
            reason = f"its model is called {name} like that of {first}, and a server has one of a name: change spec.model.name"
        # One that decisions leave out keeps what serves for it, and gets nothing new.
        if reason or (model is None and key not in serving):
            uncovered[key] = reason or "the allocator leaves it out of its decisions"
            continue
        shares.setdefault(member.key.namespace, []).append(measure_member(observed, member, model, limits))
    room, obstacle = limit_slices(observed, by_key.values(), slice_limits)
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
                uncovered[inference.key] = explain_missing(observed, inference, rules, obstacle)
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
            explain_spare(spare, by_key),
        )
        for spare in sorted(plan.spares, key=lambda spare: spare.number)
    ]
    still_kept = {
        ((namespace, spare.number, spare.node), key.partition("/")[2])
        for spare in plan.spares
        for key in spare.kept_models
    }
    return _NamespacePlan(planned_spares, plan.uncovered, {model: kept_models[model] for model in still_kept})
