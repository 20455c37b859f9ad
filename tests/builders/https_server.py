"""Serves an application over HTTPS on loopback, with a certificate of an authority of the test's own."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web


@asynccontextmanager
async def https_server(
    application: web.Application, certificate: Path, port: int = 0
) -> AsyncGenerator[int, None]:
    """Listens while the block runs, at any free port unless one is given, and gives the port; `certificate` holds the key too."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    # A test that ends waits for no client.
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
