"""Plain HTTP port: probes for the kubelet and metrics for Prometheus; read-only, without secrets."""

from typing import Protocol

from aiohttp import web

from tidegate_dataplane.agent.drain import Drain
from tidegate_dataplane.agent.loop import Agent
from tidegate_dataplane.agent.metrics import CONTENT_TYPE, Metrics
from tidegate_dataplane.agent.runners import Runners


class Readiness(Protocol):
    """Interface of Triton that the readiness probe needs."""

    async def is_ready(self, model: str) -> bool | None:
        """Return whether the server answers requests for `model` now; None if it does not answer in time."""
        ...


def probes_app(
    agent: Agent, server: Readiness, drain: Drain, runners: Runners, metrics: Metrics
) -> web.Application:
    """Return /startedz, /healthz, /readyz and /metrics."""

    last = False

    async def alive(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_: web.Request) -> web.Response:
        nonlocal last
        if drain.active:
            return web.Response(text="draining\n", status=503)
        model = agent.served_model
        if runners.resting or model in runners.broken:
            return web.Response(text="the model's process ended\n", status=503)
        answer = await server.is_ready(model) if model is not None else False
        # A pod that is short of CPU is slow, not broken: whether Triton hangs is for its own liveness probe to say.
        last = last if answer is None else answer
        return web.Response(text="ok\n") if last else web.Response(text="no model is ready\n", status=503)

    async def exposition(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.router.add_get("/startedz", alive)
    app.router.add_get("/healthz", alive)
    app.router.add_get("/readyz", ready)
    app.router.add_get("/metrics", exposition)
    return app
