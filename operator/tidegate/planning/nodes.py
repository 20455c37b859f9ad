"""Nodes and who runs on them, as planners see them: read once from each object."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidegate.api.compute_pool import TaintEffect, Toleration, TolerationOperator
from tidegate.api.meta import ObjectKey
from tidegate.planning.room import Amounts, amounts, asked
from tidegate.resources.names import MANAGED_BY, MANAGER, POOL_LABEL, TIER_LABEL

_ENDED: Final = frozenset({"Succeeded", "Failed"})
_TOLERATED_BY_ALL: Final = "node.kubernetes.io/memory-pressure"
"""Kubernetes lets every pod tolerate it that asks for some CPU or memory, as ours do."""


@dataclass(frozen=True, slots=True)
class Taint:
    """What keeps pods away that do not tolerate it."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}{f'={self.value}' if self.value else ''}:{self.effect}"


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node: what it has for pods, and whether it takes any."""

    name: str
    labels: Mapping[str, str]
    allocatable: Amounts
    ready: bool
    cordoned: bool
    leaving: bool
    """Whether it is being deleted."""
    taints: tuple[Taint, ...]

    def selected_by(self, selector: Mapping[str, str]) -> bool:
        """Whether it has all these labels."""
        return all(self.labels.get(name) == value for name, value in selector.items())

    def fault(self, tolerations: Sequence[Toleration]) -> str:
        """Why no pod with these tolerations starts here, in a few words; empty when one may."""
        if self.leaving:
            return "is being deleted"
        if not self.ready:
            return "is not ready"
        if self.cordoned:
            return "is cordoned"
        kept = (taint for taint in self.taints if not any(_tolerates(each, taint) for each in tolerations))
        taint = next(kept, None)
        return f"has taint {taint}, which the pool does not tolerate" if taint is not None else ""


@dataclass(frozen=True, slots=True)
class Occupant:
    """A pod on a node, of ours or of anybody: what it asks for, and whose slices it has."""

    key: ObjectKey
    node: str
    asks: Amounts
    pool: str
    """The pool on whose slices it runs; empty for a pod that is none of ours, or not placed in a pool."""
    tier: str
    uid: str = ""


def node_view(body: Mapping[str, Any]) -> NodeView:
    """Reads a node as the API server gives it."""
    metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    conditions = {item["type"]: item for item in status.get("conditions") or ()}
    ready = conditions.get("Ready", {})
    taints = (
        Taint(each["key"], each.get("value", ""), each["effect"])
        for each in spec.get("taints") or ()
        if each["effect"] != TaintEffect.PREFER_NO_SCHEDULE and each["key"] != _TOLERATED_BY_ALL
    )
    return NodeView(
        name=metadata["name"],
        labels=metadata.get("labels") or {},
        allocatable=amounts(status.get("allocatable")),
        ready=ready.get("status") == "True",
        cordoned=bool(spec.get("unschedulable")),
        leaving="deletionTimestamp" in metadata,
        taints=tuple(taints),
    )


def occupant(body: Mapping[str, Any], *, owned: bool = True) -> Occupant | None:
    """Reads a pod; None while it has no node, and once it has ended: then it takes nothing.

    The labels of one that is not `owned` say nothing: it takes room as any pod does.
    """
    metadata, spec = body["metadata"], body.get("spec") or {}
    if not spec.get("nodeName") or (body.get("status") or {}).get("phase") in _ENDED:
        return None
    labels = metadata.get("labels") or {}
    ours = owned and labels.get(MANAGED_BY) == MANAGER
    return Occupant(
        key=ObjectKey(metadata.get("namespace", ""), metadata["name"]),
        node=spec["nodeName"],
        asks=asked(body),
        pool=labels.get(POOL_LABEL, "") if ours else "",
        tier=labels.get(TIER_LABEL, "") if ours else "",
        uid=metadata.get("uid", ""),
    )


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.key != taint.key or (toleration.effect is not None and toleration.effect != taint.effect):
        return False
    return toleration.operator is TolerationOperator.EXISTS or (toleration.value or "") == taint.value
