"""Answer for the agents of all pods: each reports that version 1 serves, the only version of the fleet.

All pods have the same address, so the reports of a thousand Inferences need only a few connections.
So no request tells which pod it is for, and an order for another version has no effect.
"""

import socket
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

from aiohttp import web

from tidegate_localcluster.pki import Pki

ADDRESS: Final = "127.84.0.1"
"""An unused loopback address, because the port of an agent is always the same."""
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
async def serve_agents(pki: Pki, address: str = ADDRESS) -> AsyncGenerator[None]:
    """Answer as the agents of all pods while the block runs.

    Several fleets on one machine share the address; their answers are the same.
    """
    key_pair = pki.issue_server("agents", [address])
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.minimum_version = ssl.TLSVersion.TLSv1_3
    tls.load_cert_chain(key_pair.certificate, key_pair.key)
    application = web.Application()
    application.add_routes([web.get("/v1/report", _answer_report), web.put("/v1/desired", _answer_report)])
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


async def _answer_report(_: web.Request) -> web.Response:
    return web.json_response(REPORT)
