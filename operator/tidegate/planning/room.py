"""Room on nodes: what a pod that no node takes asks for, what the scheduler finds lacking, and where the most is free."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from typing import Any, Final

from tidegate.api.quantities import canonical, parse_quantity

Amounts = Mapping[str, Decimal]
"""By resource, in base units: cores, bytes, slices."""

_INSUFFICIENT: Final = re.compile(r"Insufficient ([^\s,]+?)[.,]?(?=[\s,]|$)")
_TOO_MANY_PODS: Final = "Too many pods"
_PREEMPTION: Final = " preemption: "
_KEEPS_PODS_AWAY: Final = frozenset({"NoSchedule", "NoExecute"})
_ENDED: Final = frozenset({"Succeeded", "Failed"})
_FIGURES: Final = 2
"""Digits of what is free: more would change the message with every pod that comes or goes."""


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """One node: what it has for pods, and what of it no pod has asked for."""

    name: str
    allocatable: Amounts
    free: Amounts


def lacking(words: str) -> tuple[str, ...]:
    """The resources of which nodes have too little, in the scheduler's words; none when it is something else."""
    verdict = words.split(_PREEMPTION)[0]
    found = _INSUFFICIENT.findall(verdict) + (["pods"] if _TOO_MANY_PODS in verdict else [])
    return tuple(dict.fromkeys(found))


def asked(pod: Mapping[str, Any]) -> Amounts:
    """What a pod asks of its node: its containers and sidecars together, or its largest init container if that is more.

    What it asks for as a whole (spec.resources) stands instead of that, resource by resource.
    """
    spec = pod.get("spec") or {}
    init = spec.get("initContainers") or ()
    sidecars = [each for each in init if each.get("restartPolicy") == "Always"]
    together = total(map(_requests, (*(spec.get("containers") or ()), *sidecars)))
    starting = [total(map(_requests, (each, *sidecars))) for each in init if each not in sidecars]
    names = {name for each in (together, *starting) for name in each}
    most = {name: max(each.get(name, Decimal(0)) for each in (together, *starting)) for name in names}
    whole = {**most, **_requests(spec)}
    return {**total((whole, amounts(spec.get("overhead")))), "pods": Decimal(1)}


def open_nodes(nodes: Iterable[Mapping[str, Any]], resource: str) -> tuple[Mapping[str, Any], ...]:
    """Nodes that a pod of ours may land on, those with most of `resource` first: our pods tolerate no taint."""
    found = [node for node in nodes if _is_open(node)]
    return tuple(sorted(found, key=lambda node: (-_allocatable(node).get(resource, Decimal(0)), _name(node))))


def node_room(node: Mapping[str, Any], pods: Iterable[Mapping[str, Any]]) -> NodeRoom:
    """What is free on a node that has these pods."""
    allocatable = _allocatable(node)
    taken = total(asked(pod) for pod in pods if (pod.get("status") or {}).get("phase") not in _ENDED)
    free = {name: max(size - taken.get(name, Decimal(0)), Decimal(0)) for name, size in allocatable.items()}
    return NodeRoom(_name(node), allocatable, free)


def figures(asks: Amounts, lacks: Sequence[str], rooms: Sequence[NodeRoom]) -> str:
    """'asks for memory 8Ti, and the most free is 3Gi of 16Gi on node a', for everything that is lacking."""
    return "; ".join(
        f"it asks for {name} {amount_text(name, asks.get(name, Decimal(0)))}{_most_free(name, rooms)}"
        for name in lacks
    )


def _most_free(resource: str, rooms: Sequence[NodeRoom]) -> str:
    most = max(rooms, key=lambda room: room.free.get(resource, Decimal(0)), default=None)
    if most is None:
        return ""
    free, whole = (each.get(resource, Decimal(0)) for each in (most.free, most.allocatable))
    return f", the most free is {_rounded(resource, free)} of {_rounded(resource, whole)} on node {most.name}"


def _rounded(resource: str, value: Decimal) -> str:
    """Rounded down to two digits, in the largest unit in which it is not a fraction."""
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
    return value.quantize(Decimal(1).scaleb(min(value.adjusted() - _FIGURES + 1, 0)), rounding=ROUND_FLOOR)


def amount_text(resource: str, value: Decimal) -> str:
    suffix = "Ki" if resource in ("memory", "ephemeral-storage") and value % 1024 == 0 and value else ""
    return canonical(f"{value / 1024 if suffix else value:f}{suffix}")


def _is_open(node: Mapping[str, Any]) -> bool:
    spec = node.get("spec") or {}
    taints = spec.get("taints") or ()
    return not spec.get("unschedulable") and all(
        taint.get("effect") not in _KEEPS_PODS_AWAY for taint in taints
    )


def _allocatable(node: Mapping[str, Any]) -> Amounts:
    return amounts((node.get("status") or {}).get("allocatable"))


def _name(node: Mapping[str, Any]) -> str:
    return str(node["metadata"]["name"])


def _requests(asker: Mapping[str, Any]) -> Amounts:
    return amounts((asker.get("resources") or {}).get("requests"))


def amounts(quantities: Mapping[str, Any] | None) -> Amounts:
    """Resources as Kubernetes writes them (`{cpu: 500m}`), as numbers."""
    return {name: parse_quantity(str(text)) for name, text in (quantities or {}).items()}


def total(several: Iterable[Amounts]) -> dict[str, Decimal]:
    """All of them together, resource by resource."""
    result: dict[str, Decimal] = {}
    for each in several:
        for name, value in each.items():
            result[name] = result.get(name, Decimal(0)) + value
    return result
