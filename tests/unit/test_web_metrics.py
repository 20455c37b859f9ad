"""The dashboard counts what it answers, whoever asked, and not what was asked for."""

from __future__ import annotations

import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from tidegate.web.metrics import RequestMetricsMiddleware, WebMetrics


async def answer(request: Request) -> PlainTextResponse:
    return PlainTextResponse("", status_code=int(request.path_params["status"]))


async def fail(request: Request) -> PlainTextResponse:
    raise KeyError(request.url.path)


@pytest.mark.parametrize(
    ("method", "path", "counted"),
    [
        ("GET", "/200", {"method": "GET", "status": "200"}),
        ("GET", "/503", {"method": "GET", "status": "503"}),
        ("GET", "/nowhere/at/all", {"method": "GET", "status": "404"}),
        ("INVENTED", "/200", {"method": "other", "status": "405"}),
        ("GET", "/bug", {"method": "GET", "status": "500"}),
    ],
    ids=["answered", "failed", "nowhere", "invented-method", "a-bug-of-ours"],
)
async def test_each_answer_is_counted_once_by_its_status(
    method: str, path: str, counted: dict[str, str]
) -> None:
    registry = CollectorRegistry()
    app = Starlette(routes=[Route("/{status:int}", answer, methods=["GET"]), Route("/bug", fail)])
    app.add_middleware(RequestMetricsMiddleware, metrics=WebMetrics(registry))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url="http://here"
    ) as client:
        await client.request(method, path)
    samples = {
        tuple(sample.labels.items()): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "tidegate_web_requests_total"
    }
    assert samples == {tuple(counted.items()): 1}
    seconds = registry.get_sample_value("tidegate_web_request_seconds_count", {"method": counted["method"]})
    assert seconds == 1
