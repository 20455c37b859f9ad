"""Plain HTTP port: probes for the kubelet and metrics for Prometheus; read-only, without secrets."""

import asyncio
from collections.abc import Callable, Collection
from typing import Protocol

from aiohttp import web

from tidegate_dataplane.agent.drain import Drain
from tidegate_dataplane.agent.metrics import CONTENT_TYPE
from tidegate_dataplane.agent.runners import RunnerRegistry


class ReadinessCheck(Protocol):
    """Interface of Triton that the readiness probe needs."""

    async def is_ready(self, model: str) -> bool | None:
        """Return whether the server answers requests for `model` now; None if it does not answer in time."""
        ...


class ServingAgent(Protocol):
    """Interface of the agents that the readiness probe needs."""

    @property
    def served_models(self) -> Collection[str]:
        """Return the models that answer in this pod."""
        ...


def probes_app(
    agent: ServingAgent,
    server: ReadinessCheck,
    drain: Drain,
    runners: RunnerRegistry,
    render_metrics: Callable[[], bytes],
) -> web.Application:
    """Return /startedz, /healthz, /readyz and /metrics. A pod is ready as soon as one of its models answers."""

    last = False

    async def get_health(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def get_readiness(_: web.Request) -> web.Response:
        nonlocal last
        if drain.active:
            return web.Response(text="draining\n", status=503)
        served = agent.served_models
        ended = runners.broken_models | runners.resting_models
        # Of a spare that Inferences share, the end of one model's process takes none of the others out of service.
        intact = [model for model in served if model not in ended]
        if served and not intact:
            return web.Response(text="the model's process ended\n", status=503)
        answers = await asyncio.gather(*(server.is_ready(model) for model in intact))
        # A pod that is short of CPU is slow, not broken; Triton's own liveness probe detects a hang.
        last = any(answers) or (last and None in answers)
        return web.Response(text="ok\n") if last else web.Response(text="no model is ready\n", status=503)

    async def get_metrics(_: web.Request) -> web.Response:
        return web.Response(body=render_metrics(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.router.add_get("/startedz", get_health)
    app.router.add_get("/healthz", get_health)
    app.router.add_get("/readyz", get_readiness)
    app.router.add_get("/metrics", get_metrics)
    return app
