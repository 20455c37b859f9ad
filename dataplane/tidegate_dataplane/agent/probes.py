"""The plain port: probes for the kubelet and metrics for Prometheus. It changes nothing and tells no secrets."""

from typing import Protocol

from aiohttp import web

from tidegate_dataplane.agent.drain import Drain
from tidegate_dataplane.agent.loop import Agent
from tidegate_dataplane.agent.metrics import CONTENT_TYPE, Metrics


class Readiness(Protocol):
    """What the readiness probe asks Triton."""

    async def is_ready(self, model: str) -> bool:
        """Return whether the server answers requests for `model` now."""
        ...


def probes_app(agent: Agent, server: Readiness, drain: Drain, metrics: Metrics) -> web.Application:
    """Return /startedz, /healthz, /readyz and /metrics."""

    async def alive(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_: web.Request) -> web.Response:
        model = agent.served_model
        if drain.active:
            return web.Response(text="draining\n", status=503)
        if model is None or not await server.is_ready(model):
            return web.Response(text="no model is ready\n", status=503)
        return web.Response(text="ok\n")

    async def exposition(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.router.add_get("/startedz", alive)
    app.router.add_get("/healthz", alive)
    app.router.add_get("/readyz", ready)
    app.router.add_get("/metrics", exposition)
    return app
