"""HTTPS server for the controllers alone: it checks the common name of each client certificate."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog
from aiohttp import web

from tidegate_dataplane.agent.certificates import CLIENT_COMMON_NAME, common_name, server_context

log = structlog.get_logger()

CHECK_INTERVAL_S = 1.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def controllers_only(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer 403 to clients without the controllers' certificate."""
    certificate = request.transport.get_extra_info("peercert") if request.transport else None
    if common_name(certificate) != CLIENT_COMMON_NAME:
        return web.json_response(
            {"error": f"the client certificate does not have the common name {CLIENT_COMMON_NAME}"},
            status=403,
        )
    return await handler(request)


class ControlServer:
    """Serves the control app; each handshake checks the client against the newest authority file.

    One socket listens throughout: a second one would take half of the connections, and closing the first would end those
    that still wait in its queue.
    """

    def __init__(
        self, app: web.Application, server_pem: bytes, client_authority: Path, *, address: str, port: int
    ) -> None:
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)
        self._pem = server_pem
        self._authority = client_authority
        self._address = address
        self._port = port
        self._context: ssl.SSLContext | None = None
        self.port: int | None = None
        self._authority_content: bytes | None = None

    async def start(self) -> None:
        """Listen if the authority file exists; otherwise `watch_authority` starts listening later."""
        await self._runner.setup()
        await self.reload_authority()

    async def watch_authority(self) -> None:
        """Reload the authority file whenever it changes, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            await self.reload_authority()

    async def reload_authority(self) -> None:
        """Reload the authority file if it has changed, and listen from the first valid one on."""
        try:
            content = self._authority.read_bytes()
        except OSError:
            return
        if content == self._authority_content:
            return
        try:
            context = server_context(self._pem, self._authority)
        except (OSError, ssl.SSLError) as error:
            log.warning("client_authority_unusable", path=str(self._authority), error=str(error))
            self._authority_content = content
            return
        listens, self._context, self._authority_content = self._context is not None, context, content
        if listens:
            log.info("client_authority_renewed")
            return
        listener = _open_listener(self._address, self._port)
        first = server_context(self._pem, self._authority)
        first.sni_callback = self._use_newest_context
        await web.SockSite(self._runner, listener, ssl_context=first).start()
        self.port = int(listener.getsockname()[1])
        log.info("control_listening", port=self.port)

    def _use_newest_context(
        self, connection: ssl.SSLObject, name: str | None, before: ssl.SSLContext
    ) -> None:
        """Use the newest context; the ssl module calls this at the beginning of each handshake, with or without SNI."""
        del name, before
        if self._context is not None:
            connection.context = self._context

    async def stop(self) -> None:
        """Stop listening and close open connections."""
        with contextlib.suppress(RuntimeError):
            await self._runner.cleanup()


def _open_listener(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    return listener
