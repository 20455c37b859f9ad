"""Compute the free resources of nodes, the requests of pods, and which resources an unschedulable pod lacks."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from typing import Any, Final

from tidegate.api.quantities import canonicalize_quantity, parse_quantity

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
class NodeResources:
    """Allocatable resources of one node, and those that no pod requests."""

    name: str
    allocatable: Amounts
    free: Amounts


def find_insufficient_resources(message: str) -> tuple[str, ...]:
    """Return the resources that nodes have too little of, from the scheduler's message; empty for other causes."""
    scheduling = message.split(_PREEMPTION)[0]
    resources = _INSUFFICIENT.findall(scheduling) + (["pods"] if _TOO_MANY_PODS in scheduling else [])
    return tuple(dict.fromkeys(resources))


def compute_pod_requests(pod: Mapping[str, Any]) -> Amounts:
    """Return what a pod requests of its node.

    That is the sum of its containers and sidecars, or its largest init container if that is more. The pod-level requests
    (spec.resources) replace it resource by resource; the overhead is added. Kubernetes computes the same.
    """
    spec = pod.get("spec") or {}
    init = spec.get("initContainers") or ()
    sidecars = [container for container in init if container.get("restartPolicy") == "Always"]
    running = sum_amounts(map(_get_requests, (*(spec.get("containers") or ()), *sidecars)))
    starting = [
        sum_amounts(map(_get_requests, (container, *sidecars)))
        for container in init
        if container not in sidecars
    ]
    phases = (running, *starting)
    names = {name for phase in phases for name in phase}
    largest = {name: max(phase.get(name, Decimal(0)) for phase in phases) for name in names}
    requests = {**largest, **_get_requests(spec)}
    return {**sum_amounts((requests, parse_amounts(spec.get("overhead")))), "pods": Decimal(1)}


def list_schedulable_nodes(
    nodes: Iterable[Mapping[str, Any]], resource: str
) -> tuple[Mapping[str, Any], ...]:
    """Return the nodes that a pod of ours may run on, those with most of `resource` first.

    Our pods tolerate no taint.
    """
    schedulable = [node for node in nodes if _is_schedulable(node)]
    return tuple(
        sorted(
            schedulable, key=lambda node: (-_get_allocatable(node).get(resource, Decimal(0)), _get_name(node))
        )
    )


def compute_node_resources(node: Mapping[str, Any], pods: Iterable[Mapping[str, Any]]) -> NodeResources:
    """Return what is free on a node that has these pods."""
    allocatable = _get_allocatable(node)
    requested = sum_amounts(
        compute_pod_requests(pod)
        for pod in pods
        if (pod.get("status") or {}).get("phase") not in _FINISHED_PHASES
    )
    free = {
        name: max(size - requested.get(name, Decimal(0)), Decimal(0)) for name, size in allocatable.items()
    }
    return NodeResources(_get_name(node), allocatable, free)


def format_shortages(
    requests: Amounts, resources: Sequence[str], freest_nodes: Sequence[NodeResources]
) -> str:
    """Return for each lacking resource what the pod requests and what is free at most.

    Example: 'it asks for memory 8Ti, the most free is 3Gi of 16Gi on node a'.
    """
    return "; ".join(
        f"it asks for {name} {format_amount(name, requests.get(name, Decimal(0)))}{_format_most_free(name, freest_nodes)}"
        for name in resources
    )


def _format_most_free(resource: str, freest_nodes: Sequence[NodeResources]) -> str:
    freest = max(freest_nodes, key=lambda room: room.free.get(resource, Decimal(0)), default=None)
    if freest is None:
        return ""
    free, allocatable = (freest.free.get(resource, Decimal(0)), freest.allocatable.get(resource, Decimal(0)))
    return f", the most free is {_format_rounded(resource, free)} of {_format_rounded(resource, allocatable)} on node {freest.name}"


def _format_rounded(resource: str, value: Decimal) -> str:
    """Format an amount rounded down to two digits, in the largest unit in which it is at least one."""
    if resource not in ("memory", "ephemeral-storage"):
        return format_amount(resource, _round_down(value))
    units = ("", "Ki", "Mi", "Gi", "Ti")
    power = next(
        (power for power in reversed(range(len(units))) if value >= Decimal(1024) ** power and value), 0
    )
    number = _round_down(value / Decimal(1024) ** power)
    return f"{number.normalize():f}{units[power]}"


def _round_down(value: Decimal) -> Decimal:
    if not value:
        return value
    return value.quantize(
        Decimal(1).scaleb(min(value.adjusted() - _FREE_DIGITS + 1, 0)), rounding=ROUND_FLOOR
    )


def format_amount(resource: str, value: Decimal) -> str:
    suffix = "Ki" if resource in ("memory", "ephemeral-storage") and value % 1024 == 0 and value else ""
    return canonicalize_quantity(f"{value / 1024 if suffix else value:f}{suffix}")


def _is_schedulable(node: Mapping[str, Any]) -> bool:
    spec = node.get("spec") or {}
    taints = spec.get("taints") or ()
    return not spec.get("unschedulable") and all(
        taint.get("effect") not in _BLOCKING_EFFECTS for taint in taints
    )


def _get_allocatable(node: Mapping[str, Any]) -> Amounts:
    return parse_amounts((node.get("status") or {}).get("allocatable"))


def _get_name(node: Mapping[str, Any]) -> str:
    return str(node["metadata"]["name"])


def _get_requests(container: Mapping[str, Any]) -> Amounts:
    return parse_amounts((container.get("resources") or {}).get("requests"))


def parse_amounts(quantities: Mapping[str, Any] | None) -> Amounts:
    """Parse resources as Kubernetes writes them (`{cpu: 500m}`) into numbers."""
    return {name: parse_quantity(str(text)) for name, text in (quantities or {}).items()}


def sum_amounts(amounts_list: Iterable[Amounts]) -> dict[str, Decimal]:
    """Return the sum of all amounts, resource by resource."""
    result: dict[str, Decimal] = {}
    for amounts in amounts_list:
        for name, value in amounts.items():
            result[name] = result.get(name, Decimal(0)) + value
    return result
