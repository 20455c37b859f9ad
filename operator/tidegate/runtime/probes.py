"""The small HTTP server that the kubelet and Prometheus ask: /healthz, /readyz and /metrics."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

# What is wrong, in one sentence, or None.
Check: TypeAlias = Callable[[], str | None]

_UNAVAILABLE: Final = 503


class Probes:
    """Named checks. Liveness: would a restart help? Readiness: should others use this process now?"""

    def __init__(self) -> None:
        self._liveness: dict[str, Check] = {}
        self._readiness: dict[str, Check] = {}

    def add_liveness(self, name: str, check: Check) -> None:
        """The process is restarted when `check` keeps saying that something is wrong."""
        self._liveness[name] = check

    def add_readiness(self, name: str, check: Check) -> None:
        """The process gets no traffic while `check` says that something is missing."""
        self._readiness[name] = check

    def not_alive(self) -> Mapping[str, str]:
        """What is wrong by name; empty when all is well."""
        return _failing(self._liveness)

    def not_ready(self) -> Mapping[str, str]:
        """What is missing by name; empty when all is there. What is not alive is not ready either."""
        return _failing({**self._readiness, **self._liveness})


class ProbeServer:
    """Serves the probes and the metrics of a process in plain HTTP; it tells nothing but names and numbers."""

    def __init__(
        self, probes: Probes, registry: CollectorRegistry, routes: Sequence[web.RouteDef] = ()
    ) -> None:
        """`routes`: what the process has to say besides."""
        self._probes = probes
        self._registry = registry
        self._routes = routes

    @asynccontextmanager
    async def serve(self, *, host: str, port: int) -> AsyncGenerator[int]:
        """Listens while the block runs, and gives the port (port 0 takes a free one)."""
        runner = web.AppRunner(self._application(), access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
            yield int(runner.addresses[0][1])
        finally:
            await runner.cleanup()

    def _application(self) -> web.Application:
        application = web.Application()
        application.add_routes(
            [
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics),
                *self._routes,
            ]
        )
        return application

    async def _healthz(self, _request: web.Request) -> web.Response:
        return _answer(self._probes.not_alive())

    async def _readyz(self, _request: web.Request) -> web.Response:
        return _answer(self._probes.not_ready())

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )


def _failing(checks: Mapping[str, Check]) -> Mapping[str, str]:
    said = {name: check() for name, check in checks.items()}
    return {name: wrong for name, wrong in said.items() if wrong is not None}


def _answer(wrong: Mapping[str, str]) -> web.Response:
    if not wrong:
        return web.Response(text="ok\n")
    lines = "".join(f"{name}: {what}\n" for name, what in wrong.items())
    return web.Response(status=_UNAVAILABLE, text=lines)
