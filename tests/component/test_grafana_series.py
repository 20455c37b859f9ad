"""Every panel has something to show: a real Prometheus scrapes a real Envoy, and pages with every metric that our processes define."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from builders import every_metric
from builders.loopback import on_loopback
from builders.model_access import a_model_access, a_route
from builders.release import a_release, released
from fixtures.envoy import Gateway, Load, backend_of
from fixtures.grafana import documents, every_query, series, without_series
from fixtures.prometheus import RunningPrometheus
from tidegate.grafana.promql import NAMESPACE
from tidegate.telemetry.recording_rules import render_recording_rules

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
        served(every_metric.our_page) as ours,
        served(every_metric.page_of_a_pod) as pod,
        Load(client, (("x-tidegate-access", "ads/ctr"),), pause_s=0.02).running(1),
        Load(client, (("x-tidegate-access", "ads/plain"),), pause_s=0.02).running(1),
    ):
        prometheus.targets = {"gateway-1": gateway.envoy.admin, every_metric.POD: pod, "ours": ours}
        prometheus.rules = hurried(render_recording_rules())
        await asyncio.to_thread(prometheus.start)
        asked = every_query()
        assert len(asked) > 100
        missing = await asyncio.to_thread(without_series, prometheus.url, asked, 90, **SOON)
        chosen = await asyncio.to_thread(series, prometheus.url, NAMESPACE.query)
        for query in queries_of_variables():
            await asyncio.to_thread(series, prometheus.url, query)
    assert [each.name for each in missing] == []
    # Whatever a Prometheus calls our label.
    assert {each["metric"]["namespace"] for each in chosen} == {"ads", "shop"}
