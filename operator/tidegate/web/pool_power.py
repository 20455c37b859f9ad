"""Compute the assignment of a pool's compute: tiers, moved slices, slots of nodes, and the remaining budget of moves."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Self

from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.compute_pool import ComputePool
from tidegate.api.faulty_nodes import FaultState
from tidegate.api.inference import Tier
from tidegate.api.meta import ApiModel, ObjectKey
from tidegate.kube.port import Manifest
from tidegate.planning.allocator.move_budget import RemainingBudget, compute_move_budget
from tidegate.planning.pods import is_ready
from tidegate.planning.pools.pool_slices import NodeSlices
from tidegate.resources.names import (
    INFERENCE_LABEL,
    POOL_LABEL,
    SPARE_LABEL,
    TIER_LABEL,
    parse_slices,
    to_label_value,
)
from tidegate.resources.shared_spare import parse_served_models
from tidegate.web.app_state import AppState
from tidegate.web.explanations import list_recent_decisions
from tidegate.web.listing import select_page

FLOW_WINDOW: Final = timedelta(hours=1)
NODES_SHOWN: Final = 24
_UNPLACED: Final = ""
_SLOTS_SHOWN: Final = 128
"""The most pods shown for one node, or for pods that wait for a node."""


class SliceFlow(ApiModel):
    """Slices that moved from one tier to another; `free` stands for no tier."""

    giver: str
    taker: str
    slices: int


class PodSlot(ApiModel):
    """The slices of one pod on a node."""

    inference: str
    """Empty if the user may not list the pod; so is `pod`. Of a spare that several share, those that it serves for."""
    pod: str
    tier: str
    slices: int
    ready: bool
    leaving: bool


class NodeSlots(ApiModel):
    """One node and its pods; `node` is empty for pods without a node."""

    node: str
    used: int
    """Slices."""
    slots: tuple[PodSlot, ...]
    total: int | None = None
    """Slices of the node, less the requests of pods outside the pool; absent if the nodes are unknown or hidden from the user."""
    free: int | None = None
    """Slices for further pods; absent like `total`."""
    fault: str = ""
    """The reason why it takes no pods: cordoned, a taint that the pool does not tolerate, not ready, or quarantined."""


@dataclass(frozen=True, slots=True)
class SlotQuery:
    """A query for nodes with pods of an Inference whose namespace/name contains `text`, and for one page, from 1."""

    text: str = ""
    page: int = 1


@dataclass(frozen=True, slots=True)
class SlotPage:
    """One page of nodes, and the usage of all nodes."""

    nodes: tuple[NodeSlots, ...]
    total: int
    """Nodes that match the query."""
    number: int
    pages: int
    fullness: tuple[tuple[int, int], ...]
    """Slices in use, and the number of nodes with that many; the fullest first."""
    unplaced: int
    """Pods that wait for a node."""
    empty: int = 0
    """Nodes without a pod of the pool."""
    closed: int = 0
    """Nodes that take no pods."""


@dataclass(frozen=True, slots=True)
class PoolPower:
    """The assignment of a pool at one time."""

    pool: ComputePool
    tiers: Mapping[str, int]
    """Slices by tier."""
    free: int
    price: float | None
    """What one more slice would have earned per second at the newest decision."""
    budget: RemainingBudget | None
    flows: tuple[SliceFlow, ...]
    newest: AllocationDecision | None


def summarise_power(app: AppState, pool: ComputePool) -> PoolPower:
    """Return the assignment of a pool, with the flows of the last hour."""
    decisions = list_recent_decisions(app, pool.metadata.name)
    now = app.now()
    recent = [decision for decision in decisions if decision.spec.at >= now - FLOW_WINDOW]
    newest = decisions[0] if decisions else None
    return PoolPower(
        pool,
        {tier.name: tier.slices for tier in pool.status.tiers},
        pool.status.slices.free,
        newest.spec.price if newest is not None else None,
        compute_move_budget(pool, pool.status.slices.healthy, decisions, now),
        sum_flows(recent),
        newest,
    )


def sum_flows(decisions: Iterable[AllocationDecision]) -> tuple[SliceFlow, ...]:
    """Return the slices that applied decisions moved between tiers.

    A decision lists the changes of Inferences, not pairs of them: freed slices are matched with taken ones in the order of
    the tiers, and the rest came from the free slices, or became free.
    """
    total: Counter[tuple[str, str]] = Counter()
    for decision in decisions:
        if decision.should_execute:
            total += _count_flows(decision)
    return tuple(
        SliceFlow(giver=giver, taker=taker, slices=slices) for (giver, taker), slices in sorted(total.items())
    )


def list_pod_namespaces(app: AppState, pool: str) -> tuple[str, ...]:
    """Return the namespaces that have pods in a pool, sorted."""
    namespaces = {
        body["metadata"]["namespace"] for body in app.fleet.pods.by_label(POOL_LABEL, to_label_value(pool))
    }
    return tuple(sorted(namespaces))


def list_slots(
    app: AppState,
    pool: str,
    within: Collection[str] | None,
    node_slices: Mapping[str, NodeSlices] | None = None,
) -> tuple[NodeSlots, ...]:
    """Return the slots of all nodes, by node; pods without a node come first.

    `within` are the namespaces whose pods the user may list, None: all; other pods have slices but no name.
    `node_slices` are the pool's nodes; None: only nodes with pods are known.
    """
    pool_pods = _PoolPods.read_pods(app, pool)
    return tuple(
        pool_pods.make_node_slots(name, within, node_slices, limit=None)
        for name in sorted(pool_pods.pods.keys() | (node_slices or {}).keys())
    )


def get_slot_page(
    app: AppState,
    pool: str,
    query: SlotQuery,
    within: Collection[str] | None,
    node_slices: Mapping[str, NodeSlices] | None = None,
) -> SlotPage:
    """Return one page of slots: it counts the pods of all nodes, and reads those of its own nodes; parameters as in list_slots."""
    text = query.text.lower()
    pool_pods = _PoolPods.read_pods(app, pool)
    all_names = pool_pods.pods.keys() | (node_slices or {}).keys()
    matching = {
        name
        for name in all_names
        if not text
        or any(text in _inference_name(body, within).lower() for body in pool_pods.pods.get(name, ()))
    }
    selected = select_page(sorted(matching), query.page, NODES_SHOWN)
    fullness = Counter(pool_pods.used[name] for name in all_names if name != _UNPLACED)
    return SlotPage(
        tuple(
            pool_pods.make_node_slots(name, within, node_slices, limit=_SLOTS_SHOWN)
            for name in selected.items
        ),
        len(matching - {_UNPLACED}),
        selected.number,
        selected.pages,
        tuple(sorted(fullness.items(), reverse=True)),
        len(pool_pods.pods.get(_UNPLACED, ())),
        empty=len(all_names - pool_pods.pods.keys()),
        closed=sum(1 for name in node_slices or () if pool_pods.find_fault(name, node_slices)),
    )


@dataclass(frozen=True, slots=True)
class _PoolPods:
    """The pods of a pool by node, and the slices that they use."""

    pods: Mapping[str, Sequence[Manifest]]
    used: Counter[str]
    quarantined: frozenset[str]

    @classmethod
    def read_pods(cls, app: AppState, pool: str) -> Self:
        pods: defaultdict[str, list[Manifest]] = defaultdict(list)
        used: Counter[str] = Counter()
        for body in app.fleet.pods.by_label(POOL_LABEL, to_label_value(pool)):
            name = body["spec"].get("nodeName") or _UNPLACED
            pods[name].append(body)
            used[name] += parse_slices(body["metadata"]["labels"])
        resource = app.fleet.pools.get(ObjectKey("", pool))
        faulty = resource.status.faulty_nodes if resource is not None else ()
        quarantined = (entry.node for entry in faulty if entry.state is FaultState.QUARANTINED)
        return cls(pods, used, frozenset(quarantined))

    def find_fault(self, name: str, node_slices: Mapping[str, NodeSlices] | None) -> str:
        """Return the reason why a node takes no pods; empty if it does, or if the node is unknown."""
        node = (node_slices or {}).get(name)
        if node is None:
            return ""
        if name in self.quarantined:
            return "is quarantined: its GPU sharing has a fault"
        return node.fault or node.failed_devices

    def make_node_slots(
        self,
        name: str,
        within: Collection[str] | None,
        node_slices: Mapping[str, NodeSlices] | None,
        *,
        limit: int | None,
    ) -> NodeSlots:
        """Return the slots of a node, with at most `limit` of its pods."""
        slots = sorted((_make_slot(body, within) for body in self.pods.get(name, ())[:limit]), key=_sort_key)
        node = (node_slices or {}).get(name)
        return NodeSlots(
            node=name,
            used=self.used[name],
            slots=tuple(slots),
            total=None if node is None else node.total,
            free=None if node is None else node.free_slices,
            fault=self.find_fault(name, node_slices),
        )


def _count_flows(decision: AllocationDecision) -> Counter[tuple[str, str]]:
    freed, taken = Counter[str](), Counter[str]()
    for move in decision.spec.moves:
        slices = (move.after - move.before - move.promoted) * move.slices
        if slices < 0:
            freed[move.tier.value] -= slices
        elif slices:
            taken[move.tier.value] += slices
    pairs: Counter[tuple[str, str]] = Counter()
    for taker in (tier.value for tier in Tier):
        for giver in (tier.value for tier in Tier):
            slices = min(freed[giver], taken[taker])
            if slices and giver != taker:
                pairs[giver, taker] += slices
            freed[giver] -= slices
            taken[taker] -= slices
    for tier in Tier:
        if freed[tier.value]:
            pairs[tier.value, "free"] += freed[tier.value]
        if taken[tier.value]:
            pairs["free", tier.value] += taken[tier.value]
    return pairs


def _make_slot(body: Manifest, within: Collection[str] | None) -> PodSlot:
    metadata: Mapping[str, Any] = body["metadata"]
    labels: Mapping[str, str] = metadata.get("labels") or {}
    return PodSlot(
        inference=_inference_name(body, within),
        pod=metadata["name"] if within is None or metadata["namespace"] in within else "",
        tier=labels.get(TIER_LABEL, ""),
        slices=parse_slices(labels),
        ready=is_ready(body),
        leaving="deletionTimestamp" in metadata,
    )


def _inference_name(body: Manifest, within: Collection[str] | None) -> str:
    metadata: Mapping[str, Any] = body["metadata"]
    if within is not None and metadata["namespace"] not in within:
        return ""
    labels: Mapping[str, str] = metadata.get("labels") or {}
    if SPARE_LABEL in labels:
        served = sorted(parse_served_models(metadata.get("annotations") or {}))
        return (
            f"{metadata['namespace']}/{', '.join(served)}" if served else "a spare that serves no model yet"
        )
    return f"{metadata['namespace']}/{labels.get(INFERENCE_LABEL, '')}"


def _sort_key(slot: PodSlot) -> tuple[str, str, str]:
    return slot.tier, slot.inference, slot.pod
