"""Nodes and the pods on them as planners see them, parsed once from each object."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidegate.api.compute_pool import TaintEffect, Toleration, TolerationOperator
from tidegate.api.meta import ObjectKey
from tidegate.planning.inference.node_resources import Amounts, compute_pod_requests, parse_amounts
from tidegate.resources.names import MANAGED_BY, MANAGER, POOL_LABEL, TIER_LABEL

_ENDED: Final = frozenset({"Succeeded", "Failed"})
_TOLERATED_BY_ALL: Final = "node.kubernetes.io/memory-pressure"
"""Kubernetes adds its toleration to every pod that requests CPU or memory, as ours do."""


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint, which keeps away pods that do not tolerate it."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}{f'={self.value}' if self.value else ''}:{self.effect}"


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node: its resources for pods, and whether it takes any."""

    name: str
    labels: Mapping[str, str]
    allocatable: Amounts
    ready: bool
    cordoned: bool
    terminating: bool
    """Whether it is being deleted."""
    taints: tuple[Taint, ...]

    def matches_selector(self, selector: Mapping[str, str]) -> bool:
        """Return whether it has all these labels."""
        return all(self.labels.get(name) == value for name, value in selector.items())

    def explain_fault(self, tolerations: Sequence[Toleration]) -> str:
        """Explain in a few words why no pod with these tolerations starts here; empty if one may."""
        if self.terminating:
            return "is being deleted"
        if not self.ready:
            return "is not ready"
        if self.cordoned:
            return "is cordoned"
        untolerated = (
            taint
            for taint in self.taints
            if not any(_is_tolerated_by(toleration, taint) for toleration in tolerations)
        )
        taint = next(untolerated, None)
        return f"has taint {taint}, which the pool does not tolerate" if taint is not None else ""


@dataclass(frozen=True, slots=True)
class Occupant:
    """Any pod on a node, of any owner: its requests, and the pool whose slices it has."""

    key: ObjectKey
    node: str
    requests: Amounts
    pool: str
    """The pool on whose slices it runs; empty for a pod that is not ours, or not placed in a pool."""
    tier: str
    uid: str = ""


def parse_node(body: Mapping[str, Any]) -> NodeView:
    """Parse a node."""
    metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    conditions = {item["type"]: item for item in status.get("conditions") or ()}
    ready = conditions.get("Ready", {})
    taints = (
        Taint(taint["key"], taint.get("value", ""), taint["effect"])
        for taint in spec.get("taints") or ()
        if taint["effect"] != TaintEffect.PREFER_NO_SCHEDULE and taint["key"] != _TOLERATED_BY_ALL
    )
    return NodeView(
        name=metadata["name"],
        labels=metadata.get("labels") or {},
        allocatable=parse_amounts(status.get("allocatable")),
        ready=ready.get("status") == "True",
        cordoned=bool(spec.get("unschedulable")),
        terminating="deletionTimestamp" in metadata,
        taints=tuple(taints),
    )


def parse_occupant(body: Mapping[str, Any], *, owned: bool = True) -> Occupant | None:
    """Parse a pod; return None if it has no node yet, or has ended and needs no resources.

    The labels of a pod that is not `owned` do not count, but its requests do.
    """
    metadata, spec = body["metadata"], body.get("spec") or {}
    if not spec.get("nodeName") or (body.get("status") or {}).get("phase") in _ENDED:
        return None
    labels = metadata.get("labels") or {}
    is_ours = owned and labels.get(MANAGED_BY) == MANAGER
    return Occupant(
        key=ObjectKey(metadata.get("namespace", ""), metadata["name"]),
        node=spec["nodeName"],
        requests=compute_pod_requests(body),
        pool=labels.get(POOL_LABEL, "") if is_ours else "",
        tier=labels.get(TIER_LABEL, "") if is_ours else "",
        uid=metadata.get("uid", ""),
    )


def _is_tolerated_by(toleration: Toleration, taint: Taint) -> bool:
    if toleration.key != taint.key or (toleration.effect is not None and toleration.effect != taint.effect):
        return False
    return toleration.operator is TolerationOperator.EXISTS or (toleration.value or "") == taint.value
