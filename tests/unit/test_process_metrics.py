"""What a process says of itself: its version, whether it leads, and what became of each write to the API server."""

from __future__ import annotations

import contextlib
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from tidegate.api.meta import ObjectKey
from tidegate.errors import ApiUnavailableError, ConflictError, NotAllowedError, PermanentError, TidegateError
from tidegate.exporters.allocator import AllocatorMetrics
from tidegate.kube.client import ClientSettings, KubeClient
from tidegate.kube.fence import Fence
from tidegate.kube.kinds import INFERENCE
from tidegate.kube.store import ObjectStore
from tidegate.kube.transport import ApiRequest
from tidegate.runtime.process_metrics import ProcessMetrics, show_leader, show_left_out

CTR = ObjectKey("ads", "ctr")


class Answering:
    """A transport that has one answer for everything."""

    def __init__(self, answer: dict[str, Any] | TidegateError | None) -> None:
        self._answer = answer

    async def request_json(self, _: ApiRequest) -> dict[str, Any] | None:
        if isinstance(self._answer, TidegateError):
            raise self._answer
        return self._answer


def a_client(registry: CollectorRegistry, answer: dict[str, Any] | TidegateError | None) -> KubeClient:
    observer = ProcessMetrics(registry, "controllers").count_write
    return KubeClient(cast(Any, Answering(answer)), ClientSettings("test"), observer=observer)


def writes(registry: CollectorRegistry) -> dict[tuple[str, str, str], float]:
    return {
        (sample.labels["verb"], sample.labels["resource"], sample.labels["result"]): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "tidegate_api_writes_total"
    }


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        ({"metadata": {"uid": "1"}}, "ok"),
        (None, "gone"),
        (ConflictError("changed"), "conflict"),
        (NotAllowedError("no"), "refused"),
        (PermanentError("invalid"), "refused"),
        (ApiUnavailableError("busy"), "unavailable"),
    ],
    ids=["ok", "gone", "conflict", "forbidden", "invalid", "unavailable"],
)
async def test_a_write_counts_by_what_came_of_it(
    answer: dict[str, Any] | TidegateError | None, result: str
) -> None:
    registry = CollectorRegistry()
    client = a_client(registry, answer)
    with contextlib.suppress(TidegateError):
        await client.apply_status(INFERENCE, CTR, {}, uid="1", fence=Fence.unlimited())
    assert writes(registry) == {("apply", "inferences/status", result): 1}
    seconds = registry.get_sample_value("tidegate_api_write_seconds_count", {"verb": "apply"})
    assert seconds == 1


async def test_reading_is_no_write() -> None:
    registry = CollectorRegistry()
    client = a_client(registry, {"metadata": {}})
    await client.get(INFERENCE, CTR)
    assert writes(registry) == {}


async def test_a_client_under_another_name_is_counted_too() -> None:
    registry = CollectorRegistry()
    client = a_client(registry, {"metadata": {"uid": "1"}})
    await client.with_field_manager("other").merge(INFERENCE, CTR, {}, Fence.unlimited())
    assert writes(registry) == {("merge", "inferences", "ok"): 1}


def test_a_process_says_what_it_is_when_it_began_and_whether_it_leads() -> None:
    registry, leads = CollectorRegistry(), [False]
    ProcessMetrics(registry, "controllers")
    show_leader(registry, lambda: leads[0])
    [build] = [
        sample.labels
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "tidegate_build_info"
    ]
    assert build["process"] == "controllers"
    assert (registry.get_sample_value("process_start_time_seconds") or 0) > 0
    assert registry.get_sample_value("tidegate_leader") == 0
    leads[0] = True
    assert registry.get_sample_value("tidegate_leader") == 1


def gauges(registry: CollectorRegistry) -> dict[str, float]:
    return {
        sample.name.removeprefix("tidegate_allocator_"): sample.value
        for family in registry.collect()
        if family.type == "gauge"
        for sample in family.samples
    }


def test_a_process_that_leads_no_more_says_nothing_of_pools() -> None:
    registry = CollectorRegistry()
    metrics = AllocatorMetrics(registry)
    metrics.overrides.labels("gpu-a").set(1)
    metrics.show_corrections("gpu-a", {"ads/ctr": 0.9})
    metrics.show_forecasts("gpu-a", {"ads/ctr": 400.0, "ads/cvr": 5.0})
    metrics.show_forecasts("gpu-a", {"ads/ctr": 420.0})
    metrics.show_deadlines("gpu-a", {"ads/rank": 40.0, "ads/log": 0.0})
    metrics.show_deadlines("gpu-a", {"ads/rank": 30.0})
    metrics.show_offers("gpu-a", {"ads/ctr": 9.0, "ads/cvr": 5.0})
    metrics.show_offers("gpu-a", {"ads/ctr": 9.5})
    metrics.show_values("gpu-a", {"ads/ctr": {"served": 7.0}, "ads/cvr": {"served": 5.0}})
    metrics.show_values("gpu-a", {"ads/ctr": {"served": 8.0}})
    metrics.show_due("gpu-a", interval_s=30, now_s=999)
    metrics.show_decided("gpu-a", now_s=1000, signals_usable=True)
    metrics.show_due("gpu-a", interval_s=30, now_s=1029)
    metrics.show_decided("gpu-a", now_s=1030, signals_usable=False)
    assert gauges(registry) == {
        "overrides": 1,
        "capacity_factor": 0.9,
        "forecast_rate": 420.0,
        "deadline_shortfall_rate": 30.0,
        "offered_value_per_second": 9.5,
        "value_per_second": 8.0,
        "interval_seconds": 30,
        "due_timestamp_seconds": 999,
        "decided_timestamp_seconds": 1030,
        "signals_timestamp_seconds": 1000,
    }
    metrics.clear()
    assert gauges(registry) == {}


def test_a_pool_without_anything_to_decide_is_not_late() -> None:
    registry = CollectorRegistry()
    metrics = AllocatorMetrics(registry)
    metrics.overrides.labels("gpu-a").set(1)
    metrics.show_due("gpu-a", interval_s=30, now_s=999)
    metrics.show_decided("gpu-a", now_s=1000, signals_usable=True)
    metrics.show_deadlines("gpu-a", {"ads/rank": 40.0})
    metrics.hide_pool("gpu-a")
    assert gauges(registry) == {"overrides": 1}
    metrics.show_forecasts("gpu-a", {"ads/ctr": 400.0})
    metrics.hide_pool("gpu-a")
    metrics.forget_pool("gpu-a")
    assert gauges(registry) == {}


def test_what_is_left_out_of_caches_and_of_reports_is_counted_in_one_metric() -> None:
    registry, store, reported = CollectorRegistry(), ObjectStore(INFERENCE), dict[str, str]()

    def refuse(_: ObjectKey) -> None:
        raise ArithmeticError

    store.subscribe(refuse)
    show_left_out(registry, [store], {"ReportedHost": reported})

    def count(kind: str) -> float | None:
        return registry.get_sample_value("tidegate_cache_objects_left_out", {"kind": kind})

    assert (count("Inference"), count("ReportedHost")) == (0, 0)
    store.observe("ADDED", {"metadata": {"namespace": "ads", "name": "ctr"}})
    reported["ranking/ads/ctr"] = "ValueError"
    assert (count("Inference"), count("ReportedHost")) == (1, 1)
    reported.clear()
    assert (count("Inference"), count("ReportedHost")) == (1, 0)
