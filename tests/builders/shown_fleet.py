"""Builds a fleet as the dashboard shows it: objects in good and in bad state, a pool that is shared out, and decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from builders.allocator import a_decision
from builders.compute_override import compute_override_body
from builders.compute_pool import a_compute_pool, node_body
from builders.inference import an_inference
from builders.model_access import a_model_access
from tidegate.api.allocation_decision import AllocationDecision
from tidegate.api.compute_override import ComputeOverride
from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Inference
from tidegate.api.meta import CustomResource
from tidegate.api.reasons import Reason
from tidegate.telemetry.prometheus_api import RangeSeries

SHOWN_AT = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)
POOL = "cpu-a"
NODES = 6
SLICES_OF_A_NODE = 8
_TIERS = {"din": "realtime", "wide": "realtime", "young": "nearline", "score-all": "offline"}
_PODS = {"din": 16, "wide": 4, "young": 6, "score-all": 14}


def ready(reason: Reason, message: str, *, status: bool = True) -> dict[str, Any]:
    """The Ready condition."""
    return {
        "type": "Ready",
        "status": "True" if status else "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-06-01T11:40:00Z",
    }


def a_shown_fleet() -> Sequence[CustomResource]:
    """Inferences in three tiers of one pool, one of them failed and one not looked at yet; an access, an override, decisions."""
    return (*_inferences(), a_model_access("din"), _pool(), _override(), *_decisions())


def shown_pods() -> Sequence[dict[str, Any]]:
    """The pods of these Inferences, spread over the pool's nodes."""
    bodies: list[dict[str, Any]] = []
    for name, count in _PODS.items():
        for number in range(count):
            labels = {
                "tidegate.io/inference": name,
                "tidegate.io/pool": POOL,
                "tidegate.io/tier": _TIERS[name],
                "tidegate.io/slices": "1",
                "app.kubernetes.io/managed-by": "tidegate",
            }
            asks = {"requests": {"cpu": "1", "memory": "1Gi"}}
            node = len(bodies) % NODES
            well = {"type": "Ready", "status": "False" if name == "wide" and number == 0 else "True"}
            bodies.append(
                {
                    "metadata": {
                        "namespace": "ads",
                        "name": f"{name}-{number}",
                        "labels": labels,
                        "creationTimestamp": "2026-06-01T10:00:00Z",
                    },
                    "spec": {
                        "nodeName": f"node-{node}",
                        "containers": [{"name": "triton", "resources": asks}],
                    },
                    "status": {"phase": "Running", "conditions": [well]},
                }
            )
    return bodies


def shown_nodes() -> Sequence[dict[str, Any]]:
    """The pool's nodes."""
    return [
        node_body(f"node-{number}", cpu=str(SLICES_OF_A_NODE), memory=f"{SLICES_OF_A_NODE}Gi")
        for number in range(NODES)
    ]


def shown_series(begin: datetime, end: datetime, step: timedelta) -> Sequence[RangeSeries]:
    """What a Prometheus has of the last hour and a half: demand exceeds the slices, until offline work gives way."""
    times = [begin + number * step for number in range((end - begin) // step + 1)]
    times = [at for at in times if at >= SHOWN_AT - timedelta(minutes=90)]

    def ago(at: datetime) -> int:
        return (SHOWN_AT - at) // timedelta(minutes=1)

    def wanted(at: datetime) -> int:
        return 14 + 6 * (30 - abs(ago(at) - 30)) // 30 if ago(at) < 60 else 14

    def moved(at: datetime) -> int:
        return 0 if ago(at) > 20 else 4 if ago(at) > 10 else 8

    def wave(at: datetime) -> int:
        return ago(at) // 5 % 3

    def series(gauge: str, value: Callable[[datetime], float], **labels: str) -> RangeSeries:
        metric = {"__name__": f"tidegate_pool_{gauge}", **labels}
        return {"metric": metric, "values": [(at.timestamp(), str(value(at))) for at in times]}

    return [
        series("tier_slices", lambda at: 12 + moved(at), tier="realtime"),
        series("tier_slices", lambda _: 6, tier="nearline"),
        series("tier_slices", lambda at: 22 - moved(at) - wave(at), tier="offline"),
        series("slices", lambda at: 8 + wave(at), state="free"),
        series("slices", lambda _: 48, state="healthy"),
        series("slice_price", lambda _: 1.2),
        series("allocatable_slices", lambda _: 48),
        series("needed_slices", wanted, tier="realtime"),
        series("needed_slices", lambda _: 8, tier="nearline"),
        series("needed_slices", lambda _: 28, tier="offline"),
        series("demand_requests_per_second", lambda at: 100 * wanted(at), tier="realtime"),
        series("servable_requests_per_second", lambda at: 100 * min(wanted(at), 16), tier="realtime"),
        series("demand_unknown", lambda _: 1, tier="nearline"),
        series("value_per_second", lambda at: 100 * min(wanted(at), 16), outcome="served"),
        series("value_per_second", lambda at: 100 * max(wanted(at) - 16, 0), outcome="refused"),
        series("value_per_second", lambda _: 0, outcome="lost"),
    ]


def _inferences() -> tuple[Inference, ...]:
    placed = {"placement": {"pool": POOL}, "scaling": {"minReplicas": 1, "maxReplicas": 24}, "replicas": None}
    serving = an_inference(
        "din",
        tier="realtime",
        status={
            "observedGeneration": 1,
            "conditions": [ready(Reason.ALL_REPLICAS_READY, "16 of 16 replicas serve version 3")],
            "versions": {"serving": "3", "target": "4"},
            "replicas": 16,
            "readyReplicas": 16,
            "allocation": {"decision": f"{POOL}-2", "replicas": 16},
        },
        **placed,
    )
    failed = an_inference(
        "wide",
        tier="realtime",
        status={
            "observedGeneration": 1,
            "conditions": [
                ready(Reason.LOAD_FAILED, "no such file: /models/wide/1/model.onnx", status=False)
            ],
            "replicas": 4,
            "readyReplicas": 3,
        },
        **placed,
    )
    offline = an_inference(
        "score-all",
        tier="offline",
        status={
            "observedGeneration": 1,
            "conditions": [ready(Reason.ALL_REPLICAS_READY, "14 of 14 replicas serve version 7")],
            "versions": {"serving": "7", "target": "7"},
            "replicas": 14,
            "readyReplicas": 14,
        },
        **placed,
    )
    return serving, failed, offline, an_inference("young")


def _pool() -> ComputePool:
    """As its pods have it."""
    total = NODES * SLICES_OF_A_NODE
    used = {tier: sum(_PODS[name] for name in _PODS if _TIERS[name] == tier) for tier in set(_TIERS.values())}
    return a_compute_pool(
        POOL,
        policy={"mode": "Auto", "interval": "10s", "moves": {"maxPercent": 25, "per": "10m"}},
        status={
            "observedGeneration": 1,
            "nodes": NODES,
            "slices": {"total": total, "healthy": total, "free": total - sum(used.values())},
            "tiers": [{"name": name, "slices": used[name]} for name in sorted(used)],
            "mode": "Auto",
            "lastDecision": f"{POOL}-2",
            "conditions": [ready(Reason.POOL_READY, "48 slices on 6 nodes, 8 free")],
        },
    )


def _override() -> ComputeOverride:
    body = compute_override_body(
        "floor-ads-din",
        metadata={"creationTimestamp": "2026-06-01T11:30:00Z"},
        target={"kind": "Inference", "namespace": "ads", "name": "din"},
        floor={"replicas": 8},
        reason="the sale",
        expiresAt="2026-06-01T18:00:00Z",
    )
    return ComputeOverride.parse(body)


def _decisions() -> tuple[AllocationDecision, ...]:
    carried_out = {
        "appliedAt": (SHOWN_AT - timedelta(minutes=9)).isoformat(),
        "reclaimSeconds": 4.2,
        "movedSlices": 4,
    }
    first = a_decision(
        ("score-all", 18, 14),
        name=f"{POOL}-1",
        at=SHOWN_AT - timedelta(minutes=20),
        tier="offline",
        trigger="Interval",
        outcome=carried_out,
        price=2.4,
        binding=[{"constraint": "slices of pool cpu-a", "price": 2.4}],
        predicted={"value": 1820.5, "sloMisses": 0},
    )
    second = a_decision(
        ("din", 12, 16),
        name=f"{POOL}-2",
        at=SHOWN_AT - timedelta(minutes=10),
        trigger="Interval",
        outcome=carried_out,
        price=3.1,
        binding=[{"constraint": "slices of pool cpu-a", "price": 3.1}],
        predicted={"value": 2210.0, "sloMisses": 0.5},
    )
    return first, second
