"""Make the rows of lists: the state of an object in a few words."""

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
from tidegate.api.messages.catalogue import messages_by_name
from tidegate.api.meta import CustomResource
from tidegate.api.model_access import ModelAccess
from tidegate.planning.pools.overrides import describe_override
from tidegate.reports.decision import DecisionReport
from tidegate.reports.state import ObjectReport, ObjectState, ObjectWithConditions

_MESSAGES: Final = messages_by_name()
_HASH: Final = 12


class ListRow(BaseModel):
    """One object in a list."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)

    namespace: str
    name: str
    state: ObjectState
    reason: str
    code: str
    """The code of the message; empty for a healthy object."""
    message: str
    detail: str
    """The most important fact for the kind: the version, the weights, the plan."""
    tier: str = ""
    pool: str = ""
    replicas: str = ""
    requests_per_second: float | None = None
    """Requests per second of the last minute; absent if unknown."""
    latency_p99_ms: float | None = None


def inference_row(inference: Inference) -> ListRow:
    """Make the row of an Inference."""
    status, versions = inference.status, inference.status.versions
    swap = f" → {versions.target}" if versions.target and versions.target != versions.serving else ""
    return _make_row(
        inference,
        detail=f"version {versions.serving or 'none'}{swap}",
        replicas=f"{status.ready_replicas - (status.spare_replicas or 0)}/{inference.decided_replicas}",
        tier=inference.spec.tier.value,
        pool=inference.spec.placement.pool if inference.spec.placement is not None else "",
    )


def access_row(access: ModelAccess) -> ListRow:
    """Make the row of a ModelAccess."""
    routes = "; ".join(
        f"{route.name}: " + ", ".join(f"{target.inference} {target.weight}" for target in route.targets)
        for route in access.status.routes
    )
    return _make_row(access, detail=routes, replicas="all" if access.is_programmed else "not all")


def features_row(features: FeatureCompute) -> ListRow:
    """Make the row of a FeatureCompute."""
    plan = (features.status.plan_hash or "none")[:_HASH]
    return _make_row(
        features,
        detail=f"{len(features.spec.features)} features, plan {plan}",
        replicas=f"{features.status.ready_replicas}/{features.spec.replicas}",
    )


def pool_row(pool: ComputePool) -> ListRow:
    """Make the row of a ComputePool."""
    slices = pool.status.slices
    used = ", ".join(f"{tier.name} {tier.slices}" for tier in pool.status.tiers)
    return _make_row(
        pool,
        detail=used or "no slices assigned",
        replicas=f"{slices.healthy - slices.free}/{slices.healthy}",
    )


def override_row(override: ComputeOverride) -> ListRow:
    """Make the row of a ComputeOverride."""
    return _make_row(override, detail=describe_override(override))


def decision_row(decision: AllocationDecision) -> ListRow:
    """Make the row of an AllocationDecision from its outcome, because it has no conditions."""
    report = DecisionReport.from_decision(decision)
    failed = bool(report.outcome.error)
    return ListRow(
        namespace="",
        name=decision.metadata.name,
        state=ObjectState.NOT_READY if failed else ObjectState.READY,
        reason=report.outcome.state.value,
        code="",
        message=report.describe_outcome(),
        detail=f"{report.move_count} moves",
        pool=report.pool,
    )


ROWS: Final[Mapping[type[CustomResource], Any]] = {
    Inference: inference_row,
    ModelAccess: access_row,
    FeatureCompute: features_row,
    ComputePool: pool_row,
    ComputeOverride: override_row,
    AllocationDecision: decision_row,
}


def _make_row(
    resource: ObjectWithConditions, *, detail: str, replicas: str = "", tier: str = "", pool: str = ""
) -> ListRow:
    report = ObjectReport.from_object(resource)
    message = None if report.state.healthy else _MESSAGES.get(report.reason)
    return ListRow(
        namespace=resource.key.namespace,
        name=resource.key.name,
        state=report.state,
        reason=report.reason,
        code="" if message is None else message.code,
        message=report.message,
        detail=detail,
        replicas=replicas,
        tier=tier,
        pool=pool,
    )
