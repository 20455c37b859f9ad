"""How a pool's compute is shared out: its tiers, what flowed between them, who has which slots, and what may still move."""

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
from tidegate.planning.move_budget import RemainingBudget, compute_move_budget
from tidegate.planning.pods import is_ready
from tidegate.planning.pool_slices import NodeSlices
from tidegate.resources.names import INFERENCE_LABEL, POOL_LABEL, TIER_LABEL, label_value, parse_slices
from tidegate.web.parts import Parts
from tidegate.web.views.standing import decisions_of

WINDOW: Final = timedelta(hours=1)
NODES_SHOWN: Final = 24
_UNPLACED: Final = ""
_SLOTS_SHOWN: Final = 128
"""Pods of one node: what waits for a node may be many."""


class Flow(ApiModel):
    """Slices that went from one tier to another; `Free` is nobody."""

    giver: str
    taker: str
    slices: int


class Slot(ApiModel):
    """What one pod has of a node."""

    inference: str
    """Empty where the visitor may not list pods; so is the pod."""
    pod: str
    tier: str
    slices: int
    ready: bool
    leaving: bool


class NodeSlots(ApiModel):
    """One node and who is on it; `node` is empty for pods that have none yet."""

    node: str
    used: int
    """Slices."""
    slots: tuple[Slot, ...]
    total: int | None = None
    """Slices that it has after what pods from outside the pool ask for; absent where nodes are not known, or not shown to the
    visitor. So the next."""
    free: int | None = None
    """Slices that a pod can be given now."""
    fault: str = ""
    """Why it takes no pods: it is cordoned, has a taint that the pool does not tolerate, is not ready, or is quarantined."""


@dataclass(frozen=True, slots=True)
class SlotsAsked:
    """Which nodes: those with pods of an Inference whose namespace/name has `text`, and which page of them, from 1."""

    text: str = ""
    page: int = 1


@dataclass(frozen=True, slots=True)
class SlotPage:
    """Some nodes, and how full all are: a page costs what it shows, however many nodes there are."""

    nodes: tuple[NodeSlots, ...]
    total: int
    """Nodes that fit what was asked for."""
    number: int
    pages: int
    fullness: tuple[tuple[int, int], ...]
    """Slices in use, and how many nodes have so many; the fullest first."""
    unplaced: int
    """Pods that wait for a node."""
    empty: int = 0
    """Nodes without a pod of the pool."""
    closed: int = 0
    """Nodes that take no pods."""


@dataclass(frozen=True, slots=True)
class Power:
    """One look at a pool."""

    pool: ComputePool
    tiers: Mapping[str, int]
    """Slices by tier."""
    free: int
    price: float
    budget: RemainingBudget | None
    flows: tuple[Flow, ...]
    newest: AllocationDecision | None


def power_of(parts: Parts, pool: ComputePool) -> Power:
    """What flowed is of the last hour."""
    decisions = decisions_of(parts, pool.metadata.name)
    now = parts.now()
    recent = [each for each in decisions if each.spec.at >= now - WINDOW]
    newest = decisions[0] if decisions else None
    return Power(
        pool,
        {each.name: each.slices for each in pool.status.tiers},
        pool.status.slices.free,
        newest.spec.price if newest is not None else 0.0,
        compute_move_budget(pool, pool.status.slices.healthy, decisions, now),
        flows(recent),
        newest,
    )


def flows(decisions: Iterable[AllocationDecision]) -> tuple[Flow, ...]:
    """Between tiers, as the decisions that were carried out moved slices.

    A decision says who gives and who takes, and not to whom: its givers' slices are shared out among its takers in the
    order of the tiers, and what is left over came from the free ones, or became free.
    """
    total: Counter[tuple[str, str]] = Counter()
    for decision in decisions:
        if decision.executed:
            total += _flow(decision)
    return tuple(
        Flow(giver=giver, taker=taker, slices=slices) for (giver, taker), slices in sorted(total.items())
    )


def namespaces_of(parts: Parts, pool: str) -> tuple[str, ...]:
    """Those that have pods in a pool, in order."""
    found = {
        body["metadata"]["namespace"] for body in parts.fleet.pods.by_label(POOL_LABEL, label_value(pool))
    }
    return tuple(sorted(found))


def slots(
    parts: Parts, pool: str, within: Collection[str] | None, known: Mapping[str, NodeSlices] | None = None
) -> tuple[NodeSlots, ...]:
    """Who has what of each node, by node; those that wait for one come first.

    `within` are the namespaces whose pods may be seen, None: all; others' have slices, and no name. `known` are the pool's nodes;
    None: only those are known that have pods.
    """
    found = _Placed.of(parts, pool)
    return tuple(
        found.node(name, within, known, most=None)
        for name in sorted(found.pods.keys() | (known or {}).keys())
    )


def slot_page(
    parts: Parts,
    pool: str,
    asked: SlotsAsked,
    within: Collection[str] | None,
    known: Mapping[str, NodeSlices] | None = None,
) -> SlotPage:
    """Pods are counted for all nodes, and looked at closely for those of the page alone; `within`, `known`: see slots."""
    text = asked.text.lower()
    placed = _Placed.of(parts, pool)
    every = placed.pods.keys() | (known or {}).keys()
    fits = {
        name
        for name in every
        if not text or any(text in _inference(body, within).lower() for body in placed.pods.get(name, ()))
    }
    found = sorted(fits)
    pages = max(-(-len(found) // NODES_SHOWN), 1)
    number = min(max(asked.page, 1), pages)
    shown = found[(number - 1) * NODES_SHOWN : number * NODES_SHOWN]
    full = Counter(placed.used[name] for name in every if name != _UNPLACED)
    return SlotPage(
        tuple(placed.node(name, within, known, most=_SLOTS_SHOWN) for name in shown),
        len(fits - {_UNPLACED}),
        number,
        pages,
        tuple(sorted(full.items(), reverse=True)),
        len(placed.pods.get(_UNPLACED, ())),
        empty=len(every - placed.pods.keys()),
        closed=sum(1 for name in known or () if placed.closed(name, known)),
    )


@dataclass(frozen=True, slots=True)
class _Placed:
    """The pods of a pool by node, and what they have of each."""

    pods: Mapping[str, Sequence[Manifest]]
    used: Counter[str]
    quarantined: frozenset[str]

    @classmethod
    def of(cls, parts: Parts, pool: str) -> Self:
        pods: defaultdict[str, list[Manifest]] = defaultdict(list)
        used: Counter[str] = Counter()
        for body in parts.fleet.pods.by_label(POOL_LABEL, label_value(pool)):
            name = body["spec"].get("nodeName") or _UNPLACED
            pods[name].append(body)
            used[name] += parse_slices(body["metadata"]["labels"])
        found = parts.fleet.pools.get(ObjectKey("", pool))
        faulty = found.status.faulty_nodes if found is not None else ()
        quarantined = (entry.node for entry in faulty if entry.state is FaultState.QUARANTINED)
        return cls(pods, used, frozenset(quarantined))

    def closed(self, name: str, known: Mapping[str, NodeSlices] | None) -> str:
        """Why a node takes no pods; empty where it does, or where that is not known."""
        here = (known or {}).get(name)
        if here is None:
            return ""
        if name in self.quarantined:
            return "is quarantined: its GPU sharing has a fault"
        return here.fault or here.failed

    def node(
        self,
        name: str,
        within: Collection[str] | None,
        known: Mapping[str, NodeSlices] | None,
        *,
        most: int | None,
    ) -> NodeSlots:
        """One node, and `most` of its pods."""
        found = sorted((_slot(body, within) for body in self.pods.get(name, ())[:most]), key=_order)
        here = (known or {}).get(name)
        return NodeSlots(
            node=name,
            used=self.used[name],
            slots=tuple(found),
            total=None if here is None else here.total,
            free=None if here is None else here.free,
            fault=self.closed(name, known),
        )


def _flow(decision: AllocationDecision) -> Counter[tuple[str, str]]:
    given, taken = Counter[str](), Counter[str]()
    for move in decision.spec.moves:
        slices = (move.after - move.before - move.promoted) * move.slices
        if slices < 0:
            given[move.tier.value] -= slices
        elif slices:
            taken[move.tier.value] += slices
    found: Counter[tuple[str, str]] = Counter()
    for taker in (tier.value for tier in Tier):
        for giver in (tier.value for tier in Tier):
            slices = min(given[giver], taken[taker])
            if slices and giver != taker:
                found[giver, taker] += slices
            given[giver] -= slices
            taken[taker] -= slices
    for tier in Tier:
        if given[tier.value]:
            found[tier.value, "free"] += given[tier.value]
        if taken[tier.value]:
            found["free", tier.value] += taken[tier.value]
    return found


def _slot(body: Manifest, within: Collection[str] | None) -> Slot:
    metadata: Mapping[str, Any] = body["metadata"]
    labels: Mapping[str, str] = metadata.get("labels") or {}
    return Slot(
        inference=_inference(body, within),
        pod=metadata["name"] if within is None or metadata["namespace"] in within else "",
        tier=labels.get(TIER_LABEL, ""),
        slices=parse_slices(labels),
        ready=is_ready(body),
        leaving="deletionTimestamp" in metadata,
    )


def _inference(body: Manifest, within: Collection[str] | None) -> str:
    metadata: Mapping[str, Any] = body["metadata"]
    if within is not None and metadata["namespace"] not in within:
        return ""
    return f"{metadata['namespace']}/{(metadata.get('labels') or {}).get(INFERENCE_LABEL, '')}"


def _order(slot: Slot) -> tuple[str, str, str]:
    return slot.tier, slot.inference, slot.pod
