"""Each request counts once: one that the price refuses, that a fallback answers, that is tried again, or of which a mirror gets a copy."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest
from prometheus_api_client import PrometheusConnect
from prometheus_client import CollectorRegistry

from builders.loopback import serve_registry
from builders.model_access import a_model_access, a_route
from builders.waiting import eventually
from fixtures.envoy import Client, Gateway, backend_of
from fixtures.prometheus import RunningPrometheus
from tidegate.exporters.route_demand import RouteDemandMetrics
from tidegate.planning.access.value_classes import RouteDemands, index_routes
from tidegate.telemetry import expressions
from tidegate.telemetry.gateway_traffic import GatewayTraffic
from tidegate.telemetry.gateways import ScrapeTarget
from tidegate.telemetry.recording_rules import render_recording_rules

ROUTE = "access/ads/ctr/default"
NEARLY_ALL = 0.999999
"""Whether all are admitted cannot be waited for, because that is also so before."""
REFUSAL = "RESOURCE_EXHAUSTED"
ADMITTED, REDUCED, REFUSED = 20, 60, 60
"""How many requests the test sends for each outcome."""
ACCESS = a_model_access(
    routes=[
        a_route(
            value="2",
            fallback={"inference": "small", "valuePercent": 50},
            mirror=[{"inference": "shadow"}],
            retry={"attempts": 1},
        )
    ],
    protection={"admissionControl": {"mode": "Priced"}},
)


async def find_outcome(client: Client) -> str:
    """Who answered, or the name of the status."""
    try:
        return await client.infer(metadata=(("x-tidegate-access", "ads/ctr"),))
    except grpc.aio.AioRpcError as error:
        return error.code().name


async def expect_outcome(client: Client, outcome: str, count: int) -> None:
    """Send requests that all have this outcome."""
    assert Counter([await find_outcome(client) for _ in range(count)]) == Counter({outcome: count})


@asynccontextmanager
async def sharing(gateway: Gateway, full: float, answered: float) -> AsyncGenerator[None]:
    """The gateway admits the share `full` of the requests, and with the fallback the share `answered`."""
    by_key = {ROUTE: full, f"{ROUTE}/reduced": answered}
    renewal = asyncio.create_task(gateway.renew_shares(by_key))
    try:
        for route, share in by_key.items():
            await gateway.wait_for_share(route, round(share * 1e6))
        yield
    finally:
        renewal.cancel()


async def test_a_request_is_demand_once_whatever_becomes_of_it(
    gateway: Gateway, prometheus: RunningPrometheus
) -> None:
    model, small, shadow = [await gateway.upstream(name) for name in ("v1", "small", "shadow")]
    client = await gateway.start(
        ACCESS, backend_of("ctr", model), backend_of("small", small), backend_of("shadow", shadow)
    )
    routes: RouteDemands = index_routes([ACCESS])
    registry = CollectorRegistry()
    registry.register(RouteDemandMetrics(lambda: routes, lambda: True))
    now_s = 100.0
    target = ScrapeTarget("gateway-1", gateway.envoy.admin)
    traffic = GatewayTraffic(lambda: [target], lambda: routes, lambda: now_s)
    async with serve_registry(registry) as controllers:
        prometheus.targets = {"gateway-1": gateway.envoy.admin, "controllers-1": controllers}
        prometheus.rules = render_recording_rules()
        prometheus.start()
        asked = PrometheusConnect(prometheus.url)

        async def recorded(name: str) -> Mapping[str, float]:
            """Requests of the last minute, by Inference."""
            samples = await asyncio.to_thread(
                asked.custom_query, f"tidegate:inference_{name}:rate1m * 60 > 0"
            )
            return {sample["metric"]["inference"]: float(sample["value"][1]) for sample in samples}

        # Envoy shows a counter once it has counted: each outcome comes once before rates are taken.
        async with sharing(gateway, full=0.0, answered=NEARLY_ALL):
            await expect_outcome(client, "small", 1)
        async with sharing(gateway, full=0.0, answered=0.0):
            await expect_outcome(client, REFUSAL, 1)

        async def has_been_scraped() -> bool:
            reduced = 'envoy_vhost_route_upstream_rq_completed{envoy_route="default/reduced"} > 0'
            series = f"envoy_tidegate_refused > 0 or {reduced} or tidegate_route_demand_ratio"
            return len(await asyncio.to_thread(asked.custom_query, series)) == 4

        await eventually(has_been_scraped, "Prometheus has all counters")
        await traffic.scrape_signals()

        async with sharing(gateway, full=0.0, answered=NEARLY_ALL):
            await expect_outcome(client, "small", REDUCED)
        async with sharing(gateway, full=0.0, answered=0.0):
            await expect_outcome(client, REFUSAL, REFUSED)
        # A request fails, and its second try does not.
        model.fail_with, model.fail_every = grpc.StatusCode.UNAVAILABLE, 2
        async with sharing(gateway, full=NEARLY_ALL, answered=NEARLY_ALL):
            await expect_outcome(client, "v1", ADMITTED)
        # What was not only sent once: tries of the gateway, and copies.
        assert await gateway.envoy.stat("cluster.inference/ads/ctr/grpc.upstream_rq_retry") > ADMITTED / 2
        assert shadow.inferences > ADMITTED / 2

        # The gateways' own counters are exact.
        now_s += 1
        look = await traffic.scrape_signals()
        assert {key.name: (seen.offered_per_s, seen.refused_per_s) for key, seen in look.by_key.items()} == {
            "ctr": (ADMITTED + REDUCED + REFUSED, REDUCED + REFUSED),
            "small": (REDUCED, 0.0),
            "shadow": (0.0, 0.0),
        }

        # Prometheus extrapolates: by less than the double count of any outcome would add.
        async def is_recorded() -> Mapping[str, Mapping[str, float]] | None:
            figures = {name: await recorded(name) for name in ("routed", "offered", "demand")}
            expected = {
                "routed": {"ctr": ADMITTED, "small": REDUCED},
                "offered": {"ctr": ADMITTED + REFUSED, "small": REDUCED},
                "demand": {"ctr": ADMITTED + REFUSED + REDUCED, "small": REDUCED},
            }
            near = {
                name: {key: pytest.approx(count, rel=0.25, abs=8) for key, count in counts.items()}
                for name, counts in expected.items()
            }
            return figures if figures == near else None

        await eventually(is_recorded, "the rules count each request once")
        # A Prometheus without the rules evaluates the whole expression.
        samples = await asyncio.to_thread(asked.custom_query, f"({expressions.DEMAND}) > 0")
        assert {sample["metric"]["inference"] for sample in samples} == {"ctr", "small"}
