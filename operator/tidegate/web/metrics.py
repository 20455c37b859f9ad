"""How the dashboard and the API answer, for Prometheus: nothing of what was asked, and by whom."""

from __future__ import annotations

import time
from typing import Final

from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidegate_dataplane.contract.metrics import Catalog

_FAILED: Final = 500
_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})

WEB: Final = Catalog("tidegate_web_")
_REQUESTS = WEB.counter(
    "requests_total", "Requests that were answered, by the HTTP status of the answer.", "method", "status"
)
_SECONDS = WEB.histogram(
    "request_seconds",
    "From a request until its answer began.",
    "method",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)


class WebMetrics:
    """What a web process counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = _REQUESTS.on(registry)
        self.seconds = _SECONDS.on(registry)


class Counted:
    """ASGI middleware: what all others refuse is counted too, and what fails, which is answered further outside."""

    def __init__(self, app: ASGIApp, metrics: WebMetrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers as the application does."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        method = scope["method"] if scope["method"] in _METHODS else "other"

        begun = False

        def count(status: int) -> None:
            nonlocal begun
            begun = True
            self._metrics.seconds.labels(method).observe(time.monotonic() - began)
            self._metrics.requests.labels(method, str(status)).inc()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                count(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, counted)
        except Exception:
            if not begun:
                count(_FAILED)
            raise
