"""Plain HTTP port: probes for the kubelet and metrics for Prometheus; read-only, without secrets."""

from typing import Protocol

from aiohttp import web

from tidegate_dataplane.agent.drain import Drain
from tidegate_dataplane.agent.loop import Agent
from tidegate_dataplane.agent.metrics import CONTENT_TYPE, AgentMetrics
from tidegate_dataplane.agent.runners import RunnerRegistry


class ReadinessCheck(Protocol):
    """Interface of Triton that the readiness probe needs."""

    async def is_ready(self, model: str) -> bool | None:
        """Return whether the server answers requests for `model` now; None if it does not answer in time."""
        ...


def probes_app(
    agent: Agent, server: ReadinessCheck, drain: Drain, runners: RunnerRegistry, metrics: AgentMetrics
) -> web.Application:
    """Return /startedz, /healthz, /readyz and /metrics."""

    last = False

    async def get_health(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def get_readiness(_: web.Request) -> web.Response:
        nonlocal last
        if drain.active:
            return web.Response(text="draining\n", status=503)
        model = agent.served_model
        if runners.is_resting or model in runners.broken_models:
            return web.Response(text="the model's process ended\n", status=503)
        answer = await server.is_ready(model) if model is not None else False
        # A pod that is short of CPU is slow, not broken; Triton's own liveness probe detects a hang.
        last = last if answer is None else answer
        return web.Response(text="ok\n") if last else web.Response(text="no model is ready\n", status=503)

    async def get_metrics(_: web.Request) -> web.Response:
        return web.Response(body=metrics.render_text(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.router.add_get("/startedz", get_health)
    app.router.add_get("/healthz", get_health)
    app.router.add_get("/readyz", get_readiness)
    app.router.add_get("/metrics", get_metrics)
    return app
