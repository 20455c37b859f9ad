"""A pool's past from a real Prometheus that has scraped the controllers' own metrics."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from wsgiref.simple_server import make_server

import pytest
from prometheus_client import CollectorRegistry, make_wsgi_app

from builders.compute_pool import compute_pool_body
from fixtures.prometheus import RunningPrometheus
from tidegate.kube import kinds
from tidegate.kube.store import ObjectStore
from tidegate.telemetry.pool_series import Moment, PoolSeries
from tidegate.telemetry.prometheus import Prometheus
from tidegate_controllers.object_metrics import ObjectMetrics
from tidegate_controllers.pool_metrics import PoolMetrics
from tidegate_controllers.questions import Questions

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
            PoolMetrics(pools, ObjectStore(kinds.ALLOCATION_DECISION), Questions(), lambda: True)
        )
        server = make_server("127.0.0.1", 0, make_wsgi_app(registry))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
    yield [f"127.0.0.1:{server.server_port}" for server in servers]
    for server in servers:
        server.shutdown()
        server.server_close()


async def asked(prometheus: RunningPrometheus, pool: str) -> Sequence[Moment] | None:
    now = datetime.now(UTC)
    past = Prometheus(prometheus.url).pool_past
    return await past(pool, now - timedelta(minutes=1), now, timedelta(seconds=1))


async def test_what_was_scraped_comes_back_and_counts_once(
    controllers: Sequence[str], prometheus: RunningPrometheus
) -> None:
    prometheus.targets = {f"controllers-{number}": each for number, each in enumerate(controllers)}
    prometheus.start()
    found: Sequence[Moment] = ()
    async with asyncio.timeout(60):
        while len(found) < 2:
            await asyncio.sleep(0.1)
            found = await asked(prometheus, "cpu-a") or ()
    for each in found:
        assert each.of(PoolSeries.SLICES, "nearline") == 5
        assert [each.of(PoolSeries.COUNTED, state) for state in ("healthy", "free")] == [8, 3]
        assert each.of(PoolSeries.WANTED, "realtime") is None
    assert await asked(prometheus, "no-such-pool") == ()


async def test_one_that_is_gone_says_nothing_and_raises_nothing(prometheus: RunningPrometheus) -> None:
    prometheus.start()
    assert await asked(prometheus, "cpu-a") == ()
    prometheus.stop()
    assert await asked(prometheus, "cpu-a") is None
