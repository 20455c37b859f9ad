"""The stand-in for Prometheus answers all that Tidegate asks: asked by the very classes that ask a real one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from builders.compute_pool import compute_pool_body
from builders.inference import an_inference
from builders.waiting import eventually
from tidegate.api.meta import ObjectKey
from tidegate.exporters.objects import ObjectMetrics
from tidegate.exporters.pools import PoolMetrics
from tidegate.exporters.solver_inputs import SolverInputs
from tidegate.kube import kinds
from tidegate.kube.store import ObjectStore
from tidegate.planning.allocator.signals import MetricsScrape
from tidegate.telemetry import expressions
from tidegate.telemetry.gateways import ScrapeTarget
from tidegate.telemetry.prometheus import Prometheus
from tidegate.telemetry.prometheus_api import PrometheusApi
from tidegate.telemetry.prometheus_traffic import PrometheusTraffic
from tidegate.telemetry.recording_rules import SIGNALS
from tidegate.web.charts import ChartReader, pool_query
from tidegate.web.traffic_charts import read_inference_charts
from tidegate_localcluster.fleet_demo.day import START_HOUR, DemoClock
from tidegate_localcluster.fleet_demo.kubelet import ReadyPods
from tidegate_localcluster.fleet_demo.pool_metrics import scrape_pools
from tidegate_localcluster.fleet_demo.prometheus import GATEWAY_POD, SLO_S, SimulatedPrometheus, read_rules
from tidegate_localcluster.fleet_demo.simulation import PrometheusServer
from tidegate_localcluster.fleet_demo.workload import FleetModel, generate_models

ROOT = Path(__file__).resolve().parents[2]
ASKED = {
    name: getattr(expressions, name)
    for name in (
        "SCRAPE_AGE",
        "GATEWAY_UPTIME",
        "ROUTED",
        "SERVED",
        "LATENCY_P99",
        "UNSERVED",
        "QUEUE_SECONDS",
        "BUSY_SHARE",
    )
}
MODELS = generate_models(12, 32, seed=1)
CTR = next(model for model in MODELS if model.tier == "realtime")


@dataclass
class Served:
    """A stand-in that answers at `url`; `ready` replicas of CTR answer."""

    url: str
    stand_in: SimulatedPrometheus
    pods: ReadyPods
    day: DemoClock
    clock: list[float]

    def ready(self, model: FleetModel, count: int) -> None:
        self.pods.clear()
        for number in range(count):
            self.pods.add_pod(("fleet", model.name), f"{model.name}-{number}")
        self.stand_in.record_replicas(self.clock[0])

    def source(self) -> PrometheusTraffic:
        owners = {
            ObjectKey("fleet", f"{CTR.name}-{number}"): ObjectKey("fleet", CTR.name) for number in range(9)
        }
        return PrometheusTraffic(
            self.url, lambda: [ScrapeTarget(GATEWAY_POD, "127.0.0.1:1")], dict, lambda: owners
        )

    async def look(self) -> MetricsScrape:
        return await self.source().scrape_signals()

    async def get(self, path: str, **query: str) -> Any:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self.url}{path}", params=query) as answer,
        ):
            return await (answer.json() if "json" in answer.content_type else answer.text())


@pytest_asyncio.fixture
async def served(tmp_path: Path) -> AsyncGenerator[Served]:
    clock = [time.time()]
    day, pods = DemoClock(tmp_path / "day.json", 200.0, lambda: clock[0]), ReadyPods()
    stand_in = SimulatedPrometheus(MODELS, "fleet", day, pods, read_rules(ROOT))
    async with TestServer(PrometheusServer(stand_in, day).make_application(), host="127.0.0.1") as server:
        url = f"http://127.0.0.1:{server.port}"
        made = Served(url, stand_in, pods, day, clock)
        made.ready(CTR, 2)
        yield made


def test_it_knows_what_the_controllers_ask_and_the_signals_that_the_chart_records(served: Served) -> None:
    recorded = [text for rule in SIGNALS.rules for text in (rule.name, rule.expression)]
    assert [each for each in (*ASKED.values(), *recorded) if not served.stand_in.knows_query(each)] == []


async def test_the_controllers_own_source_has_demand_latency_and_load_of_every_model_that_is_asked(
    served: Served,
) -> None:
    seen = await served.look()
    assert (seen.failure, seen.silent_gateways) == ("", ())
    asked = {ObjectKey("fleet", model.name) for model in MODELS if model.tier in SLO_S}
    assert set(seen.by_key) == asked
    reading = seen.by_key[ObjectKey("fleet", CTR.name)]
    assert reading.offered_per_s == pytest.approx(CTR.demand_per_s(START_HOUR), rel=1e-4)
    assert reading.served_per_s == reading.offered_per_s
    assert 0 < (reading.latency_p99_s or 0) < SLO_S["realtime"]
    assert 0 < (reading.busy or 0) < 1
    assert (reading.queue_s or 0) > 0


async def test_replicas_that_do_not_suffice_miss_the_slo_and_serve_less(served: Served) -> None:
    served.day.start_day()
    served.clock[0] = (served.day.started_at or 0) + 4.5 * 18  # the morning's peak
    served.ready(CTR, 1)
    at = served.clock[0]
    offered, served_now, p99 = (
        {each.metric["inference"]: each.value for each in served.stand_in.query_instant(ASKED[name], at)}
        for name in ("ROUTED", "SERVED", "LATENCY_P99")
    )
    assert offered[CTR.name] > served_now[CTR.name] == CTR.capacity_per_s
    assert p99[CTR.name] > SLO_S["realtime"]


async def test_a_model_without_a_pod_has_demand_and_no_latency(served: Served) -> None:
    served.ready(CTR, 0)
    reading = (await served.look()).by_key[ObjectKey("fleet", CTR.name)]
    assert (reading.offered_per_s or 0) > 0
    assert (reading.served_per_s, reading.latency_p99_s, reading.busy) == (0.0, None, None)


async def test_the_dashboards_own_questions_have_answers(served: Served) -> None:
    traffic = await Prometheus(served.url).read_traffic()
    found = traffic[f"inference/fleet/{CTR.name}/grpc"]
    assert found.requests_per_s == pytest.approx(CTR.demand_per_s(START_HOUR), rel=1e-4)
    assert 0 < (found.latency_p99_ms or 0) < 1000 * SLO_S["realtime"]


async def test_the_charts_of_an_inference_have_its_load(served: Served) -> None:
    inference = an_inference(CTR.name, "fleet", slo={"latencyP99": "50ms"})
    now = datetime.fromtimestamp(served.clock[0] + 5, UTC)
    reader = ChartReader(PrometheusApi(served.url).query_range, lambda: now, lambda: 0.0)

    drawn = await read_inference_charts(reader, inference, "15m")
    unknown = await read_inference_charts(reader, an_inference("gone", "fleet"), "15m")

    assert [chart.legend[0][0] for chart in drawn.charts] == ["sent", "not answered", "p99", "desired"]
    newest = dict(zip(drawn.numbers.head, drawn.numbers.rows[0][1], strict=True))
    assert newest["sent requests, per second"] == pytest.approx(CTR.demand_per_s(START_HOUR), rel=1e-4)
    assert newest["ready replicas, pods"] == 2
    assert unknown.charts == ()


async def test_the_dashboards_charts_have_what_the_controllers_said(served: Served) -> None:
    pools, registry = ObjectStore(kinds.COMPUTE_POOL), CollectorRegistry()
    status = {"observedGeneration": 1, "slices": {"healthy": 8, "free": 3}}
    decisions, questions = ObjectStore(kinds.ALLOCATION_DECISION), SolverInputs()
    registry.register(ObjectMetrics([pools], lambda: True))
    registry.register(PoolMetrics(pools, decisions, questions, lambda: True))
    pools.observe("ADDED", {**compute_pool_body("fleet"), "status": status})
    began = (served.clock[0] // 180 + 1) * 180
    for minute in range(3):
        served.stand_in.record_replicas(began + minute * 60)
        served.stand_in.pools.add_page(began + minute * 60, generate_latest(registry).decode())

    def reader(seconds: float) -> ChartReader:
        now = datetime.fromtimestamp(began + seconds, UTC)
        return ChartReader(PrometheusApi(served.url).query_range, lambda: now, lambda: 0.0)

    charts = reader(120)
    found = (await charts.read("fleet", "6h")).slices
    assert [(sample.time.timestamp() - began, sample.free) for sample in found] == [(0, 3), (90, 3)]
    assert (await charts.read("another", "6h")).slices == ()
    assert served.stand_in.knows_query(pool_query("fleet"))
    # The page was read last five minutes before: an answer may be as old, and no older.
    assert (await reader(1800).read("fleet", "15m")).slices == ()


async def test_the_page_of_the_controllers_is_read_again_and_again(served: Served) -> None:
    registry = CollectorRegistry()
    gauge = Gauge("tidegate_pool_slices", "A test's.", ("pool", "state"), registry=registry)
    gauge.labels("fleet", "free").set(7)

    async def page(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry))

    def free() -> list[float]:
        now = time.time() + 1
        return [sample.value for sample in served.stand_in.query_instant(pool_query("fleet"), now)]

    application = web.Application()
    application.router.add_get("/metrics", page)
    async with TestServer(application, host="127.0.0.1") as server:
        url = f"http://127.0.0.1:{server.port}/metrics"
        scraping = asyncio.ensure_future(scrape_pools(served.stand_in.pools, url, 0.01))
        try:
            await eventually(lambda: free() == [7], what="the page was read")
            gauge.labels("fleet", "free").set(5)
            await eventually(lambda: free() == [5], what="the page was read again")
        finally:
            scraping.cancel()


async def test_what_it_does_not_know_has_an_empty_answer_of_the_right_shape(served: Served) -> None:
    unknown = await served.get("/api/v1/query", query="up")
    assert unknown == {"status": "success", "data": {"resultType": "vector", "result": []}}
    window = {"start": "1", "end": "9", "step": "1"}
    unknown = await served.get("/api/v1/query_range", query="up", **window)
    assert unknown == {"status": "success", "data": {"resultType": "matrix", "result": []}}
    assert await Prometheus(served.url).query_value("up") is None


async def test_a_range_begins_with_the_first_scrape_and_follows_the_day(served: Served) -> None:
    served.day.start_day()
    began = served.day.started_at or 0.0
    served.clock[0] = began + 60
    served.stand_in.record_replicas(served.clock[0])
    window = {"start": str(began - 10), "end": str(began + 60), "step": "10"}
    found = await served.get("/api/v1/query_range", query="tidegate:inference_offered:rate1m", **window)
    [series] = [one for one in found["data"]["result"] if one["metric"]["inference"] == CTR.name]
    rates = [float(value) for _, value in series["values"]]
    assert len(rates) == 7
    assert rates[-1] > rates[0]


async def test_a_range_that_is_none_is_refused(served: Served) -> None:
    for query in ({}, {"start": "1", "end": "0", "step": "1"}, {"start": "1", "end": "2", "step": "0"}):
        assert (await served.get("/api/v1/query_range", query="up", **query))["status"] == "error"


async def test_it_says_that_it_is_no_prometheus(served: Served) -> None:
    for path in ("/", "/-/healthy", "/api/v1/status/buildinfo"):
        assert "a stand-in for Prometheus" in str(await served.get(path))
