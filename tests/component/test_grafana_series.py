"""Every panel has something to show: a real Prometheus scrapes a real Envoy, and pages with every metric that our processes define."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from itertools import product
from typing import Any, Final

from aiohttp import web

from builders.loopback import on_loopback
from builders.model_access import a_model_access, a_route
from builders.release import a_release, released
from builders.waiting import eventually
from fixtures.envoy import Gateway, Load, backend_of
from fixtures.grafana import documents, every_query, series, without_series
from fixtures.prometheus import RunningPrometheus
from tidegate.grafana.promql import NAMESPACE
from tidegate.reference.metrics import METRIC_SECTIONS
from tidegate.telemetry.recording_rules import render_recording_rules
from tidegate_dataplane.contract.metrics import CounterMetric, HistogramMetric, Metric

POD: Final = "inf-ctr-6d5f8-x2k4p"
FEATURES_POD: Final = "fc-live-6d5f8-x2k4p"
SPARE_POD: Final = "spare-ctr-0-6d5f8-x2k4p"
_IN_PODS: Final = frozenset({"Agents", "Batch", "Feature stores", "ONNX runner", "Pipelines"})
"""What is shown by the pods of a model or of features; their namespace is a label that Prometheus gives."""
_ELSEWHERE: Final = frozenset({"Gateways"})
"""Whose page is another program's."""
_COMMON: Final[Mapping[str, tuple[str, ...]]] = {
    "kind": ("Inference", "ModelAccess", "ComputePool"),
    "namespace": ("ads",),
    "name": ("ctr",),
    "inference": ("ctr",),
    "pool": ("ctr",),
    "le": ("5",),
}
_STATES: Final[Mapping[str, tuple[str, ...]]] = {
    "tidegate_object_replicas": ("desired", "existing", "ready"),
    "tidegate_inference_version": ("target", "serving"),
    "tidegate_pool_slices": ("total", "healthy", "free"),
    "tidegate_pool_faulty_nodes": ("Waiting",),
    "tidegate_pool_shared_spares": ("ready", "incomplete"),
}
_VALUES: Final[Mapping[str, float]] = {
    "tidegate_inference_slo_objective_ratio": 0.99,
    "tidegate_inference_slo_latency_seconds": 0.03,
    "tidegate_inference_slo_bucket_share": 0.5,
    "tidegate_xds_server_certificate_expires_timestamp_seconds": 4e9,
}
_TRITON: Final = (
    "nv_inference_compute_infer_duration_us",
    "nv_inference_compute_input_duration_us",
    "nv_inference_compute_output_duration_us",
    "nv_inference_count",
    "nv_inference_exec_count",
    "nv_inference_queue_duration_us",
    "nv_inference_request_success",
)


def our_page(seconds: float) -> str:
    """All of ours after so many seconds."""
    lines = list(_all(seconds, lambda process: process not in _IN_PODS | _ELSEWHERE, {}))
    lines += [
        f"process_cpu_seconds_total {seconds}",
        "process_resident_memory_bytes 1e8",
        # As a Prometheus keeps it that does not honour labels.
        'tidegate_object_ready{kind="Inference",namespace="tidegate-system",exported_namespace="shop",name="cvr",reason="X"} 1',
    ]
    return "\n".join(lines) + "\n"


def page_of_a_pod(seconds: float) -> str:
    """What is known of a model's pod: by ourselves, by Triton, and by the kubelet."""
    model = 'model="ctr",version="1",namespace="ads"'
    lines = [f"{name}{{{model}}} {10 * seconds}" for name in _TRITON]
    lines += _all(seconds, lambda process: process in _IN_PODS, {"namespace": "ads"})
    lines += [
        f'nv_inference_request_failure{{{model},reason="OTHER"}} {seconds}',
        f"nv_inference_pending_request_count{{{model}}} 1",
        'nv_gpu_utilization{gpu_uuid="GPU-1",namespace="ads"} 0.5',
        'nv_gpu_memory_used_bytes{gpu_uuid="GPU-1",namespace="ads"} 1e9',
        f'container_cpu_usage_seconds_total{{container="triton",namespace="ads"}} {seconds}',
        'container_memory_working_set_bytes{container="triton",namespace="ads"} 1e8',
    ]
    return "\n".join(lines) + "\n"


def _all(seconds: float, shown: Callable[[str], bool], besides: Mapping[str, str]) -> Iterator[str]:
    """Of those processes, each metric once."""
    defined = {
        metric.name: metric
        for section in METRIC_SECTIONS
        if shown(section.process)
        for metric in section.metrics
    }
    for metric in defined.values():
        yield from _series(metric, seconds, besides)


def _series(metric: Metric, seconds: float, besides: Mapping[str, str]) -> Iterator[str]:
    choices = [_choices(metric.name, label) for label in metric.labels]
    for values in product(*choices):
        given = {**dict(zip(metric.labels, values, strict=True)), **besides}
        if isinstance(metric, HistogramMetric):
            for bound in (*map(str, metric.buckets), "+Inf"):
                yield _line(f"{metric.name}_bucket", {**given, "le": bound}, seconds)
        else:
            grows = isinstance(metric, CounterMetric)
            yield _line(metric.name, given, seconds if grows else _VALUES.get(metric.name, 1.0))


def _choices(metric: str, label: str) -> tuple[str, ...]:
    if label == "state":
        return _STATES[metric]
    if label == "kind" and not metric.startswith("tidegate_object_"):
        return ("DaemonLost",)
    return _COMMON.get(label, (f"some-{label}",))


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    listed = ",".join(f'{label}="{each}"' for label, each in labels.items())
    return f"{name}{{{listed}}} {value}"


SOON = {"__rate_interval": "10s"}


def hurried(rules: Any) -> dict[str, object]:
    """The chart's rules, evaluated every second."""
    return {"groups": [{**group, "interval": "1s"} for group in rules["groups"]]}


def queries_of_variables() -> set[str]:
    """What visitors choose from: each is PromQL."""
    return {
        variable["query"]["query"].removeprefix("query_result(")[:-1]
        for document in documents().values()
        for variable in document["templating"]["list"]
        if variable["type"] == "query"
    }


@asynccontextmanager
async def served(page: Callable[[float], str]) -> AsyncIterator[str]:
    """Where a page is that goes on counting."""
    began = time.monotonic()

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=page(time.monotonic() - began + 1))

    app = web.Application()
    app.router.add_get("/stats/prometheus", answer)
    async with on_loopback(app) as address:
        yield address


async def test_every_query_of_every_panel_has_series(gateway: Gateway, prometheus: RunningPrometheus) -> None:
    v3, v4 = await gateway.upstream("v3"), await gateway.upstream("v4")
    plain = a_model_access("plain", routes=[a_route("default", "ctr")])
    client = await gateway.start(
        *(released(a_release(steps=[50]), weight=50), plain),
        *(backend_of("v3", v3), backend_of("v4", v4), backend_of("ctr", v3)),
    )
    async with (
        served(our_page) as ours,
        served(page_of_a_pod) as pod,
        Load(client, (("x-tidegate-access", "ads/ctr"),), pause_s=0.02).running(1),
        Load(client, (("x-tidegate-access", "ads/plain"),), pause_s=0.02).running(1),
    ):
        prometheus.targets = {
            "gateway-1": gateway.envoy.admin,
            POD: pod,
            FEATURES_POD: pod,
            SPARE_POD: pod,
            "ours": ours,
        }
        prometheus.rules = hurried(render_recording_rules())
        await asyncio.to_thread(prometheus.start)
        asked = every_query()
        assert len(asked) > 100
        missing = await asyncio.to_thread(without_series, prometheus.url, asked, 90, **SOON)

        async def all_are_offered() -> bool:
            chosen = await asyncio.to_thread(series, prometheus.url, NAMESPACE.query)
            return {each["metric"]["namespace"] for each in chosen} == {"ads", "shop"}

        # Whatever a Prometheus calls our label.
        await eventually(all_are_offered, "visitors can choose both namespaces")
        for query in queries_of_variables():
            await asyncio.to_thread(series, prometheus.url, query)
    assert [each.name for each in missing] == []
