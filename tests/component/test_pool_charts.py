"""A pool's charts from a real Prometheus that has scraped the controllers' own metrics."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from wsgiref.simple_server import make_server

import pytest
from prometheus_client import CollectorRegistry, make_wsgi_app

from builders.compute_pool import compute_pool_body
from builders.waiting import eventually
from fixtures.prometheus import RunningPrometheus
from tidegate.exporters.objects import ObjectMetrics
from tidegate.exporters.pools import PoolMetrics
from tidegate.exporters.solver_inputs import SolverInputs
from tidegate.kube import kinds
from tidegate.kube.store import ObjectStore
from tidegate.telemetry.prometheus_api import PrometheusApi, PrometheusError
from tidegate.web.charts import ChartReader, PoolCharts

STATUS = {
    "observedGeneration": 1,
    "slices": {"total": 8, "healthy": 8, "free": 3},
    "tiers": [{"name": "nearline", "slices": 5}],
}


@pytest.fixture
def controllers() -> Iterator[Sequence[str]]:
    """The addresses of two replicas' metrics pages: both say that they lead, as for a moment two may."""
    servers = []
    for _ in range(2):
        pools = ObjectStore(kinds.COMPUTE_POOL)
        for name in ("cpu-a", "cpu-b"):
            pools.observe("ADDED", {**compute_pool_body(name), "status": STATUS})
        registry = CollectorRegistry()
        registry.register(ObjectMetrics([pools], lambda: True))
        registry.register(
            PoolMetrics(pools, ObjectStore(kinds.ALLOCATION_DECISION), SolverInputs(), lambda: True)
        )
        server = make_server("127.0.0.1", 0, make_wsgi_app(registry))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
    yield [f"127.0.0.1:{server.server_port}" for server in servers]
    for server in servers:
        server.shutdown()
        server.server_close()


async def read(prometheus: RunningPrometheus, pool: str) -> PoolCharts:
    query = PrometheusApi(prometheus.url).query_range
    return await ChartReader(query, lambda: datetime.now(UTC), lambda: 0.0).read(pool, "15m")


async def test_what_was_scraped_comes_back_and_counts_once(
    controllers: Sequence[str], prometheus: RunningPrometheus
) -> None:
    prometheus.targets = {f"controllers-{number}": each for number, each in enumerate(controllers)}
    prometheus.start()

    async def twice_scraped() -> PoolCharts | None:
        charts = await read(prometheus, "cpu-a")
        return charts if len(charts.slices) >= 2 else None

    charts = await eventually(twice_scraped, what="two scrapes")
    for sample in charts.slices:
        assert sample.tiers == {"realtime": 0, "nearline": 5, "offline": 0}
        assert (sample.healthy, sample.free) == (8, 3)
    assert charts.demand == ()
    assert await read(prometheus, "no-such-pool") == PoolCharts((), ())


async def test_a_prometheus_that_is_gone_is_said_to_be(prometheus: RunningPrometheus) -> None:
    prometheus.start()
    assert await read(prometheus, "cpu-a") == PoolCharts((), ())
    prometheus.stop()
    with pytest.raises(PrometheusError, match=r"web\.prometheusUrl"):
        await read(prometheus, "cpu-a")
