"""Serves an application on loopback, and the kubeconfig of one that plays an API server."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import yaml
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest


@asynccontextmanager
async def on_loopback(application: web.Application) -> AsyncGenerator[str]:
    """Listens while the block runs, at any free port, and gives host:port."""
    # A test that ends waits for no client.
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def serve_registry(registry: CollectorRegistry) -> AsyncGenerator[str]:
    """Serves what a registry shows, at the path of gateways, and gives host:port."""

    async def page(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    application = web.Application()
    application.router.add_get("/stats/prometheus", page)
    async with on_loopback(application) as address:
        yield address


def kubeconfig_of(folder: Path, address: str, token: str = "t") -> Path:
    """A kubeconfig in `folder` for the API server there, without TLS."""
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://{address}"}}],
        "users": [{"name": "u", "user": {"token": token}}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path
