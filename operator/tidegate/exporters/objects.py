"""Exports the conditions and counts of our objects as metrics, for alerts such as `Ready=False for 10m`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tidegate.api.conditions import ConditionStatus, ConditionType
from tidegate.api.durations import parse_duration
from tidegate.api.faulty_nodes import FaultState
from tidegate.kube.kinds import COMPUTE_OVERRIDE, COMPUTE_POOL, FEATURE_COMPUTE, INFERENCE, Kind
from tidegate.kube.store import ObjectStore
from tidegate.telemetry.objectives import OBJECTIVE, compute_bucket_shares
from tidegate_dataplane.contract.metrics import GaugeMetric, MetricCatalog

_SCALED: Final[frozenset[Kind]] = frozenset({INFERENCE, FEATURE_COMPUTE})

Bodies = Sequence[tuple[Kind, Mapping[str, Any]]]

OBJECTS: Final = MetricCatalog("tidegate_")
_OBJECT: Final = ("kind", "namespace", "name")
_REASONED: Final = (*_OBJECT, "reason")
_CONDITIONS: Final[Mapping[ConditionType, GaugeMetric]] = {
    ConditionType.READY: OBJECTS.add_gauge(
        "object_ready", "1 if the object is Ready, else 0; only the leader exports it.", *_REASONED
    ),
    ConditionType.STALLED: OBJECTS.add_gauge(
        "object_stalled",
        "1 if the object is stalled until its spec or another object changes, else 0.",
        *_REASONED,
    ),
    ConditionType.SAMPLES_LOGGED: OBJECTS.add_gauge(
        "object_samples_logged",
        "1 if the sample log of the object is written, else 0; only for objects whose spec enables it.",
        *_REASONED,
    ),
    ConditionType.COMPILED: OBJECTS.add_gauge(
        "object_compiled",
        "1 if the graph of the Inference's version is compiled, or no pass makes it faster, else 0; only if its spec enables it.",
        *_REASONED,
    ),
    ConditionType.CONSUMING: OBJECTS.add_gauge(
        "object_consuming",
        "1 if the near-line stream of the object is consumed, else 0; only for objects whose spec has one.",
        *_REASONED,
    ),
    ConditionType.SIGNALS_FRESH: OBJECTS.add_gauge(
        "object_signals_fresh",
        "1 if the allocator knows the current demand for the Inferences of the ComputePool, else 0; only for pools that it decides.",
        *_REASONED,
    ),
}
_REPLICAS = OBJECTS.add_gauge(
    "object_replicas",
    "Replicas by state: desired (by the spec or the allocator), existing, ready, and spare (ready, without requests) if the spec has warm spares.",
    *_OBJECT,
    "state",
)
_VERSION = OBJECTS.add_gauge(
    "inference_version",
    "Model version by state: target (of the spec) and serving (loaded by every pod; 0 if there is none).",
    "namespace",
    "inference",
    "state",
)
_SLO_LATENCY = OBJECTS.add_gauge(
    "inference_slo_latency_seconds", "The Inference's spec.slo.latencyP99.", "namespace", "inference"
)
_SLO_OBJECTIVE = OBJECTS.add_gauge(
    "inference_slo_objective_ratio",
    "Objective for the share of requests that are answered within spec.slo.latencyP99, 0 to 1; only if the spec has one.",
    "namespace",
    "inference",
)
_SLO_SHARE = OBJECTS.add_gauge(
    "inference_slo_bucket_share",
    "Share of the gateways' latency bucket le that counts as within spec.slo.latencyP99; the recording rules use it to "
    "interpolate between two buckets.",
    "namespace",
    "inference",
    "le",
)
_OVERRIDE_CREATED = OBJECTS.add_gauge(
    "override_created_timestamp_seconds",
    "Time at which the ComputeOverride was created, in seconds since 1970; kind, namespace and name are those of its target.",
    "override",
    *_OBJECT,
)
_OVERRIDE_EXPIRES = OBJECTS.add_gauge(
    "override_expires_timestamp_seconds",
    "Time at which the ComputeOverride expires, in seconds since 1970.",
    "override",
    *_OBJECT,
)
_POOL_SLICES = OBJECTS.add_gauge(
    "pool_slices", "Slices of the ComputePool: total, healthy and free.", "pool", "state"
)
_POOL_TIER_SLICES = OBJECTS.add_gauge(
    "pool_tier_slices", "Slices of the ComputePool that pods of a tier use.", "pool", "tier"
)
_POOL_IMBALANCE = OBJECTS.add_gauge(
    "pool_imbalance_ratio",
    "Utilisation of the ComputePool's fullest healthy node divided by that of all its healthy nodes: 1 if all are equally full.",
    "pool",
)
_SPARE_SLICES = OBJECTS.add_gauge(
    "pool_shared_spare_slices",
    "Slices of the ComputePool that are reserved for spares that Inferences share; they count in tier realtime as well.",
    "pool",
)
_SHARED_SPARES = OBJECTS.add_gauge(
    "pool_shared_spares",
    "Spares that Inferences of the ComputePool share, by state: ready (all of their models are loaded) and incomplete.",
    "pool",
    "state",
)
_UNCOVERED = OBJECTS.add_gauge(
    "pool_uncovered_inferences",
    "Inferences of the ComputePool with nodeLoss Shared that no shared spare serves for, at most 100.",
    "pool",
)
_FAULTY_NODES = OBJECTS.add_gauge(
    "pool_faulty_nodes",
    "Nodes of the ComputePool whose GPU sharing has a fault, by state: Detected, Waiting, Restarting, Quarantined or "
    "Recovered.",
    "pool",
    "state",
)


class ObjectMetrics(Collector):
    """Reads the caches on each scrape. Only the leader exports, or each object would count once per replica."""

    def __init__(self, stores: Sequence[ObjectStore], leading: Callable[[], bool]) -> None:
        self._stores = stores
        self._leading = leading

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield one family for each of OBJECTS, without samples if this process does not lead."""
        bodies = [(store.kind, body) for store in self._stores for body in store] if self._leading() else []
        for condition, metric in _CONDITIONS.items():
            yield _collect_conditions(metric, condition, bodies)
        yield _collect_replicas(bodies)
        yield from _collect_inferences([body for kind, body in bodies if kind == INFERENCE])
        yield from _collect_overrides([body for kind, body in bodies if kind == COMPUTE_OVERRIDE])
        pools = [body for kind, body in bodies if kind == COMPUTE_POOL]
        yield from _collect_pools(pools)
        yield from _collect_spares(pools)


def _collect_conditions(metric: GaugeMetric, condition: ConditionType, bodies: Bodies) -> GaugeMetricFamily:
    family = metric.make_family()
    for kind, body in bodies:
        conditions = (body.get("status") or {}).get("conditions") or ()
        observed = next((item for item in conditions if item.get("type") == condition.value), None)
        if observed is not None:
            value = float(observed.get("status") == ConditionStatus.TRUE.value)
            family.add_metric((*_object_labels(kind, body), observed.get("reason", "")), value)
    return family


def _collect_replicas(bodies: Bodies) -> GaugeMetricFamily:
    family = _REPLICAS.make_family()
    for kind, body in bodies:
        if kind not in _SCALED:
            continue
        status = body.get("status") or {}
        counts = {
            "desired": _desired_replicas(body["spec"], status),
            "existing": status.get("replicas", 0),
            "ready": status.get("readyReplicas", 0),
            **({"spare": status["spareReplicas"]} if "spareReplicas" in status else {}),
        }
        for state, count in counts.items():
            family.add_metric((*_object_labels(kind, body), state), count)
    return family


def _desired_replicas(spec: Mapping[str, Any], status: Mapping[str, Any]) -> int:
    """Return the desired replicas: with spec.scaling, those that the allocator assigned."""
    if "scaling" not in spec:
        return int(spec.get("replicas", 1))
    allocation = status.get("allocation") or {}
    return int(allocation.get("replicas", spec["scaling"]["minReplicas"]))


def _collect_inferences(bodies: Sequence[Mapping[str, Any]]) -> Iterator[GaugeMetricFamily]:
    """Yield the families of versions and of objectives."""
    versions, latency, objective, shares = (
        metric.make_family() for metric in (_VERSION, _SLO_LATENCY, _SLO_OBJECTIVE, _SLO_SHARE)
    )
    for body in bodies:
        labels = (body["metadata"].get("namespace", ""), body["metadata"]["name"])
        version_status = (body.get("status") or {}).get("versions") or {}
        for state in ("target", "serving"):
            if "target" in version_status:
                versions.add_metric((*labels, state), float(version_status.get(state) or 0))
        latency_p99 = (body["spec"].get("slo") or {}).get("latencyP99")
        if latency_p99 is None:
            continue
        seconds = parse_duration(latency_p99).total_seconds()
        latency.add_metric(labels, seconds)
        objective.add_metric(labels, OBJECTIVE)
        for bound, share in compute_bucket_shares(seconds).items():
            shares.add_metric((*labels, bound), share)
    yield from (versions, latency, objective, shares)


def _collect_overrides(bodies: Sequence[Mapping[str, Any]]) -> Iterator[GaugeMetricFamily]:
    """Yield the families of existing ComputeOverrides; an override is deleted after it ends."""
    created, expires = _OVERRIDE_CREATED.make_family(), _OVERRIDE_EXPIRES.make_family()
    for body in bodies:
        target = body["spec"]["target"]
        labels = (
            body["metadata"]["name"],
            target["kind"],
            target.get("namespace", ""),
            target["name"],
        )
        created.add_metric(labels, _parse_timestamp(body["metadata"].get("creationTimestamp")))
        expires.add_metric(labels, _parse_timestamp(body["spec"].get("expiresAt")))
    yield from (created, expires)


def _collect_pools(bodies: Sequence[Mapping[str, Any]]) -> Iterator[GaugeMetricFamily]:
    """Yield the families of slices, of slices by tier, of the imbalance between nodes, and of faulty nodes."""
    slices, tiers, imbalance, faulty = (
        _POOL_SLICES.make_family(),
        _POOL_TIER_SLICES.make_family(),
        _POOL_IMBALANCE.make_family(),
        _FAULTY_NODES.make_family(),
    )
    for body in bodies:
        pool, status = body["metadata"]["name"], body.get("status") or {}
        for state, count in (status.get("slices") or {}).items():
            slices.add_metric((pool, state), count)
        for tier in status.get("tiers") or ():
            tiers.add_metric((pool, tier["name"]), tier.get("slices", 0))
        if (percent := status.get("imbalancePercent")) is not None:
            imbalance.add_metric((pool,), 1 + percent / 100)
        states = [entry.get("state") for entry in status.get("faultyNodes") or ()]
        for state in FaultState:
            faulty.add_metric((pool, state.value), states.count(state.value))
    yield from (slices, tiers, imbalance, faulty)


def _collect_spares(bodies: Sequence[Mapping[str, Any]]) -> Iterator[GaugeMetricFamily]:
    """Yield the families of the spares that Inferences share; a pool without them has zeros."""
    slices, spares, uncovered = (
        metric.make_family() for metric in (_SPARE_SLICES, _SHARED_SPARES, _UNCOVERED)
    )
    for body in bodies:
        pool, shared = body["metadata"]["name"], (body.get("status") or {}).get("sharedSpares") or {}
        incomplete = [bool(spare.get("problem")) for spare in shared.get("spares") or ()]
        slices.add_metric((pool,), shared.get("slices", 0))
        spares.add_metric((pool, "ready"), incomplete.count(False))
        spares.add_metric((pool, "incomplete"), incomplete.count(True))
        uncovered.add_metric((pool,), len(shared.get("uncovered") or ()))
    yield from (slices, spares, uncovered)


def _parse_timestamp(text: str | None) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0


def _object_labels(kind: Kind, body: Mapping[str, Any]) -> tuple[str, str, str]:
    metadata = body["metadata"]
    return str(kind), metadata.get("namespace", ""), metadata["name"]
