"""HTTP server for the kubelet and Prometheus: /healthz, /readyz and /metrics."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

# Return the failure in one sentence, or None.
Check: TypeAlias = Callable[[], str | None]

_UNAVAILABLE: Final = 503


class Probes:
    """Named checks: liveness (would a restart help?) and readiness (should others use this process now?)."""

    def __init__(self) -> None:
        self._liveness: dict[str, Check] = {}
        self._readiness: dict[str, Check] = {}

    def add_liveness(self, name: str, check: Check) -> None:
        """Add a check whose repeated failure restarts the process."""
        self._liveness[name] = check

    def add_readiness(self, name: str, check: Check) -> None:
        """Add a check whose failure keeps traffic away from the process."""
        self._readiness[name] = check

    def failed_liveness(self) -> Mapping[str, str]:
        """Return the failures of liveness checks by name."""
        return _run_checks(self._liveness)

    def failed_readiness(self) -> Mapping[str, str]:
        """Return the failures of all checks by name: a process that is not alive is not ready either."""
        return _run_checks({**self._readiness, **self._liveness})


class ProbeServer:
    """Server of a process's probes and metrics in plain HTTP; it discloses only names and numbers."""

    def __init__(
        self, probes: Probes, registry: CollectorRegistry, routes: Sequence[web.RouteDef] = ()
    ) -> None:
        """Serve `routes` besides the probes and metrics."""
        self._probes = probes
        self._registry = registry
        self._routes = routes

    @asynccontextmanager
    async def serve(self, *, host: str, port: int) -> AsyncGenerator[int]:
        """Listen while the block runs and yield the port; port 0 takes a free one."""
        runner = web.AppRunner(self._make_application(), access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
            yield int(runner.addresses[0][1])
        finally:
            await runner.cleanup()

    def _make_application(self) -> web.Application:
        application = web.Application()
        application.add_routes(
            [
                web.get("/healthz", self._serve_healthz),
                web.get("/readyz", self._serve_readyz),
                web.get("/metrics", self._serve_metrics),
                *self._routes,
            ]
        )
        return application

    async def _serve_healthz(self, _request: web.Request) -> web.Response:
        return _make_response(self._probes.failed_liveness())

    async def _serve_readyz(self, _request: web.Request) -> web.Response:
        return _make_response(self._probes.failed_readiness())

    async def _serve_metrics(self, _request: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )


def _run_checks(checks: Mapping[str, Check]) -> Mapping[str, str]:
    results = {name: check() for name, check in checks.items()}
    return {name: failure for name, failure in results.items() if failure is not None}


def _make_response(failures: Mapping[str, str]) -> web.Response:
    if not failures:
        return web.Response(text="ok\n")
    lines = "".join(f"{name}: {failure}\n" for name, failure in failures.items())
    return web.Response(status=_UNAVAILABLE, text=lines)
