"""One row for each object of a list: how it is, in a few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.compute_override import ComputeOverride
from tidegate.api.compute_pool import ComputePool
from tidegate.api.conditions import ConditionStatus, ConditionType, ObservedCondition
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.messages.catalogue import by_name
from tidegate.api.messages.message import Level
from tidegate.api.meta import Resource
from tidegate.api.model_access import ModelAccess
from tidegate.planning.overrides import described
from tidegate.reports.decision import DecisionReport

_MESSAGES: Final = by_name()
_RANKS: Final[Mapping[str, int]] = {Level.ERROR.value: 0, Level.WARNING.value: 1, Level.INFO.value: 2}
WELL: Final = 3
"""The rank of what is as it should be; below it is what is worse."""
_HASH: Final = 12


class Row(BaseModel):
    """One object in a list."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)

    namespace: str
    name: str
    ready: bool
    rank: int
    """0 is worst: somebody has to do something; 3 is well."""
    reason: str
    code: str
    """Of the message; empty where all is well."""
    message: str
    detail: str
    """What matters most for its kind: the version, the weights, the plan."""
    tier: str = ""
    pool: str = ""
    replicas: str = ""
    requests_per_second: float | None = None
    """Of the last minute; absent where nobody knows."""
    latency_p99_ms: float | None = None


def inference_row(one: Inference) -> Row:
    """Of an Inference."""
    versions = one.status.versions
    moving = f" → {versions.target}" if versions.target and versions.target != versions.serving else ""
    return _row(
        one,
        one.status.conditions,
        detail=f"version {versions.serving or 'none'}{moving}",
        replicas=f"{one.status.ready_replicas - (one.status.spare_replicas or 0)}/{one.decided_replicas}",
        tier=one.spec.tier.value,
        pool=one.spec.placement.pool if one.spec.placement is not None else "",
    )


def access_row(one: ModelAccess) -> Row:
    """Of a ModelAccess."""
    routes = "; ".join(
        f"{route.name}: " + ", ".join(f"{target.inference} {target.weight}" for target in route.targets)
        for route in one.status.routes
    )
    proxies = one.status.proxies
    return _row(one, one.status.conditions, detail=routes, replicas=f"{proxies.acked}/{proxies.total}")


def features_row(one: FeatureCompute) -> Row:
    """Of a FeatureCompute."""
    plan = (one.status.plan_hash or "none")[:_HASH]
    return _row(
        one,
        one.status.conditions,
        detail=f"{len(one.spec.features)} features, plan {plan}",
        replicas=f"{one.status.ready_replicas}/{one.spec.replicas}",
    )


def pool_row(one: ComputePool) -> Row:
    """Of a ComputePool."""
    slices = one.status.slices
    used = ", ".join(f"{each.name} {each.slices}" for each in one.status.tiers)
    return _row(
        one,
        one.status.conditions,
        detail=used or "nobody has any",
        replicas=f"{slices.healthy - slices.free}/{slices.healthy}",
    )


def override_row(one: ComputeOverride) -> Row:
    """Of a ComputeOverride."""
    return _row(one, one.status.conditions, detail=described(one))


def decision_row(one: AllocationDecision) -> Row:
    """Of an AllocationDecision, which has no conditions: what came of it."""
    report = DecisionReport.of(one)
    failed = bool(report.outcome.error)
    return Row(
        namespace="",
        name=one.metadata.name,
        ready=not failed,
        rank=0 if failed else WELL,
        reason=report.outcome.state.value,
        code="",
        message=report.came_to(),
        detail=f"{report.move_count} moves",
        pool=report.pool,
    )


ROWS: Final[Mapping[type[Resource], Any]] = {
    Inference: inference_row,
    ModelAccess: access_row,
    FeatureCompute: features_row,
    ComputePool: pool_row,
    ComputeOverride: override_row,
    AllocationDecision: decision_row,
}


def _row(
    one: Resource,
    conditions: Sequence[ObservedCondition],
    *,
    detail: str,
    replicas: str = "",
    tier: str = "",
    pool: str = "",
) -> Row:
    ready = next((item for item in conditions if item.type == ConditionType.READY.value), None)
    well = ready is not None and ready.status is ConditionStatus.TRUE
    said = None if ready is None else _MESSAGES.get(ready.reason)
    return Row(
        namespace=one.key.namespace,
        name=one.key.name,
        ready=well,
        rank=WELL if well else _RANKS.get(said.level.value if said else "", 1),
        reason=ready.reason if ready else "Unknown",
        code="" if well or said is None else said.code,
        message=ready.message if ready else "the controllers have not looked at it yet",
        detail=detail,
        replicas=replicas,
        tier=tier,
        pool=pool,
    )
