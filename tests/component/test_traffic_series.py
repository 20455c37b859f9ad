"""The charts of an Inference and of a release from a real Prometheus that holds an hour of the gateways' counters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from builders.inference import an_inference
from builders.release import a_release
from builders.stored_series import store_series
from fixtures.prometheus import RunningPrometheus
from tidegate.telemetry.prometheus_api import PrometheusApi
from tidegate.web.charts import ChartReader, Window
from tidegate.web.traffic_charts import DrawnCharts, read_inference_charts, read_release_charts

SCRAPE = timedelta(seconds=15)
SAMPLES = 260


def counter(name: str, rates: Mapping[str, float], end: datetime) -> Iterator[str]:
    """An hour of a counter that grows by so much in a second; its labels are the keys."""
    yield f"# TYPE {name} counter"
    for labels, rate in rates.items():
        for number in range(SAMPLES):
            time = end - (SAMPLES - 1 - number) * SCRAPE
            yield f"{name}{{{labels}}} {15 * rate * number:g} {time.timestamp():.0f}"


def gauge(name: str, values: Mapping[str, float], end: datetime) -> Iterator[str]:
    """An hour of a gauge that stays the same."""
    yield f"# TYPE {name} gauge"
    for labels, value in values.items():
        for number in range(SAMPLES):
            time = end - (SAMPLES - 1 - number) * SCRAPE
            yield f"{name}{{{labels}}} {value:g} {time.timestamp():.0f}"


def cluster(name: str, **labels: str) -> str:
    more_labels = "".join(f',{label}="{value}"' for label, value in labels.items())
    return f'envoy_cluster_name="{name}",pod="gateway-0"{more_labels}'


def an_hour(end: datetime) -> Iterator[str]:
    """Send v4 10/s of which 1/s fails, v3 90/s, and another namespace's v4 500/s."""
    new, old, other = "release/ads/ctr/v4/grpc", "release/ads/ctr/v3/grpc", "inference/feed/v4/grpc"
    rates = {new: 10.0, old: 90.0, other: 500.0}
    failed = {new: 1.0}
    yield from counter("envoy_cluster_upstream_rq_total", {cluster(k): v for k, v in rates.items()}, end)
    answered = {cluster(k, envoy_response_code_class="2"): v for k, v in rates.items()}
    yield from counter("envoy_cluster_upstream_rq_xx", answered, end)
    yield from counter("envoy_cluster_grpc_failure", {cluster(k): v for k, v in failed.items()}, end)
    buckets = {
        cluster(name, le=bound): (rate if bound != "10" or name != new else 0.5 * rate)
        for name, rate in rates.items()
        for bound in ("10", "50", "+Inf")
    }
    yield from counter("envoy_cluster_upstream_rq_time_bucket", buckets, end)
    replicas = 'kind="Inference",exported_namespace="ads",name="v4",namespace="tidegate-system"'
    states = {f'{replicas},state="{state}"': 3.0 for state in ("desired", "ready")}
    yield from gauge("tidegate_object_replicas", states, end)
    version = 'exported_namespace="ads",inference="v4",namespace="tidegate-system",state="serving"'
    yield from gauge("tidegate_inference_version", {version: 7.0}, end)


def newest(drawn: DrawnCharts) -> Mapping[str, float | None]:
    """The newest row that has all values."""
    values = next(values for _, values in drawn.numbers.rows if None not in values)
    return dict(zip(drawn.numbers.head, values, strict=True))


@pytest.mark.parametrize("window", ["1h", "6h", "24h"])
async def test_requests_errors_latency_and_replicas_come_back(
    prometheus: RunningPrometheus, promtool: Path, window: Window
) -> None:
    end = datetime.now(UTC)
    store_series(an_hour(end), promtool, prometheus.folder)
    prometheus.start()
    reader = ChartReader(PrometheusApi(prometheus.url).query_range, lambda: end, lambda: 0.0)

    inference = newest(await read_inference_charts(reader, an_inference("v4"), window))
    release = newest(await read_release_charts(reader, a_release(), "v4", window))
    unknown = await read_inference_charts(reader, an_inference("gone"), window)

    assert inference["sent requests, per second"] == pytest.approx(10, rel=0.05)
    assert inference["answered requests, per second"] == pytest.approx(9, rel=0.05)
    assert inference["not answered errors, percent"] == pytest.approx(10, rel=0.05)
    assert inference["p99 latency, ms"] == pytest.approx(49.2, rel=0.05)
    assert (inference["ready replicas, pods"], inference["serving version, number"]) == (3, 7)
    assert release["released errors, percent"] == pytest.approx(10, rel=0.05)
    assert release["stable errors, percent"] == pytest.approx(0)
    assert release["stable requests, per second"] == pytest.approx(90, rel=0.05)
    assert release["released share, percent of the route"] == pytest.approx(10, rel=0.05)
    assert unknown.charts == ()
