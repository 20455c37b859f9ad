"""Probes and metrics over a real socket."""

from __future__ import annotations

import aiohttp
from prometheus_client import CollectorRegistry, Counter

from tidegate.runtime.probes import Probes, ProbeServer


async def asked(server: ProbeServer, path: str) -> tuple[int, str]:
    async with (
        server.serve(host="127.0.0.1", port=0) as port,
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}") as response,
    ):
        return response.status, await response.text()


async def test_a_process_without_complaints_is_alive_and_ready() -> None:
    server = ProbeServer(Probes(), CollectorRegistry())
    assert await asked(server, "/healthz") == (200, "ok\n")
    assert await asked(server, "/readyz") == (200, "ok\n")


async def test_what_is_missing_is_named() -> None:
    probes = Probes()
    probes.add_readiness("caches", lambda: "pods are not listed yet")
    probes.add_readiness("agents", lambda: None)
    server = ProbeServer(probes, CollectorRegistry())
    assert await asked(server, "/healthz") == (200, "ok\n")
    assert await asked(server, "/readyz") == (503, "caches: pods are not listed yet\n")


async def test_what_is_not_alive_is_not_ready_either() -> None:
    probes = Probes()
    probes.add_liveness("queue", lambda: "no worker has got on")
    server = ProbeServer(probes, CollectorRegistry())
    assert (await asked(server, "/healthz"))[0] == 503
    assert (await asked(server, "/readyz"))[0] == 503


async def test_metrics_are_served_in_prometheus_own_format() -> None:
    registry = CollectorRegistry()
    Counter("tidegate_tries", "Tries.", registry=registry).inc(3)
    status, text = await asked(ProbeServer(Probes(), registry), "/metrics")
    assert status == 200
    assert "tidegate_tries_total 3.0" in text


async def test_nothing_else_is_served() -> None:
    assert (await asked(ProbeServer(Probes(), CollectorRegistry()), "/"))[0] == 404
