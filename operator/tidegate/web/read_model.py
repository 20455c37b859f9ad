"""What the pages and the API show: one row for each object, worst first."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from tidegate.api.conditions import ConditionStatus, ConditionType, ObservedCondition
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.meta import Resource
from tidegate.api.model_access import ModelAccess
from tidegate.telemetry.prometheus import Traffic


class Fleet(Protocol):
    """The objects as the caches hold them."""

    def inferences(self) -> Sequence[Inference]:
        """All Inferences that parse."""
        ...

    def accesses(self) -> Sequence[ModelAccess]:
        """All ModelAccesses that parse."""
        ...

    def features(self) -> Sequence[FeatureCompute]:
        """All FeatureComputes that parse."""
        ...


class Row(BaseModel):
    """One object in a list."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)

    namespace: str
    name: str
    ready: bool
    reason: str
    message: str
    detail: str
    """What matters most for its kind: the version, the weights, the plan."""
    replicas: str = ""
    requests_per_second: float | None = None
    latency_p99_ms: float | None = None


class Overview(BaseModel):
    """Everything on the first page."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True)

    inferences: tuple[Row, ...]
    model_accesses: tuple[Row, ...]
    feature_computes: tuple[Row, ...]


def overview(fleet: Fleet, traffic: Mapping[str, Traffic]) -> Overview:
    """The fleet, worst first within each kind; `traffic` is by Envoy cluster and may be empty."""
    return Overview(
        inferences=_sorted(_inference(one, traffic) for one in fleet.inferences()),
        model_accesses=_sorted(_access(one) for one in fleet.accesses()),
        feature_computes=_sorted(_features(one, traffic) for one in fleet.features()),
    )


def _sorted(rows: Iterable[Row]) -> tuple[Row, ...]:
    return tuple(sorted(rows, key=lambda row: (row.ready, row.namespace, row.name)))


def _inference(one: Inference, traffic: Mapping[str, Traffic]) -> Row:
    versions = one.status.versions
    moving = f" → {versions.target}" if versions.target and versions.target != versions.serving else ""
    return _row(
        one,
        one.status.conditions,
        detail=f"version {versions.serving or 'none'}{moving}",
        replicas=f"{one.status.ready_replicas - (one.status.spare_replicas or 0)}/{one.decided_replicas}",
        traffic=_both(traffic, f"inference/{one.key}"),
    )


def _access(one: ModelAccess) -> Row:
    routes = "; ".join(
        f"{route.name}: " + ", ".join(f"{target.inference} {target.weight}" for target in route.targets)
        for route in one.status.routes
    )
    proxies = one.status.proxies
    return _row(one, one.status.conditions, detail=routes, replicas=f"{proxies.acked}/{proxies.total}")


def _features(one: FeatureCompute, traffic: Mapping[str, Traffic]) -> Row:
    return _row(
        one,
        one.status.conditions,
        detail=f"{len(one.spec.features)} features, plan {(one.status.plan_hash or 'none')[:12]}",
        replicas=f"{one.status.ready_replicas}/{one.spec.replicas}",
        traffic=_both(traffic, f"features/{one.key}"),
    )


def _both(traffic: Mapping[str, Traffic], cluster: str) -> Traffic | None:
    """gRPC and REST together; the slower one's latency."""
    found = [traffic[name] for name in (f"{cluster}/grpc", f"{cluster}/http") if name in traffic]
    if not found:
        return None
    slowest = [one.latency_p99_ms for one in found if one.latency_p99_ms is not None]
    return Traffic(sum(one.requests_per_s for one in found), max(slowest, default=None))


def _row(
    one: Resource,
    conditions: Sequence[ObservedCondition],
    *,
    detail: str,
    replicas: str,
    traffic: Traffic | None = None,
) -> Row:
    ready = next((item for item in conditions if item.type == ConditionType.READY.value), None)
    return Row(
        namespace=one.key.namespace,
        name=one.key.name,
        ready=ready is not None and ready.status is ConditionStatus.TRUE,
        reason=ready.reason if ready else "Unknown",
        message=ready.message if ready else "the controllers have not looked at it yet",
        detail=detail,
        replicas=replicas,
        requests_per_second=traffic.requests_per_s if traffic else None,
        latency_p99_ms=traffic.latency_p99_ms if traffic else None,
    )
