"""Completes the record of a fleet demo, for the dashboard and its pictures: with the access, the release and the override it lacks.

tests/record_fleet.py records it. The demo has no gateways, so its Inferences have no access: here is one, whose release is at its
third step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from math import ceil
from typing import Any

from builders.compute_override import compute_override_body
from builders.model_access import a_model_access
from builders.release import ERRORS, LATENCY, released
from tidegate.api.compute_override import ComputeOverride
from tidegate.api.conditions import format_timestamp
from tidegate.api.durations import parse_duration
from tidegate.api.meta import CustomResource
from tidegate.api.reasons import Reason
from tidegate.recorded.record import RecordedFleet
from tidegate.telemetry.prometheus_api import RangeSeries
from tidegate.telemetry.traffic_series import STABLE, TARGET
from tidegate.web.charts import STEPS as CHART_STEPS

NAMESPACE, POOL, ACCESS = "fleet", "fleet", "home"
PICTURED, RELEASED = "ctr-000", "ctr-001"
WINDOW = "15m"
STEPS, STEP, SHARE = (1, 5, 25, 50, 100), 3, 25
_STEP_LENGTH = timedelta(minutes=5)
_SAMPLE = timedelta(seconds=240)
_RATIO = 1.10


def complete_record(fleet: RecordedFleet) -> Mapping[str, Any]:
    """Return the record of a fleet demo with what it lacks, as it is written."""
    rate, p99_ms = fleet.traffic[_cluster(PICTURED)]
    traffic = {**fleet.traffic, _cluster(RELEASED): (rate * SHARE / (100 - SHARE), p99_ms)}
    completed = RecordedFleet(fleet.time, fleet.bodies, traffic, fleet.series, fleet.solver_input)
    length = parse_duration(WINDOW)
    release = _release_series(completed, fleet.time - length, fleet.time, length / CHART_STEPS)
    return {
        "at": fleet.time.isoformat(),
        "objects": {
            **fleet.bodies,
            "modelaccesses": [_make_body(_access(completed))],
            "computeoverrides": [_make_body(_override(completed))],
        },
        "traffic": traffic,
        "series": {**fleet.series, f"release/{NAMESPACE}/{ACCESS}": release},
        "solverInput": fleet.solver_input,
    }


def _make_body(resource: CustomResource) -> Mapping[str, Any]:
    return {"apiVersion": "tidegate.io/v1alpha1", "kind": resource.KIND, **resource.dump()}


def _route_rate(fleet: RecordedFleet) -> float:
    """Requests per second of the access's route: what the stable Inference gets is its part of them."""
    return fleet.traffic[_cluster(PICTURED)][0] * 100 / (100 - SHARE)


def _p99_ms(fleet: RecordedFleet) -> int:
    """The p99 of the stable Inference in whole milliseconds."""
    return int(fleet.traffic[_cluster(PICTURED)][1] or 0)


def _cluster(name: str) -> str:
    return f"inference/{NAMESPACE}/{name}/grpc"


def _release_series(
    fleet: RecordedFleet, begin: datetime, end: datetime, step: timedelta
) -> Sequence[RangeSeries]:
    """Return both sides of the release: its share grows with each step, and its errors are few."""
    times = [begin + number * step for number in range((end - begin) // step + 1)]

    def share(time: datetime) -> float:
        return STEPS[max(STEP - 1 - (end - time) // _STEP_LENGTH, 0)] / 100

    def wave(time: datetime) -> float:
        return 0.96 + (abs((time - begin) // step % 40 - 20) / 20) ** 2 * 0.08

    rate, p99_s = _route_rate(fleet), _p99_ms(fleet) / 1000

    def series(name: str, side: str, value: Callable[[datetime], float]) -> RangeSeries:
        return {
            "metric": {"series": name, "side": side},
            "values": [(time.timestamp(), f"{value(time):.6g}") for time in times],
        }

    return [
        series("sent", TARGET, lambda time: rate * share(time) * wave(time)),
        series("sent", STABLE, lambda time: rate * (1 - share(time)) * wave(time)),
        series("failed", TARGET, lambda time: 0.0004 * rate * share(time)),
        series("failed", STABLE, lambda time: 0.0003 * rate * (1 - share(time))),
        series("p99", TARGET, lambda time: 1.01 * p99_s * wave(time)),
        series("p99", STABLE, lambda time: p99_s * wave(time)),
    ]


def _access(fleet: RecordedFleet) -> CustomResource:
    now = fleet.time
    began = now - _SAMPLE
    ready_pods = {
        body["metadata"]["name"]: body["status"]["readyReplicas"] for body in fleet.bodies["inferences"]
    }
    seconds = int(_SAMPLE.total_seconds())
    sent, stable = (int(_route_rate(fleet) * part / 100) * seconds for part in (SHARE, 100 - SHARE))
    p99_ms = _p99_ms(fleet)
    limit_ms = ceil((p99_ms + 1) * _RATIO) - 1
    targets = [{"inference": PICTURED, "weight": 100}, {"inference": RELEASED, "weight": 0}]
    access = a_model_access(
        ACCESS,
        NAMESPACE,
        hosts=["home.example.com"],
        routes=[{"name": "default", "targets": targets, "timeout": "1s", "sticky": {"header": "x-user-id"}}],
        release={
            "route": "default",
            "target": RELEASED,
            "steps": list(STEPS),
            "interval": "5m",
            "checks": [ERRORS, LATENCY],
        },
    )
    access = released(
        access,
        step=STEP,
        weight=SHARE,
        since=began.isoformat(),
        windowBegan=began.isoformat(),
        checked=now.isoformat(),
        target=f"{sent} 6 9:{sent - sent // 60},{p99_ms + 1}:{sent // 60}",
        stable=f"{stable} 12 9:{stable - stable // 60},{p99_ms}:{stable // 60}",
        checks=[
            {
                "check": "ErrorRate",
                "verdict": "Passing",
                "message": f"6 of {sent} requests failed, the limit is 0.001; of the stable targets 12 of {stable}",
            },
            {
                "check": "LatencyP99",
                "verdict": "Passing",
                "message": f"p99 is {p99_ms + 1} ms over {sent} requests, the limit is {limit_ms} ms",
                "boundMs": limit_ms,
            },
        ],
    )
    shares = ((PICTURED, 100 - SHARE), (RELEASED, SHARE))
    status = {
        **access.status.dump(),
        "observedGeneration": 1,
        "url": "http://home.example.com",
        "grpcTarget": "tidegate-gateway.tidegate-system:8080",
        "routes": [
            {
                "name": "default",
                "targets": [
                    {"inference": name, "weight": weight, "endpoints": ready_pods[name]}
                    for name, weight in shares
                ],
            }
        ],
        "conditions": [
            {
                "type": condition,
                "status": "True",
                "observedGeneration": 1,
                "reason": Reason.PROGRAMMED,
                "message": "every gateway runs the planned routes",
                "lastTransitionTime": format_timestamp(began),
            }
            for condition in ("Ready", "Programmed")
        ],
    }
    return access.model_copy(update={"status": type(access.status).model_validate(status)})


def _override(fleet: RecordedFleet) -> ComputeOverride:
    made = fleet.time - timedelta(minutes=20)
    return ComputeOverride.parse(
        compute_override_body(
            f"floor-{NAMESPACE}-cvr-000",
            metadata={
                "creationTimestamp": format_timestamp(made),
                "annotations": {"tidegate.io/author": "ann"},
            },
            target={"kind": "Inference", "namespace": NAMESPACE, "name": "cvr-000"},
            floor={"replicas": 2},
            reason="the sale begins at noon",
            expiresAt=format_timestamp(made + timedelta(hours=2)),
        )
    )
