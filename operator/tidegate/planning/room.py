"""Compute the free resources of nodes, the requests of pods, and which resources an unschedulable pod lacks."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from typing import Any, Final

from tidegate.api.quantities import canonical, parse_quantity

Amounts = Mapping[str, Decimal]
"""Amounts by resource, in base units: cores, bytes, slices."""

_INSUFFICIENT: Final = re.compile(r"Insufficient ([^\s,]+?)[.,]?(?=[\s,]|$)")
_TOO_MANY_PODS: Final = "Too many pods"
_PREEMPTION: Final = " preemption: "
_BLOCKING_EFFECTS: Final = frozenset({"NoSchedule", "NoExecute"})
_FINISHED_PHASES: Final = frozenset({"Succeeded", "Failed"})
_FREE_DIGITS: Final = 2
"""Digits of a free amount: more would change the message with every pod that comes or goes."""


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """Allocatable resources of one node, and those that no pod requests."""

    name: str
    allocatable: Amounts
    free: Amounts


def lacking(words: str) -> tuple[str, ...]:
    """Return the resources of which nodes have too little, from the scheduler's message; empty for other causes."""
    scheduling = words.split(_PREEMPTION)[0]
    resources = _INSUFFICIENT.findall(scheduling) + (["pods"] if _TOO_MANY_PODS in scheduling else [])
    return tuple(dict.fromkeys(resources))


def asked(pod: Mapping[str, Any]) -> Amounts:
    """Return what a pod requests of its node.

    That is the sum of its containers and sidecars, or its largest init container if that is more. The pod-level requests
    (spec.resources) replace it resource by resource; the overhead is added. Kubernetes computes the same.
    """
    spec = pod.get("spec") or {}
    init = spec.get("initContainers") or ()
    sidecars = [container for container in init if container.get("restartPolicy") == "Always"]
    running = total(map(_requests, (*(spec.get("containers") or ()), *sidecars)))
    starting = [
        total(map(_requests, (container, *sidecars))) for container in init if container not in sidecars
    ]
    phases = (running, *starting)
    names = {name for phase in phases for name in phase}
    largest = {name: max(phase.get(name, Decimal(0)) for phase in phases) for name in names}
    requests = {**largest, **_requests(spec)}
    return {**total((requests, amounts(spec.get("overhead")))), "pods": Decimal(1)}


def open_nodes(nodes: Iterable[Mapping[str, Any]], resource: str) -> tuple[Mapping[str, Any], ...]:
    """Return the nodes that a pod of ours may run on, those with most of `resource` first.

    Our pods tolerate no taint.
    """
    schedulable = [node for node in nodes if _is_open(node)]
    return tuple(
        sorted(schedulable, key=lambda node: (-_allocatable(node).get(resource, Decimal(0)), _name(node)))
    )


def node_room(node: Mapping[str, Any], pods: Iterable[Mapping[str, Any]]) -> NodeRoom:
    """Return what is free on a node that has these pods."""
    allocatable = _allocatable(node)
    requested = total(
        asked(pod) for pod in pods if (pod.get("status") or {}).get("phase") not in _FINISHED_PHASES
    )
    free = {
        name: max(size - requested.get(name, Decimal(0)), Decimal(0)) for name, size in allocatable.items()
    }
    return NodeRoom(_name(node), allocatable, free)


def figures(asks: Amounts, lacks: Sequence[str], rooms: Sequence[NodeRoom]) -> str:
    """Return for each lacking resource what the pod requests and what is free at most.

    Example: 'it asks for memory 8Ti, the most free is 3Gi of 16Gi on node a'.
    """
    return "; ".join(
        f"it asks for {name} {amount_text(name, asks.get(name, Decimal(0)))}{_most_free(name, rooms)}"
        for name in lacks
    )


def _most_free(resource: str, rooms: Sequence[NodeRoom]) -> str:
    freest = max(rooms, key=lambda room: room.free.get(resource, Decimal(0)), default=None)
    if freest is None:
        return ""
    free, allocatable = (freest.free.get(resource, Decimal(0)), freest.allocatable.get(resource, Decimal(0)))
    return f", the most free is {_rounded(resource, free)} of {_rounded(resource, allocatable)} on node {freest.name}"


def _rounded(resource: str, value: Decimal) -> str:
    """Format an amount rounded down to two digits, in the largest unit in which it is at least one."""
    if resource not in ("memory", "ephemeral-storage"):
        return amount_text(resource, _floored(value))
    units = ("", "Ki", "Mi", "Gi", "Ti")
    power = next(
        (power for power in reversed(range(len(units))) if value >= Decimal(1024) ** power and value), 0
    )
    number = _floored(value / Decimal(1024) ** power)
    return f"{number.normalize():f}{units[power]}"


def _floored(value: Decimal) -> Decimal:
    if not value:
        return value
    return value.quantize(
        Decimal(1).scaleb(min(value.adjusted() - _FREE_DIGITS + 1, 0)), rounding=ROUND_FLOOR
    )


def amount_text(resource: str, value: Decimal) -> str:
    suffix = "Ki" if resource in ("memory", "ephemeral-storage") and value % 1024 == 0 and value else ""
    return canonical(f"{value / 1024 if suffix else value:f}{suffix}")


def _is_open(node: Mapping[str, Any]) -> bool:
    spec = node.get("spec") or {}
    taints = spec.get("taints") or ()
    return not spec.get("unschedulable") and all(
        taint.get("effect") not in _BLOCKING_EFFECTS for taint in taints
    )


def _allocatable(node: Mapping[str, Any]) -> Amounts:
    return amounts((node.get("status") or {}).get("allocatable"))


def _name(node: Mapping[str, Any]) -> str:
    return str(node["metadata"]["name"])


def _requests(asker: Mapping[str, Any]) -> Amounts:
    return amounts((asker.get("resources") or {}).get("requests"))


def amounts(quantities: Mapping[str, Any] | None) -> Amounts:
    """Parse resources as Kubernetes writes them (`{cpu: 500m}`) into numbers."""
    return {name: parse_quantity(str(text)) for name, text in (quantities or {}).items()}


def total(several: Iterable[Amounts]) -> dict[str, Decimal]:
    """Return the sum of all amounts, resource by resource."""
    result: dict[str, Decimal] = {}
    for amounts in several:
        for name, value in amounts.items():
            result[name] = result.get(name, Decimal(0)) + value
    return result
