"""Stands in for the agents of all pods: each says that version 1 serves, which is all that is ever ordered here.

All pods have the same address, so that a thousand Inferences are asked over a few connections.
Therefore nobody knows which pod is asked: an order for another version is heard and comes to nothing.
"""

import socket
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

from aiohttp import web

from tidegate_localcluster.pki import Pki

ADDRESS: Final = "127.84.0.1"
"""On loopback, and nobody's: the port of an agent is always the same."""
PORT: Final = 8443
REPORT: Final[dict[str, Any]] = {
    "pod": "simulated",
    "epoch": 0,
    "generation": 1,
    "phase": "Ready",
    "target": 1,
    "serving": 1,
    "loaded": [1],
}


@asynccontextmanager
async def agents(pki: Pki, address: str = ADDRESS) -> AsyncGenerator[None]:
    """They answer while the block runs; those of several fleets on one machine share the address, and say the same."""
    served = pki.server("agents", [address])
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.minimum_version = ssl.TLSVersion.TLSv1_3
    tls.load_cert_chain(served.certificate, served.key)
    application = web.Application()
    application.add_routes([web.get("/v1/report", _report), web.put("/v1/desired", _report)])
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind((address, PORT))
            await web.SockSite(runner, listener, ssl_context=tls, backlog=1024).start()
            yield
    finally:
        await runner.cleanup()


async def _report(_: web.Request) -> web.Response:
    return web.json_response(REPORT)
