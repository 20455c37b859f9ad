"""Metrics of the dashboard and the API, without the content and the user of a request."""

from __future__ import annotations

import time
from typing import Final

from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidegate_dataplane.contract.metrics import MetricCatalog

_FAILED: Final = 500
_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})

WEB: Final = MetricCatalog("tidegate_web_")
_REQUESTS = WEB.add_counter("requests_total", "Answered requests, by HTTP status.", "method", "status")
_SECONDS = WEB.add_histogram(
    "request_seconds",
    "Time from a request to the beginning of its response.",
    "method",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)


class WebMetrics:
    """Metrics of a web process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = _REQUESTS.register(registry)
        self.seconds = _SECONDS.register(registry)


class RequestMetricsMiddleware:
    """ASGI middleware that counts all requests, including those that other middleware rejects and those that fail."""

    def __init__(self, app: ASGIApp, metrics: WebMetrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request and count it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start_s = time.monotonic()
        method = scope["method"] if scope["method"] in _METHODS else "other"

        response_started = False

        def count_response(status: int) -> None:
            nonlocal response_started
            response_started = True
            self._metrics.seconds.labels(method).observe(time.monotonic() - start_s)
            self._metrics.requests.labels(method, str(status)).inc()

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                count_response(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, send_counted)
        except Exception:
            # A middleware outside this one sends the response.
            if not response_started:
                count_response(_FAILED)
            raise
