"""One row for each object of a list: how it is, in a few words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.compute_override import ComputeOverride
from tidegate.api.compute_pool import ComputePool
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.messages.catalogue import by_name
from tidegate.api.meta import Resource
from tidegate.api.model_access import ModelAccess
from tidegate.planning.overrides import described
from tidegate.reports.decision import DecisionReport
from tidegate.reports.state import ObjectReport, Observed, State

_MESSAGES: Final = by_name()
_HASH: Final = 12


class Row(BaseModel):
    """One object in a list."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)

    namespace: str
    name: str
    state: State
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
    return _row(one, detail=routes, replicas="all" if one.programmed else "not all")


def features_row(one: FeatureCompute) -> Row:
    """Of a FeatureCompute."""
    plan = (one.status.plan_hash or "none")[:_HASH]
    return _row(
        one,
        detail=f"{len(one.spec.features)} features, plan {plan}",
        replicas=f"{one.status.ready_replicas}/{one.spec.replicas}",
    )


def pool_row(one: ComputePool) -> Row:
    """Of a ComputePool."""
    slices = one.status.slices
    used = ", ".join(f"{each.name} {each.slices}" for each in one.status.tiers)
    return _row(
        one,
        detail=used or "nobody has any",
        replicas=f"{slices.healthy - slices.free}/{slices.healthy}",
    )


def override_row(one: ComputeOverride) -> Row:
    """Of a ComputeOverride."""
    return _row(one, detail=described(one))


def decision_row(one: AllocationDecision) -> Row:
    """Of an AllocationDecision, which has no conditions: what came of it."""
    report = DecisionReport.of(one)
    failed = bool(report.outcome.error)
    return Row(
        namespace="",
        name=one.metadata.name,
        state=State.NOT_READY if failed else State.READY,
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


def _row(one: Observed, *, detail: str, replicas: str = "", tier: str = "", pool: str = "") -> Row:
    standing = ObjectReport.of(one)
    said = None if standing.state.as_it_should_be else _MESSAGES.get(standing.reason)
    return Row(
        namespace=one.key.namespace,
        name=one.key.name,
        state=standing.state,
        reason=standing.reason,
        code="" if said is None else said.code,
        message=standing.message,
        detail=detail,
        replicas=replicas,
        tier=tier,
        pool=pool,
    )
